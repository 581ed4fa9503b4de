import numpy as np
import onnx
import pytest
from ingress_models import (
    FLOAT,
    INT64,
    load,
    model_of,
    optimise_basic,
    optimise_nothing,
    random_feeds,
    reference,
    tensor,
    weight,
)
from onnx import TensorProto, helper

from mapper.errors import BadInputError
from mapper.ingress.identities import identity_of
from mapper.ingress.normalize import normalize
from mapper.ingress.provenance import check_provenance
from mapper.ingress.statics import types_of
from mapper.records import TensorSpec

OPTIMISERS = pytest.mark.parametrize("optimise", [optimise_nothing, optimise_basic], ids=["alone", "onnxruntime"])


def canonical(tmp_path, model, optimise=optimise_nothing, **given):
    """Normalise and check what holds for every model: same values, static types, unique names, checked provenance."""
    loaded = load(tmp_path, model, **given)
    normalized = normalize(loaded, optimise, tmp_path / "work")
    graph = normalized.proto.graph
    feeds = random_feeds(loaded)
    for ours, theirs in zip(reference(normalized.proto, feeds), reference(loaded.proto, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
        assert ours.dtype == theirs.dtype
    onnx.checker.check_model(normalized.proto, full_check=True)
    assert {name for node in graph.node for name in node.output if name} <= types_of(graph).keys()
    assert len({node.name for node in graph.node} - {""}) == len(graph.node)
    assert not {node.op_type for node in graph.node} & {"Constant", "Shape", "Sum", "Dropout", "Flatten", "Squeeze"}
    read = {name for node in graph.node for name in node.input}
    assert {t.name for t in graph.initializer} <= read
    assert check_provenance(loaded, normalized) == []
    return normalized


def ops(normalized):
    return [node.op_type for node in normalized.proto.graph.node]


def given_of(normalized, index=0):
    return {a.name: helper.get_attribute_value(a) for a in normalized.proto.graph.node[index].attribute}


def constant(normalized, name):
    return onnx.numpy_helper.to_array(next(t for t in normalized.proto.graph.initializer if t.name == name))


def floats(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@OPTIMISERS
def test_sum_becomes_a_chain_of_adds(tmp_path, optimise):
    nodes = [helper.make_node("Sum", ["x", "z", "w"], ["y"], name="s")]
    model = model_of(nodes, [tensor("x", [2, 3]), tensor("z", [3])], [tensor("y", None)], [weight("w", floats(2, 1))])
    normalized = canonical(tmp_path, model, optimise)
    assert ops(normalized) == ["Add", "Add"]
    assert normalized.nodes[0].canonical == (0, 1)


@OPTIMISERS
def test_batch_normalization_becomes_mul_and_add(tmp_path, optimise):
    nodes = [helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], epsilon=0.0)]
    stats = {"s": [4, 3], "b": [1, -1], "m": [4, 5], "v": [4, 9]}
    weights = [weight(name, np.array(value, np.float32)) for name, value in stats.items()]
    normalized = canonical(
        tmp_path, model_of(nodes, [tensor("x", [1, 2, 3, 3])], [tensor("y", None)], weights, 15), optimise
    )
    assert ops(normalized) == ["Mul", "Add"]
    # scale / sqrt(var) = 4/2, 3/3; bias - mean * that = 1 - 8, -1 - 5
    factor = constant(normalized, normalized.proto.graph.node[0].input[1])
    shift = constant(normalized, normalized.proto.graph.node[1].input[1])
    assert factor.tolist() == [[[[2.0]], [[1.0]]]]
    assert shift.tolist() == [[[[-7.0]], [[-6.0]]]]


@OPTIMISERS
def test_batch_norm_and_scale_layer_become_one_mul_and_add(tmp_path, optimise):
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("BatchNormalization", ["r", "s", "b", "m", "v"], ["n"], epsilon=0.0),
        helper.make_node("Mul", ["gain", "n"], ["g"]),
        helper.make_node("Add", ["g", "offset"], ["y"]),
    ]
    stats = {"s": [4, 3], "b": [1, -1], "m": [4, 5], "v": [4, 9]}
    weights = [weight(name, np.array(value, np.float32)) for name, value in stats.items()]
    weights += [weight("gain", np.array([[[10]], [[20]]], np.float32)), weight("offset", np.array(5, np.float32))]
    normalized = canonical(
        tmp_path, model_of(nodes, [tensor("x", [1, 2, 3, 3])], [tensor("y", None)], weights, 15), optimise
    )
    assert ops(normalized) == ["Relu", "Mul", "Add"]
    # factors 2 and 1 times 10 and 20; shifts -7 and -6 likewise, plus 5
    factor, shift = (constant(normalized, normalized.proto.graph.node[i].input[1]).reshape(-1) for i in (1, 2))
    assert factor.tolist() == [20, 20]
    assert shift.tolist() == [-65, -115]
    assert [node.canonical for node in normalized.nodes] == [(0,), (1, 2), (1, 2), (1, 2)]


