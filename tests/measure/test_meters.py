import errno

import pytest

from mapper.measure.meters.nvml import open_nvml
from mapper.measure.meters.protocol import (
    MeterError,
    Unavailable,
    calls_needed,
    energy_reading,
    idle_power,
    net_of_idle,
)
from mapper.measure.meters.rapl import open_rapl
from mapper.measure.meters.select import pick_meter
from mapper.records import Reading

RANGE_UJ = 262143328850  # as Linux shows it for many Intel parts


def zone(tree, name, label, energy_uj, range_uj=RANGE_UJ):
    tree.write(f"sys/class/powercap/{name}/name", label)
    tree.write(f"sys/class/powercap/{name}/energy_uj", str(energy_uj))
    tree.write(f"sys/class/powercap/{name}/max_energy_range_uj", str(range_uj))


def set_energy(tree, name, energy_uj):
    tree.write(f"sys/class/powercap/{name}/energy_uj", str(energy_uj))


@pytest.fixture
def server(tree):
    """Two packages with core, uncore and dram zones, psys, and package 0 a second time through MMIO."""
    tree.write("sys/class/powercap/intel-rapl/enabled", "1")
    for package in (0, 1):
        zone(tree, f"intel-rapl:{package}", f"package-{package}", 1_000_000)
        zone(tree, f"intel-rapl:{package}:0", "core", 500_000)
        zone(tree, f"intel-rapl:{package}:1", "dram", 200_000, 65712999613)
    zone(tree, "intel-rapl:2", "psys", 9_000_000)
    zone(tree, "intel-rapl-mmio:0", "package-0", 1_000_000)
    return tree


def test_packages_and_dram_are_added_and_nothing_twice(server):
    meter = open_rapl(server.root)
    assert meter.read_j() == 0.0
    for name, energy_uj in {
        "intel-rapl:0": 3_000_000,  # + 2 J
        "intel-rapl:1": 2_500_000,  # + 1.5 J
        "intel-rapl:0:1": 450_000,  # + 0.25 J
        "intel-rapl:1:1": 200_000,
        "intel-rapl:0:0": 2_000_000,
        "intel-rapl:2": 20_000_000,
        "intel-rapl-mmio:0": 3_000_000,
    }.items():
        set_energy(server, name, energy_uj)
    assert meter.read_j() == pytest.approx(3.75)
    assert meter.covers == "package-0, dram-0, package-1, dram-1"


def test_a_counter_that_wraps_once_gives_the_right_energy(tree):
    zone(tree, "intel-rapl:0", "package-0", RANGE_UJ - 1_000_000)
    meter = open_rapl(tree.root)
    set_energy(tree, "intel-rapl:0", 500_000)
    assert meter.read_j() == pytest.approx(1.5)
    set_energy(tree, "intel-rapl:0", 700_000)
    assert meter.read_j() == pytest.approx(1.7)


def test_a_counter_that_was_reset_is_no_wrap(tree):
    zone(tree, "intel-rapl:0", "package-0", 5_000_000)
    meter = open_rapl(tree.root)
    set_energy(tree, "intel-rapl:0", 0)
    with pytest.raises(MeterError, match="package-0 went back without having wrapped"):
        meter.read_j()


def test_no_permission_is_a_reason_that_says_what_to_do(server):
    def read_text(path):
        if path.name == "energy_uj":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return path.read_text().strip()

    meter = open_rapl(server.root, read_text)
    assert isinstance(meter, Unavailable)
    assert meter.reason.startswith("RAPL counters exist but may not be read: allow your user to read")


def test_no_powercap_tree_is_a_reason(tmp_path):
    meter = pick_meter(tmp_path)
    assert isinstance(meter, Unavailable)
    assert "no powercap tree" in meter.reason


def test_a_tree_without_packages_is_a_reason(tree):
    zone(tree, "intel-rapl:0", "psys", 1)
    assert open_rapl(tree.root).reason == "the powercap tree has no package zone"


def test_an_unreadable_zone_is_a_reason(tree):
    zone(tree, "intel-rapl:0", "package-0", "")
    assert "intel-rapl:0 cannot be read" in open_rapl(tree.root).reason


def test_a_counter_that_vanishes_ends_the_reading(tree):
    zone(tree, "intel-rapl:0", "package-0", 1)
    meter = open_rapl(tree.root)
    (tree.root / "sys/class/powercap/intel-rapl:0/energy_uj").unlink()
    reading = energy_reading(meter, lambda calls: 1.0, 10)
    assert reading.value is None
    assert "package-0 cannot be read any more" in reading.reason


class FakeMeter:
    """Gives the cumulative energies it was made with, one a reading."""

    name = "fake"
    covers = "all"
    resolution_j = 0.001
    tick_s = 0.001

    def __init__(self, *energies_j):
        self.left = list(energies_j)

    def read_j(self):
        return self.left.pop(0)


