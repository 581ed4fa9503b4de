"""Faults of groups: what each computes, by hand or by ONNX's own reference implementation, and where there is none."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from mapper.validate.mutants import KINDS, WeightChange, corrupted, faults


def group(nodes, inputs, outputs, constants=None, opset=17):
    """Return the model of a group: `nodes` as (operator, inputs, outputs, attributes), shapes inside inferred."""
    made = [helper.make_node(op, ins.split(), outs.split(), **attributes) for op, ins, outs, attributes in nodes]
    proto = helper.make_graph(
        made,
        "group",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.array(value), name) for name, value in (constants or {}).items()],
    )
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def run(model, **values):
    fed = {value.name: np.array(values[value.name], np.float32) for value in model.graph.input}
    (output,) = ReferenceEvaluator(model).run(None, fed)
    return output


def found(model, kind, weights=()):
    return [fault for fault in faults(model, weights) if fault.kind == kind]


def one(model, kind, note, weights=()):
    (fault,) = [fault for fault in found(model, kind, weights) if note in fault.note]
    return fault


def conv(kernel=(3, 3), pads=(1, 1, 1, 1)):
    """A convolution with bias, residual addition and Relu, all of it one group."""
    nodes = [
        ("Conv", "in0 w0 w1", "t0", {"pads": list(pads)}),
        ("Add", "t0 in1", "t1", {}),
        ("Relu", "t1", "out0", {}),
    ]
    image = (1, 4, 5, 5)
    return group(nodes, {"in0": image, "in1": image, "w0": (4, 4, *kernel), "w1": (4,)}, {"out0": image})


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"action": "zero"}, [[0, 0], [0, 0]]),
        ({"action": "scale"}, [[1.5, 3], [4.5, 6]]),
        ({"action": "zero", "axis": 1, "positions": (1,)}, [[1, 0], [3, 0]]),
        ({"action": "swap", "axis": 0, "positions": (0, 1)}, [[3, 4], [1, 2]]),
        ({"action": "roll", "axis": 1}, [[2, 1], [4, 3]]),
        ({"action": "zero", "axis": 0, "positions": (1,), "more": ((1, 0),)}, [[1, 2], [0, 4]]),
    ],
)
def test_a_weight_is_changed_and_the_original_kept(change, wanted):
    value = np.array([[1, 2], [3, 4]], np.float32)
    assert corrupted(value, WeightChange(weight="w0", **change)).tolist() == wanted
    assert value.tolist() == [[1, 2], [3, 4]]


def test_a_convolution_has_faults_of_every_kind():
    assert {fault.kind for fault in faults(conv(), ("w0", "w1"))} == set(KINDS)


def test_a_tap_is_zeroed_for_all_channels():
    (first, *_), value = found(conv(), "tap", ("w0", "w1")), np.ones((4, 4, 3, 3), np.float32)
    changed = corrupted(value, first.weights[0])
    assert first.note == "tap (0, 0) of w0 skipped"
    assert changed[:, :, 0, 0].max() == 0
    assert changed.sum() == 4 * 4 * 8


def test_a_pointwise_convolution_has_no_taps_but_a_last_term_to_skip():
    model = conv(kernel=(1, 1), pads=(0, 0, 0, 0))
    assert not found(model, "tap", ("w0", "w1"))
    (fault,) = found(model, "reduction", ("w0", "w1"))
    changed = corrupted(np.ones((4, 4, 1, 1), np.float32), fault.weights[0])
    assert changed[:, :, 0, 0].tolist() == [[1, 1, 1, 0]] * 4


def test_channels_are_swapped_with_their_bias():
    fault = one(conv(), "channels", "channels 0 and 1", ("w0", "w1"))
    bias = next(change for change in fault.weights if change.weight == "w1")
    assert corrupted(np.array([1, 2, 3, 4]), bias).tolist() == [2, 1, 3, 4]


@pytest.mark.parametrize(("attributes", "shape"), [({}, (3, 2)), ({"transB": 1}, (2, 3))])
def test_gemm_swaps_columns_of_b_however_b_is_stored(attributes, shape):
    model = group([("Gemm", "in0 w0", "out0", attributes)], {"in0": (1, 3), "w0": shape}, {"out0": (1, 2)})
    (change,) = found(model, "channels", ("w0",))[0].weights
    value = np.arange(6, dtype=np.float32).reshape(3, 2)
    stored = value.T if attributes else value
    changed = corrupted(stored, change)
    assert (changed.T if attributes else changed).tolist() == [[1, 0], [3, 2], [5, 4]]


@pytest.mark.parametrize("weights", [("w0", "w1"), ()])
def test_every_fault_keeps_the_outputs_and_computes_something_else(weights):
    model = conv()
    rng = np.random.default_rng(0)
    values = {
        value.name: rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim])
        for value in model.graph.input
    }
    right = run(model, **values)
    for fault in faults(model, weights):
        changed = dict(values)
        for change in fault.weights:
            changed[change.weight] = corrupted(changed[change.weight], change)
        if fault.model is not None:
            onnx.checker.check_model(fault.model)
            assert fault.model.graph.output == model.graph.output
        wrong = run(fault.model or model, **changed)
        assert wrong.shape == right.shape
        assert np.abs(wrong - right).max() > 1e-3, fault.note


def test_an_activation_is_left_out():
    model = group([("Relu", "in0", "out0", {})], {"in0": (3,)}, {"out0": (3,)})
    assert run(one(model, "epilogue", "Relu left out").model, in0=[-1, 0, 2]).tolist() == [-1, 0, 2]


def test_an_operand_is_ignored_and_what_only_it_needed_is_gone():
    nodes = [("Relu", "in1", "t0", {}), ("Add", "in0 t0", "out0", {})]
    model = group(nodes, {"in0": (2,), "in1": (2,)}, {"out0": (2,)})
    fault = one(model, "epilogue", "t0 of Add ignored")
    assert [node.op_type for node in fault.model.graph.node] == ["Mul"]
    assert [value.name for value in fault.model.graph.input] == ["in0"]
    assert run(fault.model, in0=[3, 4]).tolist() == [3, 4]


def test_an_addition_is_done_as_a_subtraction():
    model = group([("Add", "in0 in1", "out0", {})], {"in0": (2,), "in1": (2,)}, {"out0": (2,)})
    assert run(one(model, "epilogue", "Add done as Sub").model, in0=[3, 4], in1=[1, 1]).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("opset", "node", "constants"),
    [
        (17, ("Clip", "in0 c0 c1", "out0", {}), {"c0": np.float32(0), "c1": np.float32(6)}),
        (9, ("Clip", "in0", "out0", {"min": 0.0, "max": 6.0}), {}),
    ],
)
def test_bounds_of_a_clip_are_moved_whether_inputs_or_attributes(opset, node, constants):
    model = group([node], {"in0": (3,)}, {"out0": (3,)}, constants, opset=opset)
    assert run(one(model, "epilogue", "max of Clip").model, in0=[-1, 2, 9]).tolist() == [0, 2, 3]
    assert run(one(model, "epilogue", "min of Clip").model, in0=[-1, 2, 9]).tolist() == [0.25, 2, 6]


def test_a_window_is_shifted_by_one():
    model = group(
        [("Conv", "in0 w0", "out0", {"pads": [1, 1]})], {"in0": (1, 1, 3), "w0": (1, 1, 3)}, {"out0": (1, 1, 3)}
    )
    (fault,) = found(model, "pads", ("w0",))
    assert run(fault.model, in0=[[[1, 2, 3]]], w0=[[[0, 1, 0]]]).tolist() == [[[2, 3, 0]]]


def test_border_rows_are_zeroed():
    model = group([("Neg", "in0", "out0", {})], {"in0": (3, 2)}, {"out0": (3, 2)})
    assert run(one(model, "border", "first row").model, in0=np.ones((3, 2))).tolist() == [[0, 0], [-1, -1], [-1, -1]]
    assert run(one(model, "border", "last row").model, in0=np.ones((3, 2))).tolist() == [[-1, -1], [-1, -1], [0, 0]]


def test_an_output_that_is_read_inside_is_zeroed_outside_only():
    nodes = [("Neg", "in0", "out0", {}), ("Neg", "out0", "out1", {})]
    model = group(nodes, {"in0": (2,)}, {"out0": (2,), "out1": (2,)})
    fault = one(model, "border", "first row of axis 0 of out0")
    first, second = ReferenceEvaluator(fault.model).run(None, {"in0": np.array([1, 2], np.float32)})
    assert (first.tolist(), second.tolist()) == ([0, -2], [1, 2])


@pytest.mark.parametrize(
    ("node", "constants", "wanted"),
    [
        (("ReduceSum", "in0 c0", "out0", {"keepdims": 1}), {"c0": np.array([1])}, [[1], [4]]),
        (("ReduceMax", "in0", "out0", {"axes": [1], "keepdims": 1}), {}, [[1], [4]]),
    ],
)
def test_a_reduction_misses_its_last_element(node, constants, wanted):
    model = group([node], {"in0": (2, 2)}, {"out0": (2, 1)}, constants)
    (fault,) = found(model, "reduction")
    assert run(fault.model, in0=[[1, 2], [4, 8]]).tolist() == wanted


@pytest.mark.parametrize(
    ("node", "inputs", "output", "constants", "wanted"),
    [
        (("Concat", "in0 in1", "out0", {"axis": 0}), {"in0": (1,), "in1": (2,)}, (3,), {}, [10, 11, 0]),
        (("Transpose", "in0", "out0", {"perm": [1, 0]}), {"in0": (2, 2)}, (2, 2), {}, [[0, 1], [2, 3]]),
        (("Slice", "in0 c0 c1", "out0", {}), {"in0": (4,)}, (2,), {"c0": np.array([1]), "c1": np.array([3])}, [0, 1]),
        (("Slice", "in0 c0 c1", "out0", {}), {"in0": (4,)}, (2,), {"c0": np.array([0]), "c1": np.array([2])}, [1, 2]),
        (("Slice", "in0 c0 c1", "out0", {}), {"in0": (4,)}, (2,), {"c0": np.array([-2]), "c1": np.array([99])}, [1, 2]),
        (("Gather", "in0 c0", "out0", {}), {"in0": (4,)}, (2,), {"c0": np.array([0, 3])}, [1, 0]),
        (("Pad", "in0 c0", "out0", {}), {"in0": (2,)}, (4,), {"c0": np.array([1, 1])}, [0, 1, 0, 0]),
        (
            ("DepthToSpace", "in0", "out0", {"blocksize": 2}),
            {"in0": (1, 8, 1, 1)},
            (1, 2, 2, 2),
            {},
            [[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]],
        ),
    ],
)
def test_an_operator_that_moves_data_reads_elsewhere(node, inputs, output, constants, wanted):
    model = group([node], inputs, {"out0": output}, constants)
    fault = next(fault for fault in found(model, "index") if node[0] in fault.note)
    values = {name: np.arange(np.prod(shape)).reshape(shape) + 10 * i for i, (name, shape) in enumerate(inputs.items())}
    assert run(fault.model, **values).tolist() == wanted


def test_equal_parts_of_a_split_are_exchanged():
    model = group([("Split", "in0", "out0 out1", {"axis": 0})], {"in0": (4,)}, {"out0": (2,), "out1": (2,)})
    fault = one(model, "index", "Split")
    first, second = ReferenceEvaluator(fault.model).run(None, {"in0": np.arange(4, dtype=np.float32)})
    assert (first.tolist(), second.tolist()) == ([2, 3], [0, 1])


def test_nearest_resize_rounds_the_other_way():
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    constants = {"none": np.zeros(0, np.float32), "scales": np.array([2.0], np.float32)}
    model = group([("Resize", "in0 none scales", "out0", attributes)], {"in0": (2,)}, {"out0": (4,)}, constants)
    assert run(one(model, "index", "Resize").model, in0=[1, 2]).tolist() == [1, 2, 2, 2]


def test_axes_of_equal_size_are_exchanged_in_the_output():
    model = group([("Neg", "in0", "out0", {})], {"in0": (2, 2)}, {"out0": (2, 2)})
    assert run(one(model, "index", "strides").model, in0=[[1, 2], [3, 4]]).tolist() == [[-1, -3], [-2, -4]]


def test_rows_of_a_table_are_one_off():
    nodes = [("Gather", "w0 c0", "out0", {})]
    model = group(nodes, {"w0": (3, 1)}, {"out0": (2, 1)}, {"c0": np.array([0, 2])})
    fault = one(model, "index", "rows of w0", ("w0",))
    assert corrupted(np.array([[1], [2], [3]]), fault.weights[0]).tolist() == [[3], [1], [2]]


@pytest.mark.parametrize(
    ("node", "inputs", "output", "constants"),
    [
        (("Concat", "in0 in0", "out0", {"axis": 0}), {"in0": (2,)}, (4,), {}),
        (("Transpose", "in0", "out0", {"perm": [1, 0]}), {"in0": (2, 3)}, (3, 2), {}),
        (("Slice", "in0 c0 c1", "out0", {}), {"in0": (2,)}, (2,), {"c0": np.array([0]), "c1": np.array([2])}),
        (("Pad", "in0 c0", "out0", {}), {"in0": (2,)}, (2,), {"c0": np.array([0, 0])}),
        (("MaxPool", "in0", "out0", {"kernel_shape": [2]}), {"in0": (1, 1, 3)}, (1, 1, 2), {}),
    ],
)
def test_what_cannot_go_wrong_within_its_shapes_has_no_such_fault(node, inputs, output, constants):
    model = group([node], inputs, {"out0": output}, constants)
    assert not [fault for fault in faults(model, ()) if fault.kind in ("index", "pads")]


def test_operators_of_other_domains_are_left_alone():
    model = group([("Relu", "in0", "out0", {})], {"in0": (1,)}, {"out0": (1,)})
    model.graph.node[0].domain = "acme.ops"
    assert faults(model, ()) == ()
