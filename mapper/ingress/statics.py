"""What is known of a bound model without running it: static types, constant tensors, the values of small ones."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from mapper.ingress.wiring import attributes, constant_value, is_onnx, reads, topological, writes
from mapper.records import TensorSpec

SMALL_ELEMENTS = 1024
RANDOM_OPS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
# Left to the kernels: the reference evaluator is slow or wrong on some (SAME_LOWER pooling, opset-9 batch norm).
_NOT_EVALUATED = RANDOM_OPS | {
    *(
        "BatchNormalization",
        "Conv",
        "ConvTranspose",
        "Dropout",
        "LpPool",
        "MaxPool",
        "AveragePool",
        "Resize",
        "Upsample",
    ),
    *("LSTM", "GRU", "RNN", "Loop", "Scan", "If"),
}
_SHAPE_OPS = frozenset({"Shape", "Size"})
_HEAVY_B = 8192
_MAX_ROUNDS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Statics:
    """Static `types` by tensor name (absent: not known), and `values` of constants of at most 1,024 elements."""

    types: Mapping[str, TensorSpec]
    values: Mapping[str, np.ndarray]


def analyse(model: onnx.ModelProto) -> Statics:
    """Infer the static type of every tensor, folding shape arithmetic between rounds of ONNX shape inference.

    Stored shapes of intermediate tensors and outputs are kept as hints: clear them first when they may be stale.

    Raises:
        onnx.shape_inference.InferenceError: when the shapes contradict each other.
    """
    values = small_constants(model.graph)
    shell = shell_of(model)
    names = [name for node in model.graph.node for name in writes(node)]
    known: set[str] = set()
    types: dict[str, TensorSpec] = {}
    for _ in range(_MAX_ROUNDS):
        inferred = onnx.shape_inference.infer_shapes(shell, data_prop=True)
        types = _heavy_types(model.graph) | types_of(inferred.graph)
        fold_small(model, types, values)
        if all(name in types for name in names) or values.keys() <= known:
            break
        _replace_folded(shell, values)
        known = set(values)
    return Statics(types=types, values=values)


def shell_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model without its heavy tensors, which become graph inputs: checkable at any size of weights."""
    shell = onnx.ModelProto(ir_version=max(model.ir_version, 4), producer_name=model.producer_name)
    shell.opset_import.extend(model.opset_import)
    shell.functions.extend(model.functions)
    shell.graph.name = model.graph.name
    shell.graph.input.extend(model.graph.input)
    shell.graph.output.extend(model.graph.output)
    shell.graph.value_info.extend(model.graph.value_info)
    stored = {value.name for value in model.graph.input}
    heavy: list[tuple[str, int, Sequence[int]]] = []
    for tensor in model.graph.initializer:
        if tensor.ByteSize() <= _HEAVY_B:
            shell.graph.initializer.append(tensor)
        else:
            heavy.append((tensor.name, tensor.data_type, tensor.dims))
    shell.graph.sparse_initializer.extend(model.graph.sparse_initializer)
    for node in model.graph.node:
        if node.op_type == "Constant" and is_onnx(node) and node.ByteSize() > _HEAVY_B:
            value = node.attribute[0].t
            heavy.append((node.output[0], value.data_type, value.dims))
        else:
            shell.graph.node.append(node)
    for name, elem_type, dims in heavy:
        if name not in stored:
            shell.graph.input.append(helper.make_tensor_value_info(name, elem_type, list(dims)))
    return shell


def constant_names(nodes: Sequence[onnx.NodeProto], stored: frozenset[str], static: frozenset[str]) -> frozenset[str]:
    """Return the tensors that do not depend on any graph input.

    Args:
        nodes: The graph's nodes, in any legal order.
        stored: Names of the initializers.
        static: Names of the tensors of static shape; their Shape and Size are constant.
    """
    constant = set(stored)
    for index in topological(nodes) or ():
        node = nodes[index]
        if is_constant(node, constant, static):
            constant.update(writes(node))
    return frozenset(constant)


def is_constant(node: onnx.NodeProto, constant: "set[str] | frozenset[str]", static: frozenset[str]) -> bool:
    """Tell whether all that a node reads is constant, or static where only the shape is read."""
    if node.op_type in RANDOM_OPS or not is_onnx(node):
        return False
    if node.op_type in _SHAPE_OPS and node.input[0] in static:
        return True
    return all(name in constant for name in reads(node))


def types_of(graph: onnx.GraphProto) -> dict[str, TensorSpec]:
    """Return every tensor whose stored type is static."""
    found = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        spec = spec_of(value)
        if spec is not None:
            found[value.name] = spec
    for tensor in graph.initializer:
        found[tensor.name] = TensorSpec(name=tensor.name, shape=tuple(tensor.dims), dtype=dtype_name(tensor.data_type))
    return found


