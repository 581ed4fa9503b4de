"""Owns the faults that a verification has to notice, as changes to the ONNX model of one fusion group.

A kernel with a fault is what a wrong schedule, packing or index would have made of it: it skips a tap, mixes up
channels, forgets an epilogue, reads a row too far. Two forms of it: `model` is the group's model with other operators; or, when
`model` is None, the kernel stays and `weights` says what becomes of the values of its weights, which comes to the same.
"""

from collections.abc import Iterator, Mapping, Sequence
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

_TO_IDENTITY = frozenset(
    {"Relu", "LeakyRelu", "PRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Selu", "Gelu", "Softplus"}
    | {"Erf", "Exp", "Sqrt", "Abs", "Neg", "Log", "Mish", "Reciprocal", "Softsign", "Floor", "Ceil", "Round", "Sign"}
    | {"Cos", "Sin"}
)
_REDUCTIONS = frozenset(
    {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"}
    | {"Softmax", "LogSoftmax", "LayerNormalization", "InstanceNormalization"}
    | {"GlobalAveragePool", "GlobalMaxPool", "AveragePool"}
)
_PADDED = frozenset({"Conv", "MaxPool", "AveragePool"})


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


def faults(model: onnx.ModelProto, weights: Sequence[str]) -> tuple[Fault, ...]:
    """Return every known fault of a group's model; `weights` are those of its inputs that are constant.

    Each keeps the shapes and dtypes of the group's outputs. Some may change nothing: whether one does is for its
    output to tell.
    """
    view = _View(model=model, weights=frozenset(weights))
    found: list[Fault] = []
    for index, node in enumerate(model.graph.node):
        if node.domain not in ("", "ai.onnx"):
            continue
        found += _weight_faults(view, node)
        found += _epilogue_faults(view, index)
        found += _window_faults(view, index)
        found += _reduction_faults(view, index)
        found += _index_faults(view, index)
    for value in model.graph.output:
        found += _output_faults(view, value.name)
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class _View:
    """A group's model with its tensors looked up."""

    model: onnx.ModelProto
    weights: frozenset[str]

    @cached_property
    def types(self) -> Mapping[str, onnx.TypeProto.Tensor]:
        graph = self.model.graph
        return {value.name: value.type.tensor_type for value in (*graph.input, *graph.value_info, *graph.output)}

    @cached_property
    def constants(self) -> Mapping[str, Array]:
        return {tensor.name: numpy_helper.to_array(tensor) for tensor in self.model.graph.initializer}

    def shape(self, name: str) -> tuple[int, ...]:
        if name in self.constants:
            return tuple(self.constants[name].shape)
        return tuple(dim.dim_value for dim in self.types[name].shape.dim)

    def is_float(self, name: str) -> bool:
        return name in self.types and self.types[name].elem_type in (
            onnx.TensorProto.FLOAT,
            onnx.TensorProto.DOUBLE,
            onnx.TensorProto.FLOAT16,
        )

    def dtype(self, name: str) -> Any:
        return helper.tensor_dtype_to_np_dtype(self.types[name].elem_type)

    def copy(self) -> onnx.ModelProto:
        made = onnx.ModelProto()
        made.CopyFrom(self.model)
        return made


# --- weights ---------------------------------------------------------------------------------------------------------


def _weight_faults(view: _View, node: onnx.NodeProto) -> Iterator[Fault]:
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
        axis = _attribute(node, "axis", 0) % len(view.shape(inputs[0]))
        change = WeightChange(weight=inputs[0], action="roll", axis=axis)
        yield Fault(kind="index", note=f"rows of {inputs[0]} one off", weights=(change,))


def _conv_axes(node: onnx.NodeProto, shape: tuple[int, ...]) -> tuple[int, int | None, tuple[int, ...]]:
    return 0, 1, tuple(range(2, len(shape)))


def _transposed_axes(node: onnx.NodeProto, shape: tuple[int, ...]) -> tuple[int, int | None, tuple[int, ...]]:
    return 1, 0 if _attribute(node, "group", 1) == 1 else None, tuple(range(2, len(shape)))


def _matmul_axes(node: onnx.NodeProto, shape: tuple[int, ...]) -> tuple[int, int | None, tuple[int, ...]]:
    return len(shape) - 1, max(0, len(shape) - 2), ()


def _gemm_axes(node: onnx.NodeProto, shape: tuple[int, ...]) -> tuple[int, int | None, tuple[int, ...]]:
    return (0, 1, ()) if _attribute(node, "transB", 0) else (1, 0, ())


def _tap_faults(weight: str, shape: tuple[int, ...], spatial: tuple[int, ...]) -> Iterator[Fault]:
    if not spatial or all(shape[axis] == 1 for axis in spatial):
        return
    corners = {tuple(0 for _ in spatial), tuple(shape[axis] - 1 for axis in spatial)}
    for tap in sorted({*corners, tuple(shape[axis] // 2 for axis in spatial)}):
        more = tuple(zip(spatial[1:], tap[1:], strict=True))
        change = WeightChange(weight=weight, action="zero", axis=spatial[0], positions=(tap[0],), more=more)
        yield Fault(kind="tap", note=f"tap {tap} of {weight} skipped", weights=(change,))


def _channel_faults(weight: str, shape: tuple[int, ...], axis: int, bias: str | None, view: _View) -> Iterator[Fault]:
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


# --- operators -------------------------------------------------------------------------------------------------------


def _epilogue_faults(view: _View, index: int) -> Iterator[Fault]:
    node = view.model.graph.node[index]
    output = node.output[0]
    if not view.is_float(output):
        return
    same = [name for name in node.input if name in view.types and view.shape(name) == view.shape(output)]
    if node.op_type in _TO_IDENTITY and same[:1] == [node.input[0]]:
        yield Fault(kind="epilogue", note=f"{node.op_type} left out", model=_passed_on(view, index, node.input[0]))
    elif node.op_type == "Clip":
        yield from _clip_faults(view, index)
    elif node.op_type in ("Add", "Mul", "Sub", "Div", "Sum", "Max", "Min") and len(node.input) == 2:
        for name in dict.fromkeys(same):
            other = node.input[1] if name == node.input[0] else node.input[0]
            note = f"{other} of {node.op_type} ignored"
            yield Fault(kind="epilogue", note=note, model=_passed_on(view, index, name))
        wrong = {"Add": "Sub", "Sub": "Add", "Mul": "Add", "Div": "Mul", "Max": "Min", "Min": "Max"}.get(node.op_type)
        if wrong is not None:
            made = view.copy()
            made.graph.node[index].op_type = wrong
            yield Fault(kind="epilogue", note=f"{node.op_type} done as {wrong}", model=made)


def _passed_on(view: _View, index: int, name: str) -> onnx.ModelProto:
    """Return the model with one node replaced by × 1 of one of its inputs: an identity that no importer elides."""
    made = view.copy()
    node = made.graph.node[index]
    output = node.output[0]
    one = numpy_helper.from_array(np.ones((), view.dtype(output)), "one")
    made.graph.initializer.append(one)
    node.CopyFrom(helper.make_node("Mul", [name, "one"], [output]))
    return _pruned(made)


def _clip_faults(view: _View, index: int) -> Iterator[Fault]:
    node = view.model.graph.node[index]
    for position, word in ((1, "min"), (2, "max")):
        made = view.copy()
        changed = made.graph.node[index]
        if len(node.input) > position and node.input[position] in view.constants:
            bound = view.constants[node.input[position]]
            moved = numpy_helper.from_array(np.asarray(_moved(bound, word), bound.dtype), f"moved_{word}")
            made.graph.initializer.append(moved)
            changed.input[position] = moved.name
        elif any(attribute.name == word for attribute in node.attribute):
            attribute = next(item for item in changed.attribute if item.name == word)
            attribute.f = float(_moved(np.array(attribute.f), word))
        else:
            continue
        yield Fault(kind="epilogue", note=f"{word} of Clip moved", model=_pruned(made))


def _moved(bound: Array, word: str) -> Array:
    return bound * 0.5 if word == "max" and bound > 0 else bound + 0.25 if word == "min" else bound - 0.25


def _window_faults(view: _View, index: int) -> Iterator[Fault]:
    """Shift the window by one: a pad moves from one side to the other, so that the output keeps its shape."""
    node = view.model.graph.node[index]
    pads = list(_attribute(node, "pads", []))
    if node.op_type not in _PADDED or not any(pads):
        return
    rank = len(pads) // 2
    for axis in range(rank):
        source, target = (axis, axis + rank) if pads[axis] else (axis + rank, axis)
        if not pads[source]:
            continue
        shifted = list(pads)
        shifted[source] -= 1
        shifted[target] += 1
        made = view.copy()
        attribute = next(item for item in made.graph.node[index].attribute if item.name == "pads")
        attribute.ints[:] = shifted
        yield Fault(kind="pads", note=f"pads {pads} taken as {shifted}", model=made)


def _reduction_faults(view: _View, index: int) -> Iterator[Fault]:
    """Let a reduction read 0 in place of the last element of an axis that it reduces."""
    node = view.model.graph.node[index]
    source = node.input[0] if node.input else ""
    if node.op_type in _REDUCTIONS or (node.op_type == "MatMul" and node.input[1] not in view.weights):
        if not view.is_float(source) or source in view.weights:
            return
        axis = _reduced_axis(view, node, view.shape(source))
        if axis is None or view.shape(source)[axis] < 2:
            return
        made = view.copy()
        _masked_input(view, made, index, axis)
        yield Fault(kind="reduction", note=f"last element of axis {axis} of {node.op_type} skipped", model=made)


def _reduced_axis(view: _View, node: onnx.NodeProto, shape: tuple[int, ...]) -> int | None:
    if node.op_type in ("GlobalAveragePool", "GlobalMaxPool", "AveragePool", "InstanceNormalization"):
        return len(shape) - 1
    if node.op_type in ("Softmax", "LogSoftmax", "LayerNormalization"):
        return int(_attribute(node, "axis", -1)) % len(shape)
    if node.op_type == "MatMul":
        return len(shape) - 1
    axes = _attribute(node, "axes", None)
    if axes is None and len(node.input) > 1 and node.input[1] in view.constants:
        axes = view.constants[node.input[1]].reshape(-1).tolist()
    return int(axes[-1]) % len(shape) if axes else len(shape) - 1 if shape else None


def _masked_input(view: _View, made: onnx.ModelProto, index: int, axis: int) -> None:
    source = made.graph.node[index].input[0]
    shape = view.shape(source)
    mask = np.ones([size if i == axis else 1 for i, size in enumerate(shape)], view.dtype(source))
    mask.reshape(-1)[-1] = 0
    made.graph.initializer.append(numpy_helper.from_array(mask, "mask"))
    made.graph.value_info.append(helper.make_tensor_value_info("masked", view.types[source].elem_type, shape))
    made.graph.node[index].input[0] = "masked"
    made.graph.node.insert(index, helper.make_node("Mul", [source, "mask"], ["masked"]))


# --- indices ---------------------------------------------------------------------------------------------------------


def _index_faults(view: _View, index: int) -> Iterator[Fault]:
    node = view.model.graph.node[index]
    makers = {
        "Concat": _concat_fault,
        "Transpose": _transpose_fault,
        "Slice": _slice_fault,
        "Split": _split_fault,
        "Gather": _gather_fault,
        "Pad": _pad_fault,
        "Resize": _resize_fault,
        "DepthToSpace": _depth_fault,
    }
    made = view.copy()
    note = makers[node.op_type](view, node, made, made.graph.node[index]) if node.op_type in makers else None
    if note is not None:
        yield Fault(kind="index", note=note, model=_pruned(made))


def _concat_fault(view: _View, node: Any, made: Any, changed: Any) -> str | None:
    if len(node.input) < 2 or node.input[0] == node.input[1]:
        return None
    changed.input[0], changed.input[1] = node.input[1], node.input[0]
    return "first two parts of Concat exchanged"


def _transpose_fault(view: _View, node: Any, made: Any, changed: Any) -> str | None:
    shape = view.shape(node.output[0])
    perm = list(_attribute(node, "perm", list(range(len(shape)))[::-1]))
    pair = _equal_axes(shape)
    if pair is None:
        return None
    first, second = pair
    perm[first], perm[second] = perm[second], perm[first]
    _set_attribute(changed, "perm", perm)
    return f"axes {first} and {second} of Transpose exchanged"


def _slice_fault(view: _View, node: Any, made: Any, changed: Any) -> str | None:
    if len(node.input) < 3 or any(name not in view.constants for name in node.input[1:] if name):
        return None
    starts, ends = (view.constants[name].astype(np.int64) for name in node.input[1:3])
    shape = view.shape(node.input[0])
    axes = view.constants[node.input[3]].tolist() if len(node.input) > 3 and node.input[3] else range(len(starts))
    steps = view.constants[node.input[4]].tolist() if len(node.input) > 4 and node.input[4] else [1] * len(starts)
    for at, (axis, step) in enumerate(zip(axes, steps, strict=True)):
        size = shape[axis]
        low = min(int(starts[at]) + size if starts[at] < 0 else int(starts[at]), size)
        high = min(int(ends[at]) + size if ends[at] < 0 else int(ends[at]), size)
        by = -1 if low > 0 else 1
        if step != 1 or high + by > size:
            continue
        moved_starts, moved_ends = starts.copy(), ends.copy()
        moved_starts[at], moved_ends[at] = low + by, high + by
        for position, value in ((1, moved_starts), (2, moved_ends)):
            made.graph.initializer.append(numpy_helper.from_array(value, f"moved{position}"))
            changed.input[position] = f"moved{position}"
        return f"Slice of axis {axis} moved by {by}"
    return None


def _split_fault(view: _View, node: Any, made: Any, changed: Any) -> str | None:
    if len(node.output) < 2 or view.shape(node.output[0]) != view.shape(node.output[1]):
        return None
    changed.output[0], changed.output[1] = node.output[1], node.output[0]
    return "first two parts of Split exchanged"


def _gather_fault(view: _View, node: Any, made: Any, changed: Any) -> str | None:
    if node.input[1] not in view.constants:
        return None
    indices = view.constants[node.input[1]]
    size = view.shape(node.input[0])[_attribute(node, "axis", 0)]
    made.graph.initializer.append(numpy_helper.from_array(np.asarray((indices + 1) % size, indices.dtype), "moved"))
    changed.input[1] = "moved"
    return "indices of Gather one off"


def _pad_fault(view: _View, node: Any, made: Any, changed: Any) -> str | None:
    if len(node.input) < 2 or node.input[1] not in view.constants:
        return None
    pads = view.constants[node.input[1]].copy()
    source = int(np.argmax(pads > 0))
    if pads[source] <= 0:
        return None
    target = (source + len(pads) // 2) % len(pads)
    pads[source] -= 1
    pads[target] += 1
    made.graph.initializer.append(numpy_helper.from_array(pads, "moved"))
    changed.input[1] = "moved"
    return "Pad moved by one"


def _resize_fault(view: _View, node: Any, made: Any, changed: Any) -> str | None:
    if _attribute(node, "mode", b"nearest") == b"nearest":
        is_floor = _attribute(node, "nearest_mode", b"round_prefer_floor") != b"ceil"
        _set_attribute(changed, "nearest_mode", "ceil" if is_floor else "floor")
        return "Resize rounds the other way"
    is_asymmetric = _attribute(node, "coordinate_transformation_mode", b"half_pixel") == b"asymmetric"
    _set_attribute(changed, "coordinate_transformation_mode", "half_pixel" if is_asymmetric else "asymmetric")
    return "Resize places its samples otherwise"


def _depth_fault(view: _View, node: Any, made: Any, changed: Any) -> str | None:
    _set_attribute(changed, "mode", "CRD" if _attribute(node, "mode", b"DCR") == b"DCR" else "DCR")
    return "DepthToSpace in the other order"


# --- outputs ---------------------------------------------------------------------------------------------------------


def _output_faults(view: _View, output: str) -> Iterator[Fault]:
    """Zero the first or last row of an output, or exchange two of its axes."""
    if output not in view.types or view.types[output].elem_type in (onnx.TensorProto.BOOL, onnx.TensorProto.STRING):
        return
    shape = view.shape(output)
    axis = 2 if len(shape) == 4 and shape[2] > 1 else max(range(len(shape)), key=lambda i: shape[i], default=None)
    if axis is None or shape[axis] < 2:
        return
    for position, word in ((0, "first"), (-1, "last")):
        mask = np.ones([size if i == axis else 1 for i, size in enumerate(shape)], view.dtype(output))
        mask.reshape(-1)[position] = 0
        made = view.copy()
        made.graph.initializer.append(numpy_helper.from_array(mask, "mask"))
        _append(view, made, output, helper.make_node("Mul", ["raw", "mask"], [output]))
        yield Fault(kind="border", note=f"{word} row of axis {axis} of {output} is 0", model=made)
    pair = _equal_axes(shape)
    if pair is not None:
        perm = list(range(len(shape)))
        perm[pair[0]], perm[pair[1]] = pair[1], pair[0]
        made = view.copy()
        _append(view, made, output, helper.make_node("Transpose", ["raw"], [output], perm=perm))
        yield Fault(kind="index", note=f"strides of axes {pair[0]} and {pair[1]} of {output} exchanged", model=made)


def _append(view: _View, made: onnx.ModelProto, output: str, node: onnx.NodeProto) -> None:
    """Make `node` compute an output from what computed it so far, now called `raw`; readers inside keep that."""
    for existing in made.graph.node:
        for names in (existing.input, existing.output):
            for position, name in enumerate(names):
                if name == output:
                    names[position] = "raw"
    made.graph.value_info.append(helper.make_tensor_value_info("raw", view.types[output].elem_type, view.shape(output)))
    made.graph.node.append(node)


def _equal_axes(shape: Sequence[int]) -> tuple[int, int] | None:
    """Return the last two axes of equal size above 1."""
    for second in reversed(range(len(shape))):
        for first in reversed(range(second)):
            if shape[first] == shape[second] > 1:
                return first, second
    return None


# --- models ----------------------------------------------------------------------------------------------------------


def _pruned(model: onnx.ModelProto) -> onnx.ModelProto:
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


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    found = next((item for item in node.attribute if item.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def _set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    kept = [_clone(item) for item in node.attribute if item.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
