"""A peak that another process disturbed is noticed by what it is beside."""

from mapper.flows.machine import disturbed
from mapper.measure.peaks import Probe
from mapper.records import Peak, Reading


def _peaks(one, two):
    return {
        Probe(kind="flops", name="float32", threads=threads): Peak(
            kind="flops",
            name="float32",
            threads=threads,
            reading=Reading(value=value, unit="FLOP/s", method="probe", grade="measured"),
        )
        for threads, value in ((1, one), (2, two))
    }


def test_two_threads_that_are_far_more_than_twice_one_mean_that_one_was_disturbed():
    (found,) = disturbed(_peaks(179e9, 429e9))
    assert found.threads == 1


def test_two_threads_that_are_twice_one_disturb_nobody():
    assert disturbed(_peaks(210e9, 429e9)) == []


def test_a_slow_pair_says_nothing_about_one():
    assert disturbed(_peaks(210e9, 300e9)) == []
