"""The operator graph of small models: roles of constants, JSON forms, rejections."""

import networkx as nx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from plan_models import IMAGE, constant, graph_of, model, node, residual_block, weight

from mapper.errors import BadInputError
from mapper.keys import canonical_json
from mapper.plan.graph import SINCE_VERSION, operator_graph, to_networkx
from mapper.plan.tensors import tensor_array, tensor_json


def test_operators_keep_file_order_names_and_attributes():
    graph = operator_graph(residual_block())
    assert [operator.op_type for operator in graph.operators] == ["Conv", "Relu", "Conv", "Conv", "Add", "Relu"]
    assert graph.operators[0].index == 0
    assert graph.operators[0].attributes == {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], SINCE_VERSION: 11}
    assert (graph.inputs, graph.outputs) == (("x",), ("y",))
    assert graph.weights == {"w1", "b1", "w2", "w3"}
    assert graph.tensors["a"].shape == IMAGE
    assert graph.tensors["a"].dtype == "float32"


def test_since_version_is_that_of_the_opset_in_use():
    nodes = [node("Relu", "x", "y")]
    new, old = (graph_of(nodes, {"x": (2,)}, {"y": (2,)}, opset=opset) for opset in (17, 12))
    assert new.operators[0].attributes[SINCE_VERSION] == 14
    assert old.operators[0].attributes[SINCE_VERSION] == 6


def test_structural_and_scalar_constants_are_baked_and_data_is_an_argument():
    graph = graph_of(
        [
            node("Gather", "table ids", "e", axis=0),
            node("Reshape", "e shape", "r"),
            node("Mul", "r scale", "m"),
            node("Add", "m shift", "a"),
            node("Clip", "a low high", "y"),
        ],
        {"ids": ((2, 3), TensorProto.INT64)},
        {"y": (6, 4)},
        [
            weight("table", (5, 4)),
            constant("shape", [6, 4], np.int64),
            constant("scale", 2.0),
            weight("shift", (4,)),
            constant("low", 0.0),
            constant("high", float("inf")),
        ],
    )
    assert graph.weights == {"table", "shift"}
    assert graph.constants["shape"] == {"dtype": "int64", "shape": [2], "data": [6, 4]}
    assert graph.constants["scale"] == {"dtype": "float32", "shape": [], "data": [2.0]}
    assert set(graph.constants) == {"shape", "scale", "low", "high"}
    canonical_json(dict(graph.constants))  # infinities would be refused


def test_integer_table_is_an_argument_and_its_constant_indices_are_baked():
    graph = graph_of(
        [node("Gather", "table ids", "g"), node("Add", "g x", "y")],
        {"x": ((2,), TensorProto.INT64)},
        {"y": ((2,), TensorProto.INT64)},
        [constant("table", [7, 8, 9], np.int64), constant("ids", [2, -1], np.int64)],
    )
    assert graph.weights == {"table"}
    assert graph.constants["ids"] == {"dtype": "int64", "shape": [2], "data": [2, -1]}


def test_many_constant_indices_are_an_argument():
    graph = graph_of(
        [node("Gather", "x ids", "y")], {"x": (3,)}, {"y": (2000,)}, [constant("ids", [0] * 2000, np.int64)]
    )
    assert graph.weights == {"ids"}


def test_constant_used_both_ways_is_baked():
    graph = graph_of(
        [node("Reshape", "x n", "r"), node("Add", "k n", "s")],
        {"x": (6,), "k": ((2,), TensorProto.INT64)},
        {"r": (2, 3), "s": ((2,), TensorProto.INT64)},
        [constant("n", [2, 3], np.int64)],
    )
    assert graph.weights == frozenset()
    assert set(graph.constants) == {"n"}


def test_single_element_bias_of_a_convolution_is_an_argument():
    graph = graph_of(
        [node("Conv", "x w b", "y")], {"x": IMAGE}, {"y": (1, 1, 3, 3)}, [weight("w", (1, 2, 1, 1)), weight("b", (1,))]
    )
    assert graph.weights == {"w", "b"}


