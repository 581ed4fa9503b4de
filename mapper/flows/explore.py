"""`mapper explore`: a model in, a ranked mapping sheet out.

request → prepare (ingress) → machine and peaks → fusion plans and layouts → search → verify → final round → sheet
"""

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mapper import __version__, stats, templates
from mapper.config import Budget, ExploreRequest, Progress
from mapper.errors import BadInputError
from mapper.flows import rows
from mapper.flows.finals import Finalist, FinalTimes, final_round
from mapper.flows.machine import Host, compiler_tag, find_host, measured_machine
from mapper.flows.planning import Draft, define_groups, make_drafts, make_spaces, searched_keys
from mapper.flows.prepare import Prepared, prepare, reference_outputs
from mapper.flows.searching import Search
from mapper.flows.verifying import KernelCheck, ModelCheck, kept_candidates, largest_errors
from mapper.keys import kernel_symbol
from mapper.measure.environment import environment
from mapper.measure.journal import Journal
from mapper.measure.meters.protocol import calls_needed, energy_reading
from mapper.measure.meters.select import pick_meter
from mapper.records import (
    SCHEMA_VERSION,
    Candidate,
    Choice,
    Failure,
    Machine,
    MachineModel,
    MappingSheet,
    Reading,
    ReferenceRow,
    ScheduleFile,
    SearchSummary,
    TimeReading,
    Verification,
)
from mapper.report.jsonfile import write_atomic
from mapper.report.markdown import render_markdown
from mapper.report.schedule import SCHEDULE_NAME, read_schedule, write_schedule
from mapper.report.sheet import SHEET_NAME, write_sheet
from mapper.search.space import Space
from mapper.search.strategies.constructed import Constructed
from mapper.validate.numerics import verify
from mapper.worker.client import ChildFailureError
from mapper.worker.workers import ReferenceWorker, TvmWorker

MUTANTS = 20
FRESH_REPEATS = 20
JOURNAL_NAME = "journal.jsonl"


@dataclass(slots=True, kw_only=True)
class Run:
    """What the stages of one exploration share."""

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


def explore(request: ExploreRequest, progress: Progress) -> MappingSheet:
    """Explore a model and write its sheet; see the module's docstring for the stages.

    Raises:
        BadInputError: the request cannot be served; nothing was written.
    """
    schedule = read_schedule(request.schedules) if request.schedules else None
    with _children(request, progress) as run:
        drafts, warnings = make_drafts(run.prepared, run.worker, schedule)
        run.warnings += warnings
        if schedule is not None and request.budget.trials == 0:
            drafts = drafts[:1]
        specs = define_groups(run.prepared, drafts, run.worker)
        spaces = make_spaces(drafts, specs, run.model)
        lowering_s = time.monotonic() - run.started
        search, stopped = _search(run, drafts, spaces, schedule)
        kept, verified = _keep(run, spaces, search)
        finalists = _finalists(run, drafts, kept)
        times = final_round(
            [finalist for finalist in finalists if finalist.verification.passed],
            run.prepared,
            specs,
            run.host,
            progress,
            (run.prepared.graph.inputs, (*run.prepared.graph.outputs, *run.prepared.taps)),
        )
        progress.stage("writing the sheet")
        summary = _summary(run, search, spaces, stopped, lowering_s)
        sheet = _sheet(run, finalists, times, spaces, search, (kept, verified, summary))
        return sheet


@contextlib.contextmanager
def _children(request: ExploreRequest, progress: Progress) -> Iterator[Run]:
    """Start the children, prepare the model and the machine; end the children whatever happens."""
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


# --- search --------------------------------------------------------------------------------------------------------


