"""The parent's end of a child: start it, ask it, time it out, replace it when it dies."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mapper.errors import WorkerError
from mapper.records import Step

STDERR_TAIL_CHARACTERS = 600


class ChildFailureError(Exception):
    """A request that the child refused, failed, or did not survive. `is_dead` says whether the child is gone."""

    def __init__(self, step: Step, reason: str, *, is_dead: bool) -> None:
        super().__init__(reason)
        self.step: Step = step
        self.reason = reason
        self.is_dead = is_dead


class Child:
    """One child process running `module`, spawned (never forked) in a process group of its own.

    Its stderr goes to `log`, whose tail explains a crash. Not thread-safe: one request at a time, except that
    `post` and `collect` let two children work side by side.
    """

    def __init__(self, module: str, *, log: Path, env: Mapping[str, str] | None = None) -> None:
        self._module = module
        self._log = log
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self._next_id = 0
        self._buffer = b""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stderr:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=self._env,
                    start_new_session=True,
                )
            except OSError as error:
                raise WorkerError(f"cannot start {module}: {error}") from error

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def call(self, method: str, timeout_s: float = 120.0, /, **params: Any) -> Any:
        """Ask and wait for the answer.

        Raises:
            ChildFailureError: the child refused (step and reason are its own), timed out or died.
        """
        return self.collect(self.post(method, **params), timeout_s)

    def post(self, method: str, /, **params: Any) -> int:
        """Send a request without waiting; `collect` its id later."""
        self._next_id += 1
        line = json.dumps({"id": self._next_id, "method": method, "params": params}) + "\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except (BrokenPipeError, OSError, ValueError):
            raise self._death() from None
        return self._next_id

    def collect(self, request_id: int, timeout_s: float = 120.0) -> Any:
        """Wait for the answer to a posted request; answers to requests that were abandoned are dropped."""
        reply = json.loads(self._read_line(timeout_s))
        while reply["id"] < request_id:
            reply = json.loads(self._read_line(timeout_s))
        if "error" in reply:
            raise ChildFailureError(reply["error"]["step"], reply["error"]["reason"], is_dead=False)
        return reply["result"]

    def close(self) -> None:
        """End the child and everything it started; safe to call twice."""
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def kill(self) -> None:
        """Kill the child's process group at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read_line(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.kill()
                raise ChildFailureError(
                    "timeout", f"no answer within {timeout_s:.0f} s; the child was killed", is_dead=True
                )
            chunk = os.read(descriptor, 1 << 20)
            if not chunk:
                raise self._death()
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _death(self) -> ChildFailureError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        code = self._process.poll()
        self.kill()
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        tail = self._log.read_bytes()[-STDERR_TAIL_CHARACTERS:].decode(errors="replace").strip().replace("\n", " | ")
        return ChildFailureError("crash", f"the child died ({how}); stderr ends: {tail or 'nothing'}", is_dead=True)
