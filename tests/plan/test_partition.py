"""The chosen partition is the cheapest: against every cover there is, and against plans known by hand."""

import itertools

import numpy as np
import pytest
from plan_models import graph_of, node, residual_block

from mapper.errors import BadInputError
from mapper.plan.candidates import candidate_groups
from mapper.plan.graph import operator_graph
from mapper.plan.legality import check_plan
from mapper.plan.partition import Partitioner, best_partition, components, least_cover

NONE = frozenset()
RESIDUAL = operator_graph(residual_block())


def partition(graph, prices, otherwise=1.0):
    """Return the operators of the groups of the best plan; `prices` by operators."""
    by_operators = Partitioner(graph=graph, candidates=candidate_groups(graph, NONE), boundaries=NONE)
    plan = by_operators.best(lambda group: prices.get(group.operators, otherwise), "test")
    assert check_plan(graph, plan) == []
    return [group.operators for group in plan.groups]


def test_equal_prices_mean_fewest_kernels():
    assert len(partition(RESIDUAL, {})) == 3


def test_a_dear_fusion_is_split():
    dear = {members: 9.0 for members in candidate_groups(RESIDUAL, NONE) if len(members) > 1}
    assert partition(RESIDUAL, dear) == [(0,), (1,), (2,), (3,), (4,), (5,)]


@pytest.mark.parametrize("taker", [(2, 4, 5), (3, 4, 5)])
def test_the_convolution_that_takes_the_addition_cheaper_takes_it(taker):
    assert taker in partition(RESIDUAL, {taker: 0.5})


def test_a_group_without_a_kernel_is_never_chosen():
    graph, missing = RESIDUAL, {(0, 1): None, (1, 3): None, (1, 3, 4): None, (1, 3, 4, 5): None}
    assert not set(missing) & set(partition(graph, missing))


def test_an_operator_without_any_kernel_is_named():
    graph = graph_of([node("Relu", "x", "y")], {"x": (4,)}, {"y": (4,)})
    with pytest.raises(BadInputError, match=r"found none for operator 0 \(Relu\)"):
        best_partition(graph, ((0,),), lambda _: None, "test", NONE)


def covers(operators, priced):
    """Yield the cost of every exact cover, found by trying."""
    if not operators:
        yield 0.0
        return
    first = min(operators)
    for members, price in priced:
        if first in members and set(members) <= operators:
            yield from (price + rest for rest in covers(operators - set(members), priced))


@pytest.mark.parametrize("seed", range(30))
def test_no_cover_is_cheaper(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 8))
    everything = [m for size in (1, 2, 3) for m in itertools.combinations(range(count), size)]
    chosen = [m for m in everything if len(m) == 1 or rng.random() < 0.4]
    priced = [(members, float(rng.integers(1, 20))) for members in chosen]
    found = least_cover(priced)
    assert found.is_exact
    assert sorted(index for members in found.groups for index in members) == list(range(count))
    assert found.cost == sum(dict(priced)[members] for members in found.groups)
    assert found.cost == min(covers(frozenset(range(count)), priced))


def test_what_shares_no_operator_is_chosen_apart():
    priced = [((0,), 1.0), ((0, 2), 1.0), ((1,), 1.0), ((2,), 1.0), ((3, 4), 1.0)]
    parts = components(priced)
    assert [sorted({index for members, _ in part for index in members}) for part in parts] == [[0, 2], [1], [3, 4]]


def test_a_long_chain_stays_small():
    count = 400
    nodes = [node("Relu", f"t{index}", f"t{index + 1}") for index in range(count)]
    graph = graph_of(nodes, {"t0": (4,)}, {f"t{count}": (4,)})
    candidates = candidate_groups(graph, NONE)
    assert len(candidates) <= 20 * count
    found = least_cover([(members, 1.0) for members in candidates])
    assert found.is_exact
    assert found.states <= 40 * count


def test_too_many_open_covers_are_said_to_be_cut():
    pairs = [((index, index + 6), 1.0) for index in range(6)]
    priced = [*pairs, *(((index,), 0.4 + 0.01 * index) for index in range(12))]
    assert not least_cover(priced, max_states=2).is_exact
    assert least_cover(priced).is_exact
