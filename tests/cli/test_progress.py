import io
import re
import threading

import pytest
from rich.console import Console

from mapper.cli.progress import Bar, Lines, Silent, make_progress


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def terminal(stream):
    return Console(file=stream, width=100, force_terminal=True, color_system=None, highlight=False)


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_lines_when_stderr_is_no_terminal(clock):
    stream = io.StringIO()
    progress = make_progress(False, stream, clock)
    progress.stage("search", 40)
    clock.now += 5
    progress.step("conv_1", "2.0 ms")
    clock.now += 5
    progress.step("conv_2", "1.5 ms")
    clock.now += 2
    progress.step("conv_3")
    progress.say("journal kept [bold]\x1b[2J")
    progress.done()
    progress.done()
    assert stream.getvalue().splitlines() == [
        "search (40) ...",
        "search: 2 of 40, best 1.5 ms, about 3 min 10 s left, conv_2",  # 10 s for 2, hence 190 s for 38
        "journal kept [bold]\\x1b[2J",
        "search: 12 s, 3 done, best 1.5 ms",
    ]


def test_next_stage_ends_the_one_before(clock):
    stream = io.StringIO()
    progress = make_progress(False, stream, clock)
    progress.stage("lower")
    clock.now += 1.25
    progress.stage("measure", 2)
    progress.step()
    assert stream.getvalue().splitlines() == ["lower ...", "lower: 1.2 s", "measure (2) ..."]


def test_a_request_that_is_refused_before_any_step_says_nothing(clock):
    stream = io.StringIO()
    progress = make_progress(False, stream, clock)
    progress.stage("reading the model")
    progress.stage("starting the compiler")
    progress.done()
    assert stream.getvalue() == ""


def test_quiet_lines_until_the_next_stage(clock):
    stream = io.StringIO()
    progress = make_progress(False, stream, clock)
    progress.stage("time", 100)
    progress.quiet()
    clock.now += 60
    progress.step()
    assert stream.getvalue().splitlines() == ["time (100) ..."]
    progress.stage("next", 100)
    clock.now += 60
    progress.step()
    assert stream.getvalue().splitlines()[-1] == "next: 1 of 100, about 99 min 00 s left"


def test_bar_shows_stage_count_best_and_time_left_without_a_thread(clock):
    stream = io.StringIO()
    before = threading.active_count()
    bar = Bar(terminal(stream), clock)
    bar.stage("search [x]", 4)
    clock.now += 3
    bar.step("conv_1", "2.0 ms")
    assert threading.active_count() == before
    text = plain(stream.getvalue())
    assert "search [x]" in text
    assert "1 of 4" in text
    assert "best 2.0 ms, about 9.0 s left, conv_1" in text
    bar.done()
    assert plain(stream.getvalue()).rstrip().endswith("search [x]: 3.0 s, 1 done, best 2.0 ms")


def test_quiet_bar_draws_nothing_until_the_next_stage(clock):
    stream = io.StringIO()
    bar = Bar(terminal(stream), clock)
    bar.stage("time", 4)
    bar.quiet()
    drawn = stream.getvalue()
    assert "time: timing, display paused" in plain(drawn)
    clock.now += 60
    bar.step("conv_1")
    bar.quiet()
    assert stream.getvalue() == drawn
    bar.stage("next", 4)
    clock.now += 60
    bar.step()
    assert "1 of 4" in plain(stream.getvalue())[len(plain(drawn)) :]
    bar.done()


def test_kind_of_display_follows_stderr_and_flag():
    assert isinstance(make_progress(True, io.StringIO()), Silent)
    assert type(make_progress(False, io.StringIO())) is Lines


def test_ascii_stderr_gets_ascii(clock):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    progress = make_progress(False, stream, clock)
    progress.stage("入力")
    progress.say("done ✓")
    stream.flush()
    assert raw.getvalue() == b"\\u5165\\u529b ...\ndone \\u2713\n"


def test_silent_progress_accepts_every_call(capsys):
    progress = Silent()
    progress.stage("a", 1)
    progress.step("b", "c")
    progress.say("d")
    progress.quiet()
    progress.done()
    assert capsys.readouterr() == ("", "")
