"""What an energy meter is, and how its counter becomes a reading."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mapper.records import Reading

LEAST_TICKS = 50
WIDEST_SPREAD = 0.15  # of the repeats, relative to their median


class MeterError(Exception):
    """A counter that cannot be read or believed any more; the message is the reading's reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """No meter, and why: one sentence for the sheet and for `doctor`."""

    reason: str


class Meter(Protocol):
    """A cumulative energy counter. Wrapping is the meter's own business: `read_j` only ever grows."""

    name: str
    covers: str  # what the energy includes: `package-0, dram-0`, …
    resolution_j: float
    tick_s: float  # how often the counter moves

    def read_j(self) -> float:
        """Return the energy since the meter was opened, in joules.

        Raises:
            MeterError: The counter vanished, or jumped in a way that no wrap explains.
        """


def energy_reading(
    meter: Meter | Unavailable, run: Callable[[int], float], calls: int, repeats: int = 3, threads: int | None = None
) -> Reading:
    """Measure gross energy per call in continuous runs of their own.

    Args:
        meter: The counter, or why there is none.
        run: Makes that many calls back to back and returns the seconds they took.
        calls: Calls a run; the run must last at least 50 ticks of the counter.
        repeats: Runs, each with its own energy; their spread decides whether the reading stands.
        threads: The thread count of the calls.

    Returns:
        Joules per call, gross: idle energy and everything else that the counter covers is in it. `low` and `high`
        stay None, as a few repeats give no interval. None with a reason when there is no meter, the run is too
        short, the counter misbehaves, or the repeats differ by more than 15 %.
    """
    if isinstance(meter, Unavailable):
        return Reading(value=None, unit="J", method="none", reason=meter.reason, threads=threads)
    method = f"{meter.name} ({meter.covers}), gross"
    energies_j: list[float] = []
    reason = None
    try:
        for _ in range(repeats):
            before_j = meter.read_j()
            elapsed_s = run(calls)
            energies_j.append(meter.read_j() - before_j)
            reason = _too_short(meter, elapsed_s, energies_j[-1])
            if reason is not None:
                break
    except MeterError as error:
        reason = str(error)
    reason = reason or _too_wide(energies_j)
    if reason is not None:
        return Reading(value=None, unit="J", method=method, reason=reason, threads=threads)
    return Reading(
        value=statistics.median(energies_j) / calls,
        unit="J",
        method=f"{method}, {calls} calls a run, resolution {meter.resolution_j / calls:.2g} J a call",
        grade="measured",
        n=repeats,
        threads=threads,
    )


def _too_short(meter: Meter, elapsed_s: float, energy_j: float) -> str | None:
    if elapsed_s < LEAST_TICKS * meter.tick_s:
        return f"the run took {elapsed_s:.3g} s, below {LEAST_TICKS} counter ticks of {meter.tick_s:.3g} s"
    if energy_j < LEAST_TICKS * meter.resolution_j:
        return f"the counter moved by {energy_j:.3g} J, below {LEAST_TICKS} steps of {meter.resolution_j:.3g} J"
    return None


def _too_wide(energies_j: list[float]) -> str | None:
    spread = (max(energies_j) - min(energies_j)) / statistics.median(energies_j)
    if spread > WIDEST_SPREAD:
        return f"{len(energies_j)} repeats differ by {spread:.0%}, above {WIDEST_SPREAD:.0%}"
    return None


def calls_needed(meter: Meter | Unavailable, time_s: float) -> int:
    """Return how many calls of `time_s` fill 60 ticks of the meter, 1 without a meter."""
    if isinstance(meter, Unavailable) or time_s <= 0:
        return 1
    return max(1, int(1.2 * LEAST_TICKS * meter.tick_s / time_s) + 1)


def idle_power(meter: Meter | Unavailable, wait: Callable[[float], float], seconds: float = 1.0) -> Reading:
    """Measure the power drawn while the caller does nothing.

    Args:
        meter: The counter, or why there is none.
        wait: Sleeps for about that many seconds and returns how long it really took.
        seconds: How long to wait.
    """
    if isinstance(meter, Unavailable):
        return Reading(value=None, unit="W", method="none", reason=meter.reason)
    method = f"{meter.name} ({meter.covers}), idle"
    try:
        before_j = meter.read_j()
        elapsed_s = wait(seconds)
        energy_j = meter.read_j() - before_j
    except MeterError as error:
        return Reading(value=None, unit="W", method=method, reason=str(error))
    if elapsed_s < LEAST_TICKS * meter.tick_s:
        return Reading(value=None, unit="W", method=method, reason=_too_short(meter, elapsed_s, energy_j))
    return Reading(value=energy_j / elapsed_s, unit="W", method=method, grade="measured", n=1)


def net_of_idle(gross: Reading, idle_w: Reading, time_s: float) -> Reading:
    """Return `gross` energy per call less what the machine draws anyway in `time_s`; None when either is None."""
    if gross.value is None or idle_w.value is None:
        reason = gross.reason if gross.value is None else f"idle power unknown: {idle_w.reason}"
        return Reading(value=None, unit="J", method=gross.method, reason=reason, threads=gross.threads)
    return Reading(
        value=gross.value - idle_w.value * time_s,
        unit="J",
        method=gross.method.replace("gross", f"net of {idle_w.value:.3g} W idle"),
        grade="measured",
        n=gross.n,
        threads=gross.threads,
    )
