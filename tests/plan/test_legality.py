"""A tampered plan fails its check; any plan that we make passes it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from plan_models import IMAGE, model, node, residual_block, weight

from mapper.plan.chains import is_elementwise
from mapper.plan.fusion import conservative, epilogue_chains, from_partition, group_taps, unfused
from mapper.plan.graph import operator_graph
from mapper.plan.legality import check_plan
from mapper.plan.submodel import group_model

NONE = frozenset()


@pytest.fixture(scope="module")
def graph():
    return operator_graph(residual_block())


@pytest.fixture(scope="module")
def plan(graph):
    return epilogue_chains(graph, NONE)  # groups [0, 1], [2], [3, 4, 5]


def tampered(plan, position, **changes):
    groups = list(plan.groups)
    groups[position] = replace(groups[position], **changes)
    return replace(plan, groups=tuple(groups))


@pytest.mark.parametrize(
    ("position", "changes", "message"),
    [
        (0, {"operators": (0,)}, "operator 1 (Relu) is in no group"),
        (0, {"operators": (0, 1, 2)}, "operator 2 is in groups 0 and 1"),
        (0, {"operators": (0, 1, 9)}, "operator 9 does not exist"),
        (1, {"operators": ()}, "holds no operator"),
        (2, {"inputs": ("s", "b")}, "inputs says ('s', 'b'), the graph says ('b', 's')"),
        (2, {"weights": ()}, "weights says ()"),
        (2, {"outputs": ("c",)}, "outputs says ('c',)"),
        (2, {"key": "0" * 16}, "key says '0000000000000000'"),
        (2, {"flops": 1}, "flops says 1, the graph says 108"),
        (2, {"bytes_compulsory": 1}, "bytes_compulsory says 1, the graph says 232"),
        (2, {"anchor": 4}, "anchor says 4"),
        (1, {"name": "conv3x3_2_2_3x3_relu"}, "name 'conv3x3_2_2_3x3_relu' stands for keys"),
    ],
)
def test_tampered_group_is_found(graph, plan, position, changes, message):
    problems = check_plan(graph, tampered(plan, position, **changes))
    assert any(message in problem for problem in problems), problems


def test_wrong_order_is_found(graph, plan):
    first, second, third = plan.groups
    assert check_plan(graph, replace(plan, groups=(second, first, third))) == []
    problems = check_plan(graph, replace(plan, groups=(third, first, second)))
    assert len(problems) == 2
    assert "runs before group 1" in problems[0]


def test_swapped_operators_are_found(graph, plan):
    problems = check_plan(graph, tampered(tampered(plan, 1, operators=(1,)), 0, operators=(0, 2)))
    assert any("operators [0, 2] are not connected" in problem for problem in problems)


def test_circle_is_found():
    nodes = [node("Relu", "x", "a"), node("Neg", "a", "b"), node("Add", "a b", "y")]
    graph = operator_graph(model(nodes, {"x": (2,)}, {"y": (2,)}))
    whole = from_partition(graph, [[0, 1, 2]], "whole").groups[0]
    middle = from_partition(graph, [[0], [1], [2]], "apart").groups[1]
    plan = replace(unfused(graph), groups=(replace(whole, operators=(0, 2)), middle))
    assert any("in a circle" in problem for problem in check_plan(graph, plan))


def test_hidden_boundary_is_found(graph, plan):
    problems = check_plan(graph, plan, frozenset({"d"}))
    assert any("outputs says ('y',), the graph says ('d', 'y')" in problem for problem in problems)


UNARY = ("Relu", "Sigmoid", "Conv", "MaxPool", "Transpose", "Softmax", "GlobalAveragePool")
BINARY = ("Add", "Mul")


@st.composite
def random_models(draw):
    """Draw a graph of up to 14 operators over images, some of them shrunk to 1×1, with one to three outputs."""
    shapes = {"x": IMAGE}
    nodes = []
    for index in range(draw(st.integers(1, 14))):
        op_type = draw(st.sampled_from(UNARY + BINARY))
        sources = [draw(st.sampled_from(sorted(shapes))) for _ in range(1 + (op_type in BINARY))]
        name = f"t{index}"
        shapes[name] = tuple(np.broadcast_shapes(*(shapes[source] for source in sources)))
        attributes = {"Conv": {"kernel_shape": [1, 1]}, "MaxPool": {"kernel_shape": [1, 1]}}.get(op_type, {})
        if op_type == "Transpose":
            attributes = {"perm": [0, 1, 3, 2]}
        if op_type == "GlobalAveragePool":
            shapes[name] = (1, 2, 1, 1)
        inputs = " ".join([*sources, *(["w"] if op_type == "Conv" else [])])
        nodes.append(node(op_type, inputs, name, **attributes))
    made = sorted(set(shapes) - {"x"})
    read = {name for item in nodes for name in item.input}
    outputs = {name for name in made if name not in read} | set(draw(st.lists(st.sampled_from(made), max_size=1)))
    boundaries = frozenset(draw(st.lists(st.sampled_from(made), max_size=2)))
    built = model(nodes, {"x": IMAGE}, {name: shapes[name] for name in sorted(outputs)}, [weight("w", (2, 2, 1, 1))])
    return built, boundaries


@settings(max_examples=60, deadline=None, derandomize=True)
@given(random_models())
def test_every_plan_of_ours_is_legal(drawn):
    built, boundaries = drawn
    graph = operator_graph(built)
    boundaries |= group_taps(graph)
    for planner in (epilogue_chains, conservative):
        plan = planner(graph, boundaries)
        assert check_plan(graph, plan, boundaries) == []
        assert sorted(index for group in plan.groups for index in group.operators) == list(range(len(graph.operators)))
        for group in plan.groups:
            anchors = [index for index in group.operators if not is_elementwise(graph.operators[index])]
            assert len(group.outputs) == 1
            assert len(anchors) <= 1
        again = from_partition(graph, [group.operators for group in reversed(plan.groups)], plan.label, boundaries)
        assert again.groups == plan.groups
    assert check_plan(graph, unfused(graph), boundaries) == []


@settings(max_examples=15, deadline=None, derandomize=True)
@given(random_models())
def test_groups_run_one_after_the_other_compute_the_model(drawn):
    built, boundaries = drawn
    graph = operator_graph(built)
    feed = np.arange(18, dtype=np.float32).reshape(IMAGE) / 9 - 1
    names = [value.name for value in built.graph.output]
    wanted = dict(zip(names, ReferenceEvaluator(built).run(None, {"x": feed}), strict=True))
    weights = {"w": ReferenceEvaluator(built).rt_inits_["w"]}
    values = {"x": feed, **weights}
    for group in epilogue_chains(graph, boundaries).groups:
        alone = group_model(built, graph, group)
        feeds = {
            value.name: values[name]
            for value, name in zip(alone.graph.input, (*group.inputs, *group.weights), strict=True)
        }
        values.update(zip(group.outputs, ReferenceEvaluator(alone).run(None, feeds), strict=True))
    for name in names:
        np.testing.assert_array_equal(values[name], wanted[name])
    assert boundaries <= set(values)
