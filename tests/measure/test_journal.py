import dataclasses

import pytest

from mapper.keys import choice_key
from mapper.measure.journal import Journal
from mapper.records import Candidate, Choice, Failure, Prediction


def candidate(rows=6, time_s=1e-3):
    choice = Choice(template="conv2d", layouts=("nhwc", "nhwc"), tile={"rows": rows, "order": "hw"})
    return Candidate(
        group="Conv_0",
        choice=choice,
        choice_key=choice_key(choice),
        predicted_s=2e-3,
        time_s=time_s,
        samples_s=(1e-3, 1.1e-3),
    )


def open_journal(path, machine="m1", compiler="tvm 0.27 llvm 17"):
    return Journal.open(path, machine, compiler)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "journal.jsonl"


def test_outcomes_are_found_again_and_marked(path):
    one, two = candidate(6), candidate(8)
    with open_journal(path) as journal:
        journal.append(one, "g1")
        journal.append(two, "g1")
        journal.append(one, "g2")
    journal = open_journal(path)
    assert len(journal) == 3
    assert journal.find("g1", one.choice_key) == dataclasses.replace(one, source="journal")
    assert [found.choice_key for found in journal.of_group("g1")] == [one.choice_key, two.choice_key]
    assert journal.find("g3", one.choice_key) is None
    journal.close()


def test_an_outcome_is_on_disk_before_append_returns(path):
    journal = open_journal(path)
    journal.append(candidate(), "g1")
    with open_journal(path) as other:
        assert len(other) == 1
    journal.close()


def test_predictions_are_found_with_their_times(path):
    prediction = Prediction(
        time_s=2e-3, compute_s=1e-3, memory_s=9e-4, overhead_s=1e-4, executed_flops=1e6, bytes_by_level={"L1": 3.0}
    )
    with open_journal(path) as journal:
        journal.append(candidate(6), "g1", prediction)
        journal.append(candidate(8), "g1")
        journal.append(candidate(9, time_s=None), "g1", prediction)
        assert list(journal.predicted()) == [("conv2d", prediction, 1e-3)]
    with open_journal(path) as journal:
        assert list(journal.predicted()) == [("conv2d", prediction, 1e-3)]


def test_failures_are_kept(path):
    failed = dataclasses.replace(
        candidate(), time_s=None, samples_s=(), failure=Failure(subject="Conv_0", step="timeout", reason="over 10 s")
    )
    with open_journal(path) as journal:
        journal.append(failed, "g1")
    with open_journal(path) as journal:
        assert journal.find("g1", failed.choice_key).failure.step == "timeout"


def test_the_latest_outcome_counts(path):
    with open_journal(path) as journal:
        journal.append(candidate(time_s=1.0), "g1")
        journal.append(candidate(time_s=2.0), "g1")
    with open_journal(path) as journal:
        assert journal.find("g1", candidate().choice_key).time_s == 2.0


def test_a_torn_last_line_costs_one_outcome_and_nothing_after_it(path):
    with open_journal(path) as journal:
        journal.append(candidate(6), "g1")
        journal.append(candidate(8), "g1")
    path.write_bytes(path.read_bytes()[:-40])
    with open_journal(path) as journal:
        assert (len(journal), journal.damaged) == (1, 1)
        journal.append(candidate(10), "g1")
    with open_journal(path) as journal:
        assert (len(journal), journal.damaged) == (2, 1)


def test_a_tear_inside_a_character_is_survived(path):
    with open_journal(path, compiler="tvm é") as journal:
        journal.append(candidate(), "g1")
    content = path.read_bytes()
    path.write_bytes(content[: content.index("é".encode()) + 1])
    with open_journal(path, compiler="tvm é") as journal:
        assert (len(journal), journal.damaged) == (0, 1)


def test_other_machines_and_compilers_are_counted_and_kept_but_not_returned(path):
    for machine, compiler in (("m1", "a"), ("m2", "a"), ("m2", "b"), ("m1", "b")):
        with open_journal(path, machine, compiler) as journal:
            journal.append(candidate(), "g1")
    with open_journal(path, "m1", "a") as journal:
        assert (len(journal), journal.ignored_machine, journal.ignored_compiler) == (1, 2, 1)
    assert len(path.read_text().splitlines()) == 4


def test_another_schema_is_not_returned(path):
    with open_journal(path) as journal:
        journal.append(candidate(), "g1")
    path.write_text(path.read_text().replace('"schema_version":"1.0"', '"schema_version":"0.9"'))
    with open_journal(path) as journal:
        assert (len(journal), journal.damaged) == (0, 1)


def test_a_closed_journal_takes_nothing(path):
    journal = open_journal(path)
    journal.close()
    with pytest.raises(ValueError, match="closed"):
        journal.append(candidate(), "g1")
