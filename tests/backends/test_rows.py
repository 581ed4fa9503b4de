"""Kernels of normalisations compute what ONNX says, written as one operator or as several."""

import numpy as np
import pytest
from small_groups import AVX512, NEON, case, constant

from mapper import templates

SCALES = [("g", (53,)), ("b", (53,))]
WRITTEN = [
    ("ReduceMean", "x", "m", {"axes": [-1]}),
    ("Sub", "x m", "d", {}),
    ("Pow", "d two", "q", {}),
    ("ReduceMean", "q", "v", {"axes": [-1]}),
    ("Add", "v e", "v1", {}),
    ("Sqrt", "v1", "s", {}),
    ("Div", "d s", "n", {}),
    ("Mul", "n g", "o", {}),
    ("Add", "o b", "y", {}),
]
NUMBERS = [constant("two", 2.0), constant("e", 1e-5)]
CASES = {
    "layer norm": case([("LayerNormalization", "x g b", "y", {})], {"x": (2, 9, 53)}, SCALES),
    "layer norm without bias": case([("LayerNormalization", "x g", "y", {})], {"x": (9, 53)}, SCALES[:1]),
    "layer norm of one row": case([("LayerNormalization", "x g b", "y", {"epsilon": 0.5})], {"x": (1, 53)}, SCALES),
    "layer norm of a sum, viewed": case(
        [("Add", "x r", "a", {}), ("LayerNormalization", "a g b", "n", {}), ("Reshape", "n s", "y", {})],
        {"x": (2, 9, 53), "r": (2, 9, 53)},
        [*SCALES, constant("s", [18, 53], np.int64)],
    ),
    "layer norm written out": case(WRITTEN, {"x": (2, 9, 53)}, [*SCALES, *NUMBERS]),
    "layer norm of a sum written out": case(
        [("Add", "u r", "x", {}), *WRITTEN], {"u": (4, 53), "r": (4, 53)}, [*SCALES, *NUMBERS]
    ),
    "softmax, scaled and masked": case(
        [("Mul", "x k", "a", {}), ("Add", "a m", "b", {}), ("Softmax", "b", "y", {})],
        {"x": (2, 9, 53), "m": (2, 1, 53)},
        [constant("k", 0.3)],
    ),
    "softmax written out": case(
        [
            ("ReduceMax", "x", "h", {"axes": [-1]}),
            ("Sub", "x h", "d", {}),
            ("Exp", "d", "e", {}),
            ("ReduceSum", "e a", "t", {}),
            ("Div", "e t", "y", {}),
        ],
        {"x": (2, 9, 53)},
        [constant("a", [-1], np.int64)],
    ),
    "rows of length 1": case(
        [("ReduceL2", "x", "l", {"axes": [-1]}), ("Max", "l e", "c", {}), ("Div", "x c", "y", {})],
        {"x": (7, 48)},
        [constant("e", 1e-9)],
    ),
    "root of the mean square": case(
        [
            ("Mul", "x x", "q", {}),
            ("ReduceMean", "q", "m", {"axes": [-1]}),
            ("Sqrt", "m", "s", {}),
            ("Div", "x s", "y", {}),
        ],
        {"x": (5, 64)},
    ),
    "sum of squares": case([("ReduceSumSquare", "x", "y", {"axes": [-1]})], {"x": (5, 40)}),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_the_normalisation(kernels, few, name):
    one = CASES[name]
    assert templates.template_for(one.spec).name == "rowwise"
    assert kernels.wrong(one, few(one, count=2, policy="nchw")) == []


@pytest.mark.parametrize("machine", [AVX512, NEON], ids=["16 lanes", "4 lanes"])
@pytest.mark.parametrize("name", ["layer norm written out", "softmax, scaled and masked"])
def test_tiles_of_other_machines_give_the_same_values(kernels, few, name, machine):
    one = CASES[name]
    assert kernels.wrong(one, few(one, count=2, machine=machine, policy="nchw")) == []


@pytest.mark.parametrize("name", ["layer norm of a sum, viewed", "softmax written out"])
def test_any_legal_schedule_keeps_the_values(kernels, few, name):
    one = CASES[name]
    assert kernels.wrong(one, few(one, count=12, policy="nchw")) == []


def test_a_norm_over_two_axes_goes_to_the_generic_template(kernels, few):
    one = case([("LayerNormalization", "x g", "y", {"axis": 1})], {"x": (3, 4, 16)}, [("g", (4, 16))])
    assert templates.template_for(one.spec).name == "generic"
    assert kernels.wrong(one, few(one, count=1, policy="nchw")) == []


def test_a_mean_that_is_far_from_zero_costs_no_accuracy(kernels, few):
    one = CASES["layer norm"]
    values = one.values()
    values["in0"] = values["in0"] + np.float32(100)
    x = values["in0"].astype(np.float64)
    apart = x - x.mean(axis=-1, keepdims=True)
    wanted = apart / np.sqrt((apart**2).mean(axis=-1, keepdims=True) + 1e-5) * values["w0"] + values["w1"]
    assert kernels.wrong(one, few(one, count=1, policy="nchw"), values, {"out0": wanted.astype(np.float32)}) == []
