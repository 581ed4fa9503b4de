"""exp, sigmoid, tanh and erf in float32 as polynomials that vectorize; LLVM would call the C library for each element.

Each keeps NaN, and ±infinity goes where the function goes. Largest error against float64, relative to the larger of the
value and 1e-3: 6e-7 (erf), 1.4e-7 (the others).
"""

from collections.abc import Callable
from typing import Any

# exp(x) = 2^n · exp(r), r = x − n·ln 2. Source: Cephes, expf (single precision), S. L. Moshier.
_EXP_HIGH, _EXP_LOW = 88.72283, -87.33654
_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP_POLY = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# tanh(x) = x + x³·p(x²) for |x| < 0.625. Source: Cephes, tanhf.
_TANH_SMALL = 0.625
_TANH_POLY = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
# erf(x) = 1 − t·p(t)·exp(−x²), t = 1/(1 + 0.3275911 x). Source: Abramowitz and Stegun, 7.1.26.
_ERF_T = 0.3275911
_ERF_POLY = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
# Taylor series of erf, coefficients of x^11, x^9, … x, for |x| < 0.5.
_ERF_SMALL = 0.5
_ERF_SERIES = (-8.5483270e-4, 5.2239776e-3, -2.6866170645e-2, 1.1283791671e-1, -3.7612638903e-1, 1.1283791671)

Function = Callable[[Any], Any]


def exp(x: Any) -> Any:
    """Return e to the power of x."""
    return _let("x", x, _exp)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(−x))."""
    one = _constant(1.0)
    return one / (one + exp(_constant(0.0) - x))


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent of x."""
    return _let("x", x, _tanh)


def erf(x: Any) -> Any:
    """Return the error function of x."""
    return _let("x", x, _erf)


def _exp(x: Any) -> Any:
    from tvm import tirx  # noqa: PLC0415

    clipped = tirx.min(tirx.max(x, _constant(_EXP_LOW)), _constant(_EXP_HIGH))

    def of_exponent(n: Any) -> Any:
        remainder = clipped - n * _constant(_LN2_HIGH) - n * _constant(_LN2_LOW)
        return _let("r", remainder, lambda r: of_remainder(n, r))

    def of_remainder(n: Any, r: Any) -> Any:
        value = _horner(_EXP_POLY, r) * r * r + r + _constant(1.0)
        # 2^(n − 1) · 2, because 2^128 is no float
        half_scale = tirx.reinterpret(
            "float32", (n.astype("int32") + tirx.const(126, "int32")) * tirx.const(1 << 23, "int32")
        )
        return value * half_scale * _constant(2.0)

    value = _let("n", tirx.floor(clipped * _constant(_LOG2_E) + _constant(0.5)), of_exponent)
    above = tirx.Select(x > _constant(_EXP_HIGH), tirx.infinity("float32"), value)
    ordered = tirx.Select(x < _constant(_EXP_LOW), _constant(0.0), above)
    return tirx.Select(tirx.isnan(x), x, ordered)


def _tanh(x: Any) -> Any:
    from tvm import tirx  # noqa: PLC0415

    magnitude = tirx.abs(x)
    small = x + x * _let("z", x * x, lambda z: z * _horner(_TANH_POLY, z))
    large = _constant(1.0) - _constant(2.0) / (exp(magnitude + magnitude) + _constant(1.0))
    signed = _let("y", large, lambda y: tirx.Select(x < _constant(0.0), _constant(0.0) - y, y))
    return tirx.Select(magnitude < _constant(_TANH_SMALL), small, signed)


def _erf(x: Any) -> Any:
    from tvm import tirx  # noqa: PLC0415

    magnitude = tirx.abs(x)
    small = x * _horner(_ERF_SERIES, x * x)
    t = _constant(1.0) / (_constant(1.0) + _constant(_ERF_T) * magnitude)
    large = _constant(1.0) - _let("t", t, lambda t: t * _horner(_ERF_POLY, t)) * exp(_constant(0.0) - x * x)
    signed = _let("y", large, lambda y: tirx.Select(x < _constant(0.0), _constant(0.0) - y, y))
    return tirx.Select(magnitude < _constant(_ERF_SMALL), small, signed)


def _horner(coefficients: tuple[float, ...], x: Any) -> Any:
    value = _constant(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + _constant(coefficient)
    return value


def _constant(value: float) -> Any:
    from tvm import tirx  # noqa: PLC0415

    return tirx.const(value, "float32")


def _let(name: str, value: Any, body: Function) -> Any:
    """Bind a value once: without it every use of the expression would be computed again."""
    from tvm import tirx  # noqa: PLC0415

    variable = tirx.Var(name, "float32")
    return tirx.Let(variable, value, body(variable))
