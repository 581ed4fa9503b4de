"""One JSON object a line, and every request answered."""

import io
import json
import subprocess
import sys

import pytest

from mapper.worker import wire


def refuse(reason):
    raise wire.RefusalError("lower", reason)


def fail(message):
    raise ValueError(message)


HANDLERS = {"add": lambda a, b: a + b, "refuse": refuse, "fail": fail, "nothing": lambda: None}


def answers(*requests):
    """Serve requests from memory and return the replies."""
    lines = "".join(json.dumps({"id": i, "method": method, "params": params}) + "\n" for i, method, params in requests)
    replies = io.StringIO()
    wire.serve(HANDLERS, io.StringIO(lines), replies)
    return [json.loads(line) for line in replies.getvalue().splitlines()]


def test_requests_are_answered_in_order_under_their_ids():
    found = answers((7, "add", {"a": 1, "b": 2}), (9, "nothing", {}), (8, "add", {"a": "x", "b": "y"}))
    assert found == [{"id": 7, "result": 3}, {"id": 9, "result": None}, {"id": 8, "result": "xy"}]


def test_a_refusal_keeps_its_step_and_reason():
    assert answers((1, "refuse", {"reason": "vb must divide"})) == [
        {"id": 1, "error": {"step": "lower", "reason": "vb must divide"}}
    ]


def test_an_exception_is_an_answer_and_the_next_request_is_served(capsys):
    found = answers((1, "fail", {"message": "first line\n  the cause  \n\n"}), (2, "add", {"a": 1, "b": 1}))
    assert found[0] == {"id": 1, "error": {"step": "run", "reason": "ValueError: the cause"}}
    assert found[1] == {"id": 2, "result": 2}
    assert "Traceback" in capsys.readouterr().err


def test_an_exception_without_words_still_has_a_name(capsys):
    assert answers((1, "fail", {"message": ""}))[0]["error"]["reason"] == "ValueError: no message"
    assert capsys.readouterr().out == ""


def test_a_long_reason_is_cut(capsys):
    reason = answers((1, "fail", {"message": "x" * 5000}))[0]["error"]["reason"]
    assert reason == "ValueError: " + "x" * 400
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("method", "params", "reason"),
    [("absent", {}, "KeyError: 'absent'"), ("add", {"a": 1}, "missing 1 required positional argument: 'b'")],
)
def test_a_request_that_no_handler_takes_is_an_error(method, params, reason, capsys):
    found = answers((1, method, params))[0]["error"]
    assert found["step"] == "run"
    assert reason in found["reason"]
    assert capsys.readouterr().out == ""


def test_what_prints_to_stdout_goes_to_stderr():
    program = (
        "import os, sys\n"
        "from mapper.worker import wire\n"
        "replies = wire.claim_stdout()\n"
        "print('from python')\n"
        "sys.stdout.flush()\n"
        "os.write(1, b'from below python\\n')\n"
        "replies.write('reply\\n')\n"
        "replies.flush()\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "reply\n"
    assert "from python" in run.stderr
    assert "from below python" in run.stderr
