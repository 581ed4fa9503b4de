"""Depthwise convolution: vectors along channels, a row of pixels in registers, weights packed by channel block."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from mapper.records import Choice, GroupSpec, MachineModel, Prediction
from mapper.templates import moves
from mapper.templates.convshape import CONV, STAGE_NONE, STAGE_ROOT, STAGE_TASK, ConvShape, conv_shape, is_depthwise
from mapper.templates.protocol import Convert, Packing
from mapper.templates.tiles import (
    anchor_of,
    boundary_traffic,
    ceil_div,
    divisors,
    fma_efficiency,
    integers,
    keeps_shape,
    lanes_for,
    require,
    require_vectors,
    roof,
    round_up,
    sole_operator,
    tail_efficiency,
)

FIELDS = ("v", "vb", "rw", "th", "tc", "stage")


@dataclass(frozen=True, slots=True)
class Depthwise:
    """The template value; see the module's docstring."""

    name: str = "depthwise"

    def matches(self, spec: GroupSpec) -> bool:
        """Take float32 depthwise convolutions with constant weights and multiplier 1."""
        anchor = sole_operator(spec, CONV)
        if anchor is None or not keeps_shape(spec, anchor) or anchor.inputs[1] not in spec.weights:
            return False
        if spec.tensors[anchor.inputs[0]].dtype != "float32" or len(spec.tensors[anchor.inputs[0]].shape) not in (3, 4):
            return False
        return is_depthwise(conv_shape(spec))

    def choices(self, spec: GroupSpec, machine: MachineModel, layouts: tuple[str, ...]) -> tuple[Choice, ...]:
        """Enumerate channel vectors × output pixels in registers, at each task grain and staging."""
        shape = conv_shape(spec)
        found = []
        for lanes, vectors, rw in product(_widths(shape, machine), (1, 2, 3, 4), range(1, min(shape.ow, 16) + 1)):
            vb = vectors * lanes
            if vectors == 3 and shape.co % vb:
                continue
            if round_up(shape.co, vb) > 1.25 * shape.co and vectors > 1:
                continue
            if round_up(shape.ow, rw) > 1.2 * shape.ow or vectors * rw + vectors > machine.vector_registers:
                continue
            blocks = ceil_div(shape.co, vb)
            heights = [th for th in divisors(shape.oh) if th <= 16]
            grains = [(STAGE_TASK, th, blocks) for th in heights[:4]]
            grains += [(STAGE_ROOT, th, tc) for th in {1, heights[-1]} for tc in divisors(blocks)[:2]]
            for stage, th, tc in grains:
                tile = {"v": lanes, "vb": vb, "rw": rw, "th": th, "tc": tc, "stage": stage}
                found.append(Choice(template=self.name, layouts=layouts, tile=tile))
        return tuple(found)

    def check(self, spec: GroupSpec, choice: Choice) -> None:
        """Check divisibility; see `tiles.require`."""
        shape, t = conv_shape(spec), integers(spec, choice, FIELDS)
        require(spec, all(t[name] >= 1 for name in FIELDS), "every field must be 1 or more")
        require_vectors(spec, t)
        require(spec, t["stage"] in (STAGE_TASK, STAGE_ROOT), f"stage = {t['stage']} must be 1 (task) or 2 (root)")
        require(spec, shape.oh % t["th"] == 0, f"th = {t['th']} must divide {shape.oh} output rows")
        blocks = ceil_div(shape.co, t["vb"])
        require(spec, blocks % t["tc"] == 0, f"tc = {t['tc']} must divide {blocks} channel blocks")

    def cost(self, spec: GroupSpec, choice: Choice, machine: MachineModel) -> Prediction:
        """Predict mostly from traffic: each input element is staged once and read kh·kw times from L1."""
        shape, t = conv_shape(spec), integers(spec, choice, FIELDS)
        channels = round_up(shape.co, t["vb"])
        executed = 2.0 * shape.n * shape.oh * round_up(shape.ow, t["rw"]) * channels * shape.kh * shape.kw
        tasks = shape.n * (shape.oh // t["th"])
        if t["stage"] == STAGE_ROOT:
            tasks *= channels // t["vb"] // t["tc"]
        # every FMA loads its input vector, so two loads a cycle halve the FMA rate at best
        efficiency = 0.5 * fma_efficiency(t["rw"], t["vb"] // t["v"], t["v"], machine)
        efficiency *= tail_efficiency(tasks, machine.threads)
        height = (t["th"] - 1) * shape.stride_h + (shape.kh - 1) * shape.dilation_h + 1
        staged_b = 8.0 * shape.n * (shape.oh // t["th"]) * height * shape.iw * channels
        traffic = boundary_traffic(spec, machine)
        traffic["L2"] = traffic.get("L2", 0.0) + staged_b
        launches = 2 if t["stage"] == STAGE_ROOT else 1
        return roof(machine, executed_flops=executed, efficiency=efficiency, traffic_b=traffic, launches=launches)

    def packings(self, spec: GroupSpec, choice: Choice) -> Mapping[str, Packing]:
        """Pack (c, 1, kh, kw) as (c/vb, kh, kw, vb), filled up with zeros."""
        shape, vb = conv_shape(spec), int(choice.tile["vb"])
        blocks = ceil_div(shape.co, vb)

        def pack(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            full = np.zeros((blocks * vb, shape.kh, shape.kw), weight.dtype)
            full[: shape.co] = weight.reshape(shape.co, shape.kh, shape.kw)
            return np.ascontiguousarray(full.reshape(blocks, vb, shape.kh, shape.kw).transpose(0, 2, 3, 1))

        packing = Packing(shape=(blocks, shape.kh, shape.kw, vb), pack=pack)
        return {anchor_of(spec, CONV).inputs[1]: packing}

    def converters(self, spec: GroupSpec, choice: Choice) -> Mapping[int, Convert]:
        """Emit the anchor as pad, accumulate and crop stages in tensor expressions."""
        tile = {name: int(value) for name, value in choice.tile.items()}

        def convert(builder: Any, inputs: list[Any], _attributes: Mapping[str, Any]) -> Any:
            tensors = [item for item in inputs[:3] if item is not None]
            stages = lambda *args: _stages(spec, tile, *args)  # noqa: E731 emit_te wants a bare callable
            return builder.emit_te(stages, *tensors, primfunc_name_hint="depthwise")

        return {anchor_of(spec, CONV).index: convert}

    def apply(self, sch: Any, spec: GroupSpec, choice: Choice) -> None:
        """Tile, stage, vectorize and parallelize as the tile says."""
        shape, t = conv_shape(spec), integers(spec, choice, FIELDS)
        assert t["stage"] != STAGE_NONE
        moves.inline_all(sch, frozenset({"acc", "pad"}))
        acc, out = sch.get_sblock("acc"), moves.output_block(sch)
        n, h, w, cb, v, kh, kw = sch.get_loops(acc)
        ho, hi = sch.split(h, [None, t["th"]])
        wo, wr = sch.split(w, [None, t["rw"]])
        co, cc = sch.split(cb, [None, t["tc"]])
        vo, vi = sch.split(v, [None, t["v"]])
        if t["stage"] == STAGE_TASK:
            sch.reorder(n, ho, co, cc, hi, wo, kh, kw, wr, vo, vi)
            task = sch.fuse(n, ho)
        else:
            sch.reorder(n, co, ho, cc, hi, wo, kh, kw, wr, vo, vi)
            task = sch.fuse(n, co, ho)
        sch.parallel(task)
        for loop in (wr, vo):
            sch.unroll(loop)
        sch.vectorize(vi)
        sch.reverse_compute_at(out, wo, preserve_unit_loops=True)
        moves.store_tile(sch, out, choice.layouts[-1], t["v"], shape.rank)
        moves.stage_copy(sch, "pad", task if t["stage"] == STAGE_TASK else None, t["v"])
        sch.decompose_reduction(acc, kh)


def _widths(shape: ConvShape, machine: MachineModel) -> list[int]:
    """Return vector widths: full ones, and shorter ones where those leave fewer lanes empty."""
    lanes = lanes_for(shape.co, machine)
    half = lanes // 2
    return [lanes, half] if half >= 4 and round_up(shape.co, half) < round_up(shape.co, lanes) else [lanes]


def _stages(spec: GroupSpec, t: Mapping[str, int], x: Any, weight: Any, bias: Any = None) -> Any:
    """Return the convolution as tensor expressions: `pad`, `acc`, `conv_out` in ONNX order."""
    from tvm import te, tirx  # noqa: PLC0415 TVM only where a worker runs it

    shape = conv_shape(spec)
    owp, channels = round_up(shape.ow, t["rw"]), round_up(shape.co, t["vb"])
    ihp = (shape.oh - 1) * shape.stride_h + (shape.kh - 1) * shape.dilation_h + 1
    iwp = (owp - 1) * shape.stride_w + (shape.kw - 1) * shape.dilation_w + 1
    top, left = shape.pad_top, shape.pad_left

    def padded(n: Any, h: Any, w: Any, c: Any) -> Any:
        conditions = []
        if top or ihp > shape.ih:
            conditions += [h >= top, h < shape.ih + top]
        if left or iwp > shape.iw:
            conditions += [w >= left, w < shape.iw + left]
        if channels > shape.co:
            conditions.append(c < shape.co)
        value = x[n, c, h - top, w - left] if shape.rank == 4 else x[n, c, w - left]
        return tirx.if_then_else(tirx.all(*conditions), value, tirx.const(0.0, x.dtype)) if conditions else value

    pad = te.compute((shape.n, ihp, iwp, channels), padded, name="pad")
    kh, kw = te.reduce_axis((0, shape.kh), "kh"), te.reduce_axis((0, shape.kw), "kw")
    acc = te.compute(
        (shape.n, shape.oh, owp, channels // t["vb"], t["vb"]),
        lambda n, h, w, cb, v: te.sum(
            pad[
                n,
                h * shape.stride_h + kh * shape.dilation_h,
                w * shape.stride_w + kw * shape.dilation_w,
                cb * t["vb"] + v,
            ]
            * weight[cb, kh, kw, v],
            axis=[kh, kw],
        ),
        name="acc",
    )

    def out(n: Any, c: Any, h: Any, w: Any) -> Any:
        value = acc[n, h, w, c // t["vb"], c % t["vb"]]
        return value if bias is None else value + bias[c]

    if shape.rank == 4:
        return te.compute((shape.n, shape.co, shape.oh, shape.ow), out, name="conv_out")
    return te.compute((shape.n, shape.co, shape.ow), lambda n, c, w: out(n, c, 0, w), name="conv_out")


TEMPLATE = Depthwise()
