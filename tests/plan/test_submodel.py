"""Groups as ONNX models of their own."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from plan_models import IMAGE, constant, model, node, residual_block

from mapper.plan.flops import uncounted
from mapper.plan.fusion import check_plan, conservative, epilogue_chains, group_taps, unfused
from mapper.plan.graph import operator_graph
from mapper.plan.submodel import group_model

NONE = frozenset()


def models_of(canonical, planner=epilogue_chains):
    graph = operator_graph(canonical)
    plan = planner(graph, NONE)
    return plan.groups, [group_model(canonical, graph, group) for group in plan.groups]


def names(values):
    return [value.name for value in values]


def test_arguments_are_activations_then_weights_with_local_names():
    canonical = residual_block()
    _, models = models_of(canonical)
    last = models[2]
    onnx.checker.check_model(last, full_check=True)
    assert names(last.graph.input) == ["in0", "in1", "w0"]
    assert names(last.graph.output) == ["out0"]
    assert names(last.graph.value_info) == ["t0", "t1"]
    assert [list(item.input) for item in last.graph.node] == [["in0", "w0"], ["t0", "in1"], ["t1"]]
    assert [(entry.domain, entry.version) for entry in last.opset_import] == [("", 17)]
    assert [dim.dim_value for dim in last.graph.value_info[0].type.tensor_type.shape.dim] == list(IMAGE)
    assert last.graph.node[0].attribute[0].name == "kernel_shape"


def test_equal_keys_give_equal_bytes():
    first, second = residual_block("left/"), residual_block("right/")
    second.graph.node[0].name = "named"
    second.graph.node[0].doc_string = "told"
    second.graph.node[0].attribute[0].doc_string = "told"
    second.graph.node[0].attribute.reverse()
    groups, models = models_of(first)
    others, others_models = models_of(second)
    assert [group.key for group in groups] == [group.key for group in others]
    assert [item.SerializeToString() for item in models] == [item.SerializeToString() for item in others_models]


def test_baked_constants_become_initializers_of_their_value_and_type():
    canonical = model(
        [node("Clip", "x low high", "a"), node("Reshape", "a s", "y")],
        {"x": (2, 3)},
        {"y": (6,)},
        [constant("low", float("-inf")), constant("high", 0.1), constant("s", [6], np.int64)],
    )
    _, (clip, reshape) = models_of(canonical, lambda graph, _: unfused(graph))
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in clip.graph.initializer}
    assert values["c0"] == -np.inf
    assert values["c1"] == np.float32(0.1)
    assert values["c1"].dtype == np.float32
    assert reshape.graph.initializer[0].data_type == TensorProto.INT64
    onnx.checker.check_model(reshape, full_check=True)


def test_absent_optional_input_and_unread_output_stay_absent():
    canonical = model(
        [node("Resize", "x", "a", mode="nearest"), node("MaxPool", "a", "y i", kernel_shape=[1, 1])],
        {"x": IMAGE},
        {"y": (1, 2, 6, 6)},
        [constant("scales", [1, 1, 2, 2])],
        infer=False,
    )
    canonical.graph.node[0].input.extend(["", "scales"])
    _, (resize, pool) = models_of(canonical, lambda graph, _: unfused(graph))
    assert list(resize.graph.node[0].input) == ["in0", "", "c0"]
    assert list(pool.graph.node[0].output) == ["out0"]
    onnx.checker.check_model(resize, full_check=True)


def test_only_the_domains_in_use_are_imported():
    canonical = model(
        [node("Odd", "x", "a", domain="acme"), node("Relu", "a", "y")],
        {"x": (2,)},
        {"y": (2,), "a": (2,)},
        domains=("acme", "idle"),
        infer=False,
    )
    _, (odd, relu) = models_of(canonical, lambda graph, _: unfused(graph))
    assert [entry.domain for entry in odd.opset_import] == ["", "acme"]
    assert [entry.domain for entry in relu.opset_import] == [""]


def test_group_computes_what_its_operators_compute():
    canonical = residual_block()
    groups, models = models_of(canonical)
    rng = np.random.default_rng(3)
    feeds = {value: rng.standard_normal(IMAGE).astype(np.float32) for value in groups[2].inputs}
    kernel = onnx.numpy_helper.to_array(canonical.graph.initializer[3])
    wanted = np.maximum(np.einsum("oi,nihw->nohw", kernel[:, :, 0, 0], feeds["b"]) + feeds["s"], 0)
    found = ReferenceEvaluator(models[2]).run(None, {"in0": feeds["b"], "in1": feeds["s"], "w0": kernel})[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def squeezenet(tmp_path_factory):
    """The light SqueezeNet of the onnx wheel with its constants folded."""
    source = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"
    target = tmp_path_factory.mktemp("canonical") / "squeezenet.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    return onnx.load(target)


def test_squeezenet_is_planned_and_cut_into_valid_models(squeezenet):
    graph = operator_graph(squeezenet)
    taps = group_taps(graph)
    plan = epilogue_chains(graph, taps)
    assert check_plan(graph, plan, taps) == []
    assert check_plan(graph, conservative(graph, taps), taps) == []
    assert uncounted(graph) == ()
    # 26 convolutions with their Relu, 3 poolings, 8 concatenations, 1 global pooling, 1 softmax
    assert len(plan.groups) == 39
    assert [group.family for group in plan.groups].count("Conv") == 26
    assert plan.groups[0].name == "conv3x3s2_3_64_111x111_relu"
    # 2 · 64·111·111 · 3·3·3, and the Relu's 64·111·111
    assert plan.groups[0].flops == 55 * 64 * 111 * 111
    by_key = {}
    for group in plan.groups:
        alone = group_model(squeezenet, graph, group)
        onnx.checker.check_model(alone, full_check=True)
        assert by_key.setdefault(group.key, alone.SerializeToString()) == alone.SerializeToString()
    assert len(by_key) < len(plan.groups)
