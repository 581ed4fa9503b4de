"""The default strategy: start from constructed tiles, then walk from the best one field at a time.

First the best prediction of every kind (staging and register block), because the cost model ranks within a kind better
than between kinds; then neighbours of the best measured choice; then the remaining predictions in order. It stops after
`patience` trials without improvement.
"""

from dataclasses import dataclass

from mapper.keys import choice_key
from mapper.records import Candidate, Choice
from mapper.search.space import Space, best_of, stale_trials

SEED_KINDS = 6


@dataclass(frozen=True, slots=True)
class Constructed:
    """The strategy value; see the module's docstring."""

    patience: int = 14
    name: str = "constructed"

    def propose(self, space: Space, tried: tuple[Candidate, ...]) -> Choice | None:
        """Return the next choice to measure."""
        seen = {candidate.choice_key for candidate in tried}
        fresh = [choice for choice, _ in space.ranked if choice_key(choice) not in seen]
        if not fresh:
            return None
        if not tried:
            return fresh[0]
        seed = self._seed(space, fresh, tried)
        if seed is not None:
            return seed
        if stale_trials(tried) >= self.patience:
            return None
        best = best_of(tried)
        if best is None:
            return fresh[0]
        neighbours = [choice for choice in fresh if _distance(choice, best.choice) == 1]
        return neighbours[0] if neighbours else fresh[0]

    def _seed(self, space: Space, fresh: list[Choice], tried: tuple[Candidate, ...]) -> Choice | None:
        kinds = {_kind(candidate.choice) for candidate in tried}
        if len(kinds) >= SEED_KINDS:
            return None
        limit = 2.0 * space.best_predicted_s
        for choice, prediction in space.ranked:
            if prediction.time_s > limit:
                return None
            if choice in fresh and _kind(choice) not in kinds:
                return choice
        return None


def _kind(choice: Choice) -> tuple[object, ...]:
    return (choice.template, choice.tile.get("stage"), choice.tile.get("vb"))


def _distance(one: Choice, other: Choice) -> int:
    """Return in how many fields two choices differ; choices of different templates are far apart."""
    if one.template != other.template or one.layouts != other.layouts:
        return 99
    return sum(one.tile[name] != other.tile.get(name) for name in one.tile)
