"""What one worker holds: groups, built kernels, packed weights, composed models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import numpy_helper

from mapper import templates
from mapper.backends.tvm import lower as lowering
from mapper.backends.tvm.build import Kernel, build_kernel, inspect
from mapper.backends.tvm.compose import Call, Composed, Program, contiguous
from mapper.backends.tvm.metaschedule import Tuner
from mapper.backends.tvm.mutate import corrupt
from mapper.backends.tvm.race import Track
from mapper.backends.tvm.store import Store
from mapper.keys import kernel_symbol
from mapper.records import Choice, GroupSpec
from mapper.templates.protocol import Packing

Array = np.ndarray[Any, Any]
NHWC = (0, 2, 3, 1)
NCHW = (0, 3, 1, 2)


@dataclass(slots=True)
class Session:
    """Everything built so far in this process, by name."""

    target: Any
    weights: dict[str, Array] = field(default_factory=dict)  # constants of the canonical model
    groups: dict[str, tuple[GroupSpec, onnx.ModelProto]] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    packed: dict[str, Any] = field(default_factory=dict)  # device tensors by packed name
    models: dict[str, Composed] = field(default_factory=dict)
    store: Store | None = None
    track: Track = field(init=False)
    programs: dict[str, Program] = field(default_factory=dict)
    tuners: dict[tuple[str, tuple[str, ...]], Tuner] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Lay the track on which kernels race."""
        self.track = Track(self.target)

    def open_model(self, path: str) -> None:
        """Read the constants of the canonical model."""
        model = onnx.load(path)
        self.packed.clear()
        self.weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}

    def define(self, spec: GroupSpec, path: str) -> None:
        """Make a group known."""
        self.groups[spec.key] = (spec, onnx.load(path))

    def build(self, group: str, choice: Choice) -> Kernel:
        """Lower and compile a choice, or return the kernel that was built before, here or in an earlier process.

        Raises:
            lowering.LoweringError: the choice does not become one legal kernel.
        """
        symbol = kernel_symbol(group, choice)
        if symbol not in self.kernels:
            spec, _ = self.groups[group]
            kept = self.store.load(symbol, spec, choice) if self.store is not None else None
            self.kernels[symbol] = kept or self._compile(group, choice, symbol)
        return self.kernels[symbol]

    def keep(self, symbols: Sequence[str]) -> int:
        """Write kernels to the store; return how many are there now."""
        if self.store is None:
            return 0
        kept = 0
        for symbol in symbols:
            kernel = self.kernels[symbol]
            kept += kernel.lowered.module is None or self.store.keep(kernel)
        return kept

    def inspect(self, symbol: str, folder: Path, stem: str) -> Mapping[str, Any]:
        """Write a kernel's scheduled TIR and assembly to `folder`; return its sizes and loop nest."""
        found = self.store.inspection(symbol, folder, stem) if self.store is not None else None
        if found is not None:
            return found
        kernel = self.kernels[symbol]
        if kernel.lowered.module is None:
            kernel = self._compile(kernel.spec.key, kernel.choice, symbol)
        inside = inspect(kernel, folder, stem)
        if self.store is not None:
            self.store.keep_inspection(symbol, folder, stem, inside)
        return inside

    def _compile(self, group: str, choice: Choice, symbol: str) -> Kernel:
        spec, model = self.groups[group]
        lowered = lowering.lower(spec, model, choice, templates.by_name(choice.template))
        return build_kernel(spec, choice, lowered, symbol, self.target)

    def propose_traces(
        self, group: str, layouts: tuple[str, ...], outcomes: Mapping[str, float | None], seed: int
    ) -> list[str]:
        """Return MetaSchedule's next generation of schedules for a group, given what was measured so far."""
        if (group, layouts) not in self.tuners:
            spec, model = self.groups[group]
            self.tuners[group, layouts] = Tuner(spec, model, layouts, target=self.target, seed=seed)
        return self.tuners[group, layouts].propose(outcomes)

    def forget(self, symbols: Sequence[str]) -> None:
        """Drop kernels that lost, with their code."""
        for symbol in symbols:
            self.kernels.pop(symbol, None)
            self.track.forget(symbol)

    def run_kernel(
        self, symbol: str, values: Mapping[str, Array], corruption: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Run one kernel on logical arrays under the group's local names and return its logical outputs.

        `corruption` (weight, kind) spoils one packed weight first.
        """
        kernel = self.kernels[symbol]
        spec = kernel.spec
        packings = _packings(kernel)
        arrays = [
            *(to_physical(values[name], layout) for name, layout in _layouts(kernel, spec.inputs, 0)),
            *(_spoiled(name, pack(values[name], packings.get(name)), corruption) for name in spec.weights),
            *kernel.lowered.constants,
        ]
        count = len(arrays)
        shapes = zip(kernel.lowered.shapes[count:], kernel.lowered.dtypes[count:], strict=True)
        tensors = [tvm.runtime.tensor(contiguous(array)) for array in arrays]
        tensors += [tvm.runtime.tensor(_poison(shape, dtype)) for shape, dtype in shapes]
        kernel.module[symbol](*tensors)
        layouts = _layouts(kernel, spec.outputs, len(spec.inputs))
        return {
            name: to_logical(tensor.numpy(), layout)
            for (name, layout), tensor in zip(layouts, tensors[count:], strict=True)
        }

    def compose(self, name: str, calls: Sequence[Mapping[str, Any]], ends: Mapping[str, Sequence[str]]) -> int:
        """Compose kernels to a model called `name`; return the bytes of the weights that it holds.

        Each call names its `symbol` and the model's tensors for the group's `inputs`, `weights` and `outputs`;
        `ends` names the model's `inputs` and `outputs`.
        """
        tensors: dict[str, tuple[tuple[int, ...], str]] = {}
        program_calls: list[Call] = []
        weights: dict[str, None] = {}  # an ordered set
        for call in calls:
            kernel = self.kernels[call["symbol"]]
            bound = self._own_names(self._bind_weights(kernel, call["weights"]), weights)
            names = (*call["inputs"], *bound, *call["outputs"])
            for tensor, shape, dtype in zip(names, kernel.lowered.shapes, kernel.lowered.dtypes, strict=True):
                if tensors.setdefault(tensor, (shape, dtype)) != (shape, dtype):
                    raise lowering.LoweringError(
                        f"{tensor} is {tensors[tensor]} where it is made and {(shape, dtype)} for {kernel.spec.name}"
                    )
            weights.update(dict.fromkeys(bound))
            arguments = (*call["inputs"], *bound)
            program_calls.append(Call(symbol=kernel.symbol, arguments=arguments, results=tuple(call["outputs"])))
        program = Program(
            calls=tuple(program_calls),
            tensors=tensors,
            inputs=tuple(ends["inputs"]),
            weights=tuple(weights),
            outputs=tuple(ends["outputs"]),
        )
        self.programs[name] = program
        self.models[name] = Composed(program, self.kernels, self.packed, self.target)
        distinct = {id(self.packed[weight]): self.packed[weight] for weight in program.weights}
        return sum(tensor.numpy().nbytes for tensor in distinct.values())

    def run_mutant(
        self, name: str, at: tuple[int, int], kind: str, feeds: Mapping[str, Array]
    ) -> dict[str, Array] | None:
        """Run model `name` with one packed weight corrupted, and restore it; None when no bit would change.

        `at` is (call, weight of that call). Nothing is built: weights are arguments of the model.
        """
        call = self.programs[name].calls[at[0]]
        weight = call.arguments[len(self.kernels[call.symbol].spec.inputs) + at[1]]
        value = self.packed[weight].numpy()
        changed = corrupt(value, kind)
        if np.array_equal(value, changed):
            return None
        model = self.models[name]
        model.feed(feeds, {weight: tvm.runtime.tensor(changed)})
        outputs = model.run()
        model.feed(feeds)
        return outputs

    def _own_names(self, names: Sequence[str], taken: Mapping[str, None]) -> list[str]:
        """Give a weight that several calls read a name for each of them: one tensor, so that one can be corrupted."""
        own = []
        for name in names:
            alias = name if name not in taken else f"{name}#{len(taken)}"
            self.packed.setdefault(alias, self.packed[name])
            own.append(alias)
        return own

    def _bind_weights(self, kernel: Kernel, names: Sequence[str]) -> list[str]:
        packings = _packings(kernel)
        bound = []
        for local, name in zip(kernel.spec.weights, names, strict=True):
            packing = packings.get(local)
            packed_name = f"{name}@{'x'.join(map(str, packing.shape))}" if packing else name
            if packed_name not in self.packed:
                self.packed[packed_name] = tvm.runtime.tensor(pack(self.weights[name], packing))
            bound.append(packed_name)
        for index, constant in enumerate(kernel.lowered.constants):
            constant_name = f"{kernel.symbol}/const{index}"
            self.packed.setdefault(constant_name, tvm.runtime.tensor(constant))
            bound.append(constant_name)
        return bound


def pack(value: Array, packing: Packing | None) -> Array:
    """Return a weight as the kernel wants it."""
    return contiguous(packing.pack(value) if packing else value)


def _spoiled(name: str, value: Array, corruption: Sequence[str] | None) -> Array:
    return corrupt(value, corruption[1]) if corruption and corruption[0] == name else value


def to_physical(value: Array, layout: str) -> Array:
    """Return an array in ONNX order re-ordered as `layout` lies in memory."""
    return contiguous(value.transpose(NHWC)) if layout == "nhwc" else value


def to_logical(value: Array, layout: str) -> Array:
    """Undo `to_physical`."""
    return contiguous(value.transpose(NCHW)) if layout == "nhwc" else value


def _packings(kernel: Kernel) -> Mapping[str, Packing]:
    return templates.by_name(kernel.choice.template).packings(kernel.spec, kernel.choice)


def _layouts(kernel: Kernel, names: Sequence[str], start: int) -> list[tuple[str, str]]:
    return list(zip(names, kernel.choice.layouts[start : start + len(names)], strict=True))


def _poison(shape: tuple[int, ...], dtype: str) -> Array:
    """Return an output buffer full of NaN (or -1), so that an element nobody writes shows."""
    if dtype.startswith("float"):
        return np.full(shape, np.nan, dtype)
    return np.full(shape, True if dtype == "bool" else np.iinfo(dtype).max, dtype)


def versions() -> dict[str, str]:
    """Return the compiler versions that decide what code a schedule becomes."""
    return {"tvm": str(tvm.__version__), "llvm": str(tvm.target.codegen.llvm_version_major())}
