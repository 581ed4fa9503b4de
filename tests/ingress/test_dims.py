import pytest
from ingress_models import load, model_of, relu, tensor
from onnx import helper

from mapper.errors import BadInputError


def two_inputs(a, b):
    nodes = [helper.make_node("Relu", ["a"], ["p"]), helper.make_node("Relu", ["b"], ["q"])]
    return model_of(nodes, [tensor("a", a), tensor("b", b)], [tensor("p", None), tensor("q", None)])


def shapes(loaded):
    return [spec.shape for spec in loaded.source.inputs]


def sources(loaded):
    return [(d.input, d.axis, d.name, d.value, d.source) for d in loaded.source.bound_dims]


def test_symbol_with_a_dash_is_bound_as_a_whole(tmp_path):
    loaded = load(tmp_path, two_inputs(["batch-size", 3], [2, "batch-size"]), dims={"batch-size": 5})
    assert shapes(loaded) == [(5, 3), (2, 5)]
    assert sources(loaded) == [("a", 0, "batch-size", 5, "--dim"), ("b", 1, "batch-size", 5, "--dim")]


def test_shape_binds_its_symbols_everywhere(tmp_path):
    loaded = load(tmp_path, two_inputs(["n", 3], ["n", 4]), shapes={"a": (7, 3)})
    assert shapes(loaded) == [(7, 3), (7, 4)]


def test_unnamed_axes_are_independent(tmp_path):
    loaded = load(tmp_path, relu([None, 3, None, None]), shapes={"x": (1, 3, 20, 30)})
    assert shapes(loaded) == [(1, 3, 20, 30)]
    assert load(tmp_path, relu(["?", 3, "?", "?"]), shapes={"x": (1, 3, 20, 30)}).source.inputs[0].shape[2:] == (20, 30)


def test_sole_leading_batch_becomes_one(tmp_path):
    assert sources(load(tmp_path, relu(["n", 3]))) == [("x", 0, "n", 1, "default")]
    assert sources(load(tmp_path, relu([None, 3]))) == [("x", 0, None, 1, "default")]
    assert shapes(load(tmp_path, two_inputs(["n", 3], ["n", 4]))) == [(1, 3), (1, 4)]
    assert shapes(load(tmp_path, relu(["n", "h"]), dims={"h": 6})) == [(1, 6)]


def test_fixed_model_binds_nothing(tmp_path):
    assert load(tmp_path, relu([2, 3])).source.bound_dims == ()


def test_zoo_shapes_apply_where_the_user_binds_nothing(tmp_path):
    given = {"a": (2, 3), "b": (4, 5)}
    loaded = load(tmp_path, two_inputs(["n", 3], ["m", "k"]), dims={"n": 9}, default_shapes=given)
    assert shapes(loaded) == [(9, 3), (4, 5)]
    assert [source[-1] for source in sources(loaded)] == ["--dim", "zoo", "zoo"]


def test_shapes_of_given_inputs_bind(tmp_path):
    loaded = load(tmp_path, relu(["n", "m"]), npz_shapes={"x": (3, 4)}, default_shapes={"x": (1, 1)})
    assert sources(loaded) == [("x", 0, "n", 3, "--inputs"), ("x", 1, "m", 4, "--inputs")]


@pytest.mark.parametrize(
    ("shape", "given", "says"),
    [
        (
            [None, 3, None, None],
            {},
            r"3 dimensions are not bound: input 'x' axis 0 \(unnamed\): --shape x=\?,3,\?,\?; ",
        ),
        (["n", "h w"], {}, r"axis 0 \(n\): --dim n=VALUE; input 'x' axis 1 \(h w\): --dim h w=VALUE"),
        ([2, "k"], {}, r"1 dimension is not bound: input 'x' axis 1 \(k\): --dim k=VALUE"),
        (["n", 3], {"dims": {"m": 2}}, r"--dim names the dimension 'm': expected one of 'n'"),
        ([2, 3], {"dims": {"m": 2}}, r"--dim names the dimension 'm': it has none"),
        (["n", 3], {"dims": {"n": 0}}, r"--dim n=0: expected a size of at least 1"),
        (["n", 3], {"shapes": {"z": (1, 3)}}, r"--shape names the input 'z': expected one of 'x'"),
        (["n", 3], {"shapes": {"x": (1, 0)}}, r"--shape x=1,0: expected sizes of at least 1"),
        (["n", 3], {"shapes": {"x": (1, 3, 4)}}, r"--shape x=1,3,4: expected 2 sizes \(\?,3\), found 3"),
        (
            ["n", 3],
            {"shapes": {"x": (1, 4)}},
            r"--shape wants 4 for input 'x' axis 1 \(which has a fixed size\).*already 3",
        ),
        (["n", 3], {"shapes": {"x": (2, 3)}, "dims": {"n": 4}}, r"--shape wants 2 .*\('n'\).*already 4 by --dim"),
        (["n", "n"], {"shapes": {"x": (2, 3)}}, r"--shape wants 3 .*already 2 by --shape"),
        (["n", 3], {"npz_shapes": {"x": (2, 3)}, "dims": {"n": 4}}, r"--inputs wants 2 .*already 4 by --dim"),
        ([0, 3], {}, r"axis 0 has size 0"),
        (None, {}, r"declares no rank: give it one with --shape x="),
    ],
)
def test_bad_binding_is_one_clear_line(tmp_path, shape, given, says):
    with pytest.raises(BadInputError, match=says) as caught:
        load(tmp_path, relu(shape), **given)
    assert "\n" not in str(caught.value)


def test_input_without_rank_takes_a_shape(tmp_path):
    assert shapes(load(tmp_path, relu(None), shapes={"x": (2, 3)})) == [(2, 3)]
