"""What `mapper doctor` says of each thing that is there, missing or switched off; nothing here needs hardware."""

import types

import pytest

from mapper.errors import BadInputError, WorkerError
from mapper.flows import doctor as flow
from mapper.flows.machine import compiler_tag, find_host
from mapper.measure.meters.protocol import Unavailable
from mapper.measure.peaks import peak_from_samples, probe_plan, save_peaks
from mapper.worker.client import ChildFailureError


class Child:
    def __init__(self):
        self.versions = {"llvm": "22", "tvm": "0.27"}
        self.is_closed = False

    def version(self):
        return "1.31.1"

    def close(self):
        self.is_closed = True


def refusing(error):
    def start(folder):
        raise error

    return start


@pytest.fixture
def host():
    return find_host(1, None)


# --- children ----------------------------------------------------------------------------------------------------


def test_compiler_that_starts(tmp_path, host):
    child = Child()
    found = flow.check_compiler(lambda folder: child, tmp_path, host)
    assert (found.line.status, found.line.detail) == ("ok", "tvm 0.27, llvm 22")
    assert found.tag == compiler_tag(child, host)
    assert child.is_closed


@pytest.mark.parametrize(
    "error", [WorkerError("cannot start it"), ChildFailureError("crash", "cannot start it", is_dead=True)]
)
def test_compiler_that_does_not_start_says_how_to_repair(tmp_path, host, error):
    found = flow.check_compiler(refusing(error), tmp_path, host)
    assert (found.line.status, found.line.detail, found.tag) == ("missing", "cannot start it", None)
    assert "delete .venv" in found.line.remedy


def test_a_long_crash_report_keeps_its_end(tmp_path, host):
    error = ChildFailureError("crash", "x" * 5000 + "\nImportError: no tvm", is_dead=True)
    detail = flow.check_compiler(refusing(error), tmp_path, host).line.detail
    assert detail.endswith("ImportError: no tvm")
    assert len(detail) < 400
    assert "\n" not in detail


def test_reference_that_starts(tmp_path):
    child = Child()
    line = flow.check_reference(lambda folder: child, tmp_path)
    assert (line.status, line.detail) == ("ok", "onnxruntime 1.31.1, CPU provider")
    assert child.is_closed


def test_reference_that_dies_is_missing_and_closed(tmp_path, monkeypatch):
    child = Child()
    monkeypatch.setattr(Child, "version", refusing(ChildFailureError("crash", "gone", is_dead=True)))
    line = flow.check_reference(lambda folder: child, tmp_path)
    assert (line.status, line.detail) == ("missing", "gone")
    assert child.is_closed


# --- peaks and cache ---------------------------------------------------------------------------------------------


def test_peaks_that_are_kept_are_listed(tmp_path, host):
    peaks = [peak_from_samples(probe, 5e9, [1.0], None) for probe in probe_plan(host.device, 1)]
    save_peaks(tmp_path, host.machine_id, "tvm 0", peaks)
    line = flow.check_peaks(tmp_path, host.machine_id, "tvm 0")
    assert line.status == "ok"
    assert line.detail.startswith("at 1 thread: float32 5 GFLOP/s, float64 5 GFLOP/s, ")
    assert "DRAM 5 GB/s" in line.detail


def test_peaks_of_another_compiler_do_not_count(tmp_path, host):
    save_peaks(tmp_path, host.machine_id, "tvm 0", [])
    line = flow.check_peaks(tmp_path, host.machine_id, "tvm 1")
    assert line.status == "missing"
    assert "not calibrated" in line.detail
    assert "run mapper calibrate" in line.remedy


def test_peaks_without_a_compiler_are_unknown(tmp_path):
    line = flow.check_peaks(tmp_path, "feed", None)
    assert line.status == "missing"
    assert "unknown" in line.detail


def test_cache_folder_is_made_and_left_empty(tmp_path):
    line = flow.check_cache_dir(tmp_path / "a" / "b")
    assert (line.status, line.detail) == ("ok", f"{tmp_path / 'a' / 'b'} can be written")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_cache_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    line = flow.check_cache_dir(tmp_path / "file" / "cache")
    assert line.status == "missing"
    assert "cannot be written" in line.detail
    assert "MAPPER_CACHE_DIR" in line.remedy


# --- counters, meters, GPUs --------------------------------------------------------------------------------------


