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
    return None


def relu(x: Any) -> Any:
    """Return max(x, 0), NaN for NaN."""
    from tvm import tirx  # noqa: PLC0415 TVM only where a worker runs it

    return tirx.Select(x < _constant(0.0), _constant(0.0), x)


def clip(x: Any, low: float | None, high: float | None) -> Any:
    """Return x held between bounds, None for no bound; NaN for NaN."""
    from tvm import tirx  # noqa: PLC0415

    if high is not None:
        x = tirx.Select(x > _constant(high), _constant(high), x)
    if low is not None:
        x = tirx.Select(x < _constant(low), _constant(low), x)
    return x


def larger(a: Any, b: Any) -> Any:
    """Return the larger, NaN when either is."""
    from tvm import tirx  # noqa: PLC0415

    return tirx.Select(tirx.any(a > b, tirx.isnan(a)), a, b)


def smaller(a: Any, b: Any) -> Any:
    """Return the smaller, NaN when either is."""
    from tvm import tirx  # noqa: PLC0415

    return tirx.Select(tirx.any(a < b, tirx.isnan(a)), a, b)


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
