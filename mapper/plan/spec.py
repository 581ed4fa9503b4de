"""Owns the description of one group under local names, which is all that templates see of a model."""

from dataclasses import replace

from mapper.plan.group import baked_constants, local_names
from mapper.records import Group, GroupSpec, Operator, OperatorGraph


def group_spec(graph: OperatorGraph, group: Group) -> GroupSpec:
    """Return `group` on its own: operators renumbered from 0, tensors under the names that `group_model` gives them."""
    operators = [graph.operators[index] for index in group.operators]
    baked = baked_constants(graph, operators)
    local = local_names(operators, group, baked)

    def renamed(index: int, operator: Operator) -> Operator:
        return replace(
            operator,
            index=index,
            name=f"op{index}",
            inputs=tuple(local[name] if name else "" for name in operator.inputs),
            outputs=tuple(local[name] if name else "" for name in operator.outputs),
        )

    return GroupSpec(
        key=group.key,
        name=group.name,
        family=group.family,
        operators=tuple(renamed(index, operator) for index, operator in enumerate(operators)),
        tensors={
            local[name]: replace(graph.tensors[name], name=local[name]) for name in local if name in graph.tensors
        },
        inputs=tuple(local[name] for name in group.inputs),
        weights=tuple(local[name] for name in group.weights),
        outputs=tuple(local[name] for name in group.outputs),
        constants={local[name]: graph.constants[name] for name in baked},
        anchor=group.operators.index(group.anchor),
        flops=group.flops,
        longlat_flops=group.longlat_flops,
        bytes_compulsory=group.bytes_compulsory,
    )
