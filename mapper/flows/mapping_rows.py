"""The sheet's rows about whole mappings, original nodes and candidates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mapper import stats
from mapper.flows.finalists import Finalist
from mapper.flows.finals import FinalTimes
from mapper.flows.kernel_rows import flop_fraction, weighted_stall
from mapper.keys import choice_key, digest
from mapper.records import (
    Candidate,
    GroupCandidates,
    MachineModel,
    Memory,
    NodeRef,
    Objective,
    Prediction,
    RankedMapping,
    Reading,
    TimeReading,
)
from mapper.release.rank import Contender, Ranked, pareto, rank
from mapper.search.space import Space

CANDIDATES_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingFacts:
    """What ranking and the sheet need of one finalist besides its times."""

    finalist: Finalist
    predictions: tuple[tuple[Prediction, float], ...]  # (prediction, isolated seconds), one a call
    energy_j: Reading

    @property
    def key(self) -> str:
        """Name of the mapping: plan, layouts and choices."""
        plan = self.finalist.draft.plan
        parts = zip(plan.groups, self.finalist.choices, strict=True)
        return digest([[list(group.operators), group.key, choice_key(choice)] for group, choice in parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sitting:
    """What every mapping row is computed with: the final round, the model's useful FLOPs, the machine."""

    times: FinalTimes
    flops: int
    machine: MachineModel
    rng: np.random.Generator


def ranked_mappings(
    mappings: Sequence[MappingFacts], sitting: Sitting, objective: Objective = "latency"
) -> tuple[RankedMapping, ...]:
    """Rank the mappings by their fresh times, or by metered energy; the unverified ones last and unranked."""
    contenders = [
        Contender(
            key=facts.key,
            kernel_count=len(facts.finalist.draft.plan.groups),
            verified=facts.finalist.verification.passed,
            samples_by_round_s=tuple((sample,) for sample in sitting.times.rounds.get(facts.finalist.label, ())),
        )
        for facts in mappings
    ]
    by_key = {facts.key: facts for facts in mappings}
    order = rank(contenders, sitting.rng)
    rows = [_mapping_row(by_key[entry.key], entry, sitting) for entry in order]
    return _marked(rows if objective == "latency" else by_energy(rows, objective))


def by_energy(rows: Sequence[RankedMapping], objective: Objective) -> list[RankedMapping]:
    """Return the rows ranked anew by energy or by energy × time; one whose energy was not metered is not ranked."""

    def cost(row: RankedMapping) -> float | None:
        energy_j, time_s = row.energy_j.value, row.time_s.median
        if row.rank is None or energy_j is None or time_s is None:
            return None
        return energy_j * time_s if objective == "edp" else energy_j

    costs = [(cost(row), row) for row in rows]
    metered = sorted(((value, row) for value, row in costs if value is not None), key=lambda pair: pair[0])
    ranked = [replace(row, rank=place) for place, (_, row) in enumerate(metered, 1)]
    return [*ranked, *(replace(row, rank=None) for value, row in costs if value is None)]


def _marked(rows: Sequence[RankedMapping]) -> tuple[RankedMapping, ...]:
    """Mark the Pareto set of time, memory and, where all ranked mappings have it, energy."""
    ranked = [row for row in rows if row.rank is not None and row.time_s.median is not None]
    has_energy = all(row.energy_j.value is not None for row in ranked)
    points = [
        (
            row.time_s.median or 0.0,
            float(row.memory.weights_b + row.memory.workspace_b),
            (row.energy_j.value or 0.0) if has_energy else 0.0,
        )
        for row in ranked
    ]
    best = {row.key for row, is_best in zip(ranked, pareto(points), strict=True) if is_best}
    return tuple(replace(row, is_pareto=row.key in best) for row in rows)