@pytest.mark.parametrize("why", ["read inside", "too large", "not finite", "no Add"])
def test_affine_chain_that_cannot_be_merged_stays(tmp_path, why):
    operands = {"a": floats(3, 1), "b": floats(3, 1), "c": floats(3, 1)}
    if why == "too large":
        operands["c"] = floats(1, 4)
    if why == "not finite":
        operands["a"] = operands["c"] = np.full((3, 1), 1e30, np.float32)
    nodes = [
        helper.make_node("Mul", ["x", "a"], ["p"]),
        helper.make_node("Mul" if why == "no Add" else "Add", ["p", "b"], ["q"]),
        helper.make_node("Mul", ["q", "c"], ["y"]),
    ]
    outputs = [tensor(name, None) for name in (["y", "q"] if why == "read inside" else ["y"])]
    model = model_of(nodes, [tensor("x", [3, 4])], outputs, [weight(n, v) for n, v in operands.items()])
    normalized = normalize(load(tmp_path, model), optimise_nothing, tmp_path / "work")
    assert ops(normalized) == [node.op_type for node in nodes]


@pytest.mark.parametrize(
    ("mode", "pads", "size"), [("SAME_UPPER", [0, 0, 1, 1], 2), ("SAME_LOWER", [1, 1, 0, 0], 2), ("VALID", [0] * 4, 1)]
)
def test_auto_pad_becomes_explicit(tmp_path, mode, pads, size):
    # 4 wide, kernel 3, stride 2: SAME gives 2, needs (2 - 1) * 2 + 3 - 4 = 1 in all
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], auto_pad=mode, strides=[2, 2])]
    model = model_of(nodes, [tensor("x", [1, 1, 4, 4])], [tensor("y", None)], [weight("w", floats(1, 1, 3, 3))])
    normalized = canonical(tmp_path, model)
    given = given_of(normalized)
    assert given["pads"] == pads
    assert given["kernel_shape"] == [3, 3]
    assert "auto_pad" not in given
    assert types_of(normalized.proto.graph)["y"].shape == (1, 1, size, size)


def test_pooling_same_lower_has_the_rounded_up_size(tmp_path):
    nodes = [helper.make_node("MaxPool", ["x"], ["y"], auto_pad="SAME_LOWER", kernel_shape=[3, 3], strides=[2, 2])]
    loaded = load(tmp_path, model_of(nodes, [tensor("x", [1, 1, 5, 5])], [tensor("y", None)]))
    normalized = normalize(loaded, optimise_nothing, tmp_path / "work")
    assert given_of(normalized)["pads"] == [1, 1, 1, 1]
    (result,) = reference(normalized.proto, {"x": np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)})
    assert result.tolist() == [[[[6, 8, 9], [16, 18, 19], [21, 23, 24]]]]


