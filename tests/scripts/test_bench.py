"""The benchmark: what it takes from a sheet, its floors by hand, and that a crash costs one row."""

import argparse
import dataclasses
import json
import re
import signal
import sys

import pytest

from mapper.records import Cache, Peak, Reading
from mapper.report.sheet import write_sheet


@pytest.fixture
def bench(script):
    return script("bench")


def peak(kind, name, threads, value):
    reading = Reading(value=value, unit="1/s", method="probe", grade="measured", threads=threads)
    return Peak(kind=kind, name=name, threads=threads, reading=reading)


def on_machine(sheet, *, peaks=(("flops", "float32", 2, 2e11), ("bandwidth", "DRAM", 2, 2e10)), l3_b=0):
    """Put the sheet on a machine of two threads, with a last-level cache that two cores share, or none."""
    caches = (Cache(level=3, size_b=l3_b, line_b=64, ways=None, shared_by=2),) if l3_b else ()
    (device,) = sheet.machine.devices
    device = dataclasses.replace(device, caches=caches, peaks=tuple(peak(*one) for one in peaks))
    return dataclasses.replace(sheet, machine=dataclasses.replace(sheet.machine, devices=(device,), threads=2))


def with_work(sheet, flops_per_call, calls, weights_b):
    kernel = dataclasses.replace(sheet.kernels[0], flops_per_call=flops_per_call, calls=calls)
    best = sheet.mappings[0]
    best = dataclasses.replace(best, memory=dataclasses.replace(best.memory, weights_b=weights_b))
    return dataclasses.replace(sheet, kernels=(kernel,), mappings=(best, *sheet.mappings[1:]))


def test_a_row_holds_the_best_mapping_and_what_the_search_cost(bench, sheet):
    row = bench.row_of("squeezenet", sheet, ("onnxruntime",), 812.0)
    assert (row.best_ms, row.onnxruntime_ms) == (pytest.approx(6.81), pytest.approx(7.05))
    assert row.ratio_onnxruntime == pytest.approx(6.81 / 7.05)
    assert (row.explore_s, row.lowering_s, row.measured_candidates) == (96.4, 3.2, 412)
    assert (row.peak_memory_mb, row.verified, row.mutants, row.tvm_default_ms) == (812.0, True, "20/20", None)


def test_onnxruntime_is_left_out_unless_asked_for(bench, sheet):
    row = bench.row_of("squeezenet", sheet, ("tvm-default",), None, 250.0)
    assert (row.onnxruntime_ms, row.ratio_onnxruntime, row.tvm_default_ms) == (None, None, 250.0)


def test_without_a_verified_mapping_the_row_says_why_and_keeps_the_cost(bench, sheet):
    row = bench.row_of("squeezenet", dataclasses.replace(sheet, mappings=sheet.mappings[3:]), ("onnxruntime",), 1.0)
    assert (row.best_ms, row.verified, row.explore_s) == (None, False, 96.4)
    assert row.reason == "no verified mapping: timeout: no answer within 10 s"


def test_floor_is_flops_over_peak_while_the_data_stay_cached(bench, sheet):
    held = on_machine(with_work(sheet, 10**8, 4, 10**6), l3_b=8 << 20)
    assert bench.floor_s(held) == (pytest.approx(4e8 / 2e11), "compute")


def test_floor_is_bytes_beyond_the_cache_over_bandwidth_when_that_takes_longer(bench, sheet):
    cache_b = 2_000_000
    held = on_machine(with_work(sheet, 10**8, 4, 102_000_000), l3_b=cache_b)
    ends_b = 4 * 3 * 224 * 224 + 4 * 1000  # input and output of the sample, float32
    assert bench.floor_s(held) == (pytest.approx((102_000_000 + ends_b - cache_b) / 2e10), "memory")


def test_floor_uses_the_peak_of_the_threads_used_and_is_missing_without_one(bench, sheet):
    peaks = (("flops", "float32", 1, 1e11), ("bandwidth", "DRAM", 2, 2e10))
    assert bench.floor_s(on_machine(sheet, peaks=peaks)) is None


