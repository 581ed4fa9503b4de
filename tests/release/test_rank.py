import numpy as np
import pytest

from mapper.release.rank import Contender, pareto, rank

NOISE = np.random.default_rng(0).normal(1.0, 0.2, 12).tolist()  # rounds differ a lot; pairs do not


def contender(key, factor, kernels=10, verified=True, rounds=12):
    samples = tuple((factor * noise,) for noise in NOISE[:rounds])
    return Contender(key=key, kernel_count=kernels, verified=verified, samples_by_round_s=samples)


def places(*contenders):
    return [(ranked.key, ranked.rank) for ranked in rank(contenders, np.random.default_rng(1))]


def test_faster_comes_first():
    assert places(contender("slow", 1.5), contender("fast", 1.0), contender("mid", 1.2)) == [
        ("fast", 1),
        ("mid", 2),
        ("slow", 3),
    ]


def test_the_same_time_shares_the_rank_and_fewer_kernels_lead():
    got = places(contender("best", 1.0, 20), contender("near", 1.01, 12), contender("far", 1.1, 1))
    assert got == [("near", 1), ("best", 1), ("far", 3)]


def test_equal_kernels_are_ordered_by_key():
    assert places(contender("b", 1.0), contender("a", 1.005)) == [("a", 1), ("b", 1)]


@pytest.mark.parametrize(("factor", "want"), [(1.019, 1), (1.021, 2)])
def test_the_floor_is_two_percent(factor, want):
    assert dict(places(contender("best", 1.0), contender("other", factor)))["other"] == want


def test_undecided_is_not_the_same():
    got = places(contender("a", 1.0, rounds=3), contender("b", 1.0, 1, rounds=3))
    assert got == [("b", 1), ("a", 2)]  # equal medians: fewer kernels, but no tie from three rounds


def test_rounds_that_do_not_pair_up_make_no_tie():
    flat = Contender(key="b", kernel_count=1, verified=True, samples_by_round_s=((5.0,),) * 6)
    best = Contender(key="a", kernel_count=9, verified=True, samples_by_round_s=((5.0,),) * 7)
    assert places(best, flat) == [("b", 1), ("a", 2)]


def test_the_unverified_and_untimed_are_not_ranked():
    untimed = Contender(key="c", kernel_count=1, verified=True, samples_by_round_s=())
    ranked = rank([contender("wrong", 0.5, verified=False), untimed, contender("ok", 1.0)], np.random.default_rng(1))
    assert [(place.key, place.rank, place.because) for place in ranked] == [
        ("ok", 1, "best median"),
        ("c", None, "not timed"),
        ("wrong", None, "not verified"),
    ]


def test_reasons_say_how_far_behind():
    ranked = rank([contender("a", 1.0), contender("b", 1.5), contender("c", 1.01)], np.random.default_rng(1))
    assert [place.because for place in ranked] == [
        "best median",
        "same as the best within ±2%",
        "median +50.0% against the best",
    ]


def test_nothing_to_rank():
    assert places() == []


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(1.0, 5.0), (2.0, 4.0), (2.0, 6.0)], [True, True, False]),
        ([(1.0, 1.0), (1.0, 1.0)], [True, True]),  # equals do not beat one another
        ([(3.0, 1.0), (3.0, 2.0)], [True, False]),
        ([], []),
    ],
)
def test_the_pareto_set_is_what_nothing_beats(points, expected):
    assert pareto(points) == expected
