"""Where the next trial goes: to the group with most of the model's time left to win."""

from collections.abc import Mapping, Sequence

from mapper.records import Candidate
from mapper.search.space import Space, best_of, stale_trials


def pick(spaces: Sequence[Space], tried: Mapping[str, Sequence[Candidate]], closed: frozenset[str]) -> Space | None:
    """Return the space to try next; None when all are closed.

    A space without a measured candidate comes first, heaviest prediction first: a small budget still leaves every
    kernel with a constructed schedule. After that the value of a trial is the time that the model spends in the
    kernel beyond what the cost model thinks possible, divided by the trials that brought nothing lately.
    """
    open_spaces = [space for space in spaces if space.key not in closed]
    return max(open_spaces, key=lambda space: _value(space, tried.get(space.key, ())), default=None)


def _value(space: Space, tried: Sequence[Candidate]) -> tuple[bool, float]:
    best = best_of(tried)
    if best is None or best.time_s is None:
        return (True, space.weight * space.best_predicted_s / (1 + len(tried)))
    headroom_s = max(best.time_s - 0.8 * space.best_predicted_s, 0.05 * best.time_s)
    return (False, space.weight * headroom_s / (1 + stale_trials(tried)))
