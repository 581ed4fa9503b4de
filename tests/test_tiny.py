"""The whole flow on a model small enough for seconds: in through the command line, out as a sheet."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mapper.cli.main import run
from mapper.flows import finals
from mapper.flows.machine import compiler_tag, find_host
from mapper.measure.peaks import peak_from_samples, probe_plan, save_peaks
from mapper.worker.workers import TvmWorker

ROOT = Path(__file__).parents[1]
THREADS = 2


def tiny_model():
    """Twelve nodes: ten that compute, one of constants only (`fold`), one that does nothing (`pass`)."""
    rng = np.random.default_rng(7)
    weights = {
        "w1": rng.standard_normal((16, 8, 3, 3)) / 8,
        "b1": rng.standard_normal(16),
        "wd": rng.standard_normal((16, 1, 3, 3)) / 3,
        "bd": rng.standard_normal(16),
        "wg": rng.standard_normal((16, 10)) / 2,
        "bg": rng.standard_normal(10),
        "ten": np.full(10, 2.0),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu"),
        helper.make_node("Conv", ["r1", "wd", "bd"], ["c2"], "depthwise", pads=[1, 1, 1, 1], group=16),
        helper.make_node("Relu", ["c2"], ["r2"], "relu_dw"),
        helper.make_node("Identity", ["r2"], ["i2"], "pass"),
        helper.make_node("Add", ["r1", "i2"], ["a1"], "residual"),
        helper.make_node("MaxPool", ["a1"], ["p1"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p1"], ["g1"], "mean"),
        helper.make_node("Flatten", ["g1"], ["f1"], "flatten"),
        helper.make_node("Mul", ["bg", "ten"], ["bias"], "fold"),
        helper.make_node("Gemm", ["f1", "wg", "bias"], ["z"], "gemm"),
        helper.make_node("Softmax", ["z"], ["y"], "softmax", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with `tiny.onnx`, and a cache that already holds (made up) peaks, so that nothing is probed."""
    folder = tmp_path_factory.mktemp("tiny")
    onnx.save_model(tiny_model(), folder / "tiny.onnx")
    host = find_host(THREADS, None)
    with closing(TvmWorker(folder / "worker", threads=THREADS, target=host.target)) as worker:
        compiler = compiler_tag(worker, host)
    peaks = [
        peak_from_samples(probe, 1e8 if probe.kind == "flops" else 2e7, [1e-3] * 5, None)
        for probe in probe_plan(host.device, THREADS)
    ]
    save_peaks(folder / "cache", host.machine_id, compiler, peaks)
    return folder


