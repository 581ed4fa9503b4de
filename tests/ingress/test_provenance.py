import re
from dataclasses import replace

import numpy as np
import onnx
import pytest
from ingress_models import load, model_of, optimise_basic, optimise_nothing, tensor, weight
from onnx import helper

from mapper.ingress.normalize import normalize
from mapper.ingress.provenance import check_provenance


def block():
    """A constant chain, a convolution with batch norm, an elided node, a residual sum of three, and a dead node."""
    nodes = [
        helper.make_node("Identity", ["w"], ["w1"], name="copy"),
        helper.make_node("Conv", ["x", "w1"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], name="norm"),
        helper.make_node("Dropout", ["n"], ["d"], name="drop"),
        helper.make_node("Relu", ["d"], ["r"], name="relu"),
        helper.make_node("Sum", ["r", "x", "d"], ["y"], name="sum"),
        helper.make_node("Neg", ["r"], ["unused"], name="dead"),
    ]
    generator = np.random.default_rng(0)
    weights = [weight("w", generator.standard_normal((2, 2, 3, 3)).astype(np.float32))]
    weights += [
        weight(name, np.array(v, np.float32)) for name, v in zip("sbmv", ([1, 2], [3, 4], [5, 6], [7, 8]), strict=True)
    ]
    return model_of(nodes, [tensor("x", [1, 2, 4, 4])], [tensor("y", None)], weights, opset=15)


@pytest.fixture
def traced(tmp_path):
    loaded = load(tmp_path, block())
    return loaded, normalize(loaded, optimise_nothing, tmp_path / "work")


def test_every_node_is_accounted_for(traced):
    loaded, normalized = traced
    assert [node.op_type for node in normalized.proto.graph.node] == ["Conv", "Mul", "Add", "Relu", "Add", "Add"]
    assert [(node.reason, node.canonical) for node in normalized.nodes] == [
        ("folded", ()),
        (None, (0,)),
        (None, (1, 2)),
        ("elided", ()),
        (None, (3,)),
        (None, (4, 5)),
        ("elided", ()),
    ]
    assert normalized.nodes[0].evidence == "every input is constant: w"
    assert normalized.nodes[3].evidence == "Dropout passes its input on at inference"
    assert normalized.nodes[6].evidence == "output is not used by any graph output"
    assert check_provenance(loaded, normalized) == []


def test_fused_nodes_share_their_operator(tmp_path):
    loaded = load(tmp_path, block())
    normalized = normalize(loaded, optimise_basic, tmp_path / "work")
    first = normalized.proto.graph.node[0]
    assert first.op_type == "Conv"
    assert normalized.nodes[1].canonical == normalized.nodes[2].canonical == (0,)
    assert check_provenance(loaded, normalized) == []


def tampered(normalized, **changes):
    nodes = list(normalized.nodes)
    for key, change in changes.items():
        index = int(key[1:])
        nodes[index] = replace(nodes[index], **change)
    return replace(normalized, nodes=tuple(nodes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n4": {"canonical": (0,)}}, "Relu_|relu: no original node stands behind it"),
        ({"n1": {"canonical": (3,)}, "n4": {"canonical": (0,)}}, "its nodes read"),
        ({"n1": {"canonical": (0, 3)}}, "relu: .*does not need node 1"),
        ({"n4": {"canonical": (1, 3)}}, "does not need node 4"),
        ({"n2": {"canonical": (1,)}}, r"node 2 should have operators \(1, 2\)"),
        ({"n4": {"canonical": (), "reason": "elided", "evidence": "e"}}, "node 4 is said to be elided"),
        ({"n4": {"canonical": (), "reason": "folded", "evidence": "e"}}, "node 4 is said to be folded"),
        ({"n3": {"reason": "folded"}}, "node 3 is said to be folded"),
        ({"n0": {"reason": "elided"}}, "node 0 is said to be elided"),
        ({"n3": {"evidence": "because"}}, "node 3 should have"),
        ({"n4": {"canonical": ()}}, "node 4 needs either operators or a reason"),
        ({"n4": {"reason": "elided"}}, "node 4 needs either operators or a reason"),
        ({"n4": {"canonical": (99,)}}, "operator that does not exist"),
        ({"n4": {"name": "other"}}, "entry 4 does not describe node 4"),
        ({"n4": {"index": 5}}, "entry 4 does not describe node 4"),
        ({"n0": {"canonical": (0,), "reason": None}}, "node 0|does not need node 0"),
    ],
)
def test_tampered_map_is_caught(traced, changes, says):
    loaded, normalized = traced
    violations = check_provenance(loaded, tampered(normalized, **changes))
    assert violations
    assert any(re.search(says, violation) for violation in violations), violations


