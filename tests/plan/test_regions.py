"""Regions that become one kernel as a whole: attention, and normalisations written out."""

import numpy as np
import pytest
from plan_models import constant, graph_of, node, weight

from mapper.plan.fusion import check_plan, conservative, epilogue_chains

NONE = frozenset()
AXES = constant("axes", [-1], np.int64)
# 0–1 k, 2–3 q, 4 product, 5 scale, 6 softmax, 7–8 v, 9 product, 10–11 heads joined
ATTENTION = [
    node("Reshape", "k heads", "k1"),
    node("Transpose", "k1", "k2", perm=[0, 2, 3, 1]),
    node("Reshape", "q heads", "q1"),
    node("Transpose", "q1", "q2", perm=[0, 2, 1, 3]),
    node("MatMul", "q2 k2", "s"),
    node("Mul", "s c", "scaled"),
    node("Softmax", "scaled", "p"),
    node("Reshape", "v heads", "v1"),
    node("Transpose", "v1", "v2", perm=[0, 2, 1, 3]),
    node("MatMul", "p v2", "o"),
    node("Transpose", "o", "o1", perm=[0, 2, 1, 3]),
    node("Reshape", "o1 joined", "y"),
]
ROWS = (1, 20, 12)
INPUTS = dict.fromkeys(("q", "k", "v"), ROWS)
HELD = [
    constant("heads", [1, 20, 3, 4], np.int64),
    constant("joined", [1, 20, 12], np.int64),
    constant("c", 0.5),
]


def partition(nodes, inputs, outputs, constants=(), boundaries=NONE, planner=epilogue_chains):
    graph = graph_of(nodes, inputs, outputs, constants)
    plan = planner(graph, boundaries)
    assert check_plan(graph, plan, boundaries) == []
    return sorted(list(group.operators) for group in plan.groups)


def attention(nodes=ATTENTION, *, inputs=INPUTS, outputs=None, more=(), **kwargs):
    return partition(nodes, inputs, outputs or {"y": ROWS}, [*HELD, *more], **kwargs)


def replaced(position, *nodes):
    return [*ATTENTION[:position], *nodes, *ATTENTION[position + 1 :]]


def test_attention_is_one_group():
    assert attention() == [list(range(12))]


def test_a_mask_joins_attention():
    nodes = replaced(5, ATTENTION[5], node("Add", "scaled m", "masked"))
    nodes[7] = node("Softmax", "masked", "p")
    assert attention(nodes, inputs={**INPUTS, "m": (1, 1, 1, 20)}) == [list(range(13))]


def test_a_scale_of_one_operand_joins_attention_and_a_bias_stays_with_what_is_before():
    nodes = [node("Add", "q b", "q0"), *ATTENTION, node("Mul", "q2 c", "q3")]
    nodes[3] = node("Reshape", "q0 heads", "q1")
    nodes[5] = node("MatMul", "q3 k2", "s")
    nodes.insert(5, nodes.pop())
    assert attention(nodes, more=[weight("b", (12,))]) == [[0], list(range(1, 14))]


def test_the_product_alone_is_joined_when_heads_stay_apart():
    shape = (1, 3, 20, 4)
    assert attention([*ATTENTION[:-2], node("Relu", "o", "y")], outputs={"y": shape}) == [list(range(10)), [10]]


def test_the_conservative_plan_keeps_attention_apart():
    assert [4, 5] in attention(planner=conservative)


def test_operands_that_others_read_are_made_outside():
    nodes = [*ATTENTION, node("Neg", "k2", "z")]
    found = attention(nodes, outputs={"y": ROWS, "z": (1, 3, 4, 20)})
    assert [0, 1] in found
    assert list(range(2, 12)) in found


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([*ATTENTION, node("Neg", "p", "z")], {"z": (1, 3, 20, 20)}),  # the weights are read twice
        ([*ATTENTION, node("Neg", "scaled", "z")], {"z": (1, 3, 20, 20)}),
        (replaced(6, node("Softmax", "scaled", "p", axis=1)), {}),  # over heads
        (replaced(9, node("MatMul", "v2 p", "o")), {}),
    ],
    ids=["weights seen", "scores seen", "another axis", "weights on the right"],
)
def test_anything_else_is_no_attention(nodes, outputs):
    if nodes[9].input[0] == "v2":
        nodes = [*nodes[:8], node("Transpose", "v1", "v2", perm=[0, 2, 3, 1]), nodes[9]]
        found = attention(nodes, outputs={"o": (1, 3, 4, 20)})
    else:
        found = attention(nodes, outputs={"y": ROWS, **outputs})
    assert [6] in found


def test_a_tensor_that_has_to_stay_visible_is_not_hidden_in_attention():
    assert [6] in attention(boundaries=frozenset({"p"}))


LAYER_NORM = [
    node("ReduceMean", "x", "m", axes=[-1]),
    node("Sub", "x m", "d"),
    node("Pow", "d two", "q"),
    node("ReduceMean", "q", "v", axes=[-1]),
    node("Add", "v e", "v1"),
    node("Sqrt", "v1", "s"),
    node("Div", "d s", "n"),
    node("Mul", "n g", "o"),
    node("Add", "o b", "y"),
]
NORM_HELD = [constant("two", 2.0), constant("e", 1e-5), weight("g", (20,)), weight("b", (20,))]
SHAPE = (3, 20)


def test_a_layer_norm_written_out_is_one_group():
    assert partition(LAYER_NORM, {"x": SHAPE}, {"y": SHAPE}, NORM_HELD) == [list(range(9))]


def test_a_layer_norm_takes_the_sum_before_it_and_the_view_after_it():
    nodes = [node("Add", "w r", "x"), *LAYER_NORM, node("Reshape", "y shape", "z")]
    shape = constant("shape", [1, 3, 20], np.int64)
    inputs = {"w": SHAPE, "r": SHAPE}
    assert partition(nodes, inputs, {"z": (1, *SHAPE)}, [*NORM_HELD, shape]) == [list(range(11))]


def test_rows_that_are_read_again_later_are_an_argument_of_the_norm():
    nodes = [node("Relu", "w", "x"), *LAYER_NORM, node("MatMul", "y k", "t"), node("Add", "t x", "z")]
    found = partition(nodes, {"w": SHAPE}, {"z": SHAPE}, [*NORM_HELD, weight("k", (20, 20))])
    assert found == [[0], list(range(1, 10)), [10, 11]]


def test_a_softmax_written_out_is_one_group():
    nodes = [
        node("ReduceMax", "x", "h", axes=[-1]),
        node("Sub", "x h", "d"),
        node("Exp", "d", "e"),
        node("ReduceSum", "e axes", "t"),
        node("Div", "e t", "y"),
    ]
    assert partition(nodes, {"x": SHAPE}, {"y": SHAPE}, [AXES]) == [list(range(5))]


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ([node("ReduceMean", "x", "m", axes=[0]), node("Sub", "x m", "y")], SHAPE),  # of columns
        ([node("ReduceMean", "x", "m", axes=[-1]), node("Sub", "x m", "y")], (3, 15)),  # too short for vectors
        ([node("ReduceMean", "x", "y", axes=[-1])], (3, 20)),
    ],
    ids=["columns", "short rows", "rows end"],
)
def test_other_reductions_begin_no_region(nodes, shape):
    wanted = shape if len(nodes) > 1 else (*shape[:-1], 1)
    assert partition(nodes, {"x": shape}, {"y": wanted}) == [[index] for index in range(len(nodes))]
