"""Owns what a command shows while it works: a bar on a terminal, plain lines elsewhere, nothing when asked.

The bar is redrawn when a step ends and at no other time: no thread wakes up while a kernel is being timed.
"""

import sys
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress

from mapper.config import Progress
from mapper.report.text import glyphs_for

Clock = Callable[[], float]
_REDRAW_S = 0.1
_LINE_S = 10.0


def make_progress(quiet: bool, stream: TextIO | None = None, clock: Clock = time.monotonic) -> Progress:
    """Return the display that suits stderr: nothing, lines, or a bar."""
    stream = sys.stderr if stream is None else stream
    if quiet:
        return Silent()
    console = Console(file=stream, highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return Bar(console, clock)
    return Lines(console, clock)


class Silent:
    """Shows nothing."""

    def stage(self, name: str, total: int | None = None) -> None:
        """Show nothing."""

    def step(self, note: str = "", best: str = "") -> None:
        """Show nothing."""

    def say(self, message: str) -> None:
        """Show nothing."""

    def quiet(self) -> None:
        """Show nothing."""

    def done(self) -> None:
        """Show nothing."""


class Lines:
    """One line when a stage begins and ends, and one now and then in between.

    Lines are held back until the first step is counted, so that a request that is refused before any work says one
    line, its error.
    """

    def __init__(self, console: Console, clock: Clock) -> None:
        self._glyphs = glyphs_for(console.encoding)
        self._console = console
        self._clock = clock
        self._name = ""
        self._total: int | None = None
        self._done = 0
        self._best = ""
        self._began = self._shown = 0.0
        self._is_quiet = False
        self._held: list[str] | None = []  # None once the first step was counted

    def stage(self, name: str, total: int | None = None) -> None:
        """End the stage before and begin one of `total` steps."""
        self.done()
        self._name, self._total, self._done, self._best, self._is_quiet = name, total, 0, "", False
        self._began = self._shown = self._clock()
        self._start()

    def step(self, note: str = "", best: str = "") -> None:
        """Count one finished step."""
        self._release()
        self._done += 1
        self._best = best or self._best
        now = self._clock()
        if not self._is_quiet and now - self._shown >= self._interval():
            self._shown = now
            self._redraw(note)

    def say(self, message: str) -> None:
        """Show one line that stays."""
        self._release()
        self._print(message)

    def quiet(self) -> None:
        """Show nothing more until the next stage, except by `say`."""
        self._is_quiet = True

    def done(self) -> None:
        """End the stage with a line that sums it up."""
        if not self._name:
            return
        self._stop()
        facts = [f"{self._done} done"] if self._done else []
        facts += [f"best {self._best}"] if self._best else []
        self._print(", ".join([f"{self._name}: {_duration(self._clock() - self._began)}", *facts]))
        self._name = ""

    def _start(self) -> None:
        total = "" if self._total is None else f" ({self._total})"
        self._print(f"{self._name}{total} ...")

    def _redraw(self, note: str) -> None:
        self._print(", ".join(part for part in (f"{self._name}: {self._count()}", self._tail(), note) if part))

    def _stop(self) -> None:
        """End the drawing of a stage."""

    def _interval(self) -> float:
        return _LINE_S

    def _count(self) -> str:
        return str(self._done) if self._total is None else f"{self._done} of {self._total}"

    def _tail(self) -> str:
        left = _time_left(self._done, self._total, self._clock() - self._began)
        return ", ".join(part for part in (f"best {self._best}" if self._best else "", left) if part)

    def _release(self) -> None:
        held, self._held = self._held or [], None
        for message in held:
            self._print(message)

    def _print(self, message: str) -> None:
        if self._held is not None:
            self._held.append(message)
            return
        self._console.print(self._glyphs.fit(message), markup=False, emoji=False, soft_wrap=True)


class Bar(Lines):
    """A bar with the stage, steps done, best figure so far and time left."""

    def __init__(self, console: Console, clock: Clock) -> None:
        super().__init__(console, clock)
        self._live: RichProgress | None = None
        self._held = None  # a bar leaves no lines behind that could hide an error

    def quiet(self) -> None:
        """Take the bar off the screen and draw nothing until the next stage."""
        if not self._is_quiet and self._name:
            self._stop()
            self._print(f"{self._name}: timing, display paused ...")
        super().quiet()

    def _start(self) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}", markup=False),
            TextColumn("{task.fields[tail]}", markup=False),
        )
        self._live = RichProgress(*columns, console=self._console, auto_refresh=False, transient=True)
        self._live.add_task(self._glyphs.fit(self._name), total=self._total, count="", tail="")
        self._live.start()
        self._live.refresh()

    def _redraw(self, note: str) -> None:
        if self._live is None:
            return
        tail = ", ".join(part for part in (self._tail(), note) if part)
        task = self._live.task_ids[0]
        self._live.update(task, completed=self._done, count=self._count(), tail=self._glyphs.fit(tail))
        self._live.refresh()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _interval(self) -> float:
        return _REDRAW_S


def _time_left(done: int, total: int | None, elapsed_s: float) -> str:
    if total is None or not done or done >= total:
        return ""
    return f"about {_duration(elapsed_s / done * (total - done))} left"


def _duration(time_s: float) -> str:
    if time_s < 10:
        return f"{time_s:.1f} s"
    minutes, seconds = divmod(round(time_s), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
