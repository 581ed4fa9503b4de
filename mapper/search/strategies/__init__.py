"""Where to look next, one strategy a file; none of them runs anything."""

from typing import Protocol

from mapper.records import Candidate, Choice
from mapper.search.space import Space


class Strategy(Protocol):
    """Proposes the next choice of a space from what was tried before."""

    @property
    def name(self) -> str:
        """The word that the sheet shows."""

    def propose(self, space: Space, tried: tuple[Candidate, ...]) -> Choice | None:
        """Return a choice that was not tried, or None when more trials are not worth their time."""


def by_name(name: str, seed: int) -> Strategy:
    """Return the strategy called `name`."""
    from mapper.search.strategies.constructed import Constructed  # noqa: PLC0415

    del name, seed
    return Constructed()
