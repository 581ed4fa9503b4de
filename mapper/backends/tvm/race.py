"""Times kernels side by side: a challenger and its partner take turns, call by call, so that both see the same machine.

On a machine whose speed changes from second to second only neighbours in time compare. The partner is the best kernel
so far; for the first kernel of a group it is a *yardstick*: register-resident multiply-adds that every thread helps
with.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm

from mapper.backends.tvm.build import Kernel, arguments
from mapper.backends.tvm.pipeline import PIPELINE
from mapper.backends.tvm.probes import fma_module
from mapper.templates.tiles import round_up

YARDSTICK_TASKS = 16
YARDSTICK_STEPS = 4000
TURN_S = 3e-4  # a turn lasts at least this long, so that the clock and the start of the threads do not matter
RACE_S = 0.06  # how long both together run
ROUNDS = (5, 15)
WARM_CALLS = 3
SHORT_S = 20e-6
HOPELESS = 1.6  # after HOPELESS_ROUNDS a challenger that always took this multiple of its partner's time is let go
HOPELESS_ROUNDS = 3
MOST_SETS = 512
LINE_FLOATS = 16  # alignment of every argument: 64 bytes
PIECE_FLOATS = 1 << 20


@dataclass(slots=True)
class Runner:
    """Something that can be timed: a function of a module, and the argument sets that its calls walk through."""

    module: Any
    symbol: str
    arguments: list[list[Any]]
    number: int = 1
    is_short: bool = False
    calls: int = 0

    def warm(self) -> float:
        """Call a few times, settle how a turn is timed, and return the seconds of a turn."""
        self.number, self.is_short = 1, False
        once_s = min(self.turn() for _ in range(WARM_CALLS))
        self.is_short = once_s < SHORT_S
        self.number = max(1, int(TURN_S / max(once_s, 1e-8)))
        return once_s * self.number

    def turn(self) -> float:
        """Return seconds a call of the next turn.

        TVM's own evaluator calls once before it starts the clock, which would warm the weights; it times kernels that
        are so short that a call from Python would count.
        """
        if self.is_short:
            chosen = self._next()
            evaluate = self.module.time_evaluator(self.symbol, tvm.cpu(), number=self.number, repeat=1)
            return float(evaluate(*chosen).results[0])
        function = self.module[self.symbol]
        sets = [self._next() for _ in range(self.number)]
        start = time.perf_counter_ns()
        for chosen in sets:
            function(*chosen)
        return (time.perf_counter_ns() - start) * 1e-9 / self.number

    def _next(self) -> list[Any]:
        self.calls += 1
        return self.arguments[self.calls % len(self.arguments)]


@dataclass(slots=True)
class Track:
    """Where kernels race: the yardstick, and the runners of the latest kernels."""

    target: Any
    runners: dict[str, Runner] = field(default_factory=dict)
    _yardstick: tuple[float, Runner] | None = None
    _cold: Any = None  # floats that weights are cut from

    def race(self, kernel: Kernel, partner: Kernel | None, seed: int, cold_b: int) -> tuple[list[float], list[float]]:
        """Return seconds a call of the kernel and of its partner (None: the yardstick), one of each a round.

        Args:
            kernel: The challenger.
            partner: What it runs beside.
            seed: Of the arguments.
            cold_b: In a model, this many bytes of weights pass through the caches between two calls of one kernel:
                here, calls walk through as many bytes of weights too. 0 leaves them warm.
        """
        runners = [self._runner(kernel, seed, cold_b)]
        runners.append(self._runner(partner, seed, cold_b) if partner is not None else self.yardstick()[1])
        rounds = int(np.clip(RACE_S / sum(runner.warm() for runner in runners), *ROUNDS))
        samples: tuple[list[float], list[float]] = ([], [])
        for number in range(rounds):
            for index in (0, 1) if number % 2 else (1, 0):
                samples[index].append(runners[index].turn())
            if partner is not None and number + 1 == HOPELESS_ROUNDS and _is_hopeless(*samples):
                break
        return samples

    def yardstick(self) -> tuple[float, Runner]:
        """Return (FLOPs of a call, the yardstick's runner)."""
        if self._yardstick is None:
            work, module, tensors = fma_module(self.target, YARDSTICK_TASKS, YARDSTICK_STEPS)
            executable = tvm.compile(module, target=self.target, tir_pipeline=PIPELINE)
            self._yardstick = (work, Runner(executable.mod, "probe", [tensors]))
        return self._yardstick

    def forget(self, symbol: str) -> None:
        """Drop a kernel's arguments."""
        self.runners.pop(symbol, None)

    def _runner(self, kernel: Kernel, seed: int, cold_b: int) -> Runner:
        if kernel.symbol not in self.runners:
            while len(self.runners) > 1:  # of a large model's kernels, arguments would fill gigabytes
                self.runners.pop(next(iter(self.runners)))
            sets = self._argument_sets(kernel, seed, cold_b)
            self.runners[kernel.symbol] = Runner(kernel.module, kernel.symbol, sets)
        return self.runners[kernel.symbol]

    def _argument_sets(self, kernel: Kernel, seed: int, cold_b: int) -> list[list[Any]]:
        first = arguments(kernel, seed)
        weights = range(len(kernel.spec.inputs), len(kernel.spec.inputs) + len(kernel.spec.weights))
        if not cold_b or not weights or any(str(first[index].dtype) != "float32" for index in weights):
            return [first]
        if self._cold is None:
            self._cold = _pool(cold_b)
        return _rotated(first, weights, self._cold)


def _is_hopeless(ours: list[float], theirs: list[float]) -> bool:
    return all(mine > HOPELESS * other for mine, other in zip(ours, theirs, strict=True))


def _rotated(first: list[Any], weights: range, pool: Any) -> list[list[Any]]:
    """Return argument lists that share everything but the weights, which walk through the pool."""
    sizes = [int(np.prod(first[index].shape)) for index in weights]
    step = sum(round_up(size, LINE_FLOATS) for size in sizes)
    sets = []
    for start in range(0, len(pool) - step + 1, max(step, len(pool) // MOST_SETS // LINE_FLOATS * LINE_FLOATS)):
        changed, at = list(first), start
        for index, size in zip(weights, sizes, strict=True):
            changed[index] = tvm.runtime.from_dlpack(pool[at : at + size].reshape(first[index].shape))
            at += round_up(size, LINE_FLOATS)
        sets.append(changed)
    return sets or [first]


def _pool(size_b: int) -> Any:
    """Return an aligned array of about `size_b` bytes of seeded normal floats, a short piece of them over and over."""
    piece = np.random.default_rng(0).standard_normal(PIECE_FLOATS, "float32")
    pieces = max(1, size_b // piece.nbytes)
    raw = np.empty(pieces * PIECE_FLOATS + LINE_FLOATS, "float32")
    offset = (-raw.ctypes.data // raw.itemsize) % LINE_FLOATS
    pool = raw[offset : offset + pieces * PIECE_FLOATS]
    pool.reshape(pieces, PIECE_FLOATS)[:] = piece
    return pool
