"""The last stage: everything seen becomes a sheet, a page, a replayable schedule file and the kernels' sources."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mapper import __version__, stats
from mapper.flows import requested
from mapper.flows.finalists import Finalist, Kept, put_to_the_test
from mapper.flows.finals import FinalTimes
from mapper.flows.kernel_rows import KernelFacts, kernel_rows, layer_types, predict, reconciliation
from mapper.flows.machine import compiler_tag
from mapper.flows.mapping_rows import (
    MappingFacts,
    Sitting,
    candidate_rows,
    node_rows,
    prediction_quality,
    ranked_mappings,
)
from mapper.flows.prepare import Array, reference_outputs
from mapper.flows.run import Run
from mapper.flows.searching import Search
from mapper.flows.verifying import largest_errors
from mapper.keys import kernel_symbol
from mapper.measure.environment import environment
from mapper.measure.meters.protocol import calls_needed, energy_reading
from mapper.measure.meters.select import pick_meter
from mapper.records import (
    SCHEMA_VERSION,
    MappingSheet,
    RankedMapping,
    Reading,
    ReferenceRow,
    ScheduleFile,
    SearchSummary,
    TimeReading,
    Verification,
)
from mapper.report.jsonfile import write_atomic
from mapper.report.markdown import render_markdown
from mapper.report.schedule import SCHEDULE_NAME, write_schedule
from mapper.report.sheet import SHEET_NAME, write_sheet
from mapper.search.space import Space
from mapper.validate.numerics import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the stages before found."""

    spaces: Mapping[str, Space]
    search: Search
    kernels: Mapping[str, Kept]
    finalists: Sequence[Finalist]
    times: FinalTimes
    reference: Mapping[str, Array]  # the original model's outputs and taps, optimisations off
    lowering_s: float


def write_results(run: Run, outcome: Outcome) -> MappingSheet:
    """Assemble the sheet and write it with all that belongs to it; return the sheet."""
    run.progress.stage("writing the sheet")
    run.out_dir.mkdir(parents=True, exist_ok=True)
    run.warnings += [f"final round: {reason}" for reason in outcome.times.failures]
    rng = np.random.default_rng(run.request.seed)
    facts = [_mapping_facts(run, finalist, outcome) for finalist in outcome.finalists]
    flops = sum(operator.flops for operator in run.prepared.graph.operators)
    sitting = Sitting(times=outcome.times, flops=flops, machine=run.model, rng=rng)
    mappings = ranked_mappings(facts, sitting, run.request.objective)
    best = _best(mappings, facts)
    if best is not None:
        tested = put_to_the_test(run, best, outcome.reference)
        mappings = (replace(mappings[0], verified=tested), *mappings[1:])
    sheet = _sheet(run, outcome, mappings, best, rng)
    write_sheet(sheet, run.out_dir / SHEET_NAME)
    write_atomic(run.out_dir / "sheet.md", render_markdown(sheet).encode())
    if best is not None:
        write_schedule(_schedule_file(run, best, sheet.model.sha256), run.out_dir / SCHEDULE_NAME)
    return sheet


def _best(mappings: Sequence[RankedMapping], facts: Sequence[MappingFacts]) -> Finalist | None:
    by_key = {entry.key: entry.finalist for entry in facts}
    return by_key[mappings[0].key] if mappings and mappings[0].rank is not None else None


