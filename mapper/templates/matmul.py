"""Matrix multiply (MatMul and Gemm, batched or not): packed B, a register tile of rows × vectors, whole-k reduction.

The anchor computes `acc[batch…, m, nb, v]`. A constant B is packed at compile time as (n/vb, k, vb); any other B is
packed by the kernel itself, in parallel, before the tiles. A is read in place, or staged as (m/rm, k, rm) so that the
scalars that one step broadcasts lie side by side.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from mapper.records import Choice, GroupSpec, MachineModel, Operator, Prediction
from mapper.templates import moves, views
from mapper.templates.matmulstages import OP_TYPES, STAGE_NONE, STAGE_TASK, matmul_shape, product
from mapper.templates.protocol import Convert, Packing
from mapper.templates.tiles import (
    FLOAT32_B,
    anchor_of,
    boundary_traffic,
    ceil_div,
    divisors,
    fma_efficiency,
    integers,
    lanes_for,
    require,
    require_counts,
    require_vectors,
    resident_level,
    roof,
    round_up,
    sole_operator,
    tail_efficiency,
)

FIELDS = ("v", "vb", "rm", "tm", "tc", "stage")
STAGING = 16.0  # FLOPs' worth of copying one element of A, which comes row by row, beside those of other rows
CROWDING = 0.5  # how much loads of A and B hold up multiply-adds, although ports are free: square tiles do best


@dataclass(frozen=True, slots=True)
class Matmul:
    """The template value; see the module's docstring."""

    name: str = "matmul"

    def matches(self, spec: GroupSpec) -> bool:
        """Take float32 products whose B is a matrix or has A's own batch dimensions."""
        anchor = sole_operator(spec, OP_TYPES)
        if anchor is None or not _keeps_rows(spec, anchor):
            return False
        a, b = (spec.tensors[name] for name in anchor.inputs[:2])
        if a.dtype != "float32" or len(a.shape) < 2 or len(b.shape) < 2:
            return False
        same_batch = len(b.shape) == len(a.shape) and b.shape[:-2] == a.shape[:-2]
        return (len(b.shape) == 2 or same_batch) and not (anchor.inputs[1] in spec.weights and len(b.shape) > 2)

    def choices(self, spec: GroupSpec, machine: MachineModel, layouts: tuple[str, ...]) -> tuple[Choice, ...]:
        """Enumerate register tiles that fit the registers, at each task grain, A staged or not."""
        shape = matmul_shape(spec)
        lanes = lanes_for(shape.n, machine)
        found = []
        for vectors in (1, 2, 3, 4, 6, 8):
            vb = vectors * lanes
            if vectors > 1 and round_up(shape.n, vb) > 1.15 * shape.n:
                continue
            blocks = ceil_div(shape.n, vb)
            for rm in _rows(shape.m, (machine.vector_registers - vectors - 1) // vectors):
                tiles = ceil_div(shape.m, rm)
                stages = [STAGE_TASK] if _computes_a(spec) or shape.m % rm else [STAGE_NONE, STAGE_TASK]
                for tm in divisors(tiles, 16)[:4]:
                    for tc in sorted({1, *divisors(blocks)[:3], blocks}):
                        if shape.batch_size * (tiles // tm) * (blocks // tc) < min(machine.threads, tiles * blocks):
                            continue
                        for stage in stages:
                            tile = {"v": lanes, "vb": vb, "rm": rm, "tm": tm, "tc": tc, "stage": stage}
                            found.append(Choice(template=self.name, layouts=layouts, tile=tile))
        return tuple(found)

    def check(self, spec: GroupSpec, choice: Choice) -> None:
        """Check divisibility; see `tiles.require`."""
        shape, t = matmul_shape(spec), integers(spec, choice, FIELDS)
        require_counts(spec, t)
        require_vectors(spec, t)
        require(spec, t["stage"] in (STAGE_NONE, STAGE_TASK), f"stage = {t['stage']} must be 0 (none) or 1 (task)")
        tiles, blocks = ceil_div(shape.m, t["rm"]), ceil_div(shape.n, t["vb"])
        require(spec, tiles % t["tm"] == 0, f"tm = {t['tm']} must divide {tiles} row tiles")
        require(spec, blocks % t["tc"] == 0, f"tc = {t['tc']} must divide {blocks} column blocks")
        require(
            spec, t["stage"] == STAGE_TASK or shape.m % t["rm"] == 0, f"stage = 0 needs rm to divide {shape.m} rows"
        )

    def cost(self, spec: GroupSpec, choice: Choice, machine: MachineModel) -> Prediction:
        """Predict from the register tile's port use, the fill of the threads, and the traffic of B and A."""
        shape, t = matmul_shape(spec), integers(spec, choice, FIELDS)
        rows, columns = round_up(shape.m, t["rm"]), round_up(shape.n, t["vb"])
        executed = 2.0 * shape.batch_size * rows * columns * shape.k
        tasks = shape.batch_size * (rows // t["rm"] // t["tm"]) * (columns // t["vb"] // t["tc"])
        efficiency = fma_efficiency(t["rm"], t["vb"] // t["v"], t["v"], machine) * tail_efficiency(
            tasks, machine.threads
        )
        efficiency *= 1 - 4.0 / (shape.k + 4.0)
        efficiency /= 1 + CROWDING * (1 / t["rm"] + t["v"] / t["vb"])
        b_bytes = FLOAT32_B * shape.k * columns * shape.batch_size
        traffic = boundary_traffic(spec, machine)
        level = resident_level(b_bytes, machine)
        sweeps = rows // t["rm"] // t["tm"]
        traffic[level] = traffic.get(level, 0.0) + b_bytes * sweeps
        block_b = FLOAT32_B * t["vb"] * shape.k
        inner = "L1" if block_b <= machine.cache_b["L1"] / 2 else "L2"
        traffic[inner] = traffic.get(inner, 0.0) + executed * FLOAT32_B * (1 / t["rm"] + 1 / t["vb"]) / 2
        if t["stage"] == STAGE_TASK:
            staged = float(shape.batch_size * rows * shape.k * (columns // t["vb"] // t["tc"]))
            traffic["L2"] = traffic.get("L2", 0.0) + 2.0 * FLOAT32_B * staged
            efficiency *= executed / (executed + STAGING * staged)
        launches = 1 if shape.b_is_constant else 2
        return roof(machine, executed_flops=executed, efficiency=efficiency, traffic_b=traffic, launches=launches)

    def packings(self, spec: GroupSpec, choice: Choice) -> Mapping[str, Packing]:
        """Pack a constant (k, n) as (n/vb, k, vb), filled up with zeros."""
        shape, vb = matmul_shape(spec), int(choice.tile["vb"])
        if not shape.b_is_constant:
            return {}
        blocks = ceil_div(shape.n, vb)

        def pack(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            full = np.zeros((shape.k, blocks * vb), weight.dtype)
            full[:, : shape.n] = weight.T if shape.trans_b else weight
            return np.ascontiguousarray(full.reshape(shape.k, blocks, vb).transpose(1, 0, 2))

        return {anchor_of(spec, OP_TYPES).inputs[1]: Packing(shape=(blocks, shape.k, vb), pack=pack)}

    def converters(self, spec: GroupSpec, choice: Choice) -> Mapping[int, Convert]:
        """Emit the anchor as stage, pack, accumulate and crop stages in tensor expressions."""
        shape, tile = matmul_shape(spec), {name: int(value) for name, value in choice.tile.items()}

        def convert(builder: Any, inputs: list[Any], _attributes: Mapping[str, Any]) -> Any:
            tensors = [item for item in inputs[:3] if item is not None]
            return builder.emit_te(lambda *args: product(shape, tile, *args), *tensors, primfunc_name_hint="matmul")

        return {**views.converters(spec), anchor_of(spec, OP_TYPES).index: convert}

    def apply(self, sch: Any, spec: GroupSpec, choice: Choice) -> None:
        """Tile, stage, vectorize and parallelize as the tile says."""
        shape, t = matmul_shape(spec), integers(spec, choice, FIELDS)
        staged = ["astage"] if t["stage"] == STAGE_TASK else []
        packed = [] if shape.b_is_constant else ["bpack"]
        moves.inline_all(sch, frozenset({"acc", *staged, *packed}))
        acc, out = sch.get_sblock("acc"), moves.output_block(sch)
        views.undo(sch, out, spec.tensors[spec.outputs[0]].shape, (*shape.batch, shape.m, shape.n))
        *batch, m, nb, v, k = sch.get_loops(acc)
        mo, mi, mr = sch.split(m, [None, t["tm"], t["rm"]])
        no, nc = sch.split(nb, [None, t["tc"]])
        vo, vi = sch.split(v, [None, t["v"]])
        sch.reorder(*batch, mo, no, nc, mi, k, mr, vo, vi)
        task = sch.fuse(*batch, mo, no)
        sch.parallel(task)
        sch.unroll(mr)
        sch.unroll(vo)
        sch.vectorize(vi)
        sch.reverse_compute_at(out, mi, preserve_unit_loops=True)
        loops = sch.get_loops(out)
        sch.unroll(loops[-2])
        moves.vectorize_inner(sch, loops[-1], t["v"], unroll=True)
        if staged:
            sch.compute_at(sch.get_sblock("astage"), task, preserve_unit_loops=True)
        if packed:
            moves.stage_copy(sch, "bpack", None, t["v"])
        sch.decompose_reduction(acc, k)


def _keeps_rows(spec: GroupSpec, anchor: Operator) -> bool:
    """Say whether the group has one output, of the anchor's rows in their order; what is above a row may be viewed."""
    if len(spec.outputs) != 1:
        return False
    found, wanted = (spec.tensors[name].shape for name in (spec.outputs[0], anchor.outputs[0]))
    if found == wanted:
        return True
    if len(spec.tensors[anchor.inputs[1]].shape) > 2 and not views.are_alike(found, wanted):
        return False
    after = [operator for operator in spec.operators if operator.index >= anchor.index]
    shapes = [spec.tensors[operator.outputs[0]].shape for operator in after]
    is_in_order = all(operator.op_type != "Transpose" for operator in after)
    return is_in_order and all(shape[-1:] == wanted[-1:] and prod(shape) == prod(wanted) for shape in shapes)


def _computes_a(spec: GroupSpec) -> bool:
    """Say whether the group computes A's elements; a view of an argument is read in place."""
    return views.source_of(spec, anchor_of(spec, OP_TYPES).inputs[0]) not in spec.inputs


def _rows(m: int, room: int) -> list[int]:
    """Return register row counts: the largest that waste little, most rows first."""
    found = [rm for rm in range(1, min(m, max(room, 1)) + 1) if round_up(m, rm) <= 1.15 * m]
    return sorted(found, key=lambda rm: -rm * m / round_up(m, rm))[:4] or [1]


TEMPLATE = Matmul()
