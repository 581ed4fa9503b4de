"""What this CPU is: its cores, caches and instruction sets, and how many threads may use them."""

import math
import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from mapper.errors import BadInputError
from mapper.keys import digest
from mapper.records import Cache, Device

ROOT = Path("/")
_CPU_DIR = "sys/devices/system/cpu"

# Flags a code generator may act on, by their Linux name. Everything else in /proc/cpuinfo is left out of the id.
ISA_FLAGS = (
    *("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"),
    *("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"),
    *("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    *("avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    *("neon", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    threads: int
    because: str


def usable_threads(requested: int | None, root: Path = ROOT) -> tuple[int, str]:
    """Decide how many threads to use, and say which limit set the number.

    The smallest of the physical cores this process may run on (two hyperthreads of a core count once) and the
    cgroup quota, rounded down, at least 1. A request goes through as it is, also above that, but is then called so.

    Args:
        requested: What the user asked for; None to decide here.
        root: Where `/proc` and `/sys` hang, for replayed machines.

    Returns:
        Thread count and reason.

    Raises:
        BadInputError: A request below 1.
    """
    if requested is not None and requested < 1:
        raise BadInputError(
            f"--threads: expected a count of 1 or more, found {requested}; leave it out to use all cores"
        )
    usable = min(_limits(root), key=lambda limit: limit.threads)
    if requested is None:
        return usable.threads, usable.because
    if requested > usable.threads:
        return requested, f"--threads: asked for {requested}, {usable.threads} usable ({usable.because})"
    return requested, f"--threads: asked for {requested} of {usable.threads} usable"


def _limits(root: Path) -> list[_Limit]:
    allowed, present = _allowed_cpus(root), _present_cpus(root)
    cores = len(_cores(root, allowed))
    known = "physical cores" if _has_topology(root, allowed) else "CPUs (which of them share a core is not known)"
    if len(allowed) < len(present):
        because = f"affinity: {len(allowed)} of {len(present)} CPUs allowed, {cores} {known}"
    else:
        because = f"cores: {cores} {known}, {len(allowed)} CPUs"
    limits = [_Limit(threads=cores, because=because)]
    quota = cpu_quota(root)
    if quota is not None:
        limits.append(_Limit(threads=max(1, math.floor(quota)), because=f"cgroup quota: {quota:g} CPUs"))
    return limits


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the tightest CPU quota of this process's cgroup and its parents, in CPUs; None when unlimited.

    Both cgroup versions are read. Inside a container the path in `/proc/self/cgroup` may be the host's, which is not
    mounted here; the walk then ends at the mounted root, where the container's own limit stands.
    """
    quotas: list[float] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                quotas += _quotas_up(root / mount, path, _quota_v2)
        elif "cpu" in controllers.split(","):
            for mount in ("sys/fs/cgroup/cpu", f"sys/fs/cgroup/{controllers}"):
                quotas += _quotas_up(root / mount, path, _quota_v1)
    return min(quotas, default=None)


def _quotas_up(mount: Path, path: str, read: Callable[[Path], float | None]) -> list[float]:
    parts = [part for part in path.split("/") if part and part != ".."]
    folders = [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return [quota for quota in map(read, folders) if quota is not None]


def _quota_v2(folder: Path) -> float | None:
    fields = _text(folder / "cpu.max").split()  # "100000 100000" or "max 100000", in µs
    if len(fields) != 2 or fields[0] == "max":
        return None
    return int(fields[0]) / int(fields[1])


def _quota_v1(folder: Path) -> float | None:
    quota, period = (_number(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return quota / period if quota and period and quota > 0 else None  # -1: no limit


def describe_cpu(root: Path = ROOT) -> Device:
    """Describe the CPU that this process runs on, without its measured peaks.

    Where `/proc` and `/sys` are missing (macOS, Windows) the name comes from the platform, `caches` is empty and
    `isa` holds only what the architecture guarantees. Machines that mix kinds of cores are described by the first
    core this process may use.
    """
    allowed = _allowed_cpus(root)
    info = _cpuinfo(root)
    flags = set(info.get("flags", info.get("Features", "")).split()) or _guaranteed_isa()
    return Device(
        id="cpu0",
        kind="cpu",
        name=_name(info),
        cores=len(_cores(root, allowed)),
        isa=tuple(flag for flag in ISA_FLAGS if flag in flags),
        caches=_caches(root, min(allowed)),
    )


def _guaranteed_isa() -> set[str]:
    return {"asimd"} if platform.machine().lower() in {"aarch64", "arm64"} else set()


def _name(info: dict[str, str]) -> str:
    if "model name" in info and "cpu family" in info:  # brand strings are often masked in a VM, the numbers are not
        return f"{info['model name']} (family {info['cpu family']} model {info.get('model', '?')})"
    if "CPU part" in info:
        return f"{platform.machine()} implementer {info.get('CPU implementer', '?')} part {info['CPU part']}"
    return info.get("model name") or platform.processor() or platform.machine() or "unknown CPU"


def _caches(root: Path, cpu: int) -> tuple[Cache, ...]:
    caches = []
    for index in sorted((root / _CPU_DIR / f"cpu{cpu}/cache").glob("index*")):
        size_b, level = _size_b(index / "size"), _number(index / "level")
        if size_b is None or level is None or _text(index / "type") == "Instruction":
            continue
        sharing = _cpu_list(_text(index / "shared_cpu_list")) or {cpu}
        caches.append(
            Cache(
                level=level,
                size_b=size_b,
                line_b=_number(index / "coherency_line_size") or 64,
                ways=_number(index / "ways_of_associativity") or None,
                shared_by=len(_cores(root, sharing)),
            )
        )
    return tuple(sorted(caches, key=lambda cache: cache.level))


def instruction_cache_b(root: Path = ROOT) -> int | None:
    """Return the size of one core's first-level instruction cache in bytes; None when it is not told."""
    for index in sorted((root / _CPU_DIR / f"cpu{min(_allowed_cpus(root))}/cache").glob("index*")):
        if _text(index / "type") == "Instruction" and _number(index / "level") == 1:
            return _size_b(index / "size")
    return None


def max_frequency_hz(root: Path = ROOT) -> float | None:
    """Return the highest clock that cpufreq allows, in Hz; None where there is no cpufreq, as in most VMs."""
    khz = _number(root / _CPU_DIR / f"cpu{min(_allowed_cpus(root))}/cpufreq/cpuinfo_max_freq")
    return khz * 1e3 if khz else None


def is_virtual(root: Path = ROOT) -> bool | None:
    """Tell whether a hypervisor announces itself to this CPU; None when the CPU has no such flag to read."""
    flags = _cpuinfo(root).get("flags")
    return None if flags is None else "hypervisor" in flags.split()


def machine_id(device: Device, threads: int) -> str:
    """Return the id that measured values are kept under: what a time depends on and does not change by itself."""
    return digest(
        {
            "cpu": device.name,
            "isa": list(device.isa),
            "caches": [[cache.level, cache.size_b, cache.shared_by] for cache in device.caches],
            "cores": device.cores,
            "threads": threads,
            "os": platform.system(),
            "architecture": platform.machine(),
        }
    )


# --- reading /proc and /sys ------------------------------------------------------------------------------------------


def _allowed_cpus(root: Path) -> set[int]:
    """The CPUs this process may run on, never empty."""
    for line in _text(root / "proc/self/status").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            allowed = _cpu_list(line.partition(":")[2])
            return allowed & _present_cpus(root) or allowed  # the mask can name CPUs that are offline
    if root == ROOT and hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _present_cpus(root: Path) -> set[int]:
    return _cpu_list(_text(root / _CPU_DIR / "online")) or set(range(os.cpu_count() or 1))


def _cores(root: Path, cpus: Iterable[int]) -> set[object]:
    return {_core(root, cpu) for cpu in cpus}


def _core(root: Path, cpu: int) -> object:
    topology = root / _CPU_DIR / f"cpu{cpu}/topology"
    siblings = _cpu_list(_text(topology / "thread_siblings_list"))
    if siblings:
        return min(siblings)
    place = tuple(_number(topology / name) for name in ("physical_package_id", "die_id", "core_id"))
    return place if place[2] is not None else cpu


def _has_topology(root: Path, cpus: Iterable[int]) -> bool:
    return all((root / _CPU_DIR / f"cpu{cpu}/topology").is_dir() for cpu in cpus)


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's entry of `/proc/cpuinfo`."""
    info: dict[str, str] = {}
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            info.setdefault(key.strip(), value.strip())
    return info


def _cpu_list(text: str) -> set[int]:
    """Parse the kernel's list format, such as `0-3,8`."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.strip().isdigit():
            cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


def _size_b(path: Path) -> int | None:
    text = _text(path)
    scale = {"K": 1024, "M": 1024**2, "G": 1024**3}.get(text[-1:], 1)
    digits = text.rstrip("KMG")
    return int(digits) * scale if digits.isdigit() else None


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def _text(path: Path) -> str:
    """The file's text without its line end; empty when it cannot be read, which is how absence shows in `/sys`."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
