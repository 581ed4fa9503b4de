"""Statistics of times: medians with intervals, ratios over rounds, the verdict words, rank correlation, model error."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from mapper.records import TimeReading

Verdict = Literal["different", "same", "undecided"]
Interval = tuple[float, float | None, float | None]

RESAMPLES = 4000
LEAST_FOR_INTERVAL = 6  # below it even the whole range of the samples covers the median in less than 95 % of cases
LEAST_FOR_TAILS = 40  # p5 and p95 of fewer samples are little more than the extremes


def bootstrap_median(samples: Sequence[float], rng: np.random.Generator, confidence: float = 0.95) -> Interval:
    """Return the median of `samples` with its percentile-bootstrap interval.

    No resample is ever drawn. A resample of n values picks n uniform positions, and its median depends only on the
    middle one (or two) of them, which follow a Beta law; drawing those directly gives exactly the bootstrap's
    distribution at a cost that does not grow with n.

    Args:
        samples: At least one finite value.
        rng: Source of randomness.
        confidence: Coverage of the interval, in (0, 1).

    Returns:
        Median, low and high. Low and high are None below 6 samples: the range of 5 values still misses the true
        median in 2 × 0.5⁵ = 6 % of cases, so no honest 95 % interval exists.

    Raises:
        ValueError: No samples, or one that is not finite.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, §13.3; order statistics of the uniform
    distribution, David and Nagaraja, Order Statistics, 2003, §2.
    """
    values = np.sort(np.asarray(samples, dtype=np.float64))
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"bootstrap_median expects finite samples, at least one; found {list(samples)!r:.80}")
    median = float(np.median(values))
    if values.size < LEAST_FOR_INTERVAL:
        return median, None, None
    medians = _resampled_medians(values, rng)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(medians, (tail, 1.0 - tail))
    return median, float(low), float(high)


def _resampled_medians(ordered: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    n = ordered.size
    lower_rank = (n + 1) // 2  # 1-based rank of the lower middle position
    position = rng.beta(lower_rank, n + 1 - lower_rank, RESAMPLES)
    lower = ordered[np.minimum((position * n).astype(np.intp), n - 1)]
    if n % 2:
        return np.asarray(lower)
    position = position + (1.0 - position) * rng.beta(1, n - lower_rank, RESAMPLES)  # the next position above it
    upper = ordered[np.minimum((position * n).astype(np.intp), n - 1)]
    return np.asarray((lower + upper) / 2.0)


def time_reading(samples_s: Sequence[float], rng: np.random.Generator, method: str = "rounds") -> TimeReading:
    """Summarise times in seconds; `p5` and `p95` only from 40 samples on, every figure None without samples."""
    if len(samples_s) == 0:
        return TimeReading(median=None, method=method, grade=None, reason="nothing was timed")
    median, low, high = bootstrap_median(samples_s, rng)
    n = len(samples_s)
    p5 = p95 = None
    if n >= LEAST_FOR_TAILS:
        p5, p95 = (float(value) for value in np.quantile(np.asarray(samples_s, dtype=np.float64), (0.05, 0.95)))
    return TimeReading(median=median, low=low, high=high, n=n, p5=p5, p95=p95, method=method)


def log_ratio(
    a_by_round: Sequence[Sequence[float] | float],
    b_by_round: Sequence[Sequence[float] | float],
    rng: np.random.Generator,
) -> Interval:
    """Return t_A ÷ t_B (over 1: A is slower) from paired rounds, with its interval.

    The statistic is the median over rounds of log(t_A / t_B), bootstrapped over rounds and taken back to a ratio.
    Where a round holds several times of one subject, their median stands for it.

    Args:
        a_by_round: Times of A, one entry a round, in seconds.
        b_by_round: Times of B in the same rounds.
        rng: Source of randomness.

    Returns:
        Ratio, low, high; low and high None below 6 rounds.

    Raises:
        ValueError: No rounds, rounds that do not pair up, or a time that is not above 0.
    """
    if len(a_by_round) != len(b_by_round) or not a_by_round:
        raise ValueError(f"log_ratio expects paired rounds; found {len(a_by_round)} of A and {len(b_by_round)} of B")
    a = np.array([float(np.median(times)) for times in a_by_round])
    b = np.array([float(np.median(times)) for times in b_by_round])
    if not (np.minimum(a, b) > 0).all():
        raise ValueError("log_ratio expects times above 0 in every round")
    middle, low, high = bootstrap_median(np.log(a / b).tolist(), rng)
    return math.exp(middle), None if low is None else math.exp(low), None if high is None else math.exp(high)


def verdict(
    ratio_low: float | None, ratio_high: float | None, floor: float = 0.02, ratio: float | None = None
) -> Verdict:
    """Judge an interval of a time ratio.

    `different`: the interval excludes 1 and the ratio is at least `floor` away from it. `same`: the interval lies
    within ± `floor`. Anything else is `undecided`, a missing interval included: not shown different is not same.
    Distances are taken in log space, where ±2 % means ÷1.02 to ×1.02.

    Args:
        ratio_low: Lower end of the interval, None when there is no interval.
        ratio_high: Upper end.
        floor: Smallest relative difference that matters.
        ratio: The point estimate; None takes the geometric middle of the interval.
    """
    if ratio_low is None or ratio_high is None:
        return "undecided"
    limit = math.log1p(floor)
    low, high = math.log(ratio_low), math.log(ratio_high)
    middle = (low + high) / 2 if ratio is None else math.log(ratio)
    if -limit <= low and high <= limit:
        return "same"
    if (low > 0 or high < 0) and abs(middle) >= limit:
        return "different"
    return "undecided"


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, ties at their mean rank; None when it is undefined.

    Undefined are fewer than two pairs and a side whose values are all equal.

    Raises:
        ValueError: The sides differ in length.
    """
    if len(a) != len(b):
        raise ValueError(f"spearman expects pairs; found {len(a)} and {len(b)} values")
    if len(a) < 2:
        return None
    x, y = _mean_ranks(a), _mean_ranks(b)
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale else None


def _mean_ranks(values: Sequence[float]) -> np.ndarray:
    _, inverse, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[inverse])


def mape(predicted: Sequence[float], observed: Sequence[float]) -> float | None:
    """Return the mean absolute error of `predicted` relative to `observed`, as a fraction; None without pairs.

    Raises:
        ValueError: The sides differ in length, or an observed value is not above 0.
    """
    if len(predicted) != len(observed):
        raise ValueError(f"mape expects pairs; found {len(predicted)} and {len(observed)} values")
    if not predicted:
        return None
    p, o = np.asarray(predicted, dtype=np.float64), np.asarray(observed, dtype=np.float64)
    if not (o > 0).all():
        raise ValueError("mape expects observed values above 0")
    return float(np.mean(np.abs(p - o) / o))
