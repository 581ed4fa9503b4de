"""The final round: fresh processes, mappings alternating run by run, onnxruntime beside the best, kernels in place."""

import concurrent.futures
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mapper.config import Progress
from mapper.flows.machine import Host
from mapper.flows.planning import Draft
from mapper.flows.prepare import Prepared
from mapper.measure.timing import BlockPlan, runs_for, two_runtime_blocks
from mapper.records import Choice, GroupSpec, Verification
from mapper.worker.client import ChildFailureError
from mapper.worker.workers import ReferenceWorker, TvmWorker

PROCESS_PAIRS = 2
ROUND_TARGET_S = 2.5
BLOCK_TARGET_S = 0.25
BLOCKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A mapping with every choice made, verified."""

    draft: Draft
    choices: tuple[Choice, ...]  # one a group of the plan
    verification: Verification
    memory: Mapping[str, int]

    @property
    def label(self) -> str:
        """Short name, unique among the finalists."""
        return self.draft.label


@dataclass(slots=True, kw_only=True)
class FinalTimes:
    """What the final round saw, seconds."""

    rounds: dict[str, list[float]] = field(default_factory=dict)  # by label: one run a round, over all pairs
    ours_blocks: list[list[float]] = field(default_factory=list)  # the best mapping, beside onnxruntime
    theirs_blocks: list[list[float]] = field(default_factory=list)
    in_situ: list[list[float]] = field(default_factory=list)  # run × call of the best mapping
    in_situ_overhead_s: float = 0.0
    failures: list[str] = field(default_factory=list)


def final_round(
    finalists: Sequence[Finalist],
    prepared: Prepared,
    specs: Mapping[str, GroupSpec],
    host: Host,
    progress: Progress,
    ends: tuple[Sequence[str], Sequence[str]],
) -> FinalTimes:
    """Time the finalists in fresh process pairs.

    Both workers build at the same time; then each pair in turn, alone on the machine: the finalists alternate run by
    run, the fastest so far alternates with onnxruntime block by block, and is last run under instruments.
    """
    times = FinalTimes(rounds={finalist.label: [] for finalist in finalists})
    progress.stage("final round: building in fresh processes", PROCESS_PAIRS)
    workers = [_fresh_worker(prepared, specs, finalists, host, pair) for pair in range(PROCESS_PAIRS)]
    references = [ReferenceWorker(prepared.folder) for _ in range(PROCESS_PAIRS)]
    try:
        with concurrent.futures.ThreadPoolExecutor(PROCESS_PAIRS) as pool:
            list(pool.map(lambda worker: _compose(worker, finalists, prepared, ends, progress), workers))
        progress.stage("final round: timing", PROCESS_PAIRS)
        progress.quiet()
        for pair, (worker, reference) in enumerate(zip(workers, references, strict=True)):
            _time_pair(times, finalists, worker, reference, prepared, host.threads, pair)
    except ChildFailureError as error:
        times.failures.append(error.reason)
    finally:
        for child in (*workers, *references):
            child.close()
    return times


def fastest(times: FinalTimes) -> str:
    """Return the label with the least median over the rounds."""
    return min((label for label, samples in times.rounds.items() if samples), key=lambda k: np.median(times.rounds[k]))


def _fresh_worker(
    prepared: Prepared, specs: Mapping[str, GroupSpec], finalists: Sequence[Finalist], host: Host, pair: int
) -> TvmWorker:
    folder = prepared.folder / f"pair{pair}"
    folder.mkdir(exist_ok=True)
    worker = TvmWorker(folder, threads=host.threads, target=host.target)
    worker.open_model(prepared.canonical)
    for key in dict.fromkeys(group.key for finalist in finalists for group in finalist.draft.plan.groups):
        worker.define(specs[key], group_file(prepared.folder, key))
    return worker


def group_file(folder: Path, key: str) -> Path:
    """Return where a group's ONNX model lies."""
    return folder / f"group_{key}.onnx"


def _compose(
    worker: TvmWorker,
    finalists: Sequence[Finalist],
    prepared: Prepared,
    ends: tuple[Sequence[str], Sequence[str]],
    progress: Progress,
) -> None:
    for finalist in finalists:
        worker.compose(finalist.label, finalist.draft.plan, finalist.choices, ends, prepared.feeds_file)
    progress.step()


def _time_pair(
    times: FinalTimes,
    finalists: Sequence[Finalist],
    worker: TvmWorker,
    reference: ReferenceWorker,
    prepared: Prepared,
    threads: int,
    pair: int,
) -> None:
    labels = [finalist.label for finalist in finalists]
    once = sum(min(worker.run_timed(label, 2)) for label in labels)
    rounds = runs_for(once, ROUND_TARGET_S, 8, 60)
    for label, samples in zip(labels, worker.alternate(labels, rounds, pair), strict=True):
        times.rounds[label] += samples
    best = fastest(times)
    reference.open("speed", prepared.bound, prepared.feeds_file, threads)
    runs = 2 + runs_for(float(np.median(times.rounds[best])), BLOCK_TARGET_S, 10, 40)
    plan = BlockPlan(blocks=BLOCKS, runs_per_block=runs)
    blocks = two_runtime_blocks(
        lambda count: worker.run_timed(best, count),
        lambda count: reference.run_timed("speed", count),
        plan,
        time.sleep,
    )
    times.ours_blocks += blocks.ours
    times.theirs_blocks += blocks.theirs
    time.sleep(plan.quiet_s)
    samples, times.in_situ_overhead_s = worker.run_instrumented(best, runs_for(once, 1.0, 5, 40))
    times.in_situ = samples
