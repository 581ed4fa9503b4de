"""The search over hand-made spaces, with a worker that answers from a table."""

from dataclasses import dataclass, field

import pytest
from small_choices import choice, failed, measured, space
from small_groups import AVX2, RELU, RESIDUAL, case, conv

from mapper import templates
from mapper.config import Budget
from mapper.flows.searching import ATTEMPTS_BEFORE_GENERIC, FAILURES_BEFORE_GIVING_UP, Search, anchor_key, is_legal
from mapper.keys import choice_key
from mapper.measure.journal import Journal
from mapper.records import Choice
from mapper.search.strategies.constructed import Constructed
from mapper.worker.workers import Conditions

A, B, C, D = (choice(rw=rw) for rw in (1, 2, 3, 4))
NO_LIMIT = Budget()
CONDITIONS = Conditions(seed=5, flops_per_s=1e11)


@dataclass
class FakeWorker:
    """Answers with seconds by choice; None, or a choice that is not listed, is a failure."""

    times: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)
    forgotten: list = field(default_factory=list)

    def evaluate(self, group, one, predicted_s, conditions, best):
        self.asked.append((group, one, predicted_s, best.choice if best else None))
        time_s = next((time_s for known, time_s in self.times if known == one), None)
        return failed(one) if time_s is None else measured(one, time_s)

    def forget(self, group, choices):
        self.forgotten += [(group, one) for one in choices]

    @property
    def choices(self):
        return [one for _, one, _, _ in self.asked]


class Silent:
    """Progress that is remembered, not shown."""

    def __init__(self):
        self.stages, self.steps = [], []

    def stage(self, name, total=None):
        self.stages.append((name, total))

    def step(self, note="", best=""):
        self.steps.append((note, best))


@pytest.fixture
def searching(tmp_path):
    """Give a function that makes a search of spaces, outcomes by choice; its journal is closed afterwards."""
    journals = []

    def make(spaces, times, *, given=None, patience=14):
        journal = Journal.open(tmp_path / "journal", "machine", "compiler")
        journals.append(journal)
        return Search(
            worker=FakeWorker(times),
            journal=journal,
            strategy=Constructed(patience=patience),
            machine=AVX2,
            spaces={one.key: one for one in spaces},
            progress=Silent(),
            conditions=CONDITIONS,
            given=given or {},
        )

    yield make
    for journal in journals:
        journal.close()


def generic(one):
    return templates.by_name("generic").choices(one.spec, AVX2, one.layouts)


# --- trying one choice ------------------------------------------------------------------------------------------------


def test_a_trial_is_measured_counted_and_journalled(searching):
    one = space((A, 3e-6), (B, 4e-6))
    search = searching([one], [(A, 2e-6)])
    found = search.try_choice(one, A)
    assert found.time_s == 2e-6
    assert search.worker.asked == [(one.spec.key, A, 3e-6, None)]
    assert (search.measured, search.failed, search.from_journal) == (1, 0, 0)
    assert search.tried == {one.key: [found]}
    assert search.journal.find(one.spec.key, choice_key(A)).time_s == 2e-6


def test_a_challenger_is_timed_beside_the_best_so_far(searching):
    one = space((A, 3e-6), (B, 4e-6), (C, 5e-6))
    search = searching([one], [(A, 2e-6), (B, 1.8e-6), (C, 3e-6)])
    for each in (A, B, C):
        search.try_choice(one, each)
    assert [partner for _, _, _, partner in search.worker.asked] == [None, A, B]


def test_a_failure_is_counted_and_journalled_and_is_not_the_best(searching):
    one = space((A, 3e-6), (B, 4e-6))
    search = searching([one], [(B, 2e-6)])
    assert search.try_choice(one, A).failure.step == "build"
    assert search.best(one.key) is None
    search.try_choice(one, B)
    assert search.best(one.key).choice == B
    assert (search.measured, search.failed) == (2, 1)
    assert search.journal.find(one.spec.key, choice_key(A)).failure is not None


