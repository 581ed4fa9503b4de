"""onnxruntime as a typed object: a process of its own, for numerics and for speed."""

from collections.abc import Sequence
from pathlib import Path

from mapper.worker.client import Child
from mapper.worker.exchange import Array, Exchange, load_outputs, write_feeds


class ReferenceWorker:
    """onnxruntime in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._exchange = Exchange(folder)
        self._child = Child("mapper.worker.reference_server", log=folder / "reference.log")

    def close(self) -> None:
        """End the child."""
        self._child.close()

    def version(self) -> str:
        """Return onnxruntime's version."""
        return str(self._child.call("version"))

    def optimise(self, source: Path, target: Path) -> None:
        """Write `source` as onnxruntime's basic optimiser leaves it."""
        self._child.call("optimise", 300.0, source=str(source), target=str(target))

    def run(self, model: Path, feeds: Sequence[Array], level: str = "none") -> list[Array]:
        """Run a model once on feeds in input order; return its outputs in order."""
        with self._exchange.files("feeds", "out") as (file, out):
            write_feeds(file, feeds)
            self._child.call("run", 600.0, model=str(model), feeds=str(file), out=str(out), level=level)
            return load_outputs(out)

    def open(self, name: str, model: Path, feeds: Path, threads: int) -> None:
        """Open a session for timing, default options but the thread count."""
        self._child.call("open", 300.0, name=name, model=str(model), feeds=str(feeds), threads=threads)

    def run_timed(self, name: str, runs: int) -> list[float]:
        """Time an open session."""
        samples: list[float] = self._child.call("run_timed", 600.0, name=name, runs=runs)
        return samples
