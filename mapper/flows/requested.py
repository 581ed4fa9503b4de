"""What a request narrows or brings along: choices from a schedule file, kernels named by `--only`, the budget."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mapper import templates
from mapper.config import Budget
from mapper.errors import BadInputError
from mapper.flows.planning import Draft
from mapper.flows.prepare import Prepared
from mapper.measure.meters.protocol import Unavailable
from mapper.measure.meters.select import pick_meter
from mapper.records import Choice, Objective, ScheduleFile
from mapper.search.space import Space

DEFAULT_BASE_S, DEFAULT_PER_KERNEL_S, DEFAULT_PER_MODEL_MS_S, DEFAULT_MOST_S = 6.0, 0.4, 0.5, 45.0


def budget_seconds(budget: Budget, kernels: int, model_s: float) -> float | None:
    """Return how long the search may take; None: no limit.

    The default grows with the number of distinct kernels, and with the time `model_s` that the model is expected to
    take, since trials of long kernels take longer.
    """
    if budget.seconds is not None:
        return budget.seconds
    if budget.trials is not None:
        return None
    wanted_s = DEFAULT_BASE_S + DEFAULT_PER_KERNEL_S * kernels + DEFAULT_PER_MODEL_MS_S * model_s * 1e3
    return min(DEFAULT_MOST_S, wanted_s)


def budget_text(budget: Budget) -> str:
    """Return a budget as the sheet shows it."""
    if budget.trials is not None:
        return f"{budget.trials} trials"
    return f"{budget.seconds:.0f} s" if budget.seconds is not None else "default"


def check_objective(objective: Objective) -> None:
    """Refuse an objective that this machine cannot measure.

    Raises:
        BadInputError: there is no energy meter.
    """
    meter = pick_meter()
    if objective != "latency" and isinstance(meter, Unavailable):
        raise BadInputError(
            f"--objective {objective}: expected an energy meter, found none: {meter.reason}; use --objective latency"
        )


def given_choices(schedule: ScheduleFile | None, spaces: Mapping[str, Space], path: Path | None) -> dict[str, Choice]:
    """Return the choices that a schedule file gives, by space key.

    Raises:
        BadInputError: a choice for a group that the model does not have, or one that is illegal for its group.
    """
    if schedule is None:
        return {}
    unknown = sorted(set(schedule.choices) - set(spaces))
    if unknown:
        raise BadInputError(
            f"{path}: choices for {unknown[0]}: expected a group of this model ({len(spaces)} known), found none; "
            "the file was made for another model, plan or layout: remove the entry or explore anew"
        )
    for key, choice in schedule.choices.items():
        _check_choice(spaces[key], choice, path)
    return dict(schedule.choices)


def _check_choice(space: Space, choice: Choice, path: Path | None) -> None:
    if choice.layouts != space.layouts:
        raise BadInputError(
            f"{path}: {space.spec.name}: expected layouts {list(space.layouts)}, found {list(choice.layouts)}"
        )
    try:
        template = templates.by_name(choice.template)
        if template.matches(space.spec):
            template.check(space.spec, choice)
            return
    except BadInputError as error:
        raise BadInputError(f"{path}: {error}") from error
    raise BadInputError(f"{path}: template {choice.template} does not implement {space.spec.name}; use generic")


def only_keys(
    names: Sequence[str], prepared: Prepared, drafts: Sequence[Draft], keys: frozenset[str]
) -> frozenset[str]:
    """Return the spaces that `--only` leaves to search: kernels of that name, or kernels that compute that node.

    Raises:
        BadInputError: a name that means no kernel of the searched mappings.
    """
    chosen: set[str] = set()
    for name in names:
        found = {key for draft in drafts for key in _matching(prepared, draft, name)} & keys
        if not found:
            raise BadInputError(
                f"--only {name}: expected a kernel or ONNX node of this model, found none of that name; "
                "`mapper show` lists kernels, the model's own nodes have their ONNX names"
            )
        chosen |= found
    return frozenset(chosen) if names else keys


def _matching(prepared: Prepared, draft: Draft, name: str) -> set[str]:
    operators = {index for node in prepared.normalized.nodes if node.name == name for index in node.canonical}
    return {
        key
        for key, group in zip(draft.space_keys, draft.plan.groups, strict=True)
        if group.name == name or operators & set(group.operators)
    }