def test_transposed_convolution_with_output_shape_gets_pads(tmp_path):
    # stride 2, 3 wide, kernel 3: 2 * 2 + 3 = 7 without pads, so 6 cuts one off
    nodes = [helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], auto_pad="SAME_UPPER")]
    model = model_of(nodes, [tensor("x", [1, 1, 3, 3])], [tensor("y", None)], [weight("w", floats(1, 1, 3, 3))])
    normalized = canonical(tmp_path, model)
    assert given_of(normalized)["pads"] == [0, 0, 1, 1]
    assert types_of(normalized.proto.graph)["y"].shape == (1, 1, 6, 6)


@OPTIMISERS
@pytest.mark.parametrize(
    ("node", "operand", "shape"),
    [
        (helper.make_node("Reshape", ["x", "s"], ["y"]), [0, -1], (2, 12)),
        (helper.make_node("Flatten", ["x"], ["y"], axis=2), None, (6, 4)),
        (helper.make_node("Unsqueeze", ["x", "s"], ["y"]), [0, -1], (1, 2, 3, 4, 1)),
    ],
)
def test_shape_changes_become_literal_reshapes(tmp_path, optimise, node, operand, shape):
    weights = [] if operand is None else [weight("s", np.array(operand, np.int64))]
    nodes = [node, helper.make_node("Relu", ["y"], ["z"])]
    normalized = canonical(tmp_path, model_of(nodes, [tensor("x", [2, 3, 4])], [tensor("z", None)], weights), optimise)
    assert ops(normalized) == ["Reshape", "Relu"]
    assert tuple(constant(normalized, normalized.proto.graph.node[0].input[1])) == shape


def test_squeeze_of_opset_11_becomes_a_reshape(tmp_path):
    nodes = [helper.make_node("Squeeze", ["x"], ["y"], axes=[1])]
    normalized = canonical(tmp_path, model_of(nodes, [tensor("x", [2, 1, 3])], [tensor("y", None)], opset=11))
    assert ops(normalized) == ["Reshape"]
    assert given_of(normalized) == {}


@OPTIMISERS
def test_softmax_before_opset_13_is_flattened(tmp_path, optimise):
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=1)]
    loaded = load(tmp_path, model_of(nodes, [tensor("x", [2, 3, 4])], [tensor("y", None)], opset=11))
    normalized = normalize(loaded, optimise, tmp_path / "work")
    assert ops(normalized) == ["Reshape", "Softmax", "Reshape"]
    x = floats(2, 3, 4)
    powers = np.exp(x.reshape(2, 12))
    expected = (powers / powers.sum(axis=1, keepdims=True)).reshape(2, 3, 4)
    np.testing.assert_allclose(reference(normalized.proto, {"x": x})[0], expected, rtol=1e-5)
    assert check_provenance(loaded, normalized) == []


@pytest.mark.parametrize(("shape", "opset"), [([2, 3, 1, 1], 11), ([2, 3, 4], 13)])
def test_softmax_over_one_axis_stays(tmp_path, shape, opset):
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=1)]
    loaded = load(tmp_path, model_of(nodes, [tensor("x", shape)], [tensor("y", None)], opset=opset))
    assert ops(normalize(loaded, optimise_nothing, tmp_path / "work")) == ["Softmax"]


NO_OPS = [
    helper.make_node("Identity", ["a"], ["b"]),
    helper.make_node("Dropout", ["a"], ["b"]),
    helper.make_node("Cast", ["a"], ["b"], to=FLOAT),
    helper.make_node("Transpose", ["a"], ["b"], perm=[0, 1]),
    helper.make_node("Reshape", ["a", "same"], ["b"]),
    helper.make_node("Expand", ["a", "same"], ["b"]),
    helper.make_node("Pad", ["a", "none"], ["b"]),
    helper.make_node("Slice", ["a", "zeros", "far"], ["b"]),
    helper.make_node("Concat", ["a"], ["b"], axis=0),
    helper.make_node("Sum", ["a"], ["b"]),
    helper.make_node("Mul", ["one", "a"], ["b"]),
    helper.make_node("Sub", ["a", "nil"], ["b"]),
]
OPERANDS = [
    weight("same", np.array([2, 3], np.int64)),
    weight("none", np.zeros(4, np.int64)),
    weight("zeros", np.zeros(2, np.int64)),
    weight("far", np.full(2, 1 << 40, np.int64)),
    weight("one", np.ones(3, np.float32)),
    weight("nil", np.zeros((), np.float32)),
]


