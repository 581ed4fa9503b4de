"""Times kernels side by side: a challenger and its partner take turns, call by call, so that both see the same machine.

On a machine whose speed changes from second to second only neighbours in time compare. The partner is the best kernel
so far; for the first kernel of a group it is a *yardstick*: register-resident multiply-adds that every thread helps
with.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm

from mapper.backends.tvm.build import Kernel, arguments
from mapper.backends.tvm.pipeline import PIPELINE
from mapper.backends.tvm.probes import fma_module

YARDSTICK_TASKS = 16
YARDSTICK_STEPS = 4000
TURN_S = 3e-4  # a turn lasts at least this long, so that the clock and the start of the threads do not matter
RACE_S = 0.06  # how long both together run
ROUNDS = (5, 15)
HOPELESS = 1.6  # after HOPELESS_ROUNDS a challenger that always took this multiple of its partner's time is let go
HOPELESS_ROUNDS = 3
MOST_COPIES = 8
LEAST_COPIED_B = 64 * 1024


@dataclass(slots=True)
class Runner:
    """Something that can be timed: an entry of a module with the argument sets that its calls rotate through."""

    evaluate: Any  # (number) → seconds a call
    arguments: list[list[Any]]
    number: int = 1
    turn: int = 0

    def once(self) -> float:
        """Return seconds a call of the next turn."""
        chosen = self.arguments[self.turn % len(self.arguments)]
        self.turn += 1
        return float(self.evaluate(self.number)(*chosen).results[0])

    def warm(self) -> float:
        """Call each argument set once, set the calls of a turn, and return seconds a call."""
        once_s = min([self.once() for _ in self.arguments] + [self.once()])
        self.number = max(1, int(TURN_S / max(once_s, 1e-8)))
        return once_s


@dataclass(slots=True)
class Track:
    """Where kernels race: the yardstick, and the runners of the latest kernels."""

    target: Any
    runners: dict[str, Runner] = field(default_factory=dict)
    _yardstick: tuple[float, Runner] | None = None

    def race(self, kernel: Kernel, partner: Kernel | None, seed: int, cold_b: int) -> tuple[list[float], list[float]]:
        """Return seconds a call of the kernel and of its partner (None: the yardstick), one of each a round.

        Args:
            kernel: The challenger.
            partner: What it runs beside.
            seed: Of the arguments.
            cold_b: In a model, this many bytes pass through the caches between two calls of one kernel: calls rotate
                through copies of the weights until as many have passed here.
        """
        runners = [self._runner(kernel, seed, cold_b)]
        runners.append(self._runner(partner, seed, cold_b) if partner is not None else self.yardstick()[1])
        least = sum(runner.warm() * runner.number for runner in runners)
        rounds = int(np.clip(RACE_S / least, *ROUNDS))
        samples: tuple[list[float], list[float]] = ([], [])
        for number in range(rounds):
            for index in (0, 1) if number % 2 else (1, 0):
                samples[index].append(runners[index].once())
            if partner is not None and number + 1 == HOPELESS_ROUNDS and _is_hopeless(*samples):
                break
        return samples

    def yardstick(self) -> tuple[float, Runner]:
        """Return (FLOPs of a call, the yardstick's runner)."""
        if self._yardstick is None:
            work, module, tensors = fma_module(self.target, YARDSTICK_TASKS, YARDSTICK_STEPS)
            executable = tvm.compile(module, target=self.target, tir_pipeline=PIPELINE)
            self._yardstick = (work, Runner(_evaluator(executable.mod, "probe"), [tensors]))
        return self._yardstick

    def forget(self, symbol: str) -> None:
        """Drop a kernel's arguments."""
        self.runners.pop(symbol, None)

    def _runner(self, kernel: Kernel, seed: int, cold_b: int) -> Runner:
        if kernel.symbol not in self.runners:
            while len(self.runners) > 1:  # of a large model's kernels, arguments would fill gigabytes
                self.runners.pop(next(iter(self.runners)))
            sets = _argument_sets(kernel, seed, cold_b)
            self.runners[kernel.symbol] = Runner(_evaluator(kernel.module, kernel.symbol), sets)
        return self.runners[kernel.symbol]


def _evaluator(module: Any, symbol: str) -> Any:
    return lambda number: module.time_evaluator(symbol, tvm.cpu(), number=number, repeat=1)


def _is_hopeless(ours: list[float], theirs: list[float]) -> bool:
    return all(mine > HOPELESS * other for mine, other in zip(ours, theirs, strict=True))


def _argument_sets(kernel: Kernel, seed: int, cold_b: int) -> list[list[Any]]:
    """Return argument lists that share everything but their copies of the weights."""
    first = arguments(kernel, seed)
    weights = range(len(kernel.spec.inputs), len(kernel.spec.inputs) + len(kernel.spec.weights))
    weights_b = sum(first[index].numpy().nbytes for index in weights)
    if weights_b < LEAST_COPIED_B:
        return [first]
    copies = min(MOST_COPIES, max(1, -(-cold_b // weights_b)))
    sets = [first]
    for _ in range(copies - 1):
        sets.append([tvm.runtime.tensor(t.numpy()) if index in weights else t for index, t in enumerate(first)])
    return sets
