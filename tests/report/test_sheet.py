import dataclasses
import json
import math
import re
import types
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest

from mapper import records
from mapper.errors import BadInputError
from mapper.report.sheet import read_sheet, schema, schema_bytes, sheet_bytes, write_sheet

DOCS = Path(__file__).parents[2] / "docs"


def change(path, edit):
    raw = json.loads(path.read_text(encoding="utf-8"))
    edit(raw)
    path.write_text(json.dumps(raw), encoding="utf-8")


@pytest.fixture
def written(sheet, tmp_path):
    path = tmp_path / "sheet.json"
    write_sheet(sheet, path)
    return path


def refusal(path):
    with pytest.raises(BadInputError) as caught:
        read_sheet(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert len(message.splitlines()) == 1
    return message


def test_sheet_survives_writing_and_reading_from_file_or_folder(sheet, written):
    assert read_sheet(written) == sheet
    assert read_sheet(written.parent) == sheet


def test_file_has_sorted_keys_and_a_newline_at_its_end(written):
    text = written.read_text(encoding="utf-8")
    raw = json.loads(text)
    assert list(raw) == sorted(raw)
    assert list(raw["model"]) == sorted(raw["model"])
    assert text.endswith("}\n")


def test_writing_replaces_the_old_file_and_leaves_no_other(sheet, written):
    write_sheet(dataclasses.replace(sheet, warnings=("second",)), written)
    assert read_sheet(written).warnings == ("second",)
    assert [path.name for path in written.parent.iterdir()] == ["sheet.json"]


def test_failed_write_keeps_the_old_file(sheet, written, monkeypatch):
    def fail(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(BadInputError, match="No space left"):
        write_sheet(dataclasses.replace(sheet, warnings=("second",)), written)
    assert [path.name for path in written.parent.iterdir()] == ["sheet.json"]
    assert read_sheet(written) == sheet


def test_folder_that_is_a_file_is_one_clear_line(sheet, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match="cannot be written"):
        write_sheet(sheet, tmp_path / "file" / "sheet.json")


def test_numpy_numbers_and_read_only_mappings_are_written_as_json(sheet, tmp_path):
    kernel = dataclasses.replace(
        sheet.kernels[0], tile=types.MappingProxyType({"rows": np.int64(6)}), predicted_s=np.float32(0.5)
    )
    write_sheet(dataclasses.replace(sheet, kernels=(kernel,)), tmp_path / "sheet.json")
    found = read_sheet(tmp_path).kernels[0]
    assert found.tile == {"rows": 6}
    assert found.predicted_s == 0.5


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_reading_that_is_not_finite_becomes_null_with_a_reason_and_a_warning(sheet, number):
    bad = dataclasses.replace(
        sheet.mappings[0], flop_fraction=records.Reading(value=number, unit="1", method="x", grade="measured")
    )
    raw = json.loads(sheet_bytes(dataclasses.replace(sheet, mappings=(bad,))), parse_constant=pytest.fail)
    reading = raw["mappings"][0]["flop_fraction"]
    assert reading["value"] is None
    assert reading["grade"] is None
    assert "not finite" in reading["reason"]
    assert f"mappings[0].flop_fraction.value was {number} and is written as null" in raw["warnings"]


def test_number_that_cannot_be_null_and_is_not_finite_is_refused(sheet):
    layer = dataclasses.replace(sheet.layer_types[0], time_s=math.nan)
    with pytest.raises(ValueError, match=re.escape("layer_types[0].time_s was nan")):
        sheet_bytes(dataclasses.replace(sheet, layer_types=(layer,)))


def test_text_that_is_not_valid_unicode_is_escaped(sheet):
    model = dataclasses.replace(sheet.model, path="caf\udce9.onnx")
    raw = json.loads(sheet_bytes(dataclasses.replace(sheet, model=model)))
    assert raw["model"]["path"] == "caf\\udce9.onnx"


def test_missing_file_is_refused(tmp_path):
    assert "no such file" in refusal(tmp_path / "nowhere.json")


def test_folder_without_a_sheet_is_refused(tmp_path):
    with pytest.raises(BadInputError, match=r"sheet\.json: no such file"):
        read_sheet(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"<html>", b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}'])
def test_file_that_is_not_json_is_refused(tmp_path, content):
    path = tmp_path / "sheet.json"
    path.write_bytes(content)
    assert "expected JSON" in refusal(path)


@pytest.mark.parametrize(("content", "found"), [("[]", "an array"), ("3", "a number"), ("null", "null")])
def test_json_that_is_no_object_is_refused(tmp_path, content, found):
    path = tmp_path / "sheet.json"
    path.write_text(content)
    assert f"found {found}" in refusal(path)


def test_json_of_something_else_is_refused(tmp_path):
    path = tmp_path / "package.json"
    path.write_text('{"name": "x"}')
    assert "expected an object with schema_version" in refusal(path)


def test_other_schema_version_is_refused_before_its_fields_are(written):
    change(written, lambda raw: raw.update(schema_version="9.0", extra=1))
    message = refusal(written)
    assert "expected '1.0', found '9.0'" in message
    assert "extra" not in message


def test_unknown_field_is_refused_with_its_path(written):
    change(written, lambda raw: raw["kernels"][1]["bottleneck"].update(colour="red"))
    assert "kernels[1].bottleneck.colour: unknown field; expected one of expected, observed" in refusal(written)


def test_missing_field_is_refused_with_its_path(written):
    change(written, lambda raw: raw["mappings"][0]["memory"].pop("code_b"))
    assert "mappings[0].memory.code_b: missing field" in refusal(written)


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda raw: raw["kernels"][2].update(calls="2"), "kernels[2].calls: Expected int, got str"),
        (lambda raw: raw["kernels"][2].update(calls=True), "kernels[2].calls: Expected int, got bool"),
        (lambda raw: raw["kernels"][0]["tile"].update(rows=1.5), "kernels[0].tile.rows: Expected int | str, got float"),
        (lambda raw: raw.update(kernels={}), "kernels: Expected array, got object"),
        (lambda raw: raw.update(model=None), "model: expected an object, found null"),
        (lambda raw: raw["candidates"][0]["best"][1]["failure"].update(step="nap"), "failure.step: Invalid enum value"),
    ],
)
def test_field_of_the_wrong_type_is_refused_with_its_path(written, edit, expected):
    change(written, edit)
    assert expected in refusal(written)


