"""The verification put to the test: kernels of a mapping corrupted one at a time, and who notices.

schedule → open_run → compose the mapping as it is → for each fault: corrupt, exclude no-ops, check whole, check alone
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx

from mapper.config import ExploreRequest, Progress
from mapper.errors import BadInputError
from mapper.flows.corrupting import Bench, Mutant, Outcome, Target
from mapper.flows.planning import Draft, define_groups, group_file
from mapper.flows.prepare import Prepared, reference_outputs
from mapper.flows.run import open_run
from mapper.flows.verifying import ModelCheck
from mapper.plan import fusion
from mapper.plan.layout import group_layouts, tensor_layouts
from mapper.records import Choice, ScheduleFile
from mapper.report.schedule import SCHEDULE_NAME, read_schedule
from mapper.validate.mutants import faults
from mapper.worker.workers import TvmWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantStudy:
    """All that was tried on one model, in order."""

    model: str
    mapping: str
    kernels: int
    mutants: tuple[Mutant, ...]

    def of(self, *outcomes: Outcome) -> tuple[Mutant, ...]:
        """Return the mutants with one of these outcomes."""
        return tuple(mutant for mutant in self.mutants if mutant.outcome in outcomes)

    @property
    def tested(self) -> tuple[Mutant, ...]:
        """The mutants that are kernels and compute something else."""
        return self.of("model", "alone", "missed")


def study_mutants(request: ExploreRequest, schedule: Path, count: int, seed: int, progress: Progress) -> MutantStudy:
    """Corrupt kernels of the mapping in a schedule file until `count` mutants were tested, or none is left.

    Raises:
        BadInputError: the model or the schedule cannot be read, they do not belong together, or the mapping itself
            does not pass its verification.
    """
    with _right_mapping(request, schedule, progress) as bench:
        rng = np.random.default_rng(seed)
        pairs = [(target, fault) for target in bench.targets for fault in faults(target.model, target.spec.weights)]
        order = spread([(target.spec.name, fault.kind) for target, fault in pairs], rng)
        progress.stage("corrupting kernels", count)
        tried: list[Mutant] = []
        tested = 0
        for serial, index in enumerate(order):
            if tested == count:
                break
            mutant = bench.judge(*pairs[index], serial)
            tried.append(mutant)
            if mutant.outcome in ("model", "alone", "missed"):
                tested += 1
                progress.step(mutant.kernel)
        return MutantStudy(
            model=bench.prepared.model.source.name,
            mapping=bench.draft.label,
            kernels=len(bench.targets),
            mutants=tuple(tried),
        )


def spread(pairs: Sequence[tuple[str, str]], rng: np.random.Generator) -> list[int]:
    """Return an order of (kernel, kind) pairs in which kinds take turns, and within a kind kernels do."""
    shuffled = [int(index) for index in rng.permutation(len(pairs))]
    uses: dict[str, int] = {}
    left: dict[str, list[int]] = {}
    for index in shuffled:
        left.setdefault(pairs[index][1], []).append(index)
    order: list[int] = []
    while left:
        for kind in list(left):
            index = min(left[kind], key=lambda i: uses.get(pairs[i][0], 0))
            left[kind].remove(index)
            uses[pairs[index][0]] = uses.get(pairs[index][0], 0) + 1
            order.append(index)
            if not left[kind]:
                del left[kind]
    return order


# --- the mapping as it is ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _right_mapping(request: ExploreRequest, schedule: Path, progress: Progress) -> Iterator[Bench]:
    given = read_schedule(schedule)
    with open_run(request, progress) as run:
        prepared, worker = run.prepared, run.worker
        if given.model_sha256 != prepared.model.source.sha256:
            raise BadInputError(f"{schedule}: made for another model than {request.model}: explore it anew")
        progress.stage("composing the mapping")
        draft = _draft(prepared, given)
        define_groups(prepared, [draft], worker)
        choices = _choices(draft, given, schedule)
        check = ModelCheck(prepared=prepared, wanted=reference_outputs(prepared, run.reference))
        worker.compose("whole", draft.plan, choices, check.ends, prepared.feeds_file)
        if not check.check(draft, worker.run_model("whole")).passed:
            raise BadInputError(f"{schedule}: the mapping itself does not pass its verification: explore anew")
        yield Bench(
            prepared=prepared,
            worker=worker,
            reference=run.reference,
            machine=run.model,
            draft=draft,
            choices=choices,
            check=check,
            targets=_targets(prepared, worker, draft, choices),
            seed=request.seed,
        )


def _draft(prepared: Prepared, given: ScheduleFile) -> Draft:
    plan = fusion.from_partition(prepared.graph, given.partition, given.fusion_plan, frozenset(prepared.taps))
    policy: Literal["nhwc", "nchw"] = "nchw" if given.layout == "nchw" else "nhwc"
    by_tensor = tensor_layouts(prepared.graph, plan, policy)
    layouts = tuple(group_layouts(prepared.graph, group, by_tensor) for group in plan.groups)
    return Draft(plan=plan, policy=policy, layouts=layouts, is_searched=False)


def _choices(draft: Draft, given: ScheduleFile, schedule: Path) -> tuple[Choice, ...]:
    missing = [key for key in draft.space_keys if key not in given.choices]
    if missing:
        raise BadInputError(f"{schedule}: expected a choice for {missing[0]}, found none: explore the model anew")
    return tuple(given.choices[key] for key in draft.space_keys)


def _targets(prepared: Prepared, worker: TvmWorker, draft: Draft, choices: Sequence[Choice]) -> tuple[Target, ...]:
    keys = draft.space_keys
    return tuple(
        Target(
            spec=worker.specs[draft.plan.groups[keys.index(key)].key],
            choice=choices[keys.index(key)],
            model=onnx.load(group_file(prepared, draft.plan.groups[keys.index(key)].key)),
            positions=tuple(position for position, other in enumerate(keys) if other == key),
        )
        for key in dict.fromkeys(keys)
    )


def find_schedule(folder: Path, model: str) -> Path:
    """Return the schedule file of a model: in `folder`, or in its subfolder of the model's name.

    Raises:
        BadInputError: there is neither.
    """
    for candidate in (folder / model / SCHEDULE_NAME, folder / SCHEDULE_NAME):
        if candidate.is_file():
            return candidate
    raise BadInputError(
        f"{folder}: expected {model}/{SCHEDULE_NAME} or {SCHEDULE_NAME}, as mapper explore --out writes it"
    )
