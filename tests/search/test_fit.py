"""Factors are found again from times that were made with them."""

import numpy as np
import pytest

from mapper.records import Prediction
from mapper.search.fit import LEAST_OUTCOMES, fit


def prediction(compute_s, memory_s, overhead_s):
    total = max(compute_s, memory_s) + min(compute_s, memory_s) / 3 + overhead_s
    return Prediction(
        time_s=total,
        compute_s=compute_s,
        memory_s=memory_s,
        overhead_s=overhead_s,
        executed_flops=1.0,
        bytes_by_level={},
    )


def outcomes(template, larger, smaller, starting, count=30):
    rng = np.random.default_rng(1)
    for _ in range(count):
        one = prediction(*rng.uniform(1e-6, 1e-3, 3))
        parts = max(one.compute_s, one.memory_s), min(one.compute_s, one.memory_s), one.overhead_s
        yield template, one, larger * parts[0] + smaller * parts[1] + starting * parts[2]


@pytest.mark.parametrize("factors", [(1.0, 1 / 3, 1.0), (1.4, 0.0, 2.0), (0.8, 0.9, 0.0), (0.0, 0.0, 3.0)])
def test_factors_are_found_again(factors):
    found = fit(outcomes("conv2d", *factors)).by_template["conv2d"]
    assert (found.larger, found.smaller, found.starting) == pytest.approx(factors, abs=1e-9)
    assert found.outcomes == 30


def test_no_factor_is_negative():
    found = fit(outcomes("conv2d", 1.0, -0.4, 1.0)).by_template["conv2d"]
    assert min(found.larger, found.smaller, found.starting) >= 0


def test_templates_are_fitted_apart_and_unknown_ones_kept():
    found = fit([*outcomes("conv2d", 2.0, 0.0, 1.0), *outcomes("matmul", 0.5, 0.5, 0.5)])
    one = prediction(3e-4, 1e-4, 2e-6)
    assert found.fitted("conv2d", one).time_s == pytest.approx(6e-4 + 2e-6)
    assert found.fitted("matmul", one).time_s == pytest.approx(1.5e-4 + 0.5e-4 + 1e-6)
    assert found.fitted("generic", one) == one


def test_a_few_outcomes_only_scale():
    one, other = prediction(3e-4, 1e-4, 0.0), prediction(1e-4, 4e-4, 1e-6)
    few = [("conv2d", one, 2.0 * one.time_s)] * (LEAST_OUTCOMES - 1)
    assert fit(few).fitted("conv2d", other).time_s == pytest.approx(2.0 * other.time_s)


def test_what_was_not_timed_is_left_out():
    assert fit([("conv2d", prediction(1e-4, 1e-4, 0.0), 0.0)]).by_template == {}
