"""The default strategy: probe the kinds of kernel that predictions favour, then walk from the best choice.

Timeline of one space:

1. *Kinds*: the best prediction of each kind (template, staging, register block), since the cost model ranks within a
   kind better than between kinds; every template has its turn first. At most `SEED_KINDS`, none predicted to take more
   than `SEED_LIMIT` times the best.
2. *Halving*: one more choice of each of the `SECOND_KINDS` kinds that measured best.
3. *Descent*: neighbours of the best measured choice along one field of the tile, nearest values first, and onwards in
   a direction that has paid; once there are none, choices that differ in more fields.

Predictions are corrected by what was seen in the space: each kind by the geometric mean of measured ÷ predicted of its
own choices, one without outcomes by that of its template, else of the space. It stops after `patience` trials that
brought nothing, and sooner the less the corrected predictions promise.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log

from mapper.records import Candidate, Choice
from mapper.search.space import Space, best_of
from mapper.search.strategies.protocol import Identity, identity

KIND_FIELDS = ("m", "stage", "vb")
SEED_KINDS = 6
SEED_LIMIT = 2.0
TEMPLATE_SEED_LIMIT = 4.0  # of the first kind of a template: predictions of two templates compare badly
SECOND_KINDS = 3
SECOND_LIMIT = 1.5  # a kind whose first choice took more than this multiple of the best one gets no second
POOR = 1.5  # a neighbour predicted to take more than this multiple of the best time waits
IMPROVEMENT = 0.98
FULL_GAIN = 0.1  # a promised gain of this share of the best time is worth the whole patience
LEAST_PATIENCE = 4

Kind = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Constructed:
    """The strategy value; see the module's docstring."""

    patience: int = 8
    name: str = "constructed"

    def propose(self, space: Space, tried: tuple[Candidate, ...]) -> Choice | None:
        """Return the next choice to measure."""
        view = _View(space, tried)
        if not view.fresh:
            return None
        return view.next_kind() or view.second_of_kind() or self._refined(view)

    def _refined(self, view: "_View") -> Choice | None:
        if _stale_trials(view.tried) >= self._patience(view):
            return None
        best = view.best
        return view.cheapest(view.fresh) if best is None else min(view.fresh, key=lambda c: view.step_key(best, c))

    def _patience(self, view: "_View") -> float:
        if view.best is None or view.best.time_s is None:
            return self.patience
        gain = 1 - min(view.expected_s(choice) for choice in view.fresh) / view.best.time_s
        return max(min(LEAST_PATIENCE, self.patience), self.patience * min(1.0, gain / FULL_GAIN))