def _search(
    run: Run, drafts: Sequence[Draft], spaces: Mapping[str, Space], schedule: ScheduleFile | None
) -> tuple[Search, str]:
    journal_path = run.out_dir / JOURNAL_NAME
    if not run.request.resume:
        journal_path.unlink(missing_ok=True)
    budget = run.request.budget
    search = Search(
        worker=run.worker,
        journal=Journal.open(journal_path, run.machine.id, compiler_tag(run.worker, run.host)),
        strategy=Constructed(),
        machine=run.model,
        spaces=spaces,
        progress=run.progress,
        seed=run.request.seed,
        given=_given(schedule, spaces, run.request.schedules),
    )
    wanted = _only(run, drafts, searched_keys(drafts))
    seconds = _budget_seconds(budget, wanted)
    deadline = time.monotonic() + seconds if seconds is not None else float("inf")
    search.ensure_first(sorted(searched_keys(drafts)), budget)
    try:
        stopped = search.run(wanted, budget, deadline) if budget.trials != 0 else "budget"
        rest = sorted(set(spaces) - searched_keys(drafts))
        search.transfer(rest)
    except KeyboardInterrupt:
        stopped = "interrupted"
        run.progress.say("interrupted: finishing with what was measured; once more to give up")
    search.ensure_first(sorted(spaces), budget)
    search.journal.close()
    return search, stopped


def _budget_seconds(budget: Budget, wanted: frozenset[str]) -> float | None:
    """Return the search's share of a time budget; the default grows with the number of distinct kernels."""
    if budget.seconds is not None:
        return budget.seconds
    return None if budget.trials is not None else min(130.0, 20.0 + 1.2 * len(wanted))


def _given(schedule: ScheduleFile | None, spaces: Mapping[str, Space], path: Path | None) -> dict[str, Choice]:
    if schedule is None:
        return {}
    unknown = sorted(set(schedule.choices) - set(spaces))
    if unknown:
        raise BadInputError(
            f"{path}: choices for {unknown[0]}: expected a group of this model ({len(spaces)} known), found none; "
            "the file was made for another model, plan or layout: remove the entry or explore anew"
        )
    for key, choice in schedule.choices.items():
        _check_given(spaces[key], choice, path)
    return dict(schedule.choices)


def _check_given(space: Space, choice: Choice, path: Path | None) -> None:
    if choice.layouts != space.layouts:
        raise BadInputError(
            f"{path}: {space.spec.name}: expected layouts {list(space.layouts)}, found {list(choice.layouts)}"
        )
    try:
        template = templates.by_name(choice.template)
        if not template.matches(space.spec):
            raise BadInputError(f"template {choice.template} does not implement {space.spec.name}")
        template.check(space.spec, choice)
    except BadInputError as error:
        raise BadInputError(f"{path}: {error}") from error


def _only(run: Run, drafts: Sequence[Draft], keys: frozenset[str]) -> frozenset[str]:
    """Return the spaces that `--only` leaves to search."""
    if not run.request.only:
        return keys
    chosen = set()
    for wanted in run.request.only:
        found = {key for draft in drafts for key in _matching(run, draft, wanted)} & keys
        if not found:
            raise BadInputError(
                f"--only {wanted}: no node or kernel of that name; `mapper show` lists kernels, nodes have ONNX names"
            )
        chosen |= found
    return frozenset(chosen)


def _matching(run: Run, draft: Draft, wanted: str) -> set[str]:
    operators = {i for node in run.prepared.normalized.nodes if node.name == wanted for i in node.canonical}
    return {
        key
        for key, group in zip(draft.space_keys, draft.plan.groups, strict=True)
        if group.name == wanted or operators & set(group.operators)
    }


# --- verify --------------------------------------------------------------------------------------------------------


def _keep(
    run: Run, spaces: Mapping[str, Space], search: Search
) -> tuple[dict[str, Candidate], dict[str, Verification]]:
    """Return, by space, the fastest candidate that computes the right thing, and how that was seen."""
    check = KernelCheck.start(run.prepared, run.reference, run.worker, run.request.seed)
    run.progress.stage("verifying kernels", len(spaces))
    kept: dict[str, Candidate] = {}
    verified: dict[str, Verification] = {}
    for key, space in spaces.items():
        tried = search.tried.get(key, [])
        run.failures += [candidate.failure for candidate in tried if candidate.failure is not None]
        found = kept_candidates(tried, space.spec, check, run.failures)
        if found is not None:
            kept[key], verified[key] = found
        run.progress.step(space.spec.name)
    return kept, verified


