"""Owns the faults of what an operator does: epilogues, windows, reductions, and rows of the output."""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mapper.validate.fault import Array, Fault, View, attribute_of, equal_axes, pruned

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


def epilogue_faults(view: View, index: int) -> Iterator[Fault]:
    """Yield an element-wise operator left out, mistaken for another, or with one operand or bound wrong."""
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


def _passed_on(view: View, index: int, name: str) -> onnx.ModelProto:
    """Return the model with one node replaced by × 1 of one of its inputs: an identity that no importer elides."""
    made = view.copy()
    node = made.graph.node[index]
    output = node.output[0]
    one = numpy_helper.from_array(np.ones((), view.dtype(output)), "one")
    made.graph.initializer.append(one)
    node.CopyFrom(helper.make_node("Mul", [name, "one"], [output]))
    return pruned(made)


def _clip_faults(view: View, index: int) -> Iterator[Fault]:
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
        yield Fault(kind="epilogue", note=f"{word} of Clip moved", model=pruned(made))


def _moved(bound: Array, word: str) -> Array:
    return bound * 0.5 if word == "max" and bound > 0 else bound + 0.25 if word == "min" else bound - 0.25


def window_faults(view: View, index: int) -> Iterator[Fault]:
    """Shift the window by one: a pad moves from one side to the other, so that the output keeps its shape."""
    node = view.model.graph.node[index]
    pads = list(attribute_of(node, "pads", []))
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


def reduction_faults(view: View, index: int) -> Iterator[Fault]:
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


def _reduced_axis(view: View, node: onnx.NodeProto, shape: tuple[int, ...]) -> int | None:
    if node.op_type in ("GlobalAveragePool", "GlobalMaxPool", "AveragePool", "InstanceNormalization"):
        return len(shape) - 1
    if node.op_type in ("Softmax", "LogSoftmax", "LayerNormalization"):
        return int(attribute_of(node, "axis", -1)) % len(shape)
    if node.op_type == "MatMul":
        return len(shape) - 1
    axes = attribute_of(node, "axes", None)
    if axes is None and len(node.input) > 1 and node.input[1] in view.constants:
        axes = view.constants[node.input[1]].reshape(-1).tolist()
    return int(axes[-1]) % len(shape) if axes else len(shape) - 1 if shape else None


def _masked_input(view: View, made: onnx.ModelProto, index: int, axis: int) -> None:
    source = made.graph.node[index].input[0]
    shape = view.shape(source)
    mask = np.ones([size if i == axis else 1 for i, size in enumerate(shape)], view.dtype(source))
    mask.reshape(-1)[-1] = 0
    made.graph.initializer.append(numpy_helper.from_array(mask, "mask"))
    made.graph.value_info.append(helper.make_tensor_value_info("masked", view.types[source].elem_type, shape))
    made.graph.node[index].input[0] = "masked"
    made.graph.node.insert(index, helper.make_node("Mul", [source, "mask"], ["masked"]))


def output_faults(view: View, output: str) -> Iterator[Fault]:
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
    pair = equal_axes(shape)
    if pair is not None:
        perm = list(range(len(shape)))
        perm[pair[0]], perm[pair[1]] = pair[1], pair[0]
        made = view.copy()
        _append(view, made, output, helper.make_node("Transpose", ["raw"], [output], perm=perm))
        yield Fault(kind="index", note=f"strides of axes {pair[0]} and {pair[1]} of {output} exchanged", model=made)


def _append(view: View, made: onnx.ModelProto, output: str, node: onnx.NodeProto) -> None:
    """Make `node` compute an output from what computed it so far, now called `raw`; readers inside keep that."""
    for existing in made.graph.node:
        for names in (existing.input, existing.output):
            for position, name in enumerate(names):
                if name == output:
                    names[position] = "raw"
    made.graph.value_info.append(helper.make_tensor_value_info("raw", view.types[output].elem_type, view.shape(output)))
    made.graph.node.append(node)
