"""Owns the reading of a canonical ONNX model into an `OperatorGraph`."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import networkx as nx
import numpy as np
import onnx
from onnx import helper

from mapper.errors import BadInputError
from mapper.plan.flops import count
from mapper.plan.tensors import dtype_name, flat_json, tensor_json
from mapper.records import Operator, OperatorGraph, TensorSpec

# Reserved attribute of every `Operator`: the opset version since which its definition holds. ONNX attribute names are
# identifiers, so no real attribute can be called this.
SINCE_VERSION = "@since_version"

_REDUCTIONS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
)
# Inputs that decide what a kernel is rather than what it computes on: baked into it when constant.
_STRUCTURAL: Mapping[str, frozenset[int]] = {
    **{op: frozenset({1}) for op in _REDUCTIONS},
    **{op: frozenset({1}) for op in ("Reshape", "Expand", "Split", "Squeeze", "Unsqueeze", "TopK", "CumSum", "Trilu")},
    "Slice": frozenset({1, 2, 3, 4}),
    "Tile": frozenset({1, 2}),
    "Pad": frozenset({1, 2, 3}),
    "Resize": frozenset({1, 2, 3}),
    "Upsample": frozenset({1}),
    "OneHot": frozenset({1, 2}),
    "Clip": frozenset({1, 2}),
    "Range": frozenset({0, 1, 2}),
    "ConstantOfShape": frozenset({0}),
    "Dropout": frozenset({1, 2}),
    "CenterCropPad": frozenset({1}),
    "AffineGrid": frozenset({1}),
    "MaxUnpool": frozenset({2}),
    "NonMaxSuppression": frozenset({2, 3, 4}),
    "DFT": frozenset({1, 2}),
    "STFT": frozenset({1}),
}
# Constant indices are baked while they are few: a kernel that knows them is a strided copy.
_INDICES: Mapping[str, int] = {
    "Gather": 1,
    "GatherElements": 1,
    "GatherND": 1,
    "ScatterND": 1,
    "ScatterElements": 1,
}
_MAX_BAKED_INDICES = 1024
# Inputs that are kernel arguments even when they hold one element, so that a family has one calling convention.
_ARGUMENTS: Mapping[str, frozenset[int]] = {
    "Conv": frozenset({1, 2}),
    "ConvTranspose": frozenset({1, 2}),
    "Gemm": frozenset({0, 1, 2}),
    "MatMul": frozenset({0, 1}),
    "BatchNormalization": frozenset({1, 2, 3, 4}),
    "LayerNormalization": frozenset({1, 2}),
    "InstanceNormalization": frozenset({1, 2}),
    "GroupNormalization": frozenset({1, 2}),
    "RMSNormalization": frozenset({1}),
    "LSTM": frozenset({1, 2, 3, 7}),
    "GRU": frozenset({1, 2, 3}),
    "RNN": frozenset({1, 2, 3}),
    "Gather": frozenset({0}),
    "GatherElements": frozenset({0}),
    "GatherND": frozenset({0}),
}


def operator_graph(canonical: onnx.ModelProto) -> OperatorGraph:
    """Return the operator graph of a canonical model: static shapes, sorted nodes, constants as initializers.

    An operator's `index` is its node's position in `canonical.graph.node`. Optional outputs that nothing reads are
    dropped from the operator. Every operator carries the attribute `@since_version` (see `SINCE_VERSION`).

    Raises:
        BadInputError: A tensor without a static shape, an unsorted node, a `Constant` node or a node with a subgraph.
    """
    proto = canonical.graph
    specs = _tensor_specs(canonical)
    initializers = {tensor.name: tensor for tensor in proto.initializer}
    inputs = tuple(value.name for value in proto.input if value.name not in initializers)
    outputs = tuple(value.name for value in proto.output)
    used = {name for node in proto.node for name in node.input if name} | set(outputs)
    weights, baked = _split_constants(proto.node, initializers, outputs)
    opsets = {entry.domain: entry.version for entry in canonical.opset_import}

    known = set(inputs) | set(initializers)
    operators = []
    for index, node in enumerate(proto.node):
        _check_node(node, index, known)
        operators.append(_operator(node, index, specs, used, opsets))
        known.update(operators[-1].outputs)
    kept = {*inputs, *outputs, *weights, *baked}.union(*(op.outputs for op in operators))
    return OperatorGraph(
        operators=tuple(operators),
        tensors={name: _spec_of(specs, name, "graph") for name in sorted(kept)},
        inputs=inputs,
        outputs=outputs,
        weights=frozenset(weights),
        constants={name: tensor_json(initializers[name]) for name in sorted(baked)},
    )


def to_networkx(graph: OperatorGraph) -> nx.DiGraph:
    """Return the operators as a directed graph: an edge per producer and consumer, its `tensors` sorted by name."""
    result = nx.DiGraph()
    result.add_nodes_from(operator.index for operator in graph.operators)
    made_by = {name: operator.index for operator in graph.operators for name in operator.outputs if name}
    for operator in graph.operators:
        for name in sorted(set(operator.inputs)):
            if name not in made_by:
                continue
            source = made_by[name]
            if result.has_edge(source, operator.index):
                result.edges[source, operator.index]["tensors"] += (name,)
            else:
                result.add_edge(source, operator.index, tensors=(name,))
    return result


def _tensor_specs(canonical: onnx.ModelProto) -> dict[str, TensorSpec]:
    specs = dict(_declared(canonical.graph))
    if any(name and name not in specs for node in canonical.graph.node for name in node.output):
        typed = onnx.ModelProto()
        typed.CopyFrom(canonical)
        typed.ir_version = max(4, canonical.ir_version)  # before, inference overlooks initializers that are no inputs
        inferred = onnx.shape_inference.infer_shapes(typed, data_prop=True)
        specs = {**dict(_declared(inferred.graph)), **specs}
    return specs


def _declared(proto: onnx.GraphProto) -> Iterator[tuple[str, TensorSpec]]:
    for value in (*proto.input, *proto.value_info, *proto.output):
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
            continue
        if all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shape = tuple(dim.dim_value for dim in tensor.shape.dim)
            yield value.name, TensorSpec(name=value.name, shape=shape, dtype=dtype_name(tensor.elem_type))
    for constant in proto.initializer:
        spec = TensorSpec(name=constant.name, shape=tuple(constant.dims), dtype=dtype_name(constant.data_type))
        yield constant.name, spec


def _spec_of(specs: Mapping[str, TensorSpec], name: str, where: str) -> TensorSpec:
    if name not in specs:
        raise BadInputError(
            f"{where}: tensor {name!r}: expected a tensor of static shape, found none; bind its dimensions with --dim"
            " or --shape"
        )
    return specs[name]


def _split_constants(
    nodes: Iterable[onnx.NodeProto], initializers: Mapping[str, onnx.TensorProto], outputs: Iterable[str]
) -> tuple[set[str], set[str]]:
    """Return the constants that become arguments and those that are baked in; a structural use decides."""
    baked: set[str] = set()
    arguments = {name for name in outputs if name in initializers}
    scalars: set[str] = set()
    for node in nodes:
        op_type = node.op_type if node.domain in ("", "ai.onnx") else ""
        for position, name in enumerate(node.input):
            if name not in initializers:
                continue
            size = int(np.prod(initializers[name].dims, dtype=np.int64))
            few_indices = _INDICES.get(op_type) == position and size <= _MAX_BAKED_INDICES
            if few_indices or position in _STRUCTURAL.get(op_type, ()):
                baked.add(name)
            elif size > 1 or position in _ARGUMENTS.get(op_type, ()):
                arguments.add(name)
            else:
                scalars.add(name)
    arguments -= baked
    return arguments, baked | (scalars - arguments)


def _check_node(node: onnx.NodeProto, index: int, known: set[str]) -> None:
    where = f"node {index} ({node.op_type} {node.name!r})"
    if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
        raise BadInputError(f"{where}: expected constants as initializers, found a Constant node; normalise the model")
    missing = [name for name in node.input if name and name not in known]
    if missing:
        raise BadInputError(
            f"{where}: expected inputs that earlier nodes compute, found {missing[0]!r} undefined; sort the nodes"
        )


def _operator(
    node: onnx.NodeProto, index: int, specs: Mapping[str, TensorSpec], used: set[str], opsets: Mapping[str, int]
) -> Operator:
    where = f"node {index} ({node.op_type} {node.name!r})"
    domain = "" if node.domain == "ai.onnx" else node.domain
    inputs = list(node.input)
    while inputs and not inputs[-1]:
        inputs.pop()
    outputs = list(node.output)
    optional_from = _first_optional_output(node.op_type, domain, opsets.get(domain, opsets.get("ai.onnx", 1)))
    while len(outputs) > optional_from and outputs[-1] not in used:
        outputs.pop()
    attributes: dict[str, object] = {
        attribute.name: _attribute_json(attribute, where)
        for attribute in sorted(node.attribute, key=lambda item: item.name)
    }
    attributes[SINCE_VERSION] = _since_version(
        node.op_type, domain, opsets.get(domain, opsets.get("ai.onnx", 1) if not domain else 1)
    )
    flops, longlat = count(
        node.op_type,
        domain,
        attributes,
        tuple(_spec_of(specs, name, where) if name else None for name in inputs),
        tuple(_spec_of(specs, name, where) if name else None for name in outputs),
    )
    return Operator(
        index=index,
        name=node.name,
        op_type=node.op_type,
        domain=domain,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        attributes=attributes,
        flops=flops,
        longlat_flops=longlat,
    )


@lru_cache(maxsize=4096)
def _since_version(op_type: str, domain: str, opset: int) -> int:
    try:
        return int(onnx.defs.get_schema(op_type, opset, domain).since_version)
    except onnx.defs.SchemaError:
        return opset


@lru_cache(maxsize=4096)
def _first_optional_output(op_type: str, domain: str, opset: int) -> int:
    """Return the position from which outputs may be left out; 1 at least, so that every operator keeps one."""
    try:
        formal = onnx.defs.get_schema(op_type, opset, domain).outputs
    except onnx.defs.SchemaError:
        return 1_000_000
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    if any(parameter.option == variadic for parameter in formal):
        return 1_000_000
    required = [parameter for parameter in formal if parameter.option != optional]
    return max(1, len(required))


def _attribute_json(attribute: onnx.AttributeProto, where: str) -> object:
    value = helper.get_attribute_value(attribute)
    kinds = onnx.AttributeProto
    if attribute.type in (kinds.FLOAT, kinds.INT):
        return flat_json(np.array([value]))[0]
    if attribute.type == kinds.STRING:
        return str(value, errors="backslashreplace")
    if attribute.type in (kinds.FLOATS, kinds.INTS):
        return flat_json(np.array(value))
    if attribute.type == kinds.STRINGS:
        return [item.decode(errors="backslashreplace") for item in value]
    if attribute.type == kinds.TENSOR:
        return tensor_json(value)
    if attribute.type == kinds.TENSORS:
        return [tensor_json(item) for item in value]
    kind = kinds.AttributeType.Name(attribute.type).lower()
    raise BadInputError(
        f"{where}: attribute {attribute.name!r}: expected numbers, text or tensors, found a {kind}; "
        "cut the model before this node"
    )
