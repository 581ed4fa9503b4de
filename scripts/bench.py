"""Run the zoo side by side with other runtimes: a table on stdout, figures in a JSON file.

    scripts/bench.py                                  all of the zoo, default budget, beside onnxruntime
    scripts/bench.py squeezenet magika --budget 30s   some of it
    scripts/bench.py squeezenet --versus onnxruntime,tvm-default --json bench.json

Each model is explored by a fresh `mapper` process, whose figures are read from the sheet that it writes; a crash costs
one row. Ends with 0 when every model has a verified mapping, else with 1.
"""

import argparse
import contextlib
import datetime
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from mapper.cli.params import cache_dir
from mapper.config import ExploreRequest
from mapper.errors import MapperError
from mapper.flows.machine import find_host
from mapper.flows.prepare import prepare
from mapper.records import Machine, MappingSheet
from mapper.report.gfm import table
from mapper.report.jsonfile import encode, write_atomic
from mapper.report.sheet import SHEET_NAME, read_sheet
from mapper.worker.client import ChildFailureError
from mapper.worker.reference import ReferenceWorker
from mapper.worker.workers import TvmWorker

ZOO = (
    "squeezenet",
    "resnet50",
    "densenet121",
    "shufflenet",
    "ppocr-cls",
    "ppocr-det",
    "ppocr-rec",
    "magika",
    "minilm-l6",
)
RUNTIMES = ("onnxruntime", "tvm-default")
DEFAULT_RUNS = 20
_START = "from mapper.cli.main import main; main()"
TITLES = (
    "model",
    "best ms",
    "onnxruntime ms",
    "ratio",
    "floor ms",
    "TVM default ms",
    "% of peak",
    "explore s",
    "lowering s",
    "candidates",
    "memory MB",
    "verified",
    "mutants",
)
HOW = {
    "best_ms": "median of the best mapping in the final round of fresh processes",
    "onnxruntime_ms": "median of blocks that alternate with the best mapping, default options, equal threads",
    "ratio_onnxruntime": "ours ÷ onnxruntime from those blocks, so not best_ms ÷ onnxruntime_ms; below 1 is faster",
    "floor_ms": "the larger of useful FLOPs ÷ the float32 FMA peak measured at the threads used, and the bytes that"
    " cannot stay in the last-level cache between runs (weights, inputs and outputs, each once, less its size) ÷ the"
    " DRAM bandwidth measured",
    "peak_memory_mb": "resident set of the largest process of the run, the children that compile and time included",
    "tvm_default_ms": "median of TVM's own importer and default pipeline on the canonical model, after a first run",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model. None: not asked for, or not to be had; `reason` then says why."""

    model: str
    best_ms: float | None = None
    onnxruntime_ms: float | None = None
    ratio_onnxruntime: float | None = None
    floor_ms: float | None = None
    floor_by: str | None = None  # compute or memory
    tvm_default_ms: float | None = None
    explore_s: float | None = None
    lowering_s: float | None = None
    measured_candidates: int | None = None
    flop_fraction: float | None = None
    peak_memory_mb: float | None = None
    verified: bool = False
    mutants: str | None = None  # caught of tested
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What was asked for."""

    versus: tuple[str, ...]
    budget: str | None
    threads: int | None


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    options = _parse(arguments)
    settings = Settings(versus=options.versus, budget=options.budget, threads=options.threads)
    rows, sheets = [], []
    with tempfile.TemporaryDirectory(prefix="mapper-bench-") as folder:
        for name in options.models or ZOO:
            print(f"bench: {name} ...", file=sys.stderr, flush=True)
            row, sheet = bench(name, settings, options.keep or Path(folder))
            rows.append(row)
            sheets += [sheet] if sheet is not None else []
            if options.json is not None:  # after every model, so that an interrupted run keeps its rows
                write_atomic(options.json, encode(document(rows, sheets, settings)))
    for line in report(rows):
        print(line)
    return 0 if all(row.verified for row in rows) else 1


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    assert __doc__ is not None
    first, _, rest = __doc__.partition("\n")
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("bench.py", description=first, epilog=rest, formatter_class=form)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"names of the zoo [{' '.join(ZOO)}]")
    parser.add_argument("--versus", type=_runtimes, default=("onnxruntime",), metavar="RUNTIMES", help="[onnxruntime]")
    parser.add_argument("--budget", metavar="TRIALS|TIME", help="of each model's search, as mapper explore takes it")
    parser.add_argument("--threads", type=int, metavar="N", help="[what this process may use]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, versions and rows here")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep each model's sheet in DIR/MODEL")
    return parser.parse_args(arguments)