def spec_of(value: onnx.ValueInfoProto) -> TensorSpec | None:
    """Return a value's type when it is a tensor of static shape."""
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    if not value.type.tensor_type.elem_type or any(not d.HasField("dim_value") or d.dim_value < 0 for d in dims):
        return None
    shape = tuple(dim.dim_value for dim in dims)
    return TensorSpec(name=value.name, shape=shape, dtype=dtype_name(value.type.tensor_type.elem_type))


def dtype_name(elem_type: int) -> str:
    """Return the lower-case numpy name of an ONNX element type (`float32`, `bfloat16`, `string`)."""
    if elem_type == onnx.TensorProto.STRING:
        return "string"
    return str(helper.tensor_dtype_to_np_dtype(elem_type).name)


def elem_type_of(dtype: str) -> int:
    """Return the ONNX element type of a dtype name, the inverse of `dtype_name`."""
    codes = [code for code in onnx.TensorProto.DataType.values() if code and dtype_name(code) == dtype]
    return int(codes[0])


def evaluate(
    node: onnx.NodeProto, operands: Mapping[str, np.ndarray], opsets: Sequence[Any]
) -> dict[str, np.ndarray] | None:
    """Run one node with ONNX's reference evaluator; None when that cannot, or is not to be trusted with it."""
    if node.op_type in _NOT_EVALUATED or not is_onnx(node):
        return None
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(operands[name].dtype), operands[name].shape)
        for name in dict.fromkeys(reads(node))
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in writes(node)]
    model = helper.make_model(helper.make_graph([node], "one", inputs, outputs), opset_imports=list(opsets))
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = ReferenceEvaluator(model).run(None, {name: operands[name] for name in reads(node)})
    except Exception:
        return None
    return {name: np.asarray(result) for name, result in zip(writes(node), results, strict=True)}


def _heavy_types(graph: onnx.GraphProto) -> dict[str, TensorSpec]:
    heavy = {}
    for node in graph.node:
        if node.op_type == "Constant" and is_onnx(node):
            value = constant_value(node)
            if value is not None:
                name = node.output[0]
                heavy[name] = TensorSpec(name=name, shape=value.shape, dtype=value.dtype.name)
    return heavy


def small_constants(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    """Return the values of the small initializers and Constant nodes of a graph."""
    values = {t.name: numpy_helper.to_array(t) for t in graph.initializer if prod(t.dims) <= SMALL_ELEMENTS}
    for node in graph.node:
        if node.op_type == "Constant" and is_onnx(node) and node.ByteSize() <= 16 * SMALL_ELEMENTS:
            value = constant_value(node)
            if value is not None and value.size <= SMALL_ELEMENTS:
                values[node.output[0]] = value
    return values


def fold_small(model: onnx.ModelProto, types: Mapping[str, TensorSpec], values: dict[str, np.ndarray]) -> None:
    """Add to `values` what follows from them, as far as inputs and outputs are small."""
    for node in model.graph.node:
        outputs = writes(node)
        if not outputs or outputs[0] in values or not is_onnx(node):
            continue
        if node.op_type in _SHAPE_OPS and node.input[0] in types:
            values[outputs[0]] = shape_value(node, types[node.input[0]].shape)
        elif all(name in values for name in reads(node)) and _is_small(node, types, values):
            result = evaluate(node, values, model.opset_import)
            values.update({name: value for name, value in (result or {}).items() if value.size <= SMALL_ELEMENTS})


def shape_value(node: onnx.NodeProto, shape: tuple[int, ...]) -> np.ndarray:
    """Return what a Shape or Size node gives for a static input shape."""
    if node.op_type == "Size":
        return np.asarray(prod(shape), np.int64)
    given = attributes(node)
    return np.asarray(shape[given.get("start", 0) : given.get("end")], np.int64)


def _is_small(node: onnx.NodeProto, types: Mapping[str, TensorSpec], values: Mapping[str, np.ndarray]) -> bool:
    if node.op_type in ("ConstantOfShape", "Expand", "Tile", "Range", "Pad", "Resize", "OneHot"):
        # Their outputs can be far larger than their inputs: only with a known, small result.
        known = types.get(node.output[0])
        if node.op_type == "ConstantOfShape":
            return bool(prod(map(int, values[node.input[0]])) <= SMALL_ELEMENTS)
        return known is not None and prod(known.shape) <= SMALL_ELEMENTS
    return all(prod(types[name].shape) <= SMALL_ELEMENTS for name in writes(node) if name in types)


def _replace_folded(shell: onnx.ModelProto, values: Mapping[str, np.ndarray]) -> None:
    """Turn nodes whose outputs are known into initializers, so that inference sees through them."""
    stored = {tensor.name for tensor in shell.graph.initializer}
    kept = []
    for node in shell.graph.node:
        if writes(node) and all(name in values for name in writes(node)):
            for name in writes(node):
                if name not in stored:
                    shell.graph.initializer.append(numpy_helper.from_array(values[name], name))
        else:
            kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del shell.graph.node[:]
    shell.graph.node.extend(kept)
