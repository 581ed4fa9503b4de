"""Binding dynamic input dimensions to numbers, and saying which flag binds what is left."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import onnx

from mapper.errors import BadInputError
from mapper.records import DimBinding

Source = Literal["--dim", "--shape", "--inputs", "default", "zoo"]
_UNNAMED = frozenset({"", "?", "-1", "None"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bindings:
    """What binds dimensions, strongest first: symbols by name, shapes by input, then the zoo's own shapes."""

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    npz_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    default_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Axis:
    """One axis of one input: a fixed size, a symbol, or an independent unknown (both None)."""

    input: str
    axis: int
    size: int | None
    symbol: str | None
    source: Source | None = None  # None: the file fixed it


def bind_inputs(
    where: str, inputs: Sequence[onnx.ValueInfoProto], wanted: Bindings
) -> tuple[dict[str, tuple[int, ...]], tuple[DimBinding, ...]]:
    """Give every axis of every input a size.

    A symbol is one unknown wherever it occurs; unnamed axes are each an unknown of their own. When nothing but
    leading axes of one symbol (or one unnamed leading axis) stays unbound, they become 1.

    Returns:
        The static shape of each input, and how each dynamic axis got its size.

    Raises:
        BadInputError: on contradictions, unknown names, wrong ranks, and whatever stays unbound.
    """
    _check_names(where, inputs, wanted)
    axes = _axes(where, inputs, wanted)
    dynamic = [axis for axes_of in axes.values() for axis in axes_of if axis.size is None]
    _bind_symbols(where, axes, wanted.dims)
    _bind_shapes(where, axes, wanted.shapes, "--shape")
    _bind_shapes(where, axes, wanted.npz_shapes, "--inputs")
    untouched = {name: s for name, s in wanted.default_shapes.items() if all(a.source is None for a in axes[name])}
    _bind_shapes(where, axes, untouched, "zoo")
    _default_batch(axes)
    _refuse_unbound(where, axes)
    shapes = {name: tuple(axis.size or 0 for axis in axes_of) for name, axes_of in axes.items()}
    bound = tuple(
        DimBinding(input=a.input, axis=a.axis, name=a.symbol, value=a.size, source=a.source)
        for a in dynamic
        if a.size is not None and a.source is not None
    )
    return shapes, bound


def _check_names(where: str, inputs: Sequence[onnx.ValueInfoProto], wanted: Bindings) -> None:
    names = [value.name for value in inputs]
    given = (("--shape", wanted.shapes), ("--inputs", wanted.npz_shapes), ("zoo", wanted.default_shapes))
    for flag, shapes in given:
        for name in shapes:
            if name not in names:
                raise BadInputError(f"{where}: {flag} names the input '{name}': expected one of {_listed(names)}")
    symbols = {_symbol(dim) for value in inputs for dim in value.type.tensor_type.shape.dim} - {None}
    for name, size in wanted.dims.items():
        if name not in symbols:
            known = (
                f"expected one of {_listed(sorted(filter(None, symbols)))}" if symbols else "it has none that is named"
            )
            raise BadInputError(f"{where}: --dim names the dimension '{name}': {known}; --shape binds by input")
        if size < 1:
            raise BadInputError(f"{where}: --dim {name}={size}: expected a size of at least 1")
    for flag, shapes in given:
        for name, shape in shapes.items():
            if any(size < 1 for size in shape):
                raise BadInputError(f"{where}: {flag} {name}={_joined(shape)}: expected sizes of at least 1")


def _symbol(dim: onnx.TensorShapeProto.Dimension) -> str | None:
    return None if dim.dim_param.strip() in _UNNAMED else dim.dim_param


def _axes(where: str, inputs: Sequence[onnx.ValueInfoProto], wanted: Bindings) -> dict[str, list[_Axis]]:
    axes: dict[str, list[_Axis]] = {}
    for value in inputs:
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            axes[value.name] = [_axis(where, value.name, axis, dim) for axis, dim in enumerate(tensor.shape.dim)]
            continue
        sources = (wanted.shapes, wanted.npz_shapes, wanted.default_shapes)
        shape = next((given[value.name] for given in sources if value.name in given), None)
        if shape is None:
            raise BadInputError(
                f"{where}: input '{value.name}' declares no rank: give it one with --shape {value.name}=N,C,H,W"
            )
        axes[value.name] = [_Axis(value.name, axis, None, None) for axis in range(len(shape))]
    return axes


def _axis(where: str, name: str, axis: int, dim: onnx.TensorShapeProto.Dimension) -> _Axis:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        if dim.dim_value == 0:
            raise BadInputError(
                f"{where}: input '{name}' axis {axis} has size 0: expected at least 1; export it with a real size"
            )
        return _Axis(name, axis, dim.dim_value, None)
    return _Axis(name, axis, None, _symbol(dim))


def _bind_symbols(where: str, axes: Mapping[str, list[_Axis]], dims: Mapping[str, int]) -> None:
    for name, size in dims.items():
        for axis in (a for axes_of in axes.values() for a in axes_of if a.symbol == name):
            _set(where, axes, axis, size, "--dim")


def _bind_shapes(
    where: str, axes: Mapping[str, list[_Axis]], shapes: Mapping[str, tuple[int, ...]], source: Source
) -> None:
    for name, shape in shapes.items():
        if len(shape) != len(axes[name]):
            raise BadInputError(
                f"{where}: {source} {name}={_joined(shape)}: expected {len(axes[name])} sizes "
                f"({_pattern(axes[name])}), found {len(shape)}"
            )
        for axis, size in zip(axes[name], shape, strict=True):
            _set(where, axes, axis, size, source)


def _set(where: str, axes: Mapping[str, list[_Axis]], axis: _Axis, size: int, source: Source) -> None:
    """Bind one axis, and every other axis of the same symbol."""
    same = [a for of in axes.values() for a in of if axis.symbol is not None and a.symbol == axis.symbol] or [axis]
    for other in same:
        if other.size is None:
            other.size, other.source = size, source
        elif other.size != size:
            what = f"'{other.symbol}'" if other.symbol else "which has a fixed size"
            by = f" by {other.source}" if other.source else ""
            fix = "make the two agree" if other.source else "leave it as the model fixes it"
            raise BadInputError(
                f"{where}: {source} wants {size} for input '{axis.input}' axis {axis.axis} ({what}): "
                f"it is already {other.size}{by}; {fix}"
            )


def _default_batch(axes: Mapping[str, list[_Axis]]) -> None:
    unbound = [a for axes_of in axes.values() for a in axes_of if a.size is None]
    names = {a.symbol for a in unbound}
    if not unbound or any(a.axis != 0 for a in unbound) or len(names) != 1:
        return
    for axis in unbound:
        axis.size, axis.source = 1, "default"


def _refuse_unbound(where: str, axes: Mapping[str, list[_Axis]]) -> None:
    unbound = [a for axes_of in axes.values() for a in axes_of if a.size is None]
    if not unbound:
        return
    parts = []
    for axis in unbound:
        flag = f"--dim {axis.symbol}=VALUE" if axis.symbol else f"--shape {axis.input}={_pattern(axes[axis.input])}"
        parts.append(f"input '{axis.input}' axis {axis.axis} ({axis.symbol or 'unnamed'}): {flag}")
    count = f"{len(unbound)} dimension{'s are' if len(unbound) > 1 else ' is'}"
    raise BadInputError(f"{where}: {count} not bound: {'; '.join(parts)} (replace VALUE and ? by sizes)")


def _pattern(axes: Sequence[_Axis]) -> str:
    return ",".join("?" if axis.size is None else str(axis.size) for axis in axes)


def _joined(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
