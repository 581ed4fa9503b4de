"""Fusion plans: who joins whom, what stays apart, keys and names."""

import numpy as np
import pytest
from onnx import TensorProto
from plan_models import IMAGE, constant, graph_of, model, node, residual_block, weight

from mapper.errors import BadInputError
from mapper.plan.chains import MAX_GROUP_OPERATORS
from mapper.plan.fusion import check_plan, conservative, epilogue_chains, from_partition, group_taps, unfused
from mapper.plan.graph import operator_graph

NONE = frozenset()


def partition(plan):
    return [list(group.operators) for group in plan.groups]


def fused(nodes, inputs, outputs, constants=(), boundaries=NONE, planner=epilogue_chains, **kwargs):
    graph = graph_of(nodes, inputs, outputs, constants, **kwargs)
    plan = planner(graph, boundaries)
    assert check_plan(graph, plan, boundaries) == []
    return sorted(partition(plan))


def conv(inputs, output):
    return node("Conv", inputs, output, kernel_shape=[1, 1])


W = weight("w", (2, 2, 1, 1))


def test_unfused_gives_every_operator_its_own_group():
    graph = operator_graph(residual_block())
    plan = unfused(graph)
    assert partition(plan) == [[0], [1], [2], [3], [4], [5]]
    assert check_plan(graph, plan) == []


def test_residual_addition_joins_the_later_convolution():
    graph = operator_graph(residual_block())
    plan = epilogue_chains(graph, NONE)
    assert partition(plan) == [[0, 1], [2], [3, 4, 5]]
    last = plan.groups[2]
    assert (last.inputs, last.weights, last.outputs) == (("b", "s"), ("w3",), ("y",))
    assert (last.anchor, last.family) == (3, "Conv")
    # 2·18·2 + 18 + 18 FLOPs; (18 + 18 + 4 + 18) · 4 bytes
    assert (last.flops, last.longlat_flops, last.bytes_compulsory) == (108, 0, 232)
    assert plan.rejected == ("Add #4 after Conv #2: Add #4 belongs to another group",)


def test_group_name_tells_kernel_channels_and_epilogue():
    names = [group.name for group in epilogue_chains(operator_graph(residual_block()), NONE).groups]
    assert names == ["conv3x3_2_2_3x3_relu", "conv1x1_2_2_3x3", "conv1x1_2_2_3x3_add_relu"]


