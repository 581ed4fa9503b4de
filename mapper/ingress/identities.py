"""Which nodes give back one of their inputs unchanged, and how that can be seen without running them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from mapper.ingress.wiring import attributes, is_onnx
from mapper.records import TensorSpec

_SAME_SHAPE = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Tile"})
_SINGLE_INPUT = frozenset({"Concat", "Sum", "Max", "Min", "Mean"})
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}
_COMMUTATIVE = frozenset({"Add", "Mul"})


def identity_of(
    node: onnx.NodeProto, types: Mapping[str, TensorSpec], values: Mapping[str, np.ndarray]
) -> tuple[str, str] | None:
    """Return the input that a node's first output equals, and the evidence; None when that cannot be seen.

    Args:
        node: The node to judge. Its further outputs (a Dropout's mask) are not looked at.
        types: Static types; input and output must both be known and equal.
        values: Constants by name, as far as they are known.
    """
    if not is_onnx(node) or not node.input or not node.output:
        return None
    for position, evidence in _claims(node, types, values):
        source, result = types.get(node.input[position]), types.get(node.output[0])
        if source is not None and result is not None and (source.shape, source.dtype) == (result.shape, result.dtype):
            return node.input[position], evidence
    return None


def _claims(
    node: onnx.NodeProto, types: Mapping[str, TensorSpec], values: Mapping[str, np.ndarray]
) -> list[tuple[int, str]]:
    """Return input positions that the output equals provided that shape and dtype agree."""
    op = node.op_type
    given = attributes(node)
    evidence: str | None = None
    if op == "Identity":
        evidence = "Identity passes its input on"
    elif op == "Dropout":
        evidence = "Dropout passes its input on at inference" if _is_inference(node, values) else None
    elif op in ("Cast", "CastLike"):
        evidence = f"{op} to the dtype that its input has"
    elif op in _SAME_SHAPE:
        evidence = f"{op} to the shape that its input has"
    elif op in _SINGLE_INPUT:
        evidence = f"{op} of a single input" if len(node.input) == 1 else None
    elif op == "Transpose":
        evidence = "Transpose keeps the order of the axes" if _keeps_order(given, types.get(node.input[0])) else None
    elif op == "Slice":
        evidence = "Slice takes every element in order" if _steps_forward(node, values) else None
    elif op == "Pad":
        evidence = "Pad adds nothing" if _adds_nothing(node, given, values) else None
    elif op in _NEUTRAL:
        return _neutral_operand(node, values)
    return [(0, evidence)] if evidence else []


def _is_inference(node: onnx.NodeProto, values: Mapping[str, np.ndarray]) -> bool:
    if len(node.input) < 3 or not node.input[2]:
        return True
    return node.input[2] in values and not np.any(values[node.input[2]])


def _keeps_order(given: Mapping[str, Any], source: TensorSpec | None) -> bool:
    if source is None:
        return False
    rank = len(source.shape)
    return list(given.get("perm", reversed(range(rank)))) == list(range(rank))


def _steps_forward(node: onnx.NodeProto, values: Mapping[str, np.ndarray]) -> bool:
    if len(node.input) < 5 or not node.input[4]:
        return True
    return node.input[4] in values and bool(np.all(values[node.input[4]] > 0))


def _adds_nothing(node: onnx.NodeProto, given: Mapping[str, Any], values: Mapping[str, np.ndarray]) -> bool:
    if len(node.input) > 1:
        return node.input[1] in values and not np.any(values[node.input[1]])
    return not any(given.get("pads", [1]))


def _neutral_operand(node: onnx.NodeProto, values: Mapping[str, np.ndarray]) -> list[tuple[int, str]]:
    neutral = _NEUTRAL[node.op_type]
    claims = []
    for position in (1, 0) if node.op_type in _COMMUTATIVE else (1,):
        value = values.get(node.input[position])
        if value is not None and value.size and np.all(value == neutral):
            claims.append((1 - position, f"{node.op_type} with the constant {neutral}"))
    return claims
