"""Loop nests for operators that move elements: concatenations, channel shuffles, transpositions."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mapper.records import GroupSpec, Operator
from mapper.templates import moves
from mapper.templates.tiles import sole_operator

_CONCAT, _TRANSPOSE = frozenset({"Concat"}), frozenset({"Transpose"})
MOST_INPUTS = 32  # of a concatenation that gets a loop for each
MOST_INTERLEAVED = 8  # what LLVM still turns into shuffles of whole vectors
TURNED = 16  # side of the squares in which a transposition goes: one cache line of float32


@dataclass(frozen=True, slots=True)
class Move:
    """What to do with the loop over one axis of the output where it is the innermost: `apply(sch, loop, lanes)`."""

    axis: int
    apply: Callable[[Any, Any, int], None]


def along_axis(spec: GroupSpec) -> Move | None:
    """Return how a concatenation or a channel shuffle is written along its axis; None for other groups."""
    joined, groups = parts(spec), interleaved(spec)
    if joined is not None:
        axis, extents = joined
        return Move(axis, lambda sch, loop, lanes: copy_parts(sch, loop, extents, lanes))
    if groups is not None:
        count = groups
        return Move(1, lambda sch, loop, _lanes: interleave(sch, loop, count))
    return None


def parts(spec: GroupSpec) -> tuple[int, tuple[int, ...]] | None:
    """Return (axis, extent of each input along it) of the group's one concatenation, at the shape of its output."""
    concat = sole_operator(spec, _CONCAT)
    if concat is None or len(spec.outputs) != 1 or not 2 <= len(concat.inputs) <= MOST_INPUTS:
        return None
    found = spec.tensors[concat.outputs[0]].shape
    axis = concat.attributes.get("axis")
    if not isinstance(axis, int) or found != spec.tensors[spec.outputs[0]].shape:
        return None
    axis %= len(found)
    extents = tuple(spec.tensors[name].shape[axis] for name in concat.inputs)
    return (axis, extents) if all(extents) else None


def interleaved(spec: GroupSpec) -> int | None:
    """Return how many groups of channels a channel shuffle interleaves; None for any other group."""
    names = [operator.op_type for operator in spec.operators]
    if names[:3] != ["Reshape", "Transpose", "Reshape"] or len(spec.outputs) != 1 or not _is_chain(spec.operators[:3]):
        return None
    split, swap, join = spec.operators[:3]
    x, cut, y = (spec.tensors[name].shape for name in (split.inputs[0], split.outputs[0], join.outputs[0]))
    if len(x) != 4 or x != y or y != spec.tensors[spec.outputs[0]].shape or len(cut) != 5:
        return None
    is_shuffle = cut[0] == x[0] and cut[3:] == x[2:] and swap.attributes.get("perm") == [0, 2, 1, 3, 4]
    return cut[1] if is_shuffle and 1 < cut[1] <= MOST_INTERLEAVED else None


def _is_chain(operators: tuple[Operator, ...]) -> bool:
    return all(after.inputs[0] == before.outputs[0] for before, after in pairwise(operators))


def turned(spec: GroupSpec, layouts: tuple[str, ...]) -> int | None:
    """Return the output axis along which a lone transposition reads neighbours; None where that is the last."""
    swap = sole_operator(spec, _TRANSPOSE)
    if swap is None or len(spec.operators) > 1 or "nhwc" in layouts:
        return None
    rank = len(spec.tensors[swap.outputs[0]].shape)
    order = swap.attributes.get("perm", list(reversed(range(rank))))
    axis = order.index(rank - 1) if isinstance(order, list) and rank > 1 else rank - 1
    return axis if axis < rank - 1 else None


def turn(sch: Any, block: Any, axis: int, lanes: int, tasks: int) -> bool:
    """Go through a transposition square by square, so that a line is read while it is in L1; False for odd rows."""
    loops = sch.get_loops(block)
    inner, other = loops[-1], loops[axis]
    size = moves.extent(sch, inner)
    if size % lanes or lanes < 4 or size % TURNED or moves.extent(sch, other) < TURNED:
        return False
    columns, column = sch.split(inner, [None, TURNED])
    rows, row = sch.split(other, [None, TURNED])
    outer = [*loops[:axis], rows, *loops[axis + 1 : -1], columns]
    sch.reorder(*outer, row, column)
    if tasks:
        cut_tasks(sch, outer, tasks)
    moves.vectorize_inner(sch, column, lanes, unroll=True)
    return True


def copy_parts(sch: Any, loop: Any, extents: tuple[int, ...], lanes: int) -> None:
    """Cut the loop over the joined axis, innermost in memory, into one loop an input; no element asks where it is from.

    Vectors are as wide as all inputs allow; below four lanes LLVM's own vectorizer does better on the loop as it is.
    """
    while lanes > 1 and any(extent % lanes for extent in extents):
        lanes //= 2
    if lanes >= 4:
        loop, inner = sch.split(loop, [None, lanes])
        sch.vectorize(inner)
        extents = tuple(extent // lanes for extent in extents)
    sch.loop_partition(loop, [*extents[:-1], None])


def interleave(sch: Any, loop: Any, groups: int) -> None:
    """Write one channel of each group at a time: LLVM reads vectors of each and stores them interleaved."""
    _, group = sch.split(loop, [None, groups])
    sch.unroll(group)


def cut_tasks(sch: Any, loops: list[Any], tasks: int) -> None:
    """Run about `tasks` equal pieces of nested loops in parallel: of as few of the outermost as give enough pieces."""
    taken, total = [], 1
    for loop in loops:
        taken.append(loop)
        total *= moves.extent(sch, loop)
        if total >= 4 * tasks:
            break
    unit = sch.fuse(*taken) if len(taken) > 1 else taken[0]
    if total <= tasks:
        sch.parallel(unit)
        return
    exact = next((pieces for pieces in range(tasks, min(2 * tasks, total + 1)) if total % pieces == 0), tasks)
    task, _ = sch.split(unit, [exact, None])
    sch.parallel(task)
