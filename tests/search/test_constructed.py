import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_choices import choice, failed, measured, space

from mapper.keys import choice_key
from mapper.search.strategies.constructed import Constructed


def tile(vb=8, stage=1, rw=4, th=1, template="conv2d"):
    return choice(template=template, vb=vb, stage=stage, rw=rw, th=th)


def drive(made, times, patience=8, tried=()):
    """Propose until nothing is left, each choice taking `times(choice)` seconds, None for a failure."""
    tried = list(tried)
    while True:
        proposed = Constructed(patience=patience).propose(made, tuple(tried))
        if proposed is None:
            return [candidate.choice for candidate in tried]
        time_s = times(proposed)
        tried.append(failed(proposed) if time_s is None else measured(proposed, time_s))


# --- kinds ------------------------------------------------------------------------------------------------------------


def test_the_best_prediction_comes_first():
    made = space((tile(rw=1), 3e-6), (tile(rw=2), 1e-6), (tile(rw=3), 2e-6))
    assert Constructed().propose(made, ()) == tile(rw=2)


def test_then_the_best_prediction_of_every_other_kind():
    made = space(
        (tile(rw=1), 1.0e-6),
        (tile(rw=2), 1.1e-6),
        (tile(rw=1, stage=2), 1.2e-6),
        (tile(rw=2, stage=2), 1.3e-6),
        (tile(rw=1, vb=16), 1.4e-6),
    )
    assert drive(made, lambda _: 5e-6)[:3] == [tile(rw=1), tile(rw=1, stage=2), tile(rw=1, vb=16)]


def test_another_template_has_its_turn_before_more_kinds_of_the_first():
    made = space(
        (tile(rw=1), 1.0e-6),
        (tile(rw=1, stage=2), 1.1e-6),
        (tile(rw=1, template="winograd"), 1.8e-6),
    )
    assert drive(made, lambda _: 1e-6)[:2] == [tile(rw=1), tile(rw=1, template="winograd")]


def test_a_kind_predicted_to_take_over_twice_the_best_is_no_seed():
    made = space((tile(rw=1), 1e-6), (tile(rw=2, th=2), 1.9e-6), (tile(rw=2, th=2, stage=2), 2.01e-6))
    order = drive(made, lambda _: 1e-6)
    assert order[1] == tile(rw=2, th=2)  # the second of the first kind; the other kind waits


@pytest.mark.parametrize(("predicted_s", "is_seed"), [(3.9e-6, True), (4.1e-6, False)])
def test_of_another_template_up_to_four_times_the_best_prediction_is_tried_once(predicted_s, is_seed):
    other = tile(rw=1, template="winograd")
    made = space((tile(rw=1), 1e-6), (tile(rw=2), 1.1e-6), (other, predicted_s))
    assert (Constructed().propose(made, (measured(tile(rw=1), 1e-6),)) == other) is is_seed


def test_there_are_six_seeds_at_most():
    pairs = [(tile(vb=8 * index, rw=index), (1 + index / 100) * 1e-6) for index in range(1, 11)]
    pairs.append((tile(vb=8, rw=9), 1.3e-6))  # of the first kind, worse by prediction than any seed
    order = drive(space(*pairs), lambda one: 1e-6 if one == tile(vb=8, rw=1) else 5e-6)
    assert order[:7] == [*(tile(vb=8 * index, rw=index) for index in range(1, 7)), tile(vb=8, rw=9)]


# --- halving ----------------------------------------------------------------------------------------------------------


def test_the_three_kinds_that_measured_best_get_a_second_trial_in_that_order():
    pairs = [(tile(vb=vb, rw=rw), 1e-6 + vb * 1e-9 + rw * 1e-10) for vb in (8, 16, 24, 32) for rw in (1, 2)]
    first = {8: 1.3e-6, 16: 1.1e-6, 24: 1.4e-6, 32: 1.2e-6}
    order = drive(space(*pairs), lambda one: first[one.tile["vb"]])
    assert [one.tile["vb"] for one in order[:7]] == [8, 16, 24, 32, 16, 32, 8]
    assert [one.tile["rw"] for one in order[:7]] == [1, 1, 1, 1, 2, 2, 2]


def test_a_kind_that_measured_half_slower_than_the_best_gets_no_second_trial():
    pairs = [(tile(vb=vb, rw=rw), 1e-6 + vb * 1e-9 + rw * 1e-10) for vb in (8, 16) for rw in (1, 2, 3)]
    order = drive(space(*pairs), lambda one: 1e-6 if one.tile["vb"] == 8 else 1.51e-6)
    assert [one.tile["vb"] for one in order[:4]] == [8, 16, 8, 8]


# --- descent ----------------------------------------------------------------------------------------------------------


def line(*rws):
    """Return a space of one kind along rw, all predicted alike."""
    return space(*((tile(rw=rw), 1e-6) for rw in rws))


def after(made, *outcomes):
    return Constructed(patience=99).propose(made, tuple(measured(one, time_s) for one, time_s in outcomes))


