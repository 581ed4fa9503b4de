import pytest
from small_choices import choice, failed, measured, space, spec

from mapper.keys import choice_key
from mapper.search.space import best_of, space_key, stale_trials

A, B, C, D = (choice(v=v) for v in (1, 2, 4, 8))


def test_choices_are_ranked_by_predicted_time():
    ranked = space((A, 3e-6), (B, 1e-6), (C, 2e-6)).ranked
    assert [one for one, _ in ranked] == [B, C, A]
    assert [predicted.time_s for _, predicted in ranked] == [1e-6, 2e-6, 3e-6]


def test_ties_do_not_depend_on_the_order_of_the_choices():
    one, other = space((A, 1e-6), (B, 1e-6), (C, 1e-6)), space((C, 1e-6), (B, 1e-6), (A, 1e-6))
    assert one.ranked == other.ranked
    assert [choice_key(found) for found, _ in one.ranked] == sorted(map(choice_key, (A, B, C)))


def test_a_space_knows_its_predictions():
    made = space((A, 3e-6), (B, 1e-6))
    assert made.best_predicted_s == 1e-6
    assert made.predicted_s(A) == 3e-6
    assert made.predicted_s(C) is None


def test_a_space_is_named_by_group_and_layouts():
    made = space((A, 1e-6), layouts=("nhwc", "nchw"))
    assert made.key == f"{spec().key}:nhwc,nchw" == space_key(spec().key, ["nhwc", "nchw"])
    assert made.key != space((A, 1e-6), layouts=("nhwc", "nhwc")).key


def test_the_best_is_the_fastest_that_ran():
    tried = [failed(A), measured(B, 3e-6), measured(C, 2e-6), failed(D)]
    assert best_of(tried) is tried[2]


@pytest.mark.parametrize("tried", [[], [failed(A), failed(B)]])
def test_nothing_is_best_where_nothing_ran(tried):
    assert best_of(tried) is None


@pytest.mark.parametrize(
    ("times", "stale"),
    [
        ([], 0),
        ([5.0], 0),
        ([5.0, 6.0], 1),
        ([5.0, 4.0], 0),
        ([5.0, 4.96], 1),  # 0.8 % faster is not better
        ([5.0, 4.94], 0),  # 1.2 % is
        ([5.0, 4.96, 4.94], 0),  # small steps add up: compared with what last counted as better
        ([5.0, 6.0, None, 4.0, None, 7.0], 2),
        ([None, None], 2),
        ([None, 5.0], 0),
    ],
)
def test_stale_trials_are_those_since_the_last_improvement(times, stale):
    tried = [failed(choice(v=index)) if t is None else measured(choice(v=index), t) for index, t in enumerate(times)]
    assert stale_trials(tried) == stale
