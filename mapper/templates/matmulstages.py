"""A matrix product as numbers and tensor expressions: staged A, packed B, sums, and the result with its addend."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from mapper.records import GroupSpec
from mapper.templates import views
from mapper.templates.tiles import anchor_of, ceil_div, round_up

OP_TYPES = frozenset({"MatMul", "Gemm"})
STAGE_NONE, STAGE_TASK = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulShape:
    """A product as numbers: batch × (m, k) · (k, n). Matrices that meet the same B are one with all their rows."""

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    trans_a: bool
    trans_b: bool
    alpha: float
    beta: float
    b_is_constant: bool
    b_is_batched: bool

    @property
    def batch_size(self) -> int:
        """Number of products."""
        return prod(self.batch)


def matmul_shape(spec: GroupSpec) -> MatmulShape:
    """Read the shape of the group's anchor product."""
    anchor = anchor_of(spec, OP_TYPES)
    a, b = (spec.tensors[name].shape for name in anchor.inputs[:2])
    trans_a, trans_b = (bool(anchor.attributes.get(name, 0)) for name in ("transA", "transB"))
    is_batched = len(b) > 2
    return MatmulShape(
        batch=tuple(a[:-2]) if is_batched else (),
        m=a[-1] if trans_a else a[-2] if is_batched else prod(a[:-1]),
        k=a[-2] if trans_a else a[-1],
        n=b[-2] if trans_b else b[-1],
        trans_a=trans_a,
        trans_b=trans_b,
        alpha=_float(anchor.attributes.get("alpha", 1.0)),
        beta=_float(anchor.attributes.get("beta", 1.0)),
        b_is_constant=anchor.inputs[1] in spec.weights,
        b_is_batched=is_batched,
    )


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 1.0


def product(shape: MatmulShape, t: Mapping[str, int], a: Any, b: Any, c: Any = None) -> Any:
    """Return the product as tensor expressions: `astage`, `bpack`, `acc`, `matmul_out`."""
    from tvm import te  # noqa: PLC0415 TVM only where a worker runs it

    vb, rm = t["vb"], t["rm"]
    rows, blocks = round_up(shape.m, rm), ceil_div(shape.n, vb)
    k = te.reduce_axis((0, shape.k), "k")
    astage = _staged_a(shape, rm, a) if t["stage"] == STAGE_TASK else None
    bpack = b if shape.b_is_constant else _packed_b(shape, vb, b)

    def left(batch: tuple[Any, ...], m: Any) -> Any:
        return _read_a(shape, a, batch, m, k) if astage is None else astage[(*batch, m // rm, k, m % rm)]

    def element(*index: Any) -> Any:
        *batch, m, nb, v = index
        return te.sum(left(tuple(batch), m) * bpack[(*batch, nb, k, v)], axis=k)

    acc = te.compute((*shape.batch, rows, blocks, vb), element, name="acc")

    result = (shape.m, shape.n) if shape.trans_a else (*(int(size) for size in a.shape[:-1]), shape.n)

    def out(*index: Any) -> Any:
        *lead, n = views.regrouped(index, result, (*shape.batch, shape.m, shape.n))
        return _scaled(shape, acc[(*lead, n // vb, n % vb)], c, index)

    return te.compute(result, out, name="matmul_out")


def _read_a(shape: MatmulShape, a: Any, batch: tuple[Any, ...], row: Any, column: Any) -> Any:
    if shape.trans_a:
        return a[column, row]
    source = tuple(int(size) for size in a.shape)
    return a[views.regrouped((*batch, row, column), (*shape.batch, shape.m, shape.k), source)]


def _staged_a(shape: MatmulShape, rm: int, a: Any) -> Any:
    """Return A as (batch…, m/rm, k, rm), rows past the end zero."""
    from tvm import te, tirx  # noqa: PLC0415

    def stage(*index: Any) -> Any:
        *batch, mo, kk, r = index
        row = mo * rm + r
        value = _read_a(shape, a, tuple(batch), row, kk)
        if shape.m % rm == 0:
            return value
        return tirx.if_then_else(row < shape.m, value, tirx.const(0.0, a.dtype))

    return te.compute((*shape.batch, ceil_div(shape.m, rm), shape.k, rm), stage, name="astage")


def _packed_b(shape: MatmulShape, vb: int, b: Any) -> Any:
    """Return B as (batch…, n/vb, k, vb), columns past the end zero."""
    from tvm import te, tirx  # noqa: PLC0415

    def pack(*index: Any) -> Any:
        *batch, nb, kk, v = index
        column = nb * vb + v
        value = b[(*batch, column, kk)] if shape.trans_b else b[(*batch, kk, column)]
        if shape.n % vb == 0:
            return value
        return tirx.if_then_else(column < shape.n, value, tirx.const(0.0, b.dtype))

    return te.compute((*shape.batch, ceil_div(shape.n, vb), shape.k, vb), pack, name="bpack")


def _scaled(shape: MatmulShape, value: Any, c: Any, index: tuple[Any, ...]) -> Any:
    """Return alpha · value + beta · C at `index`, as Gemm says."""
    from tvm import tirx  # noqa: PLC0415

    if shape.alpha != 1.0:
        value = value * tirx.const(shape.alpha, "float32")
    if c is None or shape.beta == 0.0:
        return value
    addend = _broadcast(c, index)
    return value + (addend if shape.beta == 1.0 else addend * tirx.const(shape.beta, "float32"))


def _broadcast(tensor: Any, index: tuple[Any, ...]) -> Any:
    """Read `tensor` at `index` with numpy's broadcasting from the right."""
    rank = len(tensor.shape)
    tail = index[len(index) - rank :]
    return (
        tensor[tuple(0 if int(size) == 1 else i for size, i in zip(tensor.shape, tail, strict=True))]
        if rank
        else tensor()
    )
