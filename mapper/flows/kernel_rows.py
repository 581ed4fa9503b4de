"""The sheet's rows about kernels: one a distinct kernel, sums by layer type, the reconciliation with the model."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mapper import stats, templates
from mapper.keys import choice_key, kernel_symbol
from mapper.measure.stalls.model import stall_share_model
from mapper.records import (
    Bottleneck,
    Choice,
    GroupSpec,
    KernelRow,
    LayerType,
    MachineModel,
    NamedPart,
    OperatorGraph,
    Prediction,
    Reading,
    Reconciliation,
    Verification,
)
from mapper.release.advice import next_step
from mapper.release.classify import KernelEvidence, classify, expected_class
from mapper.worker.workers import Inspection

LEAST_IN_SITU_S = 50e-6  # below this the instrument's own call-backs drown the kernel. Source: docs/sheet.md


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """All that is known of one distinct kernel of the best mapping."""

    spec: GroupSpec
    choice: Choice
    prediction: Prediction  # unfitted: where its work and traffic lie
    predicted_s: float | None  # said before it was measured
    samples_s: tuple[float, ...]  # fresh, alone
    in_situ_s: float | None  # median a call, instrument subtracted; None when the model was not instrumented
    nodes: tuple[int, ...]
    calls: int
    inspection: Inspection
    ir_hash: str
    verified: Verification
    searched: str
    energy_j: Reading

    @property
    def key(self) -> str:
        """The kernel's global name."""
        return kernel_symbol(self.spec.key, self.choice)

    @property
    def alone_s(self) -> float:
        """Median time alone, per call."""
        return float(np.median(self.samples_s))

    @property
    def best_known_s(self) -> float:
        """Time inside the model where that can be resolved, else alone; per call."""
        if self.in_situ_s is not None and self.in_situ_s >= LEAST_IN_SITU_S:
            return self.in_situ_s
        return self.alone_s


def predict(spec: GroupSpec, choice: Choice, machine: MachineModel) -> Prediction:
    """Return what the choice's template expects."""
    return templates.by_name(choice.template).cost(spec, choice, machine)


def kernel_rows(facts: Sequence[KernelFacts], machine: MachineModel, rng: np.random.Generator) -> tuple[KernelRow, ...]:
    """Return the kernels of a mapping, most of the model's time first."""
    total_s = sum(fact.best_known_s * fact.calls for fact in facts)
    rows = [_kernel_row(fact, total_s, machine, rng) for fact in facts]
    return tuple(sorted(rows, key=lambda row: (-(row.share_of_time.value or 0.0), row.key)))


def _kernel_row(fact: KernelFacts, total_s: float, machine: MachineModel, rng: np.random.Generator) -> KernelRow:
    spec, choice = fact.spec, fact.choice
    bottleneck = _bottleneck(fact, machine)
    words = {"kernel": spec.name, "tile": _tile_text(choice), "layout": ", ".join(choice.layouts)}
    return KernelRow(
        key=fact.key,
        name=spec.name,
        family=spec.family,
        group_key=spec.key,
        nodes=fact.nodes,
        calls=fact.calls,
        layout=" ".join(choice.layouts),
        tile=dict(choice.tile),
        loop_nest=fact.inspection.loop_nest,
        template=choice.template,
        choice_key=choice_key(choice),
        ir_hash=fact.ir_hash,
        flops_per_call=spec.flops,
        bytes_per_call=spec.bytes_compulsory,
        time_isolated_s=stats.time_reading(
            fact.samples_s,
            rng,
            "alone, in turns with multiply-adds, scaled to their measured peak; weights cold as in the model",
        ),
        time_in_situ_s=_in_situ(fact),
        share_of_time=Reading(
            value=fact.best_known_s * fact.calls / total_s if total_s else None,
            unit="1",
            method="in situ where resolved, else alone",
            grade="measured" if total_s else None,
            reason=None if total_s else "nothing was timed",
            threads=machine.threads,
        ),
        flop_fraction=flop_fraction(spec.flops, fact.alone_s, machine),
        executed_fraction=flop_fraction(fact.prediction.executed_flops, fact.alone_s, machine)
        if spec.flops
        else no_flops(machine),
        stall_share=stall_share(fact.prediction, machine),
        energy_j=fact.energy_j,
        predicted_s=fact.predicted_s,
        bottleneck=bottleneck,
        verified=fact.verified,
        code_b=fact.inspection.code_b,
        workspace_b=fact.inspection.workspace_b,
        searched=fact.searched,
        next_step=next_step(bottleneck, words),
    )