def _finalists(run: Run, drafts: Sequence[Draft], kept: Mapping[str, Candidate]) -> list[Finalist]:
    """Compose every draft whose kernels all exist, and compare it whole with the original model."""
    run.progress.stage("verifying mappings", len(drafts))
    wanted = reference_outputs(run.prepared, run.reference)
    check = ModelCheck(prepared=run.prepared, wanted=wanted)
    finalists = []
    for draft in drafts:
        missing = [key for key in draft.space_keys if key not in kept]
        if missing:
            reason = f"{len(missing)} of its kernels did not build or verify, first {missing[0]}"
            run.failures.append(Failure(subject=draft.label, step="lower", reason=reason))
        else:
            choices = tuple(kept[key].choice for key in draft.space_keys)
            finalists += _composed(run, draft, choices, check)
        run.progress.step(draft.label)
    return finalists


def _composed(run: Run, draft: Draft, choices: tuple[Choice, ...], check: ModelCheck) -> list[Finalist]:
    try:
        memory = run.worker.compose(draft.label, draft.plan, choices, check.ends, run.prepared.feeds_file)
        verification = check.check(draft, run.worker.run_model(draft.label))
        if verification.passed:
            verification, missed = check.with_mutants(
                draft,
                verification,
                run.worker.weights_of(draft.label),
                lambda weight, kind: run.worker.run_mutant(draft.label, weight, kind, run.prepared.feeds_file),
                MUTANTS,
            )
            run.warnings += [f"verification is weak: nobody noticed {one}" for one in missed]
    except ChildFailureError as error:
        run.failures.append(Failure(subject=draft.label, step=error.step, reason=error.reason))
        return []
    if not verification.passed:
        reason = next((c.note for c in verification.checks if not c.passed), "outputs differ")
        run.failures.append(Failure(subject=draft.label, step="numerics", reason=reason))
    return [Finalist(draft=draft, choices=choices, verification=verification, memory=memory)]


# --- sheet ---------------------------------------------------------------------------------------------------------


def _summary(run: Run, search: Search, spaces: Mapping[str, Space], stopped: str, lowering_s: float) -> SearchSummary:
    budget = run.request.budget
    text = (
        f"{budget.trials} trials" if budget.trials is not None else f"{budget.seconds:.0f} s" if budget.seconds else ""
    )
    unsearched = sorted({space.spec.name for key, space in spaces.items() if len(search.tried.get(key, ())) < 2})
    return SearchSummary(
        strategy=search.strategy.name,
        budget=text or "default",
        trials_measured=search.measured,
        trials_failed=search.failed,
        trials_from_journal=search.from_journal,
        explore_s=time.monotonic() - run.started,
        lowering_s=lowering_s,
        stopped=stopped,
        not_searched=tuple(unsearched),
    )


