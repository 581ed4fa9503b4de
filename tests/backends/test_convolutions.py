"""Kernels of the convolution templates compute what ONNX says, on shapes that no tile divides."""

import pytest
from small_groups import AVX512, NEON, RELU, RESIDUAL, SILU, case, constant, conv

from mapper import templates

SAME = {"pads": [1, 1, 1, 1]}
HARD_SWISH = (("HardSigmoid", "t", "g", {"alpha": 1 / 6, "beta": 0.5}), ("Mul", "t g", "y", {}))
NORMALISED = (("Mul", "x k", "a", {}), ("Add", "a c", "b1", {}), ("Relu", "b1", "h", {}))

CASES = {
    "pointwise": conv((1, 8, 6, 6), 16, (1, 1)),
    "pointwise, nothing divides": conv((1, 7, 5, 13), 20, (1, 1)),
    "pointwise, stride 2": conv((1, 8, 9, 9), 16, (1, 1), strides=[2, 2]),
    "pointwise, 40 channels": conv((1, 12, 13, 13), 40, (1, 1)),
    "pointwise, one pixel": conv((1, 24, 1, 1), 20, (1, 1)),
    "pointwise, padded": conv((1, 4, 5, 5), 8, (1, 1), **SAME),
    "3x3": conv((1, 8, 8, 8), 16, (3, 3), **SAME),
    "3x3 without bias": conv((1, 8, 8, 8), 16, (3, 3), bias=False, **SAME),
    "3x3, three channels, odd width": conv((1, 3, 11, 13), 5, (3, 3), **SAME),
    "3x3, one output channel": conv((1, 5, 7, 7), 1, (3, 3), **SAME),
    "3x3, stride 2, nothing left over": conv((1, 4, 9, 9), 8, (3, 3), strides=[2, 2]),
    "3x3, stride 2, a row left over": conv((1, 4, 10, 10), 8, (3, 3), strides=[2, 2]),
    "3x3, strides differ": conv((1, 4, 9, 12), 8, (3, 3), strides=[1, 2], **SAME),
    "3x3, pads differ": conv((1, 6, 7, 9), 20, (3, 3), pads=[0, 2, 1, 0]),
    "3x3, padded at the end only": conv((1, 4, 8, 8), 8, (3, 3), strides=[2, 2], pads=[0, 0, 1, 1]),
    "3x3, dilated": conv((1, 4, 9, 13), 8, (3, 3), dilations=[2, 3], pads=[2, 3, 2, 3]),
    "7x7, stride 2": conv((1, 3, 17, 17), 20, (7, 7), strides=[2, 2], pads=[3, 3, 3, 3]),
    "1x7": conv((1, 4, 5, 13), 8, (1, 7), pads=[0, 3, 0, 3]),
    "kernel as large as the image": conv((1, 4, 5, 5), 8, (5, 5)),
    "batch of 2": conv((2, 5, 7, 7), 20, (3, 3), **SAME),
    "2 groups": conv((1, 8, 6, 7), 16, (3, 3), group=2, **SAME),
    "3 groups of 5": conv((1, 6, 6, 7), 15, (3, 3), group=3, **SAME),
    "4 groups, pointwise": conv((2, 8, 5, 5), 24, (1, 1), group=4),
    "groups of one input channel, two outputs each": conv((1, 6, 6, 6), 12, (3, 3), group=6, **SAME),
    "one axis": conv((1, 6, 17), 20, (3,), pads=[1, 1]),
    "one axis, stride 2, dilated": conv((2, 5, 19), 7, (3,), strides=[2], dilations=[2], pads=[2, 1]),
    "then relu": conv((1, 8, 7, 7), 20, (3, 3), tail=[RELU], **SAME),
    "then clip": conv(
        (1, 8, 7, 7), 16, (1, 1), tail=[("Clip", "t lo hi", "y", {})], constants=[constant("lo", 0), constant("hi", 6)]
    ),
    "then residual and relu": conv((1, 8, 7, 13), 20, (3, 3), tail=RESIDUAL, inputs={"r": (1, 20, 7, 13)}, **SAME),
    "then silu": conv((1, 8, 7, 7), 20, (1, 1), tail=SILU),
    "then hard swish": conv((1, 8, 7, 7), 20, (3, 3), tail=HARD_SWISH, **SAME),
    "then leaky relu": conv((1, 8, 7, 7), 20, (1, 1), tail=[("LeakyRelu", "t", "y", {"alpha": 0.1})]),
    "then a product with a vector of channels": conv(
        (1, 8, 7, 7), 20, (1, 1), tail=[("Mul", "t k", "y", {})], constants=[("k", (1, 20, 1, 1))]
    ),
    "then a product with a squeezed input": conv(
        (1, 8, 7, 7), 20, (1, 1), tail=[("Mul", "t g", "y", {})], inputs={"g": (1, 20, 1, 1)}
    ),
    "after scale, shift and relu": conv(
        (1, 6, 7, 7), 20, (3, 3), head=NORMALISED, constants=[("k", (1, 6, 1, 1)), ("c", (1, 6, 1, 1))], **SAME
    ),
    "after scale, shift and relu, pointwise": conv(
        (1, 6, 7, 7), 20, (1, 1), head=NORMALISED, constants=[("k", (6, 1, 1)), ("c", (6, 1, 1))]
    ),
    "one axis, then relu": conv((1, 6, 17), 8, (3,), tail=[RELU], pads=[1, 1]),
    "depthwise 3x3": conv((1, 16, 8, 8), 16, (3, 3), group=16, **SAME),
    "depthwise 3x3, odd": conv((1, 20, 7, 13), 20, (3, 3), group=20, **SAME),
    "depthwise 3x3, stride 2": conv((1, 12, 9, 11), 12, (3, 3), group=12, strides=[2, 2], **SAME),
    "depthwise 3x3, stride 2, padded at the end only": conv(
        (1, 8, 8, 8), 8, (3, 3), group=8, strides=[2, 2], pads=[0, 0, 1, 1]
    ),
    "depthwise 5x5": conv((1, 24, 9, 9), 24, (5, 5), group=24, pads=[2, 2, 2, 2]),
    "depthwise, unpadded": conv((1, 8, 7, 7), 8, (3, 3), group=8, bias=False),
    "depthwise, dilated": conv((1, 8, 9, 9), 8, (3, 3), group=8, dilations=[2, 2], pads=[2, 2, 2, 2]),
    "depthwise, batch of 2": conv((2, 5, 6, 6), 5, (3, 3), group=5, **SAME),
    "depthwise, one axis": conv((1, 12, 17), 12, (5,), group=12, pads=[2, 2]),
    "depthwise, then relu": conv((1, 20, 7, 7), 20, (3, 3), group=20, tail=[RELU], **SAME),
    "depthwise, then residual and relu": conv(
        (1, 20, 7, 7), 20, (3, 3), group=20, tail=RESIDUAL, inputs={"r": (1, 20, 7, 7)}, **SAME
    ),
    "depthwise, then silu": conv((1, 20, 7, 7), 20, (3, 3), group=20, tail=SILU, **SAME),
    "depthwise, after scale, shift and relu": conv(
        (1, 6, 7, 7), 6, (3, 3), group=6, head=NORMALISED, constants=[("k", (1, 6, 1, 1)), ("c", (1, 6, 1, 1))], **SAME
    ),
}


