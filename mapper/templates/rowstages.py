"""The tensor expressions of operators on rows: reductions in the lanes of one vector, softmax and layer norm on them.

A row of length L is reduced as L // v whole vectors, then across the lanes, then its tail. Block names end in what the
schedule has to know: `_lanes` is the part that vectorizes.
"""

from collections.abc import Callable
from math import prod
from typing import Any

from mapper.templates import elementwise, fastmath, moves
from mapper.templates.protocol import Convert

# How a reduction combines elements, and whether it squares them first.
REDUCTIONS = {
    "ReduceMean": ("sum", False),
    "ReduceSum": ("sum", False),
    "ReduceMax": ("max or nan", False),
    "ReduceSumSquare": ("sum", True),
    "ReduceL2": ("sum", True),
}
FOLD = 4  # lanes that are left when the last ones are taken one by one
# What a softmax computes once a row or element, in order.
SOFTMAX_STAGES = (
    *("row_lanes", "row_quarter", "row_fold", "row_tail", "row_result", "row_exp"),
    *("sum_lanes", "sum_quarter", "sum_fold", "sum_tail", "sum_result", "row_scale"),
)


def softmax(x: Any, lead: int, lanes: int) -> Any:
    """Return the softmax of rows; `lead` axes lie above a row."""
    from tvm import te, tirx  # noqa: PLC0415 TVM only where a worker runs it

    shape = _extents(x)
    rows, length = shape[:lead], shape[-1]
    row_in = te.compute(shape, lambda *i: x[i], name="row_in")
    highest = _fold(row_in, "row", rows, length, lanes, "max")
    exps = te.compute(shape, lambda *i: fastmath.exp(row_in[i] - highest[i[:-1]]), name="row_exp")
    total = _fold(exps, "sum", rows, length, lanes, "sum")
    # one division a row; a total is at least 1
    scale = te.compute(rows, lambda *i: tirx.const(1.0, x.dtype) / total[i], name="row_scale")
    return te.compute(shape, lambda *i: exps[i] * scale[i[:-1]], name="softmax_out")


def layer_norm(tensors: tuple[Any, ...], lead: int, lanes: int, epsilon: float) -> Any:
    """Return (x − mean) / sqrt(variance + epsilon) · weight + bias of rows, from x, weight and, if any, bias."""
    from tvm import te, tirx  # noqa: PLC0415

    x, weight, *bias = tensors
    shape = _extents(x)
    rows, length = shape[:lead], shape[-1]
    share = tirx.const(1.0 / length, x.dtype)
    row_in = te.compute(shape, lambda *i: x[i], name="row_in")
    total = _fold(row_in, "row", rows, length, lanes, "sum")
    mean = te.compute(rows, lambda *i: total[i] * share, name="row_mean")
    apart = te.compute(shape, lambda *i: row_in[i] - mean[i[:-1]], name="row_apart")
    squares = te.compute(shape, lambda *i: apart[i] * apart[i], name="row_squares")
    spread = _fold(squares, "sum", rows, length, lanes, "sum")
    one, least = tirx.const(1.0, x.dtype), tirx.const(epsilon, x.dtype)
    scale = te.compute(rows, lambda *i: one / tirx.sqrt(spread[i] * share + least), name="row_scale")

    def out(*index: Any) -> Any:
        value = apart[index] * scale[index[:-1]] * weight[index[-1]]
        return value + bias[0][index[-1]] if bias else value

    return te.compute(shape, out, name="norm_out")


def reduction(x: Any, lead: int, lanes: int, op_type: str, out_shape: tuple[int, ...]) -> Any:
    """Return a reduction over the axes after the first `lead`."""
    from tvm import te, tirx  # noqa: PLC0415

    shape = _extents(x)
    rows, inner = shape[:lead] or (1,), shape[lead:]
    length = prod(inner)
    combine, squares = REDUCTIONS[op_type]

    def flat(*index: Any) -> Any:
        position: list[Any] = []
        rest = index[-1]
        for size in reversed(inner):
            position.append(rest % size if len(position) < len(inner) - 1 else rest)
            rest = rest // size
        value = x[(*(index[:-1] if lead else ()), *reversed(position))]
        return value * value if squares else value

    row_read = te.compute((*rows, length), flat, name="row_read")
    result = _fold(row_read, "row", rows, length, lanes, combine)

    def out(*index: Any) -> Any:
        value = result[index[:lead] if lead else (0,)]
        if op_type == "ReduceL2":
            return tirx.sqrt(value)
        return value * tirx.const(1.0 / length, x.dtype) if op_type == "ReduceMean" else value

    return te.compute(out_shape, out, name="reduce_out")


