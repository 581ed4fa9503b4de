"""What a search strategy is, and what several of them ask of a space."""

from typing import Protocol

from mapper.records import Candidate, Choice
from mapper.search.space import Space

Identity = tuple[str, tuple[str, ...], frozenset[tuple[str, int | str]]]


class Strategy(Protocol):
    """Proposes the next choice of a space from what was tried before."""

    @property
    def name(self) -> str:
        """The word that the sheet shows."""

    def propose(self, space: Space, tried: tuple[Candidate, ...]) -> Choice | None:
        """Return a choice that was not tried, or None when more trials are not worth their time."""


def identity(choice: Choice) -> Identity:
    """Return what tells choices apart, as something that can be hashed quickly."""
    return choice.template, choice.layouts, frozenset(choice.tile.items())


def untried(space: Space, tried: tuple[Candidate, ...]) -> list[Choice]:
    """Return the choices of a space that were not tried, in predicted order."""
    seen = {identity(candidate.choice) for candidate in tried}
    return [choice for choice, _ in space.ranked if identity(choice) not in seen]
