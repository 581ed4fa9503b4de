"""The machine for a flow: described, its peaks measured or taken from the cache, and spot-checked."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mapper.config import Progress
from mapper.keys import digest
from mapper.measure import device as devices
from mapper.measure.peaks import Probe, load_peaks, peak_from_samples, probe_plan, save_peaks, theoretical_peak
from mapper.measure.target import tvm_target
from mapper.records import Device, Machine, MachineModel, Peak
from mapper.search.machine import machine_model
from mapper.worker.workers import TvmWorker

FLOPS_REPEATS = 15
BANDWIDTH_REPEATS = 9
UNLIKELY_SCALING = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine without its peaks: enough to start a worker."""

    device: Device
    threads: int
    threads_because: str
    target: str

    @property
    def machine_id(self) -> str:
        """What the journal and the peak cache are keyed by."""
        return devices.machine_id(self.device, self.threads)


def find_host(threads: int | None, target: str | None) -> Host:
    """Describe the machine that this process may use."""
    device = devices.describe_cpu()
    usable, because = devices.usable_threads(threads)
    return Host(device=device, threads=usable, threads_because=because, target=target or tvm_target(device, usable))


def measured_machine(
    host: Host, worker: TvmWorker, cache_dir: Path, progress: Progress, *, again: bool = False
) -> tuple[Machine, MachineModel]:
    """Return the machine with its peaks, from the cache unless `again`, and the model that searches see."""
    compiler = compiler_tag(worker, host)
    peaks = None if again else load_peaks(cache_dir, host.machine_id, compiler)
    if peaks is None:
        peaks = _probe_all(host, worker, progress)
        save_peaks(cache_dir, host.machine_id, compiler, peaks)
    device = replace(host.device, peaks=peaks)
    machine = Machine(
        id=host.machine_id,
        devices=(device,),
        threads=host.threads,
        threads_because=host.threads_because,
        target=host.target,
    )
    return machine, machine_model(device, host.threads)


def compiler_tag(worker: TvmWorker, host: Host) -> str:
    """Return what decides which code a schedule becomes, as one text."""
    return f"tvm {worker.versions['tvm']}, llvm {worker.versions['llvm']}, {host.target}"


def build_tag(worker: TvmWorker, host: Host) -> str:
    """Return what decides which code a *choice* becomes: the compiler, the threads, and mapper's own templates."""
    return f"{compiler_tag(worker, host)}, {host.threads} threads, templates {_sources_digest()}"


def _sources_digest() -> str:
    """Return a digest of mapper's own code that lowers and schedules: another version may build other kernels."""
    root = Path(__file__).parents[1]
    files = sorted(file for room in ("templates", "backends") for file in (root / room).rglob("*.py"))
    return digest([file.read_text(encoding="utf-8") for file in files])


def _probe_all(host: Host, worker: TvmWorker, progress: Progress) -> tuple[Peak, ...]:
    probes = probe_plan(host.device, host.threads)
    progress.stage("measuring this machine's peaks", len(probes))
    peaks: dict[Probe, Peak] = {}
    for probe in probes:
        progress.step(f"{probe.name}, {probe.threads} thread(s)")
        progress.quiet()
        peaks[probe] = _measure(probe, host, worker)
    for probe in disturbed(peaks):
        peaks[probe] = max(peaks[probe], _measure(probe, host, worker), key=lambda peak: peak.reading.value or 0.0)
    return tuple(peaks.values())


def disturbed(peaks: Mapping[Probe, Peak]) -> list[Probe]:
    """Return the one-thread probes that many threads beat by more than their number: somebody else had the core."""
    found = []
    for probe, peak in peaks.items():
        many = [other.reading.value or 0.0 for other in peaks.values() if _is_same_ceiling(other, peak)]
        alone = peak.reading.value or 0.0
        if probe.threads == 1 and many and max(many) > UNLIKELY_SCALING * alone * max(p.threads for p in peaks):
            found.append(probe)
    return found


def _is_same_ceiling(one: Peak, other: Peak) -> bool:
    return (one.kind, one.name) == (other.kind, other.name) and one.threads != other.threads


def _measure(probe: Probe, host: Host, worker: TvmWorker) -> Peak:
    work, samples = _run(probe, worker)
    theoretical = theoretical_peak(host.device, probe, devices.max_frequency_hz())
    return peak_from_samples(probe, work, samples, theoretical)


def _run(probe: Probe, worker: TvmWorker) -> tuple[float, list[float]]:
    if probe.kind == "flops":
        return worker.probe("flops", dtype=probe.name, threads=probe.threads, repeats=FLOPS_REPEATS)
    size_b = probe.working_set_b or 0
    return worker.probe("bandwidth", size_b=size_b, threads=probe.threads, repeats=BANDWIDTH_REPEATS)
