"""Merging chains of constant Muls and Adds (a batch norm followed by a scale layer) into one Mul and one Add."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from mapper.ingress.draft import Draft
from mapper.ingress.wiring import is_onnx, reads


@dataclass(slots=True)
class _Link:
    """A Mul or Add of an activation with a constant, both of one shape class: the activation's shape is kept."""

    node: onnx.NodeProto
    source: str
    operand: np.ndarray


def merge_affine(draft: Draft) -> int:
    """Replace chains of three or more links that hold a Mul and an Add, and return how many nodes that saves.

    x·a + b, then ·c + d, is x·(ac) + (bc + d), computed in float64. A chain is left alone when something else reads
    its inside, when the merged constants would be larger than the ones it has, or when they would not be finite.
    """
    links = {node.output[0]: link for node in draft.nodes if (link := _link(node, draft)) is not None}
    readers: dict[str, int] = {spec.name: 1 for spec in draft.outputs}
    for node in draft.nodes:
        for name in node.input:
            readers[name] = readers.get(name, 0) + 1
    inside = {link.source for link in links.values() if link.source in links and readers[link.source] == 1}
    replaced: dict[str, list[onnx.NodeProto]] = {}
    dropped: set[str] = set()
    for name in [name for name in links if name not in inside]:
        chain = _chain(name, links, inside)
        merged = _merged(chain, draft)
        if merged:
            replaced[name] = merged
            dropped.update(link.node.output[0] for link in chain[:-1])
    before = len(draft.nodes)
    kept = (node for node in draft.nodes if not node.output or node.output[0] not in dropped)
    draft.nodes = [new for node in kept for new in replaced.get(next(iter(node.output), ""), [node])]
    return before - len(draft.nodes)


def _link(node: onnx.NodeProto, draft: Draft) -> _Link | None:
    if node.op_type not in ("Mul", "Add") or not is_onnx(node) or len(reads(node)) != 2:
        return None
    for position in (0, 1):
        source, operand = node.input[position], draft.constants.get(node.input[1 - position])
        if operand is None or source in draft.constants or operand.dtype not in (np.float32, np.float64):
            continue
        if draft.types[source].shape == draft.types[node.output[0]].shape:
            return _Link(node, source, operand)
    return None


def _chain(name: str, links: dict[str, _Link], inside: set[str]) -> list[_Link]:
    """Return the links that end at a tensor, first to last."""
    chain = [links[name]]
    while chain[0].source in inside:
        chain.insert(0, links[chain[0].source])
    return chain


def _merged(chain: Sequence[_Link], draft: Draft) -> list[onnx.NodeProto] | None:
    if len(chain) < 3 or {link.node.op_type for link in chain} != {"Mul", "Add"}:
        return None
    factor, shift = np.ones(()), np.zeros(())
    for link in chain:
        operand = link.operand.astype(np.float64)
        if link.node.op_type == "Mul":
            factor, shift = factor * operand, shift * operand
        else:
            shift = shift + operand
    dtype = chain[0].operand.dtype
    with np.errstate(over="ignore"):
        values = [np.asarray(value).astype(dtype) for value in (factor, shift)]
    largest = max(link.operand.size for link in chain)
    if any(value.size > largest or not np.isfinite(value).all() for value in values):
        return None
    last = chain[-1].node
    base = last.output[0]
    spec = draft.types[base]
    names = [draft.constant(f"{base}__{what}", value) for what, value in zip(("scale", "shift"), values, strict=True)]
    scaled = draft.tensor(f"{base}__scaled", spec.shape, spec.dtype)
    return [
        helper.make_node("Mul", [chain[0].source, names[0]], [scaled]),
        helper.make_node("Add", [scaled, names[1]], [base], name=last.name),
    ]
