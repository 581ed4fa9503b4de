"""Owns what one fusion group is: its arguments, its key and its name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from mapper.keys import digest
from mapper.plan.graph import SINCE_VERSION
from mapper.plan.tensors import element_bytes
from mapper.records import Group, Operator, OperatorGraph, TensorSpec

_MAX_NAMED_OPERATORS = 6


@dataclass(frozen=True, kw_only=True)
class Uses:
    """Who makes and who reads each tensor of a graph, looked up once for all groups."""

    graph: OperatorGraph
    boundaries: frozenset[str] = frozenset()  # tensors that must stay visible, graph outputs apart

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """The operator that computes a tensor; graph inputs and constants have none."""
        return {name: operator.index for operator in self.graph.operators for name in operator.outputs if name}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[int, ...]]:
        """The operators that read a tensor, ascending, each once."""
        readers: dict[str, list[int]] = {}
        for operator in self.graph.operators:
            for name in dict.fromkeys(operator.inputs):
                readers.setdefault(name, []).append(operator.index)
        return {name: tuple(indices) for name, indices in readers.items()}

    @cached_property
    def visible(self) -> frozenset[str]:
        """Tensors that exist whatever the plan: graph outputs and boundaries."""
        return self.boundaries | frozenset(self.graph.outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """A group's arguments by role, in order of first use."""

    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]


def wire(uses: Uses, members: Iterable[int]) -> Wiring:
    """Return the wiring of the operators `members`.

    A tensor leaves the group when an operator outside reads it, when it is visible, or when its operator would
    otherwise give nothing.
    """
    graph = uses.graph
    indices = sorted(members)
    inside = set(indices)
    operators = [graph.operators[index] for index in indices]
    made = {name for operator in operators for name in operator.outputs if name}
    read = dict.fromkeys(name for operator in operators for name in operator.inputs if name and name not in made)
    weights = tuple(name for name in read if name in graph.weights)
    inputs = tuple(name for name in read if name not in graph.constants and name not in graph.weights)
    outputs = tuple(name for operator in operators for name in _leaving(uses, operator, inside))
    return Wiring(inputs=inputs, weights=weights, outputs=outputs)


def baked_constants(graph: OperatorGraph, operators: Iterable[Operator]) -> tuple[str, ...]:
    """Return the constants that the operators' kernel knows at compile time, in order of first use."""
    read = dict.fromkeys(name for operator in operators for name in operator.inputs)
    return tuple(name for name in read if name in graph.constants)


def local_names(operators: Sequence[Operator], arguments: Wiring | Group, baked: Sequence[str]) -> dict[str, str]:
    """Return the local name of each tensor of a group: in0 …, w0 …, c0 … baked, out0 …, t0 … for what stays inside."""
    local = {}
    roles = (("in", arguments.inputs), ("w", arguments.weights), ("c", baked), ("out", arguments.outputs))
    for prefix, names in roles:
        local.update({name: f"{prefix}{position}" for position, name in enumerate(names)})
    internals = [name for operator in operators for name in operator.outputs if name and name not in local]
    local.update({name: f"t{position}" for position, name in enumerate(internals)})
    return local


def make_group(uses: Uses, members: Iterable[int]) -> Group:
    """Return the group of the operators `members`, complete but for a name that is unique in its plan."""
    graph = uses.graph
    indices = tuple(sorted(members))
    operators = [graph.operators[index] for index in indices]
    wiring = wire(uses, indices)
    anchor = max(operators, key=lambda operator: (operator.flops, -operator.index))
    return Group(
        key=group_key(graph, operators, wiring),
        name=_describe(graph, operators, anchor),
        family=anchor.op_type,
        operators=indices,
        anchor=anchor.index,
        inputs=wiring.inputs,
        weights=wiring.weights,
        outputs=wiring.outputs,
        flops=sum(operator.flops for operator in operators),
        longlat_flops=sum(operator.longlat_flops for operator in operators),
        bytes_compulsory=sum(
            prod(graph.tensors[name].shape) * element_bytes(graph.tensors[name])
            for name in (*wiring.inputs, *wiring.weights, *wiring.outputs)
        ),
    )


