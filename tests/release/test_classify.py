from dataclasses import replace
from typing import get_args

import pytest

from mapper.records import BottleneckClass, Reading
from mapper.release.advice import next_step
from mapper.release.classify import KernelEvidence, classify, expected_class, fill_loss

GB = 1e9


def stall(value, method="l1_fold", grade="measured"):
    return Reading(value=value, unit="1", method=method, grade=grade)


# A kernel of 1 ms on 2 threads with nothing wrong but half its peak unused; each case spoils one thing.
BASE = KernelEvidence(
    flops=100_000_000,
    time_s=1e-3,
    executed_fraction=0.5,
    flop_fraction=0.5,
    stall_share=stall(0.1),
    bytes_by_level={"L1": 900e6, "L2": 20e6, "L3": 10e6, "DRAM": 5e6},
    bandwidth_b_per_s={"L1": 1000 * GB, "L2": 100 * GB, "L3": 50 * GB, "DRAM": 20 * GB},
    bytes_compulsory=5e6,
    bytes_moved=5e6,
    parallel_tasks=64,
    threads=2,
    parallel_efficiency=0.95,
    launch_overhead_s=1.5e-6,
    code_b=4096,
    l1i_b=32768,
)
WAITING = replace(BASE, stall_share=stall(0.4))

CASES = [
    # stall < 0.2: compute, by executed fraction
    ("peak at the limit", replace(BASE, executed_fraction=0.6), "compute.peak"),
    ("below it", replace(BASE, executed_fraction=0.599), "compute.inefficient"),
    ("executed fraction counts, not the useful one", replace(BASE, flop_fraction=0.9), "compute.inefficient"),
    ("useful fraction when that is all", replace(BASE, executed_fraction=None, flop_fraction=0.7), "compute.peak"),
    # 10·L / (10·L + F − L) with F = 100 M: 0.299 at 4.1 M, 0.303 at 4.2 M
    ("long operations below the limit", replace(BASE, longlat_flops=4_070_000), "compute.inefficient"),
    ("long operations above it", replace(BASE, longlat_flops=4_200_000), "compute.longlat"),
    ("stall just below 0.2", replace(BASE, stall_share=stall(0.199)), "compute.inefficient"),
    # stall ≥ 0.3: memory
    ("stall at 0.3", replace(BASE, stall_share=stall(0.3)), "memory.latency"),
    ("DRAM at 0.6 of its roof", replace(WAITING, bytes_by_level={"DRAM": 12e6, "L2": 1e6}), "memory.dram_bandwidth"),
    ("DRAM just below", replace(WAITING, bytes_by_level={"DRAM": 11.9e6}), "memory.latency"),
    ("L2 is the highest roof", replace(WAITING, bytes_by_level={"DRAM": 13e6, "L2": 80e6}), "memory.cache_bandwidth"),
    ("L3 alone", replace(WAITING, bytes_by_level={"L3": 30e6}), "memory.cache_bandwidth"),
    ("L1 is not beyond the first level", replace(WAITING, bytes_by_level={"L1": 1e9, "L2": 1e6}), "memory.latency"),
    ("amplified goes first", replace(WAITING, bytes_moved=7.5e6, bytes_by_level={"DRAM": 19e6}), "memory.amplified"),
    ("not amplified", replace(WAITING, bytes_moved=7.4e6), "memory.latency"),
    # 0.2 ≤ stall < 0.3: the larger effect
    ("inefficiency 0.25 against stall 0.2", replace(BASE, stall_share=stall(0.2), executed_fraction=0.55),
     "compute.inefficient"),
    ("stall 0.29 against inefficiency 0.21", replace(BASE, stall_share=stall(0.29)), "memory.latency"),
    ("near peak against a stall", replace(BASE, stall_share=stall(0.29), executed_fraction=0.65), "compute.peak"),
    # status and overheads come before all that
    ("drift on both sides", replace(WAITING, is_drifting=True, is_movement=True), "capped"),
    ("movement", replace(WAITING, is_movement=True, flops=0), "overhead.movement"),
    ("no FLOPs is movement", replace(WAITING, flops=0, launch_overhead_s=1e-3), "overhead.movement"),
    ("launch at 0.3", replace(WAITING, time_s=5e-6), "overhead.launch"),
    ("launch below 0.3", replace(WAITING, time_s=5.1e-6, bytes_by_level={"L2": 1.0}), "memory.latency"),
    # 3 tasks on 2 threads: 1 − 3/4; 5 on 4: 1 − 5/8; 4 on 5: 1 − 4/5 = 0.2
    ("too few tasks", replace(WAITING, parallel_tasks=3, parallel_efficiency=0.79), "parallel.underfilled"),
    ("fill loss at 0.2", replace(WAITING, parallel_tasks=4, threads=5, parallel_efficiency=0.5),
     "parallel.underfilled"),
    ("fill loss below", replace(WAITING, parallel_tasks=5, threads=6, parallel_efficiency=0.5), "memory.latency"),
    ("too few, yet it scales", replace(WAITING, parallel_tasks=3, parallel_efficiency=0.8), "memory.latency"),
    ("no parallel loop", replace(WAITING, parallel_tasks=1, parallel_efficiency=0.5), "parallel.underfilled"),
    ("one thread cannot be underfilled", replace(WAITING, threads=1, parallel_tasks=1, parallel_efficiency=0.1),
     "memory.latency"),
    ("sync", replace(BASE, parallel_efficiency=0.69), "parallel.sync"),
    ("scales well enough", replace(BASE, parallel_efficiency=0.7), "compute.inefficient"),
    ("a stall explains bad scaling", replace(BASE, parallel_efficiency=0.5, stall_share=stall(0.2)),
     "compute.inefficient"),
    # evidence missing
    ("code beyond L1I without stall reading",
     replace(BASE, stall_share=Reading(value=None, unit="1", method="none", reason="declined"), code_b=32769),
     "frontend.code"),
    ("code that just fits",
     replace(BASE, stall_share=Reading(value=None, unit="1", method="none", reason="declined"), code_b=32768),
     "undetermined"),
    ("memory without traffic figures", replace(WAITING, bytes_by_level={}), "undetermined"),
    ("compute without a fraction", replace(BASE, executed_fraction=None, flop_fraction=None), "undetermined"),
]  # fmt: skip


