import pytest

from mapper.measure.stalls.model import stall_share_model


@pytest.mark.parametrize(
    ("compute_s", "memory", "want"),
    [
        (3.0, {"L1": 1.0, "L2": 2.0, "DRAM": 1.0}, 0.0),  # bound by arithmetic: all traffic is hidden
        (1.0, {"L1": 0.5, "L2": 2.0, "DRAM": 4.0}, 0.75),  # the slowest level decides, not the sum
        (1.0, {"L1": 2.0, "DRAM": 4.0}, 0.5),  # L1 traffic remains when all operands are folded
        (0.0, {"DRAM": 1.0}, 1.0),
        (1.0, {}, 0.0),
    ],
)
def test_share_by_hand(compute_s, memory, want):
    reading = stall_share_model(compute_s, memory, threads=2)
    assert reading.value == pytest.approx(want)
    assert (reading.method, reading.grade, reading.unit, reading.threads) == ("model", "modelled", "1", 2)


def test_nothing_predicted_is_none_with_a_reason():
    reading = stall_share_model(0.0, {"DRAM": 0.0})
    assert (reading.value, reading.grade) == (None, None)
    assert reading.reason == "the model predicts neither work nor traffic"


@pytest.mark.parametrize(("compute_s", "memory_s"), [(-1.0, 1.0), (1.0, -1.0)])
def test_negative_times_are_refused(compute_s, memory_s):
    with pytest.raises(ValueError, match="0 or more"):
        stall_share_model(compute_s, {"L2": memory_s})