def test_neighbours_of_the_best_come_before_better_predictions():
    made = space((tile(rw=1), 1e-6), (tile(rw=2), 1e-6), (tile(rw=3, th=3), 1.1e-6), (tile(rw=4), 1.3e-6))
    assert after(made, (tile(rw=1), 1e-6), (tile(rw=2), 0.9e-6)) == tile(rw=4)


def test_nearest_values_come_first():
    made = line(1, 2, 4, 8, 16)
    assert after(made, (tile(rw=1), 2e-6), (tile(rw=16), 1e-6)) == tile(rw=8)


def test_neighbours_are_of_the_fastest_not_of_the_last():
    made = line(1, 2, 4, 8, 16)
    assert after(made, (tile(rw=16), 1e-6), (tile(rw=1), 2e-6)) == tile(rw=8)


def test_a_direction_that_paid_is_followed():
    made = line(1, 2, 3, 4, 5)
    assert after(made, (tile(rw=2), 2e-6), (tile(rw=3), 1e-6)) == tile(rw=4)
    assert after(made, (tile(rw=4), 2e-6), (tile(rw=3), 1e-6)) == tile(rw=2)


def test_a_field_whose_direction_paid_goes_before_another_field():
    made = space((tile(rw=1), 1e-6), (tile(rw=2), 1e-6), (tile(rw=3), 1.2e-6), (tile(rw=2, th=2), 1e-6))
    assert after(made, (tile(rw=1), 1.3e-6), (tile(rw=2), 1e-6)) == tile(rw=3)


def test_neighbours_that_are_expected_to_be_poor_wait():
    made = space((tile(rw=1), 1e-6), (tile(rw=2), 1e-6), (tile(rw=3), 9e-6), (tile(rw=7, th=7), 1.4e-6))
    assert after(made, (tile(rw=1), 1e-6), (tile(rw=2), 1e-6)) == tile(rw=7, th=7)


def test_without_neighbours_those_that_differ_in_fewest_fields_follow():
    made = space(
        (tile(rw=1), 1e-6), (tile(rw=1, th=3), 1e-6), (tile(rw=2, th=2, stage=2), 3e-6), (tile(rw=2, th=2), 4e-6)
    )
    assert after(made, (tile(rw=1), 3e-6), (tile(rw=1, th=3), 3e-6)) == tile(rw=2, th=2)


# --- corrected predictions --------------------------------------------------------------------------------------------


def test_predictions_are_corrected_kind_by_kind():
    # kind 8 takes 4 times its prediction, kind 16 takes what is predicted: what is left of 16 promises more
    made = space(
        *((tile(vb=8, rw=rw), 1.0e-6 + rw * 1e-9) for rw in range(1, 8)),
        *((tile(vb=16, rw=rw), 1.5e-6 + rw * 1e-9) for rw in range(1, 8)),
    )
    order = drive(made, lambda one: {8: 4.2e-6, 16: 1.5e-6}[one.tile["vb"]], patience=6)
    assert [one.tile["vb"] for one in order[:2]] == [8, 16]
    assert {one.tile["vb"] for one in order[2:]} == {16}


def test_one_kind_that_disappoints_says_nothing_about_the_others():
    made = space(*((tile(vb=vb), (1 + vb / 1000) * 1e-6) for vb in (8, 16, 24, 32)))
    order = drive(made, lambda one: {8: 1e-6, 16: 9e-6, 24: 9e-6, 32: 0.8e-6}[one.tile["vb"]])
    assert [one.tile["vb"] for one in order] == [8, 16, 24, 32]


def test_a_template_that_flatters_itself_is_left_after_one_trial():
    flattering = [
        (tile(template="winograd", rw=rw, vb=vb), (0.5 + rw / 100) * 1e-6) for rw in (1, 2, 3) for vb in (8, 16)
    ]
    honest = [(tile(rw=rw), (1.0 + rw / 100) * 1e-6) for rw in range(1, 9)]
    order = drive(space(*flattering, *honest), lambda one: 5e-6 if one.template == "winograd" else 1e-6)
    assert [one.template for one in order].count("winograd") == 1
    assert order[1].template == "conv2d"


# --- stopping ---------------------------------------------------------------------------------------------------------


def falling(count=39):
    """Return a space of one kind, each prediction a little worse than the one before."""
    return space(*((tile(rw=index), (1 + index / 1000) * 1e-6) for index in range(1, count + 1)))


def test_it_goes_on_while_things_improve():
    assert len(drive(falling(), lambda one: 0.9 ** one.tile["rw"] * 1e-6, patience=5)) == 39


def test_an_improvement_of_less_than_two_percent_does_not_count():
    # two probes of the kind, then the least patience, since predictions promise nothing
    assert len(drive(falling(), lambda one: 0.997 ** one.tile["rw"] * 1e-6)) == 2 + 4
    assert len(drive(falling(), lambda one: 0.97 ** one.tile["rw"] * 1e-6)) == 39


