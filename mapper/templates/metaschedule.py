"""Kernels that TVM's MetaSchedule found: a choice is the trace of a schedule, replayed instruction by instruction.

The group comes through TVM's importer as it is, weights unpacked. A trace is data from a file, so `check` reads it
before TVM does: a bounded JSON text, of instructions that MetaSchedule's rules for CPUs emit and nothing else. Among
what is refused are annotations that TVM would compile (`pragma_import_llvm`), and splits without bounds checks.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mapper.records import Choice, GroupSpec, MachineModel, Prediction
from mapper.templates.protocol import Convert, Packing
from mapper.templates.tiles import boundary_traffic, require, roof

NAME = "metaschedule"
UNSCHEDULED = "[[],[]]"  # the trace that changes nothing
LONGEST_TRACE_B = 256 * 1024
MOST_INSTRUCTIONS = 4096
# Source: the schedule rules and postprocessors that TVM 0.27 registers for `llvm`.
KINDS = frozenset(
    {
        "AddUnitLoop",
        "Annotate",
        "CacheRead",
        "CacheWrite",
        "ComputeAt",
        "ComputeInline",
        "DecomposeReduction",
        "EnterPostproc",
        "Fuse",
        "GetChildBlocks",
        "GetConsumers",
        "GetLoops",
        "GetOutputBlocks",
        "GetProducers",
        "GetSBlock",
        "Parallel",
        "RFactor",
        "Reorder",
        "ReverseComputeAt",
        "ReverseComputeInline",
        "SampleCategorical",
        "SampleComputeLocation",
        "SamplePerfectTile",
        "Split",
        "Unannotate",
        "Unroll",
        "Vectorize",
    }
)
ANNOTATIONS = frozenset(
    {
        "meta_schedule.parallel",
        "meta_schedule.random_compute_producer",
        "meta_schedule.tiling_structure",
        "meta_schedule.unroll_explicit",
        "meta_schedule.unroll_implicit",
        "meta_schedule.vectorize",
        "pragma_auto_unroll_max_step",
        "pragma_unroll_explicit",
    }
)


def trace_choice(layouts: tuple[str, ...], trace: str) -> Choice:
    """Return the choice that replays `trace`."""
    return Choice(template=NAME, layouts=layouts, tile={"trace": trace})


@dataclass(frozen=True, slots=True)
class MetaSchedule:
    """The template value; see the module's docstring."""

    name: str = NAME

    def matches(self, spec: GroupSpec) -> bool:
        """Take everything."""
        return bool(spec.operators)

    def choices(self, spec: GroupSpec, machine: MachineModel, layouts: tuple[str, ...]) -> tuple[Choice, ...]:
        """Offer the kernel as it comes from the importer: traces come from a search, none is constructed."""
        del spec, machine
        return (trace_choice(layouts, UNSCHEDULED),)

    def check(self, spec: GroupSpec, choice: Choice) -> None:
        """Read the trace: length, JSON, instruction kinds, and the attributes that could do harm."""
        trace = choice.tile.get("trace")
        require(spec, set(choice.tile) == {"trace"} and isinstance(trace, str), "expected exactly one field, trace")
        text = str(trace)
        size_b = len(text.encode())
        require(spec, size_b <= LONGEST_TRACE_B, f"a trace of {size_b} bytes is too long, {LONGEST_TRACE_B} is most")
        parsed = _parsed(text)
        require(spec, parsed is not None, "the trace must be a JSON list of instructions and one of decisions")
        instructions, decisions = parsed or ([], [])
        most = max(len(instructions), len(decisions))
        require(spec, most <= MOST_INSTRUCTIONS, f"a trace of {most} entries is too long, {MOST_INSTRUCTIONS} is most")
        for number, instruction in enumerate(instructions):
            fault = _fault(instruction)
            require(spec, not fault, f"instruction {number} of the trace {fault}")

    def cost(self, spec: GroupSpec, choice: Choice, machine: MachineModel) -> Prediction:
        """Predict what no kernel goes below: its FLOPs at peak, its compulsory traffic; a trace has no cost model."""
        del choice
        traffic = boundary_traffic(spec, machine)
        return roof(machine, executed_flops=float(spec.flops), efficiency=1.0, traffic_b=traffic, launches=1)

    def packings(self, spec: GroupSpec, choice: Choice) -> Mapping[str, Packing]:
        """Leave weights as they are."""
        del spec, choice
        return {}

    def converters(self, spec: GroupSpec, choice: Choice) -> Mapping[int, Convert]:
        """Leave every operator to TVM's importer."""
        del spec, choice
        return {}

    def apply(self, sch: Any, spec: GroupSpec, choice: Choice) -> None:
        """Replay the trace."""
        from tvm.s_tir.schedule import Trace  # noqa: PLC0415 TVM only where a worker runs it

        self.check(spec, choice)
        Trace.apply_json_to_schedule(json.loads(str(choice.tile["trace"])), sch)


def _parsed(text: str) -> tuple[list[Any], list[Any]] | None:
    """Return instructions and decisions; None when the text is no such pair."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, list) or len(parsed) != 2 or not all(isinstance(part, list) for part in parsed):
        return None
    return parsed[0], parsed[1]


def _fault(instruction: Any) -> str:
    """Return what is wrong with an instruction (kind, inputs, attributes, outputs); empty when nothing is."""
    is_whole = isinstance(instruction, list) and len(instruction) == 4 and isinstance(instruction[0], str)
    if not is_whole or not all(isinstance(part, list) for part in instruction[1:]):
        return "is not a kind, inputs, attributes and outputs"
    kind, _, attributes, _ = instruction
    if kind not in KINDS:
        return f"is {kind[:40]}, which is none that MetaSchedule emits for a CPU"
    if kind in ("Annotate", "Unannotate") and (len(attributes) != 1 or str(attributes[0]) not in ANNOTATIONS):
        return "annotates with a key that MetaSchedule does not use"
    if kind == "Split" and (len(attributes) != 2 or attributes[1] not in (0, False)):
        return "splits without bounds checks"
    if kind in ("CacheRead", "CacheWrite") and (len(attributes) != 2 or attributes[1] != "global"):
        return "caches in a scope other than global"
    return ""


TEMPLATE = MetaSchedule()