def _runtimes(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    unknown = [name for name in names if name not in RUNTIMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown runtime {unknown[0]!r}: expected some of {', '.join(RUNTIMES)}")
    return names


# --- one model -------------------------------------------------------------------------------------------------------


def bench(name: str, settings: Settings, folder: Path) -> tuple[Row, MappingSheet | None]:
    """Explore one model in a process of its own and read its row off the sheet; a failure is a row with a reason."""
    out_dir = folder / name
    (out_dir / SHEET_NAME).unlink(missing_ok=True)
    code, peak_memory_mb = run_measured(explore_command(name, settings, out_dir))
    try:
        sheet = read_sheet(out_dir)
    except MapperError as error:
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        reason = f"no sheet: mapper explore ended with {ended}" if not (out_dir / SHEET_NAME).exists() else str(error)
        return Row(model=name, peak_memory_mb=peak_memory_mb, reason=reason), None
    default_ms, reason = None, ""
    if "tvm-default" in settings.versus:
        default_ms, reason = _tvm_default(name, settings)
    return row_of(name, sheet, settings.versus, peak_memory_mb, default_ms, reason), sheet


def explore_command(name: str, settings: Settings, out_dir: Path) -> list[str]:
    """Return the command that explores one model."""
    command = [sys.executable, "-c", _START, "explore", f"zoo:{name}", "--out", str(out_dir)]
    command += ["--budget", settings.budget] if settings.budget is not None else []
    return command + (["--threads", str(settings.threads)] if settings.threads is not None else [])


def run_measured(command: Sequence[str]) -> tuple[int, float]:
    """Run a command, its stdout dropped; return its exit code and the megabytes of its largest process.

    The exit code is minus the signal that ended it. Descendants count when they were waited for, as mapper's are.
    """
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    unit_b = 1 if sys.platform == "darwin" else 1024  # Source: getrusage(2) of macOS and of Linux
    return process.returncode, usage.ru_maxrss * unit_b / 1e6


def row_of(
    name: str,
    sheet: MappingSheet,
    versus: Sequence[str],
    peak_memory_mb: float | None,
    tvm_default_ms: float | None = None,
    reason: str = "",
) -> Row:
    """Return a model's row; without a verified mapping only what the search cost."""
    floor = floor_s(sheet)
    row = Row(
        model=name,
        floor_ms=_ms(floor[0]) if floor else None,
        floor_by=floor[1] if floor else None,
        tvm_default_ms=tvm_default_ms,
        explore_s=sheet.search.explore_s,
        lowering_s=sheet.search.lowering_s,
        measured_candidates=sheet.search.trials_measured,
        peak_memory_mb=peak_memory_mb,
    )
    best = next((mapping for mapping in sheet.mappings if mapping.rank is not None), None)
    if best is None:
        why = next((f"{failure.step}: {failure.reason}" for failure in sheet.failures), "no mapping was made")
        return replace(row, reason=_joined(f"no verified mapping: {why}", reason))
    theirs = "onnxruntime" in versus
    return replace(
        row,
        best_ms=_ms(best.time_s.median),
        onnxruntime_ms=_ms(sheet.reference.time_s.median) if theirs else None,
        ratio_onnxruntime=best.ratio_onnxruntime.value if theirs else None,
        flop_fraction=best.flop_fraction.value,
        verified=best.verified.passed,
        mutants=f"{best.verified.mutants_caught}/{best.verified.mutants}" if best.verified.mutants else None,
        reason=_joined(best.time_s.reason or "", reason),
    )


def floor_s(sheet: MappingSheet) -> tuple[float, str] | None:
    """Return the least time that this machine needs for the model, and what sets it; None without measured peaks."""
    flops = sum(kernel.flops_per_call * kernel.calls for kernel in sheet.kernels)
    peak = _peak(sheet.machine, "flops", "float32")
    if peak is None or not sheet.kernels:
        return None
    compute_s, memory_s = flops / peak, 0.0
    bandwidth = _peak(sheet.machine, "bandwidth", "DRAM")
    if bandwidth is not None:
        ends = (*sheet.model.inputs, *sheet.model.outputs)
        moved_b = sheet.mappings[0].memory.weights_b + sum(_bytes(spec.shape, spec.dtype) for spec in ends)
        memory_s = max(0, moved_b - _last_level_b(sheet.machine)) / bandwidth
    return (memory_s, "memory") if memory_s > compute_s else (compute_s, "compute")


def _peak(machine: Machine, kind: str, name: str) -> float | None:
    peaks = [peak for device in machine.devices for peak in device.peaks]
    wanted = (kind, name, machine.threads)
    return next((peak.reading.value for peak in peaks if (peak.kind, peak.name, peak.threads) == wanted), None)


def _last_level_b(machine: Machine) -> int:
    caches = machine.devices[0].caches
    last = max(caches, key=lambda cache: cache.level, default=None)
    return last.size_b * math.ceil(machine.threads / last.shared_by) if last is not None else 0


def _bytes(shape: Sequence[int], dtype: str) -> int:
    item_b = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    return math.prod(shape) * item_b


def _tvm_default(name: str, settings: Settings) -> tuple[float | None, str]:
    """Return the median milliseconds of TVM's own build, or None and why there is none."""
    request = ExploreRequest(model=f"zoo:{name}", cache_dir=cache_dir(), threads=settings.threads)
    host = find_host(settings.threads, None)
    with tempfile.TemporaryDirectory(prefix="mapper-bench-") as path, contextlib.ExitStack() as stack:
        folder = Path(path)
        try:
            prepared = prepare(request, stack.enter_context(contextlib.closing(ReferenceWorker(folder))), folder)
            worker = TvmWorker(folder, threads=host.threads, target=host.target)
            stack.enter_context(contextlib.closing(worker))
            samples = worker.tvm_default(prepared.canonical, prepared.feeds_file, DEFAULT_RUNS)
        except (MapperError, ChildFailureError) as error:
            return None, f"tvm-default: {error}"
    return float(np.median(samples)) * 1e3, ""


# --- all of them -----------------------------------------------------------------------------------------------------


def report(rows: Sequence[Row]) -> list[str]:
    """Return the table and what does not fit in it, as Markdown."""
    lines = list(table(TITLES, [_cells(row) for row in rows]))
    ratios = [row.ratio_onnxruntime for row in rows if row.ratio_onnxruntime is not None]
    mean = geometric_mean(ratios)
    if mean is not None:
        lines += ["", f"Geometric mean of the ratios to onnxruntime, {len(ratios)} of {len(rows)} models: {mean:.3f}"]
    reasons = [f"- {row.model}: {row.reason}" for row in rows if row.reason]
    return lines + (["", *reasons] if reasons else [])


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """Return the geometric mean; None of nothing."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None


def document(rows: Sequence[Row], sheets: Sequence[MappingSheet], settings: Settings) -> Mapping[str, object]:
    """Return the content of the JSON file."""
    known = sheets[0] if sheets else None
    ratios = [row.ratio_onnxruntime for row in rows if row.ratio_onnxruntime is not None]
    return {
        "machine": _machine(known.machine) if known else None,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": dict(known.environment.versions) if known else {},
        "settings": {"versus": list(settings.versus), "budget": settings.budget, "threads": settings.threads},
        "how": HOW,
        "rows": [asdict(row) for row in rows],
        "geometric_mean_ratio_onnxruntime": geometric_mean(ratios),
    }


def _machine(machine: Machine) -> Mapping[str, object]:
    device = machine.devices[0]
    return {
        "name": device.name,
        "cores": device.cores,
        "threads": machine.threads,
        "peak_flops_per_s": _peak(machine, "flops", "float32"),
        "dram_b_per_s": _peak(machine, "bandwidth", "DRAM"),
    }


def _cells(row: Row) -> tuple[str, ...]:
    percent = None if row.flop_fraction is None else 100 * row.flop_fraction
    return (
        row.model,
        _shown(row.best_ms),
        _shown(row.onnxruntime_ms),
        _shown(row.ratio_onnxruntime),
        _shown(row.floor_ms),
        _shown(row.tvm_default_ms),
        _shown(percent),
        _shown(row.explore_s),
        _shown(row.lowering_s),
        "–" if row.measured_candidates is None else str(row.measured_candidates),
        "–" if row.peak_memory_mb is None else f"{row.peak_memory_mb:.0f}",
        "yes" if row.verified else "no",
        row.mutants or "–",
    )


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _ms(time_s: float | None) -> float | None:
    return None if time_s is None else time_s * 1e3


def _joined(*reasons: str) -> str:
    return "; ".join(reason for reason in reasons if reason)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
