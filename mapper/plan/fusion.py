"""Owns the fusion plans: partitions of the operator graph into groups, each of which becomes one kernel."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import networkx as nx

from mapper.errors import BadInputError
from mapper.plan.chains import (
    Growth,
    grow_backward,
    grow_forward,
    is_anchor,
    is_elementwise,
    is_movement,
    is_reindexing,
)
from mapper.plan.group import Uses, make_group, unique_names
from mapper.plan.legality import check_plan, is_connected, quotient
from mapper.plan.regions import attention_regions, row_regions
from mapper.records import FusionPlan, Operator, OperatorGraph

__all__ = ["check_plan", "conservative", "epilogue_chains", "from_partition", "group_taps", "unfused"]

_FINAL = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "ArgMax"})
_PASS_THROUGH = frozenset({"Reshape", "Identity", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Cast"})


def unfused(graph: OperatorGraph) -> FusionPlan:
    """Return the plan in which every operator is a group of its own."""
    return _plan(Uses(graph=graph), [(operator.index,) for operator in graph.operators], "unfused")


def epilogue_chains(graph: OperatorGraph, boundaries: frozenset[str]) -> FusionPlan:
    """Return our own plan: longest legal element-wise epilogues, then prologues, around every compute operator.

    0. Attention, and normalisations written out as operators, are begun as whole regions: see `regions.py`.
    1. Every convolution, matrix product, pooling, reduction and normalisation takes the longest chain of element-wise
       operators after it: same shape, nothing else reads in between. Diamonds such as x * sigmoid(x) count as one link.
    2. It then takes the element-wise operators before it that nobody else reads.
    3. Movement operators take element-wise chains after them; those that re-index one tensor (Reshape, Transpose,
       Slice, …) take one another too: a channel shuffle is one copy.
       Products and normalisations take reshapes that keep rows whole.
    4. What is left of the element-wise operators fuses into the longest chains among themselves.

    Operators with several outputs and unknown ones stay alone. `boundaries` are tensors that stay visible
    besides the graph's outputs. Of two operators that could take the same one, the later does: the other operand of a
    residual addition is then ready.
    """
    return _grown(graph, boundaries, "epilogue-chains", with_prologues=True)


def conservative(graph: OperatorGraph, boundaries: frozenset[str]) -> FusionPlan:
    """Return the plan of `epilogue_chains` without attention and step 2: no reduction re-reads what it computes."""
    return _grown(graph, boundaries, "conservative", with_prologues=False)


def from_partition(
    graph: OperatorGraph,
    partition: Sequence[Sequence[int]],
    label: str,
    boundaries: frozenset[str] = frozenset(),
) -> FusionPlan:
    """Return the plan of a given partition, groups in execution order.

    Raises:
        BadInputError: An operator missing, repeated or unknown; a group empty or not connected; groups that need one
            another in a circle.
    """
    where = f"fusion plan {label!r}"
    seen: dict[int, int] = {}
    for position, members in enumerate(partition):
        if not members:
            raise BadInputError(f"{where}: group {position}: expected at least one operator, found none; remove it")
        for index in members:
            if not 0 <= index < len(graph.operators):
                raise BadInputError(
                    f"{where}: group {position}: expected operators 0 to {len(graph.operators) - 1}, found {index};"
                    " was the plan made for another model?"
                )
            if index in seen:
                raise BadInputError(
                    f"{where}: operator {index}: expected in one group, found in groups {seen[index]} and {position};"
                    " remove one"
                )
            seen[index] = position
    missing = [operator.index for operator in graph.operators if operator.index not in seen]
    if missing:
        raise BadInputError(
            f"{where}: expected all {len(graph.operators)} operators, found {len(missing)} in no group, first"
            f" {missing[0]}; add each to a group"
        )
    uses = Uses(graph=graph, boundaries=boundaries)
    for position, members in enumerate(partition):
        if not is_connected(uses, members):
            raise BadInputError(
                f"{where}: group {position} {sorted(members)}: expected connected operators, found parts that share no"
                " tensor; split it"
            )
    return _plan(uses, partition, label)


def group_taps(graph: OperatorGraph) -> frozenset[str]:
    """Return the tensors that verification wants to see: what a final Softmax, LogSoftmax, Sigmoid or ArgMax reads.

    Such an operator hides errors of what it reads. It is final when its output is a graph output, as it is or through
    reshapes, transposes, casts and identities. exp(x) / sum(exp(x)) is a Softmax written out.
    """
    uses = Uses(graph=graph)
    squashed = (_squashed(uses, _through_reshapes(uses, output)) for output in graph.outputs)
    return frozenset(name for name in squashed if name is not None and name in uses.producer)


def _through_reshapes(uses: Uses, name: str) -> Operator | None:
    """Return the operator that computed the values of a tensor, None for graph inputs and constants."""
    index = uses.producer.get(name)
    while index is not None and uses.graph.operators[index].op_type in _PASS_THROUGH:
        index = uses.producer.get(uses.graph.operators[index].inputs[0])
    return None if index is None else uses.graph.operators[index]


def _squashed(uses: Uses, operator: Operator | None) -> str | None:
    """Return the tensor that the operator squashes, None when it squashes nothing."""
    if operator is not None and operator.op_type in _FINAL:
        return operator.inputs[0]
    if operator is None or operator.op_type != "Div":
        return None
    above, below = (_through_reshapes(uses, name) for name in operator.inputs)
    if above is None or below is None or (above.op_type, below.op_type) != ("Exp", "ReduceSum"):
        return None
    return above.inputs[0] if below.inputs[0] == above.outputs[0] else None


def _grown(graph: OperatorGraph, boundaries: frozenset[str], label: str, *, with_prologues: bool) -> FusionPlan:
    uses = Uses(graph=graph, boundaries=boundaries)
    growth = Growth(uses=uses)
    _start_regions(growth, with_attention=with_prologues)
    for operator in graph.operators:
        if operator.index not in growth.owner and not is_elementwise(operator) and not is_reindexing(operator):
            growth.start(operator.index)
    _grow_anchors(growth, with_prologues=with_prologues)
    for operator in reversed(graph.operators):
        if is_movement(operator) and not is_reindexing(operator) and operator.index in growth.members:
            grow_forward(growth, operator.index)
    _grow_rest(growth)
    return _plan(uses, growth.members.values(), label, growth.rejected)


def _start_regions(growth: Growth, *, with_attention: bool) -> None:
    """Begin the groups that are whole regions; one that would share an operator with another is left out."""
    rows = row_regions(growth.uses)
    whole = attention_regions(growth.uses) if with_attention else []
    for *others, last in (*whole, *rows):
        if growth.owner.keys().isdisjoint((*others, last)):
            growth.start(last)
            growth.take(last, others)
    growth.complete.update(region[-1] for region in whole)
    growth.row_seeds.update(region[-1] for region in rows if region[-1] in growth.members)


def _grow_anchors(growth: Growth, *, with_prologues: bool) -> None:
    operators = growth.uses.graph.operators
    seeds = sorted(growth.members.keys() - growth.complete)
    anchors = [seed for seed in seeds if is_anchor(operators[seed]) or seed in growth.row_seeds]
    for index in reversed(anchors):
        grow_forward(growth, index)
    if with_prologues:
        for index in anchors:
            grow_backward(growth, index)


def _grow_rest(growth: Growth) -> None:
    """Give the operators that nobody took groups of their own: chains of re-indexing first, then element-wise ones."""
    operators = growth.uses.graph.operators
    for operator in (op for op in operators if is_reindexing(op)):
        if operator.index not in growth.owner:
            growth.start(operator.index)
            grow_forward(growth, operator.index)
    for operator in operators:
        if operator.index not in growth.owner:
            growth.start(operator.index)
            grow_forward(growth, operator.index)
            grow_backward(growth, operator.index)


def _plan(uses: Uses, partition: Iterable[Sequence[int]], label: str, rejected: Iterable[str] = ()) -> FusionPlan:
    groups = sorted((make_group(uses, members) for members in partition), key=lambda group: group.operators)
    edges = quotient(uses.graph, groups)
    try:
        order = list(nx.lexicographical_topological_sort(edges))
    except nx.NetworkXUnfeasible:
        ring = [source for source, _ in nx.find_cycle(edges)]
        shown = ", ".join(str(list(groups[position].operators)) for position in ring[:4])
        raise BadInputError(
            f"fusion plan {label!r}: expected groups that can run one after the other, found {len(ring)} that wait for"
            f" one another in a circle: {shown}; split one of them"
        ) from None
    names = unique_names(groups)
    return FusionPlan(
        label=label,
        groups=tuple(replace(groups[position], name=names[groups[position].key]) for position in order),
        rejected=tuple(rejected),
    )