@pytest.mark.parametrize(
    ("nodes", "shape", "constants", "expected"),
    [
        ([node("MatMul", "x k", "y")], (40, 768), [weight("k", (768, 120))], "matmul_40x768x120"),
        ([node("Gemm", "x k", "y", transB=1)], (4, 8), [weight("k", (3, 8))], "gemm_4x8x3"),
        ([node("Relu", "x", "y")], (1, 64, 112, 112), [], "relu_1x64x112x112"),
        (
            [node("Conv", "x k", "y", kernel_shape=[3, 3], strides=[2, 2], group=4)],
            (1, 4, 9, 9),
            [weight("k", (4, 1, 3, 3))],
            "dwconv3x3s2_4_4_4x4",
        ),
        (
            [node("Conv", "x k", "y", kernel_shape=[3, 1], strides=[2, 1], group=2)],
            (1, 4, 9, 9),
            [weight("k", (8, 2, 3, 1))],
            "g2conv3x1s2x1_4_8_4x9",
        ),
        ([node("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[2, 2])], (1, 4, 8, 8), [], "maxpool2x2s2_1x4x4x4"),
        ([node("ReduceMean", "x", "y", axes=[0], keepdims=0)], (8,), [], "reducemean_8"),
        ([node("Neg", "x", "y")], (), [], "neg_scalar"),
    ],
)
def test_names(nodes, shape, constants, expected):
    bare = model(nodes, {"x": shape}, {"y": shape}, constants, infer=False)
    del bare.graph.output[0].type.tensor_type.shape.dim[:]
    bare.graph.output[0].type.tensor_type.ClearField("shape")
    assert unfused(operator_graph(bare)).groups[0].name == expected


def test_long_names_are_cut():
    nodes = [conv("x w", "t0"), *(node("Relu", f"t{i}", f"t{i + 1}") for i in range(8)), node("Neg", "t8", "y")]
    plan = epilogue_chains(graph_of(nodes, {"x": IMAGE}, {"y": IMAGE}, [W]), NONE)
    assert plan.groups[0].name == "conv1x1_2_2_3x3_relu_relu_relu_relu_relu_4more"


def test_same_name_with_different_keys_gets_a_piece_of_the_key():
    nodes = [node("LeakyRelu", "x", "a", alpha=0.1), node("MaxPool", "a", "b", kernel_shape=[1, 1])]
    nodes.append(node("LeakyRelu", "b", "y", alpha=0.2))
    first, _, last = unfused(graph_of(nodes, {"x": IMAGE}, {"y": IMAGE})).groups
    assert first.name == f"leakyrelu_1x2x3x3_{first.key[:6]}"
    assert last.name == f"leakyrelu_1x2x3x3_{last.key[:6]}"
    assert first.key != last.key


def test_silu_after_a_convolution_is_one_group():
    nodes = [conv("x w", "a"), node("Sigmoid", "a", "b"), node("Mul", "a b", "y")]
    assert fused(nodes, {"x": IMAGE}, {"y": IMAGE}, [W]) == [[0, 1, 2]]


def test_hard_swish_written_out_is_one_group():
    nodes = [
        conv("x w", "a"),
        node("Add", "a three", "b"),
        node("Clip", "b zero six", "c"),
        node("Mul", "a c", "d"),
        node("Div", "d six", "y"),
    ]
    scalars = [constant("three", 3.0), constant("zero", 0.0), constant("six", 6.0)]
    assert fused(nodes, {"x": IMAGE}, {"y": IMAGE}, [W, *scalars]) == [[0, 1, 2, 3, 4]]


def test_gelu_written_out_is_one_group_even_alone():
    nodes = [
        node("Div", "x root", "a"),
        node("Erf", "a", "b"),
        node("Add", "b one", "c"),
        node("Mul", "x c", "d"),
        node("Mul", "d half", "y"),
    ]
    scalars = [constant("root", 1.4142135), constant("one", 1.0), constant("half", 0.5)]
    assert fused(nodes, {"x": IMAGE}, {"y": IMAGE}, scalars) == [[0, 1, 2, 3, 4]]


def test_gelu_after_a_matmul_is_one_group():
    nodes = [
        node("MatMul", "x k", "m"),
        node("Div", "m root", "a"),
        node("Erf", "a", "b"),
        node("Add", "b one", "c"),
        node("Mul", "m c", "y"),
    ]
    constants = [weight("k", (4, 4)), constant("root", 1.4142135), constant("one", 1.0)]
    assert fused(nodes, {"x": (3, 4)}, {"y": (3, 4)}, constants) == [[0, 1, 2, 3, 4]]


OPEN_DIAMOND = [
    conv("x w", "a"),
    node("Relu", "a", "b"),
    node("Sigmoid", "b", "c"),
    node("MaxPool", "b", "d", kernel_shape=[1, 1]),
    node("Mul", "c d", "y"),
]


def view(source, result, shape):
    return node("Reshape", f"{source} {shape}", result)


SHAPES = [constant("flat", [6, 8], np.int64), constant("deep", [2, 3, 8], np.int64), constant("cut", [12, 4], np.int64)]
K = weight("k", (8, 8))


def test_products_take_the_views_around_them_that_keep_rows():
    nodes = [view("x", "a", "flat"), node("Gemm", "a k", "t"), view("t", "u", "deep"), node("Erf", "u", "y")]
    assert fused(nodes, {"x": (2, 3, 8)}, {"y": (2, 3, 8)}, [K, *SHAPES]) == [[0, 1, 2, 3]]


def test_a_reshape_that_cuts_rows_stays_apart():
    nodes = [node("Gemm", "x k", "t"), view("t", "y", "cut")]
    assert fused(nodes, {"x": (6, 8)}, {"y": (12, 4)}, [K, *SHAPES]) == [[0], [1]]


def test_matrices_of_a_batch_are_not_regrouped():
    nodes = [node("MatMul", "x z", "t"), view("t", "y", "flat")]
    assert fused(nodes, {"x": (2, 3, 5), "z": (2, 5, 8)}, {"y": (6, 8)}, SHAPES) == [[0], [1]]


def test_an_axis_of_extent_1_regroups_no_batch():
    nodes = [node("MatMul", "x z", "t"), node("Unsqueeze", "t axis", "y")]
    inputs = {"x": (2, 3, 5), "z": (2, 5, 8)}
    assert fused(nodes, inputs, {"y": (1, 2, 3, 8)}, [constant("axis", [0], np.int64)]) == [[0, 1]]


def test_a_convolution_takes_no_view():
    nodes = [conv("x w", "t"), node("Unsqueeze", "t axis", "y")]
    assert fused(nodes, {"x": IMAGE}, {"y": (1, *IMAGE)}, [W, constant("axis", [0], np.int64)]) == [[0], [1]]


def test_open_diamond_stops_the_chain_before_it():
    # A pooling reads b too; the pooling's own group takes the multiplication and, with prologues, its other operand.
    assert fused(OPEN_DIAMOND, {"x": IMAGE}, {"y": IMAGE}, [W]) == [[0, 1], [2, 3, 4]]
    assert fused(OPEN_DIAMOND, {"x": IMAGE}, {"y": IMAGE}, [W], planner=conservative) == [[0, 1], [2], [3, 4]]


def test_boundary_tensor_ends_a_chain_and_stays_visible():
    nodes = [conv("x w", "a"), node("Relu", "a", "b"), node("Sigmoid", "b", "y")]
    assert fused(nodes, {"x": IMAGE}, {"y": IMAGE}, [W]) == [[0, 1, 2]]
    assert fused(nodes, {"x": IMAGE}, {"y": IMAGE}, [W], frozenset({"b"})) == [[0, 1], [2]]


def test_boundary_inside_a_diamond_keeps_it_apart():
    nodes = [conv("x w", "a"), node("Sigmoid", "a", "b"), node("Mul", "a b", "y")]
    assert fused(nodes, {"x": IMAGE}, {"y": IMAGE}, [W], frozenset({"b"})) == [[0], [1], [2]]


def test_graph_output_in_the_middle_ends_a_chain():
    nodes = [conv("x w", "a"), node("Relu", "a", "b"), node("Sigmoid", "b", "y")]
    assert fused(nodes, {"x": IMAGE}, {"y": IMAGE, "b": IMAGE}, [W]) == [[0, 1], [2]]


def test_broadcasting_consumer_is_no_epilogue():
    nodes = [node("GlobalAveragePool", "x", "a"), node("Sigmoid", "a", "b"), node("Mul", "x b", "y")]
    assert fused(nodes, {"x": IMAGE}, {"y": IMAGE}) == [[0, 1], [2]]


BATCH_NORM = [weight("s", (2, 1, 1)), weight("o", (2, 1, 1)), W]
PRE_ACTIVATION = [
    node("MaxPool", "x", "p", kernel_shape=[1, 1]),
    node("Concat", "p p", "q", axis=0),
    node("Slice", "q starts ends axes", "r"),
    node("Mul", "r s", "a"),
    node("Add", "a o", "b"),
    node("Relu", "b", "c"),
    conv("c w", "y"),
]
SLICING = [constant("starts", [0], "int64"), constant("ends", [1], "int64"), constant("axes", [0], "int64")]


def test_prologue_joins_the_anchor_that_alone_reads_it():
    assert fused(PRE_ACTIVATION, {"x": IMAGE}, {"y": IMAGE}, [*BATCH_NORM, *SLICING]) == [[0], [1], [2], [3, 4, 5, 6]]


def test_conservative_leaves_the_prologue_to_what_stands_before_it():
    expected = [[0], [1], [2, 3, 4, 5], [6]]
    found = fused(PRE_ACTIVATION, {"x": IMAGE}, {"y": IMAGE}, [*BATCH_NORM, *SLICING], planner=conservative)
    assert found == expected


def test_prologue_read_by_others_stays_apart():
    nodes = [node("Relu", "x", "a"), conv("a w", "b"), node("Neg", "a", "n")]
    assert fused(nodes, {"x": IMAGE}, {"b": IMAGE, "n": IMAGE}, [W]) == [[0], [1], [2]]


def test_operand_that_a_prologue_broadcasts_is_not_computed_in_it():
    nodes = [node("Sigmoid", "g", "s"), node("Mul", "x s", "m"), conv("m w", "y")]
    assert fused(nodes, {"x": IMAGE, "g": (1, 2, 1, 1)}, {"y": IMAGE}, [W]) == [[0], [1, 2]]


def test_what_a_convolution_reads_as_its_kernel_is_no_prologue():
    shape = (2, 2, 1, 1)
    assert fused([node("Relu", "k", "w"), conv("x w", "y")], {"x": shape, "k": shape}, {"y": shape}) == [[0], [1]]
    assert fused([node("Relu", "x", "w"), conv("w w", "y")], {"x": shape}, {"y": shape}) == [[0], [1]]


def test_prologue_is_bounded():
    nodes = [*(node("Relu", f"t{i}", f"t{i + 1}") for i in range(40)), conv("t40 w", "y")]
    found = fused(nodes, {"t0": IMAGE}, {"y": IMAGE}, [W])
    assert [len(group) for group in found] == [41 - MAX_GROUP_OPERATORS, MAX_GROUP_OPERATORS]


def test_operator_that_nobody_reads_joins_nothing():
    nodes = [node("Relu", "x", "a"), node("Neg", "a", "dead"), node("Abs", "a", "y")]
    assert fused(nodes, {"x": IMAGE}, {"y": IMAGE}) == [[0], [1], [2]]


def test_element_wise_operators_fuse_among_themselves_as_trees():
    nodes = [node("Relu", "x", "a"), node("Neg", "z", "b"), node("Add", "a b", "y")]
    assert fused(nodes, {"x": IMAGE, "z": IMAGE}, {"y": IMAGE}) == [[0, 1, 2]]


def test_softmax_stays_alone():
    nodes = [node("Relu", "x", "a"), node("Softmax", "a", "b"), node("Neg", "b", "y")]
    assert fused(nodes, {"x": (2, 3)}, {"y": (2, 3)}) == [[0], [1], [2]]


def test_operator_of_several_outputs_stays_alone():
    nodes = [node("Split", "x", "a b", axis=0), node("Relu", "a", "c"), node("Neg", "b", "d")]
    outputs = {"c": (2,), "d": (2,)}
    assert fused(nodes, {"x": (4,)}, outputs) == [[0], [1], [2]]


def test_relu_of_another_domain_is_not_element_wise():
    nodes = [conv("x w", "a"), node("Relu", "a", "y", domain="acme")]
    found = fused(nodes, {"x": IMAGE}, {"a": IMAGE, "y": IMAGE}, [W], domains=("acme",), infer=False)
    assert found == [[0], [1]]


def test_movement_takes_a_trailing_chain_but_nothing_before_it():
    nodes = [node("Neg", "x", "a"), node("Transpose", "a", "b", perm=[1, 0]), node("Relu", "b", "y")]
    assert fused(nodes, {"x": (2, 3)}, {"y": (3, 2)}) == [[0], [1, 2]]


def test_very_long_chain_is_cut_into_equal_groups_of_one_key():
    count = 20_000
    nodes = [node("Relu", f"t{i}", f"t{i + 1}") for i in range(count)]
    specs = {f"t{i}": (4,) for i in range(1, count + 1)}
    bare = model(nodes, {"t0": (4,)}, {f"t{count}": (4,)}, infer=False)
    bare.graph.value_info.extend(model([], {}, specs, infer=False).graph.output)
    graph = operator_graph(bare)
    plan = epilogue_chains(graph, NONE)
    assert check_plan(graph, plan) == []
    assert len(plan.groups) == count // MAX_GROUP_OPERATORS
    assert len({group.key for group in plan.groups}) == 1


def test_key_ignores_names_and_counts_everything_else():
    def key(nodes=None, shape=IMAGE, constants=(W,), **kwargs):
        nodes = nodes or [conv("x w", "a"), node("Relu", "a", "y")]
        return epilogue_chains(graph_of(nodes, {"x": shape}, {"y": shape}, constants, **kwargs), NONE).groups[0].key

    base = key()
    assert key([conv("x w", "other"), node("Relu", "other", "y", name="n")]) == base
    assert key(constants=(weight("w", (2, 2, 1, 1), seed=5),)) == base  # values of arguments are not the kernel's
    assert key(opset=15) == base  # neither operator changed in between
    assert key(shape=(1, 2, 4, 4)) != base
    assert key(opset=12) != base  # Relu did
    assert key([node("Conv", "x w", "a", kernel_shape=[1, 1], dilations=[2, 2]), node("Relu", "a", "y")]) != base
    assert key([conv("x w", "a"), node("Neg", "a", "y")]) != base


def test_key_holds_baked_values_and_wiring():
    def key(second, value):
        nodes = [node("Mul", "x c", "a"), node("Sub", second, "y")]
        graph = graph_of(nodes, {"x": IMAGE}, {"y": IMAGE}, [constant("c", value)])
        return epilogue_chains(graph, NONE).groups[0].key

    assert key("a x", 1.0) == key("a x", 1.0)
    assert key("a x", 1.0) != key("a x", 2.0)
    assert key("a x", 1.0) != key("x a", 1.0)


def test_key_tells_whether_an_inner_tensor_is_visible():
    graph = graph_of([node("Relu", "x", "a"), node("Neg", "a", "y")], {"x": (2,)}, {"y": (2,)})
    hidden = from_partition(graph, [[0, 1]], "p").groups[0]
    shown = from_partition(graph, [[0, 1]], "p", frozenset({"a"})).groups[0]
    assert (hidden.outputs, shown.outputs) == (("y",), ("a", "y"))
    assert hidden.key != shown.key


def test_equal_groups_list_arguments_in_corresponding_order():
    def block(x, z, w, mid, out):
        return [conv(f"{x} {w}", mid), node("Add", f"{mid} {z}", out)]

    nodes = [*block("x", "z", "w", "m1", "y1"), *block("z", "x", "v", "a0", "y2")]
    outputs = {"y1": IMAGE, "y2": IMAGE}
    constants = [W, weight("v", (2, 2, 1, 1))]
    first, second = epilogue_chains(graph_of(nodes, {"x": IMAGE, "z": IMAGE}, outputs, constants), NONE).groups
    assert first.key == second.key
    assert (first.inputs, first.weights, first.outputs) == (("x", "z"), ("w",), ("y1",))
    assert (second.inputs, second.weights, second.outputs) == (("z", "x"), ("v",), ("y2",))


def test_family_is_the_operator_with_most_flops_first_on_ties():
    nodes = [node("Relu", "x", "a"), node("Sigmoid", "a", "b"), node("Mul", "b x", "y")]
    group = epilogue_chains(graph_of(nodes, {"x": IMAGE}, {"y": IMAGE}), NONE).groups[0]
    assert (group.family, group.anchor, group.longlat_flops) == ("Relu", 0, 18)


def test_constant_graph_is_planned_without_groups():
    graph = graph_of([], {"x": (2,)}, {"x": (2,)}, infer=False)
    assert unfused(graph).groups == epilogue_chains(graph, NONE).groups == ()


# --- from_partition -----------------------------------------------------------------------------------------------


def test_partition_is_put_into_execution_order():
    graph = operator_graph(residual_block())
    plan = from_partition(graph, [[5, 4], [3], [2], [1, 0]], "theirs")
    assert partition(plan) == [[0, 1], [2], [3], [4, 5]]
    assert plan.label == "theirs"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[0, 1], [2], [3, 4]], "found 1 in no group, first 5"),
        ([[0, 1], [2], [3, 4, 5], [5]], "operator 5: expected in one group, found in groups 2 and 3"),
        ([[0, 1], [2], [3, 4, 5], [6]], "expected operators 0 to 5, found 6"),
        ([[0, 1], [2], [3, 4, 5], []], "group 3: expected at least one operator"),
        ([[0, 2], [1], [3, 4, 5]], r"group 0 \[0, 2\]: expected connected operators"),
        ([[0], [2], [1], [0, 3, 4, 5]], "operator 0: expected in one group"),
    ],
)
def test_impossible_partition_is_refused(given, message):
    with pytest.raises(BadInputError, match=message):
        from_partition(operator_graph(residual_block()), given, "theirs")


