"""Winograd kernels compute the convolution, checked against float64, on images that no tile divides."""

import numpy as np
import pytest
from small_groups import AVX2, AVX512, NEON, RELU, RESIDUAL, SILU, conv

from mapper.templates.winograd import TEMPLATE

SAME = {"pads": [1, 1, 1, 1]}
NORMALISED = (("Mul", "x k", "a", {}), ("Add", "a c", "b1", {}), ("Relu", "b1", "h", {}))
CASES = {
    "exact": conv((1, 8, 8, 8), 16, (3, 3), **SAME),
    "nothing divides": conv((1, 12, 7, 13), 20, (3, 3), **SAME),
    "unpadded": conv((1, 4, 9, 11), 8, (3, 3), bias=False),
    "pads differ": conv((1, 8, 7, 9), 5, (3, 3), pads=[0, 2, 1, 0]),
    "pads wider than the kernel": conv((1, 4, 6, 5), 8, (3, 3), pads=[3, 3, 3, 3]),
    "one output channel": conv((1, 8, 10, 6), 1, (3, 3), **SAME),
    "batch of 2": conv((2, 4, 7, 6), 20, (3, 3), **SAME),
    "then relu": conv((1, 8, 7, 7), 20, (3, 3), tail=[RELU], **SAME),
    "then residual and relu": conv((1, 8, 7, 13), 20, (3, 3), tail=RESIDUAL, inputs={"r": (1, 20, 7, 13)}, **SAME),
    "then silu": conv((1, 8, 7, 7), 20, (3, 3), tail=SILU, **SAME),
    "then a product with a squeezed input": conv(
        (1, 8, 7, 7), 20, (3, 3), tail=[("Mul", "t g", "y", {})], inputs={"g": (1, 20, 1, 1)}, **SAME
    ),
    "then its own input": conv((1, 8, 6, 7), 8, (3, 3), tail=[("Add", "t x", "y", {})], **SAME),
    "after scale, shift and relu": conv(
        (1, 8, 7, 6), 20, (3, 3), head=NORMALISED, constants=[("k", (1, 8, 1, 1)), ("c", (1, 8, 1, 1))], **SAME
    ),
}
CORE = ("exact", "nothing divides", "unpadded")


def sampled(one, count, on=AVX2, layouts=None):
    """Return one choice of every tile size and staging, the larger size first, then seeded others."""
    space = TEMPLATE.choices(one.spec, on, layouts or one.layouts())
    kinds = {}
    for choice in space:
        kinds.setdefault((choice.tile["m"], choice.tile["stage"]), choice)
    order = np.random.default_rng(len(space)).permutation(len(space))
    first = [kinds[kind] for kind in sorted(kinds, key=lambda kind: (-kind[0], kind[1]))]
    return [*first, *(space[index] for index in order)][:count]


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_the_convolution(kernels, name):
    one = CASES[name]
    assert TEMPLATE.matches(one.spec)
    assert kernels.wrong(one, sampled(one, 4 if name in CORE else 2)) == []


@pytest.mark.parametrize(("inside", "outside"), [("nchw", "nchw"), ("nchw", "nhwc"), ("nhwc", "nchw")])
@pytest.mark.parametrize("name", ["then residual and relu", "after scale, shift and relu"])
def test_any_layouts_outside_give_the_same_values(kernels, name, inside, outside):
    one = CASES[name]
    assert kernels.wrong(one, sampled(one, 1, layouts=one.layouts(inside, outside))) == []


@pytest.mark.parametrize("on", [AVX512, NEON], ids=["16 lanes", "4 lanes"])
@pytest.mark.parametrize("name", ["nothing divides", "batch of 2"])
def test_tiles_of_other_machines_give_the_same_values(kernels, name, on):
    one = CASES[name]
    assert kernels.wrong(one, sampled(one, 2, on=on)) == []


def test_any_legal_schedule_keeps_the_values(kernels):
    one = CASES["nothing divides"]
    assert kernels.wrong(one, sampled(one, 6)) == []


@pytest.mark.parametrize(("th", "tc", "stage"), [(1, 1, 1), (3, 1, 1), (1, 3, 2), (1, 1, 2)])
@pytest.mark.parametrize("m", [2, 4])
def test_grains_keep_the_values(kernels, retiled, m, th, tc, stage):
    one = conv((1, 24, 9, 10), 24, (3, 3), **SAME)
    choice = retiled(sampled(one, 1)[0], m=m, v=8, vb=8, rw=2, rh=1, th=th, tc=tc, stage=stage)
    assert kernels.wrong(one, [choice]) == []


@pytest.mark.parametrize("stage", [1, 2])
def test_many_input_channels_stay_within_the_tolerance_of_float64(kernels, retiled, stage):
    one = conv((1, 512, 6, 6), 32, (3, 3), bias=False, **SAME)
    values = one.values()
    choices = [
        retiled(choice, stage=stage, th=choice.tile["rh"], tc=1)
        for choice in {choice.tile["m"]: choice for choice in sampled(one, 99)}.values()
    ]
    assert {choice.tile["m"] for choice in choices} == {2, 4}
    (x,), (w,) = ([values[name] for name in names] for names in (one.spec.inputs, one.spec.weights))
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    wanted = sum(
        np.einsum("nchw,oc->nohw", padded[:, :, i : i + 6, j : j + 6], w[:, :, i, j].astype(np.float64))
        for i in range(3)
        for j in range(3)
    )
    expected = {one.spec.outputs[0]: wanted.astype(np.float32)}
    assert kernels.wrong(one, choices, values, expected) == []
