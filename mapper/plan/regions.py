"""Owns the regions that become one kernel as a whole: attention, and normalisations written out as operators.

Like every group of `chains.py` a region has a single exit, and every other operator of it leads there.
"""

from collections.abc import Sequence

from mapper.plan.chains import MAX_GROUP_OPERATORS, is_elementwise, is_reindexing, keeps_rows, words
from mapper.plan.group import Uses
from mapper.records import Operator

ROW_REDUCTIONS = words("ReduceMax ReduceMean ReduceSum ReduceSumSquare ReduceL2")
_MAX_ROW_OPERATORS = 16
_MAX_OPERAND_OPERATORS = 4
_MIN_ROW = 16  # shorter rows are no work for vectors


def attention_regions(uses: Uses) -> list[tuple[int, ...]]:
    """Return each softmax(q · kᵀ …) · v of the graph with the re-indexing around it, exit last.

    Taken: two float32 products of computed operands with equal batch dimensions; the element-wise operators (scale,
    mask) between the first and the softmax; the re-indexing and scaling of q, k and v that nothing else reads; and the
    heads joined afterwards, (b, h, m, d) → (b, m, h, d) → (…, h·d).
    """
    found = (_attention(uses, operator) for operator in uses.graph.operators if operator.op_type == "Softmax")
    return [region for region in found if region]


def row_regions(uses: Uses) -> list[tuple[int, ...]]:
    """Return the normalisations of rows that are written out, exit last: each begins with a reduction of the last axis.

    From the reduction on, readers are added in graph order (element-wise ones of rows or of one number a row, and
    reductions of rows) until one row-shaped output is left that others see, and on while that adds reductions. A layer
    norm ends before its scale, which is an epilogue; a softmax ends with its division.
    """
    taken: set[int] = set()
    regions = []
    for operator in uses.graph.operators:
        region = _row_region(uses, operator) if _reduces_rows(uses, operator) else ()
        if region and not taken.intersection(region):
            taken.update(region)
            regions.append(region)
    return regions


def _attention(uses: Uses, softmax: Operator) -> tuple[int, ...]:
    second = _sole_reader(uses, softmax)
    if second is None or not _is_last_axis(uses, softmax) or not _is_batched_product(uses, second):
        return ()
    if second.inputs[0] != softmax.outputs[0] or second.inputs[1] == softmax.outputs[0]:
        return ()
    scores = _scores(uses, softmax)
    if not scores or not _is_batched_product(uses, scores[0]):
        return ()
    operands = [
        *_operand(uses, scores[0], scores[0].inputs[0]),
        *_operand(uses, scores[0], scores[0].inputs[1]),
        *_operand(uses, second, second.inputs[1]),
    ]
    joined = _joined_heads(uses, second)
    inside = {operator.index for operator in (*operands, *scores, softmax, second, *joined)}
    exit_index = joined[-1].index if joined else second.index
    return (*sorted(inside - {exit_index}), exit_index) if len(inside) <= MAX_GROUP_OPERATORS else ()


def _scores(uses: Uses, softmax: Operator) -> list[Operator]:
    """Return the first product and the element-wise operators from it to the softmax; nothing when there is no such."""
    shape = uses.graph.tensors[softmax.inputs[0]].shape
    path: list[Operator] = []
    reader, names = softmax, softmax.inputs[:1]
    while len(path) < _MAX_ROW_OPERATORS:
        sources = [_private_source(uses, reader, name) for name in names if uses.graph.tensors[name].shape == shape]
        found = [source for source in sources if source is not None]
        if len(found) != 1:
            return []
        reader = found[0]
        path.insert(0, reader)
        if reader.op_type == "MatMul":
            return path
        if not is_elementwise(reader):
            return []
        names = reader.inputs
    return []


def _operand(uses: Uses, product: Operator, name: str) -> list[Operator]:
    """Return what only this product reads: re-indexing, and scaling after it. A bias belongs to what is before."""
    path: list[Operator] = []
    source = _private_source(uses, product, name)
    while source is not None and len(path) < _MAX_OPERAND_OPERATORS:
        computed = [item for item in source.inputs if item and not _is_constant(uses, item)]
        is_scaling = is_elementwise(source) and len(computed) == 1
        if not (is_reindexing(source) or is_scaling) or not _is_float(uses, computed[0]):
            break
        path.insert(0, source)
        source = _private_source(uses, source, computed[0])
    while path and not is_reindexing(path[0]):
        path.pop(0)
    return path


