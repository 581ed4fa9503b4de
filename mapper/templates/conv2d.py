"""Direct convolution (also 1×1 and grouped, one or two spatial axes) over packed weights and a register tile.

The anchor computes `acc[n, oh, ow, cb, v]`: channel blocks of `vb` lanes innermost, whatever the layout of the tensors
outside. `th·rh` output rows form a task; a `rh·rw` × `vb` tile of accumulators stays in registers over the whole
reduction (kh, kw, ci). Input is staged into a padded NHWC scratch: per task, once for the kernel, or not at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapper.records import Choice, GroupSpec, MachineModel, Prediction
from mapper.templates import convspace, moves
from mapper.templates.convshape import (
    CONV,
    STAGE_NONE,
    STAGE_ROOT,
    STAGE_TASK,
    ConvShape,
    channel_blocks,
    conv_shape,
    is_aligned,
    is_depthwise,
    is_exact,
    is_unpadded,
)
from mapper.templates.protocol import Convert, Packing
from mapper.templates.tiles import (
    FLOAT32_B,
    anchor_of,
    boundary_traffic,
    ceil_div,
    fma_efficiency,
    integers,
    keeps_shape,
    require,
    require_counts,
    require_vectors,
    resident_level,
    roof,
    round_up,
    sole_operator,
    tail_efficiency,
)

FIELDS = ("v", "vb", "rw", "rh", "th", "tc", "stage", "ku")


@dataclass(frozen=True, slots=True)
class Conv2d:
    """The template value; see the module's docstring."""

    name: str = "conv2d"

    def matches(self, spec: GroupSpec) -> bool:
        """Take float32 convolutions with constant weights that are not depthwise."""
        anchor = sole_operator(spec, CONV)
        if anchor is None or not keeps_shape(spec, anchor) or anchor.inputs[1] not in spec.weights:
            return False
        if spec.tensors[anchor.inputs[0]].dtype != "float32" or len(spec.tensors[anchor.inputs[0]].shape) not in (3, 4):
            return False
        return not is_depthwise(conv_shape(spec))

    def choices(self, spec: GroupSpec, machine: MachineModel, layouts: tuple[str, ...]) -> tuple[Choice, ...]:
        """Enumerate register tiles that fit the registers and divide the image, at each task grain and staging."""
        shape = conv_shape(spec)
        found = []
        for v, vb in convspace.block_choices(shape, machine):
            for rw, rh in convspace.row_choices(shape, machine.vector_registers, v, vb):
                for stage, th, tc in convspace.grain_choices(shape, spec, rw, rh, vb, machine):
                    tile = {"v": v, "vb": vb, "rw": rw, "rh": rh, "th": th, "tc": tc, "stage": stage, "ku": 1}
                    found.append(Choice(template=self.name, layouts=layouts, tile=tile))
        return tuple(found)

    def check(self, spec: GroupSpec, choice: Choice) -> None:
        """Check divisibility; see `tiles.require`."""
        shape, t = conv_shape(spec), integers(spec, choice, FIELDS)
        require_counts(spec, t)
        require_vectors(spec, t)
        require(spec, t["stage"] in (0, 1, 2), f"stage = {t['stage']} must be 0 (none), 1 (task) or 2 (root)")
        rows = ceil_div(shape.oh, t["rh"])
        require(spec, rows % t["th"] == 0, f"th = {t['th']} must divide {rows} row tiles")
        blocks = channel_blocks(shape, t["vb"])
        require(spec, blocks % t["tc"] == 0, f"tc = {t['tc']} must divide {blocks} channel blocks")
        require(
            spec,
            is_aligned(shape, t["vb"]) or (t["stage"] == STAGE_TASK and is_exact(shape, t) and shape.rank == 4),
            f"vb = {t['vb']} does not divide the {shape.co_group} output channels of a group, "
            "so stage must be 1 (task) and the tile must divide the image",
        )
        require(spec, shape.ci_group % t["ku"] == 0, f"ku = {t['ku']} must divide {shape.ci_group} input channels")
        exact = is_exact(shape, t)
        require(
            spec, t["stage"] != 0 or (exact and is_unpadded(shape)), "stage = 0 needs an unpadded, exactly tiled input"
        )

    def cost(self, spec: GroupSpec, choice: Choice, machine: MachineModel) -> Prediction:
        """Predict from the register tile's port use, the fill of the threads, and weight and input traffic."""
        shape, t = conv_shape(spec), integers(spec, choice, FIELDS)
        rows, vectors = t["rw"] * t["rh"], t["vb"] // t["v"]
        ohp, owp = round_up(shape.oh, t["rh"]), round_up(shape.ow, t["rw"])
        blocks = channel_blocks(shape, t["vb"])
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
        blocks = channel_blocks(shape, vb)
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
        if not is_aligned(shape, t["vb"]):
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


def _staged_elements(shape: ConvShape, t: Mapping[str, int]) -> int:
    rows = t["rh"] * t["th"] if t["stage"] == STAGE_TASK else round_up(shape.oh, t["rh"])
    tasks = round_up(shape.oh, t["rh"]) // rows
    height = (rows - 1) * shape.stride_h + (shape.kh - 1) * shape.dilation_h + 1
    width = (round_up(shape.ow, t["rw"]) - 1) * shape.stride_w + (shape.kw - 1) * shape.dilation_w + 1
    return shape.n * tasks * height * width * shape.ci


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


def _stages(shape: ConvShape, t: Mapping[str, int], x: Any, weight: Any, bias: Any = None) -> Any:
    """Return the convolution as tensor expressions: `pad`, `acc`, `conv_out` in ONNX order."""
    from tvm import te, tirx  # noqa: PLC0415 TVM only where a worker runs it

    ohp, owp = round_up(shape.oh, t["rh"]), round_up(shape.ow, t["rw"])
    ihp = (ohp - 1) * shape.stride_h + (shape.kh - 1) * shape.dilation_h + 1
    iwp = (owp - 1) * shape.stride_w + (shape.kw - 1) * shape.dilation_w + 1
    top, left = shape.pad_top, shape.pad_left
    covered = top == left == 0 and ihp <= shape.ih and iwp <= shape.iw
    blocks_per_group = channel_blocks(shape, t["vb"]) // shape.groups

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
        (shape.n, ohp, owp, channel_blocks(shape, t["vb"]), t["vb"]),
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
        inner = c if is_aligned(shape, t["vb"]) else c % shape.co_group
        first = 0 if is_aligned(shape, t["vb"]) else c // shape.co_group * blocks_per_group
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
