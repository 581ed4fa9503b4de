"""The final round: fresh processes, mappings alternating run by run, onnxruntime beside the best, kernels in place."""

import concurrent.futures
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mapper.flows.finalists import Finalist
from mapper.flows.planning import group_file
from mapper.flows.run import Run
from mapper.keys import kernel_symbol
from mapper.measure.timing import BlockPlan, runs_for, two_runtime_blocks
from mapper.records import GroupSpec
from mapper.worker.client import ChildFailureError
from mapper.worker.reference import ReferenceWorker
from mapper.worker.workers import TvmWorker

PROCESS_PAIRS = 2
ROUND_TARGET_S = 0.8
BLOCK_TARGET_S = 0.12
BLOCKS = 6
IN_SITU_TARGET_S = 0.5


@dataclass(slots=True, kw_only=True)
class FinalTimes:
    """What the final round saw, seconds."""

    rounds: dict[str, list[float]] = field(default_factory=dict)  # by label: one run a round, over all pairs
    ours_blocks: list[list[float]] = field(default_factory=list)  # the mapping called `beside`, beside onnxruntime
    theirs_blocks: list[list[float]] = field(default_factory=list)
    in_situ: list[list[float]] = field(default_factory=list)  # run × call of the same mapping
    beside: str = ""  # label of the mapping that was timed beside onnxruntime and under instruments
    in_situ_overhead_s: float = 0.0
    failures: list[str] = field(default_factory=list)


def final_round(run: Run, finalists: Sequence[Finalist]) -> FinalTimes:
    """Time the verified finalists in fresh process pairs.

    All workers build at the same time; then each pair in turn, alone on the machine: the finalists alternate run by
    run, the fastest so far alternates with onnxruntime block by block, and is last run under instruments.
    """
    right = [finalist for finalist in finalists if finalist.verification.passed]
    times = FinalTimes(rounds={finalist.label: [] for finalist in right})
    if not right:
        return times
    keys = {group.key for finalist in right for group in finalist.draft.plan.groups}
    specs = {key: spec for key, spec in run.worker.specs.items() if key in keys}
    run.progress.stage("final round: building in fresh processes", PROCESS_PAIRS)
    _keep_kernels(run, right)
    with contextlib.ExitStack() as stack:
        pairs = [_Pair.start(run, specs, number, stack) for number in range(PROCESS_PAIRS)]
        try:
            with concurrent.futures.ThreadPoolExecutor(PROCESS_PAIRS) as pool:
                list(pool.map(lambda pair: pair.compose(run, right), pairs))
            run.progress.stage("final round: timing", PROCESS_PAIRS)
            run.progress.quiet()
            for pair in pairs:
                pair.time(run, right, times)
        except ChildFailureError as error:
            times.failures.append(error.reason)
    return times


def _keep_kernels(run: Run, finalists: Sequence[Finalist]) -> None:
    """Write the finalists' kernels down once, so that each fresh process loads what this one has built."""
    kernels = {
        kernel_symbol(group.key, choice): (group.key, choice)
        for finalist in finalists
        for group, choice in zip(finalist.draft.plan.groups, finalist.choices, strict=True)
    }
    try:
        if not run.worker.keep(kernels.values()):
            run.warnings.append("built kernels are not kept for later runs: no C compiler to link them with was found")
    except ChildFailureError as error:
        run.warnings.append(f"built kernels are not kept for later runs: {error.reason}")


def fastest(times: FinalTimes) -> str:
    """Return the label with the least median over the rounds."""
    return min((label for label, samples in times.rounds.items() if samples), key=lambda k: np.median(times.rounds[k]))


@dataclass(slots=True, kw_only=True)
class _Pair:
    """A fresh TVM worker and a fresh onnxruntime beside it."""

    number: int
    worker: TvmWorker
    reference: ReferenceWorker

    @classmethod
    def start(cls, run: Run, specs: Mapping[str, GroupSpec], number: int, stack: contextlib.ExitStack) -> "_Pair":
        folder = run.prepared.folder / f"pair{number}"
        folder.mkdir(exist_ok=True)
        worker = TvmWorker(folder, threads=run.host.threads, target=run.host.target)
        stack.callback(worker.close)
        reference = ReferenceWorker(folder)
        stack.callback(reference.close)
        worker.open_store(run.store)
        worker.open_model(run.prepared.canonical)
        for key, spec in specs.items():
            worker.define(spec, group_file(run.prepared, key))
        return cls(number=number, worker=worker, reference=reference)

    def compose(self, run: Run, finalists: Sequence[Finalist]) -> None:
        prepared = run.prepared
        ends = (prepared.graph.inputs, (*prepared.graph.outputs, *prepared.taps))
        for finalist in finalists:
            self.worker.compose(finalist.label, finalist.draft.plan, finalist.choices, ends, prepared.feeds_file)
        run.progress.step()

    def time(self, run: Run, finalists: Sequence[Finalist], times: FinalTimes) -> None:
        labels = [finalist.label for finalist in finalists]
        once_s = {label: min(self.worker.run_timed(label, 2)) for label in labels}
        rounds = runs_for(sum(once_s.values()), ROUND_TARGET_S, 8, 60)
        for label, samples in zip(labels, self.worker.alternate(labels, rounds, self.number), strict=True):
            times.rounds[label] += samples
        best = times.beside = times.beside or fastest(times)  # one mapping over all pairs
        self.reference.open("speed", run.prepared.bound, run.prepared.feeds_file, run.host.threads)
        plan = BlockPlan(blocks=BLOCKS, runs_per_block=2 + runs_for(once_s[best], BLOCK_TARGET_S, 10, 40))
        blocks = two_runtime_blocks(
            lambda count: self.worker.run_timed(best, count),
            lambda count: self.reference.run_timed("speed", count),
            plan,
            time.sleep,
        )
        times.ours_blocks += blocks.ours
        times.theirs_blocks += blocks.theirs
        time.sleep(plan.quiet_s)
        runs = runs_for(once_s[best], IN_SITU_TARGET_S, 5, 40)
        times.in_situ, times.in_situ_overhead_s = self.worker.run_instrumented(best, runs)