def test_energy_per_call_is_the_median_run():
    meter = FakeMeter(0.0, 10.0, 20.0, 31.0, 40.0, 50.5)  # runs of 10, 11 and 10.5 J
    asked = []
    reading = energy_reading(meter, lambda calls: asked.append(calls) or 0.05, 100, threads=2)
    assert asked == [100, 100, 100]
    assert reading.value == pytest.approx(0.105)
    assert (reading.unit, reading.grade, reading.n, reading.threads) == ("J", "measured", 3, 2)
    assert reading.method == "fake (all), gross, 100 calls a run, resolution 1e-05 J a call"


def test_a_run_below_fifty_ticks_gives_none():
    reading = energy_reading(FakeMeter(0.0, 10.0), lambda calls: 0.049, 100)
    assert (reading.value, reading.grade) == (None, None)
    assert "below 50 counter ticks" in reading.reason


def test_an_energy_below_fifty_steps_gives_none():
    assert "below 50 steps" in energy_reading(FakeMeter(0.0, 0.04), lambda calls: 1.0, 100).reason


def test_repeats_that_disagree_give_none():
    reading = energy_reading(FakeMeter(0.0, 10.0, 10.0, 20.0, 20.0, 32.0), lambda calls: 1.0, 1)
    assert reading.reason == "3 repeats differ by 20%, above 15%"


def test_without_a_meter_the_reason_is_passed_on():
    reading = energy_reading(Unavailable(reason="none here"), lambda calls: 1.0, 1)
    assert (reading.value, reading.method, reading.reason) == (None, "none", "none here")


def test_calls_fill_the_ticks():
    assert calls_needed(FakeMeter(), 0.001) == 61
    assert calls_needed(FakeMeter(), 100.0) == 1
    assert calls_needed(Unavailable(reason="x"), 0.001) == 1


def test_net_energy_is_gross_less_idle():
    idle = idle_power(FakeMeter(0.0, 4.0), lambda seconds: 2.0 * seconds)
    assert idle.value == 2.0
    gross = Reading(value=5.0, unit="J", method="fake, gross", grade="measured", threads=1)
    net = net_of_idle(gross, idle, 1.5)
    assert (net.value, net.method, net.threads) == (2.0, "fake, net of 2 W idle", 1)


def test_net_energy_without_idle_or_gross_is_none():
    idle = idle_power(Unavailable(reason="no meter"), lambda seconds: seconds)
    gross = Reading(value=5.0, unit="J", method="m", grade="measured")
    assert net_of_idle(gross, idle, 1.0).reason == "idle power unknown: no meter"
    none = Reading(value=None, unit="J", method="m", reason="too short")
    assert net_of_idle(none, gross, 1.0).reason == "too short"


def test_idle_power_over_too_short_a_wait_is_none():
    assert "below 50 counter ticks" in idle_power(FakeMeter(0.0, 4.0), lambda seconds: 0.01).reason


class FakeNvml:
    """The part of pynvml that is used."""

    class NVMLError(Exception):
        pass

    def __init__(self, counter_mj=(), has_driver=True):
        self.counter_mj = list(counter_mj)
        self.has_driver = has_driver

    def nvmlInit(self):
        if not self.has_driver:
            raise self.NVMLError("NVML Shared Library Not Found")

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid != "GPU-1":
            raise self.NVMLError("Not Found")
        return "handle"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        if not self.counter_mj:
            raise self.NVMLError("Not Supported")
        return self.counter_mj.pop(0)


def test_gpu_energy_comes_in_joules():
    meter = open_nvml("GPU-1", FakeNvml([10_000, 12_500]))
    assert meter.read_j() == pytest.approx(2.5)


def test_a_driver_reload_ends_the_reading():
    meter = open_nvml("GPU-1", FakeNvml([10_000, 3]))
    with pytest.raises(MeterError, match="driver was reloaded"):
        meter.read_j()


@pytest.mark.parametrize(
    ("uuid", "nvml", "want"),
    [
        ("MIG-1", FakeNvml([1]), "a MIG slice has no energy counter of its own"),
        ("GPU-1", FakeNvml([1], has_driver=False), "no NVML: NVML Shared Library Not Found"),
        ("GPU-2", FakeNvml([1]), "NVML does not know GPU GPU-2"),
        ("GPU-1", FakeNvml(), "needs a Volta or newer GPU"),
    ],
)
def test_gpus_without_a_counter_say_why(uuid, nvml, want):
    meter = open_nvml(uuid, nvml)
    assert isinstance(meter, Unavailable)
    assert want in meter.reason


def test_pick_meter_takes_the_gpu_that_is_named():
    assert "MIG slice" in pick_meter(gpu_uuid="MIG-1").reason
