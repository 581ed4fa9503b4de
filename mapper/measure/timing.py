"""The order in which things are timed: rounds in random order, blocks of two runtimes, and how many runs to take.

Nothing here reads a clock of its own or runs a kernel: callers hand in what runs, and what sleeps.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Rounds = list[list[float]]


def alternate(
    subjects: Mapping[str, Callable[[int], Sequence[float]]], rounds: int, rng: np.random.Generator
) -> dict[str, Rounds]:
    """Time the subjects side by side: in every round each one once, in a fresh random order.

        round 0: B A C    round 1: A C B    round 2: C B A    …

    Args:
        subjects: What to run, by name. Called with the number of the round, from 0; returns its times in seconds.
        rounds: How many rounds.
        rng: Source of the order.

    Returns:
        For each subject its times, one list a round; entry i of every subject comes from round i.
    """
    names = list(subjects)
    taken: dict[str, Rounds] = {name: [] for name in names}
    for number in range(rounds):
        for index in rng.permutation(len(names)):
            name = names[int(index)]
            taken[name].append([float(sample) for sample in subjects[name](number)])
    return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """How two runtimes take turns: pairs of blocks, runs in each, runs dropped at its start, silence before it."""

    blocks: int
    runs_per_block: int = 12  # as many as are kept, plus `drop`
    drop: int = 2
    quiet_s: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoRuntimes:
    """Times of two runtimes by block, in seconds; block i of one is the neighbour of block i of the other."""

    ours: Rounds
    theirs: Rounds


def two_runtime_blocks(
    run_ours: Callable[[int], Sequence[float]],
    run_theirs: Callable[[int], Sequence[float]],
    plan: BlockPlan,
    sleep: Callable[[float], None] = time.sleep,
) -> TwoRuntimes:
    """Alternate blocks of two runtimes that live in processes of their own, never both awake at once.

        quiet  ours × runs  quiet  theirs × runs  quiet  ours × runs  …

    The quiet gap lets the other runtime's threads stop spinning. The first runs of every block, which wake threads
    and warm caches, are dropped on both sides alike.

    Args:
        run_ours: Runs the given number of times, returns one time a run in seconds.
        run_theirs: The same for the other runtime.
        plan: Blocks, runs, gap.
        sleep: Waits for some seconds.

    Raises:
        ValueError: A plan that would keep no run.
    """
    if plan.runs_per_block <= plan.drop:
        raise ValueError(f"expected more runs a block than the {plan.drop} dropped, found {plan.runs_per_block}")
    taken = TwoRuntimes(ours=[], theirs=[])
    for _ in range(plan.blocks):
        for run, kept in ((run_ours, taken.ours), (run_theirs, taken.theirs)):
            sleep(plan.quiet_s)
            kept.append([float(sample) for sample in run(plan.runs_per_block)][plan.drop :])
    return taken


def runs_for(time_s: float, target_s: float, low: int, high: int) -> int:
    """Return how many runs of about `time_s` fill `target_s`, between `low` and `high`.

    A time of 0 or less means that the clock could not see the run, and gives `high`.
    """
    if time_s <= 0:
        return high
    return max(low, min(high, math.ceil(target_s / time_s)))


def calls_per_sample(time_calls: Callable[[int], float], least_s: float, most: int = 1 << 20) -> int:
    """Return how many calls a sample must hold to last at least `least_s`, found by doubling from 1.

    Args:
        time_calls: Runs that many calls back to back, returns their total time in seconds.
        least_s: What the clock can measure well; some hundred times its resolution.
        most: Where to stop.
    """
    calls = 1
    while calls < most and time_calls(calls) < least_s:
        calls *= 2
    return calls


def drift_limit(idle_spread: float | None) -> float:
    """Return the relative drift above which a reading is taken again: 3 %, or 3 × the machine's own idle spread."""
    return max(0.03, 3.0 * (idle_spread or 0.0))


def drift(reference_s: Sequence[float]) -> float:
    """Return how far a reference kernel's time moved over a sitting: last third against first third, relative.

    Raises:
        ValueError: Fewer than 3 samples.
    """
    third = len(reference_s) // 3
    if third == 0:
        raise ValueError(f"drift expects at least 3 samples, found {len(reference_s)}")
    return float(np.median(reference_s[-third:]) / np.median(reference_s[:third])) - 1.0