@pytest.mark.parametrize(("evidence", "want"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_class_and_expectation_follow_the_same_rules(evidence, want):
    bottleneck = classify(evidence)
    assert bottleneck.observed == want
    assert expected_class(evidence) == want
    assert bottleneck.evidence


def test_the_table_reaches_every_class():
    assert {case[2] for case in CASES} == set(get_args(BottleneckClass))


@pytest.mark.parametrize("evidence", [case[1] for case in CASES], ids=[case[0] for case in CASES])
def test_method_model_never_proves(evidence):
    value = evidence.stall_share.value
    if value is not None:
        evidence = replace(evidence, stall_share=stall(value, "model", "modelled"))
    assert classify(evidence).grade != "proven"


@pytest.mark.parametrize(
    ("evidence", "grade"),
    [
        (replace(BASE, executed_fraction=0.7), "proven"),
        (replace(BASE, parallel_efficiency=0.6), "proven"),
        (WAITING, "consistent"),  # which level it waits for rests on predicted traffic
        (replace(BASE, longlat_flops=50_000_000), "consistent"),  # no build without the operation was timed
        (replace(WAITING, parallel_tasks=3, parallel_efficiency=None), "guess"),
        (replace(WAITING, bytes_by_level={}), "guess"),
    ],
)
def test_grades_with_a_measured_stall_share(evidence, grade):
    assert classify(evidence).grade == grade


def test_evidence_shows_numbers_and_thresholds():
    lines = classify(replace(WAITING, bytes_moved=10e6, bytes_by_level={"DRAM": 16e6}), "compute.peak").evidence
    assert lines == (
        "stall share 0.40 by l1_fold (memory from 0.3)",
        "moves 2.00 × the compulsory bytes (limit 1.5)",
        "DRAM traffic at 0.80 of its measured bandwidth (limit 0.6)",
        "expected compute.peak before measuring",
    )


def test_launch_evidence_in_microseconds():
    (line,) = classify(replace(BASE, time_s=3e-6)).evidence
    assert line == "launch 1.5 µs of 3 µs is a gap share of 0.50 (limit 0.3)"


def test_agreement_with_the_expectation_needs_no_line():
    bottleneck = classify(BASE, "compute.inefficient")
    assert bottleneck.expected == "compute.inefficient"
    assert not any("expected" in line for line in bottleneck.evidence)


def test_secondary_classes():
    assert classify(replace(WAITING, bytes_moved=10e6, bytes_by_level={"DRAM": 16e6})).secondary == (
        "memory.dram_bandwidth",
    )
    assert classify(replace(BASE, code_b=65536)).secondary == ("frontend.code",)
    assert classify(replace(BASE, stall_share=stall(0.25), executed_fraction=0.2)).secondary == ("memory.latency",)
    amplified = replace(BASE, stall_share=stall(0.25), executed_fraction=0.2, bytes_moved=10e6, code_b=65536)
    assert classify(amplified).secondary == ("memory.amplified", "frontend.code")


def test_undetermined_says_what_would_decide():
    none = Reading(value=None, unit="1", method="none", reason="control flow depends on data")
    (line,) = classify(replace(BASE, stall_share=none, flop_fraction=None, executed_fraction=None)).evidence
    assert line == "would decide: a stall share (control flow depends on data) and a FLOP fraction"


@pytest.mark.parametrize(
    ("tasks", "threads", "want"), [(2, 2, 0.0), (3, 2, 0.25), (1, 2, 0.5), (9, 8, 1 - 9 / 16), (64, 8, 0.0)]
)
def test_fill_loss(tasks, threads, want):
    assert fill_loss(tasks, threads) == pytest.approx(want)


@pytest.mark.parametrize("evidence", [case[1] for case in CASES], ids=[case[0] for case in CASES])
def test_every_class_has_one_sentence_of_advice(evidence):
    sentence = next_step(classify(evidence), {"kernel": "conv {3}", "tile": "rows 6", "layout": "nhwc"})
    assert "onv {3}" in sentence
    assert sentence.endswith(".")
    assert sentence[0].isupper()
    assert "\n" not in sentence


def test_advice_reads_without_names():
    assert next_step(classify(replace(BASE, executed_fraction=0.9))).startswith("This kernel runs near the arithmetic")