def _sheet(
    run: Run,
    outcome: Outcome,
    mappings: tuple[RankedMapping, ...],
    best: Finalist | None,
    rng: np.random.Generator,
) -> MappingSheet:
    kernels = _kernel_facts(run, best, outcome) if best else []
    if mappings and best:
        memory = replace(mappings[0].memory, code_b=sum(fact.inspection.code_b for fact in kernels))
        mappings = (replace(mappings[0], memory=memory), *mappings[1:])
    members = [group.operators for group in best.draft.plan.groups] if best else []
    nodes = run.prepared.normalized.nodes
    version = run.reference.version()
    top = mappings[0] if best else None
    return MappingSheet(
        schema_version=SCHEMA_VERSION,
        mapper_version=__version__,
        model=run.prepared.model.source,
        machine=run.machine,
        environment=environment(
            run.request.command,
            run.request.seed,
            {**run.worker.versions, "mapper": __version__, "onnxruntime": version},
        ),
        search=_summary(run, outcome),
        mappings=mappings,
        kernels=kernel_rows(kernels, run.model, rng),
        layer_types=layer_types(kernels, run.prepared.graph, members, run.model),
        nodes=node_rows(nodes, _kernel_of(best)) if best else nodes,
        candidates=candidate_rows(_spaces_of(best, outcome.spaces), outcome.search.tried),
        failures=tuple(run.failures),
        reconciliation=reconciliation(kernels, top.time_s.median if top else None, run.model),
        reference=_reference_row(run, outcome, top.verified if top else None, version, rng),
        warnings=tuple(dict.fromkeys(run.warnings)),
    )


def _summary(run: Run, outcome: Outcome) -> SearchSummary:
    search = outcome.search
    error, rank_correlation = prediction_quality(
        [candidate for tried in search.tried.values() for candidate in tried], run.host.threads
    )
    lonely = {space.spec.name for key, space in outcome.spaces.items() if len(search.tried.get(key, ())) < 2}
    return SearchSummary(
        strategy=search.strategy.name,
        budget=requested.budget_text(run.request.budget),
        trials_measured=search.measured,
        trials_failed=search.failed,
        trials_from_journal=search.from_journal,
        explore_s=time.monotonic() - run.started,
        lowering_s=outcome.lowering_s,
        stopped=search.stopped,
        objective=run.request.objective,
        prediction_error=error,
        prediction_rank=rank_correlation,
        not_searched=tuple(sorted(lonely)),
    )


def _mapping_facts(run: Run, finalist: Finalist, outcome: Outcome) -> MappingFacts:
    specs = run.worker.specs
    calls = zip(finalist.draft.space_keys, finalist.draft.plan.groups, finalist.choices, strict=True)
    return MappingFacts(
        finalist=finalist,
        predictions=tuple(
            (predict(specs[group.key], choice, run.model), outcome.kernels[key].candidate.time_s or 0.0)
            for key, group, choice in calls
        ),
        energy_j=_energy(run, finalist, outcome.times),
    )


def _energy(run: Run, finalist: Finalist, times: FinalTimes) -> Reading:
    """Meter a mapping in a continuous run of its own."""
    samples = times.rounds.get(finalist.label)
    if not samples:
        return Reading(value=None, unit="J", method="none", reason="not timed, so not metered")
    meter = pick_meter()
    calls = calls_needed(meter, float(np.median(samples)))
    return energy_reading(
        meter, lambda count: sum(run.worker.run_timed(finalist.label, count)), calls, threads=run.host.threads
    )


def _kernel_facts(run: Run, best: Finalist, outcome: Outcome) -> list[KernelFacts]:
    """Measure each distinct kernel of the best mapping afresh, and look inside it."""
    folder = run.out_dir / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.tir"), *folder.glob("*.s")):
        old.unlink()
    plan, keys = best.draft.plan, best.draft.space_keys
    calls = Counter(keys)
    namesakes = Counter({key: group.name for key, group in zip(keys, plan.groups, strict=True)}.values())
    in_situ = _in_situ_by_key(outcome.times, best)
    facts = []
    for key in calls:
        at = keys.index(key)
        group, choice = plan.groups[at], best.choices[at]
        operators = {
            i for other, member in zip(keys, plan.groups, strict=True) if other == key for i in member.operators
        }
        tried = outcome.search.tried.get(key, ())
        facts.append(
            KernelFacts(
                spec=run.worker.specs[group.key],
                choice=choice,
                prediction=predict(run.worker.specs[group.key], choice, run.model),
                predicted_s=outcome.kernels[key].candidate.predicted_s,
                samples_s=tuple(run.worker.time_kernel(group.key, choice, run.conditions)),
                in_situ_s=in_situ.get(key),
                nodes=tuple(n.index for n in run.prepared.normalized.nodes if operators & set(n.canonical)),
                calls=calls[key],
                inspection=run.worker.inspect(group.key, choice, folder, _stem(group.name, choice.layouts, namesakes)),
                ir_hash=run.worker.build(group.key, choice),
                verified=outcome.kernels[key].verification,
                searched=f"{len(tried)} tried" if len(tried) > 1 else "constructed schedule only",
                energy_j=Reading(
                    value=None, unit="J", method="none", reason="energy is metered for whole mappings only"
                ),
            )
        )
    return facts


