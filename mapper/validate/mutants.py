"""Owns the faults that a verification has to notice, as changes to the ONNX model of one fusion group.

A kernel with a fault is what a wrong schedule, packing or index would have made of it: it skips a tap, mixes up
channels, forgets an epilogue, reads a row too far. Two forms of it: `model` is the group's model with other operators;
or, when `model` is None, the kernel stays and `weights` says what becomes of the values of its weights, which comes to
the same.
"""

from collections.abc import Sequence

import numpy as np
import onnx

from mapper.validate.fault import KINDS, SCALE, Array, Fault, View, WeightChange
from mapper.validate.fault_indices import index_faults
from mapper.validate.fault_operators import epilogue_faults, output_faults, reduction_faults, window_faults
from mapper.validate.fault_weights import weight_faults

__all__ = ["KINDS", "Fault", "WeightChange", "corrupted", "faults"]


def faults(model: onnx.ModelProto, weights: Sequence[str]) -> tuple[Fault, ...]:
    """Return every known fault of a group's model; `weights` are those of its inputs that are constant.

    Each keeps the shapes and dtypes of the group's outputs. Some may change nothing: whether one does is for its
    output to tell.
    """
    view = View(model=model, weights=frozenset(weights))
    found: list[Fault] = []
    for index, node in enumerate(model.graph.node):
        if node.domain not in ("", "ai.onnx"):
            continue
        found += weight_faults(view, node)
        found += epilogue_faults(view, index)
        found += window_faults(view, index)
        found += reduction_faults(view, index)
        found += index_faults(view, index)
    for value in model.graph.output:
        found += output_faults(view, value.name)
    return tuple(found)


def corrupted(value: Array, change: WeightChange) -> Array:
    """Return a copy of a weight with the change made."""
    result: Array = value.copy()
    if change.action == "roll":
        assert change.axis is not None
        return np.roll(result, 1, axis=change.axis)
    if change.action == "swap":
        assert change.axis is not None
        first, second = (_at(value, change.axis, position) for position in change.positions)
        result[first], result[second] = value[second], value[first]
        return result
    places = {**dict(change.more), **({} if change.axis is None else {change.axis: change.positions[0]})}
    where = tuple(places.get(axis, slice(None)) for axis in range(value.ndim))
    result[where] = 0 if change.action == "zero" else (value[where] * SCALE).astype(value.dtype)
    return result


def _at(value: Array, axis: int, position: int) -> tuple[slice | int, ...]:
    return tuple(position if index == axis else slice(None) for index in range(value.ndim))
