import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mapper import __version__
from mapper.cli.main import COMMANDS, run
from mapper.errors import BadInputError, WorkerError
from mapper.report.sheet import write_sheet

ROOT = Path(__file__).parents[2]


def in_process(*arguments, code="from mapper.cli.main import main; main()", **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def one_line(capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("mapper: error: ")
    assert len(captured.err.splitlines()) == 1
    return captured.err


def test_help_imports_no_command_and_nothing_heavy():
    code = """
import sys
from mapper.cli.main import run
assert run(["--help"]) == 0
heavy = {"numpy", "onnx", "rich", "msgspec", "tvm", "onnxruntime", "networkx", "logging", "mapper.cli.explore"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    done = in_process(code=code)
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert name in done.stdout
    assert "mapper explore squeezenet.onnx" in done.stdout
    assert "bash_source" in done.stdout


def test_show_imports_no_numpy_and_no_onnx():
    code = """
import sys
from mapper.cli.main import run
assert run(["show", "nowhere"]) == 2
assert not {"numpy", "onnx", "tvm", "onnxruntime", "networkx"} & set(sys.modules)
"""
    assert in_process(code=code).returncode == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name, capsys):
    assert run([name, "--help"]) == 0
    assert f"  mapper {name}" in capsys.readouterr().out.split("Example", 1)[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_page_that_names_its_flags(name):
    page = (ROOT / "docs" / "commands" / f"{name}.md").read_text(encoding="utf-8")
    assert f"mapper {name}" in page
    for parameter in importlib.import_module(f"mapper.cli.{name}").command.params:
        for flag in parameter.opts:
            assert not flag.startswith("--") or f"`{flag}" in page, flag


def test_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"mapper {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "Missing command: see mapper --help"),
        (["explode"], "No such command 'explode'"),
        (["explore"], "Missing argument 'MODEL': see mapper explore --help"),
        (["explore", "m.onnx", "--fast"], "No such option"),
        (["show", "x", "--top", "-1"], "-1 is not in the range x>=0"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(arguments, expected, capsys):
    assert run(arguments) == 2
    assert expected in one_line(capsys)


def raising(error):
    def flow(*arguments):
        raise error

    return flow


@pytest.mark.parametrize(("kind", "code"), [(BadInputError, 2), (WorkerError, 70)])
def test_expected_error_is_one_line_with_its_exit_code(kind, code, fake_flow, capsys):
    fake_flow("doctor", raising(kind("dim N:\nexpected a number")))
    assert run(["doctor"]) == code
    assert one_line(capsys) == "mapper: error: dim N: expected a number\n"


def test_control_characters_of_a_message_do_not_reach_the_terminal(fake_flow, capsys):
    fake_flow("doctor", raising(BadInputError("node \x1b[2J\u202e")))
    assert run(["doctor"]) == 2
    assert "node \\x1b[2J\\u202e" in one_line(capsys)


def test_unexpected_error_is_70_with_the_traceback_in_a_file(fake_flow, capsys, cache):
    fake_flow("doctor", raising(ZeroDivisionError("by zero")))
    assert run(["doctor"]) == 70
    log = cache / "last-error.log"
    assert f"internal error: ZeroDivisionError: by zero (traceback in {log}" in one_line(capsys)
    text = log.read_text(encoding="utf-8")
    assert text.startswith("mapper doctor\n")
    assert "Traceback (most recent call last)" in text


def test_debug_prints_the_traceback(fake_flow, capsys, cache):
    fake_flow("doctor", raising(ZeroDivisionError("by zero")))
    assert run(["--debug", "doctor"]) == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert not cache.exists()


def test_crash_without_a_writable_cache_still_is_70(fake_flow, capsys, cache):
    cache.write_text("a file, not a folder")
    fake_flow("doctor", raising(ZeroDivisionError("by zero")))
    assert run(["doctor"]) == 70
    assert "mapper --debug" in one_line(capsys)


def test_interrupted_exploration_says_how_to_go_on(fake_flow, capsys):
    fake_flow("explore", raising(KeyboardInterrupt()))
    assert run(["explore", "my model.onnx", "--quiet"]) == 130
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.endswith("go on with: mapper explore 'my model.onnx' --quiet --resume")


def test_interrupted_doctor_is_130(fake_flow, capsys):
    fake_flow("doctor", raising(KeyboardInterrupt()))
    assert run(["doctor"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "mapper: error: interrupted"


@pytest.mark.skipif(os.name == "nt", reason="pipes behave otherwise on Windows")
def test_reader_that_goes_away_is_no_error(sample, tmp_path):
    write_sheet(sample.sheet(), tmp_path / "sheet.json")
    reading, writing = os.pipe()
    os.close(reading)
    code = "from mapper.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "show", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_completion_script_is_offered():
    code = "import os; os.environ['_MAPPER_COMPLETE'] = 'zsh_source'; from mapper.cli.main import main; main()"
    done = in_process(code=code)
    assert done.returncode == 0
    assert "#compdef mapper" in done.stdout
