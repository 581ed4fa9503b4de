"""The ceilings of a machine: what to probe, how probes become peaks, and the cache that keeps them."""

import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from mapper.keys import digest
from mapper.records import SCHEMA_VERSION, Cache, Device, Peak, Reading

MIB = 1024 * 1024
BEYOND_PRIVATE_B = 32 * MIB  # how far past the private caches an L3 probe reaches: a VM sees the L3 of its whole host
DRAM_CAP_B = 512 * MIB
DRAM_UNKNOWN_CACHES_B = 256 * MIB
UNSTEADY_SHARE = 0.10
FMA_UNITS = 2  # Source: vendor optimisation guides; holds for Zen, Haswell and later server cores, Neoverse


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One ceiling to measure: a register-resident FMA loop, or streaming reads over a working set."""

    kind: Literal["flops", "bandwidth"]
    name: str  # dtype, or level: L1, L2, …, DRAM
    threads: int
    working_set_b: int | None = None  # all threads together, each reading its own part; None for flops
    note: str = ""  # what keeps the working set from being ideal; ends up in the peak's method


def probe_plan(device: Device, threads: int) -> tuple[Probe, ...]:
    """List the ceilings to measure: FMA in float32 and float64, reads from each level, at 1 and `threads` threads.

    Working sets: half of the caches in use for every level but the last; for the last level past all levels above
    it, yet at most half of it and at most 32 MiB beyond them; four times the last level for memory, at most 512 MiB.
    """
    probes: list[Probe] = []
    for count in dict.fromkeys((1, threads)):
        probes += [Probe(kind="flops", name=dtype, threads=count) for dtype in ("float32", "float64")]
        probes += _bandwidth_probes(device.caches, count)
    return tuple(probes)


def _bandwidth_probes(caches: Sequence[Cache], threads: int) -> list[Probe]:
    probes, above_b = [], 0
    for cache in caches:
        capacity_b, note = _capacity_b(cache, threads), ""
        size_b = capacity_b // 2
        if cache.level >= 3:
            size_b = min(size_b, max(above_b + BEYOND_PRIVATE_B, 2 * above_b))
        if size_b < 2 * above_b:
            note = f"working set only {size_b / above_b:.1f} × the caches above: partly served from there"
        name = f"L{cache.level}"
        probes.append(Probe(kind="bandwidth", name=name, threads=threads, working_set_b=size_b, note=note))
        above_b = capacity_b
    probes.append(_dram_probe(above_b, threads))
    return probes


def _dram_probe(last_level_b: int, threads: int) -> Probe:
    size_b, note = min(4 * last_level_b, DRAM_CAP_B), ""
    if last_level_b == 0:
        size_b, note = DRAM_UNKNOWN_CACHES_B, "cache sizes unknown"
    elif size_b < 4 * last_level_b:
        note = (
            f"working set {size_b // MIB} MiB is below 4 × the {last_level_b // MIB} MiB last-level cache: "
            "part of it may come from the cache"
        )
    return Probe(kind="bandwidth", name="DRAM", threads=threads, working_set_b=size_b, note=note)


def _capacity_b(cache: Cache, threads: int) -> int:
    """The bytes of this level that `threads` cores reach together."""
    return cache.size_b * math.ceil(threads / cache.shared_by)


def peak_from_samples(
    probe: Probe, work: float, samples_s: Sequence[float], theoretical: Reading | None = None
) -> Peak:
    """Turn the repeats of a probe into a ceiling.

    The time taken is the 5th percentile of the repeats (the lower of two neighbours; the fastest below 20). A ceiling
    is what the machine can do undisturbed, so the median, which carries every interruption, would set it too low and
    let kernels exceed it; the single fastest of many is exposed to a clock glitch. The spread printed is from that
    time to the median.

    Args:
        probe: What was measured.
        work: FLOPs or bytes of one repeat, all threads together.
        samples_s: Seconds of each repeat.
        theoretical: The figure from clock and width, None when unknown.
    """
    unit = "FLOP/s" if probe.kind == "flops" else "B/s"
    if not samples_s or min(samples_s) <= 0:
        reading = Reading(
            value=None, unit=unit, method="probe", threads=probe.threads, reason="the probe gave no usable times"
        )
    else:
        fast_s = float(np.quantile(np.asarray(samples_s), 0.05, method="lower"))
        spread = float(np.median(samples_s)) / fast_s - 1.0
        reading = Reading(
            value=work / fast_s,
            unit=unit,
            method=_probe_method(probe, len(samples_s), spread),
            grade="measured",
            n=len(samples_s),
            threads=probe.threads,
        )
    return Peak(kind=probe.kind, name=probe.name, threads=probe.threads, reading=reading, theoretical=theoretical)


def _probe_method(probe: Probe, n: int, spread: float) -> str:
    loop = (
        "register-resident FMA" if probe.kind == "flops" else f"reads over {(probe.working_set_b or 0) / MIB:.3g} MiB"
    )
    parts = [f"{loop}, 5th percentile of {n} repeats", f"spread {spread:.1%}"]
    if spread > UNSTEADY_SHARE:
        parts.append("unsteady: measure again on a quieter machine")
    if probe.note:
        parts.append(probe.note)
    return "; ".join(parts)


def theoretical_peak(device: Device, probe: Probe, max_hz: float | None) -> Reading | None:
    """Return threads × clock × lanes × FMA units × 2 for a flops probe; None without a clock or for bandwidth.

    An upper bound: it takes the highest clock for all cores and two FMA units, which some cores do not have.
    """
    bits = {"float32": 32, "float64": 64}.get(probe.name)
    if max_hz is None or bits is None:
        return None
    flops_per_cycle = FMA_UNITS * (_vector_bits(device.isa) // bits) * 2
    return Reading(
        value=probe.threads * max_hz * flops_per_cycle,
        unit="FLOP/s",
        method=f"{max_hz / 1e9:g} GHz × {flops_per_cycle} FLOPs a cycle × {probe.threads} threads, 2 FMA units assumed",
        grade="modelled",
        threads=probe.threads,
    )


def _vector_bits(isa: Sequence[str]) -> int:
    if "avx512f" in isa:
        return 512
    return 256 if "avx" in isa else 128


# --- the cache -------------------------------------------------------------------------------------------------------


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: str
    machine_id: str
    compiler: str
    peaks: tuple[Peak, ...]


def load_peaks(cache_dir: Path, machine_id: str, compiler: str) -> tuple[Peak, ...] | None:
    """Return the peaks kept for this machine and compiler; None when there are none that can be trusted.

    A damaged file, another schema and another machine's file all count as none: peaks are cheap to measure again.

    Args:
        cache_dir: The user's cache folder.
        machine_id: From `measure.device.machine_id`.
        compiler: Name and version of what compiles the probes.
    """
    try:
        stored = msgspec.json.decode(_peaks_file(cache_dir, machine_id, compiler).read_bytes(), type=_Stored)
    except (OSError, msgspec.MsgspecError):
        return None
    if (stored.schema_version, stored.machine_id, stored.compiler) != (SCHEMA_VERSION, machine_id, compiler):
        return None
    return stored.peaks


def save_peaks(cache_dir: Path, machine_id: str, compiler: str, peaks: Sequence[Peak]) -> Path:
    """Keep `peaks` for this machine and compiler, replacing earlier ones in one step; return the file."""
    stored = _Stored(schema_version=SCHEMA_VERSION, machine_id=machine_id, compiler=compiler, peaks=tuple(peaks))
    path = _peaks_file(cache_dir, machine_id, compiler)
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, msgspec.json.format(msgspec.json.encode(stored, order="sorted")) + b"\n")
    return path


def _peaks_file(cache_dir: Path, machine_id: str, compiler: str) -> Path:
    return cache_dir / "peaks" / f"{machine_id}-{digest(compiler)}.json"


def _replace(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
