"""Owns the choice of a fusion plan among candidate groups: the exact cover of the graph that costs least."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import NamedTuple

from mapper.errors import BadInputError
from mapper.plan.fusion import from_partition
from mapper.plan.group import Uses, make_group
from mapper.records import FusionPlan, Group, OperatorGraph

# What a group costs, in any unit that adds up; None when there is no kernel for it.
Cost = Callable[[Group], float | None]
MAX_STATES_A_STEP = 1000


@dataclass(frozen=True, kw_only=True)
class Partitioner:
    """A graph and its candidate groups, looked up once however often a plan is chosen."""

    graph: OperatorGraph
    candidates: tuple[tuple[int, ...], ...]
    boundaries: frozenset[str]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The candidate groups, in their order."""
        uses = Uses(graph=self.graph, boundaries=self.boundaries)
        return tuple(make_group(uses, members) for members in self.candidates)

    @cached_property
    def distinct(self) -> Mapping[str, Group]:
        """The first candidate group of each key: all that has to be priced."""
        found: dict[str, Group] = {}
        for group in self.groups:
            found.setdefault(group.key, group)
        return found

    def best(self, cost: Cost, label: str, max_states: int = MAX_STATES_A_STEP) -> FusionPlan:
        """Return the plan whose groups cost least in sum; of plans that cost the same, one of fewest groups.

        `cost` is asked once a key, and a price that is not finite stands for no kernel. A plan that is not certain to
        be the best, because more than `max_states` were open at a step, says so in `rejected`.

        Raises:
            BadInputError: The operators cannot be covered by candidate groups that have a price.
        """
        prices = {key: cost(group) for key, group in self.distinct.items()}
        priced = [
            (group.operators, price)
            for group in self.groups
            if (price := prices[group.key]) is not None and isfinite(price)
        ]
        self._check_covered(priced, label)
        chosen: list[tuple[int, ...]] = []
        notes = []
        for part in components(priced):
            cover = least_cover(part, max_states)
            if cover is None:
                raise BadInputError(_impossible(label, f"the operators {_shown(part)}"))
            chosen.extend(cover.groups)
            if not cover.is_exact:
                notes.append(
                    f"operators {_shown(part)}: more than {max_states} partial partitions were open at once; the most"
                    " promising were followed, and a better partition may exist"
                )
        return replace(from_partition(self.graph, chosen, label, self.boundaries), rejected=tuple(notes))

    def _check_covered(self, priced: Sequence[tuple[tuple[int, ...], float]], label: str) -> None:
        covered = {index for members, _ in priced for index in members}
        bare = next((operator for operator in self.graph.operators if operator.index not in covered), None)
        if bare is not None:
            raise BadInputError(_impossible(label, f"operator {bare.index} ({bare.op_type})"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """Groups that hold each operator once, in the order of their first operators."""

    groups: tuple[tuple[int, ...], ...]
    cost: float
    states: int  # partial covers that were looked at
    is_exact: bool  # False when some were dropped, so that a cheaper cover may exist


def best_partition(
    graph: OperatorGraph, candidates: Sequence[tuple[int, ...]], cost: Cost, label: str, boundaries: frozenset[str]
) -> FusionPlan:
    """Return the plan of candidate groups that costs least in sum: see `Partitioner.best`."""
    return Partitioner(graph=graph, candidates=tuple(candidates), boundaries=boundaries).best(cost, label)


def components(priced: Sequence[tuple[tuple[int, ...], float]]) -> list[list[tuple[tuple[int, ...], float]]]:
    """Return the groups in parts that share no operator, each of which can be partitioned alone."""
    parent: dict[int, int] = {}

    def root(index: int) -> int:
        while parent.setdefault(index, index) != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    for (first, *others), _ in priced:
        for index in others:
            ends = root(first), root(index)
            parent[max(ends)] = min(ends)
    parts: dict[int, list[tuple[tuple[int, ...], float]]] = {}
    for members, price in priced:
        parts.setdefault(root(members[0]), []).append((members, price))
    return [parts[index] for index in sorted(parts)]


def least_cover(priced: Sequence[tuple[tuple[int, ...], float]], max_states: int = MAX_STATES_A_STEP) -> Cover | None:
    """Return the cheapest exact cover of the operators that the groups hold, None when there is none.

    Dynamic programming over what is covered: a step covers the first operator that is not, with each group that begins
    there. A step that more than `max_states` partial covers reach goes on with the most promising ones; should none of
    them lead to the end, more are kept.
    """
    steps = _steps(priced)
    while True:
        cover = _covered(steps, max_states)
        if isfinite(cover.cost):
            return cover
        if cover.is_exact:
            return None
        max_states *= 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The groups that begin at an operator, as bits that count from there, and the least that covering it can cost."""

    groups: list[tuple[int, float, tuple[int, ...]]]
    share: float


class _State(NamedTuple):
    """The cheapest way to a partial cover: order by cost, then by the number of groups."""

    cost: float
    kernels: int
    before: tuple[int, int]  # step and covered bits that it was reached from
    group: tuple[int, ...]


def _steps(priced: Sequence[tuple[tuple[int, ...], float]]) -> list[_Step]:
    operators = sorted({index for members, _ in priced for index in members})
    position = {index: at for at, index in enumerate(operators)}
    groups: list[list[tuple[int, float, tuple[int, ...]]]] = [[] for _ in operators]
    shares = [float("inf")] * len(operators)
    for members, price in priced:
        places = sorted(position[index] for index in members)
        groups[places[0]].append((sum(1 << (place - places[0]) for place in places), price, members))
        for place in places:
            shares[place] = min(shares[place], price / len(members))
    return [_Step(groups=found, share=share) for found, share in zip(groups, shares, strict=True)]


def _covered(steps: Sequence[_Step], max_states: int) -> Cover:
    """Return the cheapest cover; one of infinite cost when none was found."""
    reached: list[dict[int, _State]] = [{} for _ in range(len(steps) + 1)]
    reached[0][0] = _State(cost=0.0, kernels=0, before=(0, 0), group=())
    is_exact = True
    for at, step in enumerate(steps):
        if len(reached[at]) > max_states:
            reached[at] = _most_promising(steps, at, reached[at], max_states)
            is_exact = False
        for covered, state in reached[at].items():
            for bits, price, members in step.groups:
                if covered & bits:
                    continue
                merged = covered | bits
                run = (~merged & (merged + 1)).bit_length() - 1  # operators covered without a gap
                known = reached[at + run].get(merged >> run)
                cost, kernels = state.cost + price, state.kernels + 1
                if known is None or (cost, kernels) < (known.cost, known.kernels):
                    reached[at + run][merged >> run] = _State(
                        cost=cost, kernels=kernels, before=(at, covered), group=members
                    )
    last = reached[-1].get(0)
    return Cover(
        groups=_followed_back(reached) if last is not None else (),
        cost=float("inf") if last is None else last.cost,
        states=sum(map(len, reached)),
        is_exact=is_exact,
    )


def _most_promising(steps: Sequence[_Step], at: int, states: dict[int, _State], max_states: int) -> dict[int, _State]:
    """Return the states of least cost, less the least that what they cover ahead would cost anyhow."""

    def promise(item: tuple[int, _State]) -> float:
        bits, state = item
        ahead = 0.0
        while bits:
            lowest = bits & -bits
            ahead += steps[at + lowest.bit_length() - 1].share
            bits ^= lowest
        return state.cost - ahead

    return dict(sorted(states.items(), key=promise)[:max_states])


def _followed_back(reached: Sequence[Mapping[int, _State]]) -> tuple[tuple[int, ...], ...]:
    groups: list[tuple[int, ...]] = []
    at, covered = len(reached) - 1, 0
    while at:
        state = reached[at][covered]
        groups.insert(0, state.group)
        at, covered = state.before
    return tuple(groups)


def _impossible(label: str, what: str) -> str:
    return (
        f"fusion plan {label!r}: expected kernels for groups that together hold every operator once, found none for"
        f" {what}; price every operator alone"
    )


def _shown(part: Sequence[tuple[tuple[int, ...], float]]) -> str:
    operators = sorted({index for members, _ in part for index in members})
    return f"{operators[0]} to {operators[-1]}"
