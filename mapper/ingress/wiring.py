"""How ONNX nodes are wired: what a node really reads, how it is labelled, its attributes, a topological order."""

from collections.abc import Iterable, Sequence
from typing import Any

import networkx as nx
import numpy as np
import onnx
from onnx import numpy_helper

DEFAULT_DOMAINS = ("", "ai.onnx")


def label(node: onnx.NodeProto, index: int) -> str:
    """Name a node for a message: operator type, position and, where the model gave one, its own name."""
    own = f" '{node.name}'" if node.name else f" (output '{next(iter(node.output), '')}')"
    return f"{node.op_type}#{index}{own}"


def is_onnx(node: onnx.NodeProto) -> bool:
    """Tell whether a node is an operator of the ai.onnx domain."""
    return node.domain in DEFAULT_DOMAINS


def reads(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the tensors a node reads: its inputs, and what its subgraphs capture from outside."""
    names = [name for name in node.input if name]
    for graph in subgraphs(node):
        names += [name for name in _captured(graph) if name not in names]
    return tuple(names)


def writes(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the tensors a node writes, absent optional outputs left out."""
    return tuple(name for name in node.output if name)


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs a node holds as attributes (If, Loop, Scan)."""
    return [g for attribute in node.attribute for g in ([attribute.g] if attribute.HasField("g") else attribute.graphs)]


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes as Python values: numbers, lists, text, numpy arrays; subgraphs as they are."""
    return {attribute.name: _value(attribute) for attribute in node.attribute}


def constant_value(node: onnx.NodeProto) -> np.ndarray | None:
    """Return what a Constant node holds, None for text, which no kernel computes with."""
    if not node.attribute:
        return None
    attribute = node.attribute[0]
    value = _value(attribute)
    match attribute.name:
        case "value":
            return np.asarray(value)
        case "value_float" | "value_floats":
            return np.asarray(value, np.float32)
        case "value_int" | "value_ints":
            return np.asarray(value, np.int64)
        case "sparse_value":
            return _dense(attribute.sparse_tensor)
    return None


def topological(nodes: Sequence[onnx.NodeProto]) -> list[int] | None:
    """Return node positions in an executable order, file order kept where it is legal; None when there is a cycle."""
    producer = {name: index for index, node in enumerate(nodes) for name in writes(node)}
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(nodes)))
    for index, node in enumerate(nodes):
        graph.add_edges_from((producer[name], index) for name in reads(node) if name in producer)
    try:
        return list(nx.lexicographical_topological_sort(graph))
    except nx.NetworkXUnfeasible:
        return None


def cycle_members(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """Return the positions of the nodes of one cycle."""
    producer = {name: index for index, node in enumerate(nodes) for name in writes(node)}
    edges = [(producer[name], i) for i, node in enumerate(nodes) for name in reads(node) if name in producer]
    return sorted({index for edge in nx.find_cycle(nx.DiGraph(edges)) for index in edge[:2]})


def _captured(graph: onnx.GraphProto) -> Iterable[str]:
    inner = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    inner |= {name for node in graph.node for name in writes(node)}
    wanted = [name for node in graph.node for name in reads(node)] + [value.name for value in graph.output]
    return dict.fromkeys(name for name in wanted if name not in inner)


def _value(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if attribute.type == onnx.AttributeProto.STRINGS:
        return [item.decode("utf-8", "replace") for item in value]
    if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        return list(value)
    return value


def _dense(sparse: onnx.SparseTensorProto) -> np.ndarray:
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense
