"""The machine as the cost model sees it: vector unit, ceilings, caches, cores, overheads."""

from collections.abc import Sequence
from typing import Literal

from mapper.records import Device, MachineModel

# What a figure is taken for when it was never measured. Orders of magnitude of a server core around 2020.
ASSUMED_CLOCK_HZ = 2.5e9
ASSUMED_FMA_UNITS = 2
ASSUMED_BANDWIDTH_B_PER_S = {"L1": 150e9, "L2": 60e9, "L3": 20e9, "DRAM": 10e9}
ASSUMED_CACHE_B = {"L1": 32 * 1024, "L2": 512 * 1024}


def machine_model(device: Device, threads: int) -> MachineModel:
    """Build the model of `device` from its description and measured peaks.

    A figure without a measured peak is assumed, and named in `assumed`: the other thread count's figure scaled by
    the number of threads (DRAM and shared caches unscaled) when that was measured, else a typical value.
    """
    bits, registers, has_fma = _vector_unit(device.isa)
    caches = {f"L{cache.level}": cache for cache in device.caches}
    cache_b = {level: cache.size_b for level, cache in caches.items()} or dict(ASSUMED_CACHE_B)
    shared_by = {level: caches[level].shared_by if level in caches else 1 for level in cache_b}
    assumed = [] if caches else ["cache sizes"]
    peaks = _Peaks(device, threads, assumed)
    typical_flops = ASSUMED_CLOCK_HZ * ASSUMED_FMA_UNITS * (2 if has_fma else 1) * bits / 32
    flops_1, flops_n = peaks.pair("flops", "float32", typical_flops, scale=threads)
    one, many = {}, {}
    for level in (*cache_b, "DRAM"):
        typical = ASSUMED_BANDWIDTH_B_PER_S.get(level, ASSUMED_BANDWIDTH_B_PER_S["L3"])
        scale = threads if shared_by.get(level, threads) == 1 else 1
        one[level], many[level] = peaks.pair("bandwidth", level, typical, scale)
    return MachineModel(
        vector_bits=bits,
        vector_lanes_f32=bits // 32,
        vector_registers=registers,
        has_fma=has_fma,
        cores=device.cores,
        threads=threads,
        flops_per_s_1=flops_1,
        flops_per_s_n=flops_n,
        bandwidth_b_per_s_1=one,
        bandwidth_b_per_s_n=many,
        cache_b=cache_b,
        cache_shared_by=shared_by,
        line_b=device.caches[0].line_b if device.caches else 64,
        assumed=tuple(assumed),
    )


def _vector_unit(isa: Sequence[str]) -> tuple[int, int, bool]:
    """Width in bits, architectural vector registers, fused multiply-add. Source: the architecture manuals."""
    if "avx512f" in isa:
        return 512, 32, True
    if "neon" in isa or "asimd" in isa:
        return 128, 32, True
    return (256 if "avx" in isa else 128), 16, "fma" in isa


class _Peaks:
    """Looks peaks up and keeps account of those that had to be assumed."""

    def __init__(self, device: Device, threads: int, assumed: list[str]) -> None:
        self._measured = {
            (peak.kind, peak.name, peak.threads): peak.reading.value
            for peak in device.peaks
            if peak.reading.value is not None
        }
        self._threads = threads
        self._assumed = assumed

    def pair(self, kind: Literal["flops", "bandwidth"], name: str, typical: float, scale: int) -> tuple[float, float]:
        one = self._measured.get((kind, name, 1))
        many = self._measured.get((kind, name, self._threads))
        if one is None:
            self._assumed.append(f"{kind} {name} at 1 thread")
            one = typical if many is None else many / scale
        if many is None:
            many = one * scale
            if self._threads > 1:
                self._assumed.append(f"{kind} {name} at {self._threads} threads")
        return one, many
