"""Machines to replay: `/proc` and `/sys` trees in the kernel's own format."""

from pathlib import Path

import pytest

ZEN3_FLAGS = (
    "fpu vme de pse tsc msr cx8 apic sep mmx fxsr sse sse2 ht syscall nx lm constant_tsc rep_good nopl cpuid pni"
    " pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 x2apic movbe popcnt aes xsave avx f16c rdrand hypervisor lahf_lm"
    " cmp_legacy abm bmi1 avx2 smep bmi2 erms invpcid rdseed adx smap clflushopt clwb sha_ni vaes vpclmulqdq rdpid"
)


class Tree:
    """Writes files below a root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def cpu(self, number: int, core: int, siblings: str, package: int = 0) -> None:
        base = f"sys/devices/system/cpu/cpu{number}/topology"
        self.write(f"{base}/core_id", str(core))
        self.write(f"{base}/physical_package_id", str(package))
        self.write(f"{base}/thread_siblings_list", siblings)

    def cache(self, cpu: int, index: int, level: int, kind: str, size: str, shared: str) -> None:
        base = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
        for name, text in {
            "level": str(level),
            "type": kind,
            "size": size,
            "coherency_line_size": "64",
            "ways_of_associativity": "8",
            "shared_cpu_list": shared,
        }.items():
            self.write(f"{base}/{name}", text)

    def processor(self, name: str, flags: str, count: int, family: int = 25, model: int = 1) -> None:
        entry = "processor\t: {}\nvendor_id\t: X\ncpu family\t: {}\nmodel\t\t: {}\nmodel name\t: {}\nflags\t\t: {}\n"
        self.write("proc/cpuinfo", "\n".join(entry.format(i, family, model, name, flags) for i in range(count)))

    def allow(self, cpus: str, online: str) -> None:
        self.write("proc/self/status", f"Name:\tpython3\nThreads:\t1\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}")
        self.write("sys/devices/system/cpu/online", online)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


@pytest.fixture
def vm(tree):
    """A 2-core VM without hyperthreads, cgroup v2 without a limit, an L3 far larger than its share."""
    tree.processor("AMD EPYC 7763 64-Core Processor", ZEN3_FLAGS, 2)
    tree.allow("0-1", "0-1")
    tree.write("proc/self/cgroup", "0::/user.slice/app.scope")
    tree.write("sys/fs/cgroup/user.slice/cpu.max", "max 100000")
    for cpu in (0, 1):
        tree.cpu(cpu, cpu, str(cpu))
        tree.cache(cpu, 0, 1, "Data", "32K", str(cpu))
        tree.cache(cpu, 1, 1, "Instruction", "32K", str(cpu))
        tree.cache(cpu, 2, 2, "Unified", "512K", str(cpu))
        tree.cache(cpu, 3, 3, "Unified", "32768K", "0-1")
    return tree


@pytest.fixture
def hyperthreaded(tree):
    """8 cores, 16 hyperthreads: CPU n and n + 8 share a core."""
    tree.processor("Intel(R) Core(TM) i7-11800H", ZEN3_FLAGS.replace(" hypervisor", ""), 16, 6, 141)
    tree.allow("0-15", "0-15")
    tree.write("proc/self/cgroup", "0::/")
    for cpu in range(16):
        core = cpu % 8
        tree.cpu(cpu, core, f"{core},{core + 8}")
        tree.cache(cpu, 0, 1, "Data", "48K", f"{core},{core + 8}")
        tree.cache(cpu, 3, 3, "Unified", "24576K", "0-15")
    return tree
