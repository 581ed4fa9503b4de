"""Candidate groups: who may join whom, where chains are cut, and how many there are."""

import numpy as np
import pytest
from plan_models import IMAGE, constant, graph_of, model, node, residual_block, weight

from mapper.plan.candidates import MAX_EPILOGUES, MAX_PROLOGUES, candidate_groups, has_single_exit
from mapper.plan.fusion import conservative, epilogue_chains, from_partition
from mapper.plan.graph import operator_graph
from mapper.plan.group import Uses

NONE = frozenset()
W = weight("w", (2, 2, 1, 1))


def conv(inputs, output, **attributes):
    return node("Conv", inputs, output, **attributes)


def joined(nodes, inputs, outputs, constants=(), boundaries=NONE, **kwargs):
    """Return the candidates of several operators; that every single one is there, in order, is checked on the way."""
    found = candidate_groups(graph_of(nodes, inputs, outputs, constants, **kwargs), boundaries)
    assert list(found) == sorted(set(found))
    assert [members for members in found if len(members) == 1] == [(index,) for index in range(len(nodes))]
    return [members for members in found if len(members) > 1]


def test_either_convolution_may_take_the_residual_addition():
    # 0 Conv, 1 Relu, 2 Conv (shortcut), 3 Conv (reads 1), 4 Add, 5 Relu
    found = candidate_groups(operator_graph(residual_block()), NONE)
    assert found == (
        (0,),
        (0, 1),
        (1,),
        (1, 3),
        (1, 3, 4),
        (1, 3, 4, 5),
        (2,),
        (2, 4),
        (2, 4, 5),
        (3,),
        (3, 4),
        (3, 4, 5),
        (4,),
        (4, 5),
        (5,),
    )


def test_a_diamond_is_one_link():
    nodes = [conv("x w", "a"), node("Sigmoid", "a", "b"), node("Mul", "a b", "c"), node("Neg", "c", "y")]
    found = joined(nodes, {"x": IMAGE}, {"y": IMAGE}, [W])
    assert found == [(0, 1, 2), (0, 1, 2, 3), (1, 2), (1, 2, 3), (2, 3)]


def test_an_element_wise_chain_is_cut_anywhere():
    nodes = [node("Relu", "x", "a"), node("Neg", "a", "b"), node("Abs", "b", "c"), node("Exp", "c", "y")]
    assert joined(nodes, {"x": (4,)}, {"y": (4,)}) == [(0, 1), (0, 1, 2), (0, 1, 2, 3), (1, 2), (1, 2, 3), (2, 3)]


def test_an_element_wise_tree_is_cut_in_either_branch():
    nodes = [node("Relu", "x", "a"), node("Neg", "z", "b"), node("Abs", "b", "c"), node("Add", "a c", "y")]
    found = joined(nodes, {"x": (4,), "z": (4,)}, {"y": (4,)})
    assert found == [(0, 1, 2, 3), (0, 2, 3), (0, 3), (1, 2), (1, 2, 3), (2, 3)]


def test_every_suffix_of_a_prologue_is_offered():
    nodes = [node("Mul", "x s", "a"), node("Add", "a o", "b"), node("Relu", "b", "c"), conv("c w", "y")]
    constants = [weight("s", (2, 1, 1)), weight("o", (2, 1, 1)), W]
    found = joined(nodes, {"x": IMAGE}, {"y": IMAGE}, constants)
    assert [members for members in found if 3 in members] == [(0, 1, 2, 3), (1, 2, 3), (2, 3)]


def test_what_others_read_is_no_prologue_and_ends_every_chain():
    nodes = [
        node("Relu", "x", "a"),
        conv("a w", "b"),
        node("Neg", "b", "c"),
        node("MaxPool", "b", "y", kernel_shape=[1, 1]),
    ]
    assert joined(nodes, {"x": IMAGE}, {"a": IMAGE, "c": IMAGE, "y": IMAGE}, [W]) == []


def test_boundaries_stay_visible():
    nodes = [conv("x w", "a"), node("Relu", "a", "b"), node("Sigmoid", "b", "c"), conv("c v", "y")]
    constants = [W, weight("v", (2, 2, 1, 1))]
    found = joined(nodes, {"x": IMAGE}, {"y": IMAGE}, constants, frozenset({"b"}))
    assert found == [(0, 1), (2, 3)]


