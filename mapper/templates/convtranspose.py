"""Transposed convolution whose stride equals its kernel: a matrix product per pixel, its results dealt out.

Output pixel (y, x) takes exactly one input pixel (y // s, x // s) and one kernel tap (y % s, x % s). The anchor
computes `acc[n, h, w, qb, v]` over the flattened channels q = (tap row, tap column, output channel); a task is `th`
input rows. Other transposed convolutions go to the generic template.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from mapper.records import Choice, GroupSpec, MachineModel, Prediction
from mapper.templates import moves
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
    require_counts,
    require_vectors,
    roof,
    round_up,
    sole_operator,
    tail_efficiency,
)

OP_TYPES = frozenset({"ConvTranspose"})
FIELDS = ("v", "vb", "rw", "th", "stage")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransposeShape:
    """The convolution as numbers."""

    n: int
    ci: int
    co: int
    ih: int
    iw: int
    kh: int
    kw: int

    @property
    def channels(self) -> int:
        """Flattened output channels of one input pixel."""
        return self.kh * self.kw * self.co


@dataclass(frozen=True, slots=True)
class ConvTranspose:
    """The template value; see the module's docstring."""

    name: str = "convtranspose"

    def matches(self, spec: GroupSpec) -> bool:
        """Take float32, kernel = stride, no pads, no groups, constant weights."""
        anchor = sole_operator(spec, OP_TYPES)
        if anchor is None or not keeps_shape(spec, anchor) or anchor.inputs[1] not in spec.weights:
            return False
        x, w = spec.tensors[anchor.inputs[0]], spec.tensors[anchor.inputs[1]]
        if x.dtype != "float32" or len(x.shape) != 4:
            return False
        attributes = anchor.attributes
        plain = all(not any(_numbers(attributes.get(name))) for name in ("pads", "output_padding"))
        dense = all(size == 1 for size in _numbers(attributes.get("dilations"))) and attributes.get("group", 1) == 1
        return plain and dense and _numbers(attributes.get("strides")) == list(w.shape[2:])

    def choices(self, spec: GroupSpec, machine: MachineModel, layouts: tuple[str, ...]) -> tuple[Choice, ...]:
        """Enumerate register tiles × task heights."""
        shape = transpose_shape(spec)
        lanes = lanes_for(shape.channels, machine)
        has_prologue = anchor_of(spec, OP_TYPES).inputs[0] not in spec.inputs
        stages = (1,) if has_prologue else (0, 1)
        found = []
        for vectors in (1, 2, 3, 4, 6):
            vb = vectors * lanes
            if vectors > 1 and round_up(shape.channels, vb) > 1.15 * shape.channels:
                continue
            room = (machine.vector_registers - vectors - 1) // vectors
            for rw in divisors(shape.iw, room)[-4:]:
                for th, stage in product(divisors(shape.ih, 8)[:3], stages):
                    tile = {"v": lanes, "vb": vb, "rw": rw, "th": th, "stage": stage}
                    found.append(Choice(template=self.name, layouts=layouts, tile=tile))
        return tuple(found)

    def check(self, spec: GroupSpec, choice: Choice) -> None:
        """Check divisibility; see `tiles.require`."""
        shape, t = transpose_shape(spec), integers(spec, choice, FIELDS)
        require_counts(spec, t)
        require_vectors(spec, t)
        require(spec, shape.ih % t["th"] == 0, f"th = {t['th']} must divide {shape.ih} input rows")
        require(spec, shape.iw % t["rw"] == 0, f"rw = {t['rw']} must divide {shape.iw} input columns")
        require(spec, t["stage"] in (0, 1), f"stage = {t['stage']} must be 0 (none) or 1 (task)")

    def cost(self, spec: GroupSpec, choice: Choice, machine: MachineModel) -> Prediction:
        """Predict like a matrix product, plus one pass over the collected results."""
        shape, t = transpose_shape(spec), integers(spec, choice, FIELDS)
        columns = round_up(shape.channels, t["vb"])
        pixels = shape.n * shape.ih * shape.iw
        tasks = shape.n * (shape.ih // t["th"])
        efficiency = fma_efficiency(t["rw"], t["vb"] // t["v"], t["v"], machine) * tail_efficiency(
            tasks, machine.threads
        )
        traffic = boundary_traffic(spec, machine)
        traffic["L2"] = traffic.get("L2", 0.0) + 8.0 * pixels * columns
        executed = 2.0 * pixels * columns * shape.ci
        return roof(machine, executed_flops=executed, efficiency=efficiency, traffic_b=traffic)

    def packings(self, spec: GroupSpec, choice: Choice) -> Mapping[str, Packing]:
        """Pack (ci, co, kh, kw) as (q/vb, ci, vb), filled up with zeros."""
        shape, vb = transpose_shape(spec), int(choice.tile["vb"])
        blocks = ceil_div(shape.channels, vb)

        def pack(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            full = np.zeros((shape.ci, blocks * vb), weight.dtype)
            full[:, : shape.channels] = weight.transpose(0, 2, 3, 1).reshape(shape.ci, shape.channels)
            return np.ascontiguousarray(full.reshape(shape.ci, blocks, vb).transpose(1, 0, 2))

        return {anchor_of(spec, OP_TYPES).inputs[1]: Packing(shape=(blocks, shape.ci, vb), pack=pack)}

    def converters(self, spec: GroupSpec, choice: Choice) -> Mapping[int, Convert]:
        """Emit the anchor as stage, accumulate and deal-out stages in tensor expressions."""
        shape, tile = transpose_shape(spec), {name: int(value) for name, value in choice.tile.items()}

        def convert(builder: Any, inputs: list[Any], _attributes: Mapping[str, Any]) -> Any:
            tensors = [item for item in inputs[:3] if item is not None]
            stages = lambda *args: _stages(shape, tile, *args)  # noqa: E731 emit_te wants a bare callable
            return builder.emit_te(stages, *tensors, primfunc_name_hint="convtranspose")

        return {anchor_of(spec, OP_TYPES).index: convert}

    def apply(self, sch: Any, spec: GroupSpec, choice: Choice) -> None:
        """Tile, stage, vectorize and parallelize as the tile says."""
        t = integers(spec, choice, FIELDS)
        moves.inline_all(sch, frozenset({"acc", "pad"} if t["stage"] else {"acc"}))
        acc = sch.get_sblock("acc")
        rows = t["th"] * transpose_shape(spec).kh
        task = moves.task_from_output(sch, acc, rows, choice.layouts[-1], (t["v"], transpose_shape(spec).co))
        h, w, qb, v, ci = sch.get_loops(acc)[-5:]
        wo, wr = sch.split(w, [None, t["rw"]])
        vo, vi = sch.split(v, [None, t["v"]])
        sch.reorder(qb, h, wo, ci, wr, vo, vi)
        sch.unroll(wr)
        sch.unroll(vo)
        sch.vectorize(vi)
        moves.keep_in_registers(sch, acc, wo, t["v"])
        if t["stage"]:
            moves.stage_copy(sch, "pad", task, t["v"])
        sch.decompose_reduction(acc, ci)


def transpose_shape(spec: GroupSpec) -> TransposeShape:
    """Read the shape of the group's anchor."""
    anchor = anchor_of(spec, OP_TYPES)
    x, w = (spec.tensors[name].shape for name in anchor.inputs[:2])
    return TransposeShape(n=x[0], ci=x[1], co=w[1], ih=x[2], iw=x[3], kh=w[2], kw=w[3])


def _numbers(value: object) -> list[int]:
    return [int(item) for item in value] if isinstance(value, list | tuple) else []


def _stages(shape: TransposeShape, t: Mapping[str, int], x: Any, weight: Any, bias: Any = None) -> Any:
    """Return the convolution as tensor expressions: `pad`, `acc`, `conv_out` in ONNX order."""
    from tvm import te  # noqa: PLC0415 TVM only where a worker runs it

    vb = t["vb"]
    pad = te.compute((shape.n, shape.ih, shape.iw, shape.ci), lambda n, h, w, c: x[n, c, h, w], name="pad")
    ci = te.reduce_axis((0, shape.ci), "ci")
    acc = te.compute(
        (shape.n, shape.ih, shape.iw, ceil_div(shape.channels, vb), vb),
        lambda n, h, w, qb, v: te.sum(pad[n, h, w, ci] * weight[qb, ci, v], axis=ci),
        name="acc",
    )

    def out(n: Any, c: Any, y: Any, x_: Any) -> Any:
        q = (y % shape.kh * shape.kw + x_ % shape.kw) * shape.co + c
        value = acc[n, y // shape.kh, x_ // shape.kw, q // vb, q % vb]
        return value if bias is None else value + bias[c]

    return te.compute((shape.n, shape.co, shape.ih * shape.kh, shape.iw * shape.kw), out, name="conv_out")


TEMPLATE = ConvTranspose()
