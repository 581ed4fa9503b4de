"""The TVM worker: a child process that lowers, builds, runs and probes, one JSON request at a time.

Start it with `TVM_NUM_THREADS` set; TVM reads it when it is first imported, which is here and nowhere else.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mapper.records import Choice, GroupSpec
from mapper.worker import wire


class Server:
    """The handlers. Arrays travel as .npz files named in the request."""

    def __init__(self) -> None:
        self._session: Any = None

    def configure(self, target: str) -> dict[str, str]:
        """Import TVM, set the target (JSON text), and return versions."""
        import json  # noqa: PLC0415

        import tvm  # noqa: PLC0415

        from mapper.backends.tvm import pipeline, session  # noqa: PLC0415

        try:
            parsed = tvm.target.Target(json.loads(target) if target.lstrip().startswith("{") else target)
        except Exception as error:
            raise wire.RefusalError("build", f"target {target}: {str(error).strip().splitlines()[-1]}") from error
        pipeline.register(int(os.environ["TVM_NUM_THREADS"]))
        self._session = session.Session(target=parsed)
        return session.versions()

    def open_model(self, path: str) -> None:
        """Read the canonical model's constants."""
        self._session.open_model(path)

    def define(self, spec: Mapping[str, Any], path: str) -> None:
        """Make a group known: its spec and its ONNX model."""
        self._session.define(msgspec.convert(spec, GroupSpec), path)

    def build(self, group: str, choice: Mapping[str, Any]) -> str:
        """Lower and compile; return the IR hash."""
        from mapper.backends.tvm.lower import LoweringError  # noqa: PLC0415

        try:
            kernel = self._session.build(group, msgspec.convert(choice, Choice))
        except LoweringError as error:
            raise wire.RefusalError("lower", str(error)) from error
        except Exception as error:
            raise wire.RefusalError(
                "build", f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:300]}"
            ) from error
        return str(kernel.ir_hash)

    def propose_traces(
        self, group: str, layouts: Sequence[str], outcomes: Mapping[str, float | None], seed: int
    ) -> list[str]:
        """Ask MetaSchedule for the next schedules of a group; outcomes are seconds by trace, None for failures."""
        from mapper.backends.tvm.lower import LoweringError  # noqa: PLC0415

        try:
            found: list[str] = self._session.propose_traces(group, tuple(layouts), outcomes, seed)
        except LoweringError as error:
            raise wire.RefusalError("lower", str(error)) from error
        return found

    def race(self, symbol: str, partner: str | None, seed: int, cold_b: int) -> dict[str, Any]:
        """Time a kernel in turns with another, or with the yardstick."""
        session = self._session
        beside = session.kernels[partner] if partner is not None else None
        samples, others = session.track.race(session.kernels[symbol], beside, seed, cold_b)
        return {"samples": samples, "partner": others, "yardstick_flops": session.track.yardstick()[0]}

    def open_store(self, folder: str) -> None:
        """Keep built kernels in this folder, and look for them there."""
        from mapper.backends.tvm.store import Store  # noqa: PLC0415

        self._session.store = Store(Path(folder))

    def keep(self, symbols: Sequence[str]) -> int:
        """Write kernels to the store; return how many are there now."""
        return int(self._session.keep(symbols))

    def inspect(self, symbol: str, folder: str, stem: str) -> Mapping[str, Any]:
        """Write scheduled TIR and assembly to `folder` and return sizes and the loop nest."""
        found: Mapping[str, Any] = self._session.inspect(symbol, Path(folder), stem)
        return found

    def run_kernel(self, symbol: str, feeds: str, out: str, corruption: Sequence[str] | None) -> None:
        """Run one kernel on logical arrays, one packed weight spoiled on request: (local name, kind)."""
        with np.load(feeds) as values:
            np.savez(out, **self._session.run_kernel(symbol, dict(values), corruption))

    def forget(self, symbols: Sequence[str]) -> None:
        """Drop kernels."""
        self._session.forget(symbols)

    def compose(
        self, name: str, calls: Sequence[Mapping[str, Any]], ends: Mapping[str, Sequence[str]], feeds: str
    ) -> dict[str, Any]:
        """Compose a model and bind its inputs."""
        weights_b = self._session.compose(name, calls, ends)
        model = self._session.models[name]
        model.feed(_feeds(feeds, ends["inputs"]))
        return {"weights_b": weights_b, "workspace_b": model.workspace_bytes()}

    def run_model(self, name: str, out: str) -> None:
        """Run a composed model and write its outputs."""
        np.savez(out, **_numbered(self._session.models[name].run()))

    def run_mutant(self, name: str, at: Sequence[int], kind: str, feeds: str, out: str) -> bool:
        """Run a composed model with one packed weight corrupted; False when the corruption changed nothing."""
        values = _feeds(feeds, self._session.programs[name].inputs)
        outputs = self._session.run_mutant(name, (at[0], at[1]), kind, values)
        if outputs is None:
            return False
        np.savez(out, **_numbered(outputs))
        return True

    def alternate(self, names: Sequence[str], rounds: int, seed: int) -> list[list[float]]:
        """Time models run by run, in random order within each round."""
        from mapper.backends.tvm.compose import alternate  # noqa: PLC0415

        return alternate([self._session.models[name] for name in names], rounds, seed)

    def run_timed(self, name: str, runs: int) -> list[float]:
        """Time one model, run after run."""
        return list(self._session.models[name].run_timed(runs))

    def run_instrumented(self, name: str, runs: int) -> dict[str, Any]:
        """Time each call inside the running model."""
        samples, overhead_s = self._session.models[name].run_instrumented(runs)
        return {"samples": samples, "overhead_s": overhead_s}

    def default_partition(self, path: str) -> list[list[int]]:
        """Group a model's operators as TVM's own fusion would."""
        import onnx  # noqa: PLC0415

        from mapper.backends.tvm.default_fusion import default_partition  # noqa: PLC0415

        return default_partition(onnx.load(path))

    def tvm_default(self, path: str, feeds: str, runs: int) -> list[float]:
        """Time a whole model as TVM builds it on its own; feeds by position."""
        import onnx  # noqa: PLC0415

        from mapper.backends.tvm.default_build import time_default  # noqa: PLC0415

        with np.load(feeds) as values:
            arrays = [values[f"input{index}"] for index in range(len(values.files))]
        return time_default(onnx.load(path), arrays, runs, self._session.target)

    def add_weights(self, names: Sequence[str], path: str) -> None:
        """Know more weights, written by position, besides the canonical model's constants."""
        self._session.weights.update(_feeds(path, names))

    def probe_flops(self, dtype: str, threads: int, repeats: int) -> dict[str, Any]:
        """Run the multiply-add probe."""
        from mapper.backends.tvm import probes  # noqa: PLC0415

        work, samples = probes.fma_samples(self._session.target, dtype, threads, repeats)
        return {"work": work, "samples": samples}

    def probe_bandwidth(self, size_b: int, threads: int, repeats: int) -> dict[str, Any]:
        """Run the read probe over `size_b` bytes, all threads together."""
        from mapper.backends.tvm import probes  # noqa: PLC0415

        work, samples = probes.read_samples(self._session.target, size_b // threads, threads, repeats)
        return {"work": work, "samples": samples}


def _feeds(path: str, names: Sequence[str]) -> dict[str, Any]:
    """Read arrays that were written by position."""
    with np.load(path) as values:
        return {name: values[f"input{index}"] for index, name in enumerate(names)}


def _numbered(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Key arrays by position: names of tensors may hold what a zip archive's member names may not."""
    return {f"output{index}": value for index, value in enumerate(outputs.values())}


def handlers(server: Server) -> Mapping[str, Callable[..., Any]]:
    """Return the public methods by name."""
    return {name: getattr(server, name) for name in dir(server) if not name.startswith("_")}


def main() -> None:
    """Serve until the parent closes the pipe."""
    wire.die_with_parent()
    replies = wire.claim_stdout()
    assert os.environ.get("TVM_NUM_THREADS"), "the parent sets TVM_NUM_THREADS"
    wire.serve(handlers(Server()), sys.stdin, replies)


if __name__ == "__main__":
    main()