def transposed(image, weight, *, tail=(), constants=(), inputs=None, **attributes):
    """Return a transposed convolution of `image` by `weight` (ci, co, kh, kw), stride as its kernel."""
    node = ("ConvTranspose", "x w b", "t" if tail else "y", {"strides": list(weight[2:]), **attributes})
    held = [("w", weight), ("b", (weight[1],)), *constants]
    return case([node, *tail], {"x": image, **(inputs or {})}, held)


CASES |= {
    "transposed 2x2": transposed((1, 8, 5, 7), (8, 6, 2, 2)),
    "transposed 2x2, one output channel": transposed((1, 8, 5, 6), (8, 1, 2, 2)),
    "transposed 2x3, batch of 2": transposed((2, 5, 4, 5), (5, 7, 2, 3)),
    "transposed, then relu": transposed((1, 8, 5, 7), (8, 6, 2, 2), tail=[RELU]),
    "transposed, then residual and relu": transposed(
        (1, 8, 3, 4), (8, 6, 2, 2), tail=RESIDUAL, inputs={"r": (1, 6, 6, 8)}
    ),
}


def family(name):
    return {"depthwise": "depthwise", "transposed": "convtranspose"}.get(name.split()[0].rstrip(","), "conv2d")


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_the_convolution(kernels, few, name):
    one = CASES[name]
    assert templates.template_for(one.spec).name == family(name)
    assert kernels.wrong(one, few(one, count=3)) == []


@pytest.mark.parametrize(("inside", "outside"), [("nchw", "nchw"), ("nchw", "nhwc"), ("nhwc", "nchw")])
@pytest.mark.parametrize(
    "name",
    [
        "3x3, three channels, odd width",
        "pointwise, nothing divides",
        "7x7, stride 2",
        "batch of 2",
        "3 groups of 5",
        "then residual and relu",
        "then a product with a squeezed input",
        "after scale, shift and relu",
        "depthwise 3x3, odd",
        "depthwise, then residual and relu",
        "transposed, then residual and relu",
    ],
)
def test_any_layouts_outside_give_the_same_values(kernels, few, name, inside, outside):
    one = CASES[name]
    assert kernels.wrong(one, few(one, count=1, policy=inside, output=outside)) == []


@pytest.mark.parametrize("machine", [AVX512, NEON], ids=["16 lanes", "4 lanes"])
@pytest.mark.parametrize(
    "name", ["3x3, pads differ", "pointwise, 40 channels", "4 groups, pointwise", "depthwise 3x3, odd"]
)
def test_tiles_of_other_machines_give_the_same_values(kernels, few, name, machine):
    one = CASES[name]
    assert kernels.wrong(one, few(one, count=2, machine=machine)) == []


@pytest.mark.parametrize(
    "name", ["3x3, three channels, odd width", "then residual and relu", "2 groups", "depthwise, then relu"]
)
def test_any_legal_schedule_keeps_the_values(kernels, few, name):
    one = CASES[name]
    assert kernels.wrong(one, few(one, count=10)) == []


@pytest.mark.parametrize("unroll", [2, 4, 8])
def test_unrolled_input_channels_keep_the_values(kernels, few, retiled, unroll):
    one = CASES["3x3"]
    assert kernels.wrong(one, [retiled(choice, ku=unroll) for choice in few(one, count=2)]) == []


def test_a_bias_that_is_computed_is_added(kernels, few):
    one = case(
        [("Conv", "x w b", "y", {"kernel_shape": [1, 1]})], {"x": (1, 4, 5, 5), "b": (8,)}, [("w", (8, 4, 1, 1))]
    )
    assert kernels.wrong(one, few(one, count=3)) == []


def test_an_input_read_by_convolution_and_epilogue_alike_is_right_in_both(kernels, few):
    one = conv((1, 8, 6, 7), 8, (3, 3), tail=[("Add", "t x", "y", {})], **SAME)
    assert kernels.wrong(one, few(one, count=3)) == []
