"""Hand-made choices, predictions and candidates of one small group."""

from functools import cache

from small_groups import matmul

from mapper.keys import choice_key
from mapper.records import Candidate, Choice, Failure, Prediction
from mapper.search.space import Space, make_space


@cache
def spec():
    return matmul((4, 8), (8, 16)).spec


def choice(**tile):
    return Choice(template=tile.pop("template", "matmul"), layouts=tile.pop("layouts", ("row", "row")), tile=tile)


def prediction(time_s):
    return Prediction(
        time_s=time_s, compute_s=time_s, memory_s=0.0, overhead_s=0.0, executed_flops=1.0, bytes_by_level={}
    )


def space(*pairs, weight=1, layouts=("row", "row"), of=None) -> Space:
    """Return the space of (choice, predicted seconds) pairs."""
    times = {choice_key(one): time_s for one, time_s in pairs}
    return make_space(
        of or spec(), layouts, [one for one, _ in pairs], lambda one: prediction(times[choice_key(one)]), weight
    )


def measured(one, time_s, source="measured"):
    key = choice_key(one)
    return Candidate(group="g", choice=one, choice_key=key, predicted_s=None, time_s=time_s, source=source)


def failed(one):
    key = choice_key(one)
    failure = Failure(subject="g", step="build", reason="no")
    return Candidate(group="g", choice=one, choice_key=key, predicted_s=None, time_s=None, failure=failure)
