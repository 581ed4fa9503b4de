"""Kernels of everything but convolutions and products compute what ONNX says, in either layout."""

import numpy as np
import pytest
from onnx import TensorProto
from small_groups import case, constant

from mapper import templates

IMAGE = (1, 6, 7, 9)
INT64 = TensorProto.INT64


def one(op_type, inputs=IMAGE, constants=(), more="", opset=17, **attributes):
    """Return one operator on `x` of shape `inputs` and the constants that `more` names."""
    return case([(op_type, f"x {more}".strip(), "y", attributes)], {"x": inputs}, constants, opset=opset)


def pool(op_type, image=IMAGE, **attributes):
    return one(op_type, image, **{"kernel_shape": [3, 3], "strides": [2, 2], **attributes})


CASES = {
    "softmax": one("Softmax", (3, 10)),
    "softmax of an image's channels": one("Softmax", IMAGE, axis=1),
    "softmax of attention": one("Softmax", (1, 2, 5, 8), axis=-1),
    "softmax of short rows": one("Softmax", (20, 3)),
    "softmax with a tail": one("Softmax", (2, 3, 53)),
    "softmax of one row": one("Softmax", (1, 1000)),
    "softmax of a vector": one("Softmax", (37,)),
    "softmax of an image's rows": one("Softmax", (1, 4, 5, 18)),
    "softmax and what is around it": case(
        [("Mul", "x k", "a", {}), ("Softmax", "a", "b", {}), ("Add", "b c", "y", {})],
        {"x": (6, 33)},
        [constant("k", 0.125), ("c", (33,))],
    ),
    "log softmax": one("LogSoftmax", (3, 10)),
    "max pool": pool("MaxPool"),
    "max pool, padded": pool("MaxPool", pads=[1, 1, 1, 1]),
    "max pool, ceiling": pool("MaxPool", (1, 6, 8, 10), ceil_mode=1),
    "max pool, pads differ": pool("MaxPool", pads=[0, 1, 1, 0]),
    "max pool, dilated": pool("MaxPool", dilations=[2, 2], strides=[1, 1]),
    "max pool, one axis": one("MaxPool", (1, 6, 11), kernel_shape=[2], strides=[2]),
    "average pool": pool("AveragePool"),
    "average pool, padded": pool("AveragePool", pads=[1, 1, 1, 1]),
    "average pool, pads counted": pool("AveragePool", pads=[1, 1, 1, 1], count_include_pad=1),
    "average pool, ceiling": pool("AveragePool", (1, 6, 8, 10), ceil_mode=1),
    "global average pool": one("GlobalAveragePool"),
    "global average pool, batch": one("GlobalAveragePool", (2, 5, 3, 3)),
    "global max pool": one("GlobalMaxPool"),
    "transpose": one("Transpose", (1, 6, 7, 9), perm=[0, 2, 3, 1]),
    "transpose of a matrix": one("Transpose", (5, 9)),
    "reshape": one("Reshape", (1, 6, 4, 4), [constant("s", [1, 96], np.int64)], "s"),
    "flatten": one("Flatten", (1, 6, 4, 4)),
    "resize, nearest": one(
        "Resize",
        (1, 3, 4, 5),
        [constant("s", [1, 1, 2, 2])],
        " s",
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    "resize, linear": one(
        "Resize",
        (1, 3, 4, 5),
        [constant("s", [1, 1, 2, 2])],
        " s",
        mode="linear",
        coordinate_transformation_mode="half_pixel",
    ),
    "mean over space": one("ReduceMean", IMAGE, axes=[2, 3], keepdims=1),
    "mean over the last axis": one("ReduceMean", (3, 10), axes=[-1], keepdims=1),
    "mean of rows with a tail": one("ReduceMean", (3, 2, 53), axes=[-1], keepdims=1),
    "mean of rows, axis dropped": one("ReduceMean", (3, 2, 53), axes=[2], keepdims=0),
    "mean of one row": one("ReduceMean", (64,), keepdims=0),
    "sum of rows": one("ReduceSum", (5, 40), [constant("a", [-1], np.int64)], "a", keepdims=0),
    "maximum of rows": one("ReduceMax", (5, 40), axes=[1], keepdims=1),
    "mean of squares of rows": case(
        [("Mul", "x x", "a", {}), ("ReduceMean", "a", "b", {"axes": [-1]}), ("Sqrt", "b", "y", {})], {"x": (5, 40)}
    ),
    "mean over all": one("ReduceMean", (3, 10), axes=[0, 1], keepdims=0),
    "sum over channels": one("ReduceSum", IMAGE, [constant("a", [1], np.int64)], "a", keepdims=1),
    "maximum over space": one("ReduceMax", IMAGE, axes=[2, 3], keepdims=0),
    "argmax": one("ArgMax", (3, 10), axis=1),
    "gather of constant rows": case(
        [("Gather", "x i", "y", {"axis": 1})], {"x": (3, 8)}, [constant("i", [0, -1, 5], np.int64)]
    ),
    "gather by an input": case([("Gather", "w i", "y", {})], {"i": ((1, 4), INT64)}, [("w", (5, 6))]),
    "layer normalization": one("LayerNormalization", (2, 5, 16), [("k", (16,)), ("c", (16,))], "k c"),
    "instance normalization": one("InstanceNormalization", IMAGE, [("k", (6,)), ("c", (6,))], "k c"),
    "clip": one("Clip", IMAGE, [constant("lo", -0.5), constant("hi", 0.75)], "lo hi"),
    "clip below only": one("Clip", IMAGE, [constant("lo", -0.5)], "lo"),
    "erf": one("Erf", (2, 33)),
    "sigmoid": one("Sigmoid"),
    "hard swish": one("HardSwish"),
    "hard sigmoid": one("HardSigmoid", IMAGE, alpha=0.25, beta=0.4),
    "leaky relu": one("LeakyRelu", IMAGE, alpha=0.1),
    "prelu": one("PRelu", IMAGE, [("k", (6, 1, 1))], "k"),
    "tanh": one("Tanh", (17,)),
    "exp": one("Exp", (1, 64)),
    "power of 3": one("Pow", (3, 5), [constant("p", 3.0)], "p"),
    "sum with a vector": one("Add", IMAGE, [("k", (6, 1, 1))], "k"),
    "sum with a number": one("Add", IMAGE, [constant("k", 2.5)], "k"),
    "sum of two images": case([("Add", "x z", "y", {})], {"x": IMAGE, "z": IMAGE}),
    "sum, both sides stretched": case([("Add", "x z", "y", {})], {"x": (3, 1), "z": (1, 5)}),
    "concat of channels": case([("Concat", "x z", "y", {"axis": 1})], {"x": (1, 3, 4, 5), "z": (1, 5, 4, 5)}),
    "concat of rows": case([("Concat", "x z", "y", {"axis": 0})], {"x": (3, 4), "z": (2, 4)}),
    "slice": one(
        "Slice",
        IMAGE,
        [constant("b", [1], np.int64), constant("e", [5], np.int64), constant("a", [1], np.int64)],
        "b e a",
    ),
    "pad": one("Pad", (1, 3, 4, 5), [constant("p", [0, 0, 1, 2, 0, 0, 0, 1], np.int64)], "p"),
    "unsqueeze": one("Unsqueeze", (5, 6), [constant("a", [0, 3], np.int64)], "a"),
    "squeeze": one("Squeeze", (1, 6, 1, 5), [constant("a", [0, 2], np.int64)], "a"),
    "expand": one("Expand", (1, 6, 1, 5), [constant("s", [2, 6, 3, 5], np.int64)], "s"),
    "cast to integers": one("Cast", (3, 5), to=INT64),
    "select": case([("Where", "c x z", "y", {})], {"c": ((3, 5), TensorProto.BOOL), "x": (3, 5), "z": (3, 5)}),
    "compare": case([("Less", "x z", "y", {})], {"x": (3, 5), "z": (3, 5)}),
    "a number": one("Neg", ()),
    "depth to space": one("DepthToSpace", (1, 8, 3, 3), blocksize=2),
    "transposed convolution, stride less than the kernel": one(
        "ConvTranspose", (1, 4, 5, 5), [("w", (4, 6, 3, 3))], "w", strides=[2, 2], pads=[1, 1, 1, 1]
    ),
    "convolution of a computed weight": case(
        [("Conv", "x w", "y", {"kernel_shape": [3, 3]})], {"x": (1, 3, 6, 6), "w": (4, 3, 3, 3)}
    ),
    "split in two": case([("Split", "x", "y z", {"axis": 1})], {"x": (1, 6, 4, 4)}, outputs=("y", "z")),
    "a chain of element-wise operators": case(
        [("Mul", "x k", "a", {}), ("Add", "a z", "b", {}), ("Relu", "b", "y", {})],
        {"x": IMAGE, "z": IMAGE},
        [("k", (6, 1, 1))],
    ),
    "x times sigmoid x": case([("Sigmoid", "x", "g", {}), ("Mul", "x g", "y", {})], {"x": IMAGE}),
    "a pool and what follows": case([("GlobalAveragePool", "x", "a", {}), ("Relu", "a", "y", {})], {"x": IMAGE}),
    "a transpose and what follows": case(
        [("Transpose", "x", "a", {"perm": [0, 2, 1]}), ("Add", "a k", "y", {})], {"x": (2, 5, 6)}, [("k", (5,))]
    ),
    "two outputs of a chain": case([("Relu", "x", "y", {}), ("Neg", "y", "z", {})], {"x": IMAGE}, outputs=("y", "z")),
}
ROWS = {
    "softmax with a tail",
    "softmax of one row",
    "softmax of a vector",
    "softmax of an image's rows",
    "softmax and what is around it",
    "mean over space",
    "mean over all",
    "maximum over space",
    "mean of rows with a tail",
    "mean of rows, axis dropped",
    "mean of one row",
    "sum of rows",
    "maximum of rows",
    "mean of squares of rows",
    "layer normalization",
}
POOLS = {
    "max pool",
    "max pool, padded",
    "max pool, ceiling",
    "max pool, pads differ",
    "max pool, dilated",
    "average pool",
    "average pool, padded",
    "average pool, pads counted",
    "global average pool",
    "global average pool, batch",
    "global max pool",
    "a pool and what follows",
}
POSITIVE = {
    "log": one("Log", (3, 5)),
    "square root": one("Sqrt", (3, 5)),
    "reciprocal": one("Reciprocal", (3, 5)),
    "batch normalization": one("BatchNormalization", IMAGE, [(name, (6,)) for name in "kcmv"], "k c m v"),
}
HAS_IMAGE = [name for name, case in CASES.items() if "nhwc" in case.layouts()]


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_the_operator(kernels, few, name):
    expected = "rowwise" if name in ROWS else "pooling" if name in POOLS else "generic"
    assert templates.template_for(CASES[name].spec).name == expected
    assert kernels.wrong(CASES[name], few(CASES[name], count=2, policy="nchw")) == []


@pytest.mark.parametrize("name", HAS_IMAGE)
def test_operators_on_images_work_channels_last(kernels, few, name):
    assert kernels.wrong(CASES[name], few(CASES[name], count=1)) == []


@pytest.mark.parametrize(
    "name", ["max pool, padded", "sum with a vector", "softmax of an image's channels", "concat of channels"]
)
@pytest.mark.parametrize(("inside", "outside"), [("nchw", "nhwc"), ("nhwc", "nchw")])
def test_operators_change_the_layout_on_their_way(kernels, few, name, inside, outside):
    assert kernels.wrong(CASES[name], few(CASES[name], count=1, policy=inside, output=outside)) == []


@pytest.mark.parametrize(
    "name", ["softmax with a tail", "max pool, padded", "mean of rows with a tail", "layer normalization"]
)
def test_any_legal_schedule_keeps_the_values(kernels, few, name):
    assert kernels.wrong(CASES[name], few(CASES[name], count=5)) == []


@pytest.mark.parametrize("name", POSITIVE)
def test_operators_defined_for_positive_numbers_alone(kernels, few, name):
    values = {key: np.abs(value) + np.float32(0.1) for key, value in POSITIVE[name].values().items()}
    for policy in ("nhwc", "nchw"):
        choices = few(POSITIVE[name], count=2, policy=policy)
        assert kernels.wrong(POSITIVE[name], choices, values) == []


SPECIAL = {
    "relu": one("Relu", (4, 4)),
    "clip": one("Clip", (4, 4), [constant("lo", -1), constant("hi", 1)], "lo hi"),
    "max": one("Max", (4, 4), [constant("k", 0.5)], "k"),
    "sum": one("Add", (4, 4), [("k", (4,))], "k"),
    "exp": one("Exp", (4, 4)),
    "sigmoid": one("Sigmoid", (4, 4)),
    "tanh": one("Tanh", (4, 4)),
    "erf": one("Erf", (4, 4)),
    "maximum of rows": one("ReduceMax", (4, 16), axes=[1]),
    "softmax": one("Softmax", (4, 16)),
    "max pool": one("MaxPool", (1, 1, 4, 4), kernel_shape=[2, 2]),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the reference subtracts infinities
@pytest.mark.parametrize("name", SPECIAL)
def test_nan_and_infinities_go_where_onnx_says(kernels, few, name):
    values = SPECIAL[name].values()
    flat = values["in0"].reshape(-1)
    flat[[0, 7, -1]] = [np.nan, np.inf, -np.inf]
    assert kernels.wrong(SPECIAL[name], few(SPECIAL[name], count=2, policy="nchw"), values) == []


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # the reference's sigmoid of -104
@pytest.mark.parametrize("op_type", ["Exp", "Sigmoid", "Tanh", "Erf"])
def test_functions_are_right_over_all_magnitudes(kernels, few, op_type):
    case = one(op_type, (2000,))
    around = np.concatenate(
        [np.linspace(-100, 100, 999), np.geomspace(1e-30, 1, 500), -np.geomspace(1e-30, 1, 500), [0]]
    )
    assert kernels.wrong(case, few(case, count=2), {"in0": np.clip(around, -104, 80).astype(np.float32)}) == []


def test_negative_indices_count_from_the_end(kernels, few):
    case = CASES["gather by an input"]
    values = {**case.values(), "in0": np.array([[0, -1, 4, -5]])}
    assert kernels.wrong(case, few(case, count=2), values) == []


@pytest.mark.parametrize(("axis", "rank"), [({"axis": 1}, 3), ({}, 3), ({}, 4), ({"axis": 2}, 3)])
def test_softmax_before_opset_13_flattens(kernels, few, axis, rank):
    case = one("Softmax", (2, 3, 4, 16)[-rank:], opset=11, **axis)
    values = case.values()
    x = values["in0"]
    lead = axis.get("axis", 1)
    rows = np.exp(x.reshape(int(np.prod(x.shape[:lead])), -1).astype(np.float64))
    wanted = (rows / rows.sum(axis=1, keepdims=True)).reshape(x.shape).astype(np.float32)
    assert kernels.wrong(case, few(case, count=2, policy="nchw"), values, {"out0": wanted}) == []
