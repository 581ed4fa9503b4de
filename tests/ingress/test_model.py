import hashlib
import zipfile

import numpy as np
import onnx
import pytest
from ingress_models import FLOAT, INT64, load, model_of, reference, relu, tensor, weight
from onnx import TensorProto, helper

from mapper.errors import BadInputError
from mapper.ingress.model import load_model
from mapper.records import TensorSpec


def refusal(call, *args, **given):
    with pytest.raises(BadInputError) as caught:
        call(*args, **given)
    message = str(caught.value)
    assert "\n" not in message
    return message


def load_path(path):
    return load_model(path, name="m", dims={}, shapes={})


def load_bytes(tmp_path, data):
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    return load_path(path)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"<!DOCTYPE html><html><body>log in</body></html>", "HTML or XML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
        (b"\x1c\x00\x00\x00TFL3\x14\x00", "TensorFlow Lite"),
        (b"hello, this is no model\n", "text file"),
        (b"\x1f\x8b\x08\x00\x00", "gzip"),
        (bytes(range(128, 256)) * 4, "truncated or damaged"),
    ],
)
def test_file_of_another_kind_is_named(tmp_path, data, says):
    with pytest.raises(BadInputError, match=says) as caught:
        load_bytes(tmp_path, data)
    assert "\n" not in str(caught.value)


def test_zip_is_named(tmp_path):
    path = tmp_path / "model.onnx"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inner.onnx", b"x")
    assert "zip archive" in refusal(load_path, path)


def test_missing_file_and_directory_are_named(tmp_path):
    assert "no such file" in refusal(load_path, tmp_path / "none.onnx")
    assert "is a directory" in refusal(load_path, tmp_path)


def test_truncated_model_is_refused(tmp_path):
    data = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [tensor("x", [64])],
        [tensor("y", [64])],
        [weight("w", np.ones(64, np.float32))],
    ).SerializeToString()
    for length in range(1, len(data), 7):
        refusal(load_bytes, tmp_path, data[:length])


def test_versions_from_the_future_are_refused(tmp_path):
    assert "opset 999: expected 7 to" in refusal(load, tmp_path, relu([1], opset=999))
    assert "IR version 99: expected at most" in refusal(load, tmp_path, relu([1], ir_version=99))
    assert "opset 6" in refusal(load, tmp_path, relu([1], opset=6))


def test_all_blocking_nodes_are_listed_at_once(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="fake", domain="acme.ops"),
        helper.make_node("Frobnicate", ["a"], ["b"], name="frob"),
        helper.make_node("NonZero", ["b"], ["y"], name="nz"),
    ]
    message = refusal(load, tmp_path, model_of(nodes, [tensor("x", [2])], [tensor("y", None, INT64)]))
    assert "3 nodes cannot be mapped" in message
    assert "Relu#0 'fake' (unknown domain 'acme.ops')" in message
    assert "Frobnicate#1 'frob' (unknown operator in ai.onnx opset 13)" in message
    assert "NonZero#2 'nz'" in message
    assert "cut the model at 'x'" in message


def test_recurrent_node_is_not_supported_yet(tmp_path):
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["y"], name="rnn", hidden_size=2)]
    weights = [weight("w", np.zeros((1, 8, 3), np.float32)), weight("r", np.zeros((1, 8, 2), np.float32))]
    message = refusal(load, tmp_path, model_of(nodes, [tensor("x", [4, 1, 3])], [tensor("y", None)], weights))
    assert "1 node cannot be mapped: LSTM#0 'rnn' (not supported yet)" in message


@pytest.mark.parametrize("op", ["RandomNormalLike", "Bernoulli"])
def test_random_node_is_refused(tmp_path, op):
    nodes = [helper.make_node(op, ["x"], ["y"])]
    assert "not reproducible" in refusal(
        load, tmp_path, model_of(nodes, [tensor("x", [4])], [tensor("y", None)], opset=15)
    )


def if_model(condition_is_input):
    branches = {
        name: helper.make_graph([helper.make_node(op, ["x"], ["t"])], name, [], [tensor("t", [2])])
        for name, op in (("then_branch", "Neg"), ("else_branch", "Abs"))
    }
    nodes = [helper.make_node("If", ["c"], ["y"], name="choose", **branches)]
    inputs = [tensor("x", [2])]
    if condition_is_input:
        return model_of(nodes, [*inputs, tensor("c", [], TensorProto.BOOL)], [tensor("y", [2])])
    return model_of(nodes, inputs, [tensor("y", [2])], [weight("c", np.array(True))])