def test_circle_of_groups_is_refused():
    # x → Relu → Neg → Add ← Relu: Relu and Add together wait for Neg, which waits for Relu.
    nodes = [node("Relu", "x", "a"), node("Neg", "a", "b"), node("Add", "a b", "y")]
    graph = graph_of(nodes, {"x": (2,)}, {"y": (2,)})
    with pytest.raises(BadInputError, match=r"found 2 that wait for one another in a circle: \[0, 2\], \[1\]"):
        from_partition(graph, [[0, 2], [1]], "theirs")


# --- taps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Sigmoid"])
def test_input_of_a_final_squashing_operator_is_tapped(op_type):
    nodes = [node("Relu", "x", "a"), node(op_type, "a", "y")]
    assert group_taps(graph_of(nodes, {"x": (2, 3)}, {"y": (2, 3)})) == {"a"}


def test_input_of_a_final_argmax_is_tapped():
    nodes = [node("Relu", "x", "a"), node("ArgMax", "a", "y", axis=1)]
    assert group_taps(graph_of(nodes, {"x": (2, 3)}, {"y": ((2, 1), TensorProto.INT64)})) == {"a"}


def test_tap_is_found_through_reshapes():
    nodes = [node("Relu", "x", "a"), node("Softmax", "a", "b"), node("Transpose", "b", "c", perm=[1, 0])]
    nodes.append(node("Flatten", "c", "y"))
    assert group_taps(graph_of(nodes, {"x": (2, 3)}, {"y": (3, 2)})) == {"a"}


def test_softmax_written_out_is_tapped_at_its_exponent():
    nodes = [
        node("Relu", "x", "a"),
        node("Exp", "a", "e"),
        node("ReduceSum", "e axes", "s", keepdims=1),
        node("Div", "e s", "y"),
    ]
    assert group_taps(graph_of(nodes, {"x": (2, 3)}, {"y": (2, 3)}, [constant("axes", [1], "int64")])) == {"a"}


def test_nothing_is_tapped_before_an_inner_softmax_a_plain_output_or_a_graph_input():
    inner = [node("Softmax", "x", "a"), node("Relu", "a", "y")]
    assert group_taps(graph_of(inner, {"x": (2, 3)}, {"y": (2, 3)})) == NONE
    plain = [node("Div", "x z", "y")]
    assert group_taps(graph_of(plain, {"x": (2, 3), "z": (2, 3)}, {"y": (2, 3)})) == NONE
    direct = [node("Softmax", "x", "y")]
    assert group_taps(graph_of(direct, {"x": (2, 3)}, {"y": (2, 3)})) == NONE
