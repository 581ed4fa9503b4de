import msgspec
import pytest

from mapper.measure.device import describe_cpu
from mapper.measure.peaks import MIB, Probe, load_peaks, peak_from_samples, probe_plan, save_peaks, theoretical_peak
from mapper.records import Cache, Device

FLOPS = Probe(kind="flops", name="float32", threads=2)


def device(*caches):
    made = tuple(Cache(level=n, size_b=size, line_b=64, ways=8, shared_by=by) for n, size, by in caches)
    return Device(id="cpu0", kind="cpu", name="x", cores=8, isa=("avx2", "fma"), caches=made)


def working_sets(plan):
    return {(probe.name, probe.threads): probe.working_set_b for probe in plan if probe.kind == "bandwidth"}


def test_plan_of_the_vm(vm):
    plan = probe_plan(describe_cpu(vm.root), 2)
    flops = [(probe.name, probe.threads) for probe in plan if probe.kind == "flops"]
    assert flops == [("float32", 1), ("float64", 1), ("float32", 2), ("float64", 2)]
    assert working_sets(plan) == {
        ("L1", 1): 16 * 1024,
        ("L2", 1): 256 * 1024,
        ("L3", 1): 16 * MIB,
        ("DRAM", 1): 128 * MIB,
        ("L1", 2): 32 * 1024,
        ("L2", 2): 512 * 1024,
        ("L3", 2): 16 * MIB,
        ("DRAM", 2): 128 * MIB,
    }
    assert not any(probe.note for probe in plan)


def test_one_thread_is_planned_once(vm):
    assert len(probe_plan(describe_cpu(vm.root), 1)) == 6


def test_a_huge_shared_l3_is_probed_just_beyond_the_private_caches_and_memory_is_capped():
    plan = probe_plan(device((1, 48 * 1024, 1), (2, 2 * MIB, 1), (3, 300 * MIB, 2)), 2)
    sizes = working_sets(plan)
    assert sizes["L3", 2] == 36 * MIB  # 2 × 2 MiB of L2, and 32 beyond
    assert sizes["DRAM", 2] == 512 * MIB
    (dram,) = {probe.note for probe in plan if probe.name == "DRAM"}
    assert "512 MiB is below 4 × the 300 MiB" in dram


def test_threads_on_several_l3_instances_reach_all_of_them():
    sizes = working_sets(probe_plan(device((3, 16 * MIB, 4)), 8))
    assert sizes["L3", 8] == 16 * MIB  # half of two instances
    assert sizes["DRAM", 8] == 128 * MIB
    assert sizes["DRAM", 1] == 64 * MIB


def test_a_level_hardly_larger_than_those_above_says_so():
    plan = probe_plan(device((2, 2 * MIB, 1), (3, 5 * MIB, 8)), 1)
    (note,) = [probe.note for probe in plan if probe.name == "L3"]
    assert note.startswith("working set only 1.2 × the caches above")


def test_unknown_caches_leave_memory_only():
    plan = [probe for probe in probe_plan(device(), 1) if probe.kind == "bandwidth"]
    assert [(probe.name, probe.note) for probe in plan] == [("DRAM", "cache sizes unknown")]


def test_a_peak_is_the_undisturbed_speed():
    samples = [1.0] * 50 + [1.05] * 40 + [3.0] * 10
    peak = peak_from_samples(FLOPS, 2e9, samples)
    assert (peak.kind, peak.name, peak.threads) == ("flops", "float32", 2)
    assert peak.reading.value == 2e9
    assert (peak.reading.unit, peak.reading.grade, peak.reading.n) == ("FLOP/s", "measured", 100)
    assert "5th percentile of 100 repeats; spread 2.5%" in peak.reading.method


def test_a_single_glitch_of_the_clock_does_not_set_the_peak():
    assert peak_from_samples(FLOPS, 1.0, [0.01] + [1.0] * 99).reading.value == 1.0


def test_an_unsteady_probe_and_its_note_show_in_the_method():
    probe = Probe(kind="bandwidth", name="DRAM", threads=1, working_set_b=8 * MIB, note="partly cached")
    reading = peak_from_samples(probe, 8e9, [1.0, 2.0, 2.0]).reading
    assert reading.unit == "B/s"
    assert "reads over 8 MiB" in reading.method
    assert "spread 100.0%; unsteady" in reading.method
    assert reading.method.endswith("partly cached")


@pytest.mark.parametrize("samples", [[], [0.0, 1.0]])
def test_a_probe_without_usable_times_is_none_with_a_reason(samples):
    reading = peak_from_samples(FLOPS, 1.0, samples).reading
    assert (reading.value, reading.grade) == (None, None)
    assert reading.reason == "the probe gave no usable times"


def test_theoretical_peak_by_hand():
    avx2 = Device(id="cpu0", kind="cpu", name="x", cores=2, isa=("avx", "fma"), caches=())
    reading = theoretical_peak(avx2, FLOPS, 3e9)
    assert reading.value == 2 * 3e9 * 2 * 8 * 2  # threads × clock × units × lanes × 2
    assert reading.grade == "modelled"
    assert theoretical_peak(avx2, Probe(kind="flops", name="float64", threads=1), 3e9).value == 48e9
    assert theoretical_peak(avx2, FLOPS, None) is None
    assert theoretical_peak(avx2, Probe(kind="bandwidth", name="L1", threads=1), 3e9) is None


def test_peaks_survive_the_cache(tmp_path):
    peaks = (peak_from_samples(FLOPS, 2e9, [1.0, 1.1]),)
    path = save_peaks(tmp_path, "m1", "tvm 0.27", peaks)
    assert load_peaks(tmp_path, "m1", "tvm 0.27") == peaks
    assert path.read_bytes().endswith(b"}\n")
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no temporary file stays


def test_peaks_of_another_machine_or_compiler_are_not_returned(tmp_path):
    path = save_peaks(tmp_path, "m1", "tvm 0.27", ())
    assert load_peaks(tmp_path, "m2", "tvm 0.27") is None
    assert load_peaks(tmp_path, "m1", "tvm 0.28") is None
    path.rename(path.with_name(path.name.replace("m1", "m2")))  # a file carried over from elsewhere
    assert load_peaks(tmp_path, "m2", "tvm 0.27") is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema_version": "1.0"}'])
def test_a_damaged_cache_counts_as_none(tmp_path, content):
    path = save_peaks(tmp_path, "m1", "tvm", ())
    path.write_bytes(content)
    assert load_peaks(tmp_path, "m1", "tvm") is None


def test_another_schema_counts_as_none(tmp_path):
    path = save_peaks(tmp_path, "m1", "tvm", ())
    stored = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode({**stored, "schema_version": "0.1"}))
    assert load_peaks(tmp_path, "m1", "tvm") is None


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path, monkeypatch):
    path = save_peaks(tmp_path, "m1", "tvm", ())
    before = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_peaks(tmp_path, "m1", "tvm", (peak_from_samples(FLOPS, 1.0, [1.0]),))
    assert path.read_bytes() == before
    assert len(list(path.parent.iterdir())) == 1
