"""A depthwise and a 1×1 convolution in one kernel compute what ONNX says, whatever is between and after them."""

import pytest
from covering import covering
from separable_groups import GELU, HARD_SWISH, RESIDUAL, separable
from small_groups import AVX2, AVX512, NEON

from mapper.templates import separable as template

SEPARABLE = template.TEMPLATE
SAME = {"pads": [1, 1, 1, 1]}
CASES = {
    "plain": separable((1, 16, 8, 10), 24, 3, **SAME),
    "no bias": separable((1, 16, 8, 10), 24, 3, bias=False, **SAME),
    "stride 2": separable((1, 24, 9, 12), 32, 3, strides=[2, 2], **SAME),
    "stride 2, even image, uneven pads": separable((1, 16, 8, 8), 16, 3, strides=[2, 2], pads=[0, 0, 1, 1]),
    "unpadded": separable((1, 16, 10, 12), 16, 3),
    "5 × 5": separable((1, 8, 6, 10), 40, 5, pads=[2, 2, 2, 2]),
    "dilated": separable((1, 16, 8, 10), 24, 3, dilations=[2, 2], pads=[2, 2, 2, 2]),
    "batch": separable((2, 16, 6, 7), 20, 3, **SAME),
    "odd output channels": separable((1, 32, 6, 8), 13, 3, **SAME),
    "few channels": separable((1, 4, 6, 8), 3, 3, **SAME),
    "channels of half a vector": separable((1, 12, 6, 8), 36, 3, **SAME),
    "prime columns": separable((1, 16, 5, 13), 24, 3, **SAME),
    "activations": separable((1, 16, 8, 10), 24, 3, between=HARD_SWISH, after=GELU, **SAME),
    "a residual": separable((1, 16, 8, 10), 24, 3, between=HARD_SWISH, after=RESIDUAL, **SAME),
}


@pytest.mark.parametrize("name", CASES)
def test_covering_choices_compute_both_convolutions(kernels, name):
    one = CASES[name]
    assert SEPARABLE.matches(one.spec)
    choices = covering(SEPARABLE.choices(one.spec, AVX2, one.layouts()))
    assert kernels.wrong(one, choices) == []


@pytest.mark.parametrize("on", [AVX512, NEON], ids=["16 lanes", "4 lanes"])
@pytest.mark.parametrize("name", ["activations", "odd output channels", "stride 2"])
def test_tiles_of_other_machines_compute_them_too(kernels, name, on):
    one = CASES[name]
    assert kernels.wrong(one, covering(SEPARABLE.choices(one.spec, on, one.layouts()))[:6]) == []


@pytest.mark.parametrize(("inside", "outside"), [("nchw", "nchw"), ("nhwc", "nchw"), ("nchw", "nhwc")])
def test_layouts_may_be_others(kernels, inside, outside):
    one = CASES["activations"]
    choices = SEPARABLE.choices(one.spec, AVX2, one.layouts(inside, outside))
    assert kernels.wrong(one, choices[:2]) == []
