"""Built kernels to a whole model: a Relax main of packed calls, memory planned by TVM, run by its virtual machine."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from mapper.backends.tvm.build import Kernel

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One kernel call: its symbol, argument tensors in kernel order (weights by packed name), result tensors."""

    symbol: str
    arguments: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A model as calls in order over named tensors; `tensors` gives (physical shape, dtype) of every one."""

    calls: tuple[Call, ...]
    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]


class Composed:
    """A runnable model. Weights are bound once; inputs by `feed`."""

    def __init__(
        self, program: Program, kernels: Mapping[str, Kernel], weights: Mapping[str, Any], target: Any
    ) -> None:
        executable = relax.build(_module(program), target=target)
        for symbol in dict.fromkeys(call.symbol for call in program.calls):
            executable.mod.import_module(kernels[symbol].module)
        self._program = program
        self._machine = relax.VirtualMachine(executable.mod, tvm.cpu())
        self._weights = {name: weights[name] for name in program.weights}

    def feed(self, feeds: Mapping[str, Array], spoiled: Mapping[str, Any] | None = None) -> None:
        """Bind input values, in ONNX layout; `spoiled` are packed weights to use in place of the model's own."""
        inputs = [tvm.runtime.tensor(contiguous(feeds[name])) for name in self._program.inputs]
        weights = {**self._weights, **(spoiled or {})}
        self._machine.set_input("main", *inputs, *weights.values())

    def run(self) -> dict[str, Array]:
        """Run once and return the outputs by name."""
        self._machine.invoke_stateful("main")
        outputs = self._machine.get_outputs("main")
        items = [outputs] if len(self._program.outputs) == 1 else list(outputs)
        return {name: item.numpy() for name, item in zip(self._program.outputs, items, strict=True)}

    def run_timed(self, runs: int) -> list[float]:
        """Return the seconds of each of `runs` runs."""
        evaluate = self._machine.time_evaluator("invoke_stateful", tvm.cpu(), number=1, repeat=runs)
        return [float(result) for result in evaluate("main").results]

    def run_instrumented(self, runs: int) -> tuple[list[list[float]], float]:
        """Return (seconds of each call in each run, seconds that the instrument adds to one interval).

        The overhead is what the same call-backs see around a built-in that does next to nothing.
        """
        symbols = {call.symbol for call in self._program.calls}
        clock = time.perf_counter_ns
        log: list[int] = []
        empty: list[int] = []
        state = {"start": 0}

        def instrument(_function: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> int:
            if before:
                state["start"] = clock()
            elif name in symbols:
                log.append(clock() - state["start"])
            elif name == "vm.builtin.null_value":
                empty.append(clock() - state["start"])
            return 0

        self._machine.set_instrument(instrument)
        for _ in range(runs):
            self._machine.invoke_stateful("main")
        self._machine.set_instrument(lambda *_: 0)
        count = len(self._program.calls)
        overhead_s = float(np.median(empty)) * 1e-9 if empty else 0.0
        return [[value * 1e-9 for value in log[i * count : (i + 1) * count]] for i in range(runs)], overhead_s

    def workspace_bytes(self) -> int:
        """Return the bytes of activation storage that TVM's memory planner allocates between kernels."""
        return _planned_bytes(self._program)


def contiguous(value: Array) -> Array:
    """Return an array whose elements lie in order; unlike numpy's own function this keeps rank 0."""
    return value if value.flags.c_contiguous else value.copy()


def _planned_bytes(program: Program) -> int:
    """Return the sum of the storages that the planner would reuse: read off a planned module."""
    planned = relax.transform.StaticPlanBlockMemory()(
        relax.transform.CallTIRRewrite()(relax.transform.ToNonDataflow()(_module(program)))
    )
    total = 0

    def visit(expression: Any) -> None:
        nonlocal total
        if isinstance(expression, relax.Call) and expression.op == tvm.ir.Op.get("relax.memory.alloc_storage"):
            total += int(expression.args[0].values[0])

    relax.analysis.post_order_visit(planned["main"], visit)
    return total


def _module(program: Program) -> Any:
    variables: dict[str, Any] = {}
    for index, name in enumerate((*program.inputs, *program.weights)):
        variables[name] = relax.Var(f"p{index}", _type(program, name))
    builder = relax.BlockBuilder()
    parameters = list(variables.values())
    with builder.function("main", parameters):
        with builder.dataflow():
            for call in program.calls:
                _emit(builder, program, call, variables)
            result = [variables[name] for name in program.outputs]
            output = builder.emit_output(result[0] if len(result) == 1 else relax.Tuple(result))
        builder.emit_func_output(output)
    return builder.get()


def _emit(builder: Any, program: Program, call: Call, variables: dict[str, Any]) -> None:
    arguments = relax.Tuple([variables[name] for name in call.arguments])
    types = [_type(program, name) for name in call.results]
    value = builder.emit(
        relax.op.call_dps_packed(call.symbol, arguments, out_ty=types[0] if len(types) == 1 else types)
    )
    if len(types) == 1:
        variables[call.results[0]] = value
        return
    for index, name in enumerate(call.results):
        variables[name] = builder.emit(relax.TupleGetItem(value, index))


def _type(program: Program, name: str) -> Any:
    shape, dtype = program.tensors[name]
    return relax.TensorType(shape, dtype)


def alternate(subjects: Sequence[Composed], rounds: int, seed: int) -> list[list[float]]:
    """Return seconds a run, subject × round: every round runs each subject, in random order.

    A turn is two runs of which the second counts: the first finds the caches full of somebody else's weights, which is
    not how a model runs in service, nor how the other runtime is timed.
    """
    rng = np.random.default_rng(seed)
    samples: list[list[float]] = [[0.0] * rounds for _ in subjects]
    for index in range(rounds):
        for which in rng.permutation(len(subjects)):
            samples[which][index] = subjects[which].run_timed(2)[-1]
    return samples
