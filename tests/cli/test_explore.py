import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest

from mapper.cli.main import run
from mapper.config import Budget
from mapper.report.sheet import sheet_bytes


@pytest.fixture
def requests(fake_flow, sample):
    """Collect the requests that reach the flow, which answers with the synthetic sheet."""
    seen = []

    def explore(request, progress):
        progress.stage("lower", 2)
        progress.step(best="6.8 ms")
        progress.say("said")
        seen.append(request)
        return sample.sheet()

    fake_flow("explore", explore)
    return seen


def test_defaults(requests, cache):
    assert run(["explore", "m.onnx"]) == 0
    (request,) = requests
    assert request.model == "m.onnx"
    assert request.command == "mapper explore m.onnx"
    assert request.cache_dir == cache
    assert (request.dims, request.shapes, request.only) == ({}, {}, ())
    assert request.budget == Budget(trials=None, seconds=None)
    assert (request.seed, request.resume) == (0, False)
    given = (request.out_dir, request.inputs_npz, request.threads, request.target, request.schedules)
    assert given == (None,) * 5


def test_every_flag_reaches_the_request(requests, tmp_path):
    npz, schedules = tmp_path / "in.npz", tmp_path / "s.json"
    npz.touch()
    schedules.touch()
    flags = ["--out", "o", "--dim", "batch-size=2", "--dim", "a=b=3", "--shape", "x:0=1,3,8,8", "--shape", "n=7"]
    flags += ["--inputs", str(npz), "--seed", "5", "--budget", "200", "--threads", "2", "--target", "llvm"]
    flags += ["--schedules", str(schedules), "--resume", "--only", "conv1", "--only", "k2", "--quiet"]
    assert run(["explore", "zoo:magika", *flags]) == 0
    (request,) = requests
    assert request.model == "zoo:magika"
    assert request.out_dir == Path("o")
    assert request.dims == {"batch-size": 2, "a=b": 3}
    assert request.shapes == {"x:0": (1, 3, 8, 8), "n": (7,)}
    assert request.inputs_npz == npz
    assert request.seed == 5
    assert request.budget == Budget(trials=200)
    assert (request.threads, request.target, request.schedules) == (2, "llvm", schedules)
    assert request.resume
    assert request.only == ("conv1", "k2")


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("0", Budget(trials=0)),
        ("200", Budget(trials=200)),
        ("120s", Budget(seconds=120.0)),
        ("0.5s", Budget(seconds=0.5)),
        ("2m", Budget(seconds=120.0)),
    ],
)
def test_budget(requests, text, budget):
    assert run(["explore", "m.onnx", "--budget", text]) == 0
    assert requests[0].budget == budget


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--budget", "-1"], "'--budget': expected a number of trials"),
        (["--budget", "infs"], "found 'infs'"),
        (["--budget", "1e9s"], "found '1e9s'"),
        (["--dim", "batch"], "'--dim': expected NAME=VALUE"),
        (["--dim", "batch=0"], "found 'batch=0'"),
        (["--dim", "=1"], "found '=1'"),
        (["--dim", "n=1.5"], "found 'n=1.5'"),
        (["--dim", "n=1", "--dim", "n=2"], "--dim n: given twice, as 1 and as 2"),
        (["--shape", "x=1,,3"], "'--shape': expected INPUT=SHAPE"),
        (["--shape", "x=1,-3"], "found 'x=1,-3'"),
        (["--shape", "1,3"], "found '1,3'"),
        (["--threads", "0"], "'--threads': 0 is not in the range"),
        (["--seed", "x"], "'--seed': 'x' is not a valid integer"),
        (["--inputs", "nowhere.npz"], "'--inputs': File 'nowhere.npz' does not exist"),
        (["--schedules", "."], "'--schedules': File '.' is a directory"),
    ],
)
def test_wrong_flag_value_is_one_line_and_exit_2(requests, flags, expected, capsys):
    assert run(["explore", "m.onnx", *flags]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
    assert requests == []


def test_same_dimension_twice_with_one_value_is_accepted(requests):
    assert run(["explore", "m.onnx", "--dim", "n=1", "--dim", "n=1"]) == 0


def test_results_go_to_stdout_and_progress_to_stderr(requests, capsys):
    assert run(["explore", "m.onnx"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("model     squeezenet")
    assert "said" not in captured.out
    assert captured.err.splitlines()[:2] == ["lower (2) ...", "said"]
    assert captured.err.splitlines()[2].endswith("1 done, best 6.8 ms")


def test_json_on_stdout_is_the_sheet_whatever_is_printed_meanwhile(fake_flow, sample, capfd):
    def explore(request, progress):
        sys.stdout.write("a library talks\n")
        os.write(1, b"a child process talks\n")
        return sample.sheet()

    fake_flow("explore", explore)
    assert run(["explore", "m.onnx", "--json", "--quiet"]) == 0
    captured = capfd.readouterr()
    assert captured.out.encode() == sheet_bytes(sample.sheet())
    assert json.loads(captured.out)["model"]["name"] == "squeezenet"
    assert "a library talks" in captured.err
    assert "a child process talks" in captured.err


def test_quiet_shows_no_progress(requests, capsys):
    assert run(["explore", "m.onnx", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_exit_1_when_no_mapping_is_verified(fake_flow, sample):
    sheet = sample.sheet()
    wrong = tuple(mapping for mapping in sheet.mappings if not mapping.verified.passed)
    assert len(wrong) == 1
    fake_flow("explore", lambda request, progress: dataclasses.replace(sheet, mappings=wrong))
    assert run(["explore", "m.onnx", "--quiet"]) == 1
    fake_flow("explore", lambda request, progress: dataclasses.replace(sheet, mappings=()))
    assert run(["explore", "m.onnx", "--quiet"]) == 1
