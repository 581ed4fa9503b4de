"""Softmax, layer norm, reductions over the last axes, and normalisations written out as several operators.

A task takes some rows; every stage of a row is computed where the row is, so that it stays in L1. See `rowstages.py`
for how a row is reduced in the lanes of a vector.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from mapper.records import Choice, GroupSpec, MachineModel, Operator, Prediction
from mapper.templates import moves, rowstages, views
from mapper.templates.protocol import Convert, Packing
from mapper.templates.rowstages import REDUCTIONS
from mapper.templates.tiles import boundary_traffic, integers, require, roof, tail_efficiency

FIELDS = ("v", "grain")
NORMS = frozenset({"Softmax", "LayerNormalization"})
ROW_TYPES = frozenset({*NORMS, *REDUCTIONS})
# What may stand between the operators on rows: each element of a row on its own.
BETWEEN = frozenset(
    {
        *("Abs", "Add", "Clip", "Div", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu"),
        *("Log", "Max", "Min", "Mul", "Neg", "Pow", "Reciprocal", "Relu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Tanh"),
    }
)
MIN_ROW = 16


@dataclass(frozen=True, slots=True)
class Rowwise:
    """The template value; see the module's docstring."""

    name: str = "rowwise"

    def matches(self, spec: GroupSpec) -> bool:
        """Take float32 groups around one reduction over the last axes, or around operators on rows of one shape."""
        found = _row_operators(spec)
        if len(spec.outputs) != 1 or not found:
            return False
        if any(spec.tensors[operator.inputs[0]].dtype != "float32" for operator in found):
            return False
        axes = [reduced_axes(spec, operator) for operator in found]
        ranks = [len(spec.tensors[operator.inputs[0]].shape) for operator in found]
        if any(not a or a != tuple(range(rank - len(a), rank)) for a, rank in zip(axes, ranks, strict=True)):
            return False
        return row_length(spec) >= MIN_ROW and (_is_sole_reduction(spec, found) or _is_of_rows(spec, found))

    def choices(self, spec: GroupSpec, machine: MachineModel, layouts: tuple[str, ...]) -> tuple[Choice, ...]:
        """Offer vector widths, serial rows, and a few numbers of tasks."""
        lanes, length = machine.vector_lanes_f32, row_length(spec)
        widths = [v for v in (2 * lanes, lanes, lanes // 2) if 1 < v <= length] or [MIN_ROW]
        grains = dict.fromkeys((0, *(min(count_rows(spec), n * machine.threads) for n in (1, 4, 16))))
        tiles = [{"v": v, "grain": grain} for v in widths for grain in grains]
        return tuple(Choice(template=self.name, layouts=layouts, tile=tile) for tile in tiles)

    def check(self, spec: GroupSpec, choice: Choice) -> None:
        """Check the two fields."""
        t = integers(spec, choice, FIELDS)
        require(spec, t["v"] >= 1 and t["v"] & (t["v"] - 1) == 0, f"v = {t['v']} must be a power of two")
        require(spec, t["v"] <= row_length(spec), f"v = {t['v']} exceeds the row of {row_length(spec)}")
        rows = count_rows(spec)
        require(spec, t["grain"] <= rows, f"grain = {t['grain']} tasks, 0 for none, exceed the {rows} rows")

    def cost(self, spec: GroupSpec, choice: Choice, machine: MachineModel) -> Prediction:
        """Predict from compulsory traffic; arithmetic at an eighth of FMA peak, a vector exp at a twentieth."""
        t = integers(spec, choice, FIELDS)
        share = tail_efficiency(t["grain"], machine.threads) if t["grain"] else 1.0 / machine.threads
        work = 8.0 * (spec.flops - spec.longlat_flops) + 20.0 * spec.longlat_flops
        efficiency = min(1.0, t["v"] / machine.vector_lanes_f32) * share
        traffic = {level: moved / share for level, moved in boundary_traffic(spec, machine).items()}
        claims = t["grain"] if t["grain"] > machine.threads else 0  # short tasks wait for one another's claims
        launches = int(t["grain"] > 0) + claims // 4
        return roof(machine, executed_flops=work, efficiency=efficiency, traffic_b=traffic, launches=launches)

    def packings(self, spec: GroupSpec, choice: Choice) -> Mapping[str, Packing]:
        """Leave weights as they are."""
        del spec, choice
        return {}

    def converters(self, spec: GroupSpec, choice: Choice) -> Mapping[int, Convert]:
        """Emit the operators on rows in stages, views in place, and divisions by a row's number as one division."""
        own = {operator.index: _convert(spec, operator, int(choice.tile["v"])) for operator in _row_operators(spec)}
        divisions = {op.index: rowstages.divide_by_rows() for op in spec.operators if _divides_rows(spec, op)}
        squares = {op.index: rowstages.square() for op in spec.operators if _squares(spec, op)}
        return {**views.converters(spec), **divisions, **squares, **own}

    def apply(self, sch: Any, spec: GroupSpec, choice: Choice) -> None:
        """Compute every stage of a row at the row, and cut the rows into tasks."""
        t = integers(spec, choice, FIELDS)
        moves.inline_all(sch, _kept(sch, spec))
        out = moves.output_block(sch)
        is_row_kept = not _is_sole_reduction(spec, _row_operators(spec))
        if is_row_kept:
            views.undo(sch, out, spec.tensors[spec.outputs[0]].shape, _rows_shape(spec))
        loops = sch.get_loops(out)
        rows = loops[:-1] if is_row_kept else loops
        row = sch.fuse(*rows) if len(rows) > 1 else rows[0] if rows else sch.add_unit_loop(loops[0] if loops else out)
        task = row
        if 0 < t["grain"] < moves.extent(sch, row):
            task, row = sch.split(row, [t["grain"], None])
        stages = [
            block for block in moves.all_blocks(sch) if moves.block_name(sch, block) != moves.block_name(sch, out)
        ]
        for block in reversed(stages):
            sch.compute_at(block, row, preserve_unit_loops=True)
        if t["grain"]:
            sch.parallel(task)
        for block in stages:
            rowstages.vectorize_stage(sch, block, t["v"])
        if is_row_kept:
            moves.vectorize_inner(sch, sch.get_loops(out)[-1], t["v"], unroll=False)


def reduced_axes(spec: GroupSpec, operator: Operator) -> tuple[int, ...]:
    """Return the axes that an operator runs over, ascending and non-negative; empty when they are not constant."""
    rank = len(spec.tensors[operator.inputs[0]].shape)
    axes = _axes(spec, operator)
    return tuple(sorted(axis % rank for axis in axes)) if axes is not None else ()


def row_length(spec: GroupSpec) -> int:
    """Return the number of elements that one result is made of."""
    first = _row_operators(spec)[0]
    shape = spec.tensors[first.inputs[0]].shape
    return prod(shape[axis] for axis in reduced_axes(spec, first))


def count_rows(spec: GroupSpec) -> int:
    """Return how many rows there are."""
    return prod(spec.tensors[_row_operators(spec)[0].inputs[0]].shape) // row_length(spec)


def _row_operators(spec: GroupSpec) -> list[Operator]:
    return [operator for operator in spec.operators if operator.op_type in ROW_TYPES and not operator.domain]


def _is_sole_reduction(spec: GroupSpec, found: list[Operator]) -> bool:
    """Say whether a group is one reduction, whose rows are gone afterwards."""
    if len(found) != 1 or found[0].op_type in NORMS:
        return False
    shapes = (spec.tensors[name].shape for name in (found[0].outputs[0], spec.outputs[0]))
    return len({prod(shape) for shape in shapes}) == 1


def _is_of_rows(spec: GroupSpec, found: list[Operator]) -> bool:
    """Say whether a group reduces rows of one shape, gives rows back, and works on their elements in between."""
    rows = _rows_shape(spec)
    if any(spec.tensors[operator.inputs[0]].shape != rows or len(operator.outputs) > 1 for operator in found):
        return False
    if any(op.op_type in REDUCTIONS and spec.tensors[op.outputs[0]].shape != (*rows[:-1], 1) for op in found):
        return False
    result = spec.tensors[spec.outputs[0]].shape
    if len(reduced_axes(spec, found[0])) != 1 or prod(result) != prod(rows) or result[-1:] != rows[-1:]:
        return False
    return all(op in found or op.op_type in BETWEEN or views.is_view(spec, op) for op in spec.operators)


def _rows_shape(spec: GroupSpec) -> tuple[int, ...]:
    return spec.tensors[_row_operators(spec)[0].inputs[0]].shape


def _axes(spec: GroupSpec, operator: Operator) -> list[int] | None:
    rank = len(spec.tensors[operator.inputs[0]].shape)
    if operator.op_type == "LayerNormalization":
        axis = operator.attributes.get("axis", -1)
        return list(range(axis % rank, rank)) if isinstance(axis, int) else None
    if operator.op_type == "Softmax":
        # before opset 13 the default axis is 1, and a row runs from the axis to the end
        since = operator.attributes.get("@since_version", 13)
        flattens = isinstance(since, int) and since < 13
        axis = operator.attributes.get("axis", 1 if flattens else -1)
        return [axis] if isinstance(axis, int) and (not flattens or axis % rank == rank - 1) else None
    if len(operator.inputs) > 1 and operator.inputs[1]:
        constant = spec.constants.get(operator.inputs[1])
        return list(constant["data"]) if isinstance(constant, Mapping) else None
    listed = operator.attributes.get("axes")
    if isinstance(listed, list | tuple):
        return [int(axis) for axis in listed]
    return None if operator.attributes.get("noop_with_empty_axes", 0) else list(range(rank))


def _convert(spec: GroupSpec, operator: Operator, lanes: int) -> Convert:
    lead = len(spec.tensors[operator.inputs[0]].shape) - len(reduced_axes(spec, operator))
    shape = spec.tensors[operator.outputs[0]].shape
    epsilon = operator.attributes.get("epsilon", 1e-5)

    def stages(x: Any, *others: Any) -> Any:
        if operator.op_type == "Softmax":
            return rowstages.softmax(x, lead, lanes)
        if operator.op_type == "LayerNormalization":
            return rowstages.layer_norm((x, *others), lead, lanes, float(str(epsilon)))
        return rowstages.reduction(x, lead, lanes, operator.op_type, shape)

    def convert(builder: Any, inputs: list[Any], _attributes: Mapping[str, Any]) -> Any:
        taken = [item for item in inputs if item is not None]
        return builder.emit_te(stages, *(taken[:1] if operator.op_type in REDUCTIONS else taken))

    return convert


def _divides_rows(spec: GroupSpec, operator: Operator) -> bool:
    """Say whether an operator divides rows by one computed number each."""
    if operator.op_type != "Div" or spec.tensors[operator.outputs[0]].dtype != "float32":
        return False
    above, below = (spec.tensors[name].shape for name in operator.inputs)
    is_computed = any(operator.inputs[1] in other.outputs for other in spec.operators)
    return is_computed and above[-1] > 1 and below == (*above[:-1], 1)


def _squares(spec: GroupSpec, operator: Operator) -> bool:
    exponent = spec.constants.get(operator.inputs[1]) if operator.op_type == "Pow" else None
    return isinstance(exponent, Mapping) and exponent["data"] == [2] and exponent["shape"] in ([], [1])


def _kept(sch: Any, spec: GroupSpec) -> frozenset[str]:
    """Name the blocks to compute once a row: one number a row, and what a reduction and another block read."""
    arguments = {*spec.inputs, *spec.weights}
    firsts = [views.source_of(spec, operator.inputs[0]) for operator in _row_operators(spec)]
    kept = {"row_exp"}
    if any(name not in arguments for name in firsts):
        kept.add("row_in")
    for block in moves.all_blocks(sch):
        name = moves.block_name(sch, block)
        readers = sch.get_consumers(block)
        is_number = name.startswith(("row_scale", "row_mean", "row_inverse", "row_result", "sum_result"))
        is_reread = len(readers) > 1 and any(moves.is_reduction(sch, reader) for reader in readers)
        if is_number or is_reread or name.startswith("row_exp"):
            kept.add(name)
    return frozenset(kept)


TEMPLATE = Rowwise()
