"""TVM's MetaSchedule, asked generation by generation for what it would measure next."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from mapper.records import Candidate, Choice
from mapper.search.space import Space
from mapper.search.strategies.protocol import Identity, identity

# Takes what was tried of a space into account and returns new choices for it; none when there are none left.
Source = Callable[[Space, tuple[Candidate, ...]], Sequence[Choice]]


@dataclass(frozen=True, slots=True)
class MetaSchedule:
    """Hands out a generation one by one, then asks `source` for the next. It never stops by itself before that does."""

    source: Source
    name: str = "metaschedule"
    _queued: dict[str, list[Choice]] = field(default_factory=dict)  # by space: the rest of a generation

    def propose(self, space: Space, tried: tuple[Candidate, ...]) -> Choice | None:
        """Return the next choice of the generation, or the first of the next one; None when there is no next one."""
        seen = {identity(candidate.choice) for candidate in tried}
        queue = self._fresh(self._queued.get(space.key, ()), seen) or self._fresh(self.source(space, tried), seen)
        self._queued[space.key] = queue
        return queue[0] if queue else None

    @staticmethod
    def _fresh(choices: Sequence[Choice], seen: Set[Identity]) -> list[Choice]:
        return [choice for choice in choices if identity(choice) not in seen]
