"""`mapper calibrate`: this machine's peaks measured anew and kept for later runs."""

import contextlib
import tempfile
from pathlib import Path

from mapper.config import Progress
from mapper.errors import WorkerError
from mapper.flows.machine import find_host, measured_machine
from mapper.records import Machine
from mapper.worker.client import ChildFailureError
from mapper.worker.workers import TvmWorker


def calibrate(threads: int | None, cache_dir: Path, progress: Progress) -> Machine:
    """Measure the peaks anew, replace the cached ones and return the machine.

    Args:
        threads: What to calibrate for, besides one thread; None: what this process may use.
        cache_dir: Where the peaks are kept.
        progress: What is told about it.

    Raises:
        BadInputError: a thread count below 1.
        WorkerError: the TVM worker does not start, or dies while it probes; the cached peaks are as they were.
    """
    host = find_host(threads, target=None)
    with tempfile.TemporaryDirectory(prefix="mapper-") as folder:
        progress.stage("starting the compiler")
        try:
            with contextlib.closing(TvmWorker(Path(folder), threads=host.threads, target=host.target)) as worker:
                return measured_machine(host, worker, cache_dir, progress, again=True)[0]
        except ChildFailureError as error:
            raise WorkerError(f"peaks cannot be measured: {error.reason}: run mapper doctor") from error
