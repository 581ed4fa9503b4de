import math

import numpy as np
import pytest

from mapper import stats


def rng():
    return np.random.default_rng(7)


def test_median_interval_agrees_with_a_plain_bootstrap():
    samples = np.random.default_rng(1).normal(10.0, 1.0, 41)
    draws = np.random.default_rng(2).choice(samples, (20000, 41))
    want_low, want_high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    median, low, high = stats.bootstrap_median(samples.tolist(), rng())
    assert median == np.median(samples)
    assert low == pytest.approx(want_low, abs=0.12)
    assert high == pytest.approx(want_high, abs=0.12)


def test_even_counts_resample_the_mean_of_two_middle_values():
    samples = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    draws = np.median(np.random.default_rng(3).choice(samples, (20000, 8)), axis=1)
    ours = stats._resampled_medians(np.array(samples), rng())
    assert set(ours) <= set(np.arange(1.0, 8.5, 0.5))
    for value in (3.0, 4.5, 6.0):
        assert (ours <= value).mean() == pytest.approx((draws <= value).mean(), abs=0.03)


def test_interval_covers_the_true_median_about_as_often_as_it_says():
    source, boot = np.random.default_rng(11), rng()
    hits = 0
    for _ in range(400):
        _, low, high = stats.bootstrap_median(source.exponential(1.0, 25).tolist(), boot)
        hits += low <= math.log(2) <= high
    assert 0.90 <= hits / 400 <= 0.99


def test_five_samples_give_a_median_but_no_interval():
    assert stats.bootstrap_median([3.0, 1.0, 2.0, 5.0, 4.0], rng()) == (3.0, None, None)


@pytest.mark.parametrize("samples", [[], [1.0, math.nan], [1.0, math.inf]])
def test_median_of_nothing_or_of_non_finite_values_is_refused(samples):
    with pytest.raises(ValueError, match="finite samples, at least one"):
        stats.bootstrap_median(samples, rng())


def test_a_wider_confidence_gives_a_wider_interval():
    samples = np.random.default_rng(5).normal(0, 1, 50).tolist()
    _, low, high = stats.bootstrap_median(samples, rng(), 0.5)
    _, lower, higher = stats.bootstrap_median(samples, rng(), 0.99)
    assert lower < low < high < higher


def test_tails_need_forty_samples():
    assert stats.time_reading([1.0] * 39, rng()).p5 is None
    reading = stats.time_reading([float(i) for i in range(41)], rng(), "alone")
    assert (reading.median, reading.p5, reading.p95, reading.n, reading.method) == (20.0, 2.0, 38.0, 41, "alone")
    assert reading.low < 20.0 < reading.high


def test_no_samples_read_as_none_with_a_reason():
    reading = stats.time_reading([], rng())
    assert (reading.median, reading.grade, reading.n, reading.reason) == (None, None, 0, "nothing was timed")


def test_ratio_is_the_paired_one_although_rounds_drift():
    drift = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    a = [(1.1 * d, 1.1 * d, 9.0 * d) for d in drift]  # an outlier in every round; its median is 1.1 × the drift
    ratio, low, high = stats.log_ratio(a, drift, rng())
    assert (ratio, low, high) == pytest.approx((1.1, 1.1, 1.1))


def test_few_rounds_give_a_ratio_without_interval():
    ratio, low, high = stats.log_ratio([2.0, 2.0], [1.0, 1.0], rng())
    assert ratio == pytest.approx(2.0)
    assert low is None
    assert high is None


@pytest.mark.parametrize(("a", "b"), [([1.0], [1.0, 2.0]), ([], [])])
def test_unpaired_rounds_are_refused(a, b):
    with pytest.raises(ValueError, match="paired rounds"):
        stats.log_ratio(a, b, rng())


def test_a_time_of_zero_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        stats.log_ratio([1.0, 0.0], [1.0, 1.0], rng())


@pytest.mark.parametrize(
    ("low", "high", "ratio", "want"),
    [
        (1.03, 1.06, None, "different"),
        (0.90, 0.95, None, "different"),
        (1.005, 1.06, 1.03, "different"),  # the interval excludes 1, the estimate is above the floor
        (1.005, 1.06, 1.015, "undecided"),  # … and is not
        (0.985, 1.015, None, "same"),
        (1.005, 1.015, None, "same"),  # excludes 1, but the whole interval is below the floor
        (0.985, 1.03, None, "undecided"),
        (0.5, 2.0, None, "undecided"),
        (None, None, 1.5, "undecided"),
    ],
)
def test_verdict_words(low, high, ratio, want):
    assert stats.verdict(low, high, 0.02, ratio) == want


def test_floor_is_symmetric_in_log_space():
    assert stats.verdict(1 / 1.0199, 1.0199, 0.02) == "same"
    assert stats.verdict(0.9801, 1.0, 0.02) == "undecided"  # below 1 ÷ 1.02 = 0.9804


def test_rank_correlation_by_hand():
    assert stats.spearman([1, 2, 3, 4], [10, 20, 40, 30]) == pytest.approx(0.8)  # 1 − 6·2 / (4·15)
    assert stats.spearman([1, 2, 3], [9, 4, 1]) == pytest.approx(-1.0)
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 4.5, variances 4.5 and 5
    assert stats.spearman([1, 5, 5, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))


def test_rank_correlation_is_undefined_without_variation():
    assert stats.spearman([1.0], [2.0]) is None
    assert stats.spearman([3.0, 3.0], [1.0, 2.0]) is None
    with pytest.raises(ValueError, match="pairs"):
        stats.spearman([1.0], [1.0, 2.0])


def test_mean_error_is_relative_to_the_observed():
    assert stats.mape([1.5, 1.0], [1.0, 2.0]) == pytest.approx(0.5)
    assert stats.mape([], []) is None
    with pytest.raises(ValueError, match="above 0"):
        stats.mape([1.0], [0.0])
    with pytest.raises(ValueError, match="pairs"):
        stats.mape([1.0], [])
