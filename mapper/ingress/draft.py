"""The canonical graph while it is being rewritten: nodes, constants and static types, and the edits they allow."""

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mapper.ingress.identities import identity_of
from mapper.ingress.statics import analyse, elem_type_of, spec_of
from mapper.ingress.wiring import constant_value, is_onnx, reads, topological, writes
from mapper.records import TensorSpec

_MIN_IR_VERSION = 8


@dataclass(slots=True)
class Draft:
    """A graph under rewriting. Nodes are in an executable order; every node has static types for what it writes."""

    name: str
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: list[onnx.NodeProto]
    constants: dict[str, np.ndarray]
    types: dict[str, TensorSpec]
    taken: set[str] = field(default_factory=set)

    def fresh(self, base: str) -> str:
        """Return a tensor name that nothing uses, `base` followed by a number where needed."""
        name, number = base, 0
        while name in self.taken:
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name

    def constant(self, base: str, value: np.ndarray) -> str:
        """Add a constant and return its name."""
        name = self.fresh(base)
        self.define(name, value)
        return name

    def define(self, name: str, value: np.ndarray) -> None:
        """Make the tensor `name` a constant."""
        self.constants[name] = value
        self.types[name] = TensorSpec(name=name, shape=value.shape, dtype=value.dtype.name)

    def tensor(self, base: str, shape: tuple[int, ...], dtype: str) -> str:
        """Reserve an intermediate tensor and return its name."""
        name = self.fresh(base)
        self.types[name] = TensorSpec(name=name, shape=shape, dtype=dtype)
        return name

    def read_names(self) -> set[str]:
        """Return every tensor that a node or the graph's outputs read."""
        return {name for node in self.nodes for name in reads(node)} | {spec.name for spec in self.outputs}


def open_draft(model: onnx.ModelProto, opset: int) -> Draft:
    """Take a static model apart. Types of tensors that inference cannot find are absent from the draft."""
    types = dict(analyse(model).types)
    graph = model.graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    nodes = []
    for index in topological(graph.node) or ():
        node = onnx.NodeProto()
        node.CopyFrom(graph.node[index])
        value = constant_value(node) if node.op_type == "Constant" and is_onnx(node) else None
        if value is None:
            nodes.append(node)
        else:
            constants[node.output[0]] = value
    for name, value in constants.items():
        types[name] = TensorSpec(name=name, shape=value.shape, dtype=value.dtype.name)
    specs = [[spec for value in values if (spec := spec_of(value))] for values in (graph.input, graph.output)]
    taken = set(types) | {name for node in nodes for name in (*reads(node), *writes(node))}
    return Draft(
        name=graph.name,
        opset=opset,
        inputs=tuple(spec for spec in specs[0] if spec.name not in constants),
        outputs=tuple(types.get(value.name) or spec_of(value) or _unknown(value.name) for value in graph.output),
        nodes=nodes,
        constants=constants,
        types=types,
        taken=taken,
    )


def close_draft(draft: Draft) -> onnx.ModelProto:
    """Put the graph together: static types on every tensor, nodes named, constants as initializers."""
    _name_nodes(draft.nodes)
    ends = {spec.name for spec in (*draft.inputs, *draft.outputs)}
    graph = helper.make_graph(
        draft.nodes,
        draft.name or "canonical",
        [_value_info(spec) for spec in draft.inputs],
        [_value_info(spec) for spec in draft.outputs],
        [numpy_helper.from_array(value, name) for name, value in draft.constants.items()],
        value_info=[
            _value_info(draft.types[name])
            for node in draft.nodes
            for name in writes(node)
            if name not in ends and name in draft.types
        ],
    )
    opsets = [helper.make_opsetid("", draft.opset)]
    version = max(_MIN_IR_VERSION, helper.find_min_ir_version_for(opsets))
    return helper.make_model(graph, opset_imports=opsets, ir_version=version, producer_name="mapper")


def elide_identities(draft: Draft) -> int:
    """Remove nodes that give back an input, and return how many went.

    A graph output keeps its name: the node before it takes it over, or one Identity stays where there is none.
    """
    ends = {spec.name for spec in draft.outputs}
    fixed = ends | {spec.name for spec in draft.inputs} | set(draft.constants)
    read = draft.read_names()
    alias: dict[str, str] = {}
    rename: dict[str, str] = {}
    kept: list[onnx.NodeProto] = []
    for node in draft.nodes:
        _substitute(node, alias)
        found = identity_of(node, draft.types, draft.constants)
        if found is None or any(name in read for name in node.output[1:] if name):
            kept.append(node)
            continue
        source, result = found[0], node.output[0]
        if result not in ends:
            alias[result] = source
        elif source in fixed or source in rename:
            kept.append(helper.make_node("Identity", [source], [result], name=node.name))
        else:
            rename[source] = result
    removed = len(draft.nodes) - len(kept)
    for node in kept:
        _substitute(node, rename)
        for position, name in enumerate(node.output):
            node.output[position] = rename.get(name, name)
    draft.nodes = kept
    return removed


def drop_unused(draft: Draft) -> None:
    """Remove nodes and constants that no graph output needs; text-valued constants go with them."""
    needed = {spec.name for spec in draft.outputs}
    kept = []
    for node in reversed(draft.nodes):
        if any(name in needed for name in writes(node)):
            needed.update(reads(node))
            kept.append(node)
    draft.nodes = kept[::-1]
    draft.constants = {name: value for name, value in draft.constants.items() if name in needed}


def keep_constant_outputs(draft: Draft) -> None:
    """Give a graph output that is a constant a node of its own: one Identity from the renamed constant."""
    for spec in draft.outputs:
        if spec.name in draft.constants:
            source = draft.constant(f"{spec.name}__value", draft.constants.pop(spec.name))
            for node in draft.nodes:
                _substitute(node, {spec.name: source})
            draft.nodes.append(helper.make_node("Identity", [source], [spec.name]))


def _name_nodes(nodes: list[onnx.NodeProto]) -> None:
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.name] = counts.get(node.name, 0) + 1
    taken = {name for name, count in counts.items() if count == 1}
    for index, node in enumerate(nodes):
        if node.name and counts[node.name] == 1:
            continue
        name = f"{node.op_type}_{index}"
        while name in taken:
            name += "_"
        node.name = name
        taken.add(name)


def _substitute(node: onnx.NodeProto, names: dict[str, str]) -> None:
    for position, name in enumerate(node.input):
        node.input[position] = names.get(name, name)


def _value_info(spec: TensorSpec) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(spec.name, elem_type_of(spec.dtype), spec.shape)


def _unknown(name: str) -> TensorSpec:
    return TensorSpec(name=name, shape=(), dtype="unknown")
