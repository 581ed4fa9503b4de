"""The attention template's reading of groups, and the rules of its tiles."""

import pytest
from attention_groups import attention, bare
from small_groups import AVX2, AVX512, NEON, case

from mapper.errors import BadInputError
from mapper.records import Choice
from mapper.templates.attention import TEMPLATE
from mapper.templates.attentionstages import attention_shape

ONE = attention(12, 32, 3, 16)
TILE = {"v": 8, "vb": 16, "vd": 16, "rm": 4, "tm": 3}


def test_a_group_is_read_as_heads_of_queries_keys_and_values():
    shape = attention_shape(attention(6, 33, 2, 16, batch=5, values=24).spec)
    assert (shape.lead, shape.m, shape.k, shape.n, shape.d, shape.heads) == ((5, 2), 6, 16, 33, 24, 10)
    assert shape.swapped


@pytest.mark.parametrize(
    "one",
    [
        bare(2, rows=4, keys=15, width=8),  # too few keys for vectors
        case(
            [("MatMul", "q k", "s", {}), ("Softmax", "s", "p", {"axis": 1}), ("MatMul", "p v", "y", {})],
            {"q": (2, 4, 8), "k": (2, 8, 16), "v": (2, 16, 8)},
        ),
        case(
            [("MatMul", "q k", "s", {}), ("Softmax", "s", "p", {}), ("MatMul", "v p", "y", {})],
            {"q": (2, 4, 8), "k": (2, 8, 16), "v": (2, 16, 4)},
        ),
        case(
            [("MatMul", "q k", "s", {}), ("Softmax", "s", "p", {}), ("MatMul", "p v", "o", {}), ("Relu", "o", "y", {})],
            {"q": (2, 4, 8), "k": (2, 8, 16), "v": (2, 16, 8)},
        ),
        case([("MatMul", "q k", "s", {}), ("Softmax", "s", "y", {})], {"q": (2, 4, 8), "k": (2, 8, 16)}),
    ],
    ids=["few keys", "another axis", "weights on the right", "something after", "one product"],
)
def test_other_groups_are_not_taken(one):
    assert not TEMPLATE.matches(one.spec)


@pytest.mark.parametrize("on", [AVX2, AVX512, NEON], ids=["8 lanes", "16 lanes", "4 lanes"])
@pytest.mark.parametrize(
    "one", [ONE, attention(7, 21, 2, 5), attention(1, 50, 4, 8), bare(4, rows=128, keys=128, width=64)]
)
def test_every_choice_is_legal_priced_and_fits_the_registers(one, on):
    space = TEMPLATE.choices(one.spec, on, one.layouts("nchw"))
    assert len({tuple(choice.tile.items()) for choice in space}) == len(space) > 0
    for choice in space:
        TEMPLATE.check(one.spec, choice)
        assert TEMPLATE.cost(one.spec, choice, on).time_s > 0
        for block in ("vb", "vd"):
            vectors = choice.tile[block] // choice.tile["v"]
            assert choice.tile["rm"] * vectors + vectors < on.vector_registers


def test_executed_work_is_both_products_with_their_filling():
    choice = Choice(template="attention", layouts=(), tile={**TILE, "vb": 24, "vd": 32})
    # 3 heads of 12 rows: 16 steps over 48 keys (32 filled up), 32 steps over 32 columns (16 filled up)
    assert TEMPLATE.cost(ONE.spec, choice, AVX2).executed_flops == 2 * 3 * 12 * (16 * 48 + 32 * 32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        ({"tm": 0}, "every field but stage must be 1 or more"),
        ({"vb": 12}, "v = 8 must divide vb = 12"),
        ({"v": 3, "vb": 6}, "v = 3 must be a power of two"),
        ({"vd": 12}, "v = 8 must divide vd = 12"),
        ({"v": 64, "vb": 64, "vd": 64}, "v = 64 exceeds the 32 keys"),
        ({"rm": 5}, "rm = 5 must divide 12 rows"),
        ({"tm": 2}, "tm = 2 must divide 3 row tiles"),
        ({"stage": 1}, "unknown stage"),
    ],
)
def test_an_illegal_tile_is_rejected_by_its_rule(changes, message):
    choice = Choice(template="attention", layouts=(), tile={**TILE, **changes})
    if not message:
        TEMPLATE.check(ONE.spec, choice)
        return
    with pytest.raises(BadInputError, match=message):
        TEMPLATE.check(ONE.spec, choice)


def test_columns_that_end_inside_the_second_block_are_rejected():
    choice = Choice(template="attention", layouts=(), tile={**TILE, "rm": 1, "tm": 1})
    with pytest.raises(BadInputError, match="vd = 16 must divide the 24 columns of the result, or hold them all"):
        TEMPLATE.check(attention(6, 33, 2, 16, values=24).spec, choice)