def _mapping_row(facts: MappingFacts, entry: Ranked, sitting: Sitting) -> RankedMapping:
    times, machine = sitting.times, sitting.machine
    finalist = facts.finalist
    samples = times.rounds.get(finalist.label, [])
    reading = (
        stats.time_reading(samples, sitting.rng, "fresh rounds, run by run")
        if samples
        else TimeReading(median=None, grade=None, reason="not timed: " + ("; ".join(times.failures) or "not verified"))
    )
    executed = sum(prediction.executed_flops for prediction, _ in facts.predictions)
    untimed = Reading(value=None, unit="1", method="none", reason="not timed")
    return RankedMapping(
        rank=entry.rank,
        key=facts.key,
        label=finalist.label,
        fusion_plan=finalist.draft.plan.label,
        layout=finalist.draft.policy,
        kernel_count=len(finalist.draft.plan.groups),
        time_s=reading,
        flop_fraction=flop_fraction(sitting.flops, reading.median, machine) if reading.median else untimed,
        executed_fraction=flop_fraction(executed, reading.median, machine) if reading.median else untimed,
        stall_share=weighted_stall(facts.predictions, machine),
        energy_j=facts.energy_j,
        memory=Memory(
            weights_b=finalist.memory.get("weights_b", 0),
            workspace_b=finalist.memory.get("workspace_b", 0),
            code_b=None,
        ),
        verified=finalist.verification,
        ratio_onnxruntime=_ratio(samples, sitting),
    )


def _ratio(samples: Sequence[float], sitting: Sitting) -> Reading:
    """Return time ÷ onnxruntime's: blocks side by side for the timed mapping, times its paired ratio for the others."""
    times, rng = sitting.times, sitting.rng
    method = "alternating blocks beside onnxruntime"
    if not samples or not times.theirs_blocks:
        return Reading(value=None, unit="1", method=method, reason="not timed beside onnxruntime")
    best, low, high = stats.log_ratio(times.ours_blocks, times.theirs_blocks, rng)
    scale, beside = 1.0, times.rounds[times.beside]
    if samples is not beside:
        scale = stats.log_ratio(list(samples), list(beside), rng)[0]
        method += f" for {times.beside}, × the paired ratio to it"
    return Reading(
        value=best * scale,
        unit="1",
        method=method,
        grade="measured",
        low=None if low is None else low * scale,
        high=None if high is None else high * scale,
        n=len(times.theirs_blocks),
        threads=sitting.machine.threads,
    )


def prediction_quality(candidates: Sequence[Candidate], threads: int) -> tuple[Reading, Reading]:
    """Return how well times were predicted before they were measured: relative error, and rank correlation."""
    pairs = [(c.predicted_s, c.time_s) for c in candidates if c.predicted_s is not None and c.time_s]
    predicted, measured = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    figures = stats.mape(predicted, measured), stats.spearman(predicted, measured)
    method = "predictions made before measuring, against the times of kernels alone"
    return tuple(  # type: ignore[return-value]
        Reading(
            value=value,
            unit="1",
            method=method,
            grade="measured" if value is not None else None,
            n=len(pairs),
            threads=threads,
            reason=None if value is not None else "too few kernels were predicted and timed",
        )
        for value in figures
    )


def node_rows(nodes: Sequence[NodeRef], kernel_of: Mapping[int, str]) -> tuple[NodeRef, ...]:
    """Return the original nodes with the kernels of the best mapping that compute them."""
    return tuple(
        replace(node, kernels=tuple(dict.fromkeys(kernel_of[index] for index in node.canonical))) for node in nodes
    )


def candidate_rows(spaces: Sequence[Space], tried: Mapping[str, Sequence[Candidate]]) -> tuple[GroupCandidates, ...]:
    """Return the best candidates of each space and counts of the rest."""
    rows = []
    for space in spaces:
        outcomes = tried.get(space.key, ())
        ran = sorted((c for c in outcomes if c.time_s is not None), key=lambda c: (c.time_s or 0.0, c.choice_key))
        failed = [c for c in outcomes if c.failure is not None]
        rows.append(
            GroupCandidates(
                group=space.spec.key,
                name=space.spec.name,
                best=tuple(replace(c, samples_s=()) for c in (ran + failed)[:CANDIDATES_SHOWN]),
                measured=len(ran),
                failed=len(failed),
                predicted_only=max(0, len(space.ranked) - len(outcomes)),
            )
        )
    return tuple(rows)
