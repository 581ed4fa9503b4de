"""Where to look next, one strategy a file; none of them runs anything."""

from mapper.config import STRATEGIES
from mapper.errors import BadInputError
from mapper.search.strategies.constructed import Constructed
from mapper.search.strategies.exhaustive import Exhaustive
from mapper.search.strategies.metaschedule import MetaSchedule, Source
from mapper.search.strategies.protocol import Strategy
from mapper.search.strategies.shuffled import Shuffled

__all__ = ["Source", "Strategy", "by_name"]


def by_name(name: str, seed: int, source: Source | None = None) -> Strategy:
    """Return the strategy called `name`.

    Args:
        name: One of `config.STRATEGIES`.
        seed: Of what is drawn.
        source: Where `metaschedule` has its choices from; the others need none.

    Raises:
        BadInputError: no such strategy.
    """
    if name == "metaschedule":
        assert source is not None, "metaschedule asks a worker for its choices"
        return MetaSchedule(source)
    if name == "random":
        return Shuffled(seed)
    if name == "exhaustive":
        return Exhaustive()
    if name == "constructed":
        return Constructed()
    raise BadInputError(f"unknown strategy {name!r}: expected one of {', '.join(STRATEGIES)}")