def test_an_outcome_in_the_journal_is_not_measured_again(searching):
    one = space((A, 3e-6), (B, 4e-6))
    first = searching([one], [(A, 2e-6)])
    first.try_choice(one, A)
    second = searching([one], [(A, 9e-6)])
    second.recall()
    second.ensure_first([one.key], NO_LIMIT)
    found = second.best(one.key)
    assert (found.time_s, found.source) == (2e-6, "journal")
    assert second.worker.asked == []
    assert (second.measured, second.from_journal) == (0, 1)


def test_outcomes_under_other_layouts_are_not_recalled(searching):
    one, other = space((A, 3e-6), layouts=A.layouts), space((A, 3e-6), layouts=("elsewhere",))
    searching([one], [(A, 2e-6)]).try_choice(one, A)
    second = searching([other], [])
    second.recall()
    assert (second.from_journal, second.tried) == (0, {})


def test_a_failure_in_the_journal_is_tried_again(searching):
    one = space((A, 3e-6), (B, 4e-6))
    searching([one], []).try_choice(one, A)
    second = searching([one], [(A, 2e-6)])
    second.recall()
    second.ensure_first([one.key], NO_LIMIT)
    assert second.best(one.key).time_s == 2e-6
    assert (second.measured, second.from_journal) == (1, 0)


def test_the_loser_of_each_comparison_is_forgotten(searching):
    one = space((A, 1e-6), (B, 2e-6), (C, 3e-6))
    search = searching([one], [(A, 5e-6), (B, 7e-6), (C, 4e-6)])
    group = one.spec.key
    search.try_choice(one, A)
    assert search.worker.forgotten == []
    search.try_choice(one, B)
    assert search.worker.forgotten == [(group, B)]
    search.try_choice(one, C)
    assert search.worker.forgotten == [(group, B), (group, A)]


def test_a_failure_has_no_code_to_forget(searching):
    one = space((A, 1e-6), (B, 2e-6))
    search = searching([one], [(A, 5e-6)])
    search.try_choice(one, A)
    search.try_choice(one, B)
    assert search.worker.forgotten == []


def test_a_loser_from_the_journal_was_never_built(searching):
    one = space((A, 1e-6), (B, 2e-6))
    searching([one], [(A, 5e-6)]).try_choice(one, A)
    search = searching([one], [(B, 4e-6)])
    search.try_choice(one, A)
    search.try_choice(one, B)
    assert search.worker.forgotten == []


# --- one kernel for everything ----------------------------------------------------------------------------------------


def test_every_space_first_gets_the_best_prediction_heaviest_space_first(searching):
    light, heavy = space((A, 1e-6), (B, 2e-6), layouts=("light",)), space((C, 9e-6), (D, 8e-6), layouts=("heavy",))
    search = searching([light, heavy], [(one, 1e-5) for one in (A, B, C, D)])
    search.ensure_first([light.key, heavy.key], NO_LIMIT)
    assert search.worker.choices == [D, A]
    assert search.progress.stages == [("constructed schedules", 2)]


def test_when_the_best_prediction_fails_the_next_is_tried(searching):
    one = space((A, 1e-6), (B, 2e-6), (C, 3e-6))
    search = searching([one], [(C, 1e-5)])
    search.ensure_first([one.key], NO_LIMIT)
    assert search.worker.choices == [A, B, C]
    assert search.best(one.key).choice == C


def test_when_all_fail_the_generic_template_is_the_last_resort(searching):
    one = space(*((choice(rw=rw), rw * 1e-6) for rw in range(1, 10)))
    last = generic(one)[0]
    search = searching([one], [(last, 1e-3)])
    search.ensure_first([one.key], NO_LIMIT)
    assert search.worker.choices == [*(choice(rw=rw) for rw in range(1, ATTEMPTS_BEFORE_GENERIC + 1)), last]
    assert search.best(one.key).choice == last


def test_a_space_where_even_that_fails_is_left_without_a_best(searching):
    one = space((A, 1e-6))
    search = searching([one], [])
    search.ensure_first([one.key], NO_LIMIT)
    assert search.best(one.key) is None
    assert search.failed == search.measured == 1 + len(generic(one))


def test_a_space_that_has_a_best_is_left_alone(searching):
    one = space((A, 1e-6), (B, 2e-6))
    search = searching([one], [(A, 1e-5), (B, 1e-5)])
    search.try_choice(one, B)
    search.ensure_first([one.key], NO_LIMIT)
    assert search.worker.choices == [B]


