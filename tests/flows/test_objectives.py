"""Objectives: energy is refused without a meter, and ranks by what was metered where there is one."""

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from mapper.errors import BadInputError
from mapper.flows import requested
from mapper.flows.mapping_rows import by_energy, prediction_quality
from mapper.measure.meters.protocol import Unavailable
from mapper.records import Reading


@pytest.fixture(scope="module")
def sample():
    """Give the hand-made sheet of the report tests."""
    spec = importlib.util.spec_from_file_location("flow_sample", Path(__file__).parents[1] / "report" / "sample.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def joules(value):
    return Reading(value=value, unit="J", method="meter", grade="measured" if value else None)


@pytest.fixture
def rows(sample):
    """Return three mappings of 4, 2 and 1 ms: the slower the less energy, the last one's not metered."""
    made = [sample.mapping(1, "a", "nhwc", 3, 1.0), sample.mapping(2, "b", "nhwc", 3, 2.0)]
    made.append(sample.mapping(3, "c", "nhwc", 3, 4.0))
    energies = (9.0, 4.0, 3.0)
    return [dataclasses.replace(row, energy_j=joules(value)) for row, value in zip(made, energies, strict=True)]


def test_the_least_energy_comes_first(rows):
    assert [(row.fusion_plan, row.rank) for row in by_energy(rows, "energy")] == [("c", 1), ("b", 2), ("a", 3)]


def test_energy_times_delay_weighs_both(rows):
    assert [row.fusion_plan for row in by_energy(rows, "edp")] == ["b", "a", "c"]  # 8, 9 and 12 mJ·s


def test_what_was_not_metered_is_not_ranked(rows):
    unmetered = [dataclasses.replace(row, energy_j=joules(None)) for row in rows[:1]] + rows[1:]
    assert [(row.fusion_plan, row.rank) for row in by_energy(unmetered, "energy")] == [("c", 1), ("b", 2), ("a", None)]


def test_energy_without_a_meter_is_refused(monkeypatch):
    monkeypatch.setattr(requested, "pick_meter", lambda: Unavailable(reason="no counters"))
    requested.check_objective("latency")
    with pytest.raises(BadInputError, match="--objective edp: expected an energy meter, found none: no counters"):
        requested.check_objective("edp")


def test_predictions_are_judged_on_what_was_timed(sample):
    one = sample.sheet().candidates[0].best[0]
    pairs = [(1e-3, 2e-3), (3e-3, 3e-3), (None, 1e-3), (1e-3, None)]
    made = [dataclasses.replace(one, predicted_s=predicted, time_s=time_s) for predicted, time_s in pairs]
    error, order = prediction_quality(made, threads=2)
    assert (error.value, error.n) == (pytest.approx(0.25), 2)  # half of the first, none of the second
    assert order.value == pytest.approx(1.0)
    error, order = prediction_quality(made[2:], threads=2)
    assert (error.value, order.value, error.reason) == (None, None, "too few kernels were predicted and timed")
