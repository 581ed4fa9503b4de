"""What is remembered between runs on this machine: outcomes of candidates, and which searches were finished.

Both lie in the cache and count for one machine and one way of building (compiler, threads, mapper's own templates).
Outcomes are looked up by group and choice, so that another model with equal groups finds them too. A finished search is
known by what it was asked: the same request again takes a fresh final round only.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from mapper.flows.run import Run
from mapper.keys import digest
from mapper.measure.journal import Journal
from mapper.plan.fusion import unfused
from mapper.records import ScheduleFile
from mapper.report.jsonfile import write_atomic


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSearches:
    """The searches that ran to their end, one small file each."""

    folder: Path
    name: str

    @classmethod
    def of(cls, run: Run, schedule: ScheduleFile | None) -> "FinishedSearches":
        """Return where the search that `run` asks for would be noted."""
        request, budget = run.request, run.request.budget
        asked = {
            "machine": run.machine.id,
            "build": run.build_tag,
            "groups": [group.key for group in unfused(run.prepared.graph).groups],
            "wiring": [[*operator.inputs, *operator.outputs] for operator in run.prepared.graph.operators],
            "strategy": request.strategy,
            "budget": [budget.trials, budget.seconds],
            "only": list(request.only),
            "schedule": sorted(schedule.choices) if schedule is not None else [],
        }
        return cls(folder=run.request.cache_dir / "searches", name=digest(asked))

    @property
    def has_this(self) -> bool:
        """Say whether this search was finished before."""
        return self._path.exists()

    def note(self, run: Run, trials: int) -> None:
        """Write down that the search came to its end."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self._path, json.dumps({"model": run.prepared.model.source.name, "trials": trials}).encode())

    @property
    def _path(self) -> Path:
        return self.folder / f"{self.name}.json"


def open_journal(run: Run) -> Journal:
    """Open this machine's journal of outcomes."""
    path = run.request.cache_dir / "journal" / f"{run.machine.id}-{digest(run.build_tag)}.jsonl"
    return Journal.open(path, run.machine.id, run.build_tag)