def test_if_with_constant_condition_is_inlined(tmp_path):
    loaded = load(tmp_path, if_model(False))
    assert [node.op_type for node in loaded.proto.graph.node] == ["Neg", "Identity"]
    assert [node.op_type for node in loaded.original] == ["If"]
    (result,) = reference(loaded.proto, {"x": np.array([1, -2], np.float32)})
    assert result.tolist() == [-1, 2]


def test_if_with_run_time_condition_is_refused(tmp_path):
    assert "If#0 'choose' (its condition is known only at run time" in refusal(load, tmp_path, if_model(True))


def test_model_local_function_is_inlined_and_original_kept(tmp_path):
    function = helper.make_function(
        "own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 13)]
    )
    model = model_of(
        [helper.make_node("Twice", ["x"], ["y"], domain="own")],
        [tensor("x", [2])],
        [tensor("y", [2])],
        opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid("own", 1)],
        functions=[function],
    )
    loaded = load(tmp_path, model)
    assert [node.op_type for node in loaded.proto.graph.node] == ["Add"]
    assert [node.op_type for node in loaded.original] == ["Twice"]


def save_external(tmp_path, location=None):
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [tensor("x", [64])],
        [tensor("y", [64])],
        [weight("w", np.arange(64, dtype=np.float32))],
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    if location is not None:
        stored = onnx.load(path, load_external_data=False)
        stored.graph.initializer[0].external_data[0].value = location
        path.write_bytes(stored.SerializeToString())
    return path


def test_external_data_is_found_beside_the_model_and_hashed(tmp_path):
    path = save_external(tmp_path)
    loaded = load_path(path)
    assert onnx.numpy_helper.to_array(loaded.proto.graph.initializer[0])[5] == 5
    both = path.read_bytes() + (tmp_path / "w.bin").read_bytes()
    assert loaded.source.sha256 == hashlib.sha256(both).hexdigest()


def test_missing_external_data_is_named(tmp_path):
    path = save_external(tmp_path)
    (tmp_path / "w.bin").unlink()
    assert "external data file 'w.bin' of tensor 'w' is missing" in refusal(load_path, path)


def test_short_external_data_is_refused(tmp_path):
    path = save_external(tmp_path)
    (tmp_path / "w.bin").write_bytes(b"1234")
    assert "has 4 bytes, tensor 'w' needs 256" in refusal(load_path, path)


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "C:\\w.bin", "sub/../../w.bin"])
def test_external_data_outside_the_folder_is_refused(tmp_path, location):
    (tmp_path / "inner").mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(256))
    path = save_external(tmp_path / "inner", location)
    assert "outside the model's folder" in refusal(load_path, path)


def test_external_data_behind_a_symbolic_link_is_refused(tmp_path):
    path = save_external(tmp_path)
    (tmp_path / "w.bin").rename(tmp_path / "real.bin")
    (tmp_path / "w.bin").symlink_to(tmp_path / "real.bin")
    assert "symbolic link" in refusal(load_path, path)


def test_cycle_names_its_nodes(tmp_path):
    nodes = [helper.make_node("Add", ["x", "b"], ["a"], name="p"), helper.make_node("Relu", ["a"], ["b"], name="q")]
    message = refusal(load, tmp_path, model_of(nodes, [tensor("x", [2])], [tensor("b", [2])]))
    assert "cycle through Add#0 'p', Relu#1 'q'" in message


def test_two_writers_of_one_tensor_are_refused(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="p"), helper.make_node("Neg", ["x"], ["y"], name="q")]
    message = refusal(load, tmp_path, model_of(nodes, [tensor("x", [2])], [tensor("y", [2])]))
    assert "Neg#1 'q' writes 'y', already written by node Relu#0 'p'" in message


def test_duplicate_initializers_are_refused(tmp_path):
    twice = [weight("w", np.zeros(2, np.float32)), weight("w", np.ones(2, np.float32))]
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    message = refusal(load, tmp_path, model_of(nodes, [tensor("x", [2])], [tensor("y", [2])], twice))
    assert "initializer 'w' is defined 2 times" in message