def _joined_heads(uses: Uses, product: Operator) -> list[Operator]:
    """Return the transpose that puts heads beside their elements, and what then joins the two axes."""
    shape = _shape(uses, product)
    swap = _sole_reader(uses, product)
    if swap is None or swap.op_type != "Transpose" or swap.attributes.get("perm") != [0, 2, 1, 3]:
        return []
    join = _sole_reader(uses, swap)
    if join is None or join.op_type != "Reshape" or _shape(uses, join)[-1:] != (shape[1] * shape[3],):
        return [swap]
    view = _sole_reader(uses, join)
    return [swap, join] if view is None or not keeps_rows(uses.graph, view) else [swap, join, view]


def _row_region(uses: Uses, reduction: Operator) -> tuple[int, ...]:
    rows = uses.graph.tensors[reduction.inputs[0]].shape
    region, inside = [reduction.index], {reduction.index}
    exits = {reduction.outputs[0]}
    found: tuple[int, ...] = ()
    is_reduced = True  # since the last single exit
    while len(region) < _MAX_ROW_OPERATORS and not exits & uses.visible:
        readers = {index for name in exits for index in uses.consumers.get(name, ()) if index not in inside}
        if not readers or not _is_of_rows(uses, uses.graph.operators[min(readers)], rows):
            break
        operator = uses.graph.operators[min(readers)]
        region.append(operator.index)
        inside.add(operator.index)
        exits = {name for name in exits if any(reader not in inside for reader in uses.consumers[name])}
        is_reduced = is_reduced or operator.op_type in ROW_REDUCTIONS
        if not exits and _shape(uses, operator) == rows and is_reduced:
            found, is_reduced = tuple(region), False
        exits.add(operator.outputs[0])
    return found


def _is_of_rows(uses: Uses, operator: Operator, rows: tuple[int, ...]) -> bool:
    if is_elementwise(operator):
        return _shape(uses, operator) in (rows, (*rows[:-1], 1)) and _is_float(uses, operator.outputs[0])
    return _reduces_rows(uses, operator) and uses.graph.tensors[operator.inputs[0]].shape == rows


def _reduces_rows(uses: Uses, operator: Operator) -> bool:
    """Say whether the operator reduces the last axis of float32 rows, and keeps it with extent 1."""
    if operator.domain or operator.op_type not in ROW_REDUCTIONS or not _is_float(uses, operator.inputs[0]):
        return False
    source = uses.graph.tensors[operator.inputs[0]].shape
    return len(source) > 1 and source[-1] >= _MIN_ROW and _shape(uses, operator) == (*source[:-1], 1)


def _is_batched_product(uses: Uses, operator: Operator) -> bool:
    if operator.domain or operator.op_type != "MatMul" or any(_is_constant(uses, name) for name in operator.inputs):
        return False
    a, b = (uses.graph.tensors[name] for name in operator.inputs)
    return a.dtype == "float32" and len(a.shape) in (3, 4) and a.shape[:-2] == b.shape[:-2]


def _is_last_axis(uses: Uses, softmax: Operator) -> bool:
    since, rank = softmax.attributes.get("@since_version", 13), len(_shape(uses, softmax))
    axis = softmax.attributes.get("axis", -1 if isinstance(since, int) and since >= 13 else 1)
    return axis in (-1, rank - 1) and _shape(uses, softmax)[-1] >= _MIN_ROW


def _private_source(uses: Uses, reader: Operator, name: str) -> Operator | None:
    """Return the operator that computed `name` for `reader` alone."""
    index = uses.producer.get(name)
    if index is None or name in uses.visible or uses.consumers[name] != (reader.index,):
        return None
    source: Operator = uses.graph.operators[index]
    return source if not source.domain and len(source.outputs) == 1 and list(reader.inputs).count(name) == 1 else None


def _sole_reader(uses: Uses, operator: Operator) -> Operator | None:
    readers: Sequence[int] = uses.consumers.get(operator.outputs[0], ())
    if len(readers) != 1 or operator.outputs[0] in uses.visible or len(operator.outputs) != 1:
        return None
    return uses.graph.operators[readers[0]]


def _is_constant(uses: Uses, name: str) -> bool:
    return name in uses.graph.weights or name in uses.graph.constants


def _is_float(uses: Uses, name: str) -> bool:
    return uses.graph.tensors[name].dtype == "float32"


def _shape(uses: Uses, operator: Operator) -> tuple[int, ...]:
    return uses.graph.tensors[operator.outputs[0]].shape
