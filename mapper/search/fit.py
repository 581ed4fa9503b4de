"""Fits the cost model's constants to what was measured here: what each part of a prediction really takes.

A template predicts the seconds of computing, of moving and of starting. What a machine makes of them is
`larger · max(computing, moving) + smaller · min(computing, moving) + starting · overhead`, with three factors a
template that are found by least squares on the relative error, none below zero. Source of the method: Lawson and
Hanson, Solving Least Squares Problems, 1974, ch. 23; with three unknowns all seven active sets can be tried.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from mapper.records import Prediction

LEAST_SHARE = 0.1
LEAST_OUTCOMES = 8  # with fewer, one factor for everything is all that can be told
Outcome = tuple[str, Prediction, float]  # template, what it predicted, seconds measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """The three factors of one template, and how many outcomes they come from."""

    larger: float
    smaller: float
    starting: float
    outcomes: int

    def seconds(self, prediction: Prediction) -> float:
        """Return the fitted time of a prediction; a tenth of the unfitted one where factors of zero leave less."""
        parts = _parts(prediction)
        return max(float(np.dot((self.larger, self.smaller, self.starting), parts)), LEAST_SHARE * _unfitted(parts))


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted factors by template. A template without outcomes keeps its own prediction."""

    by_template: Mapping[str, Factors]

    def fitted(self, template: str, prediction: Prediction) -> Prediction:
        """Return the prediction with the time that this machine is likely to take."""
        factors = self.by_template.get(template)
        return prediction if factors is None else replace(prediction, time_s=factors.seconds(prediction))


def fit(outcomes: Iterable[Outcome]) -> Fit:
    """Fit every template's factors to its outcomes."""
    by_template: dict[str, list[tuple[Prediction, float]]] = defaultdict(list)
    for template, prediction, time_s in outcomes:
        if time_s > 0 and prediction.time_s > 0:
            by_template[template].append((prediction, time_s))
    return Fit({template: _factors(pairs) for template, pairs in by_template.items()})


def _factors(pairs: list[tuple[Prediction, float]]) -> Factors:
    if len(pairs) < LEAST_OUTCOMES:
        unfitted = [_unfitted(_parts(prediction)) for prediction, _ in pairs]
        scale = float(np.exp(np.mean([np.log(time_s / u) for u, (_, time_s) in zip(unfitted, pairs, strict=True)])))
        return Factors(larger=scale, smaller=scale / 3, starting=scale, outcomes=len(pairs))
    times = np.array([time_s for _, time_s in pairs])
    rows = np.array([_parts(prediction) for prediction, _ in pairs]) / times[:, None]
    larger, smaller, starting = _least_squares(rows)
    return Factors(larger=larger, smaller=smaller, starting=starting, outcomes=len(pairs))


def _least_squares(rows: "np.ndarray[Any, Any]") -> tuple[float, float, float]:
    """Return the non-negative x of least |rows · x − 1|²."""
    ones = np.ones(len(rows))
    best, least = np.zeros(3), np.inf
    for count in (1, 2, 3):
        for active in combinations(range(3), count):
            part = rows[:, list(active)]
            found = np.linalg.lstsq(part, ones, rcond=None)[0]
            error = float(np.sum((part @ found - 1.0) ** 2))
            if (found >= 0).all() and error < least * (1 - 1e-9):
                best, least = np.zeros(3), error
                best[list(active)] = found
    return float(best[0]), float(best[1]), float(best[2])


def _parts(prediction: Prediction) -> tuple[float, float, float]:
    compute_s, memory_s = prediction.compute_s, prediction.memory_s
    return max(compute_s, memory_s), min(compute_s, memory_s), prediction.overhead_s


def _unfitted(parts: tuple[float, float, float]) -> float:
    return float(np.dot((1.0, 1.0 / 3.0, 1.0), parts))