def group_key(graph: OperatorGraph, operators: Sequence[Operator], wiring: Wiring) -> str:
    """Return the hash of what a group computes: operators, attributes, wiring, shapes, dtypes, baked values."""
    baked = baked_constants(graph, operators)
    local = local_names(operators, wiring, baked)
    return digest(
        {
            "operators": [
                {
                    "op_type": operator.op_type,
                    "domain": operator.domain,
                    "since_version": operator.attributes.get(SINCE_VERSION),
                    "attributes": {key: value for key, value in operator.attributes.items() if key != SINCE_VERSION},
                    "inputs": [local[name] if name else "" for name in operator.inputs],
                    "outputs": [local[name] if name else "" for name in operator.outputs],
                }
                for operator in operators
            ],
            "tensors": {
                local[name]: [list(graph.tensors[name].shape), graph.tensors[name].dtype] for name in sorted(local)
            },
            "constants": {local[name]: graph.constants[name] for name in baked},
        }
    )


def unique_names(groups: Iterable[Group]) -> Mapping[str, str]:
    """Return a name for each key, short, and distinct where keys are; clashes get a piece of the key."""
    by_key = {group.key: group.name for group in groups}
    keys_of: dict[str, list[str]] = {}
    for key, name in by_key.items():
        keys_of.setdefault(name, []).append(key)
    return {key: name if len(keys_of[name]) == 1 else f"{name}_{key[:6]}" for key, name in by_key.items()}


def _leaving(uses: Uses, operator: Operator, inside: set[int]) -> list[str]:
    names = [name for name in operator.outputs if name]
    leaving = [
        name
        for name in names
        if name in uses.visible or any(reader not in inside for reader in uses.consumers.get(name, ()))
    ]
    is_dead = not leaving and not any(uses.consumers.get(name) for name in names)
    return names[:1] if is_dead else leaving


def _describe(graph: OperatorGraph, operators: list[Operator], anchor: Operator) -> str:
    head = _describe_anchor(graph, anchor)
    before = [operator.op_type.lower() for operator in operators if operator.index < anchor.index]
    after = [operator.op_type.lower() for operator in operators if operator.index > anchor.index]
    parts = [*_shorten(before), head, *_shorten(after)]
    return "_".join(parts)


def _shorten(words: list[str]) -> list[str]:
    if len(words) <= _MAX_NAMED_OPERATORS:
        return words
    return [*words[: _MAX_NAMED_OPERATORS - 1], f"{len(words) - _MAX_NAMED_OPERATORS + 1}more"]


def _describe_anchor(graph: OperatorGraph, anchor: Operator) -> str:
    word = anchor.op_type.lower()
    tensors = graph.tensors
    output = tensors[anchor.outputs[0]]
    if anchor.op_type in ("Conv", "ConvTranspose"):
        return _describe_conv(word, anchor, tensors)
    if anchor.op_type == "MatMul":
        inner = tensors[anchor.inputs[0]].shape[-1:]
        return f"{word}_{_by(output.shape[:-1] + inner + output.shape[-1:])}"
    if anchor.op_type == "Gemm":
        inner = (tensors[anchor.inputs[0]].shape[0 if anchor.attributes.get("transA") else 1],)
        return f"{word}_{_by(output.shape[:1] + inner + output.shape[1:])}"
    window = _by(anchor.attributes.get("kernel_shape"))
    source = tensors[anchor.inputs[0]].shape if anchor.inputs and anchor.inputs[0] else ()
    if prod(source) > prod(output.shape) and not window:  # reductions: what is read says more than what is left
        return f"{word}_{_by(source) or 'scalar'}"
    return f"{word}{window}{_strides(anchor)}_{_by(output.shape) or 'scalar'}"


def _describe_conv(word: str, anchor: Operator, tensors: Mapping[str, TensorSpec]) -> str:
    source, weight, output = (tensors[name].shape for name in (anchor.inputs[0], anchor.inputs[1], anchor.outputs[0]))
    groups = anchor.attributes.get("group", 1)
    grouping = ""
    if isinstance(groups, int) and groups > 1:
        grouping = "dw" if groups == source[1] == output[1] else f"g{groups}"
    return f"{grouping}{word}{_by(weight[2:])}{_strides(anchor)}_{source[1]}_{output[1]}_{_by(output[2:])}"


def _strides(anchor: Operator) -> str:
    strides = anchor.attributes.get("strides")
    if not isinstance(strides, list) or all(step == 1 for step in strides):
        return ""
    return f"s{strides[0]}" if len(set(strides)) == 1 else f"s{_by(strides)}"


def _by(extents: object) -> str:
    return "x".join(str(extent) for extent in extents) if isinstance(extents, list | tuple) else ""
