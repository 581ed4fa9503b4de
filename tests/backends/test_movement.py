"""Kernels that move elements put each where ONNX says, whichever loops they get."""

import numpy as np
import pytest
from covering import covering
from small_groups import AVX2, AVX512, case, constant

from mapper.templates import generic

GENERIC = generic.TEMPLATE


def concat(axis, *shapes, tail=(), constants=()):
    names = [f"x{index}" for index in range(len(shapes))]
    node = ("Concat", " ".join(names), "t" if tail else "y", {"axis": axis})
    return case([node, *tail], dict(zip(names, shapes, strict=True)), constants)


def shuffle(channels, groups, rows=3, tail=()):
    shape = (1, channels, rows, 5)
    return case(
        [
            ("Reshape", "x s", "a", {}),
            ("Transpose", "a", "b", {"perm": [0, 2, 1, 3, 4]}),
            ("Reshape", "b t", "c" if tail else "y", {}),
            *tail,
        ],
        {"x": shape},
        [constant("s", [1, groups, channels // groups, *shape[2:]], np.int64), constant("t", shape, np.int64)],
    )


def resize(shape, scale, **attributes):
    return case([("Resize", "x  s", "y", attributes)], {"x": shape}, [constant("s", [1, 1, scale, scale])])


NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
CASES = {
    "whole vectors": concat(1, (1, 32, 5, 3), (1, 16, 5, 3)),
    "half vectors": concat(1, (2, 8, 5, 3), (2, 24, 5, 3), (2, 8, 5, 3)),
    "no vectors": concat(1, (1, 13, 5, 3), (1, 6, 5, 3)),
    "one channel each": concat(1, (1, 1, 5, 3), (1, 1, 5, 3), (1, 1, 5, 3)),
    "of rows": concat(0, (3, 32), (2, 32)),
    "of rows' ends": concat(-1, (3, 5, 16), (3, 5, 32)),
    "of images' rows": concat(2, (1, 16, 5, 3), (1, 16, 2, 3)),
    "and what follows": concat(
        1,
        (1, 16, 5, 3),
        (1, 8, 5, 3),
        tail=[("Mul", "t k", "u", {}), ("Relu", "u", "y", {})],
        constants=[("k", (24, 1, 1))],
    ),
    "of integers": case(
        [("Cast", "x", "a", {"to": 7}), ("Concat", "a z", "y", {"axis": 1})], {"x": (4, 16), "z": ((4, 8), 7)}
    ),
    "with itself": case([("Concat", "x x", "y", {"axis": 1})], {"x": (1, 16, 3, 3)}),
    "shuffle of 2": shuffle(32, 2),
    "shuffle of 3, odd": shuffle(21, 3),
    "shuffle of 4 and what follows": shuffle(48, 4, tail=[("Relu", "c", "y", {})]),
    "transpose": case([("Transpose", "x", "y", {})], {"x": (48, 32)}),
    "transpose, odd rows": case([("Transpose", "x", "y", {})], {"x": (32, 37)}),
    "transpose, odd columns": case([("Transpose", "x", "y", {})], {"x": (37, 32)}),
    "transpose of a batch": case([("Transpose", "x", "y", {"perm": [0, 2, 1]})], {"x": (3, 16, 50)}),
    "transpose that turns round": case([("Transpose", "x", "y", {"perm": [2, 0, 1]})], {"x": (3, 32, 20)}),
    "nearest": resize((1, 24, 5, 3), 2, **NEAREST),
    "linear": resize((1, 24, 5, 3), 2, mode="linear", coordinate_transformation_mode="half_pixel"),
    "pad": case([("Pad", "x p", "y", {})], {"x": (1, 24, 5, 3)}, [constant("p", [0, 0, 1, 2, 0, 3, 0, 1], np.int64)]),
    "many small rows": case([("Add", "x z", "y", {})], {"x": (1, 3, 31, 17), "z": (1, 3, 31, 1)}),
    "one long row": case([("Relu", "x", "y", {})], {"x": (1003,)}),
}


@pytest.mark.parametrize("name", CASES)
def test_covering_choices_move_every_element(kernels, name):
    one = CASES[name]
    for on in (AVX2, AVX512):
        assert kernels.wrong(one, covering(GENERIC.choices(one.spec, on, one.layouts()))) == []


@pytest.mark.parametrize("name", ["whole vectors", "shuffle of 2", "of images' rows", "no vectors"])
@pytest.mark.parametrize(("inside", "outside"), [("nchw", "nchw"), ("nhwc", "nchw"), ("nchw", "nhwc")])
def test_layouts_may_differ(kernels, name, inside, outside):
    one = CASES[name]
    choices = GENERIC.choices(one.spec, AVX2, one.layouts(inside, outside))
    assert kernels.wrong(one, choices[:2]) == []
