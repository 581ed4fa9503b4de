"""What can be searched for one group: its choices with their predictions, best prediction first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mapper.keys import choice_key
from mapper.records import Candidate, Choice, GroupSpec, Prediction
from mapper.search.fit import Fit

IMPROVEMENT = 0.99  # a candidate counts as better when it takes less than this share of the best time


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The choices of one group under fixed boundary layouts. `weight` is how often the model calls the kernel."""

    spec: GroupSpec
    layouts: tuple[str, ...]
    ranked: tuple[tuple[Choice, Prediction], ...]
    weight: int

    @property
    def key(self) -> str:
        """Group key and layouts: what a kernel is looked up by when mappings are composed."""
        return space_key(self.spec.key, self.layouts)

    @property
    def best_predicted_s(self) -> float:
        """The least predicted time."""
        return self.ranked[0][1].time_s

    def refitted(self, fit: Fit) -> "Space":
        """Return the space ranked by what this machine is likely to take."""
        fitted = [(choice, fit.fitted(choice.template, prediction)) for choice, prediction in self.ranked]
        return replace(self, ranked=_ranked(fitted))

    def prediction(self, choice: Choice) -> Prediction | None:
        """Return the prediction for a choice of this space; None for one from elsewhere."""
        return next((prediction for known, prediction in self.ranked if known == choice), None)

    def predicted_s(self, choice: Choice) -> float | None:
        """Return the predicted time of a choice of this space; None for one from elsewhere."""
        prediction = self.prediction(choice)
        return None if prediction is None else prediction.time_s


def space_key(group_key: str, layouts: Sequence[str]) -> str:
    """Return the name of a space."""
    return f"{group_key}:{','.join(layouts)}"


def make_space(
    spec: GroupSpec,
    layouts: tuple[str, ...],
    choices: Sequence[Choice],
    predict: Callable[[Choice], Prediction],
    weight: int,
) -> Space:
    """Rank `choices` by predicted time; ties keep a stable, name-independent order."""
    predicted = [(choice, predict(choice)) for choice in sorted(choices, key=choice_key)]
    return Space(spec=spec, layouts=layouts, ranked=_ranked(predicted), weight=weight)


def _ranked(predicted: Sequence[tuple[Choice, Prediction]]) -> tuple[tuple[Choice, Prediction], ...]:
    return tuple(sorted(predicted, key=lambda pair: pair[1].time_s))  # stable: equals keep their order


def best_of(tried: Sequence[Candidate]) -> Candidate | None:
    """Return the fastest candidate that ran; None when none did."""
    ran = [candidate for candidate in tried if candidate.time_s is not None]
    return min(ran, key=lambda candidate: candidate.time_s or 0.0, default=None)


def stale_trials(tried: Sequence[Candidate]) -> int:
    """Return how many trials passed since the last one that improved on all before it."""
    best, stale = float("inf"), 0
    for candidate in tried:
        if candidate.time_s is not None and candidate.time_s < best * IMPROVEMENT:
            best, stale = candidate.time_s, 0
        else:
            stale += 1
    return stale
