"""`mapper doctor`: one look at each thing an exploration uses, and at what it would use if it were there."""

import functools
import importlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mapper.errors import MapperError
from mapper.flows.machine import Host, compiler_tag, find_host
from mapper.ingress.zoo import zoo_names
from mapper.measure.device import ROOT, is_virtual
from mapper.measure.meters.nvml import open_nvml
from mapper.measure.meters.protocol import Meter, Unavailable
from mapper.measure.meters.select import pick_meter
from mapper.measure.peaks import load_peaks
from mapper.records import Cache, DoctorLine, Peak
from mapper.report.text import binary_size
from mapper.worker.client import ChildFailureError
from mapper.worker.reference import ReferenceWorker
from mapper.worker.workers import TvmWorker

REINSTALL = (
    "install again: delete .venv and run scripts/explore.sh, or pip install --force-reinstall -c constraints.txt -e ."
)
CALIBRATE = "run mapper calibrate on an idle machine; explore does it by itself the first time"
_PARANOID = "proc/sys/kernel/perf_event_paranoid"
_PMU = "sys/bus/event_source/devices/cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """What came of starting the TVM worker: `tag` None when it did not start."""

    line: DoctorLine
    tag: str | None


def doctor(cache_dir: Path) -> tuple[DoctorLine, ...]:
    """Look at everything once and say what was found; nothing that is missing is an error.

    Starts and ends both children, one after the other; measures nothing.
    """
    host = find_host(None, target=None)
    with tempfile.TemporaryDirectory(prefix="mapper-") as name:
        compiler = check_compiler(
            functools.partial(TvmWorker, threads=host.threads, target=host.target), Path(name), host
        )
        reference = check_reference(ReferenceWorker, Path(name))
    return (
        _processor(host),
        DoctorLine(name="target", status="ok", detail=host.target),
        DoctorLine(name="threads", status="ok", detail=f"{host.threads} ({host.threads_because})"),
        _caches(host.device.caches),
        compiler.line,
        reference,
        check_peaks(cache_dir, host.machine_id, compiler.tag),
        check_counters(),
        check_energy(pick_meter()),
        check_gpu(),
        check_cache_dir(cache_dir),
        check_zoo(zoo_names),
    )


def check_compiler(start: Callable[[Path], TvmWorker], folder: Path, host: Host) -> Compiler:
    """Start the TVM worker for this machine's target and end it again."""
    try:
        worker = start(folder)
    except (ChildFailureError, MapperError) as error:
        line = DoctorLine(name="TVM worker", status="missing", detail=_short(error), remedy=REINSTALL)
        return Compiler(line=line, tag=None)
    try:
        versions = worker.versions
        line = DoctorLine(
            name="TVM worker",
            status="ok",
            detail=", ".join(f"{name} {version}" for name, version in sorted(versions.items(), reverse=True)),
        )
        return Compiler(line=line, tag=compiler_tag(worker, host))
    finally:
        worker.close()


def check_reference(start: Callable[[Path], ReferenceWorker], folder: Path) -> DoctorLine:
    """Start the onnxruntime child, ask its version and end it again."""
    worker = None
    try:
        worker = start(folder)
        return DoctorLine(name="onnxruntime", status="ok", detail=f"onnxruntime {worker.version()}, CPU provider")
    except (ChildFailureError, MapperError) as error:
        return DoctorLine(name="onnxruntime", status="missing", detail=_short(error), remedy=REINSTALL)
    finally:
        if worker is not None:
            worker.close()


def check_peaks(cache_dir: Path, machine_id: str, compiler: str | None) -> DoctorLine:
    """Say whether peaks are kept for this machine, thread count and compiler."""
    if compiler is None:
        return DoctorLine(name="peaks", status="missing", detail="unknown: they belong to a compiler, which is missing")
    peaks = load_peaks(cache_dir, machine_id, compiler)
    if peaks is None:
        return DoctorLine(
            name="peaks", status="missing", detail=f"not calibrated: machine {machine_id}", remedy=CALIBRATE
        )
    return DoctorLine(name="peaks", status="ok", detail=f"{_peaks(peaks)} (machine {machine_id})")


