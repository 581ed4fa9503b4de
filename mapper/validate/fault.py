"""Owns what a fault of one fusion group is, and the look into the group's ONNX model that finding faults needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
Action = Literal["zero", "scale", "swap", "roll"]
SCALE = 1.5
KINDS = ("tap", "channels", "bias", "reduction", "epilogue", "pads", "border", "index")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChange:
    """What becomes of one weight: `zero` or `scale` (all of it, or one position of an axis), `swap` two, `roll` by one.

    `axis` None means the whole weight; `positions` are one index of `axis`, or the two that are swapped.
    """

    weight: str
    action: Action
    axis: int | None = None
    positions: tuple[int, ...] = ()
    more: tuple[tuple[int, int], ...] = ()  # further (axis, position): a tap has one a spatial axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of one group."""

    kind: str
    note: str
    model: onnx.ModelProto | None = None
    weights: tuple[WeightChange, ...] = ()


@dataclass(frozen=True, kw_only=True)
class View:
    """A group's model with its tensors looked up."""

    model: onnx.ModelProto
    weights: frozenset[str]

    @cached_property
    def types(self) -> Mapping[str, onnx.TypeProto.Tensor]:
        """The types of all tensors but constants."""
        graph = self.model.graph
        return {value.name: value.type.tensor_type for value in (*graph.input, *graph.value_info, *graph.output)}

    @cached_property
    def constants(self) -> Mapping[str, Array]:
        """The values that the kernel knows at compile time."""
        return {tensor.name: numpy_helper.to_array(tensor) for tensor in self.model.graph.initializer}

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        if name in self.constants:
            return tuple(self.constants[name].shape)
        return tuple(dim.dim_value for dim in self.types[name].shape.dim)

    def is_float(self, name: str) -> bool:
        """Say whether a tensor that is no constant holds floating-point numbers."""
        return name in self.types and self.types[name].elem_type in (
            onnx.TensorProto.FLOAT,
            onnx.TensorProto.DOUBLE,
            onnx.TensorProto.FLOAT16,
        )

    def dtype(self, name: str) -> Any:
        """Return the numpy dtype of a tensor that is no constant."""
        return helper.tensor_dtype_to_np_dtype(self.types[name].elem_type)

    def copy(self) -> onnx.ModelProto:
        """Return a model to make a fault in."""
        made = onnx.ModelProto()
        made.CopyFrom(self.model)
        return made


def pruned(model: onnx.ModelProto) -> onnx.ModelProto:
    """Drop nodes that no output needs any more, and constants and types that no node names."""
    wanted = {value.name for value in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
    kept.reverse()
    named = wanted.union(*(node.output for node in kept)) if kept else wanted
    for field, items in (
        (model.graph.node, [_clone(node) for node in kept]),
        (model.graph.initializer, [_clone(item) for item in model.graph.initializer if item.name in wanted]),
        (model.graph.input, [_clone(item) for item in model.graph.input if item.name in wanted]),
        (model.graph.value_info, [_clone(item) for item in model.graph.value_info if item.name in named]),
    ):
        del field[:]
        field.extend(items)
    return model


def _clone(message: Any) -> Any:
    made = type(message)()
    made.CopyFrom(message)
    return made


def attribute_of(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """Return the value of a node's attribute, text as bytes; `default` when it has none of that name."""
    found = next((item for item in node.attribute if item.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    """Give a node an attribute in place of any of that name."""
    kept = [_clone(item) for item in node.attribute if item.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def equal_axes(shape: Sequence[int]) -> tuple[int, int] | None:
    """Return the last two axes of equal size above 1."""
    for second in reversed(range(len(shape))):
        for first in reversed(range(second)):
            if shape[first] == shape[second] > 1:
                return first, second
    return None
