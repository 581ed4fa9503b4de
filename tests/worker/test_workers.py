"""The TVM worker survives bad candidates, crashes and hangs; the reference answers beside it."""

import dataclasses
import os
import platform
import signal

import numpy as np
import onnx
import pytest
from small_groups import AVX2, conv, matmul

from mapper import templates
from mapper.keys import choice_key
from mapper.worker import workers
from mapper.worker.client import ChildFailureError
from mapper.worker.exchange import write_feeds
from mapper.worker.reference import ReferenceWorker
from mapper.worker.workers import Conditions, TvmWorker

BASELINE = '{"kind": "llvm", "num-cores": 2}'
CONV = conv((1, 4, 6, 6), 8, (3, 3), pads=[1, 1, 1, 1])
PRODUCT = matmul((4, 8), (8, 16))
CONV_ROWS = 6
CONDITIONS = Conditions(seed=0, flops_per_s=1e11)


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker")
    made = TvmWorker(folder, threads=2, target=BASELINE)
    for one in (CONV, PRODUCT):
        path = folder / f"{one.spec.key}.onnx"
        onnx.save_model(one.local_model, path)
        made.define(one.spec, path)
    yield made
    made.close()


def first_choice(one):
    template = templates.template_for(one.spec)
    return template.choices(one.spec, AVX2, one.layouts())[0]


def assert_works(worker, one):
    values = one.values()
    found = worker.run_kernel(one.spec.key, first_choice(one), values)
    np.testing.assert_allclose(found["out0"], one.expected(values)["out0"], rtol=1e-4, atol=1e-5)


def kill(worker):
    child = worker._child
    os.kill(child.pid, signal.SIGKILL)
    return child.pid


def test_a_kernel_is_built_timed_and_run(worker):
    choice = first_choice(CONV)
    candidate = worker.evaluate(CONV.spec.key, choice, 1e-6, CONDITIONS, None)
    assert (candidate.failure, candidate.choice, candidate.choice_key) == (None, choice, choice_key(choice))
    assert (candidate.group, candidate.predicted_s, candidate.source) == (CONV.spec.key, 1e-6, "measured")
    assert len(candidate.samples_s) >= 5
    assert min(candidate.samples_s) <= candidate.time_s <= max(candidate.samples_s)
    assert min(candidate.samples_s) > 0
    assert_works(worker, CONV)


