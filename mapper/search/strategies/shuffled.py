"""For study: the choices of a space in random order, each once; what a strategy has to be better than."""

from dataclasses import dataclass

from mapper.keys import choice_key, digest
from mapper.records import Candidate, Choice
from mapper.search.space import Space
from mapper.search.strategies.protocol import untried


@dataclass(frozen=True, slots=True)
class Shuffled:
    """The strategy value; see the module's docstring."""

    seed: int
    name: str = "random"

    def propose(self, space: Space, tried: tuple[Candidate, ...]) -> Choice | None:
        """Return the next choice of the seed's order; None once all were tried.

        The order is that of hashes of seed, space and choice: the same in every process, whatever was tried, and
        whichever order the predictions have.
        """
        fresh = untried(space, tried)
        return min(fresh, key=lambda choice: digest([self.seed, space.key, choice_key(choice)]), default=None)