def _sheet(
    run: Run,
    finalists: Sequence[Finalist],
    times: FinalTimes,
    spaces: Mapping[str, Space],
    search: Search,
    kept_all: tuple[dict[str, Candidate], dict[str, Verification], SearchSummary],
) -> MappingSheet:
    kept, verified, summary = kept_all
    rng = np.random.default_rng(run.request.seed)
    run.warnings += [f"final round: {reason}" for reason in times.failures]
    total_flops = sum(operator.flops for operator in run.prepared.graph.operators)
    mapping_facts = [_mapping_facts(run, finalist, kept, times) for finalist in finalists]
    mappings = rows.ranked_mappings(mapping_facts, times, total_flops, run.model, rng)
    by_key = {facts.key: facts.finalist for facts in mapping_facts}
    best = by_key[mappings[0].key] if mappings and mappings[0].rank is not None else None
    facts = _kernel_facts(run, best, times, search, verified) if best else []
    kernel_of = _kernel_of(best) if best else {}
    members = [group.operators for group in best.draft.plan.groups] if best else []
    sheet = MappingSheet(
        schema_version=SCHEMA_VERSION,
        mapper_version=__version__,
        model=run.prepared.model.source,
        machine=run.machine,
        environment=environment(
            run.request.command,
            run.request.seed,
            {**run.worker.versions, "mapper": __version__, "onnxruntime": run.reference.version()},
        ),
        search=replace(summary, explore_s=time.monotonic() - run.started),
        mappings=mappings,
        kernels=rows.kernel_rows(facts, run.model, rng),
        layer_types=rows.layer_types(facts, run.prepared.graph, members, run.model),
        nodes=rows.node_rows(run.prepared.normalized.nodes, kernel_of) if best else run.prepared.normalized.nodes,
        candidates=rows.candidate_rows(_spaces_of(best, spaces), search.tried),
        failures=tuple(run.failures),
        reconciliation=rows.reconciliation(facts, mappings[0].time_s.median if mappings else None, run.model),
        reference=_reference_row(run, times, mappings[0].verified if mappings else None, rng),
        warnings=tuple(dict.fromkeys(run.warnings)),
    )
    _write(run, sheet, best)
    return sheet


def _spaces_of(best: Finalist | None, spaces: Mapping[str, Space]) -> list[Space]:
    return [spaces[key] for key in dict.fromkeys(best.draft.space_keys)] if best else []


def _mapping_facts(run: Run, finalist: Finalist, kept: Mapping[str, Candidate], times: FinalTimes) -> rows.MappingFacts:
    predictions = []
    specs = run.worker.specs
    for key, group, choice in zip(finalist.draft.space_keys, finalist.draft.plan.groups, finalist.choices, strict=True):
        predictions.append((rows.predict(specs[group.key], choice, run.model), kept[key].time_s or 0.0))
    code_b = sum(run.worker.code_bytes(group_key, choice) for group_key, choice in _distinct_kernels(finalist))
    return rows.MappingFacts(
        finalist=finalist, predictions=tuple(predictions), code_b=code_b, energy_j=_energy(run, finalist, times)
    )


def _distinct_kernels(finalist: Finalist) -> list[tuple[str, Choice]]:
    found: list[tuple[str, Choice]] = []
    for group, choice in zip(finalist.draft.plan.groups, finalist.choices, strict=True):
        if (group.key, choice) not in found:
            found.append((group.key, choice))
    return found


def _energy(run: Run, finalist: Finalist, times: FinalTimes) -> Reading:
    """Meter a mapping in a continuous run of its own."""
    meter = pick_meter()
    samples = times.rounds.get(finalist.label)
    if not samples:
        return Reading(value=None, unit="J", method="none", reason="not timed, so not metered")
    calls = calls_needed(meter, float(np.median(samples)))
    return energy_reading(
        meter, lambda count: sum(run.worker.run_timed(finalist.label, count)), calls, threads=run.host.threads
    )


def _kernel_facts(
    run: Run, best: Finalist, times: FinalTimes, search: Search, verified: Mapping[str, Verification]
) -> list[rows.KernelFacts]:
    """Measure each distinct kernel of the best mapping afresh, and look inside it."""
    folder = run.out_dir / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.tir"), *folder.glob("*.s")):
        old.unlink()
    plan = best.draft.plan
    kernels = [
        (key, group, choice)
        for key, group, choice in zip(best.draft.space_keys, plan.groups, best.choices, strict=True)
    ]
    calls = Counter(key for key, _, _ in kernels)
    in_situ = _in_situ_by_key(times, best.draft.space_keys)
    facts, seen = [], set()
    for key, group, choice in kernels:
        if key in seen:
            continue
        seen.add(key)
        spec = run.worker.specs[group.key]
        operators = {i for k, g, _ in kernels if k == key for i in g.operators}
        nodes = tuple(n.index for n in run.prepared.normalized.nodes if operators & set(n.canonical))
        tried = search.tried.get(key, ())
        facts.append(
            rows.KernelFacts(
                spec=spec,
                choice=choice,
                prediction=rows.predict(spec, choice, run.model),
                samples_s=tuple(run.worker.time_kernel(group.key, choice, FRESH_REPEATS, run.request.seed)),
                in_situ_s=in_situ.get(key),
                nodes=nodes,
                calls=calls[key],
                inspection=run.worker.inspect(group.key, choice, folder, spec.name),
                ir_hash=run.worker.build(group.key, choice),
                verified=verified[key],
                searched=f"{len(tried)} tried" if len(tried) > 1 else "constructed schedule only",
                energy_j=Reading(
                    value=None, unit="J", method="none", reason="energy is metered for whole mappings only"
                ),
            )
        )
    return facts


