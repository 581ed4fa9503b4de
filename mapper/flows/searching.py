"""The search: candidates measured one by one in the worker, journalled, until the budget ends or nothing is left."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mapper import templates
from mapper.config import Budget, Progress
from mapper.errors import BadInputError
from mapper.keys import digest
from mapper.measure.journal import Journal
from mapper.records import Candidate, Choice, GroupSpec, MachineModel
from mapper.search.allocate import pick
from mapper.search.fit import Fit, fit
from mapper.search.space import Space, best_of
from mapper.search.strategies import Strategy
from mapper.worker.workers import Conditions, TvmWorker

ATTEMPTS_BEFORE_GENERIC = 4
FAILURES_BEFORE_GIVING_UP = 8
INCREDIBLE = 0.75  # of the best time so far: below it, a gain has to be seen twice


@dataclass(slots=True, kw_only=True)
class Search:
    """The state of one search: what was tried, by space, in order."""

    worker: TvmWorker
    journal: Journal
    strategy: Strategy
    machine: MachineModel
    spaces: dict[str, Space]
    progress: Progress
    conditions: Conditions
    tried: dict[str, list[Candidate]] = field(default_factory=dict)
    given: Mapping[str, Choice] = field(default_factory=dict)  # by space key, from a schedule file
    measured: int = 0
    failed: int = 0
    from_journal: int = 0
    stopped: str = "budget"
    _fit: Fit = field(default_factory=lambda: Fit({}))

    def best(self, key: str) -> Candidate | None:
        """Return the fastest candidate of a space."""
        return best_of(self.tried.get(key, ()))

    def recall(self) -> None:
        """Take up the times that the journal holds for these spaces, in the order in which they were measured.

        A failure is not taken up: what failed once may have failed for want of memory or time, and is tried again.
        """
        for key, space in self.spaces.items():
            outcomes = self.journal.of_group(space.spec.key)
            known = [c for c in outcomes if c.choice.layouts == space.layouts and c.failure is None]
            if known:
                self.tried[key] = known
                self.from_journal += len(known)

    def refit(self) -> None:
        """Fit the cost model to this machine's journal, and rank what is left to try by it."""
        self._fit = fit(self.journal.predicted())
        self.spaces.update({key: space.refitted(self._fit) for key, space in self.spaces.items()})

    def fitted(self, space: Space) -> Space:
        """Return a space that is not searched (yet), ranked by the latest fit."""
        return space.refitted(self._fit)

    def ensure_first(self, keys: Sequence[str], budget: Budget) -> None:
        """Give every space one kernel that runs: the given or constructed choice, then others, then the generic one."""
        pending = [key for key in keys if self.best(key) is None]
        self.progress.stage("constructed schedules", len(pending))
        for key in sorted(pending, key=lambda k: -self.spaces[k].weight * self.spaces[k].best_predicted_s):
            self._try_until_one_runs(self.spaces[key], budget)
            self.progress.step(self.spaces[key].spec.name)

    def _try_until_one_runs(self, space: Space, budget: Budget) -> None:
        """Try choices in order; after one that hangs or kills the child only the generic template is left."""
        is_dangerous = False
        for choice in self._first_choices(space, budget):
            if is_dangerous and choice.template != "generic":
                continue
            candidate = self.try_choice(space, choice)
            if candidate.time_s is not None:
                return
            is_dangerous = candidate.failure is not None and candidate.failure.step in ("timeout", "crash")

    def run(
        self, keys: frozenset[str], budget: Budget, seconds: float | None, *, counts_recalled: bool = False
    ) -> None:
        """Spend the budget on the given spaces; `stopped` then says why it ended.

        A budget counts the trials beyond the one schedule that every kernel gets first; those recalled from the
        journal too when an interrupted search goes on.
        """
        deadline = float("inf") if seconds is None else time.monotonic() + seconds
        spaces = [self.spaces[key] for key in sorted(keys)]
        closed: set[str] = set()
        trials = max(0, self.from_journal - len(self.tried)) if counts_recalled else 0
        self.progress.stage("searching", budget.trials)
        while (budget.trials is None or trials < budget.trials) and time.monotonic() < deadline:
            space = pick(spaces, self.tried, frozenset(closed))
            if space is None:
                self.stopped = "exhausted"
                return
            choice = self.strategy.propose(space, tuple(self.tried.get(space.key, ())))
            if choice is None or self._is_hopeless(space):
                closed.add(space.key)
                continue
            self.try_choice(space, choice)
            trials += 1
            self.progress.step(space.spec.name, self._best_text())

    def try_choice(self, space: Space, choice: Choice) -> Candidate:
        """Measure one choice and write the outcome down; a loser's code is dropped."""
        prediction = space.prediction(choice)
        predicted = None if prediction is None else prediction.time_s
        best = self.best(space.key)
        candidate = self.worker.evaluate(space.spec.key, choice, predicted, self.conditions, best)
        if _is_incredible(candidate, best):
            again = self.worker.evaluate(space.spec.key, choice, predicted, self.conditions, best)
            candidate = max(candidate, again, key=lambda one: one.time_s or 0.0)
        self.measured += 1
        self.failed += candidate.failure is not None
        self.journal.append(candidate, space.spec.key, prediction)
        tried = self.tried.setdefault(space.key, [])
        before = best_of(tried)
        tried.append(candidate)
        self._forget_loser(space, before, candidate)
        return candidate

    def transfer(self, keys: Sequence[str]) -> None:
        """Offer spaces that were not searched the best choice of a searched space with the same anchor operator.

        That is one trial each, like the constructed schedules, and outside the budget like them.
        """
        known: dict[str, Candidate] = {}
        for key, space in self.spaces.items():
            best = self.best(key)
            if best is not None and best.choice.template != "generic" and len(self.tried[key]) > 1:
                anchor = anchor_key(space.spec)
                if anchor not in known or (best.time_s or 0.0) < (known[anchor].time_s or 0.0):
                    known[anchor] = best
        pending = [key for key in keys if anchor_key(self.spaces[key].spec) in known]
        self.progress.stage("sharing the best tiles with equal operators", len(pending))
        for key in pending:
            space = self.spaces[key]
            choice = replace(known[anchor_key(space.spec)].choice, layouts=space.layouts)
            is_new = all(candidate.choice != choice for candidate in self.tried.get(key, ()))
            if is_new and is_legal(space.spec, choice):
                self.try_choice(space, choice)
            self.progress.step(space.spec.name)

    def expected_s(self, keys: Sequence[str]) -> float:
        """Return the time of a mapping's kernels: the best measured of each, else what is expected of it."""
        bests = [(self.best(key), self.spaces[key]) for key in keys]
        return sum(best.time_s or 0.0 if best is not None else space.best_predicted_s for best, space in bests)

    def _first_choices(self, space: Space, budget: Budget) -> list[Choice]:
        if space.key in self.given and budget.trials == 0:
            return [self.given[space.key]]
        first = [self.given[space.key]] if space.key in self.given else []
        if self.strategy.name == "metaschedule":  # compared with constructed kernels, so it starts from none of them
            first += [choice for choice in [self.strategy.propose(space, ())] if choice is not None]
        ranked = [choice for choice, _ in space.ranked[:ATTEMPTS_BEFORE_GENERIC]]
        generic = templates.by_name("generic").choices(space.spec, self.machine, space.layouts)
        return [*first, *ranked, *generic]

    def _is_hopeless(self, space: Space) -> bool:
        tried = self.tried.get(space.key, [])
        return len(tried) >= FAILURES_BEFORE_GIVING_UP and all(
            candidate.failure is not None for candidate in tried[-FAILURES_BEFORE_GIVING_UP:]
        )

    def _forget_loser(self, space: Space, before: Candidate | None, candidate: Candidate) -> None:
        if before is None or before.time_s is None or candidate.time_s is None:
            return
        loser = candidate if candidate.time_s >= before.time_s else before
        if loser.source == "measured":
            self.worker.forget(space.spec.key, [loser.choice])

    def _best_text(self) -> str:
        total = sum(space.weight * (best.time_s or 0.0) for space, best in self._bests())
        return f"kernels {total * 1e3:.2f} ms"

    def _bests(self) -> list[tuple[Space, Candidate]]:
        pairs = ((space, self.best(key)) for key, space in self.spaces.items())
        return [(space, best) for space, best in pairs if best is not None]


def _is_incredible(candidate: Candidate, best: Candidate | None) -> bool:
    """Say whether a gain is so large that it may be a disturbance of the kernel it was timed beside."""
    if candidate.time_s is None or best is None or best.time_s is None:
        return False
    return candidate.time_s < INCREDIBLE * best.time_s


def anchor_key(spec: GroupSpec) -> str:
    """Return a key of the anchor operator alone: equal for one convolution under different epilogues."""
    anchor = spec.operators[spec.anchor]
    shapes: list[Any] = [spec.tensors[name].shape if name in spec.tensors else None for name in anchor.inputs]
    return digest([anchor.op_type, dict(anchor.attributes), shapes])


def is_legal(spec: GroupSpec, choice: Choice) -> bool:
    """Say whether a choice that was made for another group may be tried on this one."""
    template = templates.by_name(choice.template)
    if not template.matches(spec):
        return False
    try:
        template.check(spec, choice)
    except BadInputError:
        return False
    return True
