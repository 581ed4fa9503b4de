"""Winograd convolution, 3×3 and stride 1: fewer multiplications for more additions and larger weights.

Stages: `rows` and `vee` transform the input (Bᵀ d B, down and across); `acc` multiplies, one matrix product a tap of
the transformed tile; `down` and `tile` transform back (Aᵀ M A); then the epilogue. Either a task takes `th` tile rows
through all stages, and what lies between them stays in its cache (`stage` 1); or all tasks transform, then multiply,
then transform back, `tc` channel blocks a task (`stage` 2), which reads every transformed weight once.
`pad` holds the input with its borders where operators come before the convolution.

An infinity or NaN in the input spreads over the whole tile of outputs, not only over those that read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from mapper.records import Choice, GroupSpec, MachineModel, Prediction
from mapper.templates import moves
from mapper.templates.convshape import CONV, STAGE_ROOT, STAGE_TASK, ConvShape, conv_shape
from mapper.templates.protocol import Convert, Packing
from mapper.templates.tiles import (
    anchor_of,
    boundary_traffic,
    ceil_div,
    fma_efficiency,
    integers,
    keeps_shape,
    require,
    require_counts,
    require_vectors,
    roof,
    sole_operator,
    tail_efficiency,
)
from mapper.templates.winogradshape import (
    KERNEL,
    POINTS,
    Tiling,
    channel_lanes,
    grain_choices,
    input_sums,
    is_worthwhile,
    moved_bytes,
    output_sums,
    product_flops,
    register_choices,
    tiling,
    transform_flops,
    transform_kernels,
)

FIELDS = ("m", "v", "vb", "rw", "rh", "th", "tc", "stage")
LEAST_LANES = 4  # narrower vectors of input channels lose in the transforms what the products win
# Share of the FMA peak that the transforms sustain: additions, and about as many loads and stores. Source: measured
# on a Sapphire Rapids VM, 64 to 256 channels.
TRANSFORM_EFFICIENCY = 0.2
CHUNK = 4  # vectors of input channels that a task of the input's phase transforms


@dataclass(frozen=True, slots=True)
class Winograd:
    """The template value; see the module's docstring."""

    name: str = "winograd"

    def matches(self, spec: GroupSpec) -> bool:
        """Take dense float32 3×3 convolutions of stride 1 with constant weights, where a tile size saves enough."""
        anchor = sole_operator(spec, CONV)
        if anchor is None or not keeps_shape(spec, anchor) or anchor.inputs[1] not in spec.weights:
            return False
        if spec.tensors[anchor.inputs[0]].dtype != "float32" or len(spec.tensors[anchor.inputs[0]].shape) != 4:
            return False
        shape = conv_shape(spec)
        is_plain = shape.stride_h == shape.stride_w == shape.dilation_h == shape.dilation_w == shape.groups == 1
        is_plain = is_plain and shape.kh == shape.kw == KERNEL and shape.ci % LEAST_LANES == 0
        return is_plain and any(is_worthwhile(shape, m) for m in POINTS)

    def choices(self, spec: GroupSpec, machine: MachineModel, layouts: tuple[str, ...]) -> tuple[Choice, ...]:
        """Enumerate tile sizes that save enough, register tiles, and task grains."""
        shape = conv_shape(spec)
        found = []
        for m in (m for m in POINTS if is_worthwhile(shape, m)):
            for register in register_choices(shape, m, machine):
                for grain in grain_choices(shape, m, register, machine):
                    found.append(Choice(template=self.name, layouts=layouts, tile={"m": m, **register, **grain}))
        return tuple(found)

    def check(self, spec: GroupSpec, choice: Choice) -> None:
        """Check divisibility; see `tiles.require`."""
        shape, t = conv_shape(spec), integers(spec, choice, FIELDS)
        require(spec, t["m"] in POINTS, f"m = {t['m']} must be 2 or 4")
        require_counts(spec, t)
        require_vectors(spec, t)
        require(spec, t["stage"] in (STAGE_TASK, STAGE_ROOT), f"stage = {t['stage']} must be 1 (task) or 2 (root)")
        require(spec, t["th"] % t["rh"] == 0, f"rh = {t['rh']} must divide th = {t['th']} tile rows")
        blocks = ceil_div(shape.co, t["vb"])
        require(spec, blocks % t["tc"] == 0, f"tc = {t['tc']} must divide {blocks} channel blocks")

    def cost(self, spec: GroupSpec, choice: Choice, machine: MachineModel) -> Prediction:
        """Predict from the products' register tile, the transforms, the fill of the threads, and what moves between."""
        shape, t = conv_shape(spec), integers(spec, choice, FIELDS)
        tiles, channels = _tiling(shape, t), ceil_div(shape.co, t["vb"]) * t["vb"]
        products, transforms = product_flops(shape, tiles, channels), transform_flops(shape, tiles, channels)
        rows, vectors = t["rw"] * t["rh"], t["vb"] // t["v"]
        product_efficiency = fma_efficiency(rows, vectors, t["v"], machine) * (1 - 8.0 / (shape.ci + 8.0))
        executed = products + transforms
        efficiency = executed / (products / product_efficiency + transforms / TRANSFORM_EFFICIENCY)
        strips = shape.n * tiles.rows // t["th"]
        tasks = strips if t["stage"] == STAGE_TASK else tiles.taps**2 * (channels // t["vb"] // t["tc"])
        in_strip = t["stage"] == STAGE_TASK
        traffic = boundary_traffic(spec, machine)
        for level, moved_b in moved_bytes(shape, tiles, channels, strips if in_strip else 0, machine):
            traffic[level] = traffic.get(level, 0.0) + moved_b
        return roof(
            machine,
            executed_flops=executed,
            efficiency=efficiency * tail_efficiency(tasks, machine.threads),
            traffic_b=traffic,
            launches=1 if in_strip else 3,
        )

    def packings(self, spec: GroupSpec, choice: Choice) -> Mapping[str, Packing]:
        """Transform kernels (co, ci, 3, 3) in float64 and pack them as (taps², co/vb, ci, vb), filled up with zeros."""
        shape, m, vb = conv_shape(spec), int(choice.tile["m"]), int(choice.tile["vb"])
        blocks, taps = ceil_div(shape.co, vb), (m + KERNEL - 1) ** 2

        def pack(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            full = np.zeros((taps, blocks * vb, shape.ci), weight.dtype)
            full[:, : shape.co] = transform_kernels(weight, m).reshape(taps, shape.co, shape.ci)
            return np.ascontiguousarray(full.reshape(taps, blocks, vb, shape.ci).transpose(0, 1, 3, 2))

        return {anchor_of(spec, CONV).inputs[1]: Packing(shape=(taps, blocks, shape.ci, vb), pack=pack)}

    def converters(self, spec: GroupSpec, choice: Choice) -> Mapping[int, Convert]:
        """Emit the anchor as transforms and products in tensor expressions."""
        shape, tile = conv_shape(spec), {name: int(value) for name, value in choice.tile.items()}

        def convert(builder: Any, inputs: list[Any], _attributes: Mapping[str, Any]) -> Any:
            tensors = [item for item in inputs[:3] if item is not None]
            return builder.emit_te(lambda *args: _stages(shape, tile, *args), *tensors, primfunc_name_hint="winograd")

        return {anchor_of(spec, CONV).index: convert}

    def apply(self, sch: Any, spec: GroupSpec, choice: Choice) -> None:
        """Tile, stage, vectorize and parallelize as the tile says."""
        t, anchor = integers(spec, choice, FIELDS), anchor_of(spec, CONV)
        # without operators before it, reading the input where it lies is 3 to 7 % faster than a padded copy
        has_pad = anchor.inputs[0] not in spec.inputs
        moves.inline_all(sch, frozenset({"rows", "vee", "acc", "down", "tile", *(("pad",) if has_pad else ())}))
        lanes = channel_lanes(conv_shape(spec).ci, t["v"])
        if t["stage"] == STAGE_TASK:
            task = _apply_strips(sch, choice, t, lanes)
        else:
            task = _apply_phases(sch, choice, t, lanes)
        if has_pad:
            moves.stage_copy(sch, "pad", task, lanes)


def _tiling(shape: ConvShape, t: Mapping[str, int]) -> Tiling:
    return tiling(shape, t["m"], t["th"], t["rw"])


def _apply_strips(sch: Any, choice: Choice, t: Mapping[str, int], lanes: int) -> Any:
    """Take `th` tile rows a task through all stages; return the task's loop."""
    acc, vee, tile = (sch.get_sblock(name) for name in ("acc", "vee", "tile"))
    n, h, w, cb, *inner = sch.get_loops(tile)
    ho, hi = sch.split(h, [None, t["th"]])
    sch.reorder(n, ho, hi, w, cb)
    task = sch.fuse(n, ho)
    sch.parallel(task)
    _transform_back(sch, choice, t["v"], cb, inner)
    sch.compute_at(acc, task, preserve_unit_loops=True)
    reduction = _multiply(sch, acc, t)
    sch.compute_at(vee, task, preserve_unit_loops=True)
    a, b, n, h, w, c = sch.get_loops(vee)[-6:]
    co, ci = sch.split(c, [None, lanes])
    sch.reorder(n, h, a, w, co, b, ci)
    _transform(sch, h, b, ci, lanes)
    sch.decompose_reduction(acc, reduction)
    return task


def _apply_phases(sch: Any, choice: Choice, t: Mapping[str, int], lanes: int) -> Any:
    """Run the stages one after the other, each over all tasks; return the loop of those that transform the input."""
    acc, vee, tile = (sch.get_sblock(name) for name in ("acc", "vee", "tile"))
    a, b, n, h, w, c = sch.get_loops(vee)
    vectors = moves.extent(sch, c) // lanes
    chunk, co, ci = sch.split(c, [None, max(size for size in range(1, CHUNK + 1) if vectors % size == 0), lanes])
    sch.reorder(n, h, chunk, a, w, co, b, ci)
    task = sch.fuse(n, h, chunk)
    sch.parallel(task)
    _transform(sch, task, b, ci, lanes)
    reduction = _multiply(sch, acc, t)
    ab, cb = sch.get_loops(acc)[:2]
    cbo, _ = sch.split(cb, [None, t["tc"]])
    sch.parallel(sch.fuse(ab, cbo))
    n, h, w, cb, *inner = sch.get_loops(tile)
    cbo, cbi = sch.split(cb, [None, t["tc"]])
    sch.reorder(n, h, cbo, cbi, w)
    sch.parallel(sch.fuse(n, h, cbo))
    _transform_back(sch, choice, t["v"], w, inner)
    sch.decompose_reduction(acc, reduction)
    return task


def _transform(sch: Any, row: Any, taps: Any, vector: Any, lanes: int) -> None:
    """Write all sums of `vee` at once, and compute its `rows` below the loop of a tile row, likewise."""
    sch.unroll(taps)
    sch.vectorize(vector)
    rows = sch.get_sblock("rows")
    sch.compute_at(rows, row, preserve_unit_loops=True)
    a, w, c = sch.get_loops(rows)[-3:]
    co, ci = sch.split(c, [None, lanes])
    sch.reorder(w, co, a, ci)
    sch.unroll(a)
    sch.vectorize(ci)


def _multiply(sch: Any, acc: Any, t: Mapping[str, int]) -> Any:
    """Tile the products of each tap for the registers; return the reduction's loop."""
    ab, n, h, w, cb, v, ci = sch.get_loops(acc)[-7:]
    ho, hr = sch.split(h, [None, t["rh"]])
    wo, wr = sch.split(w, [None, t["rw"]])
    vo, vi = sch.split(v, [None, t["v"]])
    sch.reorder(ab, cb, n, ho, wo, ci, hr, wr, vo, vi)
    for loop in (hr, wr, vo):
        sch.unroll(loop)
    sch.vectorize(vi)
    return ci


def _transform_back(sch: Any, choice: Choice, lanes: int, block: Any, inner: list[Any]) -> None:
    """Transform back one vector of channels of a tile at a time; store the tile, epilogue applied, below `block`."""
    out, down = moves.output_block(sch), sch.get_sblock("down")
    i, j, v = inner
    vo, vi = sch.split(v, [None, lanes])
    sch.reorder(vo, i, j, vi)
    sch.compute_at(down, vo, preserve_unit_loops=True)
    di, db, dv = sch.get_loops(down)[-3:]
    sch.reorder(db, di, dv)
    for loop in (i, j, di, db):
        sch.unroll(loop)
    sch.vectorize(vi)
    sch.vectorize(dv)
    sch.reverse_compute_at(out, block, preserve_unit_loops=True)
    moves.store_tile(sch, out, choice.layouts[-1], lanes, 4)


def _stages(shape: ConvShape, t: Mapping[str, int], x: Any, weight: Any, bias: Any = None) -> Any:
    """Return the convolution as tensor expressions: `pad` to `tile`, then `conv_out` in ONNX order."""
    from tvm import te, tirx  # noqa: PLC0415 TVM only where a worker runs it

    m, vb, tiles, blocks = t["m"], t["vb"], _tiling(shape, t), ceil_div(shape.co, t["vb"])
    taps, grid = tiles.taps, (shape.n, tiles.rows, tiles.columns)
    height, width = (size * m + KERNEL - 1 for size in grid[1:])
    top, left = shape.pad_top, shape.pad_left

    def padded(n: Any, h: Any, w: Any, c: Any) -> Any:
        inside = tirx.all(h >= top, h < shape.ih + top, w >= left, w < shape.iw + left)
        return tirx.if_then_else(inside, x[n, c, h - top, w - left], tirx.const(0.0, x.dtype))

    def pick(index: Any, sums: list[Any]) -> Any:
        """Choose by an index that the schedule unrolls, so that one sum is left of them."""
        last = len(sums) - 1
        return reduce(lambda rest, k: tirx.if_then_else(index == k, sums[k], rest), range(last - 1, -1, -1), sums[last])

    def column(read: Any) -> list[Any]:
        return [read(k) for k in range(taps)]

    pad = te.compute((shape.n, height, width, shape.ci), padded, name="pad")
    rows = te.compute(
        (shape.n, tiles.rows, taps, width, shape.ci),
        lambda n, h, a, w, c: pick(a, input_sums(column(lambda k: pad[n, h * m + k, w, c]))),
        name="rows",
    )
    vee = te.compute(
        (taps, taps, *grid, shape.ci),
        lambda a, b, n, h, w, c: pick(b, input_sums(column(lambda k: rows[n, h, a, w * m + k, c]))),
        name="vee",
    )
    ci = te.reduce_axis((0, shape.ci), "ci")
    acc = te.compute(
        (taps**2, *grid, blocks, vb),
        lambda ab, n, h, w, cb, v: te.sum(vee[ab // taps, ab % taps, n, h, w, ci] * weight[ab, cb, ci, v], axis=[ci]),
        name="acc",
    )
    down = te.compute(
        (*grid, blocks, m, taps, vb),
        lambda n, h, w, cb, i, b, v: pick(i, output_sums(column(lambda k: acc[k * taps + b, n, h, w, cb, v]))),
        name="down",
    )
    tile = te.compute(
        (*grid, blocks, m, m, vb),
        lambda n, h, w, cb, i, j, v: pick(j, output_sums(column(lambda k: down[n, h, w, cb, i, k, v]))),
        name="tile",
    )

    def out(n: Any, c: Any, h: Any, w: Any) -> Any:
        value = tile[n, h // m, w // m, c // vb, h % m, w % m, c % vb]
        return value if bias is None else value + bias[c]

    return te.compute((shape.n, shape.co, shape.oh, shape.ow), out, name="conv_out")


TEMPLATE = Winograd()
