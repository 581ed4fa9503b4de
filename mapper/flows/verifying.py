"""Every kept kernel compared alone, every mapping compared whole, and the comparison itself put to the test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mapper.backends.tvm.mutate import KINDS
from mapper.flows.planning import Draft, group_file
from mapper.flows.prepare import Prepared
from mapper.ingress.feeds import float_feed
from mapper.plan.layout import tensor_layouts
from mapper.records import Candidate, Choice, Failure, GroupSpec, Verification
from mapper.validate.numerics import verify
from mapper.worker.client import ChildFailureError
from mapper.worker.reference import ReferenceWorker
from mapper.worker.workers import TvmWorker

Array = np.ndarray[Any, Any]
MUTANTS = 20
OTHER_DRAWS = (7919, 104_729)  # seeds that a user is unlikely to choose


@dataclass(slots=True, kw_only=True)
class KernelCheck:
    """Compares kernels alone with onnxruntime on the same subgraph, on index-sensitive data.

    Nothing is kept between checks: the arguments of all groups of a large model together fill gigabytes.
    """

    prepared: Prepared
    reference: ReferenceWorker
    worker: TvmWorker
    seed: int

    def check(self, spec: GroupSpec, choice: Choice, corruption: tuple[str, str] | None = None) -> Verification:
        """Compare one kernel; a kernel or reference that does not run does not pass.

        `corruption` (weight, kind) spoils a packed weight first: then the comparison ought to fail.
        """
        subject = f"{spec.name} alone"
        try:
            values, wanted = self._case(spec)
            found = self.worker.run_kernel(spec.key, choice, values, corruption)
        except ChildFailureError as error:
            return Verification(subject=subject, reference=f"not compared: {error.reason}", checks=(), passed=False)
        return verify(subject, found, wanted, "onnxruntime on the same subgraph", scope="kernel")

    def _case(self, spec: GroupSpec) -> tuple[dict[str, Array], dict[str, Array]]:
        path = group_file(self.prepared, spec.key)
        rng = np.random.default_rng(self.seed)
        values = {name: argument(spec, name, rng) for name in (*spec.inputs, *spec.weights)}
        outputs = self.reference.run(path, list(values.values()))
        if any(_is_mostly_nan(output) for output in outputs):  # a square root or logarithm of negative numbers
            values = {name: _positive(value) for name, value in values.items()}
            outputs = self.reference.run(path, list(values.values()))
        return values, dict(zip(spec.outputs, outputs, strict=True))


def argument(spec: GroupSpec, name: str, rng: np.random.Generator) -> Array:
    """Return index-sensitive values for one argument of a group; weights are scaled down with their fan-in."""
    tensor = spec.tensors[name]
    if not tensor.dtype.startswith(("float", "bfloat")):
        return rng.integers(0, 2, tensor.shape).astype(tensor.dtype)
    value = float_feed(tensor.shape, rng)
    if name in spec.weights and len(tensor.shape) > 1:
        value = value / np.sqrt(max(1.0, float(np.prod(tensor.shape[1:]))))
    return value.astype(tensor.dtype)


def fastest_right(
    tried: Sequence[Candidate], spec: GroupSpec, check: KernelCheck, failures: list[Failure]
) -> tuple[Candidate, Verification] | None:
    """Return the fastest candidate that also computes the right thing; wrong ones become failures."""
    ran = sorted((c for c in tried if c.time_s is not None), key=lambda c: c.time_s or 0.0)
    for candidate in ran:
        verification = check.check(spec, candidate.choice)
        if verification.passed:
            return candidate, verification
        reason = next((c.note for c in verification.checks if not c.passed), verification.reference)
        failures.append(Failure(subject=f"{spec.name} {candidate.choice_key}", step="numerics", reason=reason))
    return None


@dataclass(slots=True, kw_only=True)
class ModelCheck:
    """Compares composed models with the original model's outputs and taps."""

    prepared: Prepared
    wanted: Mapping[str, Array]

    @property
    def ends(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The inputs and outputs that a mapping is composed with."""
        return self.prepared.graph.inputs, (*self.prepared.graph.outputs, *self.prepared.taps)

    def check(self, draft: Draft, outputs: Sequence[Array]) -> Verification:
        """Compare one run's outputs, in `ends` order."""
        by_tensor = tensor_layouts(self.prepared.graph, draft.plan, draft.policy)
        found = {
            name: value.transpose(0, 3, 1, 2) if by_tensor.get(name) == "nhwc" else value
            for name, value in zip(self.ends[1], outputs, strict=True)
        }
        return verify(draft.label, found, self.wanted, "original model, onnxruntime at ORT_DISABLE_ALL")


def strengthen(
    verification: Verification,
    draft: Draft,
    choices: Sequence[Choice],
    check: ModelCheck,
    kernel_check: KernelCheck,
) -> tuple[Verification, tuple[str, ...]]:
    """Put a passed verification to the test: corrupt one weight of one kernel at a time and see it fail.

    A mutant is noticed when the model's outputs differ, or else when the kernel, corrupted the same way, differs alone.
    A corruption that changes no bit of the weight is none, nor is one that nothing notices on two further draws of data
    (the scale of a channel that a Relu silences): neither is counted.

    Returns:
        The verification with its strength, and what passed unnoticed.
    """
    worker, feeds = kernel_check.worker, check.prepared.feeds_file
    weighted = [(at, local) for at, group in enumerate(draft.plan.groups) for local in range(len(group.weights))]
    pairs = [(at, local, kind) for kind in KINDS for at, local in weighted]
    caught, tested, missed = 0, 0, []
    for index in np.random.default_rng(0).permutation(len(pairs)):
        if tested == MUTANTS:
            break
        at, local, kind = pairs[int(index)]
        outputs = worker.run_mutant(draft.label, (at, local), kind, feeds)
        if outputs is None:
            continue
        spec = worker.specs[draft.plan.groups[at].key]
        spoiled = (spec.weights[local], kind)
        if not check.check(draft, outputs).passed or not kernel_check.check(spec, choices[at], spoiled).passed:
            caught += 1
        elif all(replace(kernel_check, seed=seed).check(spec, choices[at], spoiled).passed for seed in OTHER_DRAWS):
            continue
        else:
            missed.append(f"{kind} of {draft.plan.groups[at].weights[local]}")
        tested += 1
    return replace(verification, mutants=tested, mutants_caught=caught), tuple(missed)


def largest_errors(verification: Verification) -> tuple[float | None, float | None]:
    """Return the largest absolute and relative error of a verification; None where nothing was comparable."""
    absolute = [check.max_abs_err for check in verification.checks if check.max_abs_err is not None]
    relative = [check.max_rel_err for check in verification.checks if check.max_rel_err is not None]
    return max(absolute, default=None), max(relative, default=None)


def _is_mostly_nan(value: Array) -> bool:
    return bool(value.dtype.kind == "f" and value.size and np.isnan(value).mean() > 0.1)


def _positive(value: Array) -> Array:
    return np.abs(value) + value.dtype.type(0.1) if value.dtype.kind == "f" else value
