"""The strategies but `constructed`, and how they are found by name."""

import pytest
from small_choices import choice, failed, measured, space

from mapper.config import STRATEGIES
from mapper.errors import BadInputError
from mapper.search import strategies
from mapper.search.strategies.constructed import Constructed
from mapper.search.strategies.exhaustive import Exhaustive
from mapper.search.strategies.metaschedule import MetaSchedule
from mapper.search.strategies.shuffled import Shuffled

TILES = [choice(rw=rw) for rw in range(1, 25)]
SPACE = space(*((one, (25 - one.tile["rw"]) * 1e-6) for one in TILES))


def drive(strategy, made=SPACE, tried=(), times=lambda _: 1e-6):
    tried = list(tried)
    while (proposed := strategy.propose(made, tuple(tried))) is not None:
        time_s = times(proposed)
        tried.append(failed(proposed) if time_s is None else measured(proposed, time_s))
        assert len(tried) < 1000
    return [candidate.choice for candidate in tried]


# --- exhaustive -------------------------------------------------------------------------------------------------------


def test_exhaustive_takes_every_choice_in_predicted_order():
    assert drive(Exhaustive()) == list(reversed(TILES))


def test_exhaustive_passes_over_what_was_tried_and_what_fails():
    known = measured(TILES[-1], 1e-6, source="journal")
    assert drive(Exhaustive(), tried=[known], times=lambda _: None) == list(reversed(TILES))


# --- random -----------------------------------------------------------------------------------------------------------


def test_random_takes_every_choice_once():
    order = drive(Shuffled(3))
    assert sorted(one.tile["rw"] for one in order) == list(range(1, 25))
    assert order not in (TILES, list(reversed(TILES)))


def test_random_order_is_the_seeds():
    assert drive(Shuffled(3)) == drive(Shuffled(3))
    assert drive(Shuffled(3)) != drive(Shuffled(4))


def test_random_order_does_not_depend_on_predictions_nor_on_what_was_tried():
    order = drive(Shuffled(3))
    other = space(*((one, one.tile["rw"] * 1e-6) for one in TILES))
    assert drive(Shuffled(3), other) == order
    tried = measured(order[5], 1e-6)
    assert drive(Shuffled(3), tried=[tried])[1:] == [one for one in order if one != order[5]]


def test_random_order_differs_from_space_to_space():
    layouts = ("nhwc", "nhwc")
    tiles = [choice(rw=rw, layouts=layouts) for rw in range(1, 25)]
    other = space(*((one, 1e-6) for one in tiles), layouts=layouts)
    assert [one.tile["rw"] for one in drive(Shuffled(3), other)] != [one.tile["rw"] for one in drive(Shuffled(3))]


# --- metaschedule -----------------------------------------------------------------------------------------------------


def trace(number):
    return choice(template="metaschedule", trace=f"[[],[{number}]]")


class Generations:
    """A source that gives these generations one after another and remembers what it was told."""

    def __init__(self, *generations):
        self.left = list(generations)
        self.told = []

    def __call__(self, made, tried):
        self.told.append((made.key, [(candidate.choice, candidate.time_s) for candidate in tried]))
        return self.left.pop(0) if self.left else ()


def test_a_generation_is_measured_before_the_next_is_asked_for():
    source = Generations([trace(1), trace(2)], [trace(3)])
    assert drive(MetaSchedule(source)) == [trace(1), trace(2), trace(3)]
    key = SPACE.key
    assert source.told[0] == (key, [])
    assert source.told[1] == (key, [(trace(1), 1e-6), (trace(2), 1e-6)])
    assert len(source.told) == 3  # the last one gave nothing


def test_the_source_hears_of_failures_and_of_the_journal():
    source = Generations([trace(2)])
    drive(MetaSchedule(source), tried=[measured(trace(1), 2e-6, source="journal")], times=lambda _: None)
    assert source.told[-1] == (SPACE.key, [(trace(1), 2e-6), (trace(2), None)])


def test_what_was_measured_before_is_not_proposed_again():
    source = Generations([trace(1), trace(2)])
    assert drive(MetaSchedule(source), tried=[measured(trace(1), 1e-6)])[1:] == [trace(2)]


def test_asking_twice_without_an_outcome_gives_the_same_choice():
    strategy = MetaSchedule(Generations([trace(1), trace(2)]))
    assert strategy.propose(SPACE, ()) == strategy.propose(SPACE, ()) == trace(1)


def test_each_space_has_generations_of_its_own():
    other = space(*((one, 1e-6) for one in TILES), layouts=("nhwc", "nhwc"))
    source = Generations([trace(1), trace(2)], [trace(5)])
    strategy = MetaSchedule(source)
    assert strategy.propose(SPACE, ()) == trace(1)
    assert strategy.propose(other, ()) == trace(5)
    assert strategy.propose(SPACE, (measured(trace(1), 1e-6),)) == trace(2)
    assert [key for key, _ in source.told] == [SPACE.key, other.key]


# --- by name ----------------------------------------------------------------------------------------------------------


def test_strategies_are_found_by_the_names_that_they_carry():
    found = {name: strategies.by_name(name, 7, Generations()) for name in STRATEGIES}
    assert {name: strategy.name for name, strategy in found.items()} == {name: name for name in STRATEGIES}
    kinds = {name: type(strategy) for name, strategy in found.items()}
    assert kinds == {
        "constructed": Constructed,
        "metaschedule": MetaSchedule,
        "exhaustive": Exhaustive,
        "random": Shuffled,
    }
    assert found["random"].seed == 7


def test_an_unknown_strategy_is_refused():
    with pytest.raises(BadInputError, match="unknown strategy 'luck': expected one of constructed, metaschedule"):
        strategies.by_name("luck", 0)
