"""The wire between a parent and its child: one JSON object a line, over pipes that nothing else prints to."""

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TextIO

Handler = Callable[..., Any]
PR_SET_PDEATHSIG = 1  # Source: Linux <sys/prctl.h>


class RefusalError(Exception):
    """A candidate that cannot be lowered, built or run: `step` is a `records.Step`, the message its reason."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(reason)
        self.step = step


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere the closed pipe ends it)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # the parent died before the call above
        raise SystemExit(1)


def claim_stdout() -> TextIO:
    """Keep stdout for replies and point everything that prints at stderr (TVM prints errors to stdout)."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return replies


def serve(handlers: Mapping[str, Handler], requests: TextIO, replies: TextIO) -> None:
    """Answer requests until the pipe closes. An exception in a handler is an answer, never an end."""
    for line in requests:
        request = json.loads(line)
        reply = {"id": request["id"], **_answer(handlers, request)}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _answer(handlers: Mapping[str, Handler], request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"result": handlers[request["method"]](**request["params"])}
    except RefusalError as refusal:
        return {"error": {"step": refusal.step, "reason": str(refusal)}}
    except Exception as error:
        traceback.print_exc(limit=8)
        return {"error": {"step": "run", "reason": _one_line(error)}}


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:400] if lines else 'no message'}"
