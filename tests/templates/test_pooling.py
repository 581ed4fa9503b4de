"""Which pools are written out, as what numbers, and which tiles they refuse."""

import math

import pytest
from small_groups import AVX2, AVX512, NEON, case, machine

from mapper.errors import BadInputError
from mapper.records import Choice
from mapper.templates import pooling
from mapper.templates.poolshape import pool_shape

POOL = pooling.TEMPLATE


def pool(op_type, image=(1, 32, 8, 9), opset=17, **attributes):
    return case([(op_type, "x", "y", attributes)], {"x": image}, opset=opset)


IMAGE = pool("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
WHOLE = pool("GlobalAveragePool", (1, 32, 8, 9))


def test_a_window_is_read_axis_by_axis():
    shape = pool_shape(pool("MaxPool", kernel_shape=[2, 3], strides=[1, 2], dilations=[2, 1], pads=[1, 0, 1, 2]).spec)
    # rows: (8 + 2 − 3) / 1 + 1 = 8; columns: (9 + 2 − 3) / 2 + 1 = 5
    assert (shape.kind, shape.oh, shape.ow, shape.taps, shape.is_global) == ("max", 8, 5, 6, False)
    assert shape.range_of(0, 0) == (-1, 6)
    assert shape.range_of(0, 1) == (1, 8)
    assert shape.range_of(1, 2) == (2, 10)


@pytest.mark.parametrize(
    "one",
    [
        pool("GlobalMaxPool"),
        pool("AveragePool", kernel_shape=[8, 9]),
        pool("ReduceMean", axes=[-1, -2]),
        pool("ReduceMax", axes=[2, 3], keepdims=0),
    ],
)
def test_pools_over_the_whole_image_are_seen_as_such(one):
    assert pool_shape(one.spec).is_global


@pytest.mark.parametrize(
    "one",
    [
        pool("MaxPool", kernel_shape=[3, 3], auto_pad="SAME_UPPER"),
        pool("MaxPool", (1, 32, 9), kernel_shape=[3]),
        pool("MaxPool", (1, 32, 20, 20), kernel_shape=[5, 13]),  # 65 elements a window
        pool("AveragePool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),  # the last window leaves the image
        pool("LpPool", kernel_shape=[3, 3]),
        pool("ReduceMean", axes=[1]),
        pool("ReduceMean", axes=[1, 2]),
        pool("ReduceSum"),
        case([("MaxPool", "x", "y z", {"kernel_shape": [2, 2]})], {"x": (1, 4, 4, 4)}, outputs=("y", "z")),
        case([("Relu", "x", "a", {}), ("MaxPool", "a", "y", {"kernel_shape": [2, 2]})], {"x": (1, 4, 4, 4)}),
        case(
            [("MaxPool", "x", "a", {"kernel_shape": [2, 2]}), ("MaxPool", "a", "y", {"kernel_shape": [2, 2]})],
            {"x": (1, 4, 4, 4)},
        ),
        case([("GlobalMaxPool", "x", "a", {}), ("Add", "a x", "y", {})], {"x": (1, 4, 4, 4)}),
        case([("Relu", "x", "y", {})], {"x": (1, 4, 4, 4)}),
    ],
)
def test_other_pools_are_left_to_other_templates(one):
    assert not POOL.matches(one.spec)


def test_channels_that_are_not_innermost_are_left_to_the_generic_template():
    assert POOL.choices(IMAGE.spec, AVX2, ("nchw", "nhwc")) == ()
    assert POOL.choices(IMAGE.spec, AVX2, ("nhwc", "nchw"))


@pytest.mark.parametrize("on", [AVX2, AVX512, NEON, machine(threads=1)])
@pytest.mark.parametrize("channels", [1, 3, 24, 32, 1000])
def test_every_choice_is_legal_priced_and_itself(channels, on):
    for one in (
        pool("MaxPool", (1, channels, 9, 7), kernel_shape=[3, 3]),
        pool("GlobalAveragePool", (2, channels, 13, 13)),
    ):
        choices = POOL.choices(one.spec, on, one.layouts())
        assert len({tuple(choice.tile.items()) for choice in choices}) == len(choices) > 0
        assert any(choice.tile["grain"] == 0 for choice in choices)
        for choice in choices:
            POOL.check(one.spec, choice)
            predicted = POOL.cost(one.spec, choice, on)
            assert math.isfinite(predicted.time_s)
            assert predicted.time_s > 0


def test_a_thousand_channels_also_go_in_vectors_that_leave_no_tail():
    choices = POOL.choices(pool("GlobalAveragePool", (1, 1000, 13, 13)).spec, AVX512, ("nhwc", "nhwc"))
    assert {(8, 40), (16, 1000)} <= {(choice.tile["v"], choice.tile["vb"]) for choice in choices}


LEGAL = {"v": 8, "vb": 16, "parts": 1, "grain": 4}


@pytest.mark.parametrize(
    ("one", "changes", "message"),
    [
        (IMAGE, {"v": 0}, "v = 0 must be a power of two"),
        (IMAGE, {"v": 6}, "v = 6 must be a power of two"),
        (IMAGE, {"vb": 12}, "vb = 12 must be whole vectors that divide the 32 channels, or all of them"),
        (IMAGE, {"vb": 24}, "vb = 24 must be whole vectors"),
        (IMAGE, {"vb": 0}, "vb = 0 must be whole vectors"),
        (WHOLE, {"parts": 3}, "parts = 3 must divide 8 rows"),
        (WHOLE, {"parts": 0}, "parts = 0 must divide 8 rows"),
        (IMAGE, {"parts": 2}, "parts = 2 needs a pool over the whole image"),
        (IMAGE, {"grain": 9}, "grain = 9 tasks, 0 for none, exceed the 8 pieces of work"),
        (IMAGE, {"rows": 1}, "unknown rows"),
    ],
)
def test_an_illegal_tile_is_rejected_by_its_rule(one, changes, message):
    POOL.check(one.spec, Choice(template="pooling", layouts=one.layouts(), tile={**LEGAL, "grain": 2}))
    with pytest.raises(BadInputError, match=message):
        POOL.check(one.spec, Choice(template="pooling", layouts=one.layouts(), tile={**LEGAL, **changes}))
