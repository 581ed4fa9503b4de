"""Fusion plans and layouts: which mappings are worth measuring, and the search space of each of their groups."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import onnx

from mapper import templates
from mapper.errors import BadInputError
from mapper.flows.prepare import Prepared
from mapper.plan import fusion
from mapper.plan.layout import group_layouts, tensor_layouts
from mapper.plan.spec import group_spec
from mapper.plan.submodel import group_model
from mapper.records import Choice, FusionPlan, Group, GroupSpec, MachineModel, Prediction, ScheduleFile
from mapper.search.space import Space, make_space, space_key
from mapper.worker.client import ChildFailureError
from mapper.worker.workers import TvmWorker

Policy = Literal["nhwc", "nchw"]
HOPELESS = 1.4
MOST_MAPPINGS = 3
TVM_DEFAULT = "tvm-default"
# Beyond this the kernels of two more mappings cost more time than the search itself gets.
EXTRA_DRAFTS_UP_TO_OPERATORS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A mapping before its choices: a plan under a layout policy. `is_searched` False: constructed choices only."""

    plan: FusionPlan
    policy: Policy
    layouts: tuple[tuple[str, ...], ...]  # one entry a group of the plan: equal groups may differ at the model's ends
    is_searched: bool

    @property
    def label(self) -> str:
        """Short name, unique among the drafts of a model."""
        return f"{self.plan.label}/{self.policy}"

    @property
    def space_keys(self) -> tuple[str, ...]:
        """The search space of each group of the plan."""
        return tuple(
            space_key(group.key, layouts) for group, layouts in zip(self.plan.groups, self.layouts, strict=True)
        )


def make_drafts(prepared: Prepared, worker: TvmWorker, schedule: ScheduleFile | None) -> tuple[list[Draft], list[str]]:
    """Return the mappings to explore, most promising first, and warnings about plans that could not be made.

    A schedule file brings its own partition, which then comes first.
    """
    graph, boundaries, warnings = prepared.graph, frozenset(prepared.taps), []
    plans = [(fusion.epilogue_chains(graph, boundaries), True), (fusion.conservative(graph, boundaries), True)]
    try:
        partition = worker.default_partition(prepared.canonical)
        plans.append((fusion.from_partition(graph, partition, TVM_DEFAULT, boundaries), False))
    except (ChildFailureError, BadInputError) as error:
        warnings.append(f"TVM's default grouping could not be applied: {error}")
    plans.append((fusion.unfused(graph), False))
    drafts = [draft_of(prepared, plan, "nhwc", is_searched=searched) for plan, searched in plans]
    if len(graph.operators) <= EXTRA_DRAFTS_UP_TO_OPERATORS:
        drafts.insert(1, draft_of(prepared, plans[0][0], "nchw", is_searched=False))
    else:
        drafts = [draft for draft in drafts if draft.plan.label != "conservative"]
        warnings.append(
            f"above {EXTRA_DRAFTS_UP_TO_OPERATORS} operators the nchw layout and the conservative plan are not tried"
        )
    if schedule is not None:
        own = fusion.from_partition(graph, schedule.partition, schedule.fusion_plan, boundaries)
        policy: Policy = "nchw" if schedule.layout == "nchw" else "nhwc"
        drafts = [d for d in drafts if d.label != f"{own.label}/{policy}"]
        drafts.insert(0, draft_of(prepared, own, policy, is_searched=True))
    return distinct(drafts), warnings


def define_groups(prepared: Prepared, drafts: Sequence[Draft], worker: TvmWorker) -> dict[str, GroupSpec]:
    """Write each distinct group as a model of its own, make the worker know it, and return the specs by group key."""
    specs: dict[str, GroupSpec] = {}
    for draft in drafts:
        for group in draft.plan.groups:
            if group.key in specs:
                continue
            spec = group_spec(prepared.graph, group)
            path = group_file(prepared, group.key)
            onnx.save_model(group_model(prepared.normalized.proto, prepared.graph, group), path)
            worker.define(spec, path)
            specs[group.key] = spec
    return specs


def group_file(prepared: Prepared, key: str) -> Path:
    """Return where a group's ONNX model lies."""
    return prepared.folder / f"group_{key}.onnx"


def make_spaces(drafts: Sequence[Draft], specs: Mapping[str, GroupSpec], machine: MachineModel) -> dict[str, Space]:
    """Return the search space of every distinct group and layout; its weight is the most calls of any mapping."""
    spaces: dict[str, Space] = {}
    for draft in drafts:
        calls: dict[str, int] = {}
        for key, group, layouts in zip(draft.space_keys, draft.plan.groups, draft.layouts, strict=True):
            calls[key] = calls.get(key, 0) + 1
            if key not in spaces:
                spaces[key] = _space(specs[group.key], layouts, machine)
        for key, count in calls.items():
            spaces[key] = replace(spaces[key], weight=max(spaces[key].weight, count))
    return spaces


def searched_keys(drafts: Sequence[Draft]) -> frozenset[str]:
    """Return the spaces that the search may spend its budget on."""
    return frozenset(key for draft in drafts if draft.is_searched for key in draft.space_keys)


def space_of(prepared: Prepared, group: Group, layouts: tuple[str, ...], machine: MachineModel) -> Space:
    """Return the search space of one group that may never be measured: nothing is written and no worker knows it."""
    return _space(group_spec(prepared.graph, group), layouts, machine)


def _space(spec: GroupSpec, layouts: tuple[str, ...], machine: MachineModel) -> Space:
    choices = templates.choices(spec, machine, layouts)
    return make_space(spec, layouts, choices, lambda choice: predict(spec, choice, machine), weight=1)


def predict(spec: GroupSpec, choice: Choice, machine: MachineModel) -> Prediction:
    """Return what the choice's template expects of it."""
    return templates.by_name(choice.template).cost(spec, choice, machine)


def draft_of(prepared: Prepared, plan: FusionPlan, policy: Policy, *, is_searched: bool) -> Draft:
    """Return the mapping of a plan under a layout policy, choices still open."""
    by_tensor = tensor_layouts(prepared.graph, plan, policy)
    layouts = tuple(group_layouts(prepared.graph, group, by_tensor) for group in plan.groups)
    return Draft(plan=plan, policy=policy, layouts=layouts, is_searched=is_searched)


def worth_measuring(drafts: Sequence[Draft], expected_s: Callable[[Sequence[str]], float]) -> list[Draft]:
    """Return the few mappings that are expected to be the fastest, none much slower than the best, in their order.

    An expectation has to be far off before the best mapping is missed, and a kernel that is not built costs nothing.
    """
    expected = {draft.label: expected_s(draft.space_keys) for draft in drafts}
    limit = HOPELESS * min(expected.values())
    first = sorted(drafts, key=lambda draft: expected[draft.label])[:MOST_MAPPINGS]
    return [draft for draft in drafts if draft in first and expected[draft.label] <= limit]


def distinct(drafts: Sequence[Draft]) -> list[Draft]:
    """Drop drafts whose partition and layouts equal an earlier one's."""
    seen, kept = set(), []
    for draft in drafts:
        identity = tuple(zip((group.operators for group in draft.plan.groups), draft.layouts, strict=True))
        if identity not in seen:
            seen.add(identity)
            kept.append(draft)
    return kept
