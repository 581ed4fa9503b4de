"""MetaSchedule in the worker: it proposes traces that can be replayed, compute what ONNX says, and are fast."""

import dataclasses

import onnx
import pytest
from small_choices import measured
from small_groups import RELU, RESIDUAL, case, conv, matmul

from mapper.measure import device
from mapper.measure.target import tvm_target
from mapper.templates.metaschedule import UNSCHEDULED, trace_choice
from mapper.worker.client import ChildFailureError
from mapper.worker.workers import TvmWorker

CONV = conv((1, 8, 10, 10), 16, (3, 3), pads=[1, 1, 1, 1], tail=[RELU])
CASES = {
    "convolution, then relu": CONV,
    "convolution, then residual": conv((1, 8, 7, 7), 12, (1, 1), tail=RESIDUAL, inputs={"r": (1, 12, 7, 7)}),
    "matrix product": matmul((12, 24), (24, 40)),
    "softmax": case([("Softmax", "x", "y", {"axis": -1})], {"x": (6, 33)}),
}


@pytest.fixture
def propose(kernels):
    """Give a function that asks for the next choices of a case."""

    def ask(one, tried=(), *, policy="nhwc", seed=3):
        kernels.define(one)
        return kernels.worker.propose_traces((one.spec.key, one.layouts(policy)), tried, seed)

    return ask


@pytest.mark.parametrize("name", CASES)
def test_proposed_kernels_compute_what_onnx_says(kernels, propose, name):
    one = CASES[name]
    proposed = propose(one)
    assert len(proposed) >= 4
    unscheduled = trace_choice(one.layouts(), UNSCHEDULED)
    assert kernels.wrong(one, [unscheduled, *proposed[:3]]) == []


def test_proposals_do_not_repeat_what_was_measured(propose):
    one = conv((1, 8, 6, 6), 16, (1, 1))
    first = propose(one)
    second = propose(one, [measured(choice, 1e-6 * (1 + index)) for index, choice in enumerate(first)])
    assert second
    assert not {choice.tile["trace"] for choice in first} & {choice.tile["trace"] for choice in second}


def test_a_later_process_proposes_the_same_first_and_takes_up_outcomes(kernels, propose, tmp_path):
    one = matmul((10, 24), (24, 36))
    first = propose(one, seed=5)
    outcomes = [measured(choice, 1e-6 * (1 + index), source="journal") for index, choice in enumerate(first)]
    broken = measured(trace_choice(one.layouts(), first[0].tile["trace"].replace("matmul", "elsewhere")), 1e-7)
    onnx.save_model(one.local_model, tmp_path / "model.onnx")
    later = TvmWorker(tmp_path, threads=2, target=tvm_target(device.describe_cpu(), 2))
    try:
        later.define(one.spec, tmp_path / "model.onnx")
        assert later.propose_traces((one.spec.key, one.layouts()), (), 5) == first
        # "nchw" leaves axes alone, as "row" does, and makes it another search, which has not proposed anything yet
        second = later.propose_traces((one.spec.key, ("nchw", "nchw")), [*outcomes, broken], 5)
    finally:
        later.close()
    assert second
    assert not {choice.tile["trace"] for choice in first} & {choice.tile["trace"] for choice in second}


def test_a_space_with_one_schedule_runs_dry(propose):
    one = case([("Neg", "x", "y", {})], {"x": (1,)})
    tried = []
    for _ in range(20):
        new = propose(one, tried)
        if not new:
            break
        tried += [measured(choice, 1e-6) for choice in new]
    assert not new


def test_a_trace_of_another_group_is_a_failure_that_says_why(kernels, propose):
    choice = dataclasses.replace(propose(CONV)[0], layouts=("row", "row"))
    other = matmul((3, 5), (5, 7))
    kernels.define(other)
    with pytest.raises(ChildFailureError) as caught:
        kernels.worker.build(other.spec.key, choice)
    assert caught.value.step == "lower"