def test_geometric_mean_of_ratios(bench):
    assert bench.geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)
    assert bench.geometric_mean([]) is None


def test_the_report_has_a_row_a_model_the_mean_and_the_reasons(bench, sheet):
    rows = [bench.row_of("one", sheet, ("onnxruntime",), 812.4), bench.Row(model="two", reason="it died")]
    lines = bench.report(rows)
    assert lines[2].startswith("| one | 6.81 | 7.05 | 0.966 |")
    assert lines[3].count("–") == 11
    assert "1 of 2 models: 0.966" in lines[5]
    assert lines[-1] == "- two: it died"


def test_the_document_names_machine_and_rows_as_the_issue_lists_them(bench, sheet):
    settings = bench.Settings(versus=("onnxruntime",), budget="20", threads=None)
    found = bench.document(
        [bench.row_of("one", on_machine(sheet), ("onnxruntime",), 1.0)], [on_machine(sheet)], settings
    )
    assert json.loads(json.dumps(found)) == found
    assert found["machine"]["name"] == "Example CPU 3000"
    assert found["machine"]["peak_flops_per_s"] == 2e11
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    asked = {"model", "best_ms", "onnxruntime_ms", "ratio_onnxruntime", "floor_ms", "tvm_default_ms", "explore_s"}
    assert asked | {"lowering_s", "measured_candidates", "flop_fraction", "peak_memory_mb", "verified"} <= set(
        found["rows"][0]
    )


def test_a_model_is_explored_by_a_process_of_its_own_with_the_flags_given(bench, tmp_path):
    settings = bench.Settings(versus=(), budget="30s", threads=2)
    command = bench.explore_command("magika", settings, tmp_path)
    assert command[0] == sys.executable
    assert command[3:] == ["explore", "zoo:magika", "--out", str(tmp_path), "--budget", "30s", "--threads", "2"]


def test_memory_is_that_of_the_largest_process_of_the_run(bench):
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'x = bytearray(80_000_000)'], check=True)"
    code, memory_mb = bench.run_measured([sys.executable, "-c", child])
    assert code == 0
    assert 80 < memory_mb < 400


def test_a_crash_costs_one_row_and_names_the_signal(bench, tmp_path, monkeypatch):
    killed = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    monkeypatch.setattr(bench, "explore_command", lambda *_: killed)
    row, sheet = bench.bench("magika", bench.Settings(versus=(), budget=None, threads=None), tmp_path)
    assert sheet is None
    assert (row.verified, row.reason) == (False, f"no sheet: mapper explore ended with signal {int(signal.SIGKILL)}")


def test_a_sheet_of_an_earlier_run_is_not_taken_for_this_one(bench, sheet, tmp_path, monkeypatch):
    write_sheet(sheet, tmp_path / "magika" / "sheet.json")
    monkeypatch.setattr(bench, "explore_command", lambda *_: [sys.executable, "-c", "raise SystemExit(2)"])
    row, found = bench.bench("magika", bench.Settings(versus=(), budget=None, threads=None), tmp_path)
    assert (found, row.reason) == (None, "no sheet: mapper explore ended with exit code 2")


@pytest.mark.parametrize(("reason", "code"), [("", 0), ("it died", 1)])
def test_exit_code_says_whether_every_model_is_verified(bench, sheet, monkeypatch, capsys, tmp_path, reason, code):
    good = bench.row_of("one", sheet, ("onnxruntime",), 1.0)
    rows = {"one": (good, sheet), "two": (bench.Row(model="two", verified=not reason, reason=reason), None)}
    monkeypatch.setattr(bench, "bench", lambda name, *_: rows[name])
    target = tmp_path / "bench.json"
    assert bench.main(["one", "two", "--json", str(target)]) == code
    assert [row["model"] for row in json.loads(target.read_text())["rows"]] == ["one", "two"]
    assert "| one |" in capsys.readouterr().out


def test_an_unknown_runtime_is_refused(bench):
    with pytest.raises(argparse.ArgumentTypeError, match="unknown runtime 'torch': expected some of onnxruntime"):
        bench._runtimes("onnxruntime,torch")
