"""Fusion as a searched dimension: the partition whose kernels take the least time, by what was measured or is expected.

Every legal group is priced: with its best time where it was measured, else with what the cost model, fitted to this
machine, expects. The cheapest partition is chosen, its kernels that were never measured are, and it is chosen again,
until nothing new is wanted. An expectation that is too rosy therefore costs one measurement and no more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mapper.config import Budget
from mapper.flows.planning import Draft, Policy, define_groups, draft_of, make_spaces, space_of
from mapper.flows.run import Run
from mapper.flows.searching import Search
from mapper.plan.candidates import candidate_groups
from mapper.plan.fusion import unfused
from mapper.plan.layout import group_layouts, tensor_layouts
from mapper.plan.partition import Partitioner
from mapper.records import FusionPlan, Group
from mapper.search.space import Space, space_key

LABEL = "searched"
MOST_CHOICES = 3
POLICY: Policy = "nhwc"
# A group around one of these has to have a template of its own: run as it lies it would take hundreds of times longer.
_HEAVY = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(slots=True, kw_only=True)
class Fusing:
    """The search for a partition. Spaces of the groups that it wants measured are added to the search's."""

    run: Run
    search: Search
    partitioner: Partitioner
    _priced: dict[str, Space] = field(default_factory=dict)  # spaces of groups that were only priced
    _layouts: Mapping[str, str] = field(default_factory=dict)

    def measure_wanted(self, budget: Budget) -> None:
        """Choose the cheapest partition and measure what it needs, again until it needs nothing new."""
        for _ in range(MOST_CHOICES):
            wanted = draft_of(self.run.prepared, self._cheapest(is_measured_only=False), POLICY, is_searched=True)
            new = [key for key in wanted.space_keys if self.search.best(key) is None]
            if not new:
                return
            specs = define_groups(self.run.prepared, [wanted], self.run.worker)
            for key, space in make_spaces([wanted], specs, self.run.model).items():
                self.search.spaces.setdefault(key, space)
            self.search.refit()
            self.search.ensure_first(sorted(set(new)), budget)

    def draft(self) -> Draft:
        """Return the mapping of the cheapest partition of measured kernels."""
        return draft_of(self.run.prepared, self._cheapest(is_measured_only=True), POLICY, is_searched=True)

    def _cheapest(self, *, is_measured_only: bool) -> FusionPlan:
        start_s = self.run.model.launch_overhead_s(is_parallel=True)

        def price(group: Group) -> float | None:
            measured = self.search.best(self._key(group))
            if measured is not None and measured.time_s is not None:
                return measured.time_s + start_s
            expected_s = None if is_measured_only else self._expected_s(group)
            return None if expected_s is None else expected_s + start_s

        return self.partitioner.best(price, LABEL)

    def _expected_s(self, group: Group) -> float | None:
        key = self._key(group)
        if key not in self._priced:
            self._priced[key] = self.search.fitted(space_of(self.run.prepared, group, self._of(group), self.run.model))
        best, _ = self._priced[key].ranked[0]
        operators = self.run.prepared.graph.operators
        is_heavy = any(operators[index].op_type in _HEAVY for index in group.operators)
        return None if is_heavy and best.template == "generic" else self._priced[key].best_predicted_s

    def _key(self, group: Group) -> str:
        return space_key(group.key, self._of(group))

    def _of(self, group: Group) -> tuple[str, ...]:
        return group_layouts(self.run.prepared.graph, group, self._layouts)


def make_fusing(run: Run, search: Search, plans: Sequence[FusionPlan]) -> Fusing:
    """Return the search for a partition, over every candidate group and those of the plans that were made already."""
    graph, boundaries = run.prepared.graph, frozenset(run.prepared.taps)
    candidates = candidate_groups(graph, boundaries, plans)
    return Fusing(
        run=run,
        search=search,
        partitioner=Partitioner(graph=graph, candidates=candidates, boundaries=boundaries),
        _layouts=tensor_layouts(graph, unfused(graph), POLICY),
    )
