"""The arithmetic of tiles, worked by hand."""

import pytest
from small_groups import AVX2, AVX512, NEON, machine, matmul

from mapper.errors import BadInputError
from mapper.records import Choice
from mapper.templates import tiles

SPEC = matmul((4, 8), (8, 16)).spec  # 64 floats out, 32 in, 128 of weights: 896 bytes


def choice(**tile):
    return Choice(template="matmul", layouts=("row", "row"), tile=tile)


@pytest.mark.parametrize(("value", "unit", "count", "up"), [(0, 4, 0, 0), (1, 4, 1, 4), (8, 4, 2, 8), (9, 4, 3, 12)])
def test_rounding_up(value, unit, count, up):
    assert tiles.ceil_div(value, unit) == count
    assert tiles.round_up(value, unit) == up


@pytest.mark.parametrize(
    ("value", "most", "found"), [(12, None, [1, 2, 3, 4, 6, 12]), (12, 5, [1, 2, 3, 4]), (7, 100, [1, 7]), (1, 1, [1])]
)
def test_divisors(value, most, found):
    assert tiles.divisors(value, most) == found


def test_integers_come_in_the_order_of_the_fields():
    assert tiles.integers(SPEC, choice(b=0, a=3), ("a", "b")) == {"a": 3, "b": 0}


def test_an_unknown_field_is_rejected():
    with pytest.raises(BadInputError, match=r"tile of \S+ \(template matmul\): unknown vw; expected exactly v, vb$"):
        tiles.integers(SPEC, choice(v=8, vb=8, vw=1), ("v", "vb"))


def test_a_missing_field_is_rejected():
    with pytest.raises(BadInputError, match=r"missing vb; expected exactly v, vb$"):
        tiles.integers(SPEC, choice(v=8), ("v", "vb"))


@pytest.mark.parametrize("value", [-1, "8", 8.0, True, None])
def test_a_field_that_is_no_whole_number_is_rejected(value):
    with pytest.raises(BadInputError, match=r"v = \S+; expected a whole number, 0 or more$"):
        tiles.integers(SPEC, choice(v=value), ("v",))


def test_a_broken_rule_names_the_group():
    tiles.require(SPEC, True, "never shown")
    with pytest.raises(BadInputError, match=f"^illegal tile for {SPEC.name}: a must divide b$"):
        tiles.require(SPEC, False, "a must divide b")


@pytest.mark.parametrize(
    ("rows", "vectors", "lanes", "on", "share"),
    [
        # 12 products on two ports: 6 cycles; 8 loads on two ports: 4 cycles
        (6, 2, 8, AVX2, 1.0),
        # 15 registers of 16 in use: 14 sums and a vector of weights fit with the broadcast scalar
        (14, 1, 8, AVX2, 14 / 15),  # 14 products: 7 cycles; 15 loads: 7.5 cycles
        # one sum: 1 product takes the 0.5 cycles of a port, waits 4 cycles × 1/8; loads take 1 cycle
        (1, 1, 8, AVX2, 0.5),
        # half vectors do half the work a product
        (6, 2, 4, AVX2, 0.5),
        (6, 2, 8, AVX512, 0.5),
        # 6 × 4 sums, 4 weights and a scalar are 29 registers: fits 32, not 16
        (6, 4, 4, NEON, 1.0),
        (6, 4, 8, AVX2, 0.35),
        (28, 1, 16, AVX512, 28 / 29),
    ],
)
def test_fma_efficiency_by_hand(rows, vectors, lanes, on, share):
    assert tiles.fma_efficiency(rows, vectors, lanes, on) == pytest.approx(0.92 * share)


@pytest.mark.parametrize(
    ("tasks", "threads", "share"), [(8, 4, 1), (5, 4, 5 / 8), (1, 4, 1 / 4), (3, 2, 3 / 4), (9, 1, 1), (0, 4, 1)]
)
def test_tail_efficiency_by_hand(tasks, threads, share):
    assert tiles.tail_efficiency(tasks, threads) == pytest.approx(share)


def test_roof_adds_a_third_of_the_smaller_part_and_the_launches():
    # 200e9 FLOP/s on 2 threads at half efficiency: 1e6 FLOPs take 10 µs; 40 KB at 40 GB/s of L3 take 1 µs
    found = tiles.roof(AVX2, executed_flops=1e6, efficiency=0.5, traffic_b={"L1": 200.0, "L3": 40e3}, launches=2)
    assert found.compute_s == pytest.approx(10e-6)
    assert found.memory_s == pytest.approx(1e-6)
    assert found.overhead_s == pytest.approx(3e-6)
    assert found.time_s == pytest.approx(10e-6 + 1e-6 / 3 + 3e-6)
    assert found.executed_flops == 1e6
    assert found.bytes_by_level == {"L1": 200.0, "L3": 40e3}


def test_roof_of_no_work_is_the_launch():
    assert tiles.roof(AVX2, executed_flops=0, efficiency=0, traffic_b={}, launches=1).time_s == pytest.approx(1.5e-6)


@pytest.mark.parametrize(
    ("size_b", "threads", "level"),
    [
        # half of 32 KiB a thread, half of 512 KiB a thread, half of 16 MiB
        (16 << 10, 1, "L1"),
        ((16 << 10) + 1, 1, "L2"),
        (32 << 10, 2, "L1"),
        (256 << 10, 1, "L2"),
        ((256 << 10) + 1, 1, "L3"),
        (8 << 20, 1, "L3"),
        ((8 << 20) + 1, 1, "DRAM"),
    ],
)
def test_resident_level(size_b, threads, level):
    assert tiles.resident_level(size_b, machine(threads=threads)) == level


def test_boundary_traffic_is_every_argument_once_where_it_lives():
    assert SPEC.bytes_compulsory == (32 + 128 + 64) * 4
    assert tiles.boundary_traffic(SPEC, AVX2) == {"L1": 896.0}
