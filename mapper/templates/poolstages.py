"""The tensor expressions of pools: a window written out, and sums or maxima of whole images."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from mapper.templates.poolshape import PoolShape


def windows(shape: PoolShape, x: Any) -> Any:
    """Return the pool as one block, `pool`: an expression of all elements of the window."""
    from tvm import te, tirx  # noqa: PLC0415 TVM only where a worker runs it

    def inside(conditions: list[Any], value: Any) -> Any:
        neutral = tirx.const(float("-inf") if shape.kind == "max" else 0.0, x.dtype)
        return tirx.Select(tirx.all(*conditions), value, neutral) if conditions else value

    def out(n: Any, c: Any, h: Any, w: Any) -> Any:
        rows = [_position(shape, 0, tap, h) for tap in range(shape.kh)]
        columns = [_position(shape, 1, tap, w) for tap in range(shape.kw)]
        if shape.kind == "max":
            taps = product(rows, columns)
            return _highest([inside([*r.conditions, *c_.conditions], x[n, c, r.at, c_.at]) for r, c_ in taps])
        sums = [
            inside(row.conditions, _sum([inside(column.conditions, x[n, c, row.at, column.at]) for column in columns]))
            for row in rows
        ]
        return _sum(sums) * _share(shape, rows, columns, x.dtype)

    return te.compute((shape.n, shape.c, shape.oh, shape.ow), out, name="pool")


def whole(shape: PoolShape, parts: int, wanted: Sequence[int], x: Any) -> Any:
    """Return the pool over whole images as two blocks: `acc` reduces each of `parts` strips of rows, then `pool`."""
    from tvm import te, tirx  # noqa: PLC0415

    strip = shape.ih // parts
    r, w = te.reduce_axis((0, strip), "r"), te.reduce_axis((0, shape.iw), "w")
    combine = te.sum if shape.kind == "mean" else _largest()
    acc = te.compute(
        (parts, shape.n, shape.c), lambda p, n, c: combine(x[n, c, p * strip + r, w], axis=[r, w]), name="acc"
    )
    share = tirx.const(1.0 / (shape.ih * shape.iw), x.dtype)

    def out(*index: Any) -> Any:
        found = [acc[part, index[0], index[1]] for part in range(parts)]
        return _sum(found) * share if shape.kind == "mean" else _highest(found)

    return te.compute(tuple(wanted), out, name="pool")


def _largest() -> Any:
    from tvm import te, tirx  # noqa: PLC0415

    return te.comm_reducer(_larger, lambda dtype: tirx.const(float("-inf"), dtype), name="largest")


@dataclass(frozen=True, slots=True)
class _Tap:
    """Where a tap of a window reads along one axis, and under which conditions that is what the window holds there."""

    at: Any
    conditions: list[Any]


def _position(shape: PoolShape, axis: int, tap: int, at: Any) -> _Tap:
    """Return what a tap of the window at `at` reads: outside the image the nearest pixel inside.

    Without dilation that pixel is in the window too, so that a maximum may simply take it twice.
    """
    from tvm import tirx  # noqa: PLC0415

    size = (shape.ih, shape.iw)[axis]
    lowest, highest = shape.range_of(axis, tap)
    wanted = at * shape.strides[axis] + (tap * shape.dilations[axis] - shape.pads[axis])
    position, conditions = wanted, []
    if lowest < 0:
        position = tirx.max(position, 0)
        conditions.append(wanted >= 0)
    if highest >= size:
        position = tirx.min(position, size - 1)
        conditions.append(wanted < size)
    is_repeated = shape.kind == "max" and shape.dilations[axis] == 1
    return _Tap(position, [] if is_repeated else conditions)


def _share(shape: PoolShape, rows: list[_Tap], columns: list[_Tap], dtype: str) -> Any:
    """Return 1 / (elements of the mean): of another number at the border where pads do not count."""
    from tvm import tirx  # noqa: PLC0415

    if shape.counts_pads:
        return tirx.const(1.0 / shape.taps, dtype)
    counts = [_count(rows), _count(columns)]
    if all(isinstance(count, int) for count in counts):
        return tirx.const(1.0 / (counts[0] * counts[1]), dtype)
    elements = counts[0] * counts[1]
    return tirx.const(1.0, dtype) / elements.astype(dtype)


def _count(taps: list[_Tap]) -> Any:
    """Return how many taps along an axis are inside, a number where all always are."""
    from tvm import tirx  # noqa: PLC0415

    count: Any = sum(1 for tap in taps if not tap.conditions)
    for tap in taps:
        if tap.conditions:
            count = count + tirx.Select(tirx.all(*tap.conditions), tirx.const(1, "int64"), tirx.const(0, "int64"))
    return count


def _highest(values: list[Any]) -> Any:
    """Return the largest of several values, NaN when any is."""
    from tvm import tirx  # noqa: PLC0415

    are_numbers = _tree([_is_number(value) for value in values], tirx.all)
    return tirx.Select(are_numbers, _tree(values, tirx.max), tirx.const(float("nan"), "float32"))


def _larger(a: Any, b: Any) -> Any:
    """Return the larger, NaN when either is: `max` gives its second operand where it cannot compare."""
    from tvm import tirx  # noqa: PLC0415

    return tirx.Select(_is_number(b), tirx.max(b, a), b)


def _is_number(value: Any) -> Any:
    """Say whether a value is not NaN, in a form that stays a vector comparison.

    TVM computes `isnan` lane by lane and takes `x == x` for true; what it does not see is that |x| is |x|'s own.
    """
    from tvm import tirx  # noqa: PLC0415

    size = tirx.abs(value)
    return tirx.EQ(tirx.abs(size), size)


def _sum(values: Sequence[Any]) -> Any:
    return _tree(values, lambda a, b: a + b)


def _tree(values: Sequence[Any], combine: Any) -> Any:
    """Combine neighbours until one is left: a short chain of dependent operations, and small rounding errors."""
    rest = list(values)
    while len(rest) > 1:
        pairs = [combine(a, b) for a, b in zip(rest[::2], rest[1::2], strict=False)]
        rest = [*pairs, *rest[len(pairs) * 2 :]]
    return rest[0]
