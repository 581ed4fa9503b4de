"""Kernels corrupted one at a time: their order, the groups that they become, and all five outcomes on a small model."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_groups import AVX2, conv

from mapper.config import ExploreRequest
from mapper.errors import BadInputError
from mapper.flows import mutating
from mapper.flows.corrupting import corrupted_group
from mapper.flows.mutating import find_schedule, spread, study_mutants
from mapper.flows.planning import Draft, make_spaces
from mapper.flows.prepare import prepare
from mapper.plan import fusion
from mapper.plan.layout import group_layouts, tensor_layouts
from mapper.plan.spec import group_spec
from mapper.records import SCHEMA_VERSION, ScheduleFile
from mapper.report.schedule import write_schedule
from mapper.validate.mutants import Fault, WeightChange, faults
from mapper.worker.reference import ReferenceWorker


class Told:
    def __getattr__(self, name):
        return lambda *_: None


def test_kinds_take_turns_and_kernels_do_within_a_kind():
    pairs = [("a", "tap"), ("a", "tap"), ("b", "tap"), ("a", "bias"), ("b", "bias"), ("c", "pads")]
    order = spread(pairs, np.random.default_rng(0))
    assert sorted(order) == [0, 1, 2, 3, 4, 5]
    assert {pairs[index][1] for index in order[:3]} == {"tap", "bias", "pads"}
    assert {pairs[index][0] for index in order[:3]} == {"a", "b", "c"}


def test_order_is_that_of_the_seed():
    pairs = [(str(index % 7), str(index % 3)) for index in range(40)]
    first, again, other = (spread(pairs, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == again != other


RESIDUAL = conv((1, 4, 5, 5), 4, (3, 3), tail=[("Add", "t r", "y", {})], inputs={"r": (1, 4, 5, 5)}, pads=[1, 1, 1, 1])


def fault_of(case, note):
    return next(fault for fault in faults(case.local_model, case.spec.weights) if note in fault.note)


def test_a_corrupted_group_keeps_the_names_of_the_arguments_that_are_left():
    _, group, spec = corrupted_group(fault_of(RESIDUAL, "in1 of Add ignored").model, RESIDUAL.spec)
    assert (group.inputs, group.weights, group.outputs) == (("in0",), ("w0", "w1"), ("out0",))
    assert spec.key == group.key != RESIDUAL.spec.key


def test_a_mask_becomes_a_weight_of_the_corrupted_group():
    _, group, spec = corrupted_group(fault_of(RESIDUAL, "first row").model, RESIDUAL.spec)
    assert group.weights == ("w0", "w1", "mask")
    assert spec.tensors["w2"].shape == (1, 1, 5, 1)


def test_a_group_that_falls_apart_is_refused():
    model = onnx.ModelProto()
    model.CopyFrom(RESIDUAL.local_model)
    model.graph.node[1].input[0] = "in0"
    with pytest.raises(BadInputError, match=r"outputs \[.*\], expected \[.out0.\]|expected connected operators"):
        corrupted_group(model, RESIDUAL.spec)


def test_a_schedule_is_found_by_model_or_in_the_folder_itself(tmp_path):
    with pytest.raises(BadInputError, match=r"expected tiny/schedule.json or schedule.json"):
        find_schedule(tmp_path, "tiny")
    (tmp_path / "schedule.json").touch()
    assert find_schedule(tmp_path, "tiny") == tmp_path / "schedule.json"
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "schedule.json").touch()
    assert find_schedule(tmp_path, "tiny") == tmp_path / "tiny" / "schedule.json"


# --- a whole study ---------------------------------------------------------------------------------------------------


def small_model():
    """Two outputs: a convolution that a product with zeros hides, and a Relu that is seen."""
    rng = np.random.default_rng(3)
    weights = {"w": rng.standard_normal((4, 4, 3, 3)) / 6, "zeros": np.zeros((1, 4, 1, 1))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["c"], ["s"]),  # without it the product would be folded into the convolution
        helper.make_node("Mul", ["s", "zeros"], ["y"]),
        helper.make_node("Relu", ["x"], ["r"]),
    ]
    image = [1, 4, 6, 6]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, image) for name in ("y", "r")],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def request_and_schedule(tmp_path, monkeypatch):
    """The small model and a schedule file that maps each of its operators by the first choice of its template."""
    monkeypatch.setattr("mapper.flows.run.measured_machine", lambda *_: (None, AVX2))
    onnx.save_model(small_model(), tmp_path / "small.onnx")
    request = ExploreRequest(model=str(tmp_path / "small.onnx"), cache_dir=tmp_path, threads=2)
    (tmp_path / "run").mkdir()
    reference = ReferenceWorker(tmp_path / "run")
    prepared = prepare(request, reference, tmp_path / "run")
    reference.close()
    plan = fusion.unfused(prepared.graph)
    by_tensor = tensor_layouts(prepared.graph, plan, "nchw")
    layouts = tuple(group_layouts(prepared.graph, group, by_tensor) for group in plan.groups)
    draft = Draft(plan=plan, policy="nchw", layouts=layouts, is_searched=False)
    spaces = make_spaces([draft], {group.key: group_spec(prepared.graph, group) for group in plan.groups}, AVX2)
    schedule = ScheduleFile(
        schema_version=SCHEMA_VERSION,
        model_sha256=prepared.model.source.sha256,
        fusion_plan="unfused",
        partition=tuple(group.operators for group in plan.groups),
        layout="nchw",
        target="",
        compiler="",
        choices={key: space.ranked[0][0] for key, space in spaces.items()},
    )
    write_schedule(schedule, tmp_path / "schedule.json")
    return request, tmp_path / "schedule.json"


def chosen_faults(model, weights):
    """One fault for each outcome, by the operator of the group. No input of the checks reaches 12."""
    (node,) = model.graph.node
    known = faults(model, weights)
    if node.op_type == "Conv":
        same = WeightChange(weight="w0", action="swap", axis=0, positions=(1, 1))
        return [known[0], Fault(kind="channels", note="a channel swapped with itself", weights=(same,))]
    if node.op_type == "Mul":
        return [next(fault for fault in known if fault.note == "Mul done as Add")]
    if node.op_type == "Sigmoid":
        return []
    bounded, broken = onnx.ModelProto(), onnx.ModelProto()
    bounded.CopyFrom(model)
    del bounded.graph.node[:]
    for op, ins, out in (("Relu", "in0", "a"), ("Sub", "a bound", "b"), ("Relu", "b", "c"), ("Sub", "a c", "out0")):
        bounded.graph.node.append(helper.make_node(op, ins.split(), [out]))
    bounded.graph.value_info.extend(helper.make_tensor_value_info(t, TensorProto.FLOAT, [1, 4, 6, 6]) for t in "abc")
    bounded.graph.initializer.append(numpy_helper.from_array(np.array(12, np.float32), "bound"))
    broken.CopyFrom(model)
    broken.graph.node[0].op_type = "NoSuchOperator"
    return [
        Fault(kind="epilogue", note="at most 12", model=bounded),
        Fault(kind="epilogue", note="unknown operator", model=broken),
    ]


def test_every_outcome_is_told_apart(request_and_schedule, monkeypatch):
    monkeypatch.setattr(mutating, "faults", chosen_faults)
    study = study_mutants(*request_and_schedule, 20, 0, Told())
    assert (study.model, study.mapping, study.kernels) == ("small", "unfused/nchw", 4)
    assert {mutant.note: mutant.outcome for mutant in study.mutants} == {
        "tap (0, 0) of w0 skipped": "alone",
        "a channel swapped with itself": "no-op",
        "Mul done as Add": "model",
        "at most 12": "missed",
        "unknown operator": "not made",
    }
    assert len(study.tested) == 3
    assert [mutant.reason != "" for mutant in study.of("not made")] == [True]


def test_a_schedule_of_another_model_is_refused(request_and_schedule):
    request, schedule = request_and_schedule
    text = schedule.read_text()
    digest = text[text.index('"model_sha256": "') + 17 :][:64]
    schedule.write_text(text.replace(digest, "0" * 64))
    with pytest.raises(BadInputError, match="made for another model"):
        study_mutants(request, schedule, 1, 0, Told())


def test_a_schedule_without_a_choice_for_a_kernel_is_refused(request_and_schedule):
    request, schedule = request_and_schedule
    text = schedule.read_text()
    key = text[text.index('"choices": {') :].split('"')[3]
    schedule.write_text(text.replace(key, "0" * 16 + key[16:]))
    with pytest.raises(BadInputError, match="expected a choice for"):
        study_mutants(request, schedule, 1, 0, Told())
