"""One kernel of a mapping corrupted, put in the right one's place, and shown to both parts of the verification."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np
import onnx
from onnx import numpy_helper

from mapper import templates
from mapper.errors import BadInputError
from mapper.flows.planning import Draft, group_file
from mapper.flows.prepare import Prepared
from mapper.flows.verifying import KernelCheck, ModelCheck, argument
from mapper.plan import fusion
from mapper.plan.graph import operator_graph
from mapper.plan.spec import group_spec
from mapper.plan.submodel import group_model
from mapper.records import Choice, Group, GroupSpec, MachineModel
from mapper.validate.mutants import Fault, corrupted
from mapper.validate.numerics import verify
from mapper.worker.client import ChildFailureError
from mapper.worker.reference import ReferenceWorker
from mapper.worker.workers import TvmWorker

Array = np.ndarray[Any, Any]
Outcome = Literal["model", "alone", "missed", "no-op", "not made"]
WIDE = 8.0  # factor of the second draw of inputs, which reaches bounds that standard normal values do not


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One corrupted kernel and who noticed it.

    `model`: the whole model's outputs and taps differ. `alone`: only the kernel alone does. `missed`: neither. `no-op`:
    the corruption changes nothing. `not made`: it did not become a kernel, `reason` says why.
    """

    kernel: str
    kind: str
    note: str
    outcome: Outcome
    by_kernel_check: bool = False  # the kernel alone differs, whether or not the whole model does
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One distinct kernel of the mapping; `positions` are its calls in the plan."""

    spec: GroupSpec
    choice: Choice
    model: onnx.ModelProto
    positions: tuple[int, ...]


class _NotMadeError(Exception):
    """A fault that does not become a kernel, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Corrupt:
    """A corrupted kernel. `inputs`, `weights` and `outputs` follow its own arguments, named as in the right group."""

    spec: GroupSpec
    choice: Choice
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]  # weights that the right group does not have
    fault: Fault

    def changed(self, local: str, value: Array) -> Array:
        """Return a weight as the fault leaves it."""
        for change in self.fault.weights:
            if change.weight == local:
                value = corrupted(value, change)
        return value

    @property
    def touched(self) -> frozenset[str]:
        """The weights whose values the fault changes."""
        return frozenset(change.weight for change in self.fault.weights)


