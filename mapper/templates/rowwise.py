"""Softmax and reductions over the last axes: one task a row, partial results in the lanes of one vector.

A row of length L is reduced as L // v whole vectors, then across the lanes, then its tail; every stage of a row is
computed where the row is, so that it stays in L1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from mapper.records import Choice, GroupSpec, MachineModel, Operator, Prediction
from mapper.templates import elementwise, fastmath, moves
from mapper.templates.protocol import Convert, Packing
from mapper.templates.tiles import anchor_of, boundary_traffic, integers, require, roof, sole_operator

FIELDS = ("v", "grain")
REDUCTIONS = {"ReduceMean": "sum", "ReduceSum": "sum", "ReduceMax": "max or nan"}
ROW_TYPES = frozenset({"Softmax", *REDUCTIONS})
# The stages of a row, in the order in which they are computed.
STAGES = (
    *("row_in", "row_lanes", "row_fold", "row_tail", "row_result"),
    *("row_exp", "sum_lanes", "sum_fold", "sum_tail", "sum_result"),
)


@dataclass(frozen=True, slots=True)
class Rowwise:
    """The template value; see the module's docstring."""

    name: str = "rowwise"

    def matches(self, spec: GroupSpec) -> bool:
        """Take one float32 Softmax over the last axis, or one reduction over the last axes, of at least 16 elements."""
        anchor = sole_operator(spec, ROW_TYPES)
        if len(spec.outputs) != 1 or anchor is None or spec.tensors[anchor.inputs[0]].dtype != "float32":
            return False
        axes = reduced_axes(spec)
        rank = len(spec.tensors[anchor.inputs[0]].shape)
        if not axes or axes != tuple(range(rank - len(axes), rank)):
            return False
        return row_length(spec) >= 16

    def choices(self, spec: GroupSpec, machine: MachineModel, layouts: tuple[str, ...]) -> tuple[Choice, ...]:
        """Offer vector widths, serial or parallel rows."""
        del spec
        lanes = machine.vector_lanes_f32
        tiles = [{"v": v, "grain": grain} for v in (lanes, lanes // 2) if v > 1 for grain in (1, 0)]
        return tuple(Choice(template=self.name, layouts=layouts, tile=tile) for tile in tiles)

    def check(self, spec: GroupSpec, choice: Choice) -> None:
        """Check the two fields."""
        t = integers(spec, choice, FIELDS)
        require(spec, t["v"] >= 1 and t["v"] & (t["v"] - 1) == 0, f"v = {t['v']} must be a power of two")
        require(spec, t["v"] <= row_length(spec), f"v = {t['v']} exceeds the row of {row_length(spec)}")
        require(spec, t["grain"] in (0, 1), f"grain = {t['grain']} must be 0 (serial) or 1 (parallel)")

    def cost(self, spec: GroupSpec, choice: Choice, machine: MachineModel) -> Prediction:
        """Predict from compulsory traffic; arithmetic at an eighth of FMA peak, a vector exp at a twentieth."""
        t = integers(spec, choice, FIELDS)
        share = 1.0 if t["grain"] else 1.0 / machine.threads
        work = 8.0 * (spec.flops - spec.longlat_flops) + 20.0 * spec.longlat_flops
        efficiency = min(1.0, t["v"] / machine.vector_lanes_f32) * share
        traffic = {level: moved / share for level, moved in boundary_traffic(spec, machine).items()}
        return roof(machine, executed_flops=work, efficiency=efficiency, traffic_b=traffic, launches=t["grain"])

    def packings(self, spec: GroupSpec, choice: Choice) -> Mapping[str, Packing]:
        """Leave weights as they are."""
        del spec, choice
        return {}

    def converters(self, spec: GroupSpec, choice: Choice) -> Mapping[int, Convert]:
        """Emit the anchor in stages."""
        anchor, lanes = anchor_of(spec, ROW_TYPES), int(choice.tile["v"])
        lead = len(spec.tensors[anchor.inputs[0]].shape) - len(reduced_axes(spec))
        shape = spec.tensors[anchor.outputs[0]].shape

        def convert(builder: Any, inputs: list[Any], _attributes: Mapping[str, Any]) -> Any:
            def stages(x: Any) -> Any:
                if anchor.op_type == "Softmax":
                    return _softmax(x, lead, lanes)
                return _reduction(x, lead, lanes, anchor.op_type, shape)

            return builder.emit_te(stages, inputs[0])

        return {anchor.index: convert}

    def apply(self, sch: Any, spec: GroupSpec, choice: Choice) -> None:
        """Compute every stage of a row at the row."""
        t = integers(spec, choice, FIELDS)
        anchor = anchor_of(spec, ROW_TYPES)
        kept = set(STAGES) if anchor.op_type == "Softmax" else set(STAGES) - {"row_in"}
        moves.inline_all(sch, frozenset(kept))
        out = moves.output_block(sch)
        loops = sch.get_loops(out)
        is_row_kept = anchor.op_type == "Softmax"
        rows = loops[:-1] if is_row_kept else loops
        row = sch.fuse(*rows) if len(rows) > 1 else rows[0] if rows else sch.add_unit_loop(loops[0] if loops else out)
        names = {moves.block_name(sch, block) for block in moves.all_blocks(sch)}
        for name in reversed([stage for stage in STAGES if stage in names]):
            sch.compute_at(sch.get_sblock(name), row, preserve_unit_loops=True)
        if t["grain"]:
            sch.parallel(row)
        for name in names - {moves.block_name(sch, out)}:
            _vectorize_stage(sch, sch.get_sblock(name), t["v"])
        if is_row_kept:
            moves.vectorize_inner(sch, sch.get_loops(out)[-1], t["v"], unroll=False)


def reduced_axes(spec: GroupSpec) -> tuple[int, ...]:
    """Return the axes that the anchor runs over, ascending and non-negative; empty when they are not constant."""
    anchor = anchor_of(spec, ROW_TYPES)
    rank = len(spec.tensors[anchor.inputs[0]].shape)
    axes = _axes(spec, anchor)
    return tuple(sorted(axis % rank for axis in axes)) if axes is not None else ()


def row_length(spec: GroupSpec) -> int:
    """Return the number of elements that one result is made of."""
    shape = spec.tensors[anchor_of(spec, ROW_TYPES).inputs[0]].shape
    return prod(shape[axis] for axis in reduced_axes(spec))


def _axes(spec: GroupSpec, anchor: Operator) -> list[int] | None:
    rank = len(spec.tensors[anchor.inputs[0]].shape)
    if anchor.op_type == "Softmax":
        # before opset 13 the default axis is 1, and a row runs from the axis to the end
        since = anchor.attributes.get("@since_version", 13)
        flattens = isinstance(since, int) and since < 13
        axis = anchor.attributes.get("axis", 1 if flattens else -1)
        return [axis] if isinstance(axis, int) and (not flattens or axis % rank == rank - 1) else None
    if len(anchor.inputs) > 1 and anchor.inputs[1]:
        constant = spec.constants.get(anchor.inputs[1])
        return list(constant["data"]) if isinstance(constant, Mapping) else None
    listed = anchor.attributes.get("axes")
    if isinstance(listed, list | tuple):
        return [int(axis) for axis in listed]
    return None if anchor.attributes.get("noop_with_empty_axes", 0) else list(range(rank))


def _fold(x: Any, prefix: str, lead: tuple[int, ...], length: int, lanes: int, combine: str) -> Any:
    """Reduce x[lead…, length] over its last axis: whole vectors, across the lanes, and the tail."""
    from tvm import te  # noqa: PLC0415 TVM only where a worker runs it

    reducer, join = _combiner(combine)
    whole = length // lanes
    k = te.reduce_axis((0, whole), "k")
    partial = te.compute(
        (*lead, lanes), lambda *i: reducer(x[(*i[:-1], k * lanes + i[-1])], axis=k), name=f"{prefix}_lanes"
    )
    lane = te.reduce_axis((0, lanes), "lane")
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


def _softmax(x: Any, lead: int, lanes: int) -> Any:
    from tvm import te  # noqa: PLC0415

    shape = tuple(int(size) for size in x.shape)
    rows, length = shape[:lead], shape[-1]
    row_in = te.compute(shape, lambda *i: x[i], name="row_in")
    highest = _fold(row_in, "row", rows, length, lanes, "max")
    exps = te.compute(shape, lambda *i: fastmath.exp(row_in[i] - highest[i[:-1]]), name="row_exp")
    total = _fold(exps, "sum", rows, length, lanes, "sum")
    return te.compute(shape, lambda *i: exps[i] / total[i[:-1]], name="softmax_out")


def _reduction(x: Any, lead: int, lanes: int, op_type: str, out_shape: tuple[int, ...]) -> Any:
    from tvm import te, tirx  # noqa: PLC0415

    shape = tuple(int(size) for size in x.shape)
    rows, inner = shape[:lead] or (1,), shape[lead:]
    length = prod(inner)

    def flat(*index: Any) -> Any:
        position: list[Any] = []
        rest = index[-1]
        for size in reversed(inner):
            position.append(rest % size if len(position) < len(inner) - 1 else rest)
            rest = rest // size
        return x[(*(index[:-1] if lead else ()), *reversed(position))]

    row_in = te.compute((*rows, length), flat, name="row_in")
    result = _fold(row_in, "row", rows, length, lanes, REDUCTIONS[op_type])
    scale = tirx.const(1.0 / length, x.dtype)

    def out(*index: Any) -> Any:
        value = result[index[:lead] if lead else (0,)]
        return value * scale if op_type == "ReduceMean" else value

    return te.compute(out_shape, out, name="reduce_out")


def _vectorize_stage(sch: Any, block: Any, lanes: int) -> None:
    """Vectorize a stage along its last spatial axis, its reduction outside; single numbers stay scalar."""
    name = moves.block_name(sch, block)
    loops = sch.get_loops(block)
    statement = sch.get(block)
    if name.endswith("_lanes"):
        k, lane = loops[-1], loops[-2]
        sch.reorder(k, lane)
        moves.vectorize_inner(sch, lane, lanes, unroll=False)
        sch.decompose_reduction(block, k)
    elif not moves.is_reduction(sch, block) and len(statement.iter_vars) and name in ("row_in", "row_exp"):
        moves.vectorize_inner(sch, loops[-1], lanes, unroll=False)


TEMPLATE = Rowwise()