def test_a_given_choice_comes_before_the_constructed_one(searching):
    one = space((A, 1e-6), (B, 2e-6))
    search = searching([one], [(D, 1e-5)], given={one.key: D})
    search.ensure_first([one.key], NO_LIMIT)
    assert search.worker.choices == [D]


def test_a_given_choice_that_fails_makes_way_for_the_constructed_one(searching):
    one = space((A, 1e-6), (B, 2e-6))
    search = searching([one], [(A, 1e-5)], given={one.key: D})
    search.ensure_first([one.key], NO_LIMIT)
    assert search.worker.choices == [D, A]


def test_with_no_budget_a_given_choice_is_the_only_one(searching):
    one = space((A, 1e-6), (B, 2e-6))
    search = searching([one], [(A, 1e-5)], given={one.key: D})
    search.ensure_first([one.key], Budget(trials=0))
    assert search.worker.choices == [D]
    assert search.best(one.key) is None


# --- spending the budget ----------------------------------------------------------------------------------------------


def test_the_budget_counts_measurements(searching):
    one = space(*((choice(rw=rw), rw * 1e-6) for rw in range(1, 10)))
    search = searching([one], [(choice(rw=rw), 1 / rw) for rw in range(1, 10)])
    search.run(frozenset({one.key}), Budget(trials=4), None)
    assert search.stopped == "budget"
    assert search.measured == 4
    assert search.progress.stages == [("searching", 4)]
    assert len(search.progress.steps) == 4


def test_the_first_schedule_of_a_kernel_costs_no_budget(searching):
    one = space(*((choice(rw=rw), rw * 1e-6) for rw in range(1, 10)))
    search = searching([one], [(choice(rw=rw), 1 / rw) for rw in range(1, 10)])
    search.ensure_first([one.key], Budget(trials=2))
    search.run(frozenset({one.key}), Budget(trials=2), None)
    assert search.measured == 3


def test_a_search_that_was_cut_short_goes_on_where_it_stopped(searching):
    one = space(*((choice(rw=rw), rw * 1e-6) for rw in range(1, 10)))
    times = [(choice(rw=rw), 1 / rw) for rw in range(1, 10)]
    first = searching([one], times)
    first.ensure_first([one.key], Budget(trials=4))
    first.run(frozenset({one.key}), Budget(trials=4), None)
    search = searching([one], times)
    search.recall()
    search.ensure_first([one.key], Budget(trials=7))
    search.run(frozenset({one.key}), Budget(trials=7), None, counts_recalled=True)
    assert (search.from_journal, search.measured) == (5, 3)
    assert [found.choice.tile["rw"] for found in search.tried[one.key]] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_an_incredible_gain_is_raced_again_and_the_slower_reading_counts(searching):
    one = space((A, 3e-6), (B, 4e-6), (C, 5e-6))
    search = searching([one], [(A, 2e-6), (B, 0.5e-6), (C, 0.45e-6)])
    for each in (A, B, C):
        search.try_choice(one, each)
    assert search.worker.choices == [A, B, B, C]  # four times as fast is looked at twice, a tenth faster is not
    assert search.measured == 3


def test_no_time_means_no_trial(searching):
    one = space((A, 1e-6))
    search = searching([one], [(A, 1e-6)])
    search.run(frozenset({one.key}), NO_LIMIT, 0.0)
    assert search.stopped == "budget"
    assert search.worker.asked == []


def test_it_ends_when_nothing_is_left(searching):
    one, other = space((A, 1e-6), (B, 2e-6), layouts=("one",)), space((C, 1e-6), layouts=("other",))
    search = searching([one, other], [(A, 1e-5), (B, 1e-5), (C, 1e-5)])
    search.run(frozenset({one.key, other.key}), NO_LIMIT, None)
    assert search.stopped == "exhausted"
    assert sorted(found.tile["rw"] for found in search.worker.choices) == [1, 2, 3]


def test_it_ends_a_space_after_trials_without_improvement(searching):
    one = space(*((choice(rw=rw), rw * 1e-6) for rw in range(1, 30)))
    search = searching([one], [(choice(rw=rw), 1e-5) for rw in range(1, 30)], patience=5)
    search.run(frozenset({one.key}), NO_LIMIT, None)
    assert search.stopped == "exhausted"
    assert search.measured == 6


