"""What a user asks for: the request values that the command line builds and the flows read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mapper.records import Objective

STRATEGIES = ("constructed", "metaschedule", "exhaustive", "random")  # the default first


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much a search may spend: `trials` measured candidates or `seconds` of wall clock; None for no such limit.

    Both None means the default budget, which grows with the model. `trials` 0 measures the given schedules only.
    """

    trials: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploreRequest:
    """One `mapper explore`, defaults resolved except where None says that the flow decides."""

    model: str  # a path, or zoo:NAME
    out_dir: Path | None = None  # None: ./mapping/<model>/
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inputs_npz: Path | None = None
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    threads: int | None = None  # None: as many as affinity, cgroup quota and physical cores allow
    target: str | None = None  # None: this machine
    schedules: Path | None = None
    strategy: str = "constructed"
    objective: Objective = "latency"
    resume: bool = False  # the budget counts what an interrupted search has measured
    fresh: bool = False  # nothing that earlier runs measured is used
    only: tuple[str, ...] = ()
    cache_dir: Path = Path()
    command: str = ""


class Progress(Protocol):
    """What a flow tells about its work. Implementations print to stderr, or nowhere."""

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin a stage of `total` steps, None when unknown."""

    def step(self, note: str = "", best: str = "") -> None:
        """Count one finished step; `best` is the best figure so far, as text."""

    def say(self, message: str) -> None:
        """Show one line that stays on the screen."""

    def quiet(self) -> None:
        """Stop redrawing: timing runs follow and the machine is to be left alone."""

    def done(self) -> None:
        """End the display."""