def test_a_kernel_beside_itself_takes_the_time_that_it_is_said_to_take(worker):
    choice = first_choice(CONV)
    known = worker.evaluate(CONV.spec.key, choice, None, CONDITIONS, None)
    candidate = worker.evaluate(CONV.spec.key, choice, None, CONDITIONS, dataclasses.replace(known, time_s=123.0))
    assert min(candidate.samples_s) <= 123.0 <= max(candidate.samples_s)  # equal binaries: the ratio is about 1


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="looks for an x86 instruction")
def test_the_threads_claim_the_tasks_of_a_long_loop(worker, tmp_path):
    template, layouts = templates.template_for(CONV.spec), CONV.layouts()
    for tasks in (2, 6):
        choices = template.choices(CONV.spec, AVX2, layouts)
        one = next(c for c in choices if CONV_ROWS // (c.tile["rh"] * c.tile["th"]) == tasks and c.tile["stage"] == 1)
        inspection = worker.inspect(CONV.spec.key, one, tmp_path, f"tasks{tasks}")
        assert inspection.loop_nest.startswith(f"parallel {tasks} ")
        assert ("xadd" in (tmp_path / f"tasks{tasks}.s").read_text()) == (tasks > 2), tasks


def test_building_twice_gives_the_same_code(worker):
    one = worker.build(CONV.spec.key, first_choice(CONV))
    worker.forget(CONV.spec.key, [first_choice(CONV)])
    assert worker.build(CONV.spec.key, first_choice(CONV)) == one
    assert worker.build(PRODUCT.spec.key, first_choice(PRODUCT)) != one


def test_versions_name_the_compiler(worker):
    assert worker.versions["tvm"].startswith("0.")
    assert int(worker.versions["llvm"]) > 10


def test_an_illegal_tile_becomes_a_failure_and_the_next_works(worker):
    good = first_choice(CONV)
    bad = dataclasses.replace(good, tile={**good.tile, "th": 5})
    candidate = worker.evaluate(CONV.spec.key, bad, None, CONDITIONS, None)
    assert candidate.time_s is None
    assert candidate.samples_s == ()
    assert candidate.failure.step == "lower"
    assert candidate.failure.subject == f"{CONV.spec.key}/{choice_key(bad)}"
    assert "th = 5 must divide" in candidate.failure.reason
    assert worker.evaluate(CONV.spec.key, good, None, CONDITIONS, None).failure is None


def test_an_unknown_template_becomes_a_failure(worker):
    bad = dataclasses.replace(first_choice(CONV), template="loom")
    failure = worker.evaluate(CONV.spec.key, bad, None, CONDITIONS, None).failure
    assert "unknown template 'loom'" in failure.reason


def test_a_wrong_number_of_layouts_becomes_a_failure(worker):
    bad = dataclasses.replace(first_choice(CONV), layouts=("nhwc",))
    failure = worker.evaluate(CONV.spec.key, bad, None, CONDITIONS, None).failure
    assert (failure.step, failure.reason) == ("lower", "1 layouts for 2 activation arguments")


def test_a_killed_child_is_replaced_by_one_that_knows_the_groups(worker):
    assert_works(worker, CONV)
    deaths, pid = worker.deaths, kill(worker)
    candidate = worker.evaluate(PRODUCT.spec.key, first_choice(PRODUCT), None, CONDITIONS, None)
    assert candidate.failure.step == "crash"
    assert "SIGKILL" in candidate.failure.reason
    assert worker.deaths == deaths + 1
    assert worker._child.pid != pid
    assert_works(worker, CONV)  # built before the crash, built again after it
    assert_works(worker, PRODUCT)


def test_a_child_that_takes_too_long_is_replaced(worker, monkeypatch):
    assert_works(worker, CONV)
    deaths = worker.deaths
    os.kill(worker._child.pid, signal.SIGSTOP)
    monkeypatch.setattr(workers, "RUN_TIMEOUT_S", 0.2)
    candidate = worker.evaluate(CONV.spec.key, first_choice(CONV), None, CONDITIONS, None)
    assert candidate.failure.step == "timeout"
    assert worker.deaths == deaths + 1
    monkeypatch.undo()
    assert_works(worker, CONV)


def test_a_forgotten_kernel_is_built_again_when_asked_for(worker):
    worker.build(CONV.spec.key, first_choice(CONV))
    worker.forget(CONV.spec.key, [first_choice(CONV)])
    worker.forget(CONV.spec.key, [first_choice(CONV)])
    assert_works(worker, CONV)


def test_no_arrays_are_left_behind(worker):
    assert_works(worker, CONV)
    with pytest.raises(ChildFailureError, match="KeyError"):
        worker.run_kernel(CONV.spec.key, first_choice(CONV), {"in0": CONV.values()["in0"]})  # no weights
    left = [path.name for path in worker._folder.iterdir() if path.suffix == ".npz"]
    assert left == []


def test_an_unknown_target_is_refused(tmp_path):
    with pytest.raises(ChildFailureError, match="target abacus: ") as caught:
        TvmWorker(tmp_path, threads=1, target="abacus")
    assert (caught.value.step, caught.value.is_dead) == ("build", False)


def test_probes_count_their_work(worker):
    work, samples = worker.probe("flops", dtype="float32", threads=1, repeats=2)
    assert work > 0
    assert len(samples) == 2
    work, samples = worker.probe("bandwidth", size_b=1 << 16, threads=2, repeats=2)
    assert work > 0
    assert work % (1 << 16) == 0  # whole passes over the working set
    assert len(samples) == 2


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    made = ReferenceWorker(tmp_path_factory.mktemp("reference"))
    yield made
    made.close()


def test_the_reference_runs_a_model(reference, tmp_path):
    path, values = tmp_path / "conv.onnx", CONV.values()
    onnx.save_model(CONV.local_model, path)
    found = reference.run(path, list(values.values()))
    np.testing.assert_allclose(found[0], CONV.expected(values)["out0"], rtol=1e-4, atol=1e-5)


def test_the_reference_refuses_what_is_no_model(reference, tmp_path):
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(ChildFailureError, match="onnxruntime refuses the model: ") as caught:
        reference.run(tmp_path / "text.onnx", [])
    assert (caught.value.step, caught.value.is_dead) == ("run", False)
    assert reference.version().count(".") == 2


def test_the_reference_is_timed_run_by_run(reference, tmp_path):
    onnx.save_model(CONV.local_model, tmp_path / "conv.onnx")
    write_feeds(tmp_path / "feeds.npz", list(CONV.values().values()))
    reference.open("conv", tmp_path / "conv.onnx", tmp_path / "feeds.npz", 1)
    samples = reference.run_timed("conv", 4)
    assert len(samples) == 4
    assert min(samples) > 0


# --- kernels kept on disk ---------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    """Give a function that starts a worker with one and the same store; they are ended afterwards."""
    started = []

    def start():
        made = TvmWorker(tmp_path / f"w{len(started)}", threads=2, target=BASELINE)
        started.append(made)
        made.open_store(tmp_path / "store")
        path = tmp_path / "conv.onnx"
        onnx.save_model(CONV.local_model, path)
        made.define(CONV.spec, path)
        return made

    yield start
    for made in started:
        made.close()


def test_a_kept_kernel_serves_the_next_process(store, tmp_path):
    first, choice = store(), first_choice(CONV)
    ir_hash = first.build(CONV.spec.key, choice)
    assert first.keep([(CONV.spec.key, choice)])
    inside = first.inspect(CONV.spec.key, choice, tmp_path, "one")
    (known,) = (tmp_path / "store").glob("*.json")
    known.write_text(known.read_text().replace(ir_hash, "0123456789abcdef"))
    second = store()
    assert second.build(CONV.spec.key, choice) == "0123456789abcdef"  # read, not compiled
    assert_works(second, CONV)
    assert second.inspect(CONV.spec.key, choice, tmp_path, "two") == inside
    assert (tmp_path / "two.tir").read_bytes() == (tmp_path / "one.tir").read_bytes()
    assert second.time_kernel(CONV.spec.key, choice, CONDITIONS)


@pytest.mark.parametrize("part", ["json", "npz", "so"])
def test_a_damaged_kernel_is_built_again(store, tmp_path, part):
    first, choice = store(), first_choice(CONV)
    ir_hash = first.build(CONV.spec.key, choice)
    first.keep([(CONV.spec.key, choice)])
    (damaged,) = (tmp_path / "store").glob(f"*.{part}")
    damaged.write_bytes(damaged.read_bytes()[:20])
    second = store()
    assert second.build(CONV.spec.key, choice) == ir_hash
    assert_works(second, CONV)
