"""Packed weights, element by element, against the index formula of each family."""

import numpy as np
import pytest
from small_groups import case, conv, matmul

from mapper import templates
from mapper.records import Choice


def packed(name, one, weight, **tile):
    """Return the declared shape and the packed value of the anchor's weight."""
    choice = Choice(template=name, layouts=one.layouts(), tile=tile)
    packings = templates.by_name(name).packings(one.spec, choice)
    (only,) = packings
    assert only == one.spec.operators[one.spec.anchor].inputs[1]
    packing = packings[only]
    value = packing.pack(weight)
    assert value.shape == packing.shape
    assert value.dtype == weight.dtype
    assert value.flags.c_contiguous
    return value


def numbered(*shape):
    """Return 1, 2, 3 … so that a zero can only be filling."""
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize(("co", "vb"), [(16, 8), (20, 8), (5, 16), (1, 4)])
def test_convolution(co, vb):
    weight = numbered(co, 3, 2, 5)
    value = packed("conv2d", conv((1, 3, 9, 9), co, (2, 5)), weight, vb=vb)
    assert value.shape == (-(-co // vb), 2, 5, 3, vb)
    for block, kh, kw, ci, lane in np.ndindex(value.shape):
        channel = block * vb + lane
        assert value[block, kh, kw, ci, lane] == (weight[channel, ci, kh, kw] if channel < co else 0)


@pytest.mark.parametrize(("co_group", "vb"), [(8, 4), (6, 4), (5, 8)])
def test_grouped_convolution_fills_up_each_group(co_group, vb):
    weight = numbered(3 * co_group, 2, 3, 3)
    value = packed("conv2d", conv((1, 6, 9, 9), 3 * co_group, (3, 3), group=3), weight, vb=vb)
    blocks = -(-co_group // vb)
    assert value.shape == (3 * blocks, 3, 3, 2, vb)
    for group, block, lane in np.ndindex(3, blocks, vb):
        inner = block * vb + lane
        found = value[group * blocks + block, :, :, :, lane]
        wanted = weight[group * co_group + inner].transpose(1, 2, 0) if inner < co_group else np.zeros((3, 3, 2))
        np.testing.assert_array_equal(found, wanted)


def test_convolution_along_one_axis_has_one_kernel_row():
    weight = numbered(6, 2, 3)
    value = packed("conv2d", conv((1, 2, 9), 6, (3,)), weight, vb=4)
    assert value.shape == (2, 1, 3, 2, 4)
    assert value[1, 0, 2, 1, 1] == weight[5, 1, 2]
    assert value[1, 0, 2, 1, 2] == 0


@pytest.mark.parametrize(("channels", "vb"), [(16, 8), (20, 16), (3, 4)])
def test_depthwise(channels, vb):
    weight = numbered(channels, 1, 3, 5)
    value = packed("depthwise", conv((1, channels, 9, 9), channels, (3, 5), group=channels), weight, vb=vb)
    assert value.shape == (-(-channels // vb), 3, 5, vb)
    for block, kh, kw, lane in np.ndindex(value.shape):
        channel = block * vb + lane
        assert value[block, kh, kw, lane] == (weight[channel, 0, kh, kw] if channel < channels else 0)


@pytest.mark.parametrize(("n", "vb"), [(32, 16), (21, 8), (1, 4)])
def test_matmul(n, vb):
    weight = numbered(5, n)
    value = packed("matmul", matmul((3, 5), (5, n)), weight, vb=vb)
    assert value.shape == (-(-n // vb), 5, vb)
    for block, k, lane in np.ndindex(value.shape):
        column = block * vb + lane
        assert value[block, k, lane] == (weight[k, column] if column < n else 0)


def test_gemm_with_a_transposed_right_side():
    one = case([("Gemm", "x w", "y", {"transB": 1})], {"x": (3, 5)}, [("w", (7, 5))])
    weight = numbered(7, 5)
    value = packed("matmul", one, weight, vb=4)
    assert value.shape == (2, 5, 4)
    assert value[1, 3, 2] == weight[6, 3]
    assert value[1, 3, 3] == 0


def test_transposed_convolution_orders_taps_before_channels():
    one = case([("ConvTranspose", "x w", "y", {"strides": [2, 3]})], {"x": (1, 4, 5, 5)}, [("w", (4, 5, 2, 3))])
    weight = numbered(4, 5, 2, 3)
    value = packed("convtranspose", one, weight, vb=8)
    assert value.shape == (4, 4, 8)  # 30 channels of 2 × 3 taps
    for block, ci, lane in np.ndindex(value.shape):
        tap, channel = divmod(block * 8 + lane, 5)
        assert value[block, ci, lane] == (weight[ci, channel, tap // 3, tap % 3] if tap < 6 else 0)


def test_a_computed_right_side_is_packed_by_the_kernel_itself():
    one = matmul((3, 5), (5, 8), b_is_constant=False)
    choice = Choice(template="matmul", layouts=one.layouts(), tile={"vb": 8})
    assert templates.by_name("matmul").packings(one.spec, choice) == {}


def test_generic_leaves_weights_alone():
    one = case([("Add", "x b", "y", {})], {"x": (3, 5)}, [("b", (5,))])
    choice = Choice(template="generic", layouts=one.layouts(), tile={"v": 8, "grain": 1})
    assert templates.by_name("generic").packings(one.spec, choice) == {}
