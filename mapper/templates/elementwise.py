"""Element-wise operators that bypass TVM's importer: those it makes slow, and those in which it loses NaN."""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from mapper.records import GroupSpec, Operator
from mapper.templates import fastmath
from mapper.templates.protocol import Convert

FAST: Mapping[str, Callable[[Any], Any]] = {
    "Exp": fastmath.exp,
    "Sigmoid": fastmath.sigmoid,
    "Tanh": fastmath.tanh,
    "Erf": fastmath.erf,
}


def converters(spec: GroupSpec) -> Mapping[int, Convert]:
    """Return the converters of a group's float32 operators that have a form here, by operator index."""
    found = {}
    for operator in spec.operators:
        convert = _convert(spec, operator)
        if convert is not None and spec.tensors[operator.outputs[0]].dtype == "float32":
            found[operator.index] = convert
    return found


def _convert(spec: GroupSpec, operator: Operator) -> Convert | None:
    if operator.op_type in FAST:
        return _unary(FAST[operator.op_type])
    if operator.op_type == "Relu":
        return _unary(relu)
    if operator.op_type == "Clip":
        bounds = _bounds(spec, operator)
        return _unary(lambda x: clip(x, *bounds)) if bounds is not None else None
    if operator.op_type in ("Max", "Min"):
        return _variadic(larger if operator.op_type == "Max" else smaller)
    return _of_known_number(spec, operator)


def _of_known_number(spec: GroupSpec, operator: Operator) -> Convert | None:
    """Return how to divide by a number, or to raise to the power of 2."""
    known = _known_number(spec, operator) if operator.op_type in ("Div", "Pow") else None
    if operator.op_type == "Div" and known is not None and 1e-30 < abs(known) < 1e30:
        return _unary(divided_by(known))
    return _unary(square) if operator.op_type == "Pow" and known == 2.0 else None


def relu(x: Any) -> Any:
    """Return max(x, 0), NaN for NaN."""
    from tvm import tirx  # noqa: PLC0415 TVM only where a worker runs it

    return tirx.Select(x < _constant(0.0), _constant(0.0), x)


def clip(x: Any, low: float | None, high: float | None) -> Any:
    """Return x held between bounds, None for no bound; NaN for NaN."""
    return fastmath.clipped_to(x, low, high)


def divided_by(divisor: float) -> Callable[[Any], Any]:
    """Return how to divide by a number that is known: division takes ten times as long as multiplication."""
    return lambda x: x * _constant(1.0 / divisor)


def square(x: Any) -> Any:
    """Return x · x, for which TVM would call the C library's pow."""
    return x * x


def larger(a: Any, b: Any) -> Any:
    """Return the larger, NaN when either is."""
    from tvm import tirx  # noqa: PLC0415

    # isnan would keep the loop from being vectorized
    return tirx.Select(a <= tirx.infinity("float32"), tirx.Select(a > b, a, b), a)


def smaller(a: Any, b: Any) -> Any:
    """Return the smaller, NaN when either is."""
    from tvm import tirx  # noqa: PLC0415

    return tirx.Select(a <= tirx.infinity("float32"), tirx.Select(a < b, a, b), a)


def _known_number(spec: GroupSpec, operator: Operator) -> float | None:
    """Return an operator's second input when it is one number, known at compile time, that broadcasts nothing."""
    value = spec.constants.get(operator.inputs[1]) if len(operator.inputs) == 2 else None
    source, result = (spec.tensors[name].shape for name in (operator.inputs[0], operator.outputs[0]))
    if not isinstance(value, Mapping) or len(value["data"]) != 1 or source != result:
        return None
    return float(value["data"][0])


def _bounds(spec: GroupSpec, operator: Operator) -> tuple[float | None, float | None] | None:
    """Return a Clip's bounds, from attributes (before opset 11) or baked inputs; None when they are not constant."""
    if len(operator.inputs) == 1:
        low, high = (operator.attributes.get(name) for name in ("min", "max"))
        return _number(low), _number(high)
    bounds = []
    for name in (*operator.inputs[1:3], "", "")[:2]:
        value = spec.constants.get(name) if name else None
        if name and not isinstance(value, Mapping):
            return None
        bounds.append(float(value["data"][0]) if isinstance(value, Mapping) else None)
    return bounds[0], bounds[1]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _unary(function: Callable[[Any], Any]) -> Convert:
    def convert(builder: Any, inputs: list[Any], _attributes: Mapping[str, Any]) -> Any:
        from tvm import te  # noqa: PLC0415

        return builder.emit_te(lambda x: te.compute(x.shape, lambda *i: function(x[i]), name="elementwise"), inputs[0])

    return convert


def _variadic(function: Callable[[Any, Any], Any]) -> Convert:
    """Fold a function over inputs that broadcast to one another, as numpy does."""

    def convert(builder: Any, inputs: list[Any], _attributes: Mapping[str, Any]) -> Any:
        return builder.emit_te(lambda *tensors: _folded(function, tensors), *inputs)

    return convert


def _folded(function: Callable[[Any, Any], Any], tensors: tuple[Any, ...]) -> Any:
    from tvm import te  # noqa: PLC0415

    shapes = [tuple(int(size) for size in tensor.shape) for tensor in tensors]
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    out = tuple(max(sizes) for sizes in zip(*padded, strict=True))

    def at(tensor: Any, shape: tuple[int, ...], index: tuple[Any, ...]) -> Any:
        tail = index[rank - len(shape) :]
        return tensor[tuple(0 if size == 1 else i for size, i in zip(shape, tail, strict=True))] if shape else tensor()

    def value(*index: Any) -> Any:
        return reduce(function, [at(tensor, shape, index) for tensor, shape in zip(tensors, shapes, strict=True)])

    return te.compute(out, value, name="elementwise")


def _constant(value: float) -> Any:
    from tvm import tirx  # noqa: PLC0415

    return tirx.const(value, "float32")
