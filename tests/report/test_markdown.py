import dataclasses
import re

import pytest

from mapper.report.gfm import escape, fenced
from mapper.report.markdown import render_markdown


def test_markdown_is_as_agreed(sheet, golden):
    golden("sheet.md", render_markdown(sheet))


def test_every_table_row_has_as_many_cells_as_its_head(sheet):
    lines = render_markdown(sheet).splitlines()
    heads = [index for index, line in enumerate(lines) if re.fullmatch(r"\|(---\|)+", line)]
    assert len(heads) == 6  # mappings, kernels, layer types, sums, candidates, nodes
    for head in heads:
        width = lines[head].count("|")
        row = head - 1
        while row < len(lines) and lines[row].startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", lines[row])) == width, lines[row]
            row += 1


def test_no_markup_of_the_model_survives(sheet, sample):
    text = render_markdown(sheet)
    assert "<script" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert set(re.findall(r"</?([a-z]+)", text)) == {"details", "summary"}
    assert sample.HOSTILE[:4] not in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("conv2d_3/Relu:0", "conv2d_3/Relu:0"),
        ("_private_", "\\_private\\_"),
        ("a|b", "a\\|b"),
        ("a`b*c[d](e)", "a\\`b\\*c\\[d\\](e)"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("a\nb\x07", "a\\\\x0ab\\\\x07"),
        ("入力/1:0", "入力/1:0"),
    ],
)
def test_name_is_escaped(name, expected):
    assert escape(name) == expected


def test_code_block_cannot_be_closed_from_within():
    lines = list(fenced("a\n````\n# out"))
    assert lines[1] == "`````text"
    assert lines[-1] == "`````"


def test_every_kernel_lists_its_nodes_and_evidence(sheet):
    text = render_markdown(sheet)
    for kernel in sheet.kernels:
        assert f"choice {kernel.choice_key}" in text
    assert "**Nodes:** conv1, Relu\\#1" in text
    assert "**Evidence:** L2 at 0.7 of its roof" in text


def test_node_without_kernel_or_reason_stands_out(sheet):
    lost = dataclasses.replace(sheet.nodes[0], kernels=(), reason=None)
    assert "NOT ACCOUNTED FOR" in render_markdown(dataclasses.replace(sheet, nodes=(lost,)))
    assert "NOT ACCOUNTED FOR" not in render_markdown(sheet)


def test_kernel_of_many_nodes_stays_readable(sheet):
    kernel = dataclasses.replace(sheet.kernels[0], nodes=tuple(range(8000)))
    text = render_markdown(dataclasses.replace(sheet, kernels=(kernel,)))
    assert "and 7960 more" in text
