"""Owns the text form of a machine with its measured peaks, and of what `mapper doctor` found."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mapper.records import DoctorLine, Machine, Peak, Reading
from mapper.report.text import Glyphs, binary_size, glyphs_for, quantity

_STYLES = {"ok": "green", "missing": "red", "off": "yellow"}


def render_machine(machine: Machine, console: Console) -> None:
    """Print what the machine is and each measured peak with its interval and method."""
    glyphs = glyphs_for(console.encoding)
    facts = Table.grid(padding=(0, 2, 0, 0))
    for device in machine.devices:
        caches = ", ".join(f"L{c.level} {binary_size(c.size_b)} (shared by {c.shared_by})" for c in device.caches)
        _add(facts, glyphs, "machine", f"{device.name}, {device.cores} cores, {' '.join(device.isa)}")
        _add(facts, glyphs, "caches", caches or "not known")
    _add(facts, glyphs, "threads", f"{machine.threads} ({machine.threads_because})")
    _add(facts, glyphs, "target", machine.target)
    _add(facts, glyphs, "id", machine.id)
    console.print(facts)
    console.print()
    peaks = Table.grid(padding=(0, 2, 0, 0))
    _add(peaks, glyphs, "peak", "threads", "measured", "interval", "in theory", "method")
    for device in machine.devices:
        for peak in device.peaks:
            _add(peaks, glyphs, *_peak_cells(peak, glyphs))
    console.print(peaks)


def render_doctor(lines: Sequence[DoctorLine], console: Console) -> None:
    """Print each line of a diagnosis: what was looked for, its state, what was found and what would help."""
    glyphs = glyphs_for(console.encoding)
    table = Table.grid(padding=(0, 2, 0, 0))
    for line in lines:
        mark = glyphs.yes if line.status == "ok" else glyphs.no if line.status == "missing" else glyphs.none
        table.add_row(
            Text(f"{mark} {line.status}", style=_STYLES[line.status]),
            Text(glyphs.fit(line.name), style="bold", overflow="fold"),
            Text(glyphs.fit(line.detail), overflow="fold"),
        )
        if line.remedy:
            table.add_row("", "", Text(glyphs.fit(f"{glyphs.arrow} {line.remedy}"), style="dim", overflow="fold"))
    console.print(table)


def _peak_cells(peak: Peak, glyphs: Glyphs) -> tuple[str, ...]:
    unit = "FLOP/s" if peak.kind == "flops" else "B/s"
    reading = peak.reading
    interval = ""
    if reading.low is not None and reading.high is not None:
        interval = f"{quantity(reading.low, unit)} {glyphs.dash} {quantity(reading.high, unit)}"
    how = reading.method if reading.value is not None else f"null: {reading.reason}"
    return peak.name, str(peak.threads), _rate(reading, unit, glyphs), interval, _theory(peak, unit, glyphs), how


def _rate(reading: Reading, unit: str, glyphs: Glyphs) -> str:
    if reading.value is None:
        return glyphs.none
    return ("" if reading.grade == "measured" else "~") + quantity(reading.value, unit)


def _theory(peak: Peak, unit: str, glyphs: Glyphs) -> str:
    if peak.theoretical is None or peak.theoretical.value is None:
        return glyphs.none
    return f"~{quantity(peak.theoretical.value, unit)}"


def _add(table: Table, glyphs: Glyphs, label: str, *cells: str) -> None:
    table.add_row(Text(glyphs.fit(label), style="bold"), *(Text(glyphs.fit(cell), overflow="fold") for cell in cells))
