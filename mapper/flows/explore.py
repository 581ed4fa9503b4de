"""`mapper explore`: a model in, a ranked mapping sheet out.

request → prepare (ingress) → machine and peaks → fusion plans and layouts → search → verify → final round → sheet
"""

import time
from collections.abc import Mapping, Sequence

from mapper.config import ExploreRequest, Progress
from mapper.flows import requested
from mapper.flows.finalists import keep_right_kernels, make_finalists
from mapper.flows.finals import final_round
from mapper.flows.fusing import Fusing, make_fusing
from mapper.flows.planning import (
    EXTRA_DRAFTS_UP_TO_OPERATORS,
    Draft,
    define_groups,
    distinct,
    make_drafts,
    make_spaces,
    searched_keys,
    worth_measuring,
)
from mapper.flows.prepare import reference_outputs
from mapper.flows.remembered import FinishedSearches, open_journal
from mapper.flows.run import Run, open_run
from mapper.flows.searching import Search
from mapper.flows.writing import Outcome, write_results
from mapper.records import Candidate, Choice, MappingSheet, ScheduleFile
from mapper.report.schedule import read_schedule
from mapper.search import strategies
from mapper.search.space import Space
from mapper.worker.client import ChildFailureError


def explore(request: ExploreRequest, progress: Progress) -> MappingSheet:
    """Explore a model and write its sheet; see the module's docstring for the stages.

    Raises:
        BadInputError: the request cannot be served.
    """
    requested.check_objective(request.objective)
    schedule = read_schedule(request.schedules) if request.schedules else None
    with open_run(request, progress) as run:
        drafts = _drafts(run, schedule)
        specs = define_groups(run.prepared, drafts, run.worker)
        spaces = make_spaces(drafts, specs, run.model)
        lowering_s = time.monotonic() - run.started
        search, drafts = _search(run, drafts, spaces, schedule)
        spaces = {key: search.spaces[key] for draft in drafts for key in draft.space_keys}
        kernels = keep_right_kernels(run, spaces, search)
        reference = reference_outputs(run.prepared, run.reference)
        finalists = make_finalists(run, drafts, kernels, reference)
        times = final_round(run, finalists)
        outcome = Outcome(
            spaces=spaces,
            search=search,
            kernels=kernels,
            finalists=finalists,
            times=times,
            reference=reference,
            lowering_s=lowering_s,
        )
        return write_results(run, outcome)


def _traces(run: Run) -> strategies.Source:
    """Return where MetaSchedule's choices come from: the worker, which runs it on the group's own TensorIR."""

    def propose(space: Space, tried: tuple[Candidate, ...]) -> Sequence[Choice]:
        try:
            return run.worker.propose_traces((space.spec.key, space.layouts), tried, run.request.seed)
        except ChildFailureError as error:
            run.warnings.append(f"metaschedule found nothing for {space.spec.name}: {error.reason}")
            return ()

    return propose


def _drafts(run: Run, schedule: ScheduleFile | None) -> list[Draft]:
    """Return the mappings to explore; a replayed schedule is the only one when nothing may be searched."""
    drafts, warnings = make_drafts(run.prepared, run.worker, schedule)
    run.warnings += warnings
    return drafts[:1] if schedule is not None and run.request.budget.trials == 0 else drafts


def _search(
    run: Run, drafts: Sequence[Draft], spaces: Mapping[str, Space], schedule: ScheduleFile | None
) -> tuple[Search, list[Draft]]:
    """Give every kernel a schedule, choose a partition, then spend the budget where the model's time is.

    Every outcome is in the journal before the next is measured, so that Ctrl-C loses one trial at most.

    Returns:
        The search, and the mappings that are worth composing.
    """
    request = run.request
    searched = searched_keys(drafts)
    given = requested.given_choices(schedule, spaces, request.schedules)
    wanted = requested.only_keys(request.only, run.prepared, drafts, searched)
    finished = FinishedSearches.of(run, schedule)
    is_known = finished.has_this and not request.fresh
    with open_journal(run) as journal:
        search = Search(
            worker=run.worker,
            journal=journal,
            strategy=strategies.by_name(request.strategy, request.seed, _traces(run)),
            machine=run.model,
            spaces=dict(spaces),
            progress=run.progress,
            conditions=run.conditions,
            given=given,
        )
        if not request.fresh:
            search.recall()
        search.ensure_first(sorted(searched), request.budget)
        fusing = _fusing(run, search, drafts, schedule)
        if fusing is not None:
            search.refit()
            if not is_known:
                fusing.measure_wanted(request.budget)
            wanted |= frozenset(fusing.draft().space_keys) if not request.only else frozenset()
        if is_known:
            search.stopped = "known"
        else:
            expected_s = sum(search.spaces[key].weight * search.spaces[key].best_predicted_s for key in wanted)
            seconds = requested.budget_seconds(request.budget, len(wanted), expected_s)
            search.run(wanted, request.budget, seconds, counts_recalled=request.resume)
            finished.note(run, search.measured)
        if fusing is not None:
            drafts = distinct([*drafts, fusing.draft()])
        if is_known:
            drafts = [draft for draft in drafts if all(search.best(key) for key in draft.space_keys)] or drafts
        kept = worth_measuring(drafts, search.expected_s)
        run.warnings += [f"{one.label} was not measured: expected to be slower" for one in drafts if one not in kept]
        keys = sorted({key for draft in kept for key in draft.space_keys})
        search.transfer([key for key in keys if key not in searched])
        search.ensure_first(keys, request.budget)
    return search, kept


def _fusing(run: Run, search: Search, drafts: Sequence[Draft], schedule: ScheduleFile | None) -> Fusing | None:
    """Return the search for a partition; None where nothing may be searched or the graph is too large for it."""
    if schedule is not None or run.request.budget.trials == 0:
        return None
    if len(run.prepared.graph.operators) > EXTRA_DRAFTS_UP_TO_OPERATORS:
        return None
    return make_fusing(run, search, [draft.plan for draft in drafts])
