"""Direct convolution (also 1×1 and grouped, one or two spatial axes) over packed weights and a register tile.

The anchor computes `acc[n, oh, ow, cb, v]`: channel blocks of `vb` lanes innermost, whatever the layout of the tensors
outside. `th·rh` output rows form a task; a `rh·rw` × `vb` tile of accumulators stays in registers over the whole
reduction (kh, kw, ci). Input is staged into a padded NHWC scratch: per task, once for the kernel, or not at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from mapper.records import Choice, GroupSpec, MachineModel, Operator, Prediction
from mapper.templates import moves
from mapper.templates.protocol import Convert, Packing
from mapper.templates.tiles import (
    FLOAT32_B,
    anchor_of,
    boundary_traffic,
    ceil_div,
    divisors,
    fma_efficiency,
    integers,
    require,
    resident_level,
    roof,
    round_up,
    sole_operator,
    tail_efficiency,
)

CONV = frozenset({"Conv"})
FIELDS = ("v", "vb", "rw", "rh", "th", "tc", "stage", "ku")
STAGE_NONE, STAGE_TASK, STAGE_ROOT = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvShape:
    """A convolution as numbers; one spatial axis counts as height 1."""

    n: int
    ci: int
    co: int
    ih: int
    iw: int
    oh: int
    ow: int
    kh: int
    kw: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    pad_top: int
    pad_left: int
    pad_bottom: int
    pad_right: int
    groups: int
    rank: int

    @property
    def ci_group(self) -> int:
        """Input channels of one group."""
        return self.ci // self.groups

    @property
    def co_group(self) -> int:
        """Output channels of one group."""
        return self.co // self.groups

    @property
    def is_pointwise(self) -> bool:
        """Whether every output pixel reads one unpadded input pixel."""
        pads = self.pad_top + self.pad_left + self.pad_bottom + self.pad_right
        return self.kh == self.kw == 1 and pads == 0


def conv_shape(spec: GroupSpec) -> ConvShape:
    """Read the shape of the group's anchor convolution."""
    anchor = anchor_of(spec, CONV)
    x, w, y = (spec.tensors[name].shape for name in (anchor.inputs[0], anchor.inputs[1], anchor.outputs[0]))
    spatial = len(x) - 2
    ints = {name: _ints(anchor, name, default, spatial) for name, default in (("strides", 1), ("dilations", 1))}
    pads = _ints(anchor, "pads", 0, 2 * spatial)
    lead = (0,) * (2 - spatial)
    one = (1,) * (2 - spatial)
    begins, ends = lead + pads[:spatial], lead + pads[spatial:]
    strides, dilations = one + ints["strides"], one + ints["dilations"]
    (ih, iw), (oh, ow), (kh, kw) = one + x[2:], one + y[2:], one + w[2:]
    return ConvShape(
        n=x[0],
        ci=x[1],
        co=y[1],
        ih=ih,
        iw=iw,
        oh=oh,
        ow=ow,
        kh=kh,
        kw=kw,
        stride_h=strides[0],
        stride_w=strides[1],
        dilation_h=dilations[0],
        dilation_w=dilations[1],
        pad_top=begins[0],
        pad_left=begins[1],
        pad_bottom=ends[0],
        pad_right=ends[1],
        groups=_int(anchor, "group", 1),
        rank=len(x),
    )


def _ints(operator: Operator, name: str, default: int, count: int) -> tuple[int, ...]:
    value = operator.attributes.get(name)
    return tuple(int(item) for item in value) if isinstance(value, list | tuple) else (default,) * count


def _int(operator: Operator, name: str, default: int) -> int:
    value = operator.attributes.get(name, default)
    return value if isinstance(value, int) else default