def _in_situ_by_key(times: FinalTimes, keys: Sequence[str]) -> dict[str, float]:
    """Return the median time of one call of each kernel inside the model, the instrument subtracted."""
    if not times.in_situ:
        return {}
    per_call = np.median(np.array(times.in_situ), axis=0) - times.in_situ_overhead_s
    found: dict[str, list[float]] = {}
    for key, value in zip(keys, per_call, strict=True):
        found.setdefault(key, []).append(float(value))
    return {key: float(np.mean(values)) for key, values in found.items()}


def _kernel_of(best: Finalist) -> dict[int, str]:
    return {
        index: kernel_symbol(group.key, choice)
        for group, choice in zip(best.draft.plan.groups, best.choices, strict=True)
        for index in group.operators
    }


def _reference_row(
    run: Run, times: FinalTimes, verification: Verification | None, rng: np.random.Generator
) -> ReferenceRow:
    samples = [sample for block in times.theirs_blocks for sample in block]
    absolute, relative = largest_errors(verification) if verification else (None, None)
    first = verification.checks[0] if verification and verification.checks else None
    return ReferenceRow(
        onnxruntime_version=run.reference.version(),
        time_s=stats.time_reading(samples, rng, "alternating blocks beside the best mapping")
        if samples
        else TimeReading(median=None, grade=None, reason="not timed"),
        threads=run.host.threads,
        max_abs_err=absolute,
        max_rel_err=relative,
        tolerance=f"{first.tolerance_rel:g} × largest magnitude + {first.tolerance_abs:g}" if first else "none",
        verification_strength=_strength(verification),
        tensors=tuple(check.tensor for check in verification.checks) if verification else (),
        stable=_is_stable(run),
    )


def _strength(verification: Verification | None) -> str:
    if verification is None or not verification.mutants:
        return "not tested"
    word = "strong" if verification.mutants_caught == verification.mutants else "weak"
    return f"{word}: {verification.mutants_caught} of {verification.mutants} corrupted kernels noticed"


def _is_stable(run: Run) -> bool:
    """Say whether onnxruntime agrees with itself, optimisations off and on."""
    off = reference_outputs(run.prepared, run.reference)
    on = reference_outputs(run.prepared, run.reference, "all")
    return verify("onnxruntime", on, off, "onnxruntime at ORT_DISABLE_ALL").passed


def _write(run: Run, sheet: MappingSheet, best: Finalist | None) -> None:
    run.out_dir.mkdir(parents=True, exist_ok=True)
    write_sheet(sheet, run.out_dir / SHEET_NAME)
    write_atomic(run.out_dir / "sheet.md", render_markdown(sheet).encode())
    if best is None:
        return
    schedule = ScheduleFile(
        schema_version=SCHEMA_VERSION,
        model_sha256=sheet.model.sha256,
        fusion_plan=best.draft.plan.label,
        partition=tuple(group.operators for group in best.draft.plan.groups),
        layout=best.draft.policy,
        target=run.host.target,
        compiler=compiler_tag(run.worker, run.host),
        choices=dict(zip(best.draft.space_keys, best.choices, strict=True)),
    )
    write_schedule(schedule, run.out_dir / SCHEDULE_NAME)