def test_unwritten_tensors_are_refused(tmp_path):
    nodes = [helper.make_node("Add", ["x", "ghost"], ["y"], name="p")]
    assert "reads 'ghost'" in refusal(load, tmp_path, model_of(nodes, [tensor("x", [2])], [tensor("y", [2])]))
    model = relu([2])
    model.graph.output.append(tensor("z", [2]))
    assert "graph output 'z' is written by no node" in refusal(load, tmp_path, model)


def test_output_that_is_an_input_is_refused(tmp_path):
    model = relu([2])
    model.graph.output.append(tensor("x", [2]))
    assert "graph output 'x' is itself a graph input" in refusal(load, tmp_path, model)


def test_invalid_attribute_is_refused_in_one_line(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["y"], nonsense=3)]
    assert "not valid ONNX" in refusal(load, tmp_path, model_of(nodes, [tensor("x", [2])], [tensor("y", [2])]))


def test_contradicting_shapes_are_refused(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = model_of(nodes, [tensor("x", [2, 3])], [tensor("y", None)], [weight("w", np.ones((4, 5), np.float32))])
    assert "contradict" in refusal(load, tmp_path, model)


@pytest.mark.parametrize("kind", ["input", "constant-of-shape"])
def test_absurd_sizes_are_refused_before_allocation(tmp_path, kind):
    if kind == "input":
        nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
        model = model_of(nodes, [tensor("x", [2]), tensor("s", [1 << 40], INT64)], [tensor("y", None)])
    else:
        nodes = [helper.make_node("ConstantOfShape", ["s"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])]
        shape = weight("s", np.array([1 << 40], np.int64))
        model = model_of(nodes, [tensor("x", [1])], [tensor("y", None)], [shape])
    assert "GiB: expected at most" in refusal(load, tmp_path, model)


def test_text_input_is_refused(tmp_path):
    model = model_of(
        [helper.make_node("Identity", ["x"], ["y"])],
        [tensor("x", [2], TensorProto.STRING)],
        [tensor("y", None, TensorProto.STRING)],
    )
    assert "holds text" in refusal(load, tmp_path, model)


def test_wrong_declared_output_dtype_is_refused(tmp_path):
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", [2])], [tensor("y", [2], INT64)])
    assert "output 'y' is declared int64: its node gives float32" in refusal(load, tmp_path, model)


def test_unsorted_nodes_are_sorted_and_original_order_kept(tmp_path):
    nodes = [helper.make_node("Neg", ["a"], ["y"]), helper.make_node("Relu", ["x"], ["a"])]
    loaded = load(tmp_path, model_of(nodes, [tensor("x", [2])], [tensor("y", [2])]))
    assert [node.op_type for node in loaded.proto.graph.node] == ["Relu", "Neg"]
    assert [node.op_type for node in loaded.original] == ["Neg", "Relu"]


def test_initializers_that_are_inputs_are_not_inputs(tmp_path):
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [tensor("x", [2]), tensor("w", [2])],
        [tensor("y", [2])],
        [weight("w", np.ones(2, np.float32))],
        ir_version=3,
    )
    loaded = load(tmp_path, model)
    assert [spec.name for spec in loaded.source.inputs] == ["x"]
    assert loaded.source.ir_version == 3


def test_stale_shapes_give_way_and_shape_arithmetic_is_seen_through(tmp_path):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["f"], to=FLOAT),
        helper.make_node("Mul", ["f", "scale"], ["g"]),
        helper.make_node("Cast", ["g"], ["i"], to=INT64),
        helper.make_node("Reshape", ["x", "i"], ["y"]),
    ]
    scale = weight("scale", np.array([2, 0.5], np.float32))
    model = model_of(nodes, [tensor("x", ["n", 6])], [tensor("y", [7, 7])], [scale])
    model.graph.value_info.append(tensor("f", [9]))
    loaded = load(tmp_path, model, dims={"n": 4})
    assert loaded.source.outputs == (TensorSpec(name="y", shape=(8, 3), dtype="float32"),)
    assert {v.name for v in loaded.proto.graph.value_info} == {"s", "f", "g", "i"}


def test_hostile_names_survive(tmp_path):
    name = "入力/1:0" + "n" * 400
    assert load(tmp_path, relu([2], name)).source.inputs[0].name == name
