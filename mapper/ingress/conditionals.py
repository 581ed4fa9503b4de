"""Replacing an If whose condition is a known constant by the branch that is taken."""

from collections.abc import Mapping

import numpy as np
import onnx

from mapper.ingress.wiring import is_onnx, subgraphs, writes


def inline_known_branches(graph: onnx.GraphProto, values: Mapping[str, np.ndarray]) -> bool:
    """Inline, in place, every If whose condition is among `values`; tell whether there was one.

    Names inside the branch get a prefix of their own; the If's outputs keep theirs.
    """
    nodes: list[onnx.NodeProto] = []
    changed = False
    for index, node in enumerate(graph.node):
        if node.op_type != "If" or not is_onnx(node) or node.input[0] not in values:
            nodes.append(_copy(node))
            continue
        taken = "then_branch" if bool(np.all(values[node.input[0]])) else "else_branch"
        branch = next(attribute.g for attribute in node.attribute if attribute.name == taken)
        nodes += _branch_nodes(graph, node, branch, f"{node.name or 'If'}_{index}/{taken}/")
        changed = True
    if changed:
        del graph.node[:]
        graph.node.extend(nodes)
    return changed


def _branch_nodes(
    graph: onnx.GraphProto, node: onnx.NodeProto, branch: onnx.GraphProto, prefix: str
) -> list[onnx.NodeProto]:
    inner = [name for child in branch.node for name in writes(child)] + [t.name for t in branch.initializer]
    names = {name: prefix + name for name in inner}
    nodes = []
    for tensor in branch.initializer:
        copied = graph.initializer.add()
        copied.CopyFrom(tensor)
        copied.name = names[tensor.name]
    for child in branch.node:
        copied_node = _copy(child)
        if copied_node.name:
            copied_node.name = prefix + copied_node.name
        _rename(copied_node, names)
        nodes.append(copied_node)
    for given, outer in zip(branch.output, node.output, strict=True):
        if outer:
            nodes.append(onnx.helper.make_node("Identity", [names.get(given.name, given.name)], [outer]))
    return nodes


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename what a node reads and writes; in its subgraphs, what they capture."""
    for field in (node.input, node.output):
        for position, name in enumerate(field):
            field[position] = names.get(name, name)
    for graph in subgraphs(node):
        own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        own |= {name for child in graph.node for name in writes(child)}
        outer = {old: new for old, new in names.items() if old not in own}
        for child in graph.node:
            _rename(child, outer)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    return copied
