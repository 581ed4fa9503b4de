"""Calibration, with a stand-in for the child: what is probed, what is kept, and that the child always ends."""

import pytest

from mapper.errors import BadInputError, WorkerError
from mapper.flows import calibrate as flow
from mapper.flows.machine import compiler_tag, find_host
from mapper.measure.peaks import load_peaks, probe_plan
from mapper.worker.client import ChildFailureError


class Told:
    """A progress display that remembers, in order, stages and when it was asked to be quiet."""

    def __init__(self):
        self.log = []

    def stage(self, name, total=None):
        self.log.append((name, total))

    def step(self, note="", best=""):
        self.log.append("step")

    def quiet(self):
        self.log.append("quiet")


class Worker:
    """Answers every probe with 4e9 units of work in 2, 1 and 1 seconds."""

    def __init__(self, folder, *, threads, target):
        self.versions = {"tvm": "0", "llvm": "1"}
        self.threads, self.is_closed = threads, False

    def probe(self, kind, timeout_s=300.0, /, **request):
        return 4e9, [2.0, 1.0, 1.0]

    def close(self):
        self.is_closed = True


@pytest.fixture
def made(monkeypatch):
    """Put the stand-in in place; the list of those that were started."""
    workers = []

    def start(folder, *, threads, target):
        workers.append(Worker(folder, threads=threads, target=target))
        return workers[-1]

    monkeypatch.setattr(flow, "TvmWorker", start)
    return workers


def test_calibrate_measures_every_ceiling_and_keeps_it(made, tmp_path):
    told = Told()
    machine = flow.calibrate(1, tmp_path, told)
    (worker,) = made
    assert worker.is_closed
    assert worker.threads == machine.threads == 1
    (device,) = machine.devices
    plan = probe_plan(device, 1)
    assert [(peak.kind, peak.name, peak.threads) for peak in device.peaks] == [
        (p.kind, p.name, p.threads) for p in plan
    ]
    assert {peak.reading.value for peak in device.peaks} == {4e9}  # the fast runs: 4e9 units in 1 s
    host = find_host(1, None)
    assert load_peaks(tmp_path, host.machine_id, compiler_tag(worker, host)) == device.peaks
    measuring = told.log.index(("measuring this machine's peaks", len(plan)))
    assert told.log[measuring + 1 :] == ["step", "quiet"] * len(plan)  # nothing is drawn while a probe runs


def test_calibrate_measures_again_although_peaks_are_kept(made, tmp_path, monkeypatch):
    flow.calibrate(1, tmp_path, Told())
    monkeypatch.setattr(Worker, "probe", lambda self, kind, timeout_s=300.0, /, **request: (8e9, [1.0]))
    machine = flow.calibrate(1, tmp_path, Told())
    assert {peak.reading.value for peak in machine.devices[0].peaks} == {8e9}


def test_a_worker_that_dies_is_one_error_and_leaves_the_cache_alone(made, tmp_path, monkeypatch):
    flow.calibrate(1, tmp_path, Told())
    before = {file.name: file.read_bytes() for file in (tmp_path / "peaks").iterdir()}

    def die(self, kind, timeout_s=300.0, /, **request):
        raise ChildFailureError("crash", "the child died (signal SIGILL)", is_dead=True)

    monkeypatch.setattr(Worker, "probe", die)
    with pytest.raises(WorkerError, match=r"peaks cannot be measured: the child died .* run mapper doctor"):
        flow.calibrate(1, tmp_path, Told())
    assert made[-1].is_closed
    assert {file.name: file.read_bytes() for file in (tmp_path / "peaks").iterdir()} == before


def test_no_threads_are_refused(made, tmp_path):
    with pytest.raises(BadInputError, match="--threads: expected a count of 1 or more, found 0"):
        flow.calibrate(0, tmp_path, Told())
    assert made == []
