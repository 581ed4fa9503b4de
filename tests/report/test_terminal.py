import dataclasses
import io

import pytest
from rich.console import Console

from mapper.records import Reading
from mapper.report.terminal import render_sheet


def render(sheet, width=80, encoding="utf-8", top=12, **options):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    render_sheet(sheet, Console(file=stream, width=width, **options), top)
    stream.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [80, 120])
def test_terminal_text_is_as_agreed(sheet, golden, width):
    golden(f"terminal_{width}.txt", render(sheet, width))


def test_ascii_text_is_as_agreed(sheet, golden):
    golden("terminal_ascii.txt", render(sheet, 80, "ascii"))


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_no_line_is_wider_than_the_terminal(sheet, width, encoding):
    assert max(len(line) for line in render(sheet, width, encoding).splitlines()) <= width


def test_piped_text_has_no_colour_and_no_control_characters(sheet):
    text = render(sheet)
    assert "\x1b" not in text
    assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_colour_terminal_gets_colour_but_no_escape_of_the_models(sheet):
    text = render(sheet, force_terminal=True, color_system="standard")
    assert "\x1b[1m" in text
    assert "\x1b[31mevil" not in text
    assert "\x1b[2J" not in text
    assert "\\x1b" in text


def test_markup_in_a_name_is_shown_letter_for_letter(sheet):
    kernel = dataclasses.replace(sheet.kernels[0], name="[bold]:smile:[/]")
    assert "[bold]:smile:[/]" in render(dataclasses.replace(sheet, kernels=(kernel,)))


def test_modelled_number_is_marked_and_a_measured_one_is_not(sheet):
    def row(reading):
        mapping = dataclasses.replace(sheet.mappings[0], stall_share=reading)
        text = render(dataclasses.replace(sheet, mappings=(mapping,)))
        return next(line for line in text.splitlines() if line.startswith("1 epilogue"))

    assert " ~42% " in row(Reading(value=0.42, unit="1", method="model", grade="modelled"))
    assert " 42% " in row(Reading(value=0.42, unit="1", method="pmu.tma", grade="measured"))
    assert " =42% " in row(Reading(value=0.42, unit="1", method="user", grade="declared"))


def test_share_whose_interval_holds_zero_reads_as_zero_and_its_width(sheet):
    reading = Reading(value=0.01, unit="1", method="l1_fold", grade="measured", low=-0.12, high=0.1)
    mapping = dataclasses.replace(sheet.mappings[0], stall_share=reading)
    assert " 0±12% " in render(dataclasses.replace(sheet, mappings=(mapping,)))


def test_null_is_a_dash_with_its_reason_below(sheet):
    text = render(sheet)
    row = next(line for line in text.splitlines() if line.startswith("1 epilogue"))
    assert "– a" in row
    assert "a  energy: null: no readable RAPL" in text


def test_top_limits_the_kernels_and_orders_them_by_share(sheet):
    text = render(sheet, top=2)
    assert "(2 of 14)" in text
    assert text.index("conv_relu_0") < text.index("conv_1")
    assert "conv_13" not in text


def test_mapping_that_is_not_verified_has_no_rank_and_says_why(sheet):
    text = render(sheet)
    row = next(line for line in text.splitlines() if line.startswith("– epilogue"))
    assert "✗ b" in row
    assert "b  not verified: output softmaxout_1 is wrong: relative error 0.62" in text


def test_empty_sheet_is_still_a_report(sheet):
    sums = dataclasses.replace(sheet.reconciliation, kernels_sum_s=None, end_to_end_s=None, remainder_s=None)
    empty = dataclasses.replace(sheet, mappings=(), kernels=(), layer_types=(), reconciliation=sums)
    text = render(empty)
    assert "mappings: none" in text
    assert "the model was not timed" in text


def test_node_that_is_in_no_kernel_without_a_reason_is_reported(sheet):
    lost = dataclasses.replace(sheet.nodes[0], name="forgotten", kernels=(), reason=None)
    text = render(dataclasses.replace(sheet, nodes=(lost,)))
    assert "lost nodes  forgotten" in text


def test_unstable_reference_is_reported(sheet):
    reference = dataclasses.replace(sheet.reference, stable=False)
    assert "disagrees with itself" in " ".join(render(dataclasses.replace(sheet, reference=reference)).split())
