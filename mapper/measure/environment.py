"""What surrounds a run and may differ from one to the next: versions, load, limits, operating system."""

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from mapper.measure.device import ROOT, cpu_quota, describe_cpu, is_virtual
from mapper.records import Environment

BUSY_SHARE = 0.3  # load a core at which a bystander is worth a note


def environment(command: str, seed: int, versions: Mapping[str, str], root: Path = ROOT) -> Environment:
    """Record the surroundings of a run as they are now.

    Args:
        command: The command line, as typed.
        seed: The seed of the run.
        versions: Versions of what takes part, by name.
        root: Where `/proc`, `/sys` and `/etc` hang, for replayed machines.
    """
    load = _load_1min(root)
    return Environment(
        time_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        seed=seed,
        versions=dict(sorted(versions.items())),
        os=_os_name(root),
        load_1min=load,
        cpu_quota=cpu_quota(root),
        virtual_machine=is_virtual(root),
        notes=_notes(root, load),
    )


def _load_1min(root: Path) -> float | None:
    try:
        return float((root / "proc/loadavg").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        pass
    if root != ROOT or not hasattr(os, "getloadavg"):
        return None
    return os.getloadavg()[0]


def _os_name(root: Path) -> str:
    kernel = f"{platform.system()} {platform.release()}"
    try:
        lines = (root / "etc/os-release").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return kernel
    pretty = next(
        (line.partition("=")[2].strip().strip("\"'") for line in lines if line.startswith("PRETTY_NAME=")), ""
    )
    return f"{pretty}, {kernel}" if pretty else kernel


def _notes(root: Path, load: float | None) -> tuple[str, ...]:
    notes = []
    cores = describe_cpu(root).cores
    if load is not None and load > BUSY_SHARE * cores:
        notes.append(f"load was {load:g} on {cores} usable cores at the start: other work may have disturbed the times")
    try:
        governor = (root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text(encoding="ascii").strip()
    except OSError:
        governor = ""
    if governor not in {"", "performance"}:
        notes.append(f"CPU frequency governor is '{governor}': the clock may change while timing")
    return tuple(notes)