def flop_fraction(flops: float, time_s: float, machine: MachineModel) -> Reading:
    """Return FLOPs ÷ (time × measured peak) at the mapping's thread count."""
    if not flops:
        return no_flops(machine)
    return Reading(
        value=flops / (time_s * machine.flops_per_s_n),
        unit="1",
        method="FLOPs ÷ (median time × measured float32 FMA peak)",
        grade="measured",
        threads=machine.threads,
    )


def no_flops(machine: MachineModel) -> Reading:
    """Return the null reading of a kernel that only moves data."""
    return Reading(value=None, unit="1", method="none", reason="0 useful FLOPs", threads=machine.threads)


def stall_share(prediction: Prediction, machine: MachineModel) -> Reading:
    """Return the modelled share of time spent waiting for memory beyond L1."""
    by_level = {level: moved / machine.bandwidth_b_per_s_n[level] for level, moved in prediction.bytes_by_level.items()}
    return stall_share_model(prediction.compute_s, by_level, machine.threads)


def _in_situ(fact: KernelFacts) -> Reading:
    method = "VM instrument, its own overhead subtracted"
    if fact.in_situ_s is None:
        return Reading(value=None, unit="s", method=method, reason="the model was not run under instruments")
    if fact.in_situ_s < LEAST_IN_SITU_S:
        return Reading(value=None, unit="s", method=method, reason="below 50 µs the instrument drowns the kernel")
    return Reading(value=fact.in_situ_s, unit="s", method=method, grade="measured")


def _bottleneck(fact: KernelFacts, machine: MachineModel) -> Bottleneck:
    observed = _evidence(fact, fact.alone_s, machine)
    expected = expected_class(_evidence(fact, fact.prediction.time_s, machine))
    return classify(observed, expected)


def _evidence(fact: KernelFacts, time_s: float, machine: MachineModel) -> KernelEvidence:
    spec, prediction = fact.spec, fact.prediction
    tasks = re.search(r"parallel (\d+)", fact.inspection.loop_nest)
    outermost = next((level for level in ("DRAM", "L3") if level in prediction.bytes_by_level), None)
    return KernelEvidence(
        flops=spec.flops,
        longlat_flops=spec.longlat_flops,
        time_s=time_s,
        is_movement=spec.flops == 0,
        executed_fraction=prediction.executed_flops / (time_s * machine.flops_per_s_n),
        flop_fraction=spec.flops / (time_s * machine.flops_per_s_n),
        stall_share=stall_share(prediction, machine),
        bytes_by_level=prediction.bytes_by_level,
        bandwidth_b_per_s=machine.bandwidth_b_per_s_n,
        bytes_compulsory=float(spec.bytes_compulsory),
        bytes_moved=prediction.bytes_by_level[outermost] if outermost else None,
        parallel_tasks=int(tasks.group(1)) if tasks else 1,
        threads=machine.threads,
        launch_overhead_s=machine.launch_parallel_s if tasks else machine.launch_serial_s,
        code_b=fact.inspection.code_b,
    )


def _tile_text(choice: Choice) -> str:
    return " ".join(f"{name}={value}" for name, value in choice.tile.items())


