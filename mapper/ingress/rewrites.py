"""The rules that turn one ONNX node into its canonical form, each a function from a node to its replacement."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper

from mapper.ingress.draft import Draft
from mapper.ingress.statics import evaluate, shape_value
from mapper.ingress.wiring import attributes, is_onnx, reads, writes

Rule = Callable[[onnx.NodeProto, Draft], Sequence[onnx.NodeProto] | None]
_MAX_FOLDED_ELEMENTS = 1 << 28
_WINDOWED = ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "LpPool")


def fold_constants(draft: Draft) -> int:
    """Replace nodes that no graph input reaches by their values, and return how many went."""
    kept = []
    for node in draft.nodes:
        folded = _folded(node, draft)
        for name, value in folded.items():
            draft.define(name, value)
        if not folded:
            kept.append(node)
    removed = len(draft.nodes) - len(kept)
    draft.nodes = kept
    return removed


def apply_rules(draft: Draft) -> dict[str, int]:
    """Apply the rule of each node's operator once, and count the rewritten nodes by operator."""
    counts: dict[str, int] = {}
    nodes: list[onnx.NodeProto] = []
    for node in draft.nodes:
        rule = _RULES.get(node.op_type) if is_onnx(node) else None
        replacement = rule(node, draft) if rule is not None else None
        if replacement is None:
            nodes.append(node)
        else:
            counts[node.op_type] = counts.get(node.op_type, 0) + 1
            nodes.extend(replacement)
    draft.nodes = nodes
    return counts


def _folded(node: onnx.NodeProto, draft: Draft) -> dict[str, np.ndarray]:
    if not is_onnx(node) or not writes(node):
        return {}
    if node.op_type in ("Shape", "Size") and node.input[0] in draft.types:
        return {node.output[0]: shape_value(node, draft.types[node.input[0]].shape)}
    if any(name not in draft.constants for name in reads(node)):
        return {}
    if any(name not in draft.types or prod(draft.types[name].shape) > _MAX_FOLDED_ELEMENTS for name in writes(node)):
        return {}
    return evaluate(node, draft.constants, [helper.make_opsetid("", draft.opset)]) or {}


def _literal_reshape(node: onnx.NodeProto, draft: Draft) -> Sequence[onnx.NodeProto] | None:
    """Write Reshape, Flatten, Squeeze and Unsqueeze as a Reshape to a constant shape without 0 and -1."""
    shape = np.asarray(draft.types[node.output[0]].shape, np.int64)
    literal = draft.constants.get(node.input[1]) if node.op_type == "Reshape" else None
    if 0 in shape or (literal is not None and np.array_equal(literal, shape) and not node.attribute):
        return None
    target = draft.constant(f"{node.output[0]}__shape", shape)
    return [helper.make_node("Reshape", [node.input[0], target], list(node.output), name=node.name)]


def _add_chain(node: onnx.NodeProto, draft: Draft) -> Sequence[onnx.NodeProto] | None:
    """Write a Sum of n tensors as n - 1 Adds, left to right."""
    if len(node.input) < 2:
        return None
    spec = draft.types[node.output[0]]
    nodes, total = [], node.input[0]
    shape = draft.types[total].shape
    for position, name in enumerate(node.input[1:], start=1):
        shape = tuple(np.broadcast_shapes(shape, draft.types[name].shape))
        last = position == len(node.input) - 1
        result = node.output[0] if last else draft.tensor(f"{node.output[0]}__sum", shape, spec.dtype)
        nodes.append(helper.make_node("Add", [total, name], [result], name=node.name if last else ""))
        total = result
    return nodes


def _scale_and_shift(node: onnx.NodeProto, draft: Draft) -> Sequence[onnx.NodeProto] | None:
    """Write an inference BatchNormalization of constant statistics as Mul and Add, operands `(1, c, 1, 1)`.

    Source: y = (x - mean) / sqrt(var + epsilon) * scale + bias, ONNX BatchNormalization; computed in float64.
    """
    if any(name not in draft.constants for name in node.input[1:]):
        return None
    if attributes(node).get("spatial", 1) != 1 or any(node.output[1:]):
        return None
    source, spec = draft.types[node.input[0]], draft.types[node.output[0]]
    scale, bias, mean, variance = (draft.constants[name].astype(np.float64) for name in node.input[1:5])
    factor = scale / np.sqrt(variance + attributes(node).get("epsilon", 1e-5))
    operand = (1, -1) + (1,) * (len(source.shape) - 2)
    dtype = draft.constants[node.input[1]].dtype if spec.dtype == "bfloat16" else np.dtype(spec.dtype)
    base = node.output[0]
    factor_name = draft.constant(f"{base}__scale", factor.reshape(operand).astype(dtype))
    shift_name = draft.constant(f"{base}__shift", (bias - mean * factor).reshape(operand).astype(dtype))
    scaled = draft.tensor(f"{base}__scaled", spec.shape, spec.dtype)
    return [
        helper.make_node("Mul", [node.input[0], factor_name], [scaled]),
        helper.make_node("Add", [scaled, shift_name], [base], name=node.name),
    ]


