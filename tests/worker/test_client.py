"""Children that answer, refuse, die, hang and print, seen from the parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mapper.worker.client import Child, ChildFailureError

SERVER = """
import os, signal, subprocess, sys, time
from mapper.worker import wire

def say(word):
    print("noise", word)
    os.write(1, b"noise from below\\n")
    return word

def refuse():
    raise wire.RefusalError("build", "no such register")

def die(name):
    os.kill(os.getpid(), getattr(signal, name))
    time.sleep(60)

def leave(code):
    sys.stderr.write("first line\\nlast words\\n")
    sys.stderr.flush()
    os._exit(code)

def spawn():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]).pid

def big(count):
    return "x" * count

handlers = {
    "say": say, "refuse": refuse, "die": die, "leave": leave, "spawn": spawn, "big": big,
    "hang": lambda: time.sleep(300), "variable": lambda: os.environ.get("SET_BY_PARENT"), "pid": os.getpid,
    "group": lambda: os.getpgid(0),
}
wire.die_with_parent()
replies = wire.claim_stdout()
wire.serve(handlers, sys.stdin, replies)
"""


@pytest.fixture
def start(tmp_path):
    """Give a function that starts the server above; every child is ended afterwards."""
    (tmp_path / "small_server.py").write_text(SERVER)
    children = []

    def one(**env):
        path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
        child = Child("small_server", log=tmp_path / "logs" / "child.log", env={"PYTHONPATH": path, **env})
        children.append(child)
        return child

    yield one
    for child in children:
        child.close()


def is_running(pid):
    """Say whether a process exists and has not ended; one that nobody has waited for yet counts as ended."""
    status = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ends(pid):
    """Wait until a process has ended; give up after a time that no test needs."""
    for _ in range(250):
        if not is_running(pid):
            return True
        time.sleep(0.02)
    return False


def test_a_child_answers(start):
    child = start()
    assert child.call("say", word="hello") == "hello"
    assert child.call("pid") == child.pid


def test_what_it_prints_does_not_mix_with_its_answers(start, tmp_path):
    child = start()
    assert [child.call("say", word=word) for word in ("a", "b")] == ["a", "b"]
    log = (tmp_path / "logs" / "child.log").read_text()
    assert "noise a" in log
    assert "noise from below" in log


def test_an_answer_larger_than_a_pipe_arrives_whole(start):
    assert len(start().call("big", count=3_000_000)) == 3_000_000


def test_answers_to_posted_requests_are_collected_in_order(start):
    child = start()
    first, second = child.post("say", word="a"), child.post("say", word="b")
    assert [child.collect(first), child.collect(second)] == ["a", "b"]


def test_a_variable_reaches_the_child(start):
    assert start(SET_BY_PARENT="7").call("variable") == "7"


def test_a_refusal_keeps_its_step_and_leaves_the_child_alive(start):
    child = start()
    with pytest.raises(ChildFailureError, match=r"^no such register$") as caught:
        child.call("refuse")
    assert (caught.value.step, caught.value.is_dead) == ("build", False)
    assert child.call("say", word="still here") == "still here"


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGABRT"])
def test_death_by_a_signal_is_a_crash_that_names_it(start, name):
    child = start()
    with pytest.raises(ChildFailureError, match=f"the child died \\(signal {name}\\)") as caught:
        child.call("die", name=name)
    assert (caught.value.step, caught.value.is_dead) == ("crash", True)


def test_an_exit_is_a_crash_that_quotes_the_end_of_stderr(start):
    with pytest.raises(ChildFailureError, match=r"exit code 3\); stderr ends: .*first line \| last words$") as caught:
        start().call("leave", code=3)
    assert (caught.value.step, caught.value.is_dead) == ("crash", True)


def test_a_module_that_does_not_start_is_a_crash_with_the_reason(tmp_path):
    child = Child("no_such_module_anywhere", log=tmp_path / "log")
    with pytest.raises(ChildFailureError, match="No module named no_such_module_anywhere") as caught:
        child.call("say", word="x")
    assert caught.value.step == "crash"
    child.close()


def test_a_request_to_a_dead_child_is_a_crash(start):
    child = start()
    child.call("pid")
    child.kill()
    with pytest.raises(ChildFailureError, match="signal SIGKILL") as caught:
        child.call("pid")
    assert caught.value.is_dead


def test_a_child_that_hangs_is_killed(start):
    child = start()
    child.call("pid")
    with pytest.raises(ChildFailureError, match="no answer within 0 s; the child was killed") as caught:
        child.call("hang", 0.2)
    assert (caught.value.step, caught.value.is_dead) == ("timeout", True)
    assert not is_running(child.pid)


def test_a_child_leads_a_group_of_its_own(start):
    child = start()
    assert child.call("group") == child.pid != os.getpgid(0)


def test_killing_a_child_kills_what_it_started(start):
    child = start()
    grandchild = child.call("spawn")
    assert is_running(grandchild)
    child.kill()
    assert ends(grandchild)


def test_death_of_a_child_ends_what_it_started(start):
    child = start()
    grandchild = child.call("spawn")
    with pytest.raises(ChildFailureError):
        child.call("die", name="SIGSEGV")
    assert ends(grandchild)


def test_closing_ends_the_child_and_what_it_started(start):
    child = start()
    grandchild = child.call("spawn")
    child.close()
    assert not is_running(child.pid)
    try:
        assert ends(grandchild)
    finally:
        if is_running(grandchild):
            os.kill(grandchild, signal.SIGKILL)


def test_closing_twice_is_harmless(start):
    child = start()
    child.call("pid")
    child.close()
    child.close()


def test_a_child_that_does_not_leave_is_killed_on_closing(start):
    child = start()
    child.call("pid")
    child.post("hang")
    child.close()
    assert not is_running(child.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a child with its parent")
def test_a_child_dies_with_its_parent(tmp_path):
    (tmp_path / "small_server.py").write_text(SERVER)
    (tmp_path / "parent.py").write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from mapper.worker.client import Child\n"
        "child = Child('small_server', log=Path(sys.argv[1]))\n"
        "print(child.call('pid'), flush=True)\n"
        "child.post('hang')\n"  # it does not read its pipe, so only the signal can end it
        "time.sleep(300)\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "log")],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert ends(pid)