def test_missing_entry_is_caught(traced):
    loaded, normalized = traced
    assert check_provenance(loaded, replace(normalized, nodes=normalized.nodes[:-1])) == [
        "the map has 6 entries: the original has 7 nodes"
    ]


def test_rewired_canonical_graph_is_caught(traced):
    loaded, normalized = traced
    proto = onnx.ModelProto()
    proto.CopyFrom(normalized.proto)
    proto.graph.node[3].input[0] = "x"
    assert check_provenance(loaded, replace(normalized, proto=proto))


def test_kernels_added_later_do_not_matter(traced):
    loaded, normalized = traced
    assert check_provenance(loaded, tampered(normalized, n1={"kernels": ("k",)})) == []


def test_merged_twins_both_stand_behind_the_survivor(tmp_path):
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="one"),
        helper.make_node("Exp", ["x"], ["b"], name="two"),
        helper.make_node("Neg", ["a"], ["p"]),
        helper.make_node("Abs", ["b"], ["q"]),
        helper.make_node("Add", ["p", "q"], ["y"]),
    ]
    loaded = load(tmp_path, model_of(nodes, [tensor("x", [3])], [tensor("y", None)]))
    normalized = normalize(loaded, optimise_basic, tmp_path / "work")
    operators = [node.op_type for node in normalized.proto.graph.node]
    assert operators.count("Exp") == 1
    assert normalized.nodes[0].canonical == normalized.nodes[1].canonical == (operators.index("Exp"),)
    assert check_provenance(loaded, normalized) == []


def test_transposes_moved_by_the_optimiser_stay_accounted_for(tmp_path):
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("ReduceMean", ["t"], ["m"], axes=[2]),
        helper.make_node("Sub", ["t", "m"], ["s"]),
        helper.make_node("Transpose", ["s"], ["y"], perm=[0, 2, 1]),
    ]
    loaded = load(tmp_path, model_of(nodes, [tensor("x", [2, 3, 4])], [tensor("y", None)]))
    normalized = normalize(loaded, optimise_basic, tmp_path / "work")
    assert all(node.canonical or node.reason for node in normalized.nodes)
    assert check_provenance(loaded, normalized) == []


def test_function_call_stands_behind_its_inlined_operators(tmp_path):
    body = [helper.make_node("Exp", ["a"], ["t"]), helper.make_node("Neg", ["t"], ["b"])]
    function = helper.make_function("own", "F", ["a"], ["b"], body, [helper.make_opsetid("", 13)])
    nodes = [helper.make_node("F", ["x"], ["f"], domain="own"), helper.make_node("Abs", ["f"], ["y"])]
    model = model_of(
        nodes,
        [tensor("x", [2])],
        [tensor("y", None)],
        opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid("own", 1)],
        functions=[function],
    )
    loaded = load(tmp_path, model)
    normalized = normalize(loaded, optimise_nothing, tmp_path / "work")
    assert [(node.op_type, node.canonical) for node in normalized.nodes] == [("F", (0, 1)), ("Abs", (2,))]
    assert check_provenance(loaded, normalized) == []
