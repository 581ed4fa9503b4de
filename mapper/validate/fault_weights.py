"""Owns the faults that show as other values of a weight: skipped taps and terms, swapped channels, lost biases."""

from collections.abc import Iterator

import onnx

from mapper.validate.fault import SCALE, Fault, View, WeightChange, attribute_of


def weight_faults(view: View, node: onnx.NodeProto) -> Iterator[Fault]:
    """Yield the faults that come to the same as other values of the weights that one operator reads."""
    where = {"Conv": _conv_axes, "ConvTranspose": _transposed_axes, "MatMul": _matmul_axes, "Gemm": _gemm_axes}
    inputs = list(node.input)
    if node.op_type in where and len(inputs) > 1 and inputs[1] in view.weights:
        weight = inputs[1]
        shape = view.shape(weight)
        out_axis, sum_axis, spatial = where[node.op_type](node, shape)
        bias = inputs[2] if len(inputs) > 2 and inputs[2] in view.weights else None
        yield from _tap_faults(weight, shape, spatial)
        yield from _channel_faults(weight, shape, out_axis, bias, view)
        if sum_axis is not None and shape[sum_axis] > 1:
            change = WeightChange(weight=weight, action="zero", axis=sum_axis, positions=(shape[sum_axis] - 1,))
            yield Fault(
                kind="reduction", note=f"last of {shape[sum_axis]} terms of {weight} skipped", weights=(change,)
            )
    for name in dict.fromkeys(inputs[1:] if node.op_type in where else inputs):
        if name in view.weights and view.is_float(name) and (node.op_type not in where or name != inputs[1]):
            yield Fault(kind="bias", note=f"{name} dropped", weights=(WeightChange(weight=name, action="zero"),))
            yield Fault(kind="bias", note=f"{name} × {SCALE}", weights=(WeightChange(weight=name, action="scale"),))
    if node.op_type == "Gather" and inputs[0] in view.weights:
        axis = attribute_of(node, "axis", 0) % len(view.shape(inputs[0]))
        change = WeightChange(weight=inputs[0], action="roll", axis=axis)
        yield Fault(kind="index", note=f"rows of {inputs[0]} one off", weights=(change,))


def _conv_axes(node: onnx.NodeProto, shape: tuple[int, ...]) -> tuple[int, int | None, tuple[int, ...]]:
    return 0, 1, tuple(range(2, len(shape)))


def _transposed_axes(node: onnx.NodeProto, shape: tuple[int, ...]) -> tuple[int, int | None, tuple[int, ...]]:
    return 1, 0 if attribute_of(node, "group", 1) == 1 else None, tuple(range(2, len(shape)))


def _matmul_axes(node: onnx.NodeProto, shape: tuple[int, ...]) -> tuple[int, int | None, tuple[int, ...]]:
    return len(shape) - 1, max(0, len(shape) - 2), ()


def _gemm_axes(node: onnx.NodeProto, shape: tuple[int, ...]) -> tuple[int, int | None, tuple[int, ...]]:
    return (0, 1, ()) if attribute_of(node, "transB", 0) else (1, 0, ())


def _tap_faults(weight: str, shape: tuple[int, ...], spatial: tuple[int, ...]) -> Iterator[Fault]:
    if not spatial or all(shape[axis] == 1 for axis in spatial):
        return
    corners = {tuple(0 for _ in spatial), tuple(shape[axis] - 1 for axis in spatial)}
    for tap in sorted({*corners, tuple(shape[axis] // 2 for axis in spatial)}):
        more = tuple(zip(spatial[1:], tap[1:], strict=True))
        change = WeightChange(weight=weight, action="zero", axis=spatial[0], positions=(tap[0],), more=more)
        yield Fault(kind="tap", note=f"tap {tap} of {weight} skipped", weights=(change,))


def _channel_faults(weight: str, shape: tuple[int, ...], axis: int, bias: str | None, view: View) -> Iterator[Fault]:
    if shape[axis] < 2:
        return
    for pair in dict.fromkeys(((0, 1), (shape[axis] - 2, shape[axis] - 1))):
        changes = [WeightChange(weight=weight, action="swap", axis=axis, positions=pair)]
        if bias is not None and view.shape(bias)[-1:] == (shape[axis],):
            last = len(view.shape(bias)) - 1
            changes.append(WeightChange(weight=bias, action="swap", axis=last, positions=pair))
        yield Fault(
            kind="channels", note=f"channels {pair[0]} and {pair[1]} of {weight} swapped", weights=tuple(changes)
        )