def _stem(name: str, layouts: Sequence[str], namesakes: Mapping[str, int]) -> str:
    """Return a file name for a kernel; equal groups under other boundary layouts are other kernels of that name."""
    return name if namesakes[name] == 1 else f"{name}.{'-'.join(layouts)}"


def _in_situ_by_key(times: FinalTimes, best: Finalist) -> dict[str, float]:
    """Return the median time of one call of each kernel inside the model, the instrument subtracted."""
    if not times.in_situ or times.beside != best.label:
        return {}
    per_call = np.median(np.array(times.in_situ), axis=0) - times.in_situ_overhead_s
    found: dict[str, list[float]] = {}
    for key, value in zip(best.draft.space_keys, per_call, strict=True):
        found.setdefault(key, []).append(float(value))
    return {key: float(np.mean(values)) for key, values in found.items()}


def _kernel_of(best: Finalist) -> dict[int, str]:
    """Return the kernel of every canonical operator."""
    return {
        index: kernel_symbol(group.key, choice)
        for group, choice in zip(best.draft.plan.groups, best.choices, strict=True)
        for index in group.operators
    }


def _spaces_of(best: Finalist | None, spaces: Mapping[str, Space]) -> list[Space]:
    return [spaces[key] for key in dict.fromkeys(best.draft.space_keys)] if best else []


def _reference_row(
    run: Run, outcome: Outcome, verification: Verification | None, version: str, rng: np.random.Generator
) -> ReferenceRow:
    samples = [sample for block in outcome.times.theirs_blocks for sample in block]
    absolute, relative = largest_errors(verification) if verification else (None, None)
    first = verification.checks[0] if verification and verification.checks else None
    return ReferenceRow(
        onnxruntime_version=version,
        time_s=stats.time_reading(samples, rng, "alternating blocks beside the best mapping")
        if samples
        else TimeReading(median=None, grade=None, reason="not timed"),
        threads=run.host.threads,
        max_abs_err=absolute,
        max_rel_err=relative,
        tolerance=f"{first.tolerance_rel:g} × largest magnitude + {first.tolerance_abs:g}" if first else "none",
        verification_strength=_strength(verification),
        tensors=tuple(check.tensor for check in verification.checks) if verification else (),
        stable=_is_stable(run, outcome.reference),
    )


def _strength(verification: Verification | None) -> str:
    if verification is None or not verification.mutants:
        return "not tested"
    word = "strong" if verification.mutants_caught == verification.mutants else "weak"
    return f"{word}: {verification.mutants_caught} of {verification.mutants} corrupted kernels noticed"


def _is_stable(run: Run, off: Mapping[str, Array]) -> bool:
    """Say whether onnxruntime agrees with itself: `off` are its outputs with optimisations off."""
    on = reference_outputs(run.prepared, run.reference, "all")
    return verify("onnxruntime", on, off, "onnxruntime at ORT_DISABLE_ALL").passed


def _schedule_file(run: Run, best: Finalist, sha256: str) -> ScheduleFile:
    return ScheduleFile(
        schema_version=SCHEMA_VERSION,
        model_sha256=sha256,
        fusion_plan=best.draft.plan.label,
        partition=tuple(group.operators for group in best.draft.plan.groups),
        layout=best.draft.policy,
        target=run.host.target,
        compiler=compiler_tag(run.worker, run.host),
        choices=dict(zip(best.draft.space_keys, best.choices, strict=True)),
    )
