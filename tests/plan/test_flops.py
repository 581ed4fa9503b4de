"""Useful FLOPs, worked by hand from shapes."""

import re
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from plan_models import constant, graph_of, node, weight

from mapper.plan.flops import RULES, count, uncounted
from mapper.records import TensorSpec

DOC = Path(__file__).parents[2] / "docs" / "flops.md"


def spec(*shape, dtype="float32"):
    return TensorSpec(name="t", shape=shape, dtype=dtype)


@pytest.mark.parametrize(
    ("op_type", "attributes", "inputs", "outputs", "expected"),
    [
        # 2 · 1·8·5·5 outputs · 4 input channels · 3 · 3
        ("Conv", {}, [spec(1, 4, 7, 7), spec(8, 4, 3, 3)], [spec(1, 8, 5, 5)], (14_400, 0)),
        # depthwise: one input channel an output
        ("Conv", {"group": 4}, [spec(1, 4, 7, 7), spec(4, 1, 3, 3), spec(4)], [spec(1, 4, 5, 5)], (1_800, 0)),
        # 2 · 1·4·3·3 inputs · 6 output channels · 2 · 2
        ("ConvTranspose", {}, [spec(1, 4, 3, 3), spec(4, 6, 2, 2)], [spec(1, 6, 6, 6)], (1_728, 0)),
        ("MatMul", {}, [spec(2, 3, 4), spec(2, 4, 5)], [spec(2, 3, 5)], (240, 0)),
        ("Gemm", {}, [spec(3, 4), spec(4, 5), spec(5)], [spec(3, 5)], (120, 0)),
        ("Gemm", {"transA": 1}, [spec(4, 3), spec(4, 5)], [spec(3, 5)], (120, 0)),
        ("Einsum", {"equation": "bij, bjk -> bik"}, [spec(2, 3, 4), spec(2, 4, 5)], [spec(2, 3, 5)], (240, 0)),
        ("Einsum", {"equation": "ij,jk"}, [spec(3, 4), spec(4, 5)], [spec(3, 5)], (120, 0)),
        ("Einsum", {"equation": "...ij,...jk->...ik"}, [spec(2, 3, 4), spec(4, 5)], [spec(2, 3, 5)], (240, 0)),
        ("Einsum", {"equation": "i,j->ij"}, [spec(3), spec(4)], [spec(3, 4)], (12, 0)),
        ("Add", {}, [spec(2, 1), spec(3)], [spec(2, 3)], (6, 0)),
        ("Sum", {}, [spec(6), spec(6), spec(6)], [spec(6)], (12, 0)),
        ("Mean", {}, [spec(6), spec(6), spec(6)], [spec(6)], (18, 0)),
        ("Relu", {}, [spec(6)], [spec(6)], (6, 0)),
        ("Clip", {}, [spec(6), None, spec()], [spec(6)], (6, 0)),
        ("Clip", {"min": 0.0, "max": 6.0}, [spec(6)], [spec(6)], (12, 0)),
        ("Div", {}, [spec(6), spec()], [spec(6)], (6, 6)),
        ("Sigmoid", {}, [spec(6)], [spec(6)], (6, 6)),
        ("Gelu", {}, [spec(6)], [spec(6)], (30, 6)),
        ("Gelu", {"approximate": "tanh"}, [spec(6)], [spec(6)], (54, 6)),
        ("Softmax", {}, [spec(2, 5)], [spec(2, 5)], (40, 20)),
        ("LogSoftmax", {}, [spec(2, 5)], [spec(2, 5)], (40, 10)),
        ("LayerNormalization", {}, [spec(2, 5), spec(5)], [spec(2, 5)], (80, 0)),
        ("LRN", {"size": 5}, [spec(2, 5)], [spec(2, 5)], (100, 20)),
        ("ReduceMean", {}, [spec(2, 5)], [spec(2)], (10, 0)),
        ("ReduceL2", {}, [spec(2, 5)], [spec(2)], (20, 0)),
        ("GlobalAveragePool", {}, [spec(1, 2, 7, 7)], [spec(1, 2, 1, 1)], (98, 0)),
        ("MaxPool", {"kernel_shape": [3, 3]}, [spec(1, 2, 7, 7)], [spec(1, 2, 3, 3)], (162, 0)),
        ("LpPool", {"kernel_shape": [3, 3]}, [spec(1, 2, 7, 7)], [spec(1, 2, 3, 3)], (324, 0)),
        ("Resize", {"mode": "nearest"}, [spec(1, 2, 3, 3)], [spec(1, 2, 6, 6)], (0, 0)),
        ("Resize", {"mode": "linear"}, [spec(1, 2, 3, 3)], [spec(1, 2, 6, 6)], (2 * 4 * 72, 0)),
        ("Resize", {"mode": "cubic"}, [spec(1, 2, 3, 3)], [spec(1, 2, 3, 6)], (2 * 4 * 36, 0)),
        ("GridSample", {"mode": "bilinear"}, [spec(1, 1, 3, 3), spec(1, 2, 2, 2)], [spec(1, 1, 2, 2)], (32, 0)),
        # 5 steps · 1 batch · 1 direction · 4 hidden · (8 · (3 + 4) + 9)
        ("LSTM", {}, [spec(5, 1, 3), spec(1, 16, 3), spec(1, 16, 4)], [spec(5, 1, 1, 4)], (1_300, 100)),
        ("Transpose", {}, [spec(2, 3)], [spec(3, 2)], (0, 0)),
        ("Greater", {}, [spec(6), spec(6)], [spec(6, dtype="bool")], (0, 0)),
        ("Add", {}, [spec(6, dtype="int64"), spec(6, dtype="int64")], [spec(6, dtype="int64")], (0, 0)),
        ("QuantizeLinear", {}, [spec(6), spec()], [spec(6, dtype="uint8")], (6, 6)),
    ],
)
def test_count(op_type, attributes, inputs, outputs, expected):
    assert count(op_type, "", attributes, inputs, outputs) == expected


