"""What the original and the canonical graph have in common: equal tensors, surviving names, slices between them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
import onnx

from mapper.ingress.identities import identity_of
from mapper.ingress.statics import RANDOM_OPS, constant_names, fold_small, small_constants, types_of
from mapper.ingress.wiring import reads, topological, writes

if TYPE_CHECKING:
    from mapper.ingress.model import LoadedModel


@dataclass(frozen=True, slots=True)
class Original:
    """Facts about the original graph. Tensors that are provably equal share a class, named by one of them."""

    nodes: Sequence[onnx.NodeProto]
    constant: frozenset[str]
    classes: dict[str, str]
    identities: dict[int, str]  # node position to evidence
    producers: dict[str, tuple[int, ...]]  # class to the nodes that compute it, identities left out
    outputs: frozenset[str]  # classes of the graph's outputs

    def read_classes(self, index: int) -> frozenset[str]:
        """Return the classes of the non-constant tensors that a node reads."""
        return frozenset(self.classes[name] for name in reads(self.nodes[index]) if name not in self.constant)

    def written_classes(self, index: int) -> frozenset[str]:
        """Return the classes of the non-constant tensors that a node writes."""
        return frozenset(self.classes[name] for name in writes(self.nodes[index]) if name not in self.constant)

    def is_folded(self, index: int) -> bool:
        """Tell whether a node's outputs are all constant."""
        return all(name in self.constant for name in writes(self.nodes[index]))

    def live(self) -> frozenset[int]:
        """Return the nodes whose values reach a graph output."""
        found: set[int] = set()
        visited: set[str] = set()
        todo = sorted(self.outputs)
        while todo:
            name = todo.pop()
            if name in visited:
                continue
            visited.add(name)
            for index in self.producers.get(name, ()):
                found.add(index)
                todo += self.read_classes(index)
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class Canonical:
    """Facts about the canonical graph in terms of the original's classes."""

    nodes: Sequence[onnx.NodeProto]
    surviving: dict[str, str]  # canonical tensor to original class
    producer: dict[str, int]

    def slice_of(self, tensor: str) -> frozenset[int]:
        """Return the operators that compute a tensor from surviving ones."""
        found: set[int] = set()
        todo = [self.producer[tensor]]
        while todo:
            index = todo.pop()
            if index in found:
                continue
            found.add(index)
            names = [name for name in reads(self.nodes[index]) if name not in self.surviving]
            todo += [self.producer[name] for name in names if name in self.producer]
        return frozenset(found)

    def read_classes(self, operators: Iterable[int]) -> frozenset[str]:
        """Return the classes that operators read from surviving tensors."""
        names = {name for index in operators for name in reads(self.nodes[index])}
        return frozenset(self.surviving[name] for name in names if name in self.surviving)

    def written_classes(self, operators: Iterable[int]) -> frozenset[str]:
        """Return the classes of the surviving tensors that operators write."""
        names = {name for index in operators for name in writes(self.nodes[index])}
        return frozenset(self.surviving[name] for name in names if name in self.surviving)

    def is_copy(self, index: int) -> bool:
        """Tell whether an operator only hands a tensor on under another name."""
        return bool(self.nodes[index].op_type == "Identity")

    def cells(self) -> list[frozenset[int]]:
        """Return the operators grouped by what joins them: tensors that the original does not know."""
        graph = nx.Graph()
        graph.add_nodes_from(range(len(self.nodes)))
        for index, node in enumerate(self.nodes):
            names = [name for name in reads(node) if name not in self.surviving and name in self.producer]
            graph.add_edges_from((self.producer[name], index) for name in names)
        return [frozenset(cell) for cell in nx.connected_components(graph)]


def original_facts(model: "LoadedModel") -> Original:
    """Find out which tensors of a loaded model are constant, and which provably equal each other."""
    nodes = model.original
    graph = model.proto.graph
    types = types_of(graph)
    values = small_constants(graph)
    fold_small(model.proto, types, values)
    constant = constant_names(nodes, frozenset(tensor.name for tensor in graph.initializer), frozenset(types))
    classes = {value.name: value.name for value in graph.input}
    identities: dict[int, str] = {}
    producers: dict[str, list[int]] = defaultdict(list)
    twins: dict[object, int] = {}
    for index in topological(nodes) or ():
        node = nodes[index]
        found = identity_of(node, types, values)
        if found is not None and found[0] not in constant:
            identities[index] = found[1]
            classes[node.output[0]] = classes[found[0]]
        twin = nodes[twins.setdefault(_congruence(node, classes, values), index)]
        for name, same in zip(node.output, twin.output, strict=True):
            classes.setdefault(name, classes.get(same, name))
        if index not in identities:
            for name in writes(node):
                producers[classes[name]].append(index)
    outputs = frozenset(classes.get(value.name, value.name) for value in graph.output)
    computed = {name: tuple(indices) for name, indices in producers.items()}
    return Original(nodes, constant, classes, identities, computed, outputs)


def _congruence(node: onnx.NodeProto, classes: Mapping[str, str], values: Mapping[str, np.ndarray]) -> object:
    """Return what makes two nodes compute the same: operator, attributes, and equal operands."""
    operands: list[object] = []
    for name in reads(node):
        value = values.get(name)
        content = None if value is None else (str(value.dtype), value.shape, value.tobytes())
        operands.append(content or classes.get(name, name))
    given = tuple(sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute))
    present = tuple(bool(name) for name in (*node.input, *node.output))
    random = node.output[0] if node.op_type in RANDOM_OPS else ""
    return (node.op_type, node.domain, given, present, tuple(operands), random)


def canonical_facts(model: "LoadedModel", canonical: onnx.ModelProto, original: Original) -> Canonical:
    """Find the surviving tensors: those of the same name, type and dtype in both graphs."""
    before, after = types_of(model.proto.graph), types_of(canonical.graph)
    stored = {tensor.name for tensor in canonical.graph.initializer}
    surviving = {
        name: original.classes[name]
        for name, spec in after.items()
        if name in original.classes
        and name not in original.constant
        and name not in stored
        and before.get(name) == spec
    }
    producer = {name: index for index, node in enumerate(canonical.graph.node) for name in writes(node)}
    return Canonical(canonical.graph.node, surviving, producer)
