"""A depthwise convolution and the 1×1 convolution that reads it, as numbers, packed weights and tensor expressions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mapper.records import GroupSpec, Operator
from mapper.templates.convshape import ConvShape, conv_shape, is_depthwise
from mapper.templates.protocol import Packing
from mapper.templates.rowwise import BETWEEN
from mapper.templates.tiles import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparableShape:
    """The pair as numbers: `outer` is the depthwise convolution of `c` channels, `co` the channels that come out.

    `depthwise` and `pointwise` are the operators' indices, `weights` the names of their weights.
    """

    outer: ConvShape
    co: int
    depthwise: int
    pointwise: int
    weights: tuple[str, str]

    @property
    def n(self) -> int:
        """Images of the batch."""
        return self.outer.n

    @property
    def c(self) -> int:
        """Channels between both convolutions."""
        return self.outer.co

    @property
    def oh(self) -> int:
        """Rows of the output."""
        return self.outer.oh

    @property
    def ow(self) -> int:
        """Columns of the output."""
        return self.outer.ow

    def rows_read(self, rows: int) -> int:
        """Return the input rows that a strip of output rows reads."""
        return (rows - 1) * self.outer.stride_h + (self.outer.kh - 1) * self.outer.dilation_h + 1

    @property
    def columns_read(self) -> int:
        """Input columns that a row of the output reads, pads counted."""
        return (self.ow - 1) * self.outer.stride_w + (self.outer.kw - 1) * self.outer.dilation_w + 1


def separable_shape(spec: GroupSpec) -> SeparableShape | None:
    """Read a group as a depthwise and a 1×1 convolution; None when it is anything else."""
    convolutions = [operator for operator in spec.operators if operator.op_type == "Conv"]
    if len(convolutions) != 2 or len(spec.outputs) != 1:
        return None
    first, second = convolutions
    if not all(_is_plain(spec, operator) for operator in convolutions) or first.inputs[0] not in spec.inputs:
        return None
    outer, inner = (conv_shape(replace(spec, operators=(operator,))) for operator in convolutions)
    strides = inner.stride_h * inner.stride_w
    if not is_depthwise(outer) or outer.co % 4 or not inner.is_pointwise or inner.groups != 1 or strides != 1:
        return None
    if not _is_sequence(spec, first, second):
        return None
    return SeparableShape(
        outer=outer,
        co=inner.co,
        depthwise=first.index,
        pointwise=second.index,
        weights=(first.inputs[1], second.inputs[1]),
    )


def _is_plain(spec: GroupSpec, operator: Operator) -> bool:
    x = spec.tensors[operator.inputs[0]]
    is_constant = all(name in spec.weights for name in operator.inputs[1:] if name)
    return is_constant and x.dtype == "float32" and len(x.shape) == 4


def _is_sequence(spec: GroupSpec, first: Operator, second: Operator) -> bool:
    """Say whether element-wise operators lead from the first to the second, and from there to the output."""
    inside, shape = {first.outputs[0]}, spec.tensors[first.outputs[0]].shape
    after = {second.outputs[0]}
    for operator in spec.operators:
        if operator in (first, second):
            continue
        output = operator.outputs[0]
        is_before = any(name in inside for name in operator.inputs)
        is_after = any(name in after for name in operator.inputs)
        if operator.op_type not in BETWEEN or is_before == is_after:
            return False
        wanted = shape if is_before else spec.tensors[second.outputs[0]].shape
        if spec.tensors[output].shape != wanted:
            return False
        (inside if is_before else after).add(output)
    return second.inputs[0] in inside and spec.outputs[0] in after


def packings(shape: SeparableShape, db: int, vb: int) -> Mapping[str, Packing]:
    """Return how both weights are packed, in blocks of `db` and `vb` channels."""
    outer, blocks = shape.outer, ceil_div(shape.co, vb)

    def pack_depthwise(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.ascontiguousarray(weight.reshape(shape.c // db, db, outer.kh, outer.kw).transpose(0, 2, 3, 1))

    def pack_pointwise(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        full = np.zeros((blocks * vb, shape.c), weight.dtype)
        full[: shape.co] = weight.reshape(shape.co, shape.c)
        return np.ascontiguousarray(full.reshape(blocks, vb, shape.c).transpose(0, 2, 1))

    return {
        shape.weights[0]: Packing(shape=(shape.c // db, outer.kh, outer.kw, db), pack=pack_depthwise),
        shape.weights[1]: Packing(shape=(blocks, shape.c, vb), pack=pack_pointwise),
    }


def depthwise_stages(shape: SeparableShape, db: int, x: Any, weight: Any, bias: Any = None) -> Any:
    """Return the depthwise convolution as `pad`, `taps` and an expression in ONNX order."""
    from tvm import te, tirx  # noqa: PLC0415 TVM only where a worker runs it

    outer = shape.outer
    top, left = outer.pad_top, outer.pad_left
    ihp, iwp = shape.rows_read(shape.oh), shape.columns_read

    def padded(n: Any, h: Any, w: Any, c: Any) -> Any:
        conditions = []
        if top or ihp > outer.ih:
            conditions += [h >= top, h < outer.ih + top]
        if left or iwp > outer.iw:
            conditions += [w >= left, w < outer.iw + left]
        value = x[n, c, h - top, w - left]
        return tirx.if_then_else(tirx.all(*conditions), value, tirx.const(0.0, x.dtype)) if conditions else value

    pad = te.compute((shape.n, ihp, iwp, shape.c), padded, name="pad")
    kh, kw = te.reduce_axis((0, outer.kh), "kh"), te.reduce_axis((0, outer.kw), "kw")

    def tap(n: Any, h: Any, w: Any, cb: Any, v: Any) -> Any:
        row, column = h * outer.stride_h + kh * outer.dilation_h, w * outer.stride_w + kw * outer.dilation_w
        return te.sum(pad[n, row, column, cb * db + v] * weight[cb, kh, kw, v], axis=[kh, kw])

    taps = te.compute((shape.n, shape.oh, shape.ow, shape.c // db, db), tap, name="taps")

    def out(n: Any, c: Any, h: Any, w: Any) -> Any:
        value = taps[n, h, w, c // db, c % db]
        return value if bias is None else value + bias[c]

    return te.compute((shape.n, shape.c, shape.oh, shape.ow), out, name="taps_out")


def pointwise_stages(shape: SeparableShape, vb: int, x: Any, weight: Any, bias: Any = None) -> Any:
    """Return the 1×1 convolution as `between` (its input, channels last), `acc` and an expression in ONNX order."""
    from tvm import te  # noqa: PLC0415

    between = te.compute((shape.n, shape.oh, shape.ow, shape.c), lambda n, h, w, c: x[n, c, h, w], name="between")
    ci = te.reduce_axis((0, shape.c), "ci")
    acc = te.compute(
        (shape.n, shape.oh, shape.ow, ceil_div(shape.co, vb), vb),
        lambda n, h, w, cb, v: te.sum(between[n, h, w, ci] * weight[cb, ci, v], axis=[ci]),
        name="acc",
    )

    def out(n: Any, c: Any, h: Any, w: Any) -> Any:
        value = acc[n, h, w, c // vb, c % vb]
        return value if bias is None else value + bias[c]

    return te.compute((shape.n, shape.co, shape.oh, shape.ow), out, name="point_out")