def test_unknown_floating_operator_counts_one_an_output_element():
    assert count("Frobnicate", "acme", {}, [spec(4)], [spec(4), spec(3)]) == (7, 0)


def test_rule_of_the_standard_domain_does_not_serve_another_domain():
    assert count("MatMul", "acme", {}, [spec(3, 4), spec(4, 5)], [spec(3, 5)]) == (15, 0)


def test_unknown_integer_operator_counts_nothing():
    assert count("Frobnicate", "acme", {}, [spec(4, dtype="int8")], [spec(4, dtype="int8")]) == (0, 0)


def test_uncounted_lists_unknown_floating_operators_once():
    graph = graph_of(
        [node("Relu", "x", "a"), node("Odd", "a", "b", domain="acme"), node("Odd", "b", "y", domain="acme")],
        {"x": (2,)},
        {"a": (2,), "b": (2,), "y": (2,)},
        domains=("acme",),
        infer=False,
    )
    assert uncounted(graph) == ("acme.Odd",)
    assert [operator.flops for operator in graph.operators] == [2, 2, 2]


def test_graph_operators_carry_their_flops():
    graph = graph_of(
        [node("MatMul", "x w", "m"), node("Exp", "m", "e"), node("Reshape", "e s", "y")],
        {"x": (2, 3)},
        {"y": (8,)},
        [weight("w", (3, 4)), constant("s", [8], np.int64)],
    )
    assert [(operator.flops, operator.longlat_flops) for operator in graph.operators] == [(48, 0), (8, 8), (0, 0)]
    assert uncounted(graph) == ()


def test_unknown_integer_operator_is_not_uncounted():
    byte = ((2,), TensorProto.UINT8)
    graph = graph_of([node("BitShift", "x x", "y", direction="LEFT")], {"x": byte}, {"y": byte})
    assert uncounted(graph) == ()


def test_page_and_table_list_the_same_operator_types():
    tables = "\n".join(line for line in DOC.read_text(encoding="utf-8").splitlines() if line.startswith("| `"))
    documented = re.findall(r"`([A-Z]\w+)`", tables)
    assert sorted(documented) == sorted(RULES)
