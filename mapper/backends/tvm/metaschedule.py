"""TVM's MetaSchedule in this process: it proposes traces for one group; whoever asks builds, times and reports them.

Its evolutionary search draws schedules from the design space that its rules for CPUs span, and mutates those that
measured well. Which of the mutants to measure is left to chance: the model that stock MetaSchedule ranks them with
(gradient-boosted trees, another dependency) answers at random too until it has seen 100 outcomes of a group.
"""

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import onnx
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.cost_model import RandomModel
from tvm.s_tir.meta_schedule.database import MemoryDatabase, TuningRecord
from tvm.s_tir.meta_schedule.runner import RunnerResult
from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply
from tvm.s_tir.schedule import Trace

from mapper.backends.tvm.lower import KERNEL, lower
from mapper.records import GroupSpec
from mapper.templates import metaschedule

BATCH = 16  # traces a generation: each costs a second or so of search whatever its size
MOST_TRIALS = 1 << 20  # whoever asks decides when to stop
EMPTY_GENERATIONS = 5  # after which a design space counts as exhausted
SEARCH = {"population_size": 64, "init_measured_ratio": 0.5, "init_min_unmeasured": 16, "genetic_num_iters": 1}
_INTRINSICS = "tvm.s_tir.tensor_intrin"


class Tuner:
    """The evolutionary search of one group under fixed boundary layouts.

    Timeline: `propose` with the outcomes so far, measure what it returns, `propose` again with those as well.
    """

    def __init__(
        self, spec: GroupSpec, model: onnx.ModelProto, layouts: tuple[str, ...], *, target: Any, seed: int
    ) -> None:
        """Span the design space.

        Args:
            spec: The group.
            model: Its ONNX model.
            layouts: Physical layouts of its inputs, then outputs.
            target: TVM target with `num-cores`.
            seed: Of what is drawn.
        """
        self._spec, self._layouts = spec, layouts
        unscheduled = metaschedule.trace_choice(layouts, metaschedule.UNSCHEDULED)
        self._module = lower(spec, model, unscheduled, metaschedule.TEMPLATE).module
        self._target = target
        self._arguments = ArgInfo.from_prim_func(self._module[KERNEL])
        self._database = MemoryDatabase()
        self._workload = self._database.commit_workload(self._module)
        self._context = _context(self._module, target, 1 + seed % (2**31 - 2))
        chance = RandomModel(seed=seed % 2**32)
        self._context.pre_tuning(MOST_TRIALS, BATCH, database=self._database, cost_model=chance)
        self._pending: dict[str, Any] = {}  # proposed by trace, not reported yet, in the order of the generation
        self._known: set[str] = set()  # reported

    def propose(self, outcomes: Mapping[str, float | None]) -> list[str]:
        """Take up measured outcomes and return the next generation's traces.

        Args:
            outcomes: Seconds by trace, None for one that failed; those known from earlier calls are passed over.
                Traces from elsewhere, an earlier process or a journal, count as well.

        Returns:
            JSON texts; empty when the design space has nothing new.
        """
        self._take(outcomes)
        for _ in range(EMPTY_GENERATIONS):
            candidates = self._context.generate_measure_candidates()
            if candidates is None:
                return []
            self._pending = {trace_text(candidate.sch.trace): candidate for candidate in candidates}
            fresh = [text for text in self._pending if text not in self._known]
            if fresh:
                return fresh
            self._take({})
        return []

    def _take(self, outcomes: Mapping[str, float | None]) -> None:
        """Report a whole generation, as the search wants it, and remember what else was measured."""
        new = {text: time_s for text, time_s in outcomes.items() if text not in self._known}
        for text, time_s in new.items():
            if time_s is None or text == metaschedule.UNSCHEDULED:
                continue
            trace = self._pending[text].sch.trace if text in self._pending else self._replayed(text)
            if trace is not None:
                record = TuningRecord(trace, self._workload, [time_s], self._target, self._arguments)
                self._database.commit_tuning_record(record)
        if self._pending:
            candidates = list(self._pending.values())
            results = [_result(new.get(text)) for text in self._pending]
            self._context.notify_runner_results(candidates, results)
        self._known.update(new)
        self._pending = {}

    def _replayed(self, text: str) -> Any:
        """Return the trace that `text` means for this group; None when it means none."""
        sch = Schedule(self._module)
        try:
            metaschedule.TEMPLATE.check(self._spec, metaschedule.trace_choice(self._layouts, text))
            Trace.apply_json_to_schedule(json.loads(text), sch)
            sch.trace.apply_to_schedule(Schedule(self._module), remove_postproc=True)  # as the search will
        except Exception:  # made by another release, or for another group: nothing to learn from
            return None
        return sch.trace


def trace_text(trace: Any) -> str:
    """Return the JSON text of a trace, with its decisions and postprocessing."""
    return json.dumps(trace.as_json(), separators=(",", ":"), default=lambda number: number.value)


def _result(time_s: float | None) -> Any:
    return RunnerResult([time_s], None) if time_s is not None else RunnerResult(None, "not measured")


def _context(module: Any, target: Any, seed: int) -> Any:
    """Return a tuning context with the rules for CPUs without matrix instructions, which groups of floats never use."""
    quiet = logging.getLogger("mapper.metaschedule")
    quiet.setLevel(logging.ERROR)
    rules = {"sch_rules": "llvm", "postprocs": "llvm", "mutator_probs": "llvm"}
    with _without_intrinsics():
        return ms.TuneContext(
            module,
            target=target,
            space_generator=PostOrderApply(**rules),
            search_strategy=EvolutionarySearch(**SEARCH),
            task_name=KERNEL,
            rand_state=seed,
            num_threads=1,  # several would draw in an order of their own
            logger=quiet,
        )


@contextmanager
def _without_intrinsics() -> Iterator[None]:
    """Keep a context from importing the tensor intrinsics of every target, which takes 18 s and is not needed here."""
    is_known = _INTRINSICS in sys.modules
    if not is_known:
        sys.modules[_INTRINSICS] = ModuleType(_INTRINSICS)
    try:
        yield
    finally:
        if not is_known:
            del sys.modules[_INTRINSICS]
