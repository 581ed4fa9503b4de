"""Reshapes that keep rows whole: read and written in place, because only what is above a row gets other axes."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from mapper.records import GroupSpec, Operator
from mapper.templates.protocol import Convert

VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})


def is_view(spec: GroupSpec, operator: Operator) -> bool:
    """Say whether the operator gives its input's elements in their order, in rows of the same length."""
    if operator.op_type not in VIEWS:
        return False
    source, result = (spec.tensors[name].shape for name in (operator.inputs[0], operator.outputs[0]))
    return source[-1:] == result[-1:] != () and prod(source) == prod(result)


def source_of(spec: GroupSpec, name: str) -> str:
    """Return the tensor that `name` is a view of; `name` itself when it is none."""
    maker = {output: operator for operator in spec.operators for output in operator.outputs}
    while name in maker and is_view(spec, maker[name]):
        name = maker[name].inputs[0]
    return name


def converters(spec: GroupSpec) -> Mapping[int, Convert]:
    """Emit views without the divisions by the row's length that TVM's importer leaves in the way of vectors."""
    return {
        operator.index: _convert(spec.tensors[operator.outputs[0]].shape)
        for operator in spec.operators
        if is_view(spec, operator)
    }


def _convert(shape: tuple[int, ...]) -> Convert:
    def convert(builder: Any, inputs: list[Any], _attributes: Mapping[str, Any]) -> Any:
        from tvm import te  # noqa: PLC0415 TVM only where a worker runs it

        def view(x: Any) -> Any:
            source = tuple(int(size) for size in x.shape)
            return te.compute(shape, lambda *index: x[regrouped(index, shape, source)], name="view")

        return builder.emit_te(view, inputs[0])

    return convert


def regrouped(index: Sequence[Any], found: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[Any, ...]:
    """Return an index into the shape `found` as one into the shape `wanted`, whose last extent is the same."""
    if are_alike(found, wanted):
        kept = [at for at, extent in zip(index[:-1], found[:-1], strict=True) if extent > 1]
        return (*(0 if extent == 1 else kept.pop(0) for extent in wanted[:-1]), index[-1])
    row = row_number(index[:-1], found[:-1])
    axes: list[Any] = []
    for extent in reversed(wanted[:-1]):
        axes.insert(0, row % extent if len(axes) < len(wanted) - 2 else row)
        row = row // extent
    return (*axes, index[-1])


def row_number(index: Sequence[Any], extents: Sequence[int]) -> Any:
    """Return which row an index into the axes above the rows means."""
    row = index[0] if index else 0
    for at, extent in zip(index[1:], extents[1:], strict=True):
        row = row * extent + at
    return row


def are_alike(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Say whether two shapes differ only in axes of extent 1 above the rows."""
    long, others = ([extent for extent in shape[:-1] if extent > 1] for shape in (one, other))
    return long == others


def undo(sch: Any, out: Any, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Let the loops of a block that writes the shape `found` run over the axes of `wanted`."""
    if found == wanted:
        return
    from tvm import tirx  # noqa: PLC0415

    def regroup(*index: Any) -> list[Any]:
        return [tirx.const(0, "int64") if isinstance(at, int) else at for at in regrouped(index, found, wanted)]

    sch.transform_block_layout(out, tirx.IndexMap.from_func(regroup, ndim=len(found)))
