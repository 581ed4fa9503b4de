"""Owns which layout each activation between kernels takes under a whole-model layout policy."""

from collections.abc import Mapping
from typing import Literal

from mapper.plan.chains import ELEMENTWISE, words
from mapper.records import FusionPlan, Group, OperatorGraph

Policy = Literal["nhwc", "nchw"]


# Operators whose tensors are images: the last two axes are space, the second is channels.
IMAGE = words(
    """AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool GlobalMaxPool
    InstanceNormalization LRN LpPool MaxPool Resize SpaceToDepth Upsample"""
)


def tensor_layouts(graph: OperatorGraph, plan: FusionPlan, policy: Policy) -> dict[str, str]:
    """Return the layout of every activation that a kernel of `plan` reads or writes.

    Inputs and outputs of the graph keep ONNX's order: `nchw` at rank 4. Every other image takes the policy's layout: a
    rank-4 tensor that an image operator touches, directly or through element-wise operators and concatenations.
    Attention heads and other rank-4 tensors stay `nchw`, every other rank is `row`. Weights are not listed: templates
    pack them.
    """
    fixed = {*graph.inputs, *graph.outputs}
    images = _images(graph, plan)
    names = dict.fromkeys(name for group in plan.groups for name in (*group.inputs, *group.outputs))
    return {
        name: "row"
        if len(graph.tensors[name].shape) != 4
        else policy
        if name in images and name not in fixed
        else "nchw"
        for name in names
    }


def _images(graph: OperatorGraph, plan: FusionPlan) -> set[str]:
    """Return the tensors between groups that are images, by following groups that keep an image an image."""
    images: set[str] = set()
    carriers = []
    for group in plan.groups:
        types = {graph.operators[index].op_type for index in group.operators}
        if types & IMAGE:
            images.update((*group.inputs, *group.outputs))
        elif all(op_type == "Concat" or op_type in ELEMENTWISE for op_type in types):
            carriers.append((*group.inputs, *group.outputs))
    is_growing = True
    while is_growing:
        before = len(images)
        for tensors in (*carriers, *reversed(carriers)):
            if images.intersection(tensors):
                images.update(tensors)
        is_growing = len(images) > before
    return images


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
