"""What counts as equal."""

from math import erf, sqrt, tanh

import ml_dtypes
import numpy as np
import pytest

from mapper.validate.numerics import TOLERANCES, compare, verify


def floats(*values, dtype=np.float32):
    return np.array(values, dtype=dtype)


def test_equal_tensors_pass_with_no_error():
    check = compare("y", floats(1, -2), floats(1, -2))
    assert (check.passed, check.max_abs_err, check.max_rel_err, check.note) == (True, 0.0, 0.0, "")


def test_both_errors_are_reported_relative_to_the_largest_magnitude():
    check = compare("y", floats(0.5, -8.0), floats(0.0, -8.0))
    assert (check.max_abs_err, check.max_rel_err, check.passed) == (0.5, 0.0625, False)
    assert "error 0.5 exceeds" in check.note


@pytest.mark.parametrize(("scope", "rel"), [("model", 1e-4), ("kernel", 3e-5)])
def test_limit_is_relative_to_the_tensor_plus_an_absolute_part(scope, rel):
    reference = floats(1000.0, 0.0)
    limit = rel * 1000.0 + 1e-6
    assert compare("y", floats(1000.0, 0.99 * limit), reference, scope=scope).passed
    assert not compare("y", floats(1000.0, 1.01 * limit), reference, scope=scope).passed


def test_absolute_part_alone_serves_a_reference_of_zeros():
    assert compare("y", floats(9e-7), floats(0.0)).passed
    check = compare("y", floats(2e-6), floats(0.0))
    assert (check.passed, check.max_rel_err) == (False, None)


@pytest.mark.parametrize(
    ("dtype", "inside", "outside"),
    [
        (np.float64, 1e-12, 1e-10),
        (np.float32, 5e-5, 2e-4),
        (np.float16, 1e-2, 4e-2),
        (ml_dtypes.bfloat16, 5e-2, 0.2),
    ],
)
def test_tolerance_follows_the_dtype(dtype, inside, outside):
    reference = floats(1.0, 0.0, dtype=dtype)
    assert compare("y", floats(1.0, inside, dtype=dtype), reference).passed
    assert not compare("y", floats(1.0, outside, dtype=dtype), reference).passed


def test_kernels_are_held_to_no_wider_a_tolerance_than_models():
    for dtype, tolerance in TOLERANCES["model"].items():
        assert TOLERANCES["kernel"][dtype].rel < tolerance.rel


def test_tanh_form_of_gelu_is_caught():
    x = np.linspace(-3, 3, 61)
    exact = floats(*(v / 2 * (1 + erf(v / sqrt(2))) for v in x))
    approximate = floats(*(v / 2 * (1 + tanh(sqrt(2 / np.pi) * (v + 0.044715 * v**3))) for v in x))
    assert not compare("y", approximate, exact, scope="kernel").passed
    assert not compare("y", approximate, exact, scope="model").passed


def test_special_values_in_the_same_places_pass():
    values = floats(np.nan, 1.0, np.inf, -np.inf)
    assert compare("y", values.copy(), values).passed


@pytest.mark.parametrize(
    ("ours", "note"),
    [
        ((1.0, 1.0, np.inf), "NaN at 0 elements, expected at 1; first difference at (0,)"),
        ((np.nan, 1.0, -np.inf), "+Inf at 0 elements, expected at 1; first difference at (2,)"),
        ((np.nan, -np.inf, np.inf), "-Inf at 1 elements, expected at 0; first difference at (1,)"),
        ((np.nan, np.nan, np.inf), "NaN at 2 elements, expected at 1"),
    ],
)
def test_special_values_elsewhere_fail(ours, note):
    check = compare("y", floats(*ours), floats(np.nan, 1.0, np.inf))
    assert (check.passed, check.max_abs_err, check.max_rel_err) == (False, None, None)
    assert note in check.note


def test_wrong_shape_fails():
    check = compare("y", np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32))
    assert (check.passed, check.note) == (False, "shape [2, 3], expected [3, 2]")


def test_wrong_dtype_fails():
    check = compare("y", np.zeros(2, np.float64), np.zeros(2, np.float32))
    assert (check.passed, check.note) == (False, "dtype float64, expected float32")


def test_integers_are_exact():
    assert compare("y", np.array([1, 2]), np.array([1, 2])).passed
    check = compare("y", np.array([1, 4]), np.array([1, 2]))
    assert (check.passed, check.max_abs_err, check.max_rel_err) == (False, 2.0, 1.0)
    assert check.note == "1 of 2 elements differ"


def test_integers_beyond_float64_are_exact():
    check = compare("y", np.array([2**62 + 1]), np.array([2**62]))
    assert (check.passed, check.max_abs_err) == (False, 1.0)


def test_unsigned_difference_does_not_wrap():
    assert compare("y", np.array([0], np.uint8), np.array([1], np.uint8)).max_abs_err == 1.0


def test_booleans_are_exact():
    assert compare("y", np.array([True, False]), np.array([True, False])).passed
    assert not compare("y", np.array([True, True]), np.array([True, False])).passed


def test_text_is_exact():
    assert compare("y", np.array(["a"], object), np.array(["a"], object)).passed
    check = compare("y", np.array(["a", "b"], object), np.array(["a", "c"], object))
    assert (check.passed, check.max_abs_err, check.note) == (False, None, "1 of 2 elements differ")


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_scalars_and_empty_tensors_compare(dtype):
    assert compare("y", np.array(3, dtype), np.array(3, dtype)).passed
    assert not compare("y", np.array(3, dtype), np.array(4, dtype)).passed
    assert compare("y", np.zeros((0, 2), dtype), np.zeros((0, 2), dtype)).passed


def test_verify_passes_when_every_reference_tensor_does():
    found = verify(
        "mapping", {"a": floats(1), "b": floats(2), "more": floats(3)}, {"a": floats(1), "b": floats(2)}, "ort"
    )
    assert (found.passed, found.subject, found.reference) == (True, "mapping", "ort")
    assert [check.tensor for check in found.checks] == ["a", "b"]


def test_verify_fails_with_one_wrong_tensor():
    found = verify("mapping", {"a": floats(1), "b": floats(3)}, {"a": floats(1), "b": floats(2)}, "ort")
    assert [check.passed for check in found.checks] == [True, False]
    assert not found.passed


def test_verify_fails_when_a_tensor_was_not_computed():
    found = verify("mapping", {}, {"a": floats(1)}, "ort")
    assert (found.passed, found.checks[0].note) == (False, "not computed")


def test_verify_never_passes_having_compared_nothing():
    assert not verify("mapping", {"a": floats(1)}, {}, "ort").passed


def test_verify_hands_the_scope_on():
    ours, reference = {"a": floats(1.00005)}, {"a": floats(1.0)}
    assert verify("mapping", ours, reference, "ort").passed
    assert not verify("kernel", ours, reference, "ort", scope="kernel").passed