def around(node):
    nodes = [helper.make_node("Relu", ["x"], ["a"]), node, helper.make_node("Neg", ["b"], ["y"])]
    return model_of(nodes, [tensor("x", [2, 3])], [tensor("y", None)], [t for t in OPERANDS if t.name in node.input])


@OPTIMISERS
@pytest.mark.parametrize("node", NO_OPS, ids=lambda node: node.op_type)
def test_node_that_returns_its_input_is_elided(tmp_path, optimise, node):
    normalized = canonical(tmp_path, around(node), optimise)
    assert ops(normalized) == ["Relu", "Neg"]
    assert normalized.nodes[1].reason == "elided"
    assert node.op_type in normalized.nodes[1].evidence


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Transpose", ["a"], ["b"]),
        helper.make_node("Slice", ["a", "ends", "starts", "axes", "back"], ["b"]),
        helper.make_node("Sub", ["nil", "a"], ["b"]),
        helper.make_node("Add", ["a", "grow"], ["b"]),
    ],
    ids=lambda node: node.op_type,
)
def test_node_that_changes_its_input_stays(tmp_path, node):
    operands = {
        "ends": np.array([-1], np.int64),
        "starts": np.array([-100], np.int64),
        "axes": np.array([1], np.int64),
        "back": np.array([-1], np.int64),
        "grow": np.zeros((4, 1, 1), np.float32),
    }
    model = around(node)
    model.graph.initializer.extend(weight(name, value) for name, value in operands.items() if name in node.input[1:])
    normalized = canonical(tmp_path, model)
    assert ops(normalized) == ["Relu", node.op_type, "Neg"]
    assert normalized.nodes[1].canonical == (1,)


def test_cast_that_changes_the_dtype_and_pad_that_shifts_are_no_identities():
    types = {
        n: TensorSpec(name=n, shape=(2, 3), dtype=t) for n, t in (("a", "float32"), ("b", "float32"), ("d", "float64"))
    }
    shift = {"shift": np.array([0, 1, 0, -1], np.int64)}
    assert identity_of(helper.make_node("Pad", ["a", "shift"], ["b"]), types, shift) is None
    assert identity_of(helper.make_node("Pad", ["a", "unknown"], ["b"]), types, shift) is None
    assert identity_of(helper.make_node("Cast", ["a"], ["d"], to=TensorProto.DOUBLE), types, {}) is None
    assert identity_of(helper.make_node("Relu", ["a"], ["b"]), types, {}) is None
    assert identity_of(helper.make_node("Identity", ["a"], ["b"], domain="acme"), types, {}) is None


@OPTIMISERS
def test_shape_arithmetic_is_gone(tmp_path, optimise):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "zero1"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Reshape", ["a", "target"], ["y"]),
    ]
    weights = [
        weight("zero", np.array(0, np.int64)),
        weight("zero1", np.array([0], np.int64)),
        weight("rest", np.array([-1], np.int64)),
    ]
    normalized = canonical(
        tmp_path, model_of(nodes, [tensor("x", ["n", 3, 4])], [tensor("y", None)], weights), optimise
    )
    assert ops(normalized) == ["Relu", "Reshape"]
    assert [node.reason for node in normalized.nodes] == ["folded"] * 4 + [None, None]
    assert [node.canonical for node in normalized.nodes[4:]] == [(0,), (1,)]


