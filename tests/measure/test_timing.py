import numpy as np
import pytest

from mapper.measure.timing import (
    BlockPlan,
    alternate,
    calls_per_sample,
    drift,
    drift_limit,
    runs_for,
    two_runtime_blocks,
)


def test_every_round_runs_each_subject_once_in_changing_order():
    ran = []

    def subject(name):
        def run(number):
            ran.append((number, name))
            return (number, number + 0.5)

        return run

    taken = alternate({name: subject(name) for name in "abc"}, 20, np.random.default_rng(0))
    assert [number for number, _ in ran] == [number for number in range(20) for _ in range(3)]
    orders = {tuple(name for at, name in ran if at == number) for number in range(20)}
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert len(orders) > 3
    assert taken["b"] == [[float(number), number + 0.5] for number in range(20)]


def test_the_order_follows_the_seed():
    def order(seed):
        ran = []
        subjects = {name: lambda _, name=name: ran.append(name) or (1.0,) for name in "abcd"}
        alternate(subjects, 5, np.random.default_rng(seed))
        return ran

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_two_runtimes_take_turns_with_silence_before_each_block():
    events = []

    def runtime(name, time_s):
        def run(runs):
            events.append((name, runs))
            return [9.0, 9.0] + [time_s] * (runs - 2)

        return run

    plan = BlockPlan(blocks=2, runs_per_block=5, drop=2, quiet_s=0.1)
    taken = two_runtime_blocks(
        runtime("ours", 1.0), runtime("theirs", 2.0), plan, sleep=lambda seconds: events.append(("quiet", seconds))
    )
    turn = [("quiet", 0.1), ("ours", 5), ("quiet", 0.1), ("theirs", 5)]
    assert events == turn * 2
    assert taken.ours == [[1.0, 1.0, 1.0]] * 2  # the two cold runs of a block are gone
    assert taken.theirs == [[2.0, 2.0, 2.0]] * 2


def test_a_plan_that_keeps_no_run_is_refused():
    with pytest.raises(ValueError, match="more runs a block than the 2 dropped, found 2"):
        two_runtime_blocks(lambda _: [], lambda _: [], BlockPlan(blocks=1, runs_per_block=2), sleep=lambda _: None)


@pytest.mark.parametrize(("time_s", "want"), [(0.01, 10), (0.03, 4), (10.0, 3), (1e-6, 50), (0.0, 50)])
def test_runs_fill_the_target_within_limits(time_s, want):
    assert runs_for(time_s, 0.1, 3, 50) == want


def test_short_kernels_are_batched_until_measurable():
    asked = []

    def time_calls(calls):
        asked.append(calls)
        return calls * 1e-7 if calls >= 4 else 0.0  # below the clock's resolution

    assert calls_per_sample(time_calls, 1e-6) == 16
    assert asked == [1, 2, 4, 8, 16]


def test_batching_stops_at_its_limit():
    assert calls_per_sample(lambda _: 0.0, 1.0, most=64) == 64


def test_drift_limit_follows_the_machine():
    assert drift_limit(None) == 0.03
    assert drift_limit(0.005) == 0.03
    assert drift_limit(0.02) == pytest.approx(0.06)


def test_drift_is_last_third_against_first():
    assert drift([1.0, 1.0, 5.0, 5.0, 1.2, 1.2]) == pytest.approx(0.2)
    with pytest.raises(ValueError, match="at least 3"):
        drift([1.0, 2.0])
