"""Owns the check that a fusion plan is legal for a graph, whoever made it."""

from collections.abc import Iterable, Sequence
from dataclasses import fields

import networkx as nx

from mapper.plan.group import Uses, make_group
from mapper.records import FusionPlan, Group, OperatorGraph


def check_plan(graph: OperatorGraph, plan: FusionPlan, boundaries: frozenset[str] = frozenset()) -> list[str]:
    """Return what is wrong with `plan`, one line each; empty when it is legal.

    Legal: every operator in exactly one group; each group connected and stating its own arguments, key, FLOPs and
    bytes; no two keys of one name; groups listed in an order in which they can run. Nothing of the plan is trusted:
    each group is derived again from its operators.
    """
    problems = _check_partition(graph, plan)
    if problems:
        return problems
    uses = Uses(graph=graph, boundaries=boundaries)
    for position, group in enumerate(plan.groups):
        problems.extend(f"group {position} ({group.name}): {line}" for line in _check_group(uses, group))
    problems.extend(_check_names(plan))
    problems.extend(_check_order(graph, plan))
    return problems


def is_connected(uses: Uses, members: Iterable[int]) -> bool:
    """Say whether the operators hang together by the tensors they pass to one another."""
    left = set(members)
    pending = [left.pop()]
    while pending:
        operator = uses.graph.operators[pending.pop()]
        neighbours = {uses.producer.get(name, -1) for name in operator.inputs}
        for name in operator.outputs:
            neighbours.update(uses.consumers.get(name, ()))
        found = neighbours & left
        left -= found
        pending.extend(found)
    return not left


def quotient(graph: OperatorGraph, groups: Sequence[Group]) -> nx.DiGraph:
    """Return the groups, by position, as a directed graph: an edge where one reads what another computes."""
    owner = {index: position for position, group in enumerate(groups) for index in group.operators}
    producer = {name: owner[operator.index] for operator in graph.operators for name in operator.outputs if name}
    result = nx.DiGraph()
    result.add_nodes_from(range(len(groups)))
    for operator in graph.operators:
        reader = owner[operator.index]
        sources = {producer[name] for name in operator.inputs if name in producer}
        result.add_edges_from((source, reader) for source in sources if source != reader)
    return result


def _check_partition(graph: OperatorGraph, plan: FusionPlan) -> list[str]:
    problems = []
    seen: dict[int, int] = {}
    for position, group in enumerate(plan.groups):
        if not group.operators:
            problems.append(f"group {position} ({group.name}): holds no operator")
        for index in group.operators:
            if not 0 <= index < len(graph.operators):
                problems.append(f"group {position} ({group.name}): operator {index} does not exist")
            elif index in seen:
                problems.append(f"operator {index} is in groups {seen[index]} and {position}")
            seen[index] = position
    problems.extend(
        f"operator {operator.index} ({operator.op_type}) is in no group"
        for operator in graph.operators
        if operator.index not in seen
    )
    return problems


def _check_group(uses: Uses, group: Group) -> list[str]:
    problems = []
    if not is_connected(uses, group.operators):
        problems.append(f"operators {list(group.operators)} are not connected")
    derived = make_group(uses, group.operators)
    for item in fields(Group):
        stated, found = getattr(group, item.name), getattr(derived, item.name)
        if item.name != "name" and stated != found:
            problems.append(f"{item.name} says {stated!r}, the graph says {found!r}")
    return problems


def _check_names(plan: FusionPlan) -> list[str]:
    keys: dict[str, str] = {}
    problems = []
    for group in plan.groups:
        if keys.setdefault(group.name, group.key) != group.key:
            problems.append(f"name {group.name!r} stands for keys {keys[group.name]} and {group.key}")
    return problems


def _check_order(graph: OperatorGraph, plan: FusionPlan) -> list[str]:
    edges = quotient(graph, plan.groups)
    if not nx.is_directed_acyclic_graph(edges):
        ring = [source for source, _ in nx.find_cycle(edges)]
        return [f"groups {ring} wait for one another in a circle"]
    return [
        f"group {reader} ({plan.groups[reader].name}) runs before group {source}, whose output it reads"
        for source, reader in sorted(edges.edges)
        if source > reader
    ]