class _View:
    """A space together with what was tried of it: what several steps of the strategy ask for, worked out once."""

    def __init__(self, space: Space, tried: tuple[Candidate, ...]) -> None:
        self.tried = tried
        seen = {identity(candidate.choice) for candidate in tried}
        self.predicted = {identity(choice): prediction.time_s for choice, prediction in space.ranked}
        self.fresh = [choice for choice, _ in space.ranked if identity(choice) not in seen]
        self.best = best_of(tried)
        self._values = _values([*(choice for choice, _ in space.ranked), *(candidate.choice for candidate in tried)])
        self._measured: dict[Identity, float] = {
            identity(candidate.choice): candidate.time_s for candidate in tried if candidate.time_s is not None
        }

    def next_kind(self) -> Choice | None:
        """Return the best prediction of a kind that nothing was tried of, those of templates not yet tried first.

        Kinds of one template are judged as if each were as close to its prediction as the closest so far: that some
        block spills says nothing about another.
        """
        kinds = {_kind(candidate.choice) for candidate in self.tried}
        if len(kinds) >= SEED_KINDS:
            return None
        templates = {candidate.choice.template for candidate in self.tried}
        best_predicted_s = min(self.predicted.values())
        best_s = self.best.time_s if self.best is not None and self.best.time_s is not None else best_predicted_s
        found: list[tuple[bool, float, Choice]] = []
        for choice in self.fresh:
            is_known = choice.template in templates
            hoped_s = self.predicted[identity(choice)] * self._least_ratio.get(choice.template, 1.0)
            limit_s = SEED_LIMIT * best_s if is_known else TEMPLATE_SEED_LIMIT * best_predicted_s
            if hoped_s <= limit_s and _kind(choice) not in kinds:
                found.append((is_known, hoped_s, choice))
        return min(found, key=lambda one: one[:2])[2] if found else None

    def second_of_kind(self) -> Choice | None:
        """Return the best remaining prediction of a kind that ran well once."""
        times: dict[Kind, list[float | None]] = defaultdict(list)
        for candidate in self.tried:
            times[_kind(candidate.choice)].append(candidate.time_s)
        first = {kind: outcomes[0] for kind, outcomes in times.items()}
        ran = sorted((time_s, str(kind), kind) for kind, time_s in first.items() if time_s is not None)
        for time_s, _, kind in ran[:SECOND_KINDS]:
            if len(times[kind]) == 1 and time_s <= SECOND_LIMIT * ran[0][0]:
                left = [choice for choice in self.fresh if _kind(choice) == kind]
                if left:
                    return self.cheapest(left)
        return None

    def cheapest(self, choices: Iterable[Choice]) -> Choice:
        """Return the choice that is expected to take least; of equals the first."""
        return min(choices, key=self.expected_s)

    def expected_s(self, choice: Choice) -> float:
        """Return the predicted time of a choice of the space, corrected by what was seen there."""
        template, kind = choice.template, _kind(choice)
        factor = self._factors.get(kind) or self._factors.get((template,)) or self._factors.get((), 1.0)
        return self.predicted[identity(choice)] * factor

    @cached_property
    def _ratios(self) -> Sequence[tuple[Kind, float]]:
        """Return measured ÷ predicted of what ran and has a prediction, with its kind."""
        found = []
        for candidate in self.tried:
            predicted_s = self.predicted.get(identity(candidate.choice))
            if candidate.time_s is not None and predicted_s:
                found.append((_kind(candidate.choice), candidate.time_s / predicted_s))
        return found

    @cached_property
    def _least_ratio(self) -> Mapping[object, float]:
        """Return the least ratio by template."""
        least: dict[object, float] = {}
        for kind, ratio in self._ratios:
            least[kind[0]] = min(ratio, least.get(kind[0], ratio))
        return least

    @cached_property
    def _factors(self) -> Mapping[Kind, float]:
        """Return geometric means of the ratios: by kind, by `(template,)`, and by `()` of all."""
        logs: dict[Kind, list[float]] = defaultdict(list)
        for kind, ratio in self._ratios:
            for name in (kind, kind[:1], ()):
                logs[name].append(log(ratio))
        return {name: exp(sum(values) / len(values)) for name, values in logs.items()}

    def step_key(self, best: Candidate, choice: Choice) -> tuple[object, ...]:
        """Return by what choices are ordered around the best: poor ones last, then by the way from it."""
        expected_s = self.expected_s(choice)
        is_poor = expected_s > POOR * (best.time_s or 0.0)
        fields = _differences(best.choice, choice)
        if len(fields) != 1:
            return is_poor, len(fields), 0, expected_s
        distance, is_onward = self._way(best.choice, choice, fields[0])
        return is_poor, 1 if not is_onward else 0, distance, expected_s

    def _way(self, best: Choice, choice: Choice, field: str) -> tuple[int, bool]:
        """Return how many values of the field lie between two choices, and whether that direction has paid before."""
        values = self._values[best.template, field]
        here, there = values.index(best.tile[field]), values.index(choice.tile[field])
        step = 1 if there > here else -1
        behind = values[here - step] if 0 <= here - step < len(values) else None
        known = None
        if behind is not None:
            before = Choice(template=best.template, layouts=best.layouts, tile={**best.tile, field: behind})
            known = self._measured.get(identity(before))
        return abs(there - here), known is not None and known > self._measured[identity(best)]


def _kind(choice: Choice) -> Kind:
    return (choice.template, *(choice.tile.get(field) for field in KIND_FIELDS))


def _differences(one: Choice, other: Choice) -> list[str]:
    """Return the fields in which two choices differ; those of different templates differ in all."""
    if one.template != other.template or one.layouts != other.layouts:
        return [*one.tile, *other.tile, "template"]
    return [name for name in one.tile.keys() | other.tile.keys() if one.tile.get(name) != other.tile.get(name)]


def _values(choices: Iterable[Choice]) -> Mapping[tuple[str, str], list[int | str]]:
    """Return the values that each field of each template takes, ascending, numbers before words."""
    found: dict[tuple[str, str], set[int | str]] = defaultdict(set)
    for choice in choices:
        for field, value in choice.tile.items():
            found[choice.template, field].add(value)
    return {name: sorted(values, key=lambda v: (isinstance(v, str), v)) for name, values in found.items()}


def _stale_trials(tried: Iterable[Candidate]) -> int:
    """Return how many trials brought nothing since the last that did; probes of kinds are not counted."""
    best_s, stale, seconds = float("inf"), 0, 0
    kinds: dict[Kind, int] = defaultdict(int)
    for candidate in tried:
        kind = _kind(candidate.choice)
        is_new = kind not in kinds and len(kinds) < SEED_KINDS
        is_second = kinds.get(kind) == 1 and seconds < SECOND_KINDS
        kinds[kind] += 1
        seconds += is_second
        if candidate.time_s is not None and candidate.time_s < best_s * IMPROVEMENT:
            best_s, stale = candidate.time_s, 0
        elif not (is_new or is_second):
            stale += 1
    return stale