def test_a_space_that_only_fails_is_given_up(searching):
    one = space(*((choice(rw=rw), rw * 1e-6) for rw in range(1, 30)))
    search = searching([one], [], patience=1000)
    search.run(frozenset({one.key}), NO_LIMIT, None)
    assert search.stopped == "exhausted"
    assert search.measured == search.failed == FAILURES_BEFORE_GIVING_UP


def test_failures_do_not_end_the_search_of_other_spaces(searching):
    bad, good = space((A, 1e-6), (B, 2e-6), layouts=("bad",)), space((C, 1e-6), (D, 2e-6), layouts=("good",))
    search = searching([bad, good], [(C, 1e-5), (D, 1e-6)])
    search.run(frozenset({bad.key, good.key}), NO_LIMIT, None)
    assert search.stopped == "exhausted"
    assert search.best(good.key).choice == D
    assert len(search.tried[bad.key]) == 2


def test_only_the_given_spaces_are_searched(searching):
    one, other = space((A, 1e-6), layouts=("one",)), space((C, 1e-6), layouts=("other",))
    search = searching([one, other], [(A, 1e-5), (C, 1e-5)])
    search.run(frozenset({one.key}), NO_LIMIT, None)
    assert search.worker.choices == [A]


def test_with_no_trials_nothing_is_measured(searching):
    one = space((A, 1e-6))
    search = searching([one], [(A, 1e-5)])
    search.run(frozenset({one.key}), Budget(trials=0), None)
    assert search.stopped == "budget"
    assert search.worker.asked == []


def test_the_best_so_far_is_the_sum_over_kernels_and_calls(searching):
    one, other = space((A, 1e-6), layouts=("one",), weight=3), space((C, 1e-6), layouts=("other",))
    search = searching([one, other], [(A, 2e-3), (C, 1e-3)])
    search.run(frozenset({one.key, other.key}), NO_LIMIT, None)
    assert search.progress.steps[-1][1] == "kernels 7.00 ms"


# --- passing tiles on -------------------------------------------------------------------------------------------------

PLAIN = conv((1, 8, 6, 6), 16, (1, 1))
RELUED = conv((1, 8, 6, 6), 16, (1, 1), tail=[RELU])
ADDED = conv((1, 8, 6, 6), 16, (1, 1), tail=RESIDUAL, inputs={"r": (1, 16, 6, 6)})
OTHER = conv((1, 8, 6, 6), 16, (3, 3))
NHWC2, NHWC3 = ("nhwc",) * 2, ("nhwc",) * 3


def conv_choice(rw, layouts=NHWC2, template="conv2d", **others):
    tile = {"v": 8, "vb": 8, "rw": rw, "rh": 1, "th": 1, "tc": 2, "stage": 1, "ku": 1, **others}
    return choice(template=template, layouts=layouts, **tile)


def test_one_operator_has_one_key_whatever_follows():
    assert anchor_key(PLAIN.spec) == anchor_key(RELUED.spec) == anchor_key(ADDED.spec)
    assert anchor_key(PLAIN.spec) != anchor_key(OTHER.spec)
    assert anchor_key(PLAIN.spec) != anchor_key(conv((1, 8, 6, 6), 16, (1, 1), bias=False).spec)
    assert anchor_key(PLAIN.spec) != anchor_key(conv((1, 8, 6, 7), 16, (1, 1)).spec)


def test_the_best_tile_of_a_searched_space_is_offered_to_equal_operators(searching):
    known = space((conv_choice(1), 1e-6), (conv_choice(2), 2e-6), of=PLAIN.spec, layouts=NHWC2)
    equal = space((conv_choice(1, NHWC3), 1e-6), of=ADDED.spec, layouts=NHWC3)
    foreign = space((conv_choice(1), 1e-6), of=OTHER.spec, layouts=NHWC2)
    moved = conv_choice(2, NHWC3)
    search = searching([known, equal, foreign], [(conv_choice(1), 5e-6), (conv_choice(2), 4e-6), (moved, 4e-6)])
    search.run(frozenset({known.key}), NO_LIMIT, None)
    search.transfer([equal.key, foreign.key])
    assert search.worker.choices[2:] == [moved]
    assert search.best(equal.key).choice == moved
    assert foreign.key not in search.tried


