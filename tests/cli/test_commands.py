import json
import sys

import pytest

from mapper.cli.main import run
from mapper.records import DoctorLine
from mapper.report.sheet import sheet_bytes, write_sheet


@pytest.fixture
def folder(sample, tmp_path):
    write_sheet(sample.sheet(), tmp_path / "out" / "sheet.json")
    return tmp_path / "out"


def test_show_prints_the_sheet_of_a_folder_or_a_file(folder, capsys):
    assert run(["show", str(folder)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("model     squeezenet")
    assert all(line == line.rstrip() for line in text.splitlines())
    assert run(["show", str(folder / "sheet.json")]) == 0
    assert capsys.readouterr().out == text


def test_show_json_is_the_file(folder, sample, capsys):
    assert run(["show", str(folder), "--json"]) == 0
    assert capsys.readouterr().out.encode() == sheet_bytes(sample.sheet())


def test_show_top(folder, capsys):
    assert run(["show", str(folder), "--top", "3"]) == 0
    assert "(3 of 14)" in capsys.readouterr().out


def test_show_of_nothing_is_one_line_and_exit_2(tmp_path, capsys):
    assert run(["show", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith(f"mapper: error: {tmp_path / 'none'}: no such file")


def test_calibrate_shows_the_peaks(fake_flow, sample, capsys, cache):
    seen = []

    def calibrate(threads, cache_dir, progress):
        seen.append((threads, cache_dir))
        sys.stdout.write("noise")
        return sample.sheet().machine

    fake_flow("calibrate", calibrate)
    assert run(["calibrate", "--threads", "2"]) == 0
    captured = capsys.readouterr()
    assert "199 GFLOP/s" in captured.out
    assert "noise" not in captured.out
    assert run(["calibrate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "feedc0de00000001"
    assert seen == [(2, cache), (None, cache)]


def test_doctor_shows_its_lines(fake_flow, capsys):
    fake_flow("doctor", lambda cache: (DoctorLine(name="GPU", status="missing", detail="none", remedy="add one"),))
    assert run(["doctor"]) == 0
    assert "GPU" in capsys.readouterr().out
    assert run(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": "GPU", "status": "missing", "detail": "none", "remedy": "add one"}
    ]
