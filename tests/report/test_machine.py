import dataclasses
import io

from rich.console import Console

from mapper.records import DoctorLine, Peak, Reading
from mapper.report.machine import render_doctor, render_machine


def rendered(render, value, encoding="utf-8"):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    render(value, Console(file=stream, width=100))
    stream.flush()
    return raw.getvalue().decode(encoding)


def test_machine_shows_each_peak_with_its_method(sheet):
    text = rendered(render_machine, sheet.machine)
    assert "Example CPU 3000, 2 cores, avx2 fma" in text
    assert "L1 32 KiB (shared by 1)" in text
    row = next(line for line in text.splitlines() if line.startswith("DRAM"))
    assert row.split() == ["DRAM", "2", "23.1", "GB/s", "–", "read", "sweep"]


def test_peak_that_could_not_be_had_says_why(sheet):
    peak = Peak(
        kind="flops",
        name="float16",
        threads=2,
        reading=Reading(value=None, unit="FLOP/s", method="fma", reason="no F16C"),
        theoretical=Reading(value=4e11, unit="FLOP/s", method="clock", grade="modelled"),
    )
    device = dataclasses.replace(sheet.machine.devices[0], peaks=(peak,))
    text = rendered(render_machine, dataclasses.replace(sheet.machine, devices=(device,)))
    row = next(line for line in text.splitlines() if line.startswith("float16"))
    assert "~400 GFLOP/s" in row
    assert "null: no F16C" in row


def test_doctor_shows_state_detail_and_remedy():
    lines = (
        DoctorLine(name="threads", status="ok", detail="2 of 2 cores"),
        DoctorLine(name="RAPL", status="off", detail="no permission", remedy="chmod o+r energy_uj"),
        DoctorLine(name="GPU", status="missing", detail="no driver\x1b[2J"),
    )
    assert [line.rstrip() for line in rendered(render_doctor, lines).splitlines()] == [
        "✓ ok       threads  2 of 2 cores",
        "– off      RAPL     no permission",
        "                    → chmod o+r energy_uj",
        "✗ missing  GPU      no driver\\x1b[2J",
    ]
    assert rendered(render_doctor, lines, "ascii").isascii()