def linux(root, level=None, devices=()):
    if level is not None:
        (root / "proc/sys/kernel").mkdir(parents=True)
        (root / "proc/sys/kernel/perf_event_paranoid").write_text(f"{level}\n")
    for device in devices:
        (root / "sys/bus/event_source/devices" / device).mkdir(parents=True)
    return flow.check_counters(root)


@pytest.mark.parametrize(
    ("level", "devices", "status", "words"),
    [
        (None, (), "missing", "no perf_event"),
        (2, ("software", "breakpoint"), "missing", "shows no CPU counters"),
        (4, ("cpu",), "off", "perf_event_paranoid 4 keeps users away"),
        (2, ("cpu",), "ok", "perf_event_paranoid 2 lets users count"),
        (-1, ("cpu_core", "cpu_atom"), "ok", "perf_event_paranoid -1 lets users count"),
    ],
)
def test_counters(tmp_path, level, devices, status, words):
    line = linux(tmp_path, level, devices)
    assert line.status == status
    assert words in line.detail
    assert "stall shares are modelled" in line.detail


def test_counters_that_are_off_say_what_switches_them_on(tmp_path):
    assert linux(tmp_path, 3, ("cpu",)).remedy == "as root: sysctl kernel.perf_event_paranoid=2"


def test_energy_meter_that_is_there():
    line = flow.check_energy(types.SimpleNamespace(covers="package-0, dram-0"))
    assert (line.status, line.detail) == ("ok", "counts package-0, dram-0")


def test_energy_meter_that_is_forbidden_is_off():
    line = flow.check_energy(Unavailable(reason="RAPL counters exist but may not be read: allow it"))
    assert line.status == "off"
    assert "chmod" in line.remedy


def test_energy_meter_that_is_missing_has_its_reason():
    line = flow.check_energy(Unavailable(reason="no RAPL counters"))
    assert (line.status, line.detail, line.remedy) == ("missing", "no RAPL counters", "")


class FakeNvml:
    class NVMLError(Exception):
        pass

    def __init__(self, gpus=1, has_energy=True, has_driver=True):
        self.gpus, self.has_energy, self.has_driver = gpus, has_energy, has_driver

    def nvmlInit(self):
        if not self.has_driver:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self):
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetName(self, handle):
        return f"card {handle}"

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        if not self.has_energy:
            raise self.NVMLError("Not Supported")
        return 5


def test_gpus_are_listed_with_their_energy_counter():
    line = flow.check_gpu(FakeNvml(gpus=2))
    assert line.status == "ok"
    assert line.detail.startswith("card 0 (energy counter readable); card 1 (energy counter readable)")
    assert "does not use GPUs yet" in line.detail


def test_gpu_without_energy_counter_says_so():
    assert "Not Supported" in flow.check_gpu(FakeNvml(has_energy=False)).detail


@pytest.mark.parametrize(
    ("nvml", "words"), [(FakeNvml(has_driver=False), "Driver Not Loaded"), (FakeNvml(gpus=0), "no GPU")]
)
def test_no_gpu_is_missing_with_the_reason(nvml, words):
    line = flow.check_gpu(nvml)
    assert line.status == "missing"
    assert words in line.detail


# --- zoo, and the whole ------------------------------------------------------------------------------------------


def test_zoo_lists_what_can_be_asked_for():
    assert flow.check_zoo(lambda: ("a", "b")).detail == "zoo:a, zoo:b"


def test_zoo_that_is_missing():
    def names():
        raise BadInputError("zoo.json: cannot be read")

    line = flow.check_zoo(names)
    assert (line.status, line.detail) == ("missing", "zoo.json: cannot be read")


def test_doctor_looks_at_everything_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(flow, "TvmWorker", lambda folder, *, threads, target: Child())
    monkeypatch.setattr(flow, "ReferenceWorker", lambda folder: Child())
    lines = {line.name: line for line in flow.doctor(tmp_path)}
    assert list(lines) == [
        "processor",
        "target",
        "threads",
        "caches",
        "TVM worker",
        "onnxruntime",
        "peaks",
        "hardware counters",
        "energy (RAPL)",
        "GPU",
        "cache folder",
        "zoo",
    ]
    assert lines["peaks"].detail.startswith("not calibrated")
    assert "zoo:squeezenet" in lines["zoo"].detail
    assert all(line.detail for line in lines.values())
