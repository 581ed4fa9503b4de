"""Owns where the fusion planner lets a group grow: operator kinds, single-exit regions, prologues.

Every group grown here has a *single exit*: one operator whose output is all that the rest of the graph sees, and that
every other operator of the group leads to. A partition into single-exit groups has an acyclic quotient graph: an edge
between two groups is a path between their exits, so a cycle of groups would be a cycle of operators. No growth step
therefore has to search for cycles, and planning is linear in the graph.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from mapper.plan.group import Uses
from mapper.records import Operator, OperatorGraph

# A kernel of thousands of element-wise operators would exhaust a compiler's recursion.
MAX_GROUP_OPERATORS = 32
_MAX_REGION_OPERATORS = 16


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


ELEMENTWISE = words(
    """Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Celu
    Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN
    LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink
    Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor"""
)
# Compute anchors: take a prologue on these inputs, and an epilogue.
ANCHORS = {
    **dict.fromkeys(("Conv", "ConvTranspose"), (0,)),
    **dict.fromkeys(("MatMul", "Gemm"), (0, 1)),
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), (0,)),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"), (0,)),
    **dict.fromkeys(("ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"), (0,)),
    **dict.fromkeys(("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"), (0,)),
}
MOVEMENT = words(
    """Concat DepthToSpace Expand Flatten Gather GatherElements GatherND Pad Reshape Resize Slice SpaceToDepth Squeeze
    Tile Transpose Unsqueeze Upsample"""
)
# Movement that only re-indexes one tensor: a chain of these is one copy.
REINDEXING = words("Flatten Reshape Slice Squeeze Transpose Unsqueeze")
# Anchors that write whole rows, whatever the shape of what is above a row: they take views along.
ROW_ANCHORS = words("Gemm LayerNormalization MatMul")
_VIEWS = words("Flatten Reshape Squeeze Unsqueeze")


@dataclass(slots=True, kw_only=True)
class Growth:
    """The state of one planning run: what belongs to whom so far, and what was wanted but refused."""

    uses: Uses
    owner: dict[int, int] = field(default_factory=dict)  # operator → first operator of its group
    members: dict[int, list[int]] = field(default_factory=dict)
    row_seeds: set[int] = field(default_factory=set)  # seeds of groups that write whole rows
    complete: set[int] = field(default_factory=set)  # seeds of groups that take nothing more
    rejected: list[str] = field(default_factory=list)

    def start(self, seed: int) -> None:
        """Begin a group with the operator `seed`."""
        self.owner[seed] = seed
        self.members[seed] = [seed]

    def take(self, seed: int, operators: Iterable[int]) -> None:
        """Add free operators to the group that began with `seed`."""
        for index in operators:
            self.owner[index] = seed
            self.members[seed].append(index)


def is_elementwise(operator: Operator) -> bool:
    """Say whether each output element depends on one (broadcast) element of every input."""
    return operator.domain == "" and operator.op_type in ELEMENTWISE and len(operator.outputs) == 1


def is_anchor(operator: Operator) -> bool:
    """Say whether the operator takes prologues and epilogues."""
    return operator.domain == "" and operator.op_type in ANCHORS and len(operator.outputs) == 1


def is_movement(operator: Operator) -> bool:
    """Say whether the operator only moves elements, to one output."""
    return operator.domain == "" and operator.op_type in MOVEMENT and len(operator.outputs) == 1


def is_reindexing(operator: Operator) -> bool:
    """Say whether the operator re-indexes one tensor and does nothing else."""
    return is_movement(operator) and operator.op_type in REINDEXING


def keeps_rows(graph: OperatorGraph, operator: Operator) -> bool:
    """Say whether the operator gives its input's elements in their order, in rows of the same length."""
    if operator.domain or operator.op_type not in _VIEWS or len(operator.outputs) != 1:
        return False
    return graph.tensors[operator.inputs[0]].shape[-1:] == graph.tensors[operator.outputs[0]].shape[-1:] != ()


def grow_forward(growth: Growth, seed: int) -> None:
    """Let the group that began with the single-output operator `seed` take the longest legal chain after it.

    A chain that began with re-indexing also takes the re-indexing operators on its way; one that writes whole rows
    takes those that keep rows.
    """
    first = growth.uses.graph.operators[seed]
    tip = first.outputs[0]
    while tip not in growth.uses.visible:
        next_copy = _movement_after(growth, seed, tip)
        if next_copy is not None:
            growth.take(seed, (next_copy,))
            tip = growth.uses.graph.operators[next_copy].outputs[0]
            continue
        region = _region_after(growth, tip, MAX_GROUP_OPERATORS - len(growth.members[seed]))
        if isinstance(region, str):
            _reject(growth, seed, tip, region)
            return
        growth.take(seed, region)
        tip = growth.uses.graph.operators[region[-1]].outputs[0]


def grow_backward(growth: Growth, seed: int) -> None:
    """Let a group take the free element-wise operators that only it reads, all at the shape they are read at.

    A group that writes whole rows also takes the views between them. Candidates are visited from the last operator to
    the first: all readers of one are decided before it is.
    """
    uses = growth.uses
    candidates: list[int] = []
    seen: set[int] = set()
    inside = set(growth.members[seed])

    def offer(reader: int) -> None:
        for name in _prologue_inputs(uses.graph, uses.graph.operators[reader]):
            index = uses.producer.get(name)
            if index is not None and index not in seen and index not in growth.owner:
                seen.add(index)
                heappush(candidates, -index)

    for member in growth.members[seed]:
        offer(member)
    while candidates and len(inside) < MAX_GROUP_OPERATORS:
        index = -heappop(candidates)
        if _is_private(uses, index, inside, with_views=_writes_rows(growth, seed)):
            growth.take(seed, (index,))
            inside.add(index)
            offer(index)


