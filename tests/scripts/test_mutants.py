"""What scripts/mutants.py says of its studies, and when it fails."""

import pytest

from mapper.errors import BadInputError
from mapper.flows.corrupting import Mutant
from mapper.flows.mutating import MutantStudy


@pytest.fixture
def mutants(script):
    return script("mutants")


def study(*outcomes, name="tiny"):
    made = [
        Mutant(kernel=f"k{index % 2}", kind="tap", note="tap 0 skipped", outcome=outcome, by_kernel_check=True)
        for index, outcome in enumerate(outcomes)
    ]
    return MutantStudy(model=name, mapping="epilogue-chains/nhwc", kernels=5, mutants=tuple(made))


def test_the_table_counts_outcomes(mutants):
    lines = mutants.markdown([study("model", "model", "alone", "no-op", "not made", "missed")])
    assert lines[2] == "| tiny | epilogue-chains/nhwc | 4 | 2 | 1 | 1 | 1 | 1 |"


def test_the_report_names_what_was_missed_and_what_only_one_part_saw(mutants):
    lines = mutants.report([study("model", "missed", "alone")], 3)
    assert "**tiny**: 2 of 5 kernels, tap 3" in lines
    assert "- MISSED: tap of k1: tap 0 skipped" in lines
    assert "- caught alone only: tap of k0: tap 0 skipped" in lines


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [(("model", "alone"), 0), (("model", "alone", "no-op"), 0), (("model", "missed"), 1), (("model", "no-op"), 1)],
)
def test_exit_code_is_1_when_one_is_missed_or_too_few_are_made(mutants, monkeypatch, capsys, outcomes, code):
    monkeypatch.setattr(mutants, "_study", lambda *_: study(*outcomes))
    assert mutants.main(["tiny", "--count", "2", "--quiet"]) == code
    assert "| tiny |" in capsys.readouterr().out


def test_a_model_that_cannot_be_read_costs_its_row_and_the_exit_code(mutants, monkeypatch, capsys):
    def one(name, *_):
        if name == "bad":
            raise BadInputError("no such model")
        return study("model")

    monkeypatch.setattr(mutants, "_study", one)
    assert mutants.main(["bad", "tiny", "--count", "1", "--quiet", "--markdown"]) == 2
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert "mutants.py: bad: no such model" in err
