import json
import re

import pytest

from mapper.errors import BadInputError
from mapper.report.schedule import read_schedule, write_schedule


@pytest.fixture
def written(sample, tmp_path):
    path = tmp_path / "schedule.json"
    write_schedule(sample.schedule(), path)
    return path


def test_schedule_survives_writing_and_reading(sample, written):
    assert read_schedule(written) == sample.schedule()
    assert written.read_text(encoding="utf-8").endswith("}\n")


GROUP = "0000000000000100"


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda raw: raw.update(schema_version="0.1"), "schema_version: expected '1.0', found '0.1'"),
        (lambda raw: raw.update(plan="x"), "plan: unknown field"),
        (lambda raw: raw.pop("partition"), "partition: missing field"),
        (lambda raw: raw["choices"][GROUP].update(tiles={}), f"choices.{GROUP}.tiles: unknown field"),
        (lambda raw: raw["choices"][GROUP].pop("layouts"), f"choices.{GROUP}.layouts: missing field"),
        (lambda raw: raw["choices"][GROUP]["tile"].update(rows=[6]), f"choices.{GROUP}.tile.rows: Expected int | str"),
        (lambda raw: raw["choices"].update({GROUP: 3}), f"choices.{GROUP}: expected an object, found a number"),
        (lambda raw: raw.update(partition=[[0, "1"]]), "partition[0][1]: Expected int, got str"),
        (lambda raw: raw.update(partition=[[0, 1], [1]]), "partition[1]: operator 1 is in two groups"),
    ],
)
def test_wrong_schedule_is_one_clear_line(written, edit, expected):
    raw = json.loads(written.read_text(encoding="utf-8"))
    edit(raw)
    written.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(BadInputError, match=re.escape(expected)) as caught:
        read_schedule(written)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith(str(written))


def test_missing_schedule_file_is_refused(tmp_path):
    with pytest.raises(BadInputError, match="no such file: expected a schedule file"):
        read_schedule(tmp_path / "none.json")