def test_reindexing_chains_are_cut_anywhere_and_take_what_is_element_wise():
    nodes = [
        node("Reshape", "x split", "a"),
        node("Transpose", "a", "b", perm=[1, 0, 2]),
        node("Reshape", "b whole", "c"),
        node("Relu", "c", "y"),
    ]
    shapes = [constant("split", [2, 3, 4], np.int64), constant("whole", [24], np.int64)]
    found = joined(nodes, {"x": (6, 4)}, {"y": (24,)}, shapes)
    assert found == [(0, 1), (0, 1, 2), (0, 1, 2, 3), (1, 2), (1, 2, 3), (2, 3)]


def test_other_movement_takes_only_what_follows():
    nodes = [node("Relu", "x", "a"), node("Concat", "a x", "b", axis=0), node("Neg", "b", "c"), node("Abs", "c", "y")]
    assert joined(nodes, {"x": (2,)}, {"y": (4,)}) == [(1, 2), (1, 2, 3), (2, 3)]


def test_unknown_operators_and_those_of_several_outputs_stay_alone():
    nodes = [
        node("Relu", "x", "a"),
        node("Softmax", "a", "b"),
        node("Split", "b", "c d", axis=0),
        node("Neg", "d", "e"),
    ]
    assert joined(nodes, {"x": (2, 3)}, {"c": (1, 3), "e": (1, 3)}) == []


def test_a_softmax_written_out_is_a_candidate_with_what_is_around_it():
    nodes = [
        node("Neg", "x", "n"),
        node("ReduceMax", "n", "m", axes=[-1], keepdims=1),
        node("Sub", "n m", "s"),
        node("Exp", "s", "e"),
        node("ReduceSum", "e axes", "t", keepdims=1),
        node("Div", "e t", "d"),
        node("Relu", "d", "y"),
    ]
    found = joined(nodes, {"x": (2, 32)}, {"y": (2, 32)}, [constant("axes", [-1], np.int64)])
    whole = [members for members in found if {1, 4} <= set(members)]
    assert whole == [(0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6)]


def test_attention_is_a_candidate_as_a_whole():
    nodes = [
        node("MatMul", "q k", "a"),
        node("Mul", "a scale", "b"),
        node("Softmax", "b", "c", axis=-1),
        node("MatMul", "c v", "y"),
    ]
    inputs = {"q": (2, 16, 8), "k": (2, 8, 16), "v": (2, 16, 8)}
    found = joined(nodes, inputs, {"y": (2, 16, 8)}, [constant("scale", 0.5)])
    assert found == [(0, 1), (0, 1, 2, 3)]


# --- depthwise and pointwise --------------------------------------------------------------------------------------


DEPTHWISE = weight("d", (2, 1, 3, 3))


def separable(*, depthwise=None, pointwise=None, more=()):
    """Return operators 0 depthwise Conv, 1 Clip, 2 1×1 Conv, 3 Relu and `more`."""
    return [
        conv("x d", "a", pads=[1, 1, 1, 1], **{"group": 2, **(depthwise or {})}),
        node("Clip", "a", "b"),
        conv("b w", "c", **(pointwise or {})),
        node("Relu", "c", "y"),
        *more,
    ]


def pairs(found):
    return [members for members in found if {0, 2} <= set(members)]


def test_a_depthwise_convolution_joins_the_pointwise_one_that_alone_reads_it():
    found = joined(separable(), {"x": IMAGE}, {"y": IMAGE}, [DEPTHWISE, W])
    assert pairs(found) == [(0, 1, 2), (0, 1, 2, 3)]


def test_a_depthwise_convolution_joins_without_anything_in_between():
    nodes = [conv("x d", "a", pads=[1, 1, 1, 1], group=2), node("Relu", "x", "r"), conv("a w", "c")]
    nodes.append(node("Add", "c r", "y"))
    found = joined(nodes, {"x": IMAGE}, {"y": IMAGE}, [DEPTHWISE, W])
    assert pairs(found) == [(0, 2), (0, 2, 3)]


