"""Owns which layout each activation between kernels takes under a whole-model layout policy."""

from collections.abc import Mapping
from typing import Literal

from mapper.records import FusionPlan, Group, OperatorGraph

Policy = Literal["nhwc", "nchw"]


def tensor_layouts(graph: OperatorGraph, plan: FusionPlan, policy: Policy) -> dict[str, str]:
    """Return the layout of every activation that a kernel of `plan` reads or writes.

    Inputs and outputs of the graph keep ONNX's order: `nchw` at rank 4. Every other rank-4 activation takes the
    policy's layout, attention heads too; every other rank is `row`. Weights are not listed: templates pack them.
    """
    fixed = {*graph.inputs, *graph.outputs}
    names = dict.fromkeys(name for group in plan.groups for name in (*group.inputs, *group.outputs))
    return {
        name: "row" if len(graph.tensors[name].shape) != 4 else "nchw" if name in fixed else policy for name in names
    }


def group_layouts(graph: OperatorGraph, group: Group, by_tensor: Mapping[str, str]) -> tuple[str, ...]:
    """Return the layouts of a group's activation arguments, inputs then outputs, as `Choice.layouts` wants them.

    Raises:
        ValueError: A layout that the tensor's rank does not allow.
    """
    result = tuple(by_tensor[name] for name in (*group.inputs, *group.outputs))
    for name, layout in zip((*group.inputs, *group.outputs), result, strict=True):
        rank = len(graph.tensors[name].shape)
        if (layout == "row") == (rank == 4):
            raise ValueError(f"tensor {name!r} of rank {rank} cannot have layout {layout!r}")
    return result