def _flattened_softmax(node: onnx.NodeProto, draft: Draft) -> Sequence[onnx.NodeProto] | None:
    """Before opset 13 a softmax runs over all axes from `axis` on: make that one axis where it is more."""
    if draft.opset >= 13:
        return None
    source, spec = draft.types[node.input[0]], draft.types[node.output[0]]
    axis = attributes(node).get("axis", 1) % max(len(source.shape), 1)
    if prod(source.shape[axis + 1 :]) == 1:
        return None
    rows = (prod(source.shape[:axis]), prod(source.shape[axis:]))
    base = node.output[0]
    flat = draft.tensor(f"{base}__rows", rows, source.dtype)
    done = draft.tensor(f"{base}__softmax", rows, spec.dtype)
    into = draft.constant(f"{base}__rows_shape", np.asarray(rows, np.int64))
    back = draft.constant(f"{base}__shape", np.asarray(spec.shape, np.int64))
    return [
        helper.make_node("Reshape", [node.input[0], into], [flat]),
        helper.make_node(node.op_type, [flat], [done], name=node.name, axis=1),
        helper.make_node("Reshape", [done, back], [base]),
    ]


def _explicit_window(node: onnx.NodeProto, draft: Draft) -> Sequence[onnx.NodeProto] | None:
    """Write kernel shape, strides and pads of a convolution or pooling out; auto_pad becomes numbers."""
    given = attributes(node)
    spatial = draft.types[node.input[0]].shape[2:]
    weights = {"QLinearConv": 3}.get(node.op_type, 1)
    kernel = given.get("kernel_shape") or list(draft.types[node.input[weights]].shape[2:])
    strides = given.get("strides") or [1] * len(spatial)
    dilations = given.get("dilations") or [1] * len(spatial)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    mode = given.get("auto_pad", "NOTSET")
    total: list[int] | None
    if node.op_type == "ConvTranspose":
        total = _transposed_totals(node, draft, strides, extents)
    else:
        total = _same_totals(spatial, strides, extents) if mode.startswith("SAME") else None
    pads = _split_totals(total, mode) if total else (given.get("pads") or [0] * 2 * len(spatial))
    if mode == "VALID" and not (node.op_type == "ConvTranspose" and "output_shape" in given):
        pads = [0] * 2 * len(spatial)
    explicit = {"kernel_shape": list(kernel), "strides": list(strides), "pads": [int(pad) for pad in pads]}
    if "Conv" in node.op_type:
        explicit |= {"dilations": list(dilations), "group": given.get("group", 1)}
    dropped = {"auto_pad"} | ({"output_shape"} if total else set())
    wanted = {name: value for name, value in given.items() if name not in dropped} | explicit
    if mode.startswith("SAME"):
        wanted.pop("ceil_mode", None)  # the output size of SAME does not depend on it, that of explicit pads does
    if wanted == given:
        return None
    return [helper.make_node(node.op_type, list(node.input), list(node.output), name=node.name, **wanted)]


def _same_totals(spatial: Sequence[int], strides: Sequence[int], extents: Sequence[int]) -> list[int]:
    """Return how much SAME pads each axis, so that the output has ceil(size / stride) elements."""
    sizes = zip(spatial, strides, extents, strict=True)
    return [max((-(-size // stride) - 1) * stride + extent - size, 0) for size, stride, extent in sizes]


def _transposed_totals(
    node: onnx.NodeProto, draft: Draft, strides: Sequence[int], extents: Sequence[int]
) -> list[int] | None:
    """Return how much a ConvTranspose cuts off each axis; None when its pads say so already.

    Source: total = stride * (size - 1) + output_padding + extent - output, ONNX ConvTranspose.
    """
    given = attributes(node)
    if "output_shape" not in given and not given.get("auto_pad", "").startswith("SAME"):
        return None
    spatial = draft.types[node.input[0]].shape[2:]
    extra = given.get("output_padding") or [0] * len(spatial)
    outputs = draft.types[node.output[0]].shape[2:]
    totals = [
        stride * (size - 1) + add + extent - output
        for stride, size, add, extent, output in zip(strides, spatial, extra, extents, outputs, strict=True)
    ]
    return totals if min(totals) >= 0 else None


def _split_totals(totals: Sequence[int], mode: str) -> list[int]:
    """Share each total between begin and end: the odd one goes to the end for SAME_UPPER, else to the begin.

    A ConvTranspose shares an output_shape without auto_pad like SAME_LOWER.
    """
    halves = [total // 2 for total in totals]
    rests = [total - half for total, half in zip(totals, halves, strict=True)]
    upper = mode == "SAME_UPPER"
    return halves + rests if upper else rests + halves


def _all_true_mask(node: onnx.NodeProto, draft: Draft) -> Sequence[onnx.NodeProto] | None:
    """Give a Dropout's mask, all true at inference, as a constant."""
    if len(node.output) < 2 or not node.output[1]:
        return None
    mask = node.output[1]
    if mask in draft.read_names():
        spec = draft.types[mask]
        draft.define(mask, np.ones(spec.shape, np.dtype(spec.dtype)))
    inputs: list[Any] = list(node.input)
    return [helper.make_node("Dropout", inputs, [node.output[0]], name=node.name)]


_RULES: dict[str, Rule] = {
    "Reshape": _literal_reshape,
    "Flatten": _literal_reshape,
    "Squeeze": _literal_reshape,
    "Unsqueeze": _literal_reshape,
    "Sum": _add_chain,
    "BatchNormalization": _scale_and_shift,
    "Softmax": _flattened_softmax,
    "LogSoftmax": _flattened_softmax,
    "Hardmax": _flattened_softmax,
    "Dropout": _all_true_mask,
    **dict.fromkeys(_WINDOWED, _explicit_window),
}
