"""Kernels composed to a whole model compute what the model does, and a corrupted one is seen."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from small_groups import AVX2, case, constant, conv, matmul

from mapper import templates
from mapper.plan import fusion
from mapper.plan.layout import group_layouts, tensor_layouts
from mapper.plan.spec import group_spec
from mapper.plan.submodel import group_model
from mapper.validate.numerics import compare
from mapper.worker.client import ChildFailureError
from mapper.worker.exchange import write_feeds

# Operators: 0 Conv, 1 Relu, 2 Conv, 3 Add, 4 Relu, 5 MaxPool, 6 Conv (depthwise), 7 GlobalAveragePool, 8 Flatten,
# 9 Gemm, 10 Softmax.
NETWORK = case(
    [
        ("Conv", "x w1 b1", "a", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ("Relu", "a", "b", {}),
        ("Conv", "b w2", "c", {"kernel_shape": [1, 1]}),
        ("Add", "c b", "d", {}),
        ("Relu", "d", "e", {}),
        ("MaxPool", "e", "f", {"kernel_shape": [3, 3], "strides": [2, 2]}),
        ("Conv", "f w3", "g", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "group": 10}),
        ("GlobalAveragePool", "g", "h", {}),
        ("Flatten", "h", "i", {}),
        ("Gemm", "i w4 b4", "j", {"transB": 1}),
        ("Softmax", "j", "y", {}),
    ],
    {"x": (1, 3, 9, 9)},
    [
        ("w1", (10, 3, 3, 3)),
        ("b1", (10,)),
        ("w2", (10, 10, 1, 1)),
        ("w3", (10, 1, 3, 3)),
        ("w4", (6, 10)),
        ("b4", (6,)),
    ],
)
PLANS = {
    "unfused": fusion.unfused(NETWORK.graph),
    "epilogue chains": fusion.epilogue_chains(NETWORK.graph, frozenset()),
    "by hand": fusion.from_partition(NETWORK.graph, [[0, 1], [2, 3, 4], [5], [6], [7, 8], [9], [10]], "by hand"),
}
FEED = np.random.default_rng(3).standard_normal((1, 3, 9, 9)).astype(np.float32)


class Model:
    """A model composed by a worker from the first choice of each group of a plan."""

    def __init__(self, kernels, name, one, plan, feeds, policy="nhwc"):
        self.kernels, self.name, self.plan = kernels, name, plan
        self.path = kernels.folder / f"{name}.onnx"
        self.feeds = kernels.folder / f"{name}.npz"
        onnx.save_model(one.model, self.path)
        kernels.worker.open_model(self.path)
        by_tensor = tensor_layouts(one.graph, plan, policy)
        self.choices = []
        for group in plan.groups:
            spec = group_spec(one.graph, group)
            path = kernels.folder / f"{name}_{group.key}.onnx"
            onnx.save_model(group_model(one.model, one.graph, group), path)
            kernels.worker.define(spec, path)
            layouts = group_layouts(one.graph, group, by_tensor)
            self.choices.append(templates.choices(spec, AVX2, layouts)[0])
        write_feeds(self.feeds, feeds)
        self.sizes = kernels.worker.compose(name, plan, self.choices, (one.graph.inputs, one.graph.outputs), self.feeds)

    def run(self):
        return self.kernels.worker.run_model(self.name)


@pytest.mark.parametrize("policy", ["nhwc", "nchw"])
@pytest.mark.parametrize("label", PLANS)
def test_a_composed_model_computes_what_the_model_does(kernels, label, policy):
    name = f"net_{label.replace(' ', '_')}_{policy}"
    found = Model(kernels, name, NETWORK, PLANS[label], [FEED], policy).run()
    wanted = ReferenceEvaluator(NETWORK.model).run(None, {"x": FEED})
    assert len(found) == 1
    assert compare("y", found[0], wanted[0], scope="kernel").note == ""


def test_outputs_come_in_order_and_inner_tensors_can_be_seen(kernels):
    one = case(
        [("Relu", "x", "a", {}), ("Neg", "a", "y", {}), ("Exp", "z", "b", {})],
        {"z": (2, 3), "x": (4,)},
        outputs=("b", "y", "a"),
    )
    z, x = np.full((2, 3), 1.0, np.float32), np.array([-1, 2, -3, 4], np.float32)
    found = Model(kernels, "ordered", one, fusion.unfused(one.graph), [z, x]).run()
    np.testing.assert_allclose(found[0], np.full((2, 3), np.e), rtol=1e-6)
    assert found[1].tolist() == [0, -2, 0, -4]
    assert found[2].tolist() == [0, 2, 0, 4]


def test_one_weight_of_two_readers_is_held_once(kernels):
    one = case(
        [("MatMul", "x w", "a", {}), ("Relu", "a", "b", {}), ("MatMul", "b w", "y", {})], {"x": (8, 8)}, [("w", (8, 8))]
    )
    x = np.eye(8, dtype=np.float32)
    model = Model(kernels, "shared", one, fusion.unfused(one.graph), [x])
    w = onnx.numpy_helper.to_array(one.model.graph.initializer[0])
    np.testing.assert_allclose(model.run()[0], np.maximum(w, 0) @ w, rtol=1e-5, atol=1e-6)
    assert model.sizes["weights_b"] == 8 * 8 * 4


def test_another_model_with_weights_of_the_same_name_brings_its_own(kernels):
    for value in (1.0, 2.0):
        one = case([("MatMul", "x w", "y", {})], {"x": (1, 8)}, [constant("w", value * np.eye(8))])
        model = Model(kernels, f"eye{value:.0f}", one, fusion.unfused(one.graph), [np.ones((1, 8), np.float32)])
        assert model.run()[0].tolist() == [[value] * 8]


def test_a_number_fed_to_the_model_arrives_as_a_number(kernels):
    one = case([("Mul", "x s", "y", {})], {"x": (3,), "s": ()})
    model = Model(kernels, "number", one, fusion.unfused(one.graph), [np.ones(3, np.float32), np.float32(2.5)])
    assert model.run()[0].tolist() == [2.5, 2.5, 2.5]


def test_every_call_is_timed_inside_the_model(kernels):
    Model(kernels, "instrumented", NETWORK, PLANS["by hand"], [FEED])
    samples, overhead_s = kernels.worker.run_instrumented("instrumented", 3)
    assert [len(run) for run in samples] == [7, 7, 7]
    assert min(min(run) for run in samples) > 0
    assert overhead_s >= 0


def test_models_timed_in_turn_give_one_sample_a_round(kernels):
    for name in ("first", "second"):
        Model(kernels, name, NETWORK, PLANS["by hand"], [FEED])
    samples = kernels.worker.alternate(["first", "second"], 4, 0)
    assert [len(row) for row in samples] == [4, 4]
    assert min(map(min, samples)) > 0


KINDS = ("tap", "swap", "scale", "border")
FAMILIES = {
    "conv2d": conv((1, 6, 7, 7), 20, (3, 3), pads=[1, 1, 1, 1]),
    "depthwise": conv((1, 20, 7, 7), 20, (3, 3), group=20, pads=[1, 1, 1, 1]),
    "matmul": matmul((6, 16), (16, 40)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_corrupted_kernel_is_seen_alone(kernels, few, name, kind):
    one = FAMILIES[name]
    kernels.define(one)
    (choice,) = few(one, count=1)
    values = one.values()
    wanted = one.expected(values)
    for weight in one.spec.weights:
        sound = kernels.worker.run_kernel(one.spec.key, choice, values)
        assert compare("y", sound["out0"], wanted["out0"], scope="kernel").passed
        wrong = kernels.worker.run_kernel(one.spec.key, choice, values, (weight, kind))
        assert not compare("y", wrong["out0"], wanted["out0"], scope="kernel").passed, weight


@pytest.mark.parametrize("kind", KINDS)
def test_one_corrupted_call_is_seen_in_the_model_and_leaves_it_sound(kernels, kind):
    one = case(
        [("MatMul", "x w", "a", {}), ("Relu", "a", "b", {}), ("MatMul", "b w", "y", {})], {"x": (8, 8)}, [("w", (8, 8))]
    )
    x = np.random.default_rng(2).standard_normal((8, 8)).astype(np.float32)
    model = Model(kernels, f"twice_{kind}", one, fusion.unfused(one.graph), [x])
    w = onnx.numpy_helper.to_array(one.model.graph.initializer[0])
    spoiled = {
        "tap": w * (np.arange(8) > 0)[:, None],  # the first row of a block of columns is one step of the sum
        "swap": w[:, [1, 0, *range(2, 8)]],
        "scale": (w * 1.1).astype(np.float32),
        "border": w * 0,  # eight columns are one block, and that is the last
    }[kind]
    first, second = (kernels.worker.run_mutant(model.name, (call, 0), kind, model.feeds)[0] for call in (0, 2))
    np.testing.assert_allclose(first, np.maximum(x @ spoiled, 0) @ w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(second, np.maximum(x @ w, 0) @ spoiled, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.run()[0], np.maximum(x @ w, 0) @ w, rtol=1e-4, atol=1e-5)


def test_a_corruption_that_changes_nothing_is_no_mutant(kernels):
    one = case([("MatMul", "x w", "y", {})], {"x": (4, 8)}, [constant("w", np.zeros((8, 8)))])
    model = Model(kernels, "zeros", one, fusion.unfused(one.graph), [np.ones((4, 8), np.float32)])
    assert kernels.worker.run_mutant("zeros", (0, 0), "scale", model.feeds) is None


def test_an_unknown_corruption_is_refused(kernels):
    model = Model(kernels, "unknown", NETWORK, PLANS["by hand"], [FEED])
    with pytest.raises(ChildFailureError, match="unknown corruption 'melt': expected one of tap, swap"):
        kernels.worker.run_mutant("unknown", (0, 0), "melt", model.feeds)


def test_kernels_that_disagree_on_a_layout_are_not_composed(kernels):
    one = case([("Relu", "x", "a", {}), ("Neg", "a", "y", {})], {"x": (1, 2, 3, 4)})
    plan = fusion.unfused(one.graph)
    model = Model(kernels, "agreed", one, plan, [np.zeros((1, 2, 3, 4), np.float32)])
    choices = [
        templates.by_name("generic").choices(kernels.worker.specs[group.key], AVX2, layouts)[0]
        for group, layouts in zip(plan.groups, (("nchw", "nhwc"), ("nchw", "nchw")), strict=True)
    ]
    with pytest.raises(ChildFailureError, match=r"\(1, 3, 4, 2\).* where it is made and .*\(1, 2, 3, 4\)"):
        kernels.worker.compose("torn", plan, choices, (one.graph.inputs, one.graph.outputs), model.feeds)


def test_tvm_groups_a_convolution_with_what_follows(kernels):
    path = kernels.folder / "network.onnx"
    onnx.save_model(NETWORK.model, path)
    partition = kernels.worker.default_partition(path)
    assert sorted(index for members in partition for index in members) == list(range(11))
    owner = {index: position for position, members in enumerate(partition) for index in members}
    assert owner[0] == owner[1]
    assert owner[2] == owner[3] == owner[4]
    assert len({owner[index] for index in (0, 2, 5, 6, 9)}) == 5
    plan = fusion.from_partition(NETWORK.graph, partition, "tvm-default")
    found = Model(kernels, "tvm_default", NETWORK, plan, [FEED]).run()
    wanted = ReferenceEvaluator(NETWORK.model).run(None, {"x": FEED})
    assert compare("y", found[0], wanted[0], scope="kernel").note == ""


def test_a_kernel_is_inspected_to_the_byte(kernels, few, tmp_path):
    one = conv((1, 8, 8, 8), 16, (3, 3), bias=False, pads=[1, 1, 1, 1])
    kernels.define(one)
    root = next(choice for choice in few(one, count=99) if choice.tile["stage"] == 2)
    found = kernels.worker.inspect(one.spec.key, root, tmp_path, "k")
    assert "parallel" in found.loop_nest
    assert "vec 8" in found.loop_nest
    # the register tile alone is rw·rh·vb/8 multiply-adds of at least four bytes
    assert 4 * root.tile["rw"] * root.tile["rh"] * root.tile["vb"] // 8 < found.code_b < 200_000
    assert "T.prim_func" in (tmp_path / "k.tir").read_text()
    assert (tmp_path / "k.s").stat().st_size > 0
    # the padded image, wider where tiles hang over, and at least one register tile of sums
    width = -(-8 // root.tile["rw"]) * root.tile["rw"] + 2
    height = -(-8 // root.tile["rh"]) * root.tile["rh"] + 2
    padded_b, tile_b = height * width * 8 * 4, root.tile["rw"] * root.tile["rh"] * root.tile["vb"] * 4
    assert found.workspace_b == padded_b + tile_b
