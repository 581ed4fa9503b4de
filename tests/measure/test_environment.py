from datetime import datetime

from mapper.measure.environment import environment


def test_what_surrounds_a_run(vm):
    vm.write("proc/loadavg", "0.31 0.40 0.35 1/123 4567")
    vm.write("etc/os-release", 'NAME="Debian GNU/Linux"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"')
    vm.write("sys/fs/cgroup/cpu.max", "150000 100000")
    seen = environment("mapper explore a.onnx", 3, {"tvm": "0.27", "onnx": "1.23"}, vm.root)
    assert (seen.command, seen.seed, seen.load_1min, seen.cpu_quota) == ("mapper explore a.onnx", 3, 0.31, 1.5)
    assert list(seen.versions) == ["onnx", "tvm"]
    assert seen.os.startswith("Debian GNU/Linux 12 (bookworm), ")
    assert seen.virtual_machine is True
    assert seen.notes == ()
    assert datetime.fromisoformat(seen.time_utc).utcoffset().total_seconds() == 0


def test_a_busy_machine_is_noted(vm):
    vm.write("proc/loadavg", "0.70 0.40 0.35 1/123 4567")
    (note,) = environment("", 0, {}, vm.root).notes
    assert note.startswith("load was 0.7 on 2 usable cores")


def test_a_clock_that_may_change_is_noted(vm):
    vm.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave")
    (note,) = environment("", 0, {}, vm.root).notes
    assert "governor is 'powersave'" in note


def test_unknowns_are_none(tmp_path):
    seen = environment("", 0, {}, tmp_path)
    assert (seen.load_1min, seen.cpu_quota, seen.virtual_machine) == (None, None, None)
    assert seen.os
