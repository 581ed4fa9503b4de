import dataclasses

import pytest

from mapper.errors import BadInputError
from mapper.measure import device
from mapper.measure.device import describe_cpu, usable_threads
from mapper.records import Cache


def test_a_small_vm_uses_both_cores(vm):
    assert usable_threads(None, vm.root) == (2, "cores: 2 physical cores, 2 CPUs")


def test_hyperthreads_count_once(hyperthreaded):
    assert usable_threads(None, hyperthreaded.root) == (8, "cores: 8 physical cores, 16 CPUs")


def test_cores_of_two_packages_with_equal_core_ids_are_not_confused(hyperthreaded):
    for cpu in range(16):  # no sibling lists: package and core id have to tell the cores apart
        hyperthreaded.cpu(cpu, cpu % 4, "", package=cpu // 8)
    assert usable_threads(None, hyperthreaded.root)[0] == 8


def test_affinity_limits_to_the_cores_it_leaves(hyperthreaded):
    hyperthreaded.allow("0,8", "0-15")  # taskset on two hyperthreads of one core
    assert usable_threads(None, hyperthreaded.root) == (1, "affinity: 2 of 16 CPUs allowed, 1 physical cores")


def test_offline_cpus_in_the_mask_do_not_count(vm):
    vm.allow("0-127", "0-1")
    assert usable_threads(None, vm.root)[0] == 2


def test_quota_of_one_cpu_wins_over_the_cores(hyperthreaded):
    hyperthreaded.write("sys/fs/cgroup/cpu.max", "100000 100000")
    assert usable_threads(None, hyperthreaded.root) == (1, "cgroup quota: 1 CPUs")


def test_the_tightest_quota_on_the_path_counts(hyperthreaded):
    hyperthreaded.write("proc/self/cgroup", "0::/a/b")
    hyperthreaded.write("sys/fs/cgroup/a/cpu.max", "250000 100000")
    hyperthreaded.write("sys/fs/cgroup/a/b/cpu.max", "600000 100000")
    assert device.cpu_quota(hyperthreaded.root) == 2.5
    assert usable_threads(None, hyperthreaded.root) == (2, "cgroup quota: 2.5 CPUs")


def test_a_quota_below_one_cpu_leaves_one_thread(vm):
    vm.write("sys/fs/cgroup/cpu.max", "50000 100000")
    assert usable_threads(None, vm.root)[0] == 1


@pytest.mark.parametrize("mount", ["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"])
def test_cgroup_v1_quota_is_read_below_a_host_path_that_is_not_mounted(hyperthreaded, mount):
    hyperthreaded.write("proc/self/cgroup", "12:memory:/docker/4f\n4:cpu,cpuacct:/docker/4f\n0::/system.slice")
    hyperthreaded.write(f"{mount}/cpu.cfs_quota_us", "300000")
    hyperthreaded.write(f"{mount}/cpu.cfs_period_us", "100000")
    assert usable_threads(None, hyperthreaded.root) == (3, "cgroup quota: 3 CPUs")


def test_cgroup_v1_without_a_limit(hyperthreaded):
    hyperthreaded.write("proc/self/cgroup", "4:cpu,cpuacct:/")
    hyperthreaded.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    hyperthreaded.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert device.cpu_quota(hyperthreaded.root) is None


def test_a_cpuset_controller_is_not_taken_for_the_cpu_controller(hyperthreaded):
    hyperthreaded.write("proc/self/cgroup", "4:cpuset:/")
    hyperthreaded.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000")
    hyperthreaded.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert device.cpu_quota(hyperthreaded.root) is None


def test_more_threads_than_usable_are_allowed_and_noted(vm):
    threads, because = usable_threads(8, vm.root)
    assert threads == 8
    assert because.startswith("--threads: asked for 8, 2 usable")


def test_fewer_threads_than_usable(vm):
    assert usable_threads(1, vm.root) == (1, "--threads: asked for 1 of 2 usable")


@pytest.mark.parametrize("requested", [0, -2])
def test_no_threads_are_refused(vm, requested):
    with pytest.raises(BadInputError, match=f"1 or more, found {requested}"):
        usable_threads(requested, vm.root)


def test_the_vm_described(vm):
    cpu = describe_cpu(vm.root)
    assert (cpu.kind, cpu.cores) == ("cpu", 2)
    assert cpu.name == "AMD EPYC 7763 64-Core Processor (family 25 model 1)"
    assert {"avx2", "fma", "f16c", "sse4_2"} <= set(cpu.isa)
    assert "avx512f" not in cpu.isa
    assert "hypervisor" not in cpu.isa
    assert cpu.caches == (
        Cache(level=1, size_b=32768, line_b=64, ways=8, shared_by=1),
        Cache(level=2, size_b=524288, line_b=64, ways=8, shared_by=1),
        Cache(level=3, size_b=33554432, line_b=64, ways=8, shared_by=2),
    )
    assert device.instruction_cache_b(vm.root) == 32768


def test_caches_are_shared_by_cores_not_hyperthreads(hyperthreaded):
    assert [cache.shared_by for cache in describe_cpu(hyperthreaded.root).caches] == [1, 8]


def test_an_arm_server_is_named_by_its_part(vm):
    vm.write(
        "proc/cpuinfo",
        "processor\t: 0\nFeatures\t: fp asimd evtstrm aes fphp asimdhp asimddp sve\nCPU implementer\t: 0x41\n"
        "CPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0xd40",
    )
    cpu = describe_cpu(vm.root)
    assert cpu.isa == ("asimd", "asimdhp", "asimddp", "sve")
    assert cpu.name.endswith("implementer 0x41 part 0xd40")
    assert device.is_virtual(vm.root) is None


def test_a_machine_without_proc_and_sys_is_still_described(tmp_path):
    cpu = describe_cpu(tmp_path)
    assert cpu.caches == ()
    assert cpu.name
    assert cpu.cores >= 1
    threads, because = usable_threads(None, tmp_path)
    assert threads >= 1
    assert "not known" in because
    assert device.instruction_cache_b(tmp_path) is None


def test_hypervisor_flag(vm):
    assert device.is_virtual(vm.root) is True


def test_no_hypervisor_flag(hyperthreaded):
    assert device.is_virtual(hyperthreaded.root) is False


def test_clock_from_cpufreq(vm):
    assert device.max_frequency_hz(vm.root) is None
    vm.write("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3500000")
    assert device.max_frequency_hz(vm.root) == 3.5e9


def test_machine_id_depends_on_what_identifies_the_machine(vm):
    cpu = describe_cpu(vm.root)
    base = device.machine_id(cpu, 2)
    assert base == device.machine_id(describe_cpu(vm.root), 2)
    others = (
        dataclasses.replace(cpu, name="other"),
        dataclasses.replace(cpu, isa=cpu.isa[1:]),
        dataclasses.replace(cpu, caches=cpu.caches[:2]),
        dataclasses.replace(cpu, cores=1),
    )
    ids = {base, device.machine_id(cpu, 1), *(device.machine_id(other, 2) for other in others)}
    assert len(ids) == 6


def test_this_machine_can_be_described():
    cpu = describe_cpu()
    threads, because = usable_threads(None)
    assert 1 <= threads <= cpu.cores
    assert because
