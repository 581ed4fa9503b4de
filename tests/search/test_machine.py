import dataclasses

import pytest

from mapper.records import Cache, Device, Peak, Reading
from mapper.search.machine import machine_model

CACHES = tuple(
    Cache(level=level, size_b=size, line_b=64, ways=8, shared_by=by)
    for level, size, by in ((1, 32768, 1), (2, 524288, 1), (3, 33554432, 2))
)


def peak(kind, name, threads, value):
    unit = "FLOP/s" if kind == "flops" else "B/s"
    reason = "failed" if value is None else None
    return Peak(
        kind=kind,
        name=name,
        threads=threads,
        reading=Reading(value=value, unit=unit, method="t", grade="measured" if value else None, reason=reason),
    )


def device(isa=("avx", "avx2", "fma"), peaks=(), caches=CACHES):
    return Device(id="cpu0", kind="cpu", name="x", cores=2, isa=isa, caches=caches, peaks=peaks)


@pytest.mark.parametrize(
    ("isa", "want"),
    [
        (("avx", "avx2", "fma", "avx512f"), (512, 16, 32, True)),
        (("avx", "avx2", "fma"), (256, 8, 16, True)),
        (("avx",), (256, 8, 16, False)),
        (("sse4_2",), (128, 4, 16, False)),
        (("asimd",), (128, 4, 32, True)),
    ],
)
def test_vector_units(isa, want):
    model = machine_model(device(isa), 2)
    assert (model.vector_bits, model.vector_lanes_f32, model.vector_registers, model.has_fma) == want


def test_measured_peaks_are_used_and_nothing_is_assumed():
    peaks = [peak("flops", "float32", 1, 100e9), peak("flops", "float32", 2, 190e9), peak("flops", "float64", 1, 50e9)]
    for level, one, two in (("L1", 300e9, 600e9), ("L2", 100e9, 200e9), ("L3", 40e9, 70e9), ("DRAM", 15e9, 20e9)):
        peaks += [peak("bandwidth", level, 1, one), peak("bandwidth", level, 2, two)]
    model = machine_model(device(peaks=tuple(peaks)), 2)
    assert (model.flops_per_s_1, model.flops_per_s_n) == (100e9, 190e9)
    assert model.bandwidth_b_per_s_1 == {"L1": 300e9, "L2": 100e9, "L3": 40e9, "DRAM": 15e9}
    assert model.bandwidth_b_per_s_n == {"L1": 600e9, "L2": 200e9, "L3": 70e9, "DRAM": 20e9}
    assert list(model.bandwidth_b_per_s_n) == ["L1", "L2", "L3", "DRAM"]
    assert model.cache_b == {"L1": 32768, "L2": 524288, "L3": 33554432}
    assert model.cache_shared_by == {"L1": 1, "L2": 1, "L3": 2}
    assert (model.cores, model.threads, model.line_b, model.assumed) == (2, 2, 64, ())


def test_a_missing_thread_count_is_scaled_where_threads_do_not_share():
    peaks = (
        peak("flops", "float32", 1, 100e9),
        peak("bandwidth", "L2", 1, 80e9),
        peak("bandwidth", "L3", 1, 40e9),
        peak("bandwidth", "DRAM", 2, 20e9),
    )
    model = machine_model(device(peaks=peaks), 2)
    assert model.flops_per_s_n == 200e9
    assert model.bandwidth_b_per_s_n["L2"] == 160e9
    assert model.bandwidth_b_per_s_n["L3"] == 40e9
    assert model.bandwidth_b_per_s_1["DRAM"] == 20e9
    assert "flops float32 at 2 threads" in model.assumed
    assert "bandwidth DRAM at 1 thread" in model.assumed


def test_a_probe_that_failed_counts_as_not_measured():
    model = machine_model(device(peaks=(peak("flops", "float32", 1, None),)), 1)
    assert model.flops_per_s_1 == 2.5e9 * 2 * 2 * 8  # clock × units × fused multiply-add × lanes
    assert model.flops_per_s_n == model.flops_per_s_1
    assert "flops float32 at 1 thread" in model.assumed


def test_unknown_caches_are_assumed_and_said_so():
    model = machine_model(device(caches=()), 2)
    assert set(model.cache_b) == {"L1", "L2"}
    assert "cache sizes" in model.assumed
    assert min(model.bandwidth_b_per_s_n.values()) > 0


def test_launch_overhead_depends_on_the_parallel_loop():
    model = machine_model(device(), 2)
    assert (model.launch_overhead_s(False), model.launch_overhead_s(True)) == (0.17e-6, 1.5e-6)
    assert dataclasses.replace(model, launch_serial_s=1e-6).launch_overhead_s(False) == 1e-6