def layer_types(
    facts: Sequence[KernelFacts], graph: OperatorGraph, groups: Iterable[tuple[int, ...]], machine: MachineModel
) -> tuple[LayerType, ...]:
    """Return percent of FLOPs sustained and stall share by layer type; a kernel belongs to the type of its family."""
    total_s = sum(fact.best_known_s * fact.calls for fact in facts)
    fused = _fused_into(graph, groups)
    found = []
    for family in sorted({fact.spec.family for fact in facts}):
        own = [fact for fact in facts if fact.spec.family == family]
        time_s = sum(fact.best_known_s * fact.calls for fact in own)
        flops = sum(fact.spec.flops * fact.calls for fact in own)
        found.append(
            LayerType(
                op_type=family,
                kernels=len(own),
                flops=flops,
                time_s=time_s,
                share_of_time=time_s / total_s if total_s else 0.0,
                flop_fraction=flop_fraction(flops, time_s, machine),
                stall_share=weighted_stall(
                    [(fact.prediction, fact.best_known_s * fact.calls) for fact in own], machine
                ),
                coverage=1.0,
                fused_into=fused.get(family, {}),
            )
        )
    missing = sorted(set(fused) - {entry.op_type for entry in found})
    found += [_only_fused(op_type, fused[op_type], machine) for op_type in missing]
    return tuple(sorted(found, key=lambda entry: (-entry.time_s, entry.op_type)))


def _only_fused(op_type: str, into: Mapping[str, int], machine: MachineModel) -> LayerType:
    reason = Reading(value=None, unit="1", method="none", reason="lives in kernels of other types only")
    return LayerType(
        op_type=op_type,
        kernels=0,
        flops=0,
        time_s=0.0,
        share_of_time=0.0,
        flop_fraction=replace(reason, threads=machine.threads),
        stall_share=replace(reason, threads=machine.threads),
        coverage=0.0,
        fused_into=into,
    )


def _fused_into(graph: OperatorGraph, groups: Iterable[tuple[int, ...]]) -> dict[str, dict[str, int]]:
    """Count, by operator type, the operators that live in a kernel of another type."""
    found: dict[str, dict[str, int]] = {}
    for members in groups:
        family = max(members, key=lambda index: (graph.operators[index].flops, -index))
        family_type = graph.operators[family].op_type
        for index in members:
            op_type = graph.operators[index].op_type
            if op_type != family_type:
                entry = found.setdefault(op_type, {})
                entry[family_type] = entry.get(family_type, 0) + 1
    return found


def weighted_stall(parts: Sequence[tuple[Prediction, float]], machine: MachineModel) -> Reading:
    """Return the time-weighted stall share of several kernels."""
    pairs = [(stall_share(prediction, machine).value, time_s) for prediction, time_s in parts]
    known = [(value, time_s) for value, time_s in pairs if value is not None]
    total_s = sum(time_s for _, time_s in known)
    if not total_s:
        return Reading(value=None, unit="1", method="model", reason="no kernel has a reading", threads=machine.threads)
    return Reading(
        value=sum(value * time_s for value, time_s in known) / total_s,
        unit="1",
        method="model, time-weighted",
        grade="modelled",
        threads=machine.threads,
    )


def reconciliation(facts: Sequence[KernelFacts], end_to_end_s: float | None, machine: MachineModel) -> Reconciliation:
    """Hold the sum of the kernels against the end-to-end time and name the rest."""
    kernels_s = sum(fact.best_known_s * fact.calls for fact in facts)
    if end_to_end_s is None:
        return Reconciliation(kernels_sum_s=kernels_s, end_to_end_s=None, remainder_s=None)
    calls = sum(fact.calls for fact in facts)
    dispatch_s = calls * machine.launch_serial_s
    remainder_s = end_to_end_s - kernels_s
    parts = (
        NamedPart(name="dispatch", time_s=dispatch_s, how=f"modelled: {calls} calls × {machine.launch_serial_s:.2g} s"),
        NamedPart(
            name="cache, allocation, gaps",
            time_s=remainder_s - dispatch_s,
            how="what is left; negative when kernels run faster in the model than they did alone or under instruments",
        ),
    )
    return Reconciliation(kernels_sum_s=kernels_s, end_to_end_s=end_to_end_s, remainder_s=remainder_s, parts=parts)