@pytest.mark.parametrize(
    ("nodes", "outputs", "weights"),
    [
        (separable(more=[node("Neg", "b", "z")]), {"y": IMAGE, "z": IMAGE}, [DEPTHWISE, W]),
        (separable(), {"y": IMAGE, "b": IMAGE}, [DEPTHWISE, W]),
        (separable(depthwise={"group": 1}), {"y": IMAGE}, [weight("d", (2, 2, 3, 3)), W]),
        (separable(depthwise={"group": 2}), {"y": IMAGE}, [weight("d", (4, 1, 3, 3)), weight("w", (2, 4, 1, 1))]),
        (separable(pointwise={"group": 2}), {"y": IMAGE}, [DEPTHWISE, weight("w", (2, 1, 1, 1))]),
        (separable(pointwise={"strides": [2, 2]}), {"y": (1, 2, 2, 2)}, [DEPTHWISE, W]),
        (separable(pointwise={"pads": [1, 1, 1, 1]}), {"y": IMAGE}, [DEPTHWISE, weight("w", (2, 2, 3, 3))]),
    ],
    ids=["read twice", "visible", "dense", "multiplied channels", "grouped", "strided", "3x3"],
)
def test_other_pairs_of_convolutions_stay_apart(nodes, outputs, weights):
    assert pairs(joined(nodes, {"x": IMAGE}, outputs, weights)) == []


# --- other plans' groups ------------------------------------------------------------------------------------------


def test_groups_of_our_plans_are_among_the_candidates():
    graph = operator_graph(residual_block())
    found = candidate_groups(graph, NONE)
    for plan in (epilogue_chains(graph, NONE), conservative(graph, NONE)):
        assert {group.operators for group in plan.groups} <= set(found)


def test_groups_of_other_plans_are_added_when_they_have_a_single_exit():
    nodes = [node("Softmax", "x", "a"), node("Relu", "a", "b"), node("Softmax", "a", "c"), node("Add", "b c", "y")]
    graph = graph_of(nodes, {"x": (2, 3)}, {"y": (2, 3)})
    fork = from_partition(graph, [[0, 1], [2], [3]], "fork")  # a and b leave the first group
    whole = from_partition(graph, [[0, 1, 2, 3]], "whole")
    assert candidate_groups(graph, NONE) == ((0,), (1,), (1, 3), (2,), (3,))
    assert candidate_groups(graph, NONE, [fork, whole]) == ((0,), (0, 1, 2, 3), (1,), (1, 3), (2,), (3,))


def test_single_exit_counts_visible_and_unread_tensors():
    nodes = [node("Relu", "x", "a"), node("Neg", "a", "y"), node("Abs", "a", "dead")]
    graph = graph_of(nodes, {"x": (2,)}, {"y": (2,)})
    uses = Uses(graph=graph)
    assert has_single_exit(uses, (1,))
    assert not has_single_exit(uses, (0, 1))  # a is read outside
    assert not has_single_exit(uses, (0, 1, 2))  # somebody has to compute what nobody reads
    assert not has_single_exit(Uses(graph=graph, boundaries=frozenset({"a"})), (0, 1))


# --- bounds -------------------------------------------------------------------------------------------------------


def test_long_chains_give_the_shortest_cuts_and_the_longest():
    nodes = [node("Relu", "t0", "t1"), *(node("Neg", f"t{i}", f"t{i + 1}") for i in range(1, 6))]
    nodes += [conv("t6 w", "u0"), *(node("Abs", f"u{i}", f"u{i + 1}") for i in range(12))]
    found = joined(nodes, {"t0": IMAGE}, {"u12": IMAGE}, [W])
    around = [members for members in found if 6 in members]
    assert len(around) == MAX_EPILOGUES * (1 + MAX_PROLOGUES) - 1  # the convolution alone is not counted here
    before = {6 - members[0] for members in around}
    after = {members[-1] - 6 for members in around}
    assert before == {0, 1, 2, 3, 6}
    assert after == {0, 1, 2, 3, 4, 5, 6, 12}


def test_candidates_of_a_long_chain_are_linear_in_it():
    count = 2000
    nodes = [node("Relu", f"t{i}", f"t{i + 1}") for i in range(count)]
    bare = model(nodes, {"t0": (4,)}, {f"t{count}": (4,)}, infer=False)
    specs = {f"t{i}": (4,) for i in range(1, count + 1)}
    bare.graph.value_info.extend(model([], {}, specs, infer=False).graph.output)
    found = candidate_groups(operator_graph(bare), NONE)
    # 8 cuts from each operator, but for the last seven: 7, 6, … 1.
    assert len(found) == 8 * count - (1 + 2 + 3 + 4 + 5 + 6 + 7)
