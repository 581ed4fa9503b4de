"""Attention as numbers and as tensor expressions: what is in a group, its two products, and the joined heads."""

from dataclasses import dataclass
from math import prod
from typing import Any

from mapper.records import GroupSpec, Operator
from mapper.templates import views
from mapper.templates.rowwise import BETWEEN, MIN_ROW, reduced_axes
from mapper.templates.tiles import ceil_div

REINDEXING = frozenset({"Flatten", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
ELEMENTWISE = BETWEEN | {"Where", "Cast", "Not", "Equal"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """softmax(q · kᵀ) · v as numbers: `lead` axes of heads, (m, k) queries, n keys, (n, d) values.

    `anchors` are the operators of the first product, the softmax and the second product. `swapped` says that heads come
    after rows in the output, `joined` is the operator that then makes heads and elements one axis.
    """

    lead: tuple[int, ...]
    m: int
    n: int
    k: int
    d: int
    anchors: tuple[int, int, int]
    swapped: bool
    joined: int | None

    @property
    def heads(self) -> int:
        """Number of heads of the whole batch."""
        return prod(self.lead)

    def undo_join(self, sch: Any, out: Any, found: tuple[int, ...]) -> None:
        """Let the output's loops run over (lead…, m, d)."""
        if not self.swapped:
            return
        from tvm import tirx  # noqa: PLC0415 TVM only where a worker runs it

        def swap(batch: Any, row: Any, head: Any, at: Any) -> list[Any]:
            return [batch, head, row, at]

        def split(*index: Any) -> list[Any]:
            row = views.row_number(index[:-1], found[:-1])
            batch = row // self.m if self.lead[0] > 1 else tirx.const(0, "int64")
            row = row % self.m if self.lead[0] > 1 else row
            return [batch, index[-1] // self.d, row, index[-1] % self.d]

        if self.joined is None:
            sch.transform_block_layout(out, swap)
        else:
            sch.transform_block_layout(out, tirx.IndexMap.from_func(split, ndim=len(found)))


def attention_shape(spec: GroupSpec) -> AttentionShape | None:
    """Read a group as attention; None when it is anything else."""
    products = [operator for operator in spec.operators if operator.op_type == "MatMul"]
    softmaxes = [operator for operator in spec.operators if operator.op_type == "Softmax"]
    if len(products) != 2 or len(softmaxes) != 1 or len(spec.outputs) != 1:
        return None
    (first, second), softmax = products, softmaxes[0]
    a, b, v = (spec.tensors[name] for name in (*first.inputs, second.inputs[1]))
    if second.inputs[0] != softmax.outputs[0] or len(a.shape) not in (3, 4) or a.shape[:-2] != b.shape[:-2]:
        return None
    rank = len(a.shape)
    is_last = reduced_axes(spec, softmax) == (rank - 1,)
    if a.dtype != "float32" or v.shape[:-2] != a.shape[:-2] or not is_last or b.shape[-1] < MIN_ROW:
        return None
    after = [operator for operator in spec.operators if operator.index > second.index]
    others = [operator for operator in spec.operators if operator not in (first, second, softmax, *after)]
    if not _is_joining(spec, second, after) or not _are_beside(spec, others, first, softmax):
        return None
    joined = next((operator.index for operator in after if operator.op_type != "Transpose"), None)
    return AttentionShape(
        lead=tuple(a.shape[:-2]),
        m=a.shape[-2],
        k=a.shape[-1],
        n=b.shape[-1],
        d=v.shape[-1],
        anchors=(first.index, softmax.index, second.index),
        swapped=bool(after),
        joined=joined,
    )


def _is_joining(spec: GroupSpec, second: Operator, after: list[Operator]) -> bool:
    """Say whether what follows puts heads after rows, and then perhaps heads and elements into one axis."""
    if not after:
        return True
    swap, *rest = after
    if swap.op_type != "Transpose" or swap.attributes.get("perm") != [0, 2, 1, 3]:
        return False
    shape = spec.tensors[second.outputs[0]].shape
    is_joined = all(spec.tensors[operator.outputs[0]].shape[-1:] == (shape[1] * shape[3],) for operator in rest)
    return is_joined and all(operator.op_type in views.VIEWS for operator in rest)


def _are_beside(spec: GroupSpec, others: list[Operator], first: Operator, softmax: Operator) -> bool:
    """Say whether the rest re-indexes and scales operands, and scales and masks scores at their shape."""
    shape = spec.tensors[first.outputs[0]].shape
    if spec.tensors[softmax.inputs[0]].shape != shape:
        return False
    return all(operator.op_type in REINDEXING or operator.op_type in ELEMENTWISE for operator in others)


def first_product(shape: AttentionShape, vb: int, q: Any, k: Any) -> Any:
    """Return q · kᵀ from q (lead…, m, k) and k (lead…, k, n), through `qpack`, `kpack` and `acc`."""
    from tvm import te  # noqa: PLC0415

    qpack = te.compute((*shape.lead, shape.m, shape.k), lambda *i: q[i], name="qpack")
    kpack = _packed(k, shape.lead, shape.n, vb, "kpack")
    at = te.reduce_axis((0, shape.k), "k")
    acc = te.compute(
        (*shape.lead, shape.m, ceil_div(shape.n, vb), vb),
        lambda *i: te.sum(qpack[(*i[:-2], at)] * kpack[(*i[:-3], i[-2], at, i[-1])], axis=at),
        name="acc",
    )
    wanted = (*shape.lead, shape.m, shape.n)
    return te.compute(wanted, lambda *i: acc[(*i[:-1], i[-1] // vb, i[-1] % vb)], name="scores")


def second_product(shape: AttentionShape, vd: int, weights: Any, v: Any) -> Any:
    """Return weights · v from (lead…, m, n) and (lead…, n, d), through `vpack` and `mix`."""
    from tvm import te  # noqa: PLC0415

    vpack = _packed(v, shape.lead, shape.d, vd, "vpack")
    at = te.reduce_axis((0, shape.n), "n")
    mix = te.compute(
        (*shape.lead, shape.m, ceil_div(shape.d, vd), vd),
        lambda *i: te.sum(weights[(*i[:-2], at)] * vpack[(*i[:-3], i[-2], at, i[-1])], axis=at),
        name="mix",
    )
    wanted = (*shape.lead, shape.m, shape.d)
    return te.compute(wanted, lambda *i: mix[(*i[:-1], i[-1] // vd, i[-1] % vd)], name="mixed")


def join(x: Any, wanted: tuple[int, ...]) -> Any:
    """Return (b, m, h, d) with heads and elements as one axis, the rows in whatever axes."""
    from tvm import te  # noqa: PLC0415

    batch, rows, _, width = (int(size) for size in x.shape)

    def read(*index: Any) -> Any:
        row = views.row_number(index[:-1], wanted[:-1])
        above = (row // rows, row % rows) if batch > 1 else (0, row)
        return x[(*above, index[-1] // width, index[-1] % width)]

    return te.compute(wanted, read, name="joined")


def _packed(x: Any, lead: tuple[int, ...], columns: int, block: int, name: str) -> Any:
    """Return x (lead…, rows, columns) as (lead…, columns / block, rows, block), columns past the end zero."""
    from tvm import te, tirx  # noqa: PLC0415

    def pack(*index: Any) -> Any:
        *batch, outer, row, inner = index
        column = outer * block + inner
        value = x[(*batch, row, column)]
        if columns % block == 0:
            return value
        return tirx.if_then_else(column < columns, value, tirx.const(0.0, x.dtype))

    return te.compute((*lead, ceil_div(columns, block), int(x.shape[-2]), block), pack, name=name)
