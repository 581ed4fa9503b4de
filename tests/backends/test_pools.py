"""Pools compute what ONNX says, whatever the window, the border, the channels and the tile."""

import numpy as np
import pytest
from covering import covering
from small_groups import AVX2, AVX512, NEON, case, constant

from mapper.templates import pooling

POOL = pooling.TEMPLATE


def pool(op_type, image, *, tail=(), constants=(), opset=17, **attributes):
    """Return one pool, with element-wise operators from `t` to `y` after it."""
    return case([(op_type, "x", "t" if tail else "y", attributes), *tail], {"x": image}, constants, opset=opset)


WINDOW = {"kernel_shape": [3, 3], "strides": [2, 2]}
CASES = {
    "no pads": pool("MaxPool", (1, 16, 9, 11), **WINDOW),
    "pads": pool("MaxPool", (1, 32, 8, 9), pads=[1, 1, 1, 1], **WINDOW),
    "pads differ": pool("MaxPool", (2, 24, 7, 9), pads=[0, 2, 1, 0], **WINDOW),
    "ceiling": pool("MaxPool", (1, 20, 8, 10), ceil_mode=1, **WINDOW),
    "dilated": pool("MaxPool", (1, 8, 11, 12), kernel_shape=[3, 2], dilations=[2, 3], pads=[2, 1, 2, 1]),
    "odd channels": pool("MaxPool", (1, 13, 7, 6), pads=[1, 1, 1, 1], **WINDOW),
    "more channels than a task takes": pool("MaxPool", (1, 160, 5, 4), kernel_shape=[2, 2]),
    "one channel": pool("MaxPool", (1, 1, 6, 7), kernel_shape=[2, 2]),
    "wide window": pool("MaxPool", (1, 8, 8, 9), kernel_shape=[5, 5], pads=[2, 2, 2, 2]),
    "mean": pool("AveragePool", (1, 16, 9, 11), **WINDOW),
    "mean, pads left out": pool("AveragePool", (2, 24, 7, 9), pads=[1, 1, 1, 1], **WINDOW),
    "mean, pads counted": pool("AveragePool", (1, 24, 7, 9), pads=[1, 0, 1, 1], count_include_pad=1, **WINDOW),
    "mean, uneven pads left out": pool("AveragePool", (1, 12, 9, 9), kernel_shape=[4, 4], pads=[3, 1, 0, 2]),
    "mean, ceiling that changes nothing": pool("AveragePool", (1, 16, 9, 9), ceil_mode=1, **WINDOW),
    "mean, dilated": pool("AveragePool", (1, 16, 9, 9), opset=19, kernel_shape=[2, 2], dilations=[3, 2]),
    "mean and what follows": pool(
        "AveragePool",
        (1, 24, 8, 8),
        tail=[("Mul", "t k", "u", {}), ("Relu", "u", "y", {})],
        constants=[("k", (24, 1, 1))],
        kernel_shape=[2, 2],
        strides=[2, 2],
    ),
    "pool and what reads it twice": pool(
        "MaxPool", (1, 24, 8, 8), tail=[("Sigmoid", "t", "g", {}), ("Mul", "t g", "y", {})], **WINDOW
    ),
    "whole image": pool("GlobalAveragePool", (1, 64, 6, 5)),
    "whole image, batch, odd channels": pool("GlobalAveragePool", (2, 21, 4, 3)),
    "whole image, 8 of 16 lanes": pool("GlobalAveragePool", (1, 40, 12, 5)),
    "whole image, largest": pool("GlobalMaxPool", (1, 40, 6, 5)),
    "window of the whole image": pool("AveragePool", (1, 96, 7, 7), kernel_shape=[7, 7]),
    "whole image and what follows": pool("GlobalAveragePool", (1, 48, 6, 6), tail=[("Sigmoid", "t", "y", {})]),
    "mean over both axes": pool("ReduceMean", (2, 24, 6, 5), axes=[2, 3], keepdims=1),
    "mean over both axes, dropped": pool("ReduceMean", (2, 24, 6, 5), axes=[-2, -1], keepdims=0),
    "largest over both axes": pool("ReduceMax", (1, 24, 4, 5), axes=[2, 3], keepdims=1),
}


@pytest.mark.parametrize("name", CASES)
def test_covering_choices_compute_the_pool(kernels, name):
    one = CASES[name]
    assert POOL.matches(one.spec)
    choices = covering(POOL.choices(one.spec, AVX2, one.layouts()))
    assert kernels.wrong(one, choices) == []


@pytest.mark.parametrize("on", [AVX512, NEON], ids=["16 lanes", "4 lanes"])
@pytest.mark.parametrize("name", ["pads differ", "mean, pads left out", "whole image, 8 of 16 lanes", "odd channels"])
def test_tiles_of_other_machines_compute_it_too(kernels, name, on):
    one = CASES[name]
    assert kernels.wrong(one, covering(POOL.choices(one.spec, on, one.layouts()))) == []


@pytest.mark.parametrize("name", ["pads", "mean, pads left out", "whole image and what follows"])
def test_a_pool_may_write_channels_first(kernels, name):
    one = CASES[name]
    choices = POOL.choices(one.spec, AVX2, one.layouts("nhwc", "nchw"))
    assert kernels.wrong(one, choices[:2]) == []


@pytest.mark.parametrize("special", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 1, 2, 3, 4])
def test_a_window_with_nan_gives_nan_and_infinities_compare(kernels, special, at):
    one = pool("MaxPool", (1, 8, 2, 5), kernel_shape=[2, 5])
    values = one.values()
    values["in0"][:, :, 1, at] = special
    values["in0"][:, 3] = -np.inf
    wanted = np.max(values["in0"], axis=(2, 3), keepdims=True)  # numpy's maximum keeps NaN
    assert kernels.wrong(one, POOL.choices(one.spec, AVX2, one.layouts())[:1], values, {"out0": wanted}) == []


def test_a_maximum_over_an_image_keeps_nan_wherever_it_is(kernels):
    one = pool("GlobalMaxPool", (1, 24, 4, 3))
    values = one.values()
    for channel in range(0, 24, 2):
        values["in0"][0, channel, channel % 4, channel % 3] = np.nan
    wanted = np.max(values["in0"], axis=(2, 3), keepdims=True)
    assert np.isnan(wanted).sum() == 12
    choices = covering(POOL.choices(one.spec, AVX2, one.layouts()))
    assert kernels.wrong(one, choices, values, {"out0": wanted}) == []


def test_windows_of_nothing_but_lowest_values_stay_lowest(kernels):
    one = CASES["pads"]
    values = {"in0": np.full((1, 32, 8, 9), np.finfo(np.float32).min)}
    wanted = np.full((1, 32, 4, 5), np.finfo(np.float32).min)
    assert kernels.wrong(one, POOL.choices(one.spec, AVX2, one.layouts())[:1], values, {"out0": wanted}) == []


def test_an_axis_given_as_an_input_is_read(kernels):
    one = case([("ReduceMean", "x a", "y", {})], {"x": (1, 16, 5, 4)}, [constant("a", [2, 3], np.int64)], opset=18)
    assert POOL.matches(one.spec)
    assert kernels.wrong(one, POOL.choices(one.spec, AVX2, one.layouts())[:2]) == []