def explore(place, out, *flags, pairs=1):
    """Run `mapper explore` on the tiny model and return the sheet that it wrote; one process pair is quickest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAPPER_CACHE_DIR", str(place / "cache"))
        patch.setattr(finals, "PROCESS_PAIRS", pairs)
        arguments = ["explore", str(place / "tiny.onnx"), "--out", str(place / out), "--threads", str(THREADS)]
        assert run([*arguments, "--quiet", *flags]) == 0
    return json.loads((place / out / "sheet.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def sheet(place):
    return explore(place, "first", "--budget", "6", pairs=2)


def test_sheet_obeys_the_published_schema(sheet):
    schema = json.loads((ROOT / "docs" / "sheet.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(sheet)


def test_every_node_of_the_file_is_accounted_for(sheet):
    known = {kernel["key"] for kernel in sheet["kernels"]}
    names = [node.name for node in tiny_model().graph.node]
    assert [node["name"] for node in sheet["nodes"]] == names
    reasons = {node["name"]: node["reason"] for node in sheet["nodes"] if node["reason"]}
    assert reasons == {"pass": "elided", "fold": "folded"}
    for node in sheet["nodes"]:
        assert set(node["kernels"]) <= known
        assert bool(node["kernels"]) != bool(node["reason"]), node
        assert bool(node["evidence"]) or not node["reason"], node


def test_kernels_list_the_nodes_that_list_them(sheet):
    by_node = {(node["index"], key) for node in sheet["nodes"] for key in node["kernels"]}
    by_kernel = {(index, kernel["key"]) for kernel in sheet["kernels"] for index in kernel["nodes"]}
    assert by_node == by_kernel


def test_mappings_are_verified_against_the_original_and_ranked(sheet):
    best = sheet["mappings"][0]
    assert best["rank"] == 1
    assert best["verified"]["passed"]
    assert best["verified"]["mutants"] >= 10
    assert best["time_s"]["median"] > 0
    assert best["ratio_onnxruntime"]["value"] > 0
    assert {"z", "y"} <= set(sheet["reference"]["tensors"])  # the output, and what goes into the final softmax
    assert all(mapping["rank"] is None for mapping in sheet["mappings"] if not mapping["verified"]["passed"])


def test_flops_are_those_of_the_canonical_graph(sheet):
    # By hand from docs/flops.md: convolution 2·16·144·8·9, depthwise 2·16·144·9, two Relu and one Add of 16·144 each,
    # MaxPool 4 inputs a window of 16·36, the mean 16·36, Gemm 2·10·16 without its bias, Softmax 4·10.
    conv, depthwise, one_each = 2 * 16 * 144 * 8 * 9, 2 * 16 * 144 * 9, 16 * 144
    total = conv + depthwise + 3 * one_each + 16 * 36 * 4 + 16 * 36 + 2 * 10 * 16 + 4 * 10
    found = sum(kernel["flops_per_call"] * kernel["calls"] for kernel in sheet["kernels"])
    assert found == total


def test_kernels_are_written_as_tir_and_assembly(sheet, place):
    folder = place / "first" / "kernels"
    for kernel in sheet["kernels"]:
        assert "T.prim_func" in (folder / f"{kernel['name']}.tir").read_text(encoding="utf-8")
        assert ".text" in (folder / f"{kernel['name']}.s").read_text(encoding="utf-8")
    assert len(list(folder.iterdir())) == 2 * len(sheet["kernels"])


def test_the_default_batch_is_said(sheet):
    (bound,) = sheet["model"]["bound_dims"]
    assert (bound["name"], bound["value"], bound["source"]) == ("batch", 1, "default")


def test_show_prints_it_again(sheet, place, capsys):
    assert run(["show", str(place / "first")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("model     tiny")
    assert sheet["kernels"][0]["name"] in printed


def test_its_schedule_file_replays(sheet, place):
    schedule = place / "first" / "schedule.json"
    replayed = explore(place, "replayed", "--schedules", str(schedule), "--budget", "0")
    assert replayed["mappings"][0]["verified"]["passed"]
    chosen = {kernel["key"]: kernel["ir_hash"] for kernel in sheet["kernels"]}
    assert {kernel["key"]: kernel["ir_hash"] for kernel in replayed["kernels"]} == chosen
    again = json.loads((place / "replayed" / "schedule.json").read_text(encoding="utf-8"))
    assert again == json.loads(schedule.read_text(encoding="utf-8"))


def test_the_same_request_again_takes_a_fresh_final_round_only(sheet, place):
    assert sheet["search"]["trials_measured"] > 0
    assert sheet["search"]["trials_from_journal"] == 0
    again = explore(place, "again", "--budget", "6")
    assert again["search"]["trials_measured"] == 0
    assert again["search"]["trials_from_journal"] > 0
    assert again["search"]["stopped"] == "known"
    assert again["mappings"][0]["time_s"]["n"] > 0
    assert {kernel["ir_hash"] for kernel in again["kernels"]} == {kernel["ir_hash"] for kernel in sheet["kernels"]}
    for kernel in again["kernels"]:  # from the store: text that an earlier process wrote
        assert "T.prim_func" in (place / "again" / "kernels" / f"{kernel['name']}.tir").read_text(encoding="utf-8")


def test_fresh_forgets_what_was_measured(sheet, place):
    search = explore(place, "fresh", "--budget", "0", "--fresh")["search"]
    assert search["trials_from_journal"] == 0
    assert search["trials_measured"] > 0


# --- refusals, in the real process ----------------------------------------------------------------------------------


def refused(place, *arguments):
    """Run the real command line, see it refuse with one line and exit code 2, and return the line."""
    code = "from mapper.cli.main import main; main()"
    environment = {**os.environ, "MAPPER_CACHE_DIR": str(place / "cache"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, "explore", *map(str, arguments), "--quiet", "--out", str(place / "refused")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("mapper: error: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (place / "refused").exists()
    return done.stderr


def test_missing_file_is_refused(place):
    assert "no such file" in refused(place, place / "none.onnx")


def test_truncated_file_is_refused(place):
    data = tiny_model().SerializeToString()
    (place / "cut.onnx").write_bytes(data[: len(data) // 2])
    assert "truncated" in refused(place, place / "cut.onnx")


def test_text_named_onnx_is_refused(place):
    (place / "text.onnx").write_text("not a model\n")
    assert "a text file" in refused(place, place / "text.onnx")


def test_unbound_dimensions_are_listed_with_the_flags_that_bind_them(place):
    model = tiny_model()
    for axis, name in ((2, "height"), (3, "width")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    onnx.save_model(model, place / "unbound.onnx")
    line = refused(place, place / "unbound.onnx")
    assert "--dim height=" in line
    assert "--dim width=" in line


def test_unknown_operator_is_refused_by_name(place):
    model = tiny_model()
    model.graph.node[1].op_type = "Wobble"
    onnx.save_model(model, place / "unknown.onnx")
    line = refused(place, place / "unknown.onnx")
    assert "Wobble" in line
    assert "unknown operator" in line


def test_unknown_flag_value_is_refused(place):
    line = refused(place, place / "tiny.onnx", "--budget", "soon")
    assert "'soon'" in line


def test_unknown_target_is_refused(place):
    assert "--target" in refused(place, place / "tiny.onnx", "--target", "abacus")
