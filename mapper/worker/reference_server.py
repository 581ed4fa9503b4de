"""The reference child: onnxruntime, alone in its process, for numerics and for speed."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mapper.worker import wire
from mapper.worker.tvm_server import handlers


class Reference:
    """The handlers. Models and arrays travel as files named in the request."""

    def __init__(self) -> None:
        self._sessions: dict[str, Any] = {}
        self._feeds: dict[str, dict[str, Any]] = {}

    def version(self) -> str:
        """Return onnxruntime's version."""
        return str(_onnxruntime().__version__)

    def optimise(self, source: str, target: str) -> None:
        """Write the model as onnxruntime's basic, hardware-independent optimiser leaves it."""
        ort = _onnxruntime()
        options = _options(ort, "basic", 1)
        options.optimized_model_filepath = target
        _session(ort, source, options)

    def run(self, model: str, feeds: str, out: str, level: str = "none") -> None:
        """Run a model once and write its outputs by position."""
        ort = _onnxruntime()
        session = _session(ort, model, _options(ort, level, int(os.environ.get("MAPPER_REFERENCE_THREADS", "1"))))
        values = session.run(None, _load(feeds, session))
        np.savez(out, **{f"output{index}": value for index, value in enumerate(values)})

    def run_many(self, jobs: Sequence[Mapping[str, str]]) -> list[str]:
        """Run several (model, feeds, out); return an error text for each, empty when it went well."""
        errors = []
        for job in jobs:
            try:
                self.run(job["model"], job["feeds"], job["out"])
                errors.append("")
            except Exception as error:
                errors.append(str(error).strip().splitlines()[-1][:300])
        return errors

    def open(self, name: str, model: str, feeds: str, threads: int) -> None:
        """Open a session as a user would: default options but the thread count."""
        ort = _onnxruntime()
        session = _session(ort, model, _options(ort, "all", threads))
        self._sessions[name] = session
        self._feeds[name] = _load(feeds, session)

    def run_timed(self, name: str, runs: int) -> list[float]:
        """Return the seconds of each run of an open session."""
        session, feeds = self._sessions[name], self._feeds[name]
        samples = []
        for _ in range(runs):
            started = time.perf_counter_ns()
            session.run(None, feeds)
            samples.append((time.perf_counter_ns() - started) * 1e-9)
        return samples


def _onnxruntime() -> Any:
    import onnxruntime  # noqa: PLC0415 slow to import; only this process ever does

    onnxruntime.set_default_logger_severity(3)
    return onnxruntime


def _options(ort: Any, level: str, threads: int) -> Any:
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = {
        "none": levels.ORT_DISABLE_ALL,
        "basic": levels.ORT_ENABLE_BASIC,
        "all": levels.ORT_ENABLE_ALL,
    }[level]
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return options


def _session(ort: Any, model: str, options: Any) -> Any:
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        reason = " ".join(str(error).split())
        raise wire.RefusalError("run", f"onnxruntime refuses the model: {reason[:400]}") from error


def _load(path: str, session: Any) -> dict[str, Any]:
    """Read feeds that were written by position."""
    with np.load(path) as values:
        return {item.name: values[f"input{index}"] for index, item in enumerate(session.get_inputs())}


def main() -> None:
    """Serve until the parent closes the pipe."""
    wire.die_with_parent()
    replies = wire.claim_stdout()
    wire.serve(handlers(Reference()), sys.stdin, replies)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