@dataclass(slots=True, kw_only=True)
class Bench:
    """The right mapping, and how to put a corrupted kernel into it."""

    prepared: Prepared
    worker: TvmWorker
    reference: ReferenceWorker
    machine: MachineModel
    draft: Draft
    choices: tuple[Choice, ...]
    check: ModelCheck
    targets: tuple[Target, ...]
    seed: int
    _alone: KernelCheck | None = None
    _substitute: "_Substitute | None" = None
    _right: dict[str, list[tuple[dict[str, Array], dict[str, Array]]]] = field(default_factory=dict)

    def judge(self, target: Target, fault: Fault, serial: int) -> Mutant:
        """Make one mutant and see who notices."""
        mutant = Mutant(kernel=target.spec.name, kind=fault.kind, note=fault.note, outcome="not made")
        try:
            corrupt = self._corrupt(target, fault)
            if self._is_no_op(target, corrupt):
                return replace(mutant, outcome="no-op")
            outputs = self._run_whole(target, corrupt, serial)
        except (_NotMadeError, ChildFailureError, BadInputError) as error:
            return replace(mutant, reason=str(error))
        by_model = not self.check.check(self.draft, outputs).passed
        by_kernel = not self._passes_alone(target, corrupt)
        outcome: Outcome = "model" if by_model else "alone" if by_kernel else "missed"
        return replace(mutant, outcome=outcome, by_kernel_check=by_kernel)

    def _corrupt(self, target: Target, fault: Fault) -> _Corrupt:
        spec = target.spec
        if fault.model is None:
            return _Corrupt(
                spec=spec,
                choice=target.choice,
                inputs=spec.inputs,
                weights=spec.weights,
                outputs=spec.outputs,
                constants={},
                fault=fault,
            )
        canonical, group, corrupt_spec = corrupted_group(fault.model, spec)
        path = group_file(self.prepared, group.key)
        onnx.save_model(group_model(canonical, operator_graph(canonical), group), path)
        self.worker.define(corrupt_spec, path)
        held = {tensor.name: numpy_helper.to_array(tensor) for tensor in canonical.graph.initializer}
        return _Corrupt(
            spec=corrupt_spec,
            choice=self._choice(target, group, corrupt_spec),
            inputs=group.inputs,
            weights=group.weights,
            outputs=group.outputs,
            constants={name: held[name] for name in group.weights if name not in spec.weights},
            fault=fault,
        )

    def _choice(self, target: Target, group: Group, spec: GroupSpec) -> Choice:
        """Return the first choice that builds: the right kernel's, its template's first, the generic template's."""
        by_name = dict(zip((*target.spec.inputs, *target.spec.outputs), target.choice.layouts, strict=True))
        layouts = tuple(by_name[name] for name in (*group.inputs, *group.outputs))
        reason = "no template takes it"
        for choice in self._offers(target.choice, spec, layouts):
            try:
                self.worker.build(spec.key, choice)
            except ChildFailureError as error:
                reason = error.reason
            else:
                return choice
        raise _NotMadeError(reason)

    def _offers(self, right: Choice, spec: GroupSpec, layouts: tuple[str, ...]) -> Iterator[Choice]:
        same = replace(right, layouts=layouts)
        template = templates.by_name(right.template)
        with contextlib.suppress(BadInputError):
            if template.matches(spec):
                template.check(spec, same)
                yield same
        for other in (templates.template_for(spec), templates.by_name("generic")):
            yield from other.choices(spec, self.machine, layouts)[:1]

    def _is_no_op(self, target: Target, corrupt: _Corrupt) -> bool:
        """Say whether the corrupted kernel gives what the right one gives, on draws that the check does not use."""
        key = f"{target.spec.key} {target.choice.layouts}"
        if key not in self._right:
            self._right[key] = [self._right_case(target, draw) for draw in self._draws(target.spec)]
        return all(
            verify("mutant", self._run_alone(corrupt, values), right, "the right kernel", scope="kernel").passed
            for values, right in self._right[key]
        )

    def _draws(self, spec: GroupSpec) -> list[dict[str, Array]]:
        rng = np.random.default_rng(self.seed + 1)
        near = {name: argument(spec, name, rng) for name in (*spec.inputs, *spec.weights)}
        wide = {
            name: value * value.dtype.type(WIDE) if name in spec.inputs and value.dtype.kind == "f" else value
            for name, value in near.items()
        }
        return [near, wide]

    def _right_case(self, target: Target, values: dict[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        found = self.worker.run_kernel(target.spec.key, target.choice, values)
        if any(value.dtype.kind == "f" and np.isnan(value).any() for value in found.values()):
            values = {name: np.abs(value) if value.dtype.kind == "f" else value for name, value in values.items()}
            found = self.worker.run_kernel(target.spec.key, target.choice, values)
        return values, found

    def _run_alone(self, corrupt: _Corrupt, values: Mapping[str, Array]) -> dict[str, Array]:
        """Run a corrupted kernel on the right group's arguments and return its outputs by the right group's names."""
        spec = corrupt.spec
        fed = {own: values[name] for own, name in zip(spec.inputs, corrupt.inputs, strict=True)}
        for own, name in zip(spec.weights, corrupt.weights, strict=True):
            constant = corrupt.constants.get(name)
            fed[own] = corrupt.changed(name, values[name]) if constant is None else constant
        found = self.worker.run_kernel(spec.key, corrupt.choice, fed)
        return {name: found[own] for own, name in zip(spec.outputs, corrupt.outputs, strict=True)}

    def _run_whole(self, target: Target, corrupt: _Corrupt, serial: int) -> list[Array]:
        """Run the model with every call of the kernel replaced by the corrupted one."""
        groups, choices = list(self.draft.plan.groups), list(self.choices)
        added: dict[str, Array] = {}
        for position in target.positions:
            groups[position] = self._replaced(groups[position], target.spec, corrupt, serial, added)
            choices[position] = corrupt.choice
        if added:
            self.worker.add_weights(added)
        plan = replace(self.draft.plan, groups=tuple(groups))
        self.worker.compose("mutant", plan, choices, self.check.ends, self.prepared.feeds_file)
        return self.worker.run_model("mutant")

    def _replaced(
        self, group: Group, spec: GroupSpec, corrupt: _Corrupt, serial: int, added: dict[str, Array]
    ) -> Group:
        """Return one call of the corrupted kernel; weights that only it has are put into `added`."""
        actual = dict(zip((*spec.inputs, *spec.weights, *spec.outputs), _arguments(group), strict=True))
        weights = []
        for name in corrupt.weights:
            if name in corrupt.constants:
                weights.append(f"mutant{serial}/{name}")
                added[weights[-1]] = corrupt.constants[name]
            elif name in corrupt.touched:
                weights.append(f"mutant{serial}/{actual[name]}")
                added[weights[-1]] = corrupt.changed(name, self._weight(actual[name]))
            else:
                weights.append(actual[name])
        return replace(
            group,
            key=corrupt.spec.key,
            inputs=tuple(actual[name] for name in corrupt.inputs),
            weights=tuple(weights),
            outputs=tuple(actual[name] for name in corrupt.outputs),
        )

    def _weight(self, name: str) -> Array:
        initializers = self.prepared.normalized.proto.graph.initializer
        return np.asarray(numpy_helper.to_array(next(tensor for tensor in initializers if tensor.name == name)))

    def _passes_alone(self, target: Target, corrupt: _Corrupt) -> bool:
        """Put the corrupted kernel before the check that every kept kernel has to pass."""
        if self._alone is None or self._substitute is None:
            self._substitute = _Substitute(bench=self, corrupt=corrupt)
            worker = cast("TvmWorker", self._substitute)
            self._alone = KernelCheck(prepared=self.prepared, reference=self.reference, worker=worker, seed=self.seed)
        self._substitute.corrupt = corrupt
        return self._alone.check(target.spec, target.choice).passed


@dataclass(slots=True, kw_only=True)
class _Substitute:
    """Stands in for the worker and runs the corrupted kernel, whatever kernel is asked for."""

    bench: Bench
    corrupt: _Corrupt

    def run_kernel(self, _group: str, _choice: Choice, values: Mapping[str, Array], _spoilt: None) -> dict[str, Array]:
        return self.bench._run_alone(self.corrupt, values)


def _arguments(group: Group) -> tuple[str, ...]:
    return (*group.inputs, *group.weights, *group.outputs)


def corrupted_group(model: onnx.ModelProto, right: GroupSpec) -> tuple[onnx.ModelProto, Group, GroupSpec]:
    """Return a corrupted model of the group `right` as a canonical model with one group, that group, and its spec.

    The group's tensors keep the local names of `right`, so that its calls can be bound; the spec has its own.

    Raises:
        BadInputError: what is left is not one connected group, or bakes in what is a weight.
    """
    canonical = onnx.ModelProto()
    canonical.CopyFrom(model)
    for value in [value for value in canonical.graph.input if value.name in right.weights]:
        shape = right.tensors[value.name].shape
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        canonical.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, dtype), value.name))
        canonical.graph.input.remove(value)
    graph = operator_graph(canonical)
    baked = sorted(set(right.weights) & set(graph.constants))
    if baked:
        raise BadInputError(f"{baked[0]} became part of the kernel")
    everything = [[operator.index for operator in graph.operators]]
    group = fusion.from_partition(graph, everything, "mutant").groups[0]
    if set(group.outputs) != set(right.outputs):
        raise BadInputError(f"outputs {list(group.outputs)}, expected {list(right.outputs)}")
    return canonical, group, group_spec(graph, group)