def test_hostile_field_name_cannot_reach_the_terminal(written):
    change(written, lambda raw: raw.update({"\x1b[2J\nx": 1}))
    assert "?[2J?x: unknown field" in refusal(written)


def test_published_schema_is_the_one_the_records_give():
    published = (DOCS / "sheet.schema.json").read_bytes()
    assert published == schema_bytes(), "stale: run scripts/write_schema.py"


def test_full_sheet_matches_the_schema(sheet):
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(json.loads(sheet_bytes(sheet)), schema())


@pytest.mark.parametrize(
    "edit",
    [
        lambda raw: raw.update(extra=1),
        lambda raw: raw["model"].pop("sha256"),
        lambda raw: raw.update(schema_version="2.0"),
        lambda raw: raw["kernels"][0]["stall_share"].update(grade="guessed"),
    ],
)
def test_schema_refuses_what_the_reader_refuses(sheet, edit):
    raw = json.loads(sheet_bytes(sheet))
    edit(raw)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(raw, schema())


def test_every_field_is_explained_in_the_documentation():
    text = (DOCS / "sheet.md").read_text(encoding="utf-8")
    known = set(re.findall(r"`([a-z0-9_]+)`", text))
    kinds = msgspec.json.schema(records.MappingSheet)["$defs"]
    fields = {name for kind in kinds.values() for name in kind.get("properties", {})}
    assert fields - known == set()


def test_sheet_of_a_large_model_is_read(sheet, tmp_path):
    node = sheet.nodes[1]
    many = tuple(dataclasses.replace(node, index=index) for index in range(8000))
    write_sheet(dataclasses.replace(sheet, nodes=many), tmp_path / "sheet.json")
    assert len(read_sheet(tmp_path).nodes) == 8000
