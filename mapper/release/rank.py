"""The order of whole-model mappings: by fresh measured time, ties told from noise."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mapper import stats

SAME_FLOOR = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """What ranking needs to know of a mapping. Round i of every contender is the same round of one sitting."""

    key: str
    kernel_count: int
    verified: bool
    samples_by_round_s: tuple[tuple[float, ...], ...]  # empty when it was not timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One mapping's place. `rank` None: not verified or not timed, hence not ranked."""

    key: str
    rank: int | None
    because: str


def rank(mappings: Sequence[Contender], rng: np.random.Generator, floor: float = SAME_FLOOR) -> tuple[Ranked, ...]:
    """Order mappings: the best median first, together with all that are the *same* as it; the unranked last.

    Mappings whose paired time ratio to the best lies within ± `floor` share rank 1 and are ordered by fewer kernels,
    then key. All others follow by median, each ranked one more than the number of mappings before it. *Undecided*
    is not the same, so too few rounds never make a tie.

    Args:
        mappings: In any order; the result does not depend on it, the bootstrap's randomness apart.
        rng: Source of the bootstrap.
        floor: Largest relative difference that does not matter.
    """
    timed = [mapping for mapping in mappings if mapping.verified and any(mapping.samples_by_round_s)]
    timed.sort(key=lambda mapping: (_median_s(mapping), mapping.kernel_count, mapping.key))
    same = [mapping for mapping in timed if mapping is timed[0] or _is_same(mapping, timed[0], rng, floor)]
    same.sort(key=lambda mapping: (mapping.kernel_count, mapping.key))
    rest = [mapping for mapping in timed if mapping not in same]
    ranked = [Ranked(key=mapping.key, rank=1, because=_why_first(mapping, timed[0], floor)) for mapping in same]
    for mapping in rest:
        slower = _median_s(mapping) / _median_s(timed[0]) - 1.0
        ranked.append(Ranked(key=mapping.key, rank=len(ranked) + 1, because=f"median {slower:+.1%} against the best"))
    left = sorted((mapping for mapping in mappings if mapping not in timed), key=lambda mapping: mapping.key)
    return (*ranked, *(Ranked(key=mapping.key, rank=None, because=_why_unranked(mapping)) for mapping in left))


def pareto(points: Sequence[tuple[float, ...]]) -> list[bool]:
    """Say of each point whether none of the others is as small in every coordinate and smaller in one."""

    def is_beaten(point: tuple[float, ...]) -> bool:
        return any(
            other != point and all(theirs <= ours for theirs, ours in zip(other, point, strict=True))
            for other in points
        )

    return [not is_beaten(point) for point in points]


def _median_s(mapping: Contender) -> float:
    return float(np.median([sample for samples in mapping.samples_by_round_s for sample in samples]))


def _is_same(mapping: Contender, best: Contender, rng: np.random.Generator, floor: float) -> bool:
    ours, theirs = mapping.samples_by_round_s, best.samples_by_round_s
    if len(ours) != len(theirs) or not all(ours) or not all(theirs):
        return False  # rounds that do not pair up prove nothing
    ratio, low, high = stats.log_ratio(ours, theirs, rng)
    return stats.verdict(low, high, floor, ratio) == "same"


def _why_first(mapping: Contender, best: Contender, floor: float) -> str:
    return "best median" if mapping is best else f"same as the best within ±{floor:.0%}"


def _why_unranked(mapping: Contender) -> str:
    return "not timed" if mapping.verified else "not verified"
