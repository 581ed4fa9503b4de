"""The TVM worker as a typed object that survives the death of the process behind it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mapper.keys import choice_json, choice_key, kernel_symbol
from mapper.records import Candidate, Choice, Failure, FusionPlan, GroupSpec
from mapper.templates import metaschedule
from mapper.worker.client import Child, ChildFailureError
from mapper.worker.exchange import Array, Exchange, load_arrays, load_outputs, save_arrays, write_feeds

BUILD_TIMEOUT_S = 30.0  # a kernel takes about 0.1 s; one that takes longer than this is no candidate
RUN_TIMEOUT_S = 60.0
COMPOSE_TIMEOUT_S = 120.0
PROPOSE_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a built kernel looks like inside: bytes of code and scratch, and its loops as text."""

    code_b: int
    workspace_b: int
    loop_nest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Under which conditions kernels are timed alone; see `backends.tvm.race`."""

    seed: int
    flops_per_s: float  # the machine's measured float32 peak at the threads used: the yardstick's nominal speed
    cold_b: int = 0  # bytes that pass through the caches between two calls of a kernel in the model


class TvmWorker:
    """A TVM child that is replaced when it dies; groups come back by themselves, kernels when next asked for.

    Only one caller at a time. `deaths` counts the children that were lost.
    """

    def __init__(self, folder: Path, *, threads: int, target: str) -> None:
        self._folder = folder
        self._threads = threads
        self._target = target
        self._model: Path | None = None
        self._store: Path | None = None
        self._groups: dict[str, tuple[GroupSpec, Path]] = {}
        self._built: dict[str, str] = {}  # symbol → IR hash, in the living child
        self._exchange = Exchange(folder)
        self._child: Child | None = None
        self.deaths = 0
        self.versions: Mapping[str, str] = {}
        self._start()

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()

    def open_model(self, path: Path) -> None:
        """Let the child read the canonical model's constants."""
        self._model = path
        self._call("open_model", path=str(path))

    def open_store(self, folder: Path) -> None:
        """Let the child keep built kernels in `folder`, and look for them there."""
        self._store = folder
        self._call("open_store", folder=str(folder))

    def keep(self, kernels: Iterable[tuple[str, Choice]]) -> bool:
        """Keep the kernels of these groups and choices for other processes; say whether all could be kept."""
        symbols = []
        for group, choice in kernels:
            self.build(group, choice)
            symbols.append(kernel_symbol(group, choice))
        return int(self._call("keep", 10.0 + len(symbols), symbols=symbols)) == len(symbols)

    def define(self, spec: GroupSpec, path: Path) -> None:
        """Make a group known: its spec and the file of its ONNX model."""
        if spec.key not in self._groups:
            self._groups[spec.key] = (spec, path)
            self._call("define", spec=msgspec.to_builtins(spec), path=str(path))

    def build(self, group: str, choice: Choice) -> str:
        """Build a kernel unless it is built; return its IR hash.

        Raises:
            ChildFailureError: the choice does not become a kernel; the child has been replaced if it died.
        """
        symbol = kernel_symbol(group, choice)
        if symbol not in self._built:
            self._built[symbol] = str(self._call("build", BUILD_TIMEOUT_S, group=group, choice=choice_json(choice)))
        return self._built[symbol]

    def evaluate(
        self, group: str, choice: Choice, predicted_s: float | None, conditions: Conditions, best: Candidate | None
    ) -> Candidate:
        """Build one choice and time it beside the best so far; whatever goes wrong becomes the candidate's Failure."""
        key = choice_key(choice)
        try:
            samples = self.time_kernel(group, choice, conditions, best)
        except ChildFailureError as error:
            failure = Failure(subject=f"{group}/{key}", step=error.step, reason=error.reason)
            return Candidate(
                group=group, choice=choice, choice_key=key, predicted_s=predicted_s, time_s=None, failure=failure
            )
        return Candidate(
            group=group,
            choice=choice,
            choice_key=key,
            predicted_s=predicted_s,
            time_s=float(np.median(samples)),
            samples_s=tuple(samples),
        )

    @property
    def specs(self) -> Mapping[str, GroupSpec]:
        """The groups that were defined, by key."""
        return {key: spec for key, (spec, _) in self._groups.items()}

    def time_kernel(
        self, group: str, choice: Choice, conditions: Conditions, best: Candidate | None = None
    ) -> list[float]:
        """Time one kernel alone, in turns with the best one of its group, or else with the yardstick.

        Returns:
            Seconds a call at the nominal speed of the machine: each sample is multiplied by what its partner should
            have taken and divided by what it took in the same round.
        """
        self.build(group, choice)
        partner = None
        if best is not None and best.time_s is not None:
            self.build(group, best.choice)
            partner = kernel_symbol(group, best.choice)
        symbol = kernel_symbol(group, choice)
        answer = self._call(
            "race", RUN_TIMEOUT_S, symbol=symbol, partner=partner, seed=conditions.seed, cold_b=conditions.cold_b
        )
        nominal_s = answer["yardstick_flops"] / conditions.flops_per_s
        if best is not None and best.time_s is not None:
            nominal_s = best.time_s
        return [sample * nominal_s / other for sample, other in zip(answer["samples"], answer["partner"], strict=True)]

    def propose_traces(self, space: tuple[str, tuple[str, ...]], tried: Sequence[Candidate], seed: int) -> list[Choice]:
        """Return MetaSchedule's next choices for a group and layouts, none once it has nothing new."""
        group, layouts = space
        traced = [candidate for candidate in tried if candidate.choice.template == metaschedule.NAME]
        outcomes = {str(candidate.choice.tile["trace"]): candidate.time_s for candidate in traced}
        found = self._call(
            "propose_traces", PROPOSE_TIMEOUT_S, group=group, layouts=list(layouts), outcomes=outcomes, seed=seed
        )
        return [metaschedule.trace_choice(layouts, trace) for trace in found]

    def forget(self, group: str, choices: Sequence[Choice]) -> None:
        """Drop kernels that lost."""
        symbols = [kernel_symbol(group, choice) for choice in choices]
        self._call("forget", symbols=symbols)
        for symbol in symbols:
            self._built.pop(symbol, None)

    def inspect(self, group: str, choice: Choice, folder: Path, stem: str) -> Inspection:
        """Write a kernel's TIR and assembly and return its sizes."""
        self.build(group, choice)
        answer = self._call("inspect", symbol=kernel_symbol(group, choice), folder=str(folder), stem=stem)
        return Inspection(**answer)

    def run_kernel(
        self, group: str, choice: Choice, values: Mapping[str, Array], corruption: tuple[str, str] | None = None
    ) -> dict[str, Array]:
        """Run one kernel alone on logical arrays under the group's local names.

        `corruption` (weight, kind of `backends.tvm.mutate`) spoils one packed weight first.
        """
        self.build(group, choice)
        symbol = kernel_symbol(group, choice)
        with self._exchange.files("feeds", "out") as (feeds, out):
            save_arrays(feeds, values)
            self._call(
                "run_kernel", RUN_TIMEOUT_S, symbol=symbol, feeds=str(feeds), out=str(out), corruption=corruption
            )
            return load_arrays(out)

    def compose(
        self,
        name: str,
        plan: FusionPlan,
        choices: Sequence[Choice],
        ends: tuple[Sequence[str], Sequence[str]],
        feeds: Path,
    ) -> Mapping[str, int]:
        """Compose a plan's kernels to a model; `choices` one a group, `ends` are input and output tensors.

        Returns the bytes of its weights and of the activation storage between kernels.
        """
        calls = []
        for group, choice in zip(plan.groups, choices, strict=True):
            self.build(group.key, choice)
            calls.append(
                {
                    "symbol": kernel_symbol(group.key, choice),
                    "inputs": group.inputs,
                    "weights": group.weights,
                    "outputs": group.outputs,
                }
            )
        ports = {"inputs": tuple(ends[0]), "outputs": tuple(ends[1])}
        answer: Mapping[str, int] = self._call(
            "compose", COMPOSE_TIMEOUT_S, name=name, calls=calls, ends=ports, feeds=str(feeds)
        )
        return answer

    def run_model(self, name: str) -> list[Array]:
        """Run a composed model once and return its outputs in order."""
        with self._exchange.files("out") as (out,):
            self._call("run_model", RUN_TIMEOUT_S, name=name, out=str(out))
            return load_outputs(out)

    def run_mutant(self, name: str, at: tuple[int, int], kind: str, feeds: Path) -> list[Array] | None:
        """Run a composed model with one weight corrupted; None when the corruption changed no bit of it.

        `at` is (call, weight of that call).
        """
        with self._exchange.files("out") as (out,):
            changed = self._call(
                "run_mutant", RUN_TIMEOUT_S, name=name, at=at, kind=kind, feeds=str(feeds), out=str(out)
            )
            return load_outputs(out) if changed else None

    def alternate(self, names: Sequence[str], rounds: int, seed: int) -> list[list[float]]:
        """Time composed models run by run; seconds, model × round."""
        samples: list[list[float]] = self._call("alternate", 600.0, names=list(names), rounds=rounds, seed=seed)
        return samples

    def run_timed(self, name: str, runs: int) -> list[float]:
        """Time one composed model."""
        samples: list[float] = self._call("run_timed", 600.0, name=name, runs=runs)
        return samples

    def run_instrumented(self, name: str, runs: int) -> tuple[list[list[float]], float]:
        """Time every call inside the running model: (seconds, run × call; overhead of one interval in seconds)."""
        answer = self._call("run_instrumented", 600.0, name=name, runs=runs)
        return answer["samples"], float(answer["overhead_s"])

    def probe(self, kind: str, timeout_s: float = 300.0, /, **request: Any) -> tuple[float, list[float]]:
        """Run a probe kernel (`flops` or `bandwidth`): (work of one run, seconds of each run)."""
        answer = self._call(f"probe_{kind}", timeout_s, **request)
        return float(answer["work"]), [float(sample) for sample in answer["samples"]]

    def default_partition(self, path: Path) -> list[list[int]]:
        """Return how TVM's own fusion groups the operators of a model, by operator index."""
        partition: list[list[int]] = self._call("default_partition", 300.0, path=str(path))
        return partition

    def tvm_default(self, model: Path, feeds: Path, runs: int, timeout_s: float = 900.0) -> list[float]:
        """Time a whole model as TVM builds it on its own; seconds a run.

        Raises:
            ChildFailureError: TVM does not import, build or run it.
        """
        samples: list[float] = self._call("tvm_default", timeout_s, path=str(model), feeds=str(feeds), runs=runs)
        return samples

    def add_weights(self, values: Mapping[str, Array]) -> None:
        """Let models that are composed next name these weights too; a replaced child has forgotten them."""
        with self._exchange.files("weights") as (file,):
            write_feeds(file, list(values.values()))
            self._call("add_weights", names=list(values), path=str(file))

    def _start(self) -> None:
        environment = {"TVM_NUM_THREADS": str(self._threads)}
        self._child = Child("mapper.worker.tvm_server", log=self._folder / "tvm_worker.log", env=environment)
        self._built = {}
        try:
            self.versions = self._child.call("configure", 120.0, target=self._target)
            if self._store is not None:
                self._child.call("open_store", folder=str(self._store))
            if self._model is not None:
                self._child.call("open_model", path=str(self._model))
            for spec, path in self._groups.values():
                self._child.call("define", spec=msgspec.to_builtins(spec), path=str(path))
        except ChildFailureError:
            self._child.close()
            raise

    def _call(self, method: str, timeout_s: float = 120.0, /, **params: Any) -> Any:
        assert self._child is not None
        try:
            return self._child.call(method, timeout_s, **params)
        except ChildFailureError as error:
            if error.is_dead:
                self.deaths += 1
                self._child.close()
                self._start()
            raise
