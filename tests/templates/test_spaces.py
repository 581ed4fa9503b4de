"""What every template owes: choices for any group and machine, each legal, each with a finite prediction."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from small_groups import AVX2, AVX512, NEON, RELU, Case, case, conv, machine, matmul

from mapper import templates
from mapper.errors import BadInputError
from mapper.records import Choice
from mapper.templates import conv2d

MACHINES = {
    "8 lanes": AVX2,
    "16 lanes": AVX512,
    "4 lanes": NEON,
    "one thread": machine(threads=1),
}
SAME = {"pads": [1, 1, 1, 1]}
GROUPS = {
    "conv2d": [
        conv((1, 64, 56, 56), 64, (3, 3), **SAME),
        conv((1, 3, 224, 224), 64, (7, 7), strides=[2, 2], pads=[3, 3, 3, 3]),
        conv((1, 512, 13, 13), 1000, (1, 1)),
        conv((1, 16, 1, 1), 4, (1, 1)),
        conv((1, 3, 5, 5), 1, (3, 3)),
        conv((1, 12, 7, 7), 15, (3, 3), group=3, **SAME),
        conv((1, 24, 28, 28), 240, (1, 1), group=3),
        conv((1, 6, 11, 13), 10, (1, 1), group=2),
        conv((2, 6, 17), 20, (3,)),
        conv((1, 8, 7, 7), 20, (3, 3), head=[("Relu", "x", "h", {})]),
    ],
    "depthwise": [
        conv((1, 32, 112, 112), 32, (3, 3), group=32, **SAME),
        conv((1, 20, 7, 13), 20, (5, 5), group=20, strides=[2, 2], pads=[2, 2, 2, 2]),
        conv((1, 3, 4, 4), 3, (3, 3), group=3),
        conv((1, 12, 17), 12, (3,), group=12),
    ],
    "matmul": [
        matmul((1, 2048), (2048, 1000)),
        matmul((49, 120), (120, 360)),
        matmul((1, 7), (7, 1)),
        matmul((2, 8, 40, 15), (2, 8, 15, 40), b_is_constant=False),
        matmul((13, 5), (5, 21), b_is_constant=False),
    ],
    "convtranspose": [
        case(
            [("ConvTranspose", "x w", "y", {"kernel_shape": [2, 2], "strides": [2, 2]})], {"x": image}, [("w", weight)]
        )
        for image, weight in (((1, 24, 12, 13), (24, 10, 2, 2)), ((1, 24, 80, 80), (24, 1, 2, 2)))
    ],
    "rowwise": [
        case([("Softmax", "x", "y", {})], {"x": (1, 1000)}),
        case([("Softmax", "x", "y", {})], {"x": (8, 16)}),
        case([("ReduceMean", "x", "y", {"axes": [2, 3]})], {"x": (1, 64, 7, 7)}),
        case([("LayerNormalization", "x g b", "y", {})], {"x": (2, 9, 40)}, [("g", (40,)), ("b", (40,))]),
    ],
    "generic": [
        case([("Concat", "x z", "y", {"axis": 1})], {"x": (1, 64, 56, 56), "z": (1, 8, 56, 56)}),
        case([("Add", "x z", "y", {})], {"x": (1, 64, 56, 56), "z": (1, 64, 56, 56)}),
        case([("Transpose", "x", "y", {})], {"x": (3, 4)}),
    ],
}
EVERY = [(name, index) for name, cases in GROUPS.items() for index in range(len(cases))]


def assert_is_sound(spec, space, template, on):
    assert len(space) == len({(one.template, one.layouts, tuple(sorted(one.tile.items()))) for one in space})
    for choice in space:
        assert choice.template == template.name
        template.check(spec, choice)
        predicted = template.cost(spec, choice, on)
        figures = (predicted.time_s, predicted.compute_s, predicted.memory_s, predicted.overhead_s)
        assert all(math.isfinite(figure) and figure >= 0 for figure in figures)
        assert predicted.time_s > 0
        assert predicted.time_s >= max(figures[1:])
        assert all(moved >= 0 for moved in predicted.bytes_by_level.values())
        assert set(predicted.bytes_by_level) <= set(on.bandwidth_b_per_s_n)


@pytest.mark.parametrize("on", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize(("name", "index"), EVERY)
def test_every_choice_is_legal_and_priced(name, index, on):
    one = GROUPS[name][index]
    template = templates.template_for(one.spec)
    assert template.name == name
    space = template.choices(one.spec, on, one.layouts())
    assert space
    assert {choice.layouts for choice in space} == {one.layouts()}
    assert_is_sound(one.spec, space, template, on)


@pytest.mark.parametrize(("name", "index"), [pair for pair in EVERY if pair[0] not in ("generic", "rowwise")])
def test_no_choice_executes_less_than_the_anchor_needs(name, index):
    spec = GROUPS[name][index].spec
    template = templates.by_name(name)
    anchor = spec.operators[spec.anchor]
    bias = math.prod(spec.tensors[anchor.outputs[0]].shape)  # counted as useful, not priced
    for choice in template.choices(spec, AVX2, ()):
        assert template.cost(spec, choice, AVX2).executed_flops >= anchor.flops - bias


@pytest.mark.parametrize("on", [AVX2, AVX512, NEON], ids=["16 registers", "32 registers", "32 short registers"])
@pytest.mark.parametrize("name", ["conv2d", "depthwise", "matmul", "convtranspose"])
def test_sums_fit_the_register_file(name, on):
    for one in GROUPS[name]:
        for choice in templates.by_name(name).choices(one.spec, on, one.layouts()):
            tile = choice.tile
            rows = tile.get("rm", tile.get("rw", 1) * tile.get("rh", 1))
            vectors = tile["vb"] // tile["v"]
            assert rows == 1 or rows * vectors + vectors <= on.vector_registers
            assert tile["v"] <= on.vector_lanes_f32


@pytest.mark.parametrize(
    ("one", "name"),
    [
        (conv((1, 4, 5, 5), 4, (3, 3), group=4), "depthwise"),
        (conv((1, 4, 5, 5), 8, (3, 3), group=4), "conv2d"),
        (conv((1, 1, 5, 5), 1, (3, 3)), "conv2d"),
        (conv((1, 4, 5, 5, 5), 8, (3, 3, 3)), "generic"),
        (conv((1, 4, 5, 5), 8, (1, 1), tail=[("Sigmoid", "t", "g", {}), ("Mul", "t g", "y", {})]), "conv2d"),
        (case([("Conv", "x w", "y", {})], {"x": (1, 3, 6, 6), "w": (4, 3, 3, 3)}), "generic"),
        (
            case(
                [("Conv", "x w", "a", {}), ("Conv", "a u", "y", {})],
                {"x": (1, 3, 6, 6)},
                [("w", (3, 3, 1, 1)), ("u", (3, 3, 1, 1))],
            ),
            "generic",
        ),
        (case([("MatMul", "x w", "a", {}), ("MatMul", "a w", "y", {})], {"x": (4, 4)}, [("w", (4, 4))]), "generic"),
        (case([("MatMul", "x w", "y", {})], {"x": (2, 3, 4)}, [("w", (2, 4, 5))]), "generic"),
        (
            case([("ConvTranspose", "x w", "y", {"strides": [1, 1]})], {"x": (1, 3, 4, 4)}, [("w", (3, 2, 2, 2))]),
            "generic",
        ),
        (
            case(
                [("ConvTranspose", "x w", "y", {"strides": [2, 2], "pads": [0, 0, 1, 1]})],
                {"x": (1, 3, 4, 4)},
                [("w", (3, 2, 2, 2))],
            ),
            "generic",
        ),
        (case([("Relu", "x", "y", {})], {"x": (3,)}), "generic"),
        (case([("Softmax", "x", "y", {})], {"x": (4, 15)}), "generic"),
        (case([("Softmax", "x", "y", {})], {"x": (4, 16)}), "rowwise"),
        (case([("Softmax", "x", "y", {"axis": 0})], {"x": (16, 16)}), "generic"),
        (case([("Softmax", "x", "y", {})], {"x": (4, 4, 16)}, opset=11), "generic"),  # rows run over two axes there
        (case([("Softmax", "x", "y", {"axis": 2})], {"x": (4, 4, 16)}, opset=11), "rowwise"),
        (case([("ReduceMean", "x", "y", {"axes": [-1]})], {"x": (4, 16)}), "rowwise"),
        (case([("ReduceMean", "x", "y", {"axes": [0]})], {"x": (16, 4)}), "generic"),
        (case([("ReduceProd", "x", "y", {"axes": [1]})], {"x": (4, 16)}), "generic"),
    ],
)
def test_a_group_goes_to_the_template_of_its_anchor(one, name):
    assert templates.template_for(one.spec).name == name


def test_double_precision_is_left_to_the_generic_template():
    shapes = {"x": (1, 3, 4, 4), "y": (1, 2, 4, 4)}
    x, y = (helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape) for name, shape in shapes.items())
    held = [numpy_helper.from_array(np.ones((2, 3, 1, 1)), "w")]
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "g", [x], [y], held)
    one = Case(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert templates.template_for(one.spec).name == "generic"


def test_templates_are_found_by_name():
    for template in templates.ALL:
        assert templates.by_name(template.name) is template


def test_an_unknown_template_is_rejected():
    with pytest.raises(BadInputError, match="unknown template 'loom': expected one of conv2d, winograd, depthwise,"):
        templates.by_name("loom")


# --- rejections: a legal tile with one field changed ----------------------------------------------

SMALL = {
    # 16 channels of 8 × 8 in two blocks of 8 lanes; 4 rows of 8 sums
    "conv2d": (
        conv((1, 8, 8, 8), 16, (3, 3), **SAME),
        {"v": 8, "vb": 8, "rw": 4, "rh": 1, "th": 2, "tc": 2, "stage": 1, "ku": 1},
    ),
    "depthwise": (
        conv((1, 16, 8, 8), 16, (3, 3), group=16, **SAME),
        {"v": 8, "vb": 8, "rw": 4, "th": 2, "tc": 2, "stage": 1},
    ),
    "convtranspose": (
        case([("ConvTranspose", "x w", "y", {"strides": [2, 2]})], {"x": (1, 3, 6, 8)}, [("w", (3, 4, 2, 2))]),
        {"v": 8, "vb": 16, "rw": 4, "th": 2, "stage": 1},
    ),
    "matmul": (matmul((12, 8), (8, 32)), {"v": 8, "vb": 16, "rm": 4, "tm": 3, "tc": 2, "stage": 0}),
    "rowwise": (case([("Softmax", "x", "y", {})], {"x": (4, 20)}), {"v": 8, "grain": 1}),
    "generic": (case([("Relu", "x", "y", {})], {"x": (64,)}), {"v": 8, "grain": 1}),
}


def check(name, **changes):
    one, tile = SMALL[name]
    choice = Choice(template=name, layouts=one.layouts(), tile={**tile, **changes})
    templates.by_name(name).check(one.spec, choice)


@pytest.mark.parametrize("name", SMALL)
def test_the_unchanged_tile_is_legal(name):
    check(name)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("conv2d", {"rw": 0}, "every field but stage must be 1 or more"),
        ("conv2d", {"vb": 12}, "v = 8 must divide vb = 12"),
        ("conv2d", {"v": 3, "vb": 6}, "v = 3 must be a power of two"),
        ("conv2d", {"stage": 3}, r"stage = 3 must be 0 \(none\), 1 \(task\) or 2 \(root\)"),
        ("conv2d", {"th": 3}, "th = 3 must divide 8 row tiles"),
        ("conv2d", {"rh": 2, "th": 8}, "th = 8 must divide 4 row tiles"),
        ("conv2d", {"tc": 3}, "tc = 3 must divide 2 channel blocks"),
        ("conv2d", {"vb": 16}, "tc = 2 must divide 1 channel blocks"),
        ("conv2d", {"ku": 3}, "ku = 3 must divide 8 input channels"),
        ("conv2d", {"stage": 0}, "stage = 0 needs an unpadded, exactly tiled input"),
        ("conv2d", {"depth": 1}, "unknown depth"),
        ("depthwise", {"th": 0}, "every field must be 1 or more"),
        ("depthwise", {"vb": 12}, "v = 8 must divide vb = 12"),
        ("depthwise", {"v": 3, "vb": 6}, "v = 3 must be a power of two"),
        ("depthwise", {"stage": 3}, r"stage = 3 must be 1 \(task\) or 2 \(root\)"),
        ("depthwise", {"th": 3}, "th = 3 must divide 8 output rows"),
        ("depthwise", {"tc": 3}, "tc = 3 must divide 2 channel blocks"),
        ("convtranspose", {"th": 0}, "every field but stage must be 1 or more"),
        ("convtranspose", {"vb": 12}, "v = 8 must divide vb = 12"),
        ("convtranspose", {"v": 3, "vb": 6}, "v = 3 must be a power of two"),
        ("convtranspose", {"th": 4}, "th = 4 must divide 6 input rows"),
        ("convtranspose", {"rw": 3}, "rw = 3 must divide 8 input columns"),
        ("convtranspose", {"stage": 2}, r"stage = 2 must be 0 \(none\) or 1 \(task\)"),
        ("matmul", {"tm": 0}, "every field but stage must be 1 or more"),
        ("matmul", {"vb": 12}, "v = 8 must divide vb = 12"),
        ("matmul", {"v": 3, "vb": 6}, "v = 3 must be a power of two"),
        ("matmul", {"stage": 2}, r"stage = 2 must be 0 \(none\) or 1 \(task\)"),
        ("matmul", {"tm": 2}, "tm = 2 must divide 3 row tiles"),
        ("matmul", {"tc": 3}, "tc = 3 must divide 2 column blocks"),
        ("matmul", {"rm": 5}, "stage = 0 needs rm to divide 12 rows"),
        ("rowwise", {"v": 6}, "v = 6 must be a power of two"),
        ("rowwise", {"v": 32}, "v = 32 exceeds the row of 20"),
        ("rowwise", {"grain": 5}, "grain = 5 tasks, 0 for none, exceed the 4 rows"),
        ("generic", {"v": 0}, "v = 0 must be a power of two"),
        ("generic", {"v": 6}, "v = 6 must be a power of two"),
        ("generic", {"grain": 4097}, "grain = 4097 must be the least number of parallel tasks, 0 for none"),
    ],
)
def test_an_illegal_tile_is_rejected_by_its_rule(name, changes, message):
    with pytest.raises(BadInputError, match=message):
        check(name, **changes)


def test_groups_that_end_inside_a_vector_need_tasks_that_stage_whole_rows():
    one = conv((1, 6, 8, 8), 15, (3, 3), group=3, **SAME)  # groups of 5 channels
    tile = {"v": 8, "vb": 8, "rw": 4, "rh": 1, "th": 2, "tc": 3, "stage": 1, "ku": 1}
    template = templates.by_name("conv2d")
    template.check(one.spec, Choice(template="conv2d", layouts=one.layouts(), tile=tile))
    for change in ({"stage": 2}, {"rw": 3}):
        with pytest.raises(BadInputError, match="vb = 8 does not divide the 5 output channels of a group, so stage"):
            template.check(one.spec, Choice(template="conv2d", layouts=one.layouts(), tile={**tile, **change}))


# --- laws over shapes -----------------------------------------------------------------------------

LAWS = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@LAWS
@given(
    n=st.integers(1, 2),
    groups=st.sampled_from([1, 1, 2, 3]),
    ci=st.integers(1, 20),
    co=st.integers(1, 40),
    image=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    kernel=st.sampled_from([1, 3, 5]),
    stride=st.integers(1, 2),
    on=st.sampled_from(list(MACHINES.values())),
)
def test_any_convolution_has_sound_choices(n, groups, ci, co, image, kernel, stride, on):
    pads = [kernel // 2] * 4
    one = conv(
        (n, groups * ci, *image), groups * co, (kernel, kernel), group=groups, strides=[stride, stride], pads=pads
    )
    template = templates.template_for(one.spec)
    space = template.choices(one.spec, on, one.layouts())
    assert space
    assert_is_sound(one.spec, space[:: max(1, len(space) // 50)], template, on)


@LAWS
@given(
    m=st.integers(1, 70),
    k=st.integers(1, 40),
    n=st.integers(1, 70),
    batch=st.lists(st.integers(1, 3), max_size=2),
    constant=st.booleans(),
    on=st.sampled_from(list(MACHINES.values())),
)
def test_any_product_has_sound_choices(m, k, n, batch, constant, on):
    one = matmul((*batch, m, k), (k, n) if constant else (*batch, k, n), b_is_constant=constant)
    template = templates.by_name("matmul")
    assert template.matches(one.spec)
    space = template.choices(one.spec, on, one.layouts())
    assert space
    assert_is_sound(one.spec, space[:: max(1, len(space) // 50)], template, on)


# --- shapes read from the graph -------------------------------------------------------------------


def test_a_convolution_is_read_axis_by_axis():
    one = conv((2, 6, 9, 11), 4, (3, 5), group=2, strides=[2, 1], dilations=[1, 2], pads=[1, 2, 3, 4])
    found = conv2d.conv_shape(one.spec)
    # (9 + 1 + 3 - 3) // 2 + 1 = 6 and 11 + 2 + 4 - 9 + 1 = 9
    assert (found.n, found.ci, found.co, found.ih, found.iw, found.oh, found.ow) == (2, 6, 4, 9, 11, 6, 9)
    assert (found.kh, found.kw, found.stride_h, found.stride_w) == (3, 5, 2, 1)
    assert (found.dilation_h, found.dilation_w, found.groups, found.rank) == (1, 2, 2, 4)
    assert (found.pad_top, found.pad_left, found.pad_bottom, found.pad_right) == (1, 2, 3, 4)
    assert (found.ci_group, found.co_group, found.is_pointwise) == (3, 2, False)


def test_one_axis_is_read_as_a_row():
    found = conv2d.conv_shape(conv((1, 4, 9), 4, (3,), strides=[2], pads=[1, 0], tail=[RELU]).spec)
    assert (found.ih, found.iw, found.oh, found.ow, found.kh, found.kw) == (1, 9, 1, 4, 1, 3)
    assert (found.stride_h, found.stride_w, found.pad_top, found.pad_left, found.pad_bottom) == (1, 2, 0, 1, 0)


@pytest.mark.parametrize(
    ("pads", "kernel", "wanted"), [([0, 0, 0, 0], 1, True), ([0, 0, 0, 1], 1, False), ([0, 0, 0, 0], 2, False)]
)
def test_pointwise_means_one_unpadded_pixel_for_each(pads, kernel, wanted):
    assert conv2d.conv_shape(conv((1, 4, 5, 5), 4, (kernel, kernel), pads=pads).spec).is_pointwise is wanted


def test_an_epilogue_that_broadcasts_the_product_goes_to_the_generic_template():
    one = case(
        [("Conv", "x w", "a", {"kernel_shape": [1, 1]}), ("Mul", "a image", "y", {})],
        {"x": (1, 8, 1, 1), "image": (1, 8, 20, 20)},
        [("w", (8, 8, 1, 1))],
    )
    assert templates.template_for(one.spec).name == "generic"