def test_patience_grows_with_what_corrected_predictions_promise():
    # the first two take their prediction, so that the rest promises to take half as long, and disappoints
    promising = [(tile(rw=index, th=2), (5 + index / 1000) * 1e-7) for index in range(1, 40)]
    known = [measured(tile(rw=1), 1e-6), measured(tile(rw=2), 1e-6)]
    made = space((tile(rw=1), 1e-6), (tile(rw=2), 1e-6), *promising)
    assert len(drive(made, lambda _: 1e-6, patience=8, tried=known)) > 2 + 4
    assert len(drive(falling(), lambda _: 1e-6, patience=8)) == 2 + 4
    assert len(drive(falling(), lambda _: 1e-6, patience=3)) == 2 + 3


def test_a_space_in_which_everything_fails_is_left():
    made = space(*((tile(rw=index), 1e-6) for index in range(1, 40)))
    assert len(drive(made, lambda _: None, patience=5)) == 2 + 5


def test_failures_are_passed_over():
    made = space((tile(rw=1), 1.0e-6), (tile(rw=2), 1.5e-6), (tile(rw=3), 1.2e-6))
    assert drive(made, lambda one: None if one == tile(rw=1) else 1e-6) == [tile(rw=1), tile(rw=3), tile(rw=2)]


def test_an_exhausted_space_gives_nothing():
    made = space((tile(rw=1), 1e-6), (tile(rw=2), 2e-6))
    assert after(made, (tile(rw=1), 1e-6), (tile(rw=2), 1e-6)) is None


@pytest.mark.parametrize("given", [choice(template="generic", v=8, grain=1), tile(rw=77), tile(vb=3, stage=9, th=5)])
def test_a_choice_from_elsewhere_does_not_stop_it(given):
    made = space((tile(rw=1), 1e-6), (tile(rw=2), 1.1e-6), (tile(rw=9), 1.2e-6))
    order = drive(made, lambda _: 1e-6, tried=[measured(given, 0.9e-6)])
    assert len(order) > 2
    assert order[1] in (tile(rw=1), tile(rw=2))


# --- landscapes -------------------------------------------------------------------------------------------------------


def landscape(seed=0, noise=0.0, bias=None):
    """Return a space of 2 templates × 3 blocks × 2 stages × 8 rows × 4 heights, true times, and measured times.

    Times are a bowl in log2 of each field whose bottom differs by template; predictions see the bowl half as deep.
    """
    rng = random.Random(seed)
    bias = bias or {}
    true_s, pairs = {}, []
    for template, (row, height, base) in {"conv2d": (5, 2, 1.0), "winograd": (3, 4, 0.8)}.items():
        for vb in (8, 16, 32):
            for stage in (1, 2):
                for rw in range(1, 9):
                    for th in (1, 2, 4, 8):
                        one = tile(template=template, vb=vb, stage=stage, rw=rw, th=th)
                        bowl = 0.3 * abs(math.log2(rw / row)) + 0.2 * abs(math.log2(th / height))
                        bowl += 0.15 * abs(math.log2(vb / 16)) + 0.1 * (stage == 2)
                        true_s[choice_key(one)] = base * (1 + bowl) * 1e-4
                        guess = base * (1 + bowl / 2) * rng.uniform(0.9, 1.1) * bias.get(template, 1.0)
                        pairs.append((one, guess * 1e-4))
    return space(*pairs), true_s, lambda one: true_s[choice_key(one)] * math.exp(rng.gauss(0, noise))


def reached(order, true_s):
    """Return the best true time found, as a multiple of the optimum."""
    return min(true_s[choice_key(one)] for one in order) / min(true_s.values())


@pytest.mark.parametrize("seed", range(5))
def test_the_optimum_is_nearly_found_within_25_of_384_choices(seed):
    made, true_s, times = landscape(seed)
    order = drive(made, times)
    assert len(order) <= 25
    assert reached(order, true_s) <= 1.05


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_three_percent_does_not_lead_astray(seed):
    made, true_s, times = landscape(seed, noise=0.03)
    order = drive(made, times)
    assert len(order) <= 30
    assert reached(order, true_s) <= 1.1


@pytest.mark.parametrize("bias", [{"conv2d": 0.5}, {"winograd": 3.0}, {"winograd": 0.4}])
def test_predictions_biased_by_template_do_not_lead_astray(bias):
    made, true_s, times = landscape(1, bias=bias)
    order = drive(made, times)
    assert len(order) <= 30
    assert reached(order, true_s) <= 1.1


@pytest.mark.parametrize("patience", [3, 1000])
@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_no_choice_is_ever_proposed_twice(patience, data):
    numbers = st.integers(1, 4)
    tiles = data.draw(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=25, unique=True))
    pairs = [(tile(vb=a, rw=b, th=c), data.draw(st.integers(1, 50)) * 1e-6) for a, b, c in tiles]
    outcomes = {
        choice_key(one): data.draw(st.one_of(st.none(), st.floats(1e-6, 1e-3, allow_nan=False))) for one, _ in pairs
    }
    order = drive(space(*pairs), lambda one: outcomes[choice_key(one)], patience=patience)
    keys = [choice_key(one) for one in order]
    assert len(keys) == len(set(keys))
    assert set(keys) <= set(outcomes)
