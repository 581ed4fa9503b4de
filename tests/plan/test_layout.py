"""Layout policies: what is fixed, what follows the policy."""

import numpy as np
import pytest
from plan_models import IMAGE, constant, graph_of, node, residual_block, weight

from mapper.plan.fusion import epilogue_chains, unfused
from mapper.plan.graph import operator_graph
from mapper.plan.layout import group_layouts, tensor_layouts

NONE = frozenset()


@pytest.mark.parametrize("policy", ["nhwc", "nchw"])
def test_policy_rules_between_groups_and_onnx_order_at_the_ends(policy):
    graph = operator_graph(residual_block())
    plan = epilogue_chains(graph, NONE)
    assert tensor_layouts(graph, plan, policy) == {"x": "nchw", "b": policy, "s": policy, "y": "nchw"}


def test_tensors_inside_groups_have_no_layout_and_weights_neither():
    graph = operator_graph(residual_block())
    assert set(tensor_layouts(graph, unfused(graph), "nhwc")) == {"x", "a", "b", "s", "c", "d", "y"}


def test_other_ranks_are_row():
    graph = graph_of(
        [node("GlobalMaxPool", "x", "a"), node("Flatten", "a", "b"), node("MatMul", "b w", "y")],
        {"x": IMAGE},
        {"y": (1, 3)},
        [weight("w", (IMAGE[1], 3))],
    )
    assert tensor_layouts(graph, unfused(graph), "nhwc") == {"x": "nchw", "a": "nhwc", "b": "row", "y": "row"}


def test_an_image_stays_one_through_element_wise_operators_and_concatenations():
    graph = graph_of(
        [
            node("Relu", "x", "a"),
            node("Concat", "a a", "b", axis=1),
            node("GlobalMaxPool", "b", "c"),
            node("Abs", "c", "y"),
        ],
        {"x": IMAGE},
        {"y": (1, 2 * IMAGE[1], 1, 1)},
    )
    assert tensor_layouts(graph, unfused(graph), "nhwc") == {
        "x": "nchw",
        "a": "nhwc",
        "b": "nhwc",
        "c": "nhwc",
        "y": "nchw",
    }


def test_attention_heads_are_no_images():
    heads = (1, 8, 16, 4)
    graph = graph_of(
        [node("Relu", "x", "a"), node("Softmax", "a", "b", axis=-1), node("Reshape", "b s", "y")],
        {"x": heads},
        {"y": (8, 16, 4)},
        [constant("s", [8, 16, 4], np.int64)],
    )
    assert tensor_layouts(graph, unfused(graph), "nhwc") == {"x": "nchw", "a": "nchw", "b": "nchw", "y": "row"}


def test_group_layouts_follow_the_arguments_inputs_then_outputs():
    graph = operator_graph(residual_block())
    plan = epilogue_chains(graph, NONE)
    by_tensor = tensor_layouts(graph, plan, "nhwc")
    assert [group_layouts(graph, group, by_tensor) for group in plan.groups] == [
        ("nchw", "nhwc"),
        ("nchw", "nhwc"),
        ("nhwc", "nhwc", "nchw"),
    ]


@pytest.mark.parametrize(("shape", "layout"), [((2, 3), "nhwc"), (IMAGE, "row")])
def test_layout_that_the_rank_does_not_allow_is_refused(shape, layout):
    graph = graph_of([node("Mul", "x c", "y")], {"x": shape}, {"y": shape}, [constant("c", 2.0, np.float32)])
    group = unfused(graph).groups[0]
    with pytest.raises(ValueError, match=f"tensor 'x' of rank {len(shape)} cannot have layout '{layout}'"):
        group_layouts(graph, group, {"x": layout, "y": layout})
