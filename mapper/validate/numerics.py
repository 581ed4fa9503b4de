"""Owns the comparison of computed tensors with a reference: what counts as equal, by dtype."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mapper.records import OutputCheck, Verification

Scope = Literal["model", "kernel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """An element passes when |ours − reference| ≤ `rel` × the reference tensor's largest magnitude + `abs_`."""

    rel: float
    abs_: float


EXACT = Tolerance(rel=0.0, abs_=0.0)
# Both sides are right within rounding; they only add in another order. One kernel: a sum of K float32 products drifts
# by about sqrt(K) × 6e-8 of its magnitude, 1e-5 at K = 25,088, the longest sum of the zoo; 3e-5 leaves that a factor of
# three and still sees the tanh form of Gelu (4.7e-4 at most) on data up to 10. A whole network: order alone was seen to
# reach 1e-5 of the largest magnitude over 50 to 120 layers; 1e-4 leaves a factor of ten. The absolute part covers
# tensors whose own magnitude cancelled away. Other types scale with their unit roundoff (float16 4.9e-4, bfloat16
# 3.9e-3).
TOLERANCES: Mapping[Scope, Mapping[str, Tolerance]] = {
    "kernel": {
        "float64": Tolerance(rel=1e-12, abs_=1e-14),
        "float32": Tolerance(rel=3e-5, abs_=1e-6),
        "float16": Tolerance(rel=5e-3, abs_=1e-4),
        "bfloat16": Tolerance(rel=2e-2, abs_=1e-3),
    },
    "model": {
        "float64": Tolerance(rel=1e-11, abs_=1e-14),
        "float32": Tolerance(rel=1e-4, abs_=1e-6),
        "float16": Tolerance(rel=2e-2, abs_=1e-3),
        "bfloat16": Tolerance(rel=6e-2, abs_=1e-2),
    },
}


def compare(name: str, ours: np.ndarray, reference: np.ndarray, *, scope: Scope = "model") -> OutputCheck:
    """Compare one tensor: shape, dtype, where NaN and ±Inf stand, then values.

    Errors are taken over the finite elements in float64. Integers, booleans and text have to be equal, whatever
    `scope`; it chooses the tolerance of floating-point tensors, for a kernel alone or for a whole model.
    """
    tolerance = TOLERANCES[scope].get(reference.dtype.name, EXACT)
    if ours.shape != reference.shape:
        return _incomparable(name, tolerance, f"shape {list(ours.shape)}, expected {list(reference.shape)}")
    if ours.dtype != reference.dtype:
        return _incomparable(name, tolerance, f"dtype {ours.dtype.name}, expected {reference.dtype.name}")
    if tolerance is EXACT:
        return _compare_exact(name, ours, reference)
    found, wanted = ours.astype(np.float64), reference.astype(np.float64)
    if note := _special_values_differ(found, wanted):
        return _incomparable(name, tolerance, note)
    finite = np.isfinite(wanted)
    error = float(np.max(np.abs(found[finite] - wanted[finite]), initial=0.0))
    magnitude = float(np.max(np.abs(wanted[finite]), initial=0.0))
    limit = tolerance.rel * magnitude + tolerance.abs_
    return OutputCheck(
        tensor=name,
        max_abs_err=error,
        max_rel_err=_relative(error, magnitude),
        tolerance_rel=tolerance.rel,
        tolerance_abs=tolerance.abs_,
        passed=error <= limit,
        note="" if error <= limit else f"error {error:.3g} exceeds {limit:.3g} (largest magnitude {magnitude:.3g})",
    )


def verify(
    subject: str,
    ours: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
    reference_name: str,
    *,
    scope: Scope = "model",
) -> Verification:
    """Compare every tensor of `reference` with ours of the same name; a missing one fails, and so does an empty set."""
    checks = tuple(
        compare(name, ours[name], wanted, scope=scope)
        if name in ours
        else _incomparable(name, TOLERANCES[scope].get(wanted.dtype.name, EXACT), "not computed")
        for name, wanted in reference.items()
    )
    passed = bool(checks) and all(check.passed for check in checks)
    return Verification(subject=subject, reference=reference_name, checks=checks, passed=passed)


def _incomparable(name: str, tolerance: Tolerance, note: str) -> OutputCheck:
    return OutputCheck(
        tensor=name,
        max_abs_err=None,
        max_rel_err=None,
        tolerance_rel=tolerance.rel,
        tolerance_abs=tolerance.abs_,
        passed=False,
        note=note,
    )


def _compare_exact(name: str, ours: np.ndarray, reference: np.ndarray) -> OutputCheck:
    differs = np.atleast_1d(ours != reference)
    if reference.dtype.kind not in "biu":
        if differs.any():
            return _incomparable(name, EXACT, f"{int(differs.sum())} of {differs.size} elements differ")
        error, magnitude = 0.0, 1.0
    else:
        found, wanted = ours.astype(np.float64), reference.astype(np.float64)
        # Neighbouring int64 beyond 2^53 are one float64: a difference is at least 1.
        error = max(float(np.max(np.abs(found - wanted), initial=0.0)), float(differs.any()))
        magnitude = float(np.max(np.abs(wanted), initial=0.0))
    return OutputCheck(
        tensor=name,
        max_abs_err=error,
        max_rel_err=_relative(error, magnitude),
        tolerance_rel=0.0,
        tolerance_abs=0.0,
        passed=not differs.any(),
        note=f"{int(differs.sum())} of {differs.size} elements differ" if differs.any() else "",
    )


def _special_values_differ(found: np.ndarray, wanted: np.ndarray) -> str:
    kinds = (("NaN", np.isnan), ("+Inf", np.isposinf), ("-Inf", np.isneginf))
    for word, test in kinds:
        here, there = test(found), test(wanted)
        if not np.array_equal(here, there):
            first = tuple(int(at) for at in np.argwhere(np.atleast_1d(here != there))[0])
            return f"{word} at {int(here.sum())} elements, expected at {int(there.sum())}; first difference at {first}"
    return ""


def _relative(error: float, magnitude: float) -> float | None:
    """Return error ÷ magnitude; None when the reference is all zero and the error is not."""
    if magnitude == 0.0:
        return 0.0 if error == 0.0 else None
    return error / magnitude
