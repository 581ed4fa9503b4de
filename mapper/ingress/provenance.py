"""Which original nodes stand behind each canonical operator, found through surviving tensor names, and its check."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import networkx as nx
import onnx

from mapper.ingress.correspondence import Canonical, Original, canonical_facts, original_facts
from mapper.ingress.wiring import reads, writes
from mapper.records import NodeReason, NodeRef

if TYPE_CHECKING:
    from mapper.ingress.model import LoadedModel
    from mapper.ingress.normalize import Normalized

_DEAD = "output is not used by any graph output"


def trace(model: "LoadedModel", canonical: onnx.ModelProto) -> tuple[NodeRef, ...]:
    """Account for every node of the original file.

    The nodes behind a canonical operator are the backward slice, in the original graph, from the surviving tensors
    that it leads to back to those it reads. Nodes behind none are folded, elided, or dead; dead ones are filed as
    elided, with that as evidence.
    """
    original = original_facts(model)
    graph = canonical_facts(model, canonical, original)
    behind: dict[int, set[int]] = defaultdict(set)
    for tensor in (name for node in graph.nodes for name in writes(node) if name in graph.surviving):
        operators = graph.slice_of(tensor)
        if all(graph.is_copy(index) for index in operators):
            for index in _copies(original, tensor):
                behind[index] |= operators
            continue
        for index in _region(original, graph, tensor, operators):
            behind[index] |= operators
    live = original.live()
    return tuple(_reference(original, index, behind.get(index, set()), live) for index in range(len(original.nodes)))


def check_provenance(original: "LoadedModel", normalized: "Normalized") -> list[str]:
    """Check the map from original nodes to canonical operators, and return what is wrong with it.

    Checked are: one entry a node, in order; reasons that hold; operators that all stand for something; and for each
    cell of operators that the nodes behind it are connected, read just what the cell reads, and write what it writes.
    """
    facts = original_facts(original)
    graph = canonical_facts(original, normalized.proto, facts)
    violations = _check_entries(facts, normalized.nodes, len(graph.nodes))
    if violations:
        return violations
    live = facts.live()
    for index, entry in enumerate(normalized.nodes):
        violations += _check_reason(facts, entry, index, live)
    behind = [frozenset(entry.canonical) for entry in normalized.nodes]
    for cell in graph.cells():
        region = frozenset(index for index, operators in enumerate(behind) if operators & cell)
        violations += _check_cell(facts, graph, cell, region)
    if not violations:
        traced = trace(original, normalized.proto)
        violations += [
            f"node {new.index} should have operators {new.canonical}, reason {new.reason}: {new.evidence}"
            for new, old in zip(traced, normalized.nodes, strict=True)
            if (new.canonical, new.reason, new.evidence) != (old.canonical, old.reason, old.evidence)
        ]
    return violations


def _region(original: Original, graph: Canonical, tensor: str, operators: frozenset[int]) -> frozenset[int]:
    """Return the original nodes between a surviving tensor and the ones that its operators read."""
    target = graph.surviving[tensor]
    stop = graph.read_classes(operators)
    found, reached = _backward(original, target, stop)
    if reached - stop:  # an operand that the rewritten operators no longer need: stop at whatever survives
        found, _ = _backward(original, target, stop | (frozenset(graph.surviving.values()) - {target}))
    return found


def _backward(original: Original, target: str, stop: frozenset[str]) -> tuple[frozenset[int], frozenset[str]]:
    """Slice backward from a class; return the nodes passed and the classes at which nothing computes further."""
    found: set[int] = set()
    ends: set[str] = set()
    visited: set[str] = set()
    todo = [target]
    while todo:
        name = todo.pop()
        if name in visited:
            continue
        visited.add(name)
        if (name in stop and name != target) or name not in original.producers:
            ends.add(name)
            continue
        for index in original.producers[name]:
            found.add(index)
            todo += original.read_classes(index)
    return frozenset(found), frozenset(ends)


def _copies(original: Original, tensor: str) -> list[int]:
    """Return the original node that hands a tensor on under the name of a graph output."""
    return [index for index in original.identities if tensor in writes(original.nodes[index])]


def _reference(original: Original, index: int, operators: set[int], live: frozenset[int]) -> NodeRef:
    node = original.nodes[index]
    reason, evidence = (None, "") if operators else _reason(original, index, live)
    return NodeRef(
        index=index,
        name=node.name,
        op_type=node.op_type,
        domain=node.domain,
        outputs=tuple(node.output),
        canonical=tuple(sorted(operators)),
        reason=reason,
        evidence=evidence,
    )


def _reason(original: Original, index: int, live: frozenset[int]) -> tuple[NodeReason | None, str]:
    if original.is_folded(index):
        operands = ", ".join(reads(original.nodes[index]))
        return "folded", f"every input is constant: {operands}" if operands else "it has no inputs"
    if index in original.identities:
        return "elided", original.identities[index]
    if index not in live:
        return "elided", _DEAD
    return None, ""


def _check_entries(facts: Original, entries: Sequence[NodeRef], operators: int) -> list[str]:
    if len(entries) != len(facts.nodes):
        return [f"the map has {len(entries)} entries: the original has {len(facts.nodes)} nodes"]
    violations = []
    for index, (entry, node) in enumerate(zip(entries, facts.nodes, strict=True)):
        found = (entry.index, entry.name, entry.op_type, entry.domain, entry.outputs)
        if found != (index, node.name, node.op_type, node.domain, tuple(node.output)):
            violations.append(f"entry {index} does not describe node {index} of the original")
        if any(not 0 <= operator < operators for operator in entry.canonical):
            violations.append(f"node {index} names an operator that does not exist")
        if bool(entry.canonical) == (entry.reason is not None):
            violations.append(f"node {index} needs either operators or a reason")
    return violations


def _check_reason(facts: Original, entry: NodeRef, index: int, live: frozenset[int]) -> list[str]:
    folded = facts.is_folded(index)
    if entry.reason == "folded" and not folded:
        return [f"node {index} is said to be folded: not all its inputs are constant"]
    if entry.reason == "elided" and (folded or (index not in facts.identities and index in live)):
        return [f"node {index} is said to be elided: its output is not seen to equal its input"]
    return []


def _check_cell(facts: Original, graph: Canonical, cell: frozenset[int], region: frozenset[int]) -> list[str]:
    names = ", ".join(graph.nodes[index].name for index in sorted(cell))
    if all(graph.is_copy(index) for index in cell):
        wrong = [index for index in region if index not in facts.identities]
        return [f"{names}: only copies a tensor, node {index} does not" for index in wrong]
    if not region:
        return [f"{names}: no original node stands behind it"]
    read, written = graph.read_classes(cell), graph.written_classes(cell)
    consumed = frozenset().union(*(facts.read_classes(index) for index in region))
    produced = frozenset().union(*(facts.written_classes(index) for index in region))
    violations = []
    if consumed - produced - read:
        violations.append(f"{names}: its nodes read {sorted(consumed - produced - read)}, which it does not")
    if read - consumed:
        violations.append(f"{names}: reads {sorted(read - consumed)}, which its nodes do not")
    if written - produced:
        violations.append(f"{names}: writes {sorted(written - produced)}, which its nodes do not")
    idle = [i for i in sorted(region) if not facts.written_classes(i) & (written | consumed)]
    if idle:
        violations.append(f"{names}: does not need node {idle[0]}, which is said to stand behind it")
    if not _is_connected(facts, region):
        violations.append(f"{names}: the nodes behind it are not connected")
    return violations


def _is_connected(facts: Original, region: frozenset[int]) -> bool:
    """Tell whether nodes hang together by the tensors they exchange or share."""
    graph = nx.Graph()
    for index in region:
        graph.add_edges_from((index, ("t", name)) for name in facts.read_classes(index) | facts.written_classes(index))
    return bool(nx.is_connected(graph))
