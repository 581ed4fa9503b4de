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
    Prediction,
    RankedMapping,
    Reading,
    TimeReading,
)
from mapper.release.rank import Contender, Ranked, rank
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


def ranked_mappings(mappings: Sequence[MappingFacts], sitting: Sitting) -> tuple[RankedMapping, ...]:
    """Rank the mappings by their fresh times, the unverified ones last and unranked."""
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
    return tuple(_mapping_row(by_key[entry.key], entry, sitting) for entry in order)


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