def _movement_after(growth: Growth, seed: int, tip: str) -> int | None:
    """Return the free operator that alone reads `tip` and moves it in a way that this group can take along."""
    graph = growth.uses.graph
    readers = growth.uses.consumers.get(tip, ())
    if len(readers) != 1 or readers[0] in growth.owner or len(growth.members[seed]) >= MAX_GROUP_OPERATORS:
        return None
    operator = graph.operators[readers[0]]
    is_taken = is_reindexing(graph.operators[seed]) and is_reindexing(operator)
    is_taken = is_taken or (_writes_rows(growth, seed) and _is_free_view(graph, graph.operators[seed], operator))
    return operator.index if is_taken and operator.inputs[0] == tip else None


def _is_free_view(graph: OperatorGraph, first: Operator, view: Operator) -> bool:
    """Say whether a group that `first` began can write through the view: matrices of a batch cannot be regrouped."""
    if not keeps_rows(graph, view):
        return False
    is_batched = first.op_type == "MatMul" and len(graph.tensors[first.inputs[1]].shape) > 2
    shapes = (graph.tensors[name].shape for name in (view.inputs[0], view.outputs[0]))
    before, after = ([extent for extent in shape if extent > 1] for shape in shapes)
    return before == after or not is_batched


def _writes_rows(growth: Growth, seed: int) -> bool:
    first = growth.uses.graph.operators[seed]
    return seed in growth.row_seeds or (not first.domain and first.op_type in ROW_ANCHORS)


def _region_after(growth: Growth, tip: str, room: int) -> Sequence[int] | str:
    """Return the shortest single-exit region of free element-wise operators that reads `tip`, or why there is none.

    A lone reader is such a region. Where several read the tip (`x * sigmoid(x)`), readers are added in graph order
    until one output is left that others see.
    """
    uses = growth.uses
    shape = uses.graph.tensors[tip].shape
    region: list[int] = []
    inside: set[int] = set()
    exits = {tip}
    limit = min(room, _MAX_REGION_OPERATORS)
    while True:
        readers = {index for name in exits for index in uses.consumers.get(name, ()) if index not in inside}
        if not readers:
            return "nothing reads it"
        index = min(readers)
        operator = uses.graph.operators[index]
        if reason := _why_not(growth, operator, shape):
            return reason
        if len(region) == limit:
            return f"the group would exceed {MAX_GROUP_OPERATORS} operators"
        region.append(index)
        inside.add(index)
        exits = {name for name in exits if any(reader not in inside for reader in uses.consumers[name])}
        output = operator.outputs[0]
        if not exits:
            return region
        if output in uses.visible:
            return f"{_title(operator)} has to stay visible"
        exits.add(output)


def _why_not(growth: Growth, operator: Operator, shape: tuple[int, ...]) -> str:
    if not is_elementwise(operator):
        return f"{_title(operator)} reads it and is not element-wise"
    if operator.index in growth.owner:
        return f"{_title(operator)} belongs to another group"
    output = operator.outputs[0]
    if output not in growth.uses.visible and output not in growth.uses.consumers:
        return f"{_title(operator)} is read by nobody"
    found = growth.uses.graph.tensors[output].shape
    if found != shape:
        return f"{_title(operator)} broadcasts it from {list(shape)} to {list(found)}"
    return ""


def _is_private(uses: Uses, index: int, inside: set[int], *, with_views: bool) -> bool:
    """Say whether an operator is element-wise (or a view) and read by the group alone, each time at its own shape."""
    operator = uses.graph.operators[index]
    is_taken = is_elementwise(operator) or (with_views and keeps_rows(uses.graph, operator))
    if not is_taken or operator.outputs[0] in uses.visible:
        return False
    output = operator.outputs[0]
    shape = uses.graph.tensors[output].shape
    for reader in uses.consumers.get(output, ()):
        other = uses.graph.operators[reader]
        if reader not in inside or output not in _prologue_inputs(uses.graph, other):
            return False
        if is_elementwise(other) and uses.graph.tensors[other.outputs[0]].shape != shape:
            return False
        if is_anchor(other) and any(output == name for name in _other_inputs(other)):
            return False
    return True


def _prologue_inputs(graph: OperatorGraph, operator: Operator) -> tuple[str, ...]:
    if is_elementwise(operator):
        return operator.inputs
    if keeps_rows(graph, operator):
        return operator.inputs[:1]
    if is_anchor(operator):
        return tuple(operator.inputs[at] for at in ANCHORS[operator.op_type] if at < len(operator.inputs))
    return ()


def _other_inputs(anchor: Operator) -> tuple[str, ...]:
    return tuple(name for at, name in enumerate(anchor.inputs) if at not in ANCHORS[anchor.op_type])


def _reject(growth: Growth, seed: int, tip: str, reason: str) -> None:
    """Note a refusal that the reader may wonder about: an element-wise reader stayed apart."""
    operators = growth.uses.graph.operators
    readers = [operators[index] for index in growth.uses.consumers.get(tip, ())]
    wanted = [reader for reader in readers if is_elementwise(reader)]
    if wanted:
        growth.rejected.append(f"{_title(wanted[0])} after {_title(operators[seed])}: {reason}")


def _title(operator: Operator) -> str:
    return f"{operator.op_type} #{operator.index}"