def test_of_several_searched_spaces_the_fastest_passes_its_tile_on(searching):
    slow = space((conv_choice(1), 1e-6), (conv_choice(2), 2e-6), of=PLAIN.spec, layouts=NHWC2)
    fast = space((conv_choice(3), 1e-6), (conv_choice(4), 2e-6), of=RELUED.spec, layouts=NHWC2)
    wanting = space((conv_choice(1, NHWC3), 1e-6), of=ADDED.spec, layouts=NHWC3)
    times = [(conv_choice(rw), time_s) for rw, time_s in ((1, 9e-6), (2, 8e-6), (3, 2e-6), (4, 3e-6))]
    search = searching([slow, fast, wanting], times)
    search.run(frozenset({slow.key, fast.key}), NO_LIMIT, None)
    search.transfer([wanting.key])
    assert search.worker.choices[-1] == conv_choice(3, NHWC3)


def test_a_tile_that_was_tried_is_not_offered_again(searching):
    known = space((conv_choice(1), 1e-6), (conv_choice(2), 2e-6), of=PLAIN.spec, layouts=NHWC2)
    equal = space((conv_choice(2, NHWC3), 1e-6), of=ADDED.spec, layouts=NHWC3)
    times = [(conv_choice(1), 5e-6), (conv_choice(2), 3e-6), (conv_choice(2, NHWC3), 4e-6)]
    search = searching([known, equal], times)
    search.run(frozenset({known.key}), NO_LIMIT, None)
    search.ensure_first([equal.key], NO_LIMIT)
    assert len(search.tried[equal.key]) == 1
    search.transfer([equal.key])
    assert len(search.tried[equal.key]) == 1


def test_a_space_that_was_tried_once_has_nothing_to_pass_on(searching):
    known = space((conv_choice(1), 1e-6), (conv_choice(2), 2e-6), of=PLAIN.spec, layouts=NHWC2)
    equal = space((conv_choice(2, NHWC3), 1e-6), of=ADDED.spec, layouts=NHWC3)
    search = searching([known, equal], [(conv_choice(1), 5e-6)])
    search.ensure_first([known.key], NO_LIMIT)
    search.transfer([equal.key])
    assert equal.key not in search.tried


def test_a_generic_kernel_passes_nothing_on(searching):
    plain = [conv_choice(rw, template="generic") for rw in (1, 2)]
    known = space((plain[0], 1e-6), (plain[1], 2e-6), of=PLAIN.spec, layouts=NHWC2)
    equal = space((conv_choice(2, NHWC3), 1e-6), of=ADDED.spec, layouts=NHWC3)
    search = searching([known, equal], [(plain[0], 5e-6), (plain[1], 6e-6)])
    search.run(frozenset({known.key}), NO_LIMIT, None)
    search.transfer([equal.key])
    assert equal.key not in search.tried


def test_a_tile_that_is_illegal_there_is_not_offered(searching):
    illegal = conv_choice(2, tc=3)  # 3 does not divide two blocks
    known = space((conv_choice(1), 1e-6), (illegal, 2e-6), of=PLAIN.spec, layouts=NHWC2)
    equal = space((conv_choice(1, NHWC3), 1e-6), of=ADDED.spec, layouts=NHWC3)
    search = searching([known, equal], [(conv_choice(1), 5e-6), (illegal, 3e-6)])
    search.run(frozenset({known.key}), NO_LIMIT, None)
    search.transfer([equal.key])
    assert equal.key not in search.tried


@pytest.mark.parametrize(
    ("template", "tile", "wanted"),
    [
        ("generic", {"v": 8, "grain": 2}, True),
        ("generic", {"v": 7, "grain": 2}, False),  # no power of two
        ("rowwise", {"v": 8, "grain": 1}, False),  # nothing here has rows
        ("conv2d", {"v": 8}, False),
    ],
)
def test_a_choice_of_another_group_has_to_fit_this_one(template, tile, wanted):
    one = case([("Mul", "x k", "y", {})], {"x": (4, 32)}, [("k", (32,))])
    assert is_legal(one.spec, Choice(template=template, layouts=("row", "row"), tile=tile)) is wanted
