"""What the stages of one exploration share, and the children behind it: started here, ended here."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mapper.config import ExploreRequest, Progress
from mapper.errors import BadInputError
from mapper.flows.machine import Host, find_host, measured_machine
from mapper.flows.prepare import Prepared, prepare
from mapper.records import Failure, Machine, MachineModel
from mapper.worker.client import ChildFailureError
from mapper.worker.reference import ReferenceWorker
from mapper.worker.workers import TvmWorker


@dataclass(slots=True, kw_only=True)
class Run:
    """One exploration under way. `failures` and `warnings` grow; everything else stays."""

    request: ExploreRequest
    progress: Progress
    out_dir: Path
    host: Host
    worker: TvmWorker
    reference: ReferenceWorker
    prepared: Prepared
    machine: Machine
    model: MachineModel
    started: float
    warnings: list[str]
    failures: list[Failure]


@contextlib.contextmanager
def open_run(request: ExploreRequest, progress: Progress) -> Iterator[Run]:
    """Start the children, prepare the model and the machine; end the children whatever happens.

    Raises:
        BadInputError: the model or the target cannot be used.
    """
    started = time.monotonic()
    host = find_host(request.threads, request.target)
    with tempfile.TemporaryDirectory(prefix="mapper-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        reference = ReferenceWorker(folder)
        stack.callback(reference.close)
        progress.stage("reading the model")
        prepared = prepare(request, reference, folder)
        out_dir = request.out_dir or Path("mapping") / prepared.model.source.name
        progress.stage("starting the compiler")
        try:
            worker = TvmWorker(folder, threads=host.threads, target=host.target)
        except ChildFailureError as error:
            raise BadInputError(f"--target: {error.reason}") from error
        stack.callback(worker.close)
        worker.open_model(prepared.canonical)
        machine, model = measured_machine(host, worker, request.cache_dir, progress)
        yield Run(
            request=request,
            progress=progress,
            out_dir=out_dir,
            host=host,
            worker=worker,
            reference=reference,
            prepared=prepared,
            machine=machine,
            model=model,
            started=started,
            warnings=[],
            failures=[],
        )
