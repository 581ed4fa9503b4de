"""What keeps a kernel from running faster: one primary class from the taxonomy, with the evidence that decided.

The rules run in a fixed order and the first that applies decides: capped, overhead.movement, overhead.launch,
parallel.underfilled, parallel.sync, then by stall share memory.* or compute.*, frontend.code, undetermined. The same
rules judge a prediction before measuring (`expected_class`) and a measurement after (`classify`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from mapper.records import Bottleneck, BottleneckClass, Reading

# Thresholds of the taxonomy; every finding prints the one that decided.
GAP_SHARE = 0.30
FILL_LOSS = 0.20
FILLED_EFFICIENCY = 0.80
SYNC_EFFICIENCY = 0.70
STALL_HIGH = 0.30
STALL_LOW = 0.20
ROOF = 0.60
AMPLIFIED = 1.5
PEAK_FRACTION = 0.60
LONGLAT_SHARE = 0.30
LONGLAT_COST = 10  # plain vector operations that one exp, div, sqrt or erf is worth.
# Source of LONGLAT_COST: order of magnitude of packed division and of a vector exp polynomial against packed
# multiplication, Fog, Instruction tables, 2022.

_UNKNOWN_STALL = Reading(value=None, unit="1", method="none", reason="no stall reading")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEvidence:
    """What is known of one kernel, per call, all at the same thread count. None: not known.

    `bytes_by_level` is the traffic between a level and the one above it; `bytes_moved` is the traffic at the
    outermost level that the kernel really uses, against `bytes_compulsory`, each argument once. A kernel without a
    parallel loop has one parallel task.
    """

    flops: int
    longlat_flops: int = 0
    time_s: float
    is_movement: bool = False
    executed_fraction: float | None = None
    flop_fraction: float | None = None
    stall_share: Reading = _UNKNOWN_STALL
    bytes_by_level: Mapping[str, float] = field(default_factory=dict)
    bandwidth_b_per_s: Mapping[str, float] = field(default_factory=dict)  # by level, at `threads` threads
    bytes_compulsory: float = 0.0
    bytes_moved: float | None = None
    parallel_tasks: int | None = None
    threads: int = 1
    parallel_efficiency: float | None = None  # time at 1 thread ÷ (threads × time at `threads`)
    launch_overhead_s: float = 0.0
    code_b: int | None = None
    l1i_b: int | None = None
    is_drifting: bool = False  # the reference kernel was beyond the drift limit on both sides of the reading


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    observed: BottleneckClass
    evidence: tuple[str, ...]
    secondary: tuple[BottleneckClass, ...] = ()
    grade: Literal["proven", "consistent", "guess"] = "consistent"


def classify(evidence: KernelEvidence, expected: BottleneckClass = "undetermined") -> Bottleneck:
    """Judge what limits a kernel.

    Args:
        evidence: What was measured and predicted.
        expected: What `expected_class` said before measuring.

    Returns:
        Class with evidence. Grade `proven` needs a stall share that was measured; with method `model` the best is
        `consistent`.
    """
    found = _first_finding(evidence)
    lines = found.evidence
    if expected not in {"undetermined", found.observed}:
        lines = (*lines, f"expected {expected} before measuring")
    grade = found.grade
    if grade == "proven" and evidence.stall_share.grade != "measured":
        grade = "consistent"
    return Bottleneck(
        expected=expected, observed=found.observed, secondary=found.secondary[:2], grade=grade, evidence=lines
    )


def expected_class(prediction: KernelEvidence) -> BottleneckClass:
    """Return the class to expect from predicted times and traffic, by the same rules as for measured ones."""
    return _first_finding(prediction).observed


def _first_finding(e: KernelEvidence) -> _Finding:
    for rule in (_capped, _movement, _launch, _underfilled, _sync, _by_stall_share, _frontend):
        finding = rule(e)
        if finding is not None:
            return finding
    return _undetermined(e)


def _capped(e: KernelEvidence) -> _Finding | None:
    if not e.is_drifting:
        return None
    line = "the reference kernel was beyond the drift limit before and after: throttled or disturbed, measure again"
    return _Finding(observed="capped", evidence=(line,))


def _movement(e: KernelEvidence) -> _Finding | None:
    if not (e.is_movement or e.flops == 0) or e.time_s <= 0:
        return None
    line = f"0 FLOPs in {_us(e.time_s)}: it only moves data"
    return _Finding(observed="overhead.movement", evidence=(line,), grade="proven")


def _launch(e: KernelEvidence) -> _Finding | None:
    gap = e.launch_overhead_s / e.time_s if e.time_s > 0 else 0.0
    if gap < GAP_SHARE:
        return None
    line = f"launch {_us(e.launch_overhead_s)} of {_us(e.time_s)} is a gap share of {gap:.2f} (limit {GAP_SHARE})"
    return _Finding(observed="overhead.launch", evidence=(line,))


def fill_loss(tasks: int, threads: int) -> float:
    """Return the share of thread time that idles in the last wave: 1 − w / (c · ⌈w / c⌉)."""
    slots = threads * math.ceil(tasks / threads)
    return (slots - tasks) / slots


def _underfilled(e: KernelEvidence) -> _Finding | None:
    if not e.parallel_tasks or e.threads == 1:
        return None
    loss = fill_loss(e.parallel_tasks, e.threads)
    line = f"{e.parallel_tasks} tasks on {e.threads} threads: fill loss {loss:.2f} (limit {FILL_LOSS})"
    if loss < FILL_LOSS:
        return None
    if e.parallel_efficiency is None:
        return _Finding(
            observed="parallel.underfilled", evidence=(line, "efficiency from 1 thread not measured"), grade="guess"
        )
    if e.parallel_efficiency >= FILLED_EFFICIENCY:
        return None
    efficiency = f"efficiency from 1 thread {e.parallel_efficiency:.2f} (below {FILLED_EFFICIENCY})"
    return _Finding(observed="parallel.underfilled", evidence=(line, efficiency), grade="proven")


def _sync(e: KernelEvidence) -> _Finding | None:
    stall = e.stall_share.value
    if e.threads == 1 or e.parallel_efficiency is None or stall is None:
        return None
    if e.parallel_efficiency >= SYNC_EFFICIENCY or stall >= STALL_LOW:
        return None
    lines = (
        f"efficiency from 1 thread {e.parallel_efficiency:.2f} (below {SYNC_EFFICIENCY}) with enough tasks",
        _stall_line(e, f"below {STALL_LOW}"),
    )
    return _Finding(observed="parallel.sync", evidence=lines, grade="proven")


def _by_stall_share(e: KernelEvidence) -> _Finding | None:
    stall = e.stall_share.value
    if stall is None:
        return None
    if stall >= STALL_HIGH:
        return _with_stall(_memory(e), e, f"memory from {STALL_HIGH}")
    compute = _compute(e)
    if stall < STALL_LOW:
        return _with_stall(compute, e, f"compute below {STALL_LOW}")
    return _with_stall(_larger(compute, _memory(e), e), e, f"between {STALL_LOW} and {STALL_HIGH}")


def _larger(compute: _Finding | None, memory: _Finding | None, e: KernelEvidence) -> _Finding | None:
    """Pick the larger effect, the other one secondary.

    Memory's effect is the stall share. That of compute is the share of time at peak arithmetic when it is
    compute.peak, else the share that is neither stalled nor at peak arithmetic.
    """
    fraction = _fraction(e)
    if compute is None or memory is None or fraction is None:
        return compute or memory
    stall = e.stall_share.value or 0.0
    effect = fraction if compute.observed == "compute.peak" else 1.0 - stall - fraction
    first, second = (compute, memory) if effect > stall else (memory, compute)
    lines = (f"effect of compute {effect:.2f}, of memory {stall:.2f}", *first.evidence, *second.evidence)
    return replace(first, secondary=(second.observed, *first.secondary), evidence=lines)


def _with_stall(finding: _Finding | None, e: KernelEvidence, rule: str) -> _Finding | None:
    return finding and replace(finding, evidence=(_stall_line(e, rule), *finding.evidence))


def _stall_line(e: KernelEvidence, rule: str) -> str:
    return f"stall share {e.stall_share.value:.2f} by {e.stall_share.method} ({rule})"


def _memory(e: KernelEvidence) -> _Finding | None:
    roof = _highest_roof(e)
    if e.bytes_moved is not None and e.bytes_compulsory > 0 and e.bytes_moved / e.bytes_compulsory >= AMPLIFIED:
        line = f"moves {e.bytes_moved / e.bytes_compulsory:.2f} × the compulsory bytes (limit {AMPLIFIED})"
        others = () if roof is None else (roof.observed,)
        return _Finding(
            observed="memory.amplified", secondary=others, evidence=(line, *(roof.evidence if roof else ()))
        )
    return roof


def _highest_roof(e: KernelEvidence) -> _Finding | None:
    """Find the level closest to its bandwidth; None when no level beyond L1 has both traffic and bandwidth."""
    roofs = {
        level: traffic_b / e.time_s / e.bandwidth_b_per_s[level]
        for level, traffic_b in e.bytes_by_level.items()
        if level != "L1" and e.bandwidth_b_per_s.get(level, 0.0) > 0 and e.time_s > 0
    }
    if not roofs:
        return None
    level = max(roofs, key=lambda name: (roofs[name], name == "DRAM"))
    line = f"{level} traffic at {roofs[level]:.2f} of its measured bandwidth (limit {ROOF})"
    if roofs[level] < ROOF:
        return _Finding(observed="memory.latency", evidence=(f"highest roof: {line}",))
    return _Finding(observed="memory.dram_bandwidth" if level == "DRAM" else "memory.cache_bandwidth", evidence=(line,))


def _fraction(e: KernelEvidence) -> float | None:
    return e.flop_fraction if e.executed_fraction is None else e.executed_fraction


def _compute(e: KernelEvidence) -> _Finding | None:
    fraction = _fraction(e)
    if fraction is None:
        return None
    name = "FLOP fraction" if e.executed_fraction is None else "executed fraction"
    line = f"{name} {fraction:.2f} (limit {PEAK_FRACTION})"
    if fraction >= PEAK_FRACTION:
        return _Finding(observed="compute.peak", evidence=(line,), grade="proven")
    secondary: tuple[BottleneckClass, ...] = ()
    if e.code_b is not None and e.l1i_b is not None and e.code_b > e.l1i_b:
        secondary = ("frontend.code",)
    longlat = _longlat_share(e)
    if longlat >= LONGLAT_SHARE:
        weight = (
            f"exp, div, sqrt, erf: {longlat:.2f} of the work at {LONGLAT_COST} × a plain FLOP (limit {LONGLAT_SHARE})"
        )
        return _Finding(observed="compute.longlat", evidence=(line, weight), secondary=secondary)
    return _Finding(observed="compute.inefficient", evidence=(line,), secondary=secondary, grade="proven")


def _longlat_share(e: KernelEvidence) -> float:
    heavy = LONGLAT_COST * e.longlat_flops
    total = heavy + e.flops - e.longlat_flops
    return heavy / total if total > 0 else 0.0


def _frontend(e: KernelEvidence) -> _Finding | None:
    if e.code_b is None or e.l1i_b is None or e.code_b <= e.l1i_b:
        return None
    line = (
        f"code {e.code_b} B is larger than the L1 instruction cache of {e.l1i_b} B; a build with less unrolling decides"
    )
    return _Finding(observed="frontend.code", evidence=(line,), grade="guess")


def _undetermined(e: KernelEvidence) -> _Finding:
    missing = []
    if e.stall_share.value is None:
        missing.append(f"a stall share ({e.stall_share.reason or 'none was taken'})")
    elif e.stall_share.value >= STALL_LOW:
        missing.append("predicted traffic and measured bandwidth of a level beyond L1")
    if _fraction(e) is None:
        missing.append("a FLOP fraction")
    return _Finding(observed="undetermined", evidence=(f"would decide: {' and '.join(missing)}",), grade="guess")


def _us(time_s: float) -> str:
    return f"{time_s * 1e6:.3g} µs"
