"""For study: every choice of a space, the best prediction first."""

from dataclasses import dataclass

from mapper.records import Candidate, Choice
from mapper.search.space import Space
from mapper.search.strategies.protocol import untried


@dataclass(frozen=True, slots=True)
class Exhaustive:
    """The strategy value; see the module's docstring."""

    name: str = "exhaustive"

    def propose(self, space: Space, tried: tuple[Candidate, ...]) -> Choice | None:
        """Return the best prediction that was not tried; None once all were."""
        return next(iter(untried(space, tried)), None)
