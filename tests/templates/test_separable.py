"""Which pairs of convolutions one kernel takes, how their weights are packed, and which tiles are refused."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from separable_groups import HARD_SWISH, RESIDUAL, separable
from small_groups import AVX2, AVX512, NEON, case, machine

from mapper.errors import BadInputError
from mapper.records import Choice
from mapper.templates import separable as template
from mapper.templates.separableshape import separable_shape

SEPARABLE = template.TEMPLATE
SAME = {"pads": [1, 1, 1, 1]}
DEPTHWISE = {"kernel_shape": [3, 3], "group": 8, **SAME}
WEIGHTS = [("w", (8, 1, 3, 3)), ("u", (12, 8, 1, 1))]
MACHINES = [AVX2, AVX512, NEON, machine(threads=1)]


def pair(*nodes, weights=WEIGHTS, outputs=("y",), image=(1, 8, 6, 6), **inputs):
    return case(list(nodes), {"x": image, **inputs}, weights, outputs=outputs)


FIRST = ("Conv", "x w", "d", DEPTHWISE)
SECOND = ("Conv", "d u", "y", {})


def test_both_convolutions_are_read():
    one = separable((2, 16, 9, 12), 24, 5, strides=[2, 1], dilations=[1, 2], pads=[2, 4, 2, 4], between=HARD_SWISH)
    shape = separable_shape(one.spec)
    assert (shape.n, shape.c, shape.co, shape.oh, shape.ow) == (2, 16, 24, 5, 12)
    assert (shape.depthwise, shape.pointwise) == (0, 2)
    assert shape.rows_read(3) == 9  # two strides of 2 and a window of 5
    assert shape.columns_read == 20  # 12 columns, and four dilated taps of 2
    assert shape.weights == tuple(one.spec.operators[index].inputs[1] for index in (0, 2))


@pytest.mark.parametrize("after", [(), RESIDUAL])
def test_activations_and_residuals_are_taken_along(after):
    assert SEPARABLE.matches(separable((1, 16, 8, 8), 24, 3, between=HARD_SWISH, after=after, **SAME).spec)


@pytest.mark.parametrize(
    "one",
    [
        pair(("Conv", "x w", "y", DEPTHWISE)),
        pair(FIRST, ("Conv", "d u", "y", {"strides": [2, 2]})),
        pair(FIRST, ("Conv", "d u", "y", {"pads": [1, 1, 1, 1]})),
        pair(FIRST, ("Conv", "d u", "y", {"group": 2}), weights=[WEIGHTS[0], ("u", (12, 4, 1, 1))]),
        pair(FIRST, ("Conv", "d u", "y", {}), weights=[WEIGHTS[0], ("u", (12, 8, 3, 3))]),
        pair(("Conv", "x w", "d", {**DEPTHWISE, "group": 1}), SECOND, weights=[("w", (8, 8, 3, 3)), WEIGHTS[1]]),
        pair(
            ("Conv", "x u", "d", {}),
            ("Conv", "d w", "y", {**DEPTHWISE, "group": 12}),
            weights=[WEIGHTS[1], ("w", (12, 1, 3, 3))],
        ),  # the other way round
        pair(
            ("Conv", "x w", "d", {**DEPTHWISE, "group": 6}),
            SECOND,
            image=(1, 6, 6, 6),
            weights=[("w", (6, 1, 3, 3)), ("u", (12, 6, 1, 1))],
        ),  # no whole vectors of channels
        pair(("Relu", "x", "h", {}), ("Conv", "h w", "d", DEPTHWISE), SECOND),
        pair(FIRST, SECOND, outputs=("d", "y")),
        pair(FIRST, ("Conv", "d u", "t", {}), ("Add", "t d", "y", {}), weights=[WEIGHTS[0], ("u", (8, 8, 1, 1))]),
        pair(FIRST, ("Softmax", "d", "e", {"axis": 1}), ("Conv", "e u", "y", {})),
        pair(FIRST, ("Conv", "d u", "t", {}), ("Add", "t k", "y", {}), weights=[*WEIGHTS, ("k", (3, 12, 6, 6))]),
        pair(FIRST, SECOND, weights=WEIGHTS[:1], u=(12, 8, 1, 1)),
        pair(
            ("Conv", "x w", "d", {"kernel_shape": [3], "group": 8}),
            SECOND,
            image=(1, 8, 6),
            weights=[("w", (8, 1, 3)), ("u", (12, 8, 1))],
        ),
    ],
)
def test_other_groups_are_not_matched(one):
    assert not SEPARABLE.matches(one.spec)


def test_weights_are_packed_by_channel_block():
    one = separable((1, 16, 8, 8), 13, 3, **SAME)
    choice = Choice(template="separable", layouts=one.layouts(), tile={"db": 8, "vb": 8})
    shape, packings = separable_shape(one.spec), SEPARABLE.packings(one.spec, choice)
    first = np.arange(16 * 9, dtype=np.float32).reshape(16, 1, 3, 3)
    second = np.arange(1, 1 + 13 * 16, dtype=np.float32).reshape(13, 16, 1, 1)
    packed = [packings[name].pack(weight) for name, weight in zip(shape.weights, (first, second), strict=True)]
    assert [value.shape for value in packed] == [packings[name].shape for name in shape.weights]
    for block, row, column, lane in np.ndindex(2, 3, 3, 8):
        assert packed[0][block, row, column, lane] == first[block * 8 + lane, 0, row, column]
    for block, channel, lane in np.ndindex(2, 16, 8):
        wanted = second[block * 8 + lane, channel, 0, 0] if block * 8 + lane < 13 else 0
        assert packed[1][block, channel, lane] == wanted


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    c=st.sampled_from([4, 8, 12, 20, 24, 36, 64, 100]),
    co=st.integers(1, 70),
    image=st.tuples(st.integers(3, 40), st.integers(3, 40)),
    kernel=st.sampled_from([3, 5]),
    stride=st.integers(1, 2),
    on=st.sampled_from(MACHINES),
)
def test_any_pair_has_sound_choices(c, co, image, kernel, stride, on):
    one = separable((1, c, *image), co, kernel, strides=[stride] * 2, pads=[kernel // 2] * 4)
    choices = SEPARABLE.choices(one.spec, on, one.layouts())
    assert choices
    assert len({tuple(choice.tile.items()) for choice in choices}) == len(choices)
    for choice in choices[:: max(1, len(choices) // 20)]:
        tile = choice.tile
        SEPARABLE.check(one.spec, choice)
        predicted = SEPARABLE.cost(one.spec, choice, on)
        assert math.isfinite(predicted.time_s)
        assert predicted.time_s > 0
        assert predicted.executed_flops >= sum(one.spec.operators[i].flops for i in (0, 1)) - c * co * 40 * 40
        for rows, vectors in (
            (tile["rw"] * tile["rh"], tile["vb"] // tile["v"]),
            (tile["dr"], tile["db"] // tile["dv"]),
        ):
            assert rows == 1 or rows * vectors + vectors <= on.vector_registers


SMALL = separable((1, 16, 8, 8), 24, 3, **SAME)
LEGAL = {"v": 8, "vb": 16, "rw": 4, "rh": 1, "th": 2, "dv": 8, "db": 16, "dr": 4}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rw": 0}, "every field but stage must be 1 or more"),
        ({"vb": 12}, "v = 8 must divide vb = 12"),
        ({"v": 3, "vb": 6}, "v = 3 must be a power of two"),
        ({"dv": 3, "db": 6}, "dv = 3 must be a power of two"),
        ({"db": 12}, "dv = 8 must divide db = 12"),
        ({"db": 24}, "db = 24 must divide 16 channels between"),
        ({"rw": 3}, "rw = 3 must divide 8 columns"),
        ({"dr": 5}, "dr = 5 must divide 8 columns"),
        ({"rh": 2, "th": 3}, "rh · th = 6 must divide 8 rows"),
        ({"tc": 1}, "unknown tc"),
    ],
)
def test_an_illegal_tile_is_rejected_by_its_rule(changes, message):
    SEPARABLE.check(SMALL.spec, Choice(template="separable", layouts=SMALL.layouts(), tile=LEGAL))
    with pytest.raises(BadInputError, match=message):
        SEPARABLE.check(SMALL.spec, Choice(template="separable", layouts=SMALL.layouts(), tile={**LEGAL, **changes}))
