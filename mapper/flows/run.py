"""What the stages of one exploration share, and the children behind it: started here, ended here."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from mapper.config import ExploreRequest, Progress
from mapper.errors import BadInputError
from mapper.flows.machine import Host, build_tag, find_host, measured_machine
from mapper.flows.prepare import Prepared, prepare
from mapper.keys import digest
from mapper.plan.tensors import element_bytes
from mapper.records import Failure, Machine, MachineModel
from mapper.worker.client import ChildFailureError
from mapper.worker.reference import ReferenceWorker
from mapper.worker.workers import Conditions, TvmWorker

MOST_COLD_B = 128 << 20  # weights of a larger model are as cold as these: no private cache holds them


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
    build_tag: str  # what decides which code a choice becomes
    store: Path  # where built kernels are kept for other processes
    started: float
    warnings: list[str]
    failures: list[Failure]

    @property
    def conditions(self) -> Conditions:
        """How kernels are timed alone: with the weights as cold as a model of this size leaves them."""
        graph = self.prepared.graph
        weights = [graph.tensors[name] for name in graph.weights]
        weights_b = sum(element_bytes(spec) * prod(spec.shape) for spec in weights)
        return Conditions(
            seed=self.request.seed,
            flops_per_s=self.model.flops_per_s_n,
            cold_b=min(weights_b, MOST_COLD_B),
        )


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
        tag = build_tag(worker, host)
        store = request.cache_dir / "kernels" / digest(tag)
        worker.open_store(store)
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
            build_tag=tag,
            store=store,
            started=started,
            warnings=[],
            failures=[],
        )
