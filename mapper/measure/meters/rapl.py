"""The RAPL counters of x86 processors, read through the Linux powercap tree."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mapper.measure.meters.protocol import MeterError, Unavailable

POWERCAP = "sys/class/powercap"
RESOLUTION_J = 61e-6  # 2⁻¹⁴ J, the usual energy status unit. Source: Intel SDM vol. 3B, 16.10.1
TICK_S = 1e-3  # Source: the same section: updated about every millisecond


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()


@dataclass(slots=True)
class _Domain:
    name: str
    path: Path
    range_uj: int
    last_uj: int
    total_uj: int = 0


@dataclass(slots=True)
class RaplMeter:
    """The sum of all packages and all separate DRAM domains, whole sockets, since the meter was opened.

    A counter that falls has wrapped at `max_energy_range_uj`, once at most if it is read every few minutes. A wrap
    that would mean more than half of the range in one go is taken for a reset instead and ends the reading.
    """

    domains: list[_Domain]
    read_text: Callable[[Path], str]
    name: str = "rapl"
    resolution_j: float = RESOLUTION_J
    tick_s: float = TICK_S
    covers: str = field(init=False)

    def __post_init__(self) -> None:
        self.covers = ", ".join(domain.name for domain in self.domains)

    def read_j(self) -> float:
        """Return the energy since the meter was opened, in joules.

        Raises:
            MeterError: A counter cannot be read any more, or went back without having wrapped.
        """
        for domain in self.domains:
            try:
                now_uj = int(self.read_text(domain.path / "energy_uj"))
            except (OSError, ValueError) as error:
                raise MeterError(f"RAPL domain {domain.name} cannot be read any more: {error}") from error
            moved_uj = now_uj - domain.last_uj
            if moved_uj < 0:
                moved_uj += domain.range_uj
                if not 0 <= moved_uj <= domain.range_uj // 2:
                    raise MeterError(f"RAPL counter of {domain.name} went back without having wrapped: it was reset")
            domain.total_uj += moved_uj
            domain.last_uj = now_uj
        return sum(domain.total_uj for domain in self.domains) * 1e-6


def open_rapl(root: Path = Path("/"), read_text: Callable[[Path], str] = _read) -> RaplMeter | Unavailable:
    """Open the RAPL counters under `root`, or say why that is impossible.

    Counted are top-level `package-*` zones and `dram` zones inside them. `core` and `uncore` are parts of a package,
    `psys` contains the packages, and `intel-rapl-mmio` shows a package a second time: none of them is added.

    Args:
        root: Where `/sys` hangs, for replayed trees.
        read_text: Reads one file of the tree.
    """
    zones = sorted((root / POWERCAP).glob("intel-rapl:*"))
    if not zones:
        return Unavailable(
            reason="no RAPL counters: no powercap tree (a VM, another operating system, or intel_rapl not loaded)"
        )
    domains: list[_Domain] = []
    for zone in zones:
        try:
            name = _counted_name(zone, read_text)
            if name is not None:
                range_uj = int(read_text(zone / "max_energy_range_uj"))
                domains.append(_Domain(name, zone, range_uj, int(read_text(zone / "energy_uj"))))
        except PermissionError:
            return Unavailable(
                reason=f"RAPL counters exist but may not be read: allow your user to read {zone.name}/energy_uj "
                "in /sys/class/powercap (root only by default since Linux 5.10)"
            )
        except (OSError, ValueError) as error:
            return Unavailable(reason=f"RAPL zone {zone.name} cannot be read: {error}")
    if not any(domain.name.startswith("package") for domain in domains):
        return Unavailable(reason="the powercap tree has no package zone")
    return RaplMeter(domains, read_text)


def _counted_name(zone: Path, read_text: Callable[[Path], str]) -> str | None:
    name = read_text(zone / "name")
    numbers = zone.name.split(":")[1:]
    if len(numbers) == 1 and name.startswith("package"):
        return name
    return f"dram-{numbers[0]}" if len(numbers) == 2 and name == "dram" else None