def check_counters(root: Path = ROOT) -> DoctorLine:
    """Say what Linux would let this user count. No stall method reads counters yet; stall shares are modelled."""
    name, unused = "hardware counters", "mapper does not read them yet: stall shares are modelled"
    try:
        level = int((root / _PARANOID).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return DoctorLine(name=name, status="missing", detail=f"no perf_event in this system; {unused}")
    if not (root / _PMU).exists() and not list((root / _PMU).parent.glob("cpu_*")):
        where = ", as in most virtual machines" if is_virtual(root) else ""
        return DoctorLine(
            name=name,
            status="missing",
            detail=f"perf_event_paranoid {level}, but the kernel shows no CPU counters{where}; {unused}",
        )
    if level > 2:  # Debian and Ubuntu carry a patch for 3 and 4. Source: their kernels' perf_event_paranoid
        return DoctorLine(
            name=name,
            status="off",
            detail=f"perf_event_paranoid {level} keeps users away; {unused}",
            remedy="as root: sysctl kernel.perf_event_paranoid=2",
        )
    return DoctorLine(name=name, status="ok", detail=f"perf_event_paranoid {level} lets users count; {unused}")


def check_energy(meter: Meter | Unavailable) -> DoctorLine:
    """Say what `pick_meter` found for the CPU."""
    if isinstance(meter, Unavailable):
        is_forbidden = "may not be read" in meter.reason
        return DoctorLine(
            name="energy (RAPL)",
            status="off" if is_forbidden else "missing",
            detail=meter.reason,
            remedy="as root: chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj" if is_forbidden else "",
        )
    return DoctorLine(name="energy (RAPL)", status="ok", detail=f"counts {meter.covers}")


def check_gpu(nvml: Any = None) -> DoctorLine:
    """Say which NVIDIA GPUs there are and whether their energy can be read. Kernels run on the CPU only, as yet.

    Args:
        nvml: The pynvml module; None imports it.
    """
    name, unused = "GPU", "mapper does not use GPUs yet"
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return DoctorLine(
                name=name, status="missing", detail="no NVML: nvidia-ml-py is not installed", remedy=REINSTALL
            )
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        found = [(str(nvml.nvmlDeviceGetName(handle)), str(nvml.nvmlDeviceGetUUID(handle))) for handle in handles]
    except nvml.NVMLError as error:
        return DoctorLine(name=name, status="missing", detail=f"no NVIDIA GPU: {error}; {unused}")
    if not found:
        return DoctorLine(name=name, status="missing", detail=f"NVML lists no GPU; {unused}")
    return DoctorLine(
        name=name, status="ok", detail=f"{'; '.join(_gpu(label, uuid, nvml) for label, uuid in found)}; {unused}"
    )


def check_cache_dir(cache_dir: Path) -> DoctorLine:
    """Create the cache folder where it is not there yet, and write into it."""
    name = "cache folder"
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache_dir, prefix=".doctor-"):
            pass
    except OSError as error:
        return DoctorLine(
            name=name,
            status="off" if isinstance(error, PermissionError) else "missing",
            detail=f"{cache_dir} cannot be written: {error.strerror or error}",
            remedy="set MAPPER_CACHE_DIR to a folder that you may write to",
        )
    return DoctorLine(name=name, status="ok", detail=f"{cache_dir} can be written")


def check_zoo(names: Callable[[], tuple[str, ...]]) -> DoctorLine:
    """Say which models `zoo:NAME` takes."""
    try:
        found = names()
    except MapperError as error:
        return DoctorLine(
            name="zoo", status="missing", detail=str(error), remedy="run mapper from a checkout; plain model files work"
        )
    return DoctorLine(name="zoo", status="ok", detail=", ".join(f"zoo:{name}" for name in found))


def _processor(host: Host) -> DoctorLine:
    kind = {True: "virtual machine", False: "no hypervisor seen", None: "virtual or not is unknown"}[is_virtual()]
    isa = " ".join(host.device.isa) or "no instruction sets shown: code for the architecture's baseline"
    return DoctorLine(name="processor", status="ok", detail=f"{host.device.name}, {kind}; {isa}")


def _caches(caches: tuple[Cache, ...]) -> DoctorLine:
    if not caches:
        return DoctorLine(
            name="caches", status="missing", detail="the system does not tell their sizes: typical ones are assumed"
        )
    sizes = ", ".join(f"L{cache.level} {binary_size(cache.size_b)}" for cache in caches)
    return DoctorLine(name="caches", status="ok", detail=f"{sizes}, seen from one core")


def _peaks(peaks: tuple[Peak, ...]) -> str:
    """List the ceilings at the larger thread count; `mapper calibrate` shows all of them."""
    threads = max((peak.threads for peak in peaks), default=1)
    values = [
        f"{peak.name} {peak.reading.value / 1e9:.3g} {'GFLOP/s' if peak.kind == 'flops' else 'GB/s'}"
        for peak in peaks
        if peak.threads == threads and peak.reading.value is not None
    ]
    return f"at {threads} thread{'s' if threads > 1 else ''}: {', '.join(values) or 'none measured'}"


def _gpu(label: str, uuid: str, nvml: Any) -> str:
    meter = open_nvml(uuid, nvml)
    energy = f"no energy: {meter.reason}" if isinstance(meter, Unavailable) else "energy counter readable"
    return f"{label} ({energy})"


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"… {text[-300:]}"
