"""Owns which groups are worth pricing before a partition is chosen: legal ones, a bounded number an operator.

Every candidate group is one operator or has a single exit (see `chains.py`), so that any exact cover of the graph by
candidate groups can be run in some order: choosing among them never has to look for circles.
"""

from collections.abc import Iterable, Iterator, Sequence

from mapper.plan.chains import (
    MAX_GROUP_OPERATORS,
    Growth,
    grow_backward,
    grow_forward,
    is_anchor,
    is_elementwise,
    is_movement,
)
from mapper.plan.group import Uses, wire
from mapper.plan.regions import attention_regions, row_regions
from mapper.records import FusionPlan, Operator, OperatorGraph

MAX_EPILOGUES = 8
MAX_PROLOGUES = 4


def candidate_groups(
    graph: OperatorGraph, boundaries: frozenset[str], extra: Iterable[FusionPlan] = ()
) -> tuple[tuple[int, ...], ...]:
    """Return the groups that a partition may choose from, each as ascending operators, in ascending order.

    - Every operator alone.
    - Around each convolution, product, pooling, reduction and normalisation (written out or not), each re-indexing or
      other movement and each element-wise operator: every cut of the longest legal chain after it. A diamond such as
      x * sigmoid(x) is one link and is never cut inside.
    - Each of these, movement apart, with every cut of what may be computed before it.
    - Attention as a whole.
    - A depthwise convolution, with what follows it, and the 1×1 convolution that alone reads that, with every cut of
      the chain after it. Whether a kernel can be had for such a pair is for the price to say.
    - The groups of the plans `extra` that have a single exit.

    Where a chain has more cuts than `MAX_EPILOGUES` after an operator or `MAX_PROLOGUES` before a group, the shortest
    ones and the longest are taken: the number of candidate groups is linear in the graph.
    """
    uses = Uses(graph=graph, boundaries=boundaries)
    found: set[tuple[int, ...]] = {(operator.index,) for operator in graph.operators}
    grown = (*_grown_operators(uses), *_grown_regions(uses), *_separable_pairs(uses))
    found.update(tuple(sorted(members)) for members in grown)
    given = {group.operators for plan in extra for group in plan.groups}
    found.update(members for members in given if len(members) == 1 or has_single_exit(uses, members))
    return tuple(sorted(found))


def has_single_exit(uses: Uses, members: Sequence[int]) -> bool:
    """Say whether one operator of the group makes all that leaves it, and every other one leads there."""
    leaving = wire(uses, members).outputs
    return len({uses.producer[name] for name in leaving}) == 1


def _grown_operators(uses: Uses) -> Iterator[Sequence[int]]:
    for operator in uses.graph.operators:
        if is_anchor(operator):
            yield from _around(uses, (operator.index,))
        elif is_elementwise(operator):
            # With one of the operators before it the chain is found from there.
            before = (uses.producer[name] for name in operator.inputs if name in uses.producer)
            yield from _around(uses, (operator.index,), apart=tuple(before))
        elif is_movement(operator):
            yield from _after(uses, (operator.index,))


def _grown_regions(uses: Uses) -> Iterator[Sequence[int]]:
    yield from attention_regions(uses)
    for *others, last in row_regions(uses):
        yield from _around(uses, (last, *others), is_row_region=True)


def _separable_pairs(uses: Uses) -> Iterator[Sequence[int]]:
    for depthwise in uses.graph.operators:
        if not _is_depthwise(uses, depthwise):
            continue
        for first in _chain(uses, (depthwise.index,)):
            pointwise = _pointwise_reader(uses, first[-1])
            if pointwise is not None:
                pairs = ((*first, *second) for second in _after(uses, (pointwise.index,)))
                yield from (pair for pair in pairs if len(pair) <= MAX_GROUP_OPERATORS)


def _around(
    uses: Uses, members: Sequence[int], *, apart: Sequence[int] = (), is_row_region: bool = False
) -> Iterator[Sequence[int]]:
    """Yield the cuts of the chain after `members`, seed first, each with the cuts of what may come before it.

    What comes before holds none of the operators `apart`.
    """
    for group in _after(uses, members, is_row_region=is_row_region):
        yield group
        growth = _growth(uses, group, is_row_region=is_row_region)
        growth.owner.update(dict.fromkeys(apart, -1))
        grow_backward(growth, group[0])
        # An operator is taken after all of its readers, so that the group can be cut between any two.
        taken = growth.members[group[0]]
        yield from _few([taken[:end] for end in range(len(group) + 1, len(taken) + 1)], MAX_PROLOGUES)


def _after(uses: Uses, members: Sequence[int], *, is_row_region: bool = False) -> list[Sequence[int]]:
    return _few(_chain(uses, members, is_row_region=is_row_region), MAX_EPILOGUES)


def _chain(uses: Uses, members: Sequence[int], *, is_row_region: bool = False) -> list[Sequence[int]]:
    """Return `members` with every cut of the longest chain after them: where one tensor alone is read further on."""
    growth = _growth(uses, members, is_row_region=is_row_region)
    seed = members[0]
    grow_forward(growth, seed)
    grown = growth.members[seed]
    groups: list[Sequence[int]] = [members]
    inside = set(members)
    unread = {uses.graph.operators[seed].outputs[0]}
    for end, index in enumerate(grown[len(members) :], len(members) + 1):
        inside.add(index)
        unread = {name for name in unread if not inside.issuperset(uses.consumers[name])}
        if not unread:
            groups.append(grown[:end])
        unread.add(uses.graph.operators[index].outputs[0])
    return groups


def _growth(uses: Uses, members: Sequence[int], *, is_row_region: bool) -> Growth:
    """Return a planning run in which nothing but this group has been decided, its seed first."""
    growth = Growth(uses=uses)
    growth.start(members[0])
    growth.take(members[0], members[1:])
    if is_row_region:
        growth.row_seeds.add(members[0])
    return growth


def _few(groups: list[Sequence[int]], limit: int) -> list[Sequence[int]]:
    return groups if len(groups) <= limit else [*groups[: limit - 1], groups[-1]]


def _is_depthwise(uses: Uses, operator: Operator) -> bool:
    if not _is_convolution(operator):
        return False
    channels, each, *_ = uses.graph.tensors[operator.inputs[1]].shape
    return each == 1 and channels > 1 and channels == operator.attributes.get("group", 1)


def _pointwise_reader(uses: Uses, index: int) -> Operator | None:
    """Return the 1×1 convolution, of stride 1 and unpadded, that alone reads the operator's output as its image."""
    name = uses.graph.operators[index].outputs[0]
    readers = uses.consumers.get(name, ())
    if name in uses.visible or len(readers) != 1:
        return None
    reader = uses.graph.operators[readers[0]]
    if not _is_convolution(reader) or reader.inputs[0] != name or name in reader.inputs[1:]:
        return None
    window = uses.graph.tensors[reader.inputs[1]].shape[2:]
    image, result = (uses.graph.tensors[each].shape[2:] for each in (name, reader.outputs[0]))
    is_plain = set(window) == {1} and reader.attributes.get("group", 1) == 1
    return reader if is_plain and image == result else None


def _is_convolution(operator: Operator) -> bool:
    return operator.domain == "" and operator.op_type == "Conv"
