"""Owns the two streams: results alone go to stdout, everything else to stderr; a closed pipe is no error."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator

from rich.console import Console

from mapper.cli.pipe import discard_stdout, flush_stdout


def emit(text: str) -> None:
    """Write a result to stdout; when its reader has gone, the rest is dropped quietly."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def emit_rendered(render: Callable[[Console], None]) -> None:
    """Let `render` print to a console of stdout's width, colours and encoding, and write the result to stdout."""
    console = Console(file=sys.stdout, highlight=False)
    with console.capture() as capture:
        render(console)
    text = capture.get()
    if not console.is_terminal:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    emit(text)


@contextlib.contextmanager
def stdout_reserved() -> Iterator[None]:
    """Keep stdout for results: what libraries and child processes print meanwhile goes to stderr."""
    flush_stdout()
    with contextlib.redirect_stdout(sys.stderr):
        try:
            saved = os.dup(1)
        except OSError:  # stdout was closed before we started: nothing to protect
            yield
            return
        try:
            os.dup2(2, 1)
            yield
        finally:
            os.dup2(saved, 1)
            os.close(saved)


def set_up_logging(debug: bool) -> None:
    """Send log records to stderr: warnings, or with `debug` everything."""
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("mapper: %(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, handlers=[handler], force=True)


class _StderrHandler(logging.Handler):
    """Writes to whatever sys.stderr is at the time, so that a progress bar can make room."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)
