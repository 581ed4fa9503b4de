from small_choices import choice, failed, measured, space

from mapper.search.allocate import pick

A, B, C = (choice(v=v) for v in (1, 2, 4))
# Told apart by layouts: spaces of one group.
SMALL = space((A, 1e-6), (B, 2e-6), layouts=("small",))
HEAVY = space((A, 10e-6), (B, 20e-6), layouts=("heavy",))
OFTEN = space((A, 1e-6), (B, 2e-6), layouts=("often",), weight=50)
ALL = (SMALL, HEAVY, OFTEN)
NONE = frozenset()


def test_the_heaviest_prediction_comes_first_and_calls_count():
    # 1, 10 and 50 µs of the model's time
    assert pick(ALL, {}, NONE) is OFTEN


def test_a_space_without_a_measurement_comes_before_all_that_have_one():
    tried = {OFTEN.key: [measured(A, 1e-3)], HEAVY.key: [measured(A, 1e-3)]}
    assert pick(ALL, tried, NONE) is SMALL


def test_failures_alone_do_not_count_as_a_measurement_but_lower_the_turn():
    tried = {HEAVY.key: [failed(A)] * 10}  # 10 µs / 11 < 1 µs
    assert pick((SMALL, HEAVY), tried, NONE) is SMALL
    assert pick((SMALL, HEAVY), {HEAVY.key: [failed(A)]}, NONE) is HEAVY


def test_then_the_time_above_what_the_model_thinks_possible_decides():
    # headroom: 2 − 0.8 = 1.2 µs; 10 − 8 = 2 µs; 50 × (1.02 − 0.8) = 11 µs
    tried = {SMALL.key: [measured(A, 2e-6)], HEAVY.key: [measured(A, 10e-6)], OFTEN.key: [measured(A, 1.02e-6)]}
    assert pick(ALL, tried, NONE) is OFTEN
    assert pick((SMALL, HEAVY), tried, NONE) is HEAVY
    tried[SMALL.key] = [measured(A, 3e-6)]  # 2.2 µs
    assert pick((SMALL, HEAVY), tried, NONE) is SMALL


def test_trials_that_brought_nothing_lower_the_turn():
    # 11 µs / (1 + 5) < 2 µs
    stale = [measured(A, 1.02e-6), *(measured(choice(v=v), 2e-6) for v in range(5))]
    tried = {HEAVY.key: [measured(A, 10e-6)], OFTEN.key: stale}
    assert pick((HEAVY, OFTEN), tried, NONE) is HEAVY


def test_a_kernel_faster_than_predicted_keeps_a_twentieth_of_its_time_as_headroom():
    # HEAVY at 1 µs: 0.05 µs; SMALL at 0.85 µs: 0.05 µs above 0.8, and 0.0425 µs is less
    tried = {HEAVY.key: [measured(A, 1e-6)], SMALL.key: [measured(A, 0.86e-6)]}
    assert pick((HEAVY, SMALL), tried, NONE) is SMALL
    tried[HEAVY.key] = [measured(A, 2e-6)]  # 0.1 µs
    assert pick((HEAVY, SMALL), tried, NONE) is HEAVY


def test_closed_spaces_get_no_trials():
    assert pick(ALL, {}, frozenset({OFTEN.key})) is HEAVY
    assert pick(ALL, {}, frozenset(one.key for one in ALL)) is None


def test_no_space_no_trial():
    assert pick((), {}, NONE) is None