@dataclass(frozen=True, slots=True)
class Conv2d:
    """The template value; see the module's docstring."""

    name: str = "conv2d"

    def matches(self, spec: GroupSpec) -> bool:
        """Take float32 convolutions with constant weights that are not depthwise."""
        anchor = sole_operator(spec, CONV)
        if anchor is None or len(spec.outputs) != 1 or anchor.inputs[1] not in spec.weights:
            return False
        if spec.tensors[anchor.inputs[0]].dtype != "float32" or len(spec.tensors[anchor.inputs[0]].shape) not in (3, 4):
            return False
        return not is_depthwise(conv_shape(spec))

    def choices(self, spec: GroupSpec, machine: MachineModel, layouts: tuple[str, ...]) -> tuple[Choice, ...]:
        """Enumerate register tiles that fit the registers and divide the image, at each task grain and staging."""
        shape = conv_shape(spec)
        found = []
        for v, vb in _channel_blocks(shape, machine):
            for rw, rh in _rows_of(shape, machine.vector_registers, v, vb):
                for stage, th, tc in _task_grains(shape, spec, rw, rh, vb, machine):
                    tile = {"v": v, "vb": vb, "rw": rw, "rh": rh, "th": th, "tc": tc, "stage": stage, "ku": 1}
                    found.append(Choice(template=self.name, layouts=layouts, tile=tile))
        return tuple(found)

    def check(self, spec: GroupSpec, choice: Choice) -> None:
        """Check divisibility; see `tiles.require`."""
        shape, t = conv_shape(spec), integers(spec, choice, FIELDS)
        require(
            spec, all(t[name] >= 1 for name in FIELDS if name != "stage"), "every field but stage must be 1 or more"
        )
        require(spec, t["vb"] % t["v"] == 0, f"v = {t['v']} must divide vb = {t['vb']}")
        require(spec, t["v"] & (t["v"] - 1) == 0, f"v = {t['v']} must be a power of two")
        require(spec, t["stage"] in (0, 1, 2), f"stage = {t['stage']} must be 0 (none), 1 (task) or 2 (root)")
        rows = ceil_div(shape.oh, t["rh"])
        require(spec, rows % t["th"] == 0, f"th = {t['th']} must divide {rows} row tiles")
        blocks = _blocks(shape, t["vb"])
        require(spec, blocks % t["tc"] == 0, f"tc = {t['tc']} must divide {blocks} channel blocks")
        require(
            spec,
            _is_aligned(shape, t["vb"]) or (t["stage"] == STAGE_TASK and _is_exact(shape, t) and shape.rank == 4),
            f"vb = {t['vb']} does not divide the {shape.co_group} output channels of a group, "
            "so stage must be 1 (task) and the tile must divide the image",
        )
        require(spec, shape.ci_group % t["ku"] == 0, f"ku = {t['ku']} must divide {shape.ci_group} input channels")
        exact = shape.oh % t["rh"] == 0 and shape.ow % t["rw"] == 0
        require(
            spec, t["stage"] != 0 or (exact and _unpadded(shape)), "stage = 0 needs an unpadded, exactly tiled input"
        )

    def cost(self, spec: GroupSpec, choice: Choice, machine: MachineModel) -> Prediction:
        """Predict from the register tile's port use, the fill of the threads, and weight and input traffic."""
        shape, t = conv_shape(spec), integers(spec, choice, FIELDS)
        rows, vectors = t["rw"] * t["rh"], t["vb"] // t["v"]
        ohp, owp = round_up(shape.oh, t["rh"]), round_up(shape.ow, t["rw"])
        blocks = _blocks(shape, t["vb"])
        reduction = shape.kh * shape.kw * shape.ci_group
        executed = 2.0 * shape.n * ohp * owp * blocks * t["vb"] * reduction
        tasks = shape.n * (ohp // (t["rh"] * t["th"])) * (blocks // t["tc"] if t["stage"] != STAGE_TASK else 1)
        efficiency = fma_efficiency(rows, vectors, t["v"], machine) * tail_efficiency(tasks, machine.threads)
        efficiency *= 1 - 4.0 / (reduction + 4.0)  # start and drain of the accumulators
        weights_b = FLOAT32_B * blocks * t["vb"] * reduction
        block_b = FLOAT32_B * t["vb"] * reduction
        sweeps = (
            tasks
            if block_b <= machine.cache_b["L2"] / 2
            else tasks * (ohp // t["rh"]) * (owp // t["rw"]) // max(1, tasks)
        )
        traffic = boundary_traffic(spec, machine)
        weight_level = resident_level(weights_b, machine)
        share = t["tc"] / blocks if t["stage"] != STAGE_TASK else 1.0
        traffic[weight_level] = traffic.get(weight_level, 0.0) + weights_b * share * sweeps
        per_tile_b = FLOAT32_B * reduction * (t["vb"] + rows)
        traffic["L1" if block_b <= machine.cache_b["L1"] / 2 else "L2"] = (
            per_tile_b * executed / (2.0 * rows * t["vb"] * reduction)
        )
        staged_b = 0 if t["stage"] == STAGE_NONE else 2 * FLOAT32_B * _staged_elements(shape, t)
        traffic["L2"] = traffic.get("L2", 0.0) + staged_b
        return roof(
            machine,
            executed_flops=executed,
            efficiency=efficiency,
            traffic_b=traffic,
            launches=2 if t["stage"] == STAGE_ROOT else 1,
        )

    def packings(self, spec: GroupSpec, choice: Choice) -> Mapping[str, Packing]:
        """Pack (co, ci/g, kh, kw) as (co/vb, kh, kw, ci/g, vb), the last block of each group filled up with zeros."""
        shape, vb = conv_shape(spec), int(choice.tile["vb"])
        blocks = _blocks(shape, vb)
        packed = (blocks, shape.kh, shape.kw, shape.ci_group, vb)

        def pack(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            kernel = (shape.ci_group, shape.kh, shape.kw)
            full = np.zeros((shape.groups, blocks * vb // shape.groups, *kernel), weight.dtype)
            full[:, : shape.co_group] = weight.reshape(shape.groups, shape.co_group, *kernel)
            cut = full.reshape(blocks, vb, shape.ci_group, shape.kh, shape.kw)
            return np.ascontiguousarray(cut.transpose(0, 3, 4, 2, 1))

        return {anchor_of(spec, CONV).inputs[1]: Packing(shape=packed, pack=pack)}

    def converters(self, spec: GroupSpec, choice: Choice) -> Mapping[int, Convert]:
        """Emit the anchor as pad, accumulate and crop stages in tensor expressions."""
        shape, tile = conv_shape(spec), {name: int(value) for name, value in choice.tile.items()}

        def convert(builder: Any, inputs: list[Any], _attributes: Mapping[str, Any]) -> Any:
            tensors = [item for item in inputs[:3] if item is not None]
            return builder.emit_te(lambda *args: _stages(shape, tile, *args), *tensors, primfunc_name_hint="conv2d")

        return {anchor_of(spec, CONV).index: convert}

    def apply(self, sch: Any, spec: GroupSpec, choice: Choice) -> None:
        """Tile, stage, vectorize and parallelize as the tile says."""
        shape, t = conv_shape(spec), integers(spec, choice, FIELDS)
        keep = {"acc"} if t["stage"] == STAGE_NONE else {"acc", "pad"}
        moves.inline_all(sch, frozenset(keep))
        acc, out = sch.get_sblock("acc"), moves.output_block(sch)
        if not _is_aligned(shape, t["vb"]):
            _apply_collected(sch, shape, choice, t)
            return
        n, h, w, cb, v, kh, kw, ci = sch.get_loops(acc)
        ho, hi, hr = sch.split(h, [None, t["th"], t["rh"]])
        wo, wr = sch.split(w, [None, t["rw"]])
        co, cc = sch.split(cb, [None, t["tc"]])
        vo, vi = sch.split(v, [None, t["v"]])
        if t["stage"] == STAGE_TASK:
            sch.reorder(n, ho, co, cc, hi, wo, kh, kw, ci, hr, wr, vo, vi)
            task = sch.fuse(n, ho)
        else:
            sch.reorder(n, co, ho, cc, hi, wo, kh, kw, ci, hr, wr, vo, vi)
            task = sch.fuse(n, co, ho)
        sch.parallel(task)
        _unroll_channels(sch, ci, t["ku"])
        for loop in (hr, wr, vo):
            sch.unroll(loop)
        sch.vectorize(vi)
        sch.reverse_compute_at(out, wo, preserve_unit_loops=True)
        moves.store_tile(sch, out, choice.layouts[-1], t["v"], shape.rank)
        if t["stage"] != STAGE_NONE:
            moves.stage_copy(sch, "pad", task if t["stage"] == STAGE_TASK else None, t["v"])
        sch.decompose_reduction(acc, kh)


def _apply_collected(sch: Any, shape: ConvShape, choice: Choice, t: Mapping[str, int]) -> None:
    """Schedule a grouped convolution whose groups end inside a vector: tiles are collected, then dealt out."""
    acc = sch.get_sblock("acc")
    task = moves.task_from_output(sch, acc, t["th"] * t["rh"], choice.layouts[-1], (t["v"], shape.co_group))
    h, w, cb, v, kh, kw, ci = sch.get_loops(acc)[-7:]
    hi, hr = sch.split(h, [None, t["rh"]])
    wo, wr = sch.split(w, [None, t["rw"]])
    vo, vi = sch.split(v, [None, t["v"]])
    sch.reorder(cb, hi, wo, kh, kw, ci, hr, wr, vo, vi)
    for loop in (hr, wr, vo):
        sch.unroll(loop)
    sch.vectorize(vi)
    moves.keep_in_registers(sch, acc, wo, t["v"])
    moves.stage_copy(sch, "pad", task, t["v"])
    sch.decompose_reduction(acc, kh)


def is_depthwise(shape: ConvShape) -> bool:
    """Say whether each input channel has an output channel of its own."""
    return shape.groups > 1 and shape.ci_group == 1 and shape.co_group == 1


def _blocks(shape: ConvShape, vb: int) -> int:
    """Return the channel blocks of all groups; each group fills up its own last block."""
    return shape.groups * ceil_div(shape.co_group, vb)


def _is_aligned(shape: ConvShape, vb: int) -> bool:
    """Say whether output channel c simply lies at block c // vb, lane c % vb."""
    return shape.groups == 1 or shape.co_group % vb == 0


def _is_exact(shape: ConvShape, t: Mapping[str, int]) -> bool:
    return shape.oh % t["rh"] == 0 and shape.ow % t["rw"] == 0


def _unpadded(shape: ConvShape) -> bool:
    return shape.pad_top + shape.pad_left + shape.pad_bottom + shape.pad_right == 0


def _staged_elements(shape: ConvShape, t: Mapping[str, int]) -> int:
    rows = t["rh"] * t["th"] if t["stage"] == STAGE_TASK else round_up(shape.oh, t["rh"])
    tasks = round_up(shape.oh, t["rh"]) // rows
    height = (rows - 1) * shape.stride_h + (shape.kh - 1) * shape.dilation_h + 1
    width = (round_up(shape.ow, t["rw"]) - 1) * shape.stride_w + (shape.kw - 1) * shape.dilation_w + 1
    return shape.n * tasks * height * width * shape.ci


def _channel_blocks(shape: ConvShape, machine: MachineModel) -> list[tuple[int, int]]:
    """Return (v, vb): register vectors and channel blocks that suit the output channels of one group."""
    lanes, channels = machine.vector_lanes_f32, shape.co_group
    while lanes > 1 and lanes // 2 >= channels:
        lanes //= 2
    found = []
    if shape.rank == 3 and shape.groups > 1:
        return [(_dividing(lanes, vb), vb) for vb in divisors(channels, 8 * lanes)[-3:]]
    for vectors in (1, 2, 3, 4, 6):
        vb = vectors * lanes
        if vb <= round_up(channels, lanes) and (round_up(channels, vb) <= 1.15 * channels or vectors == 1):
            found.append((lanes, vb))
    if round_up(channels, lanes) == round_up(channels, 2 * lanes):
        found.append((lanes, 2 * lanes))
    half = lanes // 2
    if half >= 4 and round_up(channels, lanes) > 1.15 * channels >= round_up(channels, half):
        found.append((half, half * min(4, ceil_div(channels, half))))
    return list(dict.fromkeys(found))


def _dividing(lanes: int, size: int) -> int:
    """Return the widest power of two up to `lanes` that divides `size`."""
    while size % lanes:
        lanes //= 2
    return lanes


def _register_rows(shape: ConvShape, registers: int, vectors: int) -> list[tuple[int, int]]:
    """Return (rw, rh) that fit the register file beside the weights and waste little of the image.

    A tile is one row of pixels, unless the whole row is so short that several fit.
    """
    room = max(1, (registers - vectors - 1) // vectors)
    found = []
    for rw in range(1, min(shape.ow, room) + 1):
        for rh in range(1, min(shape.oh, room // rw, 8 if rw > 1 else room) + 1):
            if rh > 1 and rw < shape.ow and (rh > 2 or shape.ow > 16):
                continue
            waste = _padded(shape, (rw, rh)) / (shape.ow * shape.oh)
            if waste <= 1.2 and (rw * rh * vectors >= 6 or rw * rh == min(shape.ow * shape.oh, room)):
                found.append((rw, rh))
    found.sort(key=lambda rows: (-rows[0] * rows[1] * (shape.ow * shape.oh) / _padded(shape, rows), rows[1]))
    return found[:6] or [(1, 1)]


def _rows_of(shape: ConvShape, registers: int, v: int, vb: int) -> list[tuple[int, int]]:
    """Return the register rows for a channel block; where groups end inside a vector they must divide the image."""
    rows = _register_rows(shape, registers, vb // v)
    if _is_aligned(shape, vb):
        return rows
    room = max(1, (registers - vb // v - 1) // (vb // v))
    exact = [pair for pair in rows if _is_exact(shape, {"rw": pair[0], "rh": pair[1]})]
    return exact or [(divisors(shape.ow, room)[-1], 1)]


def _padded(shape: ConvShape, rows: tuple[int, int]) -> int:
    return round_up(shape.ow, rows[0]) * round_up(shape.oh, rows[1])


def _task_grains(
    shape: ConvShape, spec: GroupSpec, rw: int, rh: int, vb: int, machine: MachineModel
) -> list[tuple[int, int, int]]:
    """Return (stage, th, tc): task heights and channel shares that leave every thread something to do."""
    row_tiles = ceil_div(shape.oh, rh)
    blocks = _blocks(shape, vb)
    exact = shape.oh % rh == 0 and shape.ow % rw == 0
    has_prologue = anchor_of(spec, CONV).inputs[0] not in spec.inputs
    grains = []
    heights = [th for th in divisors(row_tiles) if th * rh <= 32]
    if not _is_aligned(shape, vb):
        return [(STAGE_TASK, th, blocks) for th in heights[:5]] if exact and shape.rank == 4 else []
    for th in heights[:5]:
        tasks = shape.n * row_tiles // th
        if not (exact and _unpadded(shape) and not has_prologue and shape.is_pointwise) or tasks >= machine.threads:
            grains.append((STAGE_TASK, th, blocks))
    shares = [tc for tc in divisors(blocks) if blocks // tc <= 16]
    stages = [STAGE_ROOT]
    if exact and _unpadded(shape) and not has_prologue:
        stages.append(STAGE_NONE)
    for stage, th, tc in product(stages, sorted({1, heights[-1], row_tiles}), shares[:3]):
        if row_tiles // th * (blocks // tc) >= min(machine.threads, row_tiles * blocks):
            grains.append((stage, th, tc))
    return grains


def _stages(shape: ConvShape, t: Mapping[str, int], x: Any, weight: Any, bias: Any = None) -> Any:
    """Return the convolution as tensor expressions: `pad`, `acc`, `conv_out` in ONNX order."""
    from tvm import te, tirx  # noqa: PLC0415 TVM only where a worker runs it

    ohp, owp = round_up(shape.oh, t["rh"]), round_up(shape.ow, t["rw"])
    ihp = (ohp - 1) * shape.stride_h + (shape.kh - 1) * shape.dilation_h + 1
    iwp = (owp - 1) * shape.stride_w + (shape.kw - 1) * shape.dilation_w + 1
    top, left = shape.pad_top, shape.pad_left
    covered = top == left == 0 and ihp <= shape.ih and iwp <= shape.iw
    blocks_per_group = _blocks(shape, t["vb"]) // shape.groups

    def read(n: Any, c: Any, h: Any, w: Any) -> Any:
        return x[n, c, h, w] if shape.rank == 4 else x[n, c, w]

    def padded(n: Any, h: Any, w: Any, c: Any) -> Any:
        if covered:
            return read(n, c, h, w)
        inside = tirx.all(h >= top, h < shape.ih + top, w >= left, w < shape.iw + left)
        return tirx.if_then_else(inside, read(n, c, h - top, w - left), tirx.const(0.0, x.dtype))

    pad = te.compute((shape.n, ihp, iwp, shape.ci), padded, name="pad")
    kh = te.reduce_axis((0, shape.kh), "kh")
    kw = te.reduce_axis((0, shape.kw), "kw")
    ci = te.reduce_axis((0, shape.ci_group), "ci")
    acc = te.compute(
        (shape.n, ohp, owp, _blocks(shape, t["vb"]), t["vb"]),
        lambda n, h, w, cb, v: te.sum(
            pad[
                n,
                h * shape.stride_h + kh * shape.dilation_h,
                w * shape.stride_w + kw * shape.dilation_w,
                ci if shape.groups == 1 else (cb // blocks_per_group) * shape.ci_group + ci,
            ]
            * weight[cb, kh, kw, ci, v],
            axis=[kh, kw, ci],
        ),
        name="acc",
    )

    def out(n: Any, c: Any, h: Any, w: Any) -> Any:
        inner = c if _is_aligned(shape, t["vb"]) else c % shape.co_group
        first = 0 if _is_aligned(shape, t["vb"]) else c // shape.co_group * blocks_per_group
        value = acc[n, h, w, first + inner // t["vb"], inner % t["vb"]]
        return value if bias is None else value + bias[c]

    if shape.rank == 4:
        return te.compute((shape.n, shape.co, shape.oh, shape.ow), out, name="conv_out")
    return te.compute((shape.n, shape.co, shape.ow), lambda n, c, w: out(n, c, 0, w), name="conv_out")


def _unroll_channels(sch: Any, ci: Any, factor: int) -> None:
    if factor > 1:
        _, inner = sch.split(ci, [None, factor])
        sch.unroll(inner)


TEMPLATE = Conv2d()