def test_constants_of_every_form_become_initializers(tmp_path):
    nodes = [
        helper.make_node("Constant", [], ["a"], value_float=2.0),
        helper.make_node("Constant", [], ["b"], value_floats=[1.0, 2.0]),
        helper.make_node("Constant", [], ["c"], value_ints=[2]),
        helper.make_node("ConstantOfShape", ["c"], ["d"], value=weight("v", np.array([3], np.float32))),
        helper.make_node("Mul", ["x", "a"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["q"]),
        helper.make_node("Sub", ["q", "d"], ["y"]),
    ]
    normalized = canonical(tmp_path, model_of(nodes, [tensor("x", [2])], [tensor("y", None)]))
    assert ops(normalized) == ["Mul", "Add", "Sub"]
    assert [node.reason for node in normalized.nodes[:4]] == ["folded"] * 4


@OPTIMISERS
def test_outputs_keep_names_whatever_is_elided(tmp_path, optimise):
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Identity", ["a"], ["first"]),
        helper.make_node("Identity", ["a"], ["second"]),
        helper.make_node("Neg", ["a"], ["third"]),
        helper.make_node("Identity", ["w"], ["fourth"]),
    ]
    names = ["same", "first", "second", "third", "fourth", "w"]
    model = model_of(nodes, [tensor("x", [2])], [tensor(n, [2]) for n in names], [weight("w", floats(2))])
    normalized = canonical(tmp_path, model, optimise)
    assert [value.name for value in normalized.proto.graph.output] == names
    assert sorted(ops(normalized)) == ["Identity"] * 4 + ["Neg", "Relu"]


def test_dropout_mask_that_is_used_is_all_true(tmp_path):
    nodes = [
        helper.make_node("Dropout", ["x"], ["a", "mask"]),
        helper.make_node("Cast", ["mask"], ["m"], to=FLOAT),
        helper.make_node("Add", ["a", "m"], ["y"]),
    ]
    loaded = load(tmp_path, model_of(nodes, [tensor("x", [2])], [tensor("y", None)]))
    normalized = normalize(loaded, optimise_nothing, tmp_path / "work")
    (result,) = reference(normalized.proto, {"x": np.array([1, 2], np.float32)})
    assert result.tolist() == [2, 3]


def test_equal_and_missing_node_names_become_unique_and_unique_ones_stay(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="n"),
        helper.make_node("Neg", ["a"], ["b"], name="n"),
        helper.make_node("Abs", ["b"], ["c"]),
        helper.make_node("Exp", ["c"], ["y"], name="own"),
    ]
    normalized = canonical(tmp_path, model_of(nodes, [tensor("x", [2])], [tensor("y", None)]))
    assert [node.name for node in normalized.proto.graph.node] == ["Relu_0", "Neg_1", "Abs_2", "own"]


def test_output_shape_changed_by_the_optimiser_is_an_error(tmp_path):
    loaded = load(tmp_path, model_of([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", [2])], [tensor("y", None)]))

    def tamper(source, target):
        del source
        nodes = [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)]
        onnx.save(model_of(nodes, [tensor("x", [2])], [tensor("y", [4])]), target)

    with pytest.raises(BadInputError, match="outputs changed in normalising"):
        normalize(loaded, tamper, tmp_path / "work")


def test_optimiser_that_writes_nothing_is_an_error(tmp_path):
    loaded = load(tmp_path, model_of([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", [2])], [tensor("y", None)]))
    with pytest.raises(BadInputError, match="gave no optimised model"):
        normalize(loaded, lambda source, target: None, tmp_path / "work")


def test_optimiser_that_leaves_the_onnx_domain_is_not_used(tmp_path):
    loaded = load(tmp_path, model_of([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", [2])], [tensor("y", None)]))

    def foreign(source, target):
        model = onnx.load(source)
        model.graph.node[0].domain = "com.microsoft"
        onnx.save(model, target)

    normalized = normalize(loaded, foreign, tmp_path / "work")
    assert ops(normalized) == ["Relu"]
    assert "com.microsoft.Relu" in normalized.steps[0]


def test_integer_and_bool_graphs_pass(tmp_path):
    nodes = [helper.make_node("Equal", ["x", "w"], ["e"]), helper.make_node("Cast", ["e"], ["y"], to=INT64)]
    model = model_of(nodes, [tensor("x", [3], INT64)], [tensor("y", None, INT64)], [weight("w", np.array([0, 5, 0]))])
    assert ops(canonical(tmp_path, model)) == ["Equal", "Cast"]