def divide_by_rows() -> Convert:
    """Return how to divide rows by one number each: one division a row, then multiplications."""

    def convert(builder: Any, inputs: list[Any], _attributes: Any) -> Any:
        from tvm import te, tirx  # noqa: PLC0415

        def divided(above: Any, below: Any) -> Any:
            one = tirx.const(1.0, below.dtype)
            inverse = te.compute(below.shape, lambda *i: one / below[i], name="row_inverse")
            return te.compute(above.shape, lambda *i: above[i] * inverse[(*i[:-1], 0)], name="divided")

        return builder.emit_te(divided, *inputs)

    return convert


def square() -> Convert:
    """Return how to raise to the power of 2 without calling the C library for each element."""

    def convert(builder: Any, inputs: list[Any], _attributes: Any) -> Any:
        from tvm import te  # noqa: PLC0415

        return builder.emit_te(lambda x: te.compute(x.shape, lambda *i: x[i] * x[i], name="squared"), inputs[0])

    return convert


def _fold(x: Any, prefix: str, lead: tuple[int, ...], length: int, lanes: int, combine: str) -> Any:
    """Reduce x[lead…, length] over its last axis: whole vectors, across the lanes, and the tail."""
    from tvm import te  # noqa: PLC0415

    reducer, join = _combiner(combine)
    whole = length // lanes
    k = te.reduce_axis((0, whole), "k")
    partial = te.compute(
        (*lead, lanes), lambda *i: reducer(x[(*i[:-1], k * lanes + i[-1])], axis=k), name=f"{prefix}_lanes"
    )
    kept = lanes
    if lanes >= 2 * FOLD:  # a chain of as many steps as there are lanes would take longer than a short row
        kept = FOLD
        part = te.reduce_axis((0, lanes // kept), "part")
        halves = partial
        partial = te.compute(
            (*lead, kept),
            lambda *i: reducer(halves[(*i[:-1], part * kept + i[-1])], axis=part),
            name=f"{prefix}_quarter",
        )
    lane = te.reduce_axis((0, kept), "lane")
    folded = te.compute(lead, lambda *i: reducer(partial[(*i, lane)], axis=lane), name=f"{prefix}_fold")
    rest = length - whole * lanes
    if not rest:
        return folded
    j = te.reduce_axis((0, rest), "j")
    tail = te.compute(lead, lambda *i: reducer(x[(*i, whole * lanes + j)], axis=j), name=f"{prefix}_tail")
    return te.compute(lead, lambda *i: join(folded[i], tail[i]), name=f"{prefix}_result")


def _combiner(combine: str) -> tuple[Callable[..., Any], Callable[[Any, Any], Any]]:
    """Return how to reduce an axis and how to join two results. A softmax row with NaN is NaN by its sum anyway."""
    from tvm import te, tirx  # noqa: PLC0415

    if combine == "sum":
        return te.sum, lambda a, b: a + b
    if combine == "max":
        return te.max, tirx.max
    return te.comm_reducer(elementwise.larger, tirx.min_value), elementwise.larger


def _extents(x: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in x.shape)


def vectorize_stage(sch: Any, block: Any, lanes: int) -> None:
    """Vectorize a stage along its last spatial axis, its reduction outside; single numbers stay scalar."""
    loops = sch.get_loops(block)
    name = moves.block_name(sch, block)
    if "_lanes" in name or "_quarter" in name:
        k, lane = loops[-1], loops[-2]
        sch.reorder(k, lane)
        moves.vectorize_inner(sch, lane, lanes, unroll=False)
        sch.decompose_reduction(block, k)
    elif not moves.is_reduction(sch, block) and loops and moves.extent(sch, loops[-1]) >= lanes:
        moves.vectorize_inner(sch, loops[-1], lanes, unroll=False)
