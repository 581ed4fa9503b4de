"""Owns what happens when the reader of stdout goes away: the rest is dropped, and nothing is an error."""

import contextlib
import os
import sys


def flush_stdout() -> None:
    """Flush stdout now, where a closed pipe can still be handled, rather than when Python ends."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def discard_stdout() -> None:
    """Send what is still to be written to stdout nowhere."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