def test_unread_optional_output_is_dropped_and_a_read_one_kept():
    def pooled(outputs):
        nodes = [node("MaxPool", "x", "y i", kernel_shape=[1, 1])]
        return graph_of(nodes, {"x": IMAGE}, outputs).operators[0].outputs

    assert pooled({"y": IMAGE}) == ("y",)
    assert pooled({"y": IMAGE, "i": (IMAGE, TensorProto.INT64)}) == ("y", "i")


def test_unread_variadic_output_is_kept():
    graph = graph_of([node("Split", "x", "a b", axis=0)], {"x": (4,)}, {"a": (2,)}, opset=17)
    assert graph.operators[0].outputs == ("a", "b")


def test_missing_value_info_is_inferred_even_before_ir_version_4():
    bare = residual_block()
    del bare.graph.value_info[:]
    bare.ir_version = 3
    assert operator_graph(bare).tensors["d"].shape == IMAGE
    assert bare.ir_version == 3


def test_to_networkx_joins_producers_to_consumers_with_tensor_names():
    edges = to_networkx(operator_graph(residual_block()))
    assert isinstance(edges, nx.DiGraph)
    expected = {(0, 1): ("a",), (1, 3): ("b",), (3, 4): ("c",), (2, 4): ("s",), (4, 5): ("d",)}
    assert {(a, b): names for a, b, names in edges.edges(data="tensors")} == expected


def test_to_networkx_lists_all_tensors_between_two_operators():
    graph = graph_of([node("Split", "x", "a b", axis=0), node("Add", "b a", "y")], {"x": (4,)}, {"y": (2,)})
    assert to_networkx(graph).edges[0, 1]["tensors"] == ("a", "b")


@pytest.mark.parametrize(
    "array",
    [
        np.array([[1.5, -0.0], [np.nan, -np.inf]], np.float32),
        np.array([True, False]),
        np.array([2**62, -1], np.int64),
        np.array(3, np.uint8),
        np.array([1.5, 65504.0], np.float16),
        np.zeros((0, 3), np.float64),
    ],
)
def test_tensors_survive_json(array):
    value = tensor_json(numpy_helper.from_array(array))
    back = tensor_array(value)
    canonical_json(value)
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes() or np.array_equal(back, array, equal_nan=True)
    assert back.shape == array.shape


def test_bfloat16_and_text_survive_json():
    tensor = helper.make_tensor("b", TensorProto.BFLOAT16, [2], [1.5, -3.0])
    assert tensor_json(tensor) == {"dtype": "bfloat16", "shape": [2], "data": [1.5, -3.0]}
    assert tensor_array(tensor_json(tensor)).astype(np.float32).tolist() == [1.5, -3.0]
    text = helper.make_tensor("t", TensorProto.STRING, [1], ["入力"])
    assert tensor_array(tensor_json(text)).tolist() == ["入力"]


def test_tensor_without_static_shape_is_refused():
    bad = model([node("Relu", "x", "y")], {"x": ("n", 3)}, {"y": ("n", 3)}, infer=False)
    with pytest.raises(BadInputError, match=r"node 0 \(Relu ''\): tensor 'x': expected a tensor of static shape"):
        operator_graph(bad)


def test_unsorted_nodes_are_refused():
    bad = model([node("Relu", "a", "y", name="late"), node("Relu", "x", "a")], {"x": (2,)}, {"y": (2,)}, infer=False)
    bad.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [2]))
    with pytest.raises(BadInputError, match=r"node 0 \(Relu 'late'\).*'a' undefined; sort the nodes"):
        operator_graph(bad)


def test_constant_node_is_refused():
    bad = model([node("Constant", "", "c", value_float=1.0), node("Add", "x c", "y")], {"x": (2,)}, {"y": (2,)})
    with pytest.raises(BadInputError, match="found a Constant node"):
        operator_graph(bad)


def test_subgraph_is_refused():
    branch = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["o"])], "branch", [], [onnx.ValueInfoProto(name="o")]
    )
    branch.output[0].CopyFrom(helper.make_tensor_value_info("o", TensorProto.FLOAT, [2]))
    bad = model(
        [node("If", "c", "y", then_branch=branch, else_branch=branch)],
        {"x": (2,), "c": ((), TensorProto.BOOL)},
        {"y": (2,)},
    )
    with pytest.raises(BadInputError, match=r"attribute 'else_branch'.*found a graph"):
        operator_graph(bad)
