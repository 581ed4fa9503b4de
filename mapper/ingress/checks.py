"""What a model must fulfil before it can be mapped: versions, structure, operators, sizes, one line a refusal."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

import onnx
from onnx import defs

from mapper.errors import BadInputError
from mapper.ingress.statics import RANDOM_OPS, Statics, shell_of
from mapper.ingress.wiring import (
    DEFAULT_DOMAINS,
    attributes,
    cycle_members,
    is_onnx,
    label,
    reads,
    subgraphs,
    topological,
    writes,
)
from mapper.records import TensorSpec

MAX_TENSOR_B = 1 << 33
OLDEST_OPSET = 7
_NOT_YET = frozenset({"LSTM", "GRU", "RNN", "Loop", "Scan", "SequenceMap"})
_DATA_DEPENDENT = frozenset({"NonZero", "NonMaxSuppression", "Unique", "Compress"})
_NOT_TENSOR = re.compile(
    r"^(Sequence\w+|\w+Sequence|Optional\w*|String\w+|RegexFullMatch|TfIdfVectorizer|ImageDecoder)$"
)


def check_versions(where: str, model: onnx.ModelProto) -> int:
    """Return the ai.onnx opset; refuse IR versions and opsets that the installed onnx does not know."""
    if model.ir_version > onnx.IR_VERSION:
        raise BadInputError(
            f"{where}: ONNX IR version {model.ir_version}: expected at most {onnx.IR_VERSION} "
            f"(onnx {onnx.__version__}); export it for an older version or upgrade onnx"
        )
    opsets = [entry.version for entry in model.opset_import if entry.domain in DEFAULT_DOMAINS]
    if not opsets:
        raise BadInputError(f"{where}: imports no ai.onnx opset: expected one; export the model again")
    newest = defs.onnx_opset_version()
    if not OLDEST_OPSET <= opsets[0] <= newest:
        raise BadInputError(
            f"{where}: ai.onnx opset {opsets[0]}: expected {OLDEST_OPSET} to {newest} (onnx {onnx.__version__}); "
            "convert it with onnx.version_converter"
        )
    return int(opsets[0])


def check_structure(where: str, graph: onnx.GraphProto) -> list[int]:
    """Return an executable order of the nodes; refuse double definitions, missing producers and cycles."""
    _refuse_duplicates(where, graph)
    known = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    known |= {tensor.values.name for tensor in graph.sparse_initializer}
    known |= {name for node in graph.node for name in writes(node)}
    for index, node in enumerate(graph.node):
        for name in reads(node):
            if name not in known:
                raise BadInputError(
                    f"{where}: node {label(node, index)} reads '{name}', which nothing writes: repair the graph"
                )
    for value in graph.output:
        if value.name not in known:
            raise BadInputError(f"{where}: graph output '{value.name}' is written by no node: repair the graph")
    order = topological(graph.node)
    if order is None:
        members = ", ".join(label(graph.node[index], index) for index in cycle_members(graph.node))
        raise BadInputError(f"{where}: the graph has a cycle through {members}: expected none; repair the graph")
    return order


def check_interface(where: str, model: onnx.ModelProto) -> None:
    """Refuse graph inputs and outputs that no kernel can take or give."""
    inputs = {value.name for value in model.graph.input}
    for kind, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            held = value.type.WhichOneof("value")
            if held not in (None, "tensor_type"):
                raise BadInputError(f"{where}: graph {kind} '{value.name}' is a {held[:-5]}: expected a tensor")
            if value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
                raise BadInputError(f"{where}: graph {kind} '{value.name}' holds text: expected numbers; cut it off")
            if kind == "input" and not value.type.tensor_type.elem_type:
                raise BadInputError(f"{where}: graph input '{value.name}' declares no element type: export it again")
            if kind == "output" and value.name in inputs:
                raise BadInputError(
                    f"{where}: graph output '{value.name}' is itself a graph input: nothing computes it; remove it"
                )
    if not model.graph.output:
        raise BadInputError(f"{where}: the graph has no outputs: there is nothing to compute; export it again")


def check_onnx(where: str, model: onnx.ModelProto) -> None:
    """Run ONNX's own checker, its complaint on one line."""
    shell = shell_of(model)
    for value in shell.graph.output:
        value.type.tensor_type.shape.SetInParent()  # the checker wants one; inference finds the real one
    try:
        onnx.checker.check_model(shell)
    except onnx.checker.ValidationError as error:
        raise BadInputError(f"{where}: not valid ONNX: {one_line(error)}: export the model again") from error


def is_unknown(node: onnx.NodeProto, opset: int) -> bool:
    """Tell whether the installed onnx has no definition of a node's operator."""
    return not is_onnx(node) or not defs.has(node.op_type, opset)


def check_operators(
    where: str,
    nodes: Sequence[onnx.NodeProto],
    opset: int,
    constant: frozenset[str],
    hidden: frozenset[str] = frozenset(),
) -> None:
    """Refuse, all at once, the nodes that have no kernel; constant ones are computed before and do not count.

    Args:
        where: The file, for the message.
        nodes: The nodes to judge.
        opset: Version of ai.onnx that the model imports.
        constant: Tensors that no graph input reaches.
        hidden: Tensors that the file holds inside a subgraph, hence no place to cut.
    """
    blocking = [
        f"{name} ({why})"
        for index, node in enumerate(nodes)
        if not (writes(node) and all(name in constant for name in writes(node)))
        for name, why in _blocking(node, label(node, index), opset)
    ]
    if not blocking:
        return
    first = next(n for i, n in enumerate(nodes) if any(_blocking(n, label(n, i), opset)))
    places = [f"'{name}'" for name in reads(first) if name not in constant and name not in hidden]
    cut = f"cut the model at {', '.join(places)} with onnx.utils.extract_model, or " if places else ""
    raise BadInputError(
        f"{where}: {len(blocking)} node{'s' if len(blocking) > 1 else ''} cannot be mapped: {'; '.join(blocking)}; "
        f"{cut}export it without them"
    )


def check_sizes(where: str, types: Mapping[str, TensorSpec]) -> None:
    """Refuse tensors that no machine at hand holds, before anything allocates them."""
    for spec in types.values():
        size_b = prod(spec.shape) * _item_b(spec.dtype)
        if size_b > MAX_TENSOR_B:
            raise BadInputError(
                f"{where}: tensor '{spec.name}' of shape {list(spec.shape)} takes {size_b / 2**30:.3g} GiB: "
                f"expected at most {MAX_TENSOR_B >> 30} GiB; bind smaller dimensions or repair the model"
            )


def check_static(where: str, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], statics: Statics) -> None:
    """Refuse nodes whose output shapes depend on values that only a run would give."""
    read = {name for node in nodes for name in reads(node)} | set(outputs)
    for index, node in enumerate(nodes):
        for name in writes(node):
            if name in read and name not in statics.types:
                raise BadInputError(
                    f"{where}: node {label(node, index)}: the shape of its output '{name}' is not static: expected it "
                    "to follow from the input shapes; cut the model before this node"
                )


def one_line(error: BaseException) -> str:
    """Return the message of a foreign exception on one short line."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."


def _refuse_duplicates(where: str, graph: onnx.GraphProto) -> None:
    initializers = Counter(tensor.name for tensor in graph.initializer)
    inputs = Counter(value.name for value in graph.input)
    for kind, counts in (("initializer", initializers), ("graph input", inputs)):
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            raise BadInputError(f"{where}: {kind} '{twice[0]}' is defined {counts[twice[0]]} times: expected once")
    owner: dict[str, str] = dict.fromkeys(inputs, "a graph input") | dict.fromkeys(initializers, "an initializer")
    for index, node in enumerate(graph.node):
        for name in writes(node):
            if name in owner:
                raise BadInputError(
                    f"{where}: node {label(node, index)} writes '{name}', already written by {owner[name]}: "
                    "expected one writer a tensor; repair the graph"
                )
            owner[name] = f"node {label(node, index)}"


def _blocking(node: onnx.NodeProto, name: str, opset: int) -> list[tuple[str, str]]:
    """Return the reasons why a node, or one in its subgraphs, has no kernel."""
    inner = [
        found
        for graph in subgraphs(node)
        for index, child in enumerate(graph.node)
        for found in _blocking(child, f"{label(child, index)} in {name}", opset)
    ]
    why = None
    if not is_onnx(node):
        why = f"unknown domain '{node.domain}'"
    elif node.op_type in _NOT_YET or _NOT_TENSOR.match(node.op_type):
        why = "not supported yet"
    elif node.op_type == "If":
        why = "its condition is known only at run time, not supported yet"
    elif node.op_type in RANDOM_OPS or (node.op_type in ("Dropout", "BatchNormalization") and _is_training(node)):
        why = "random or training-mode, not reproducible"
    elif node.op_type in _DATA_DEPENDENT:
        why = "the shape of its output depends on data, not supported yet"
    elif not defs.has(node.op_type, opset):
        why = f"unknown operator in ai.onnx opset {opset}"
    return ([(name, why)] if why else []) + inner


def _is_training(node: onnx.NodeProto) -> bool:
    return bool(attributes(node).get("training_mode", 0))


def _item_b(dtype: str) -> float:
    bits = re.search(r"(\d+)", dtype)
    return int(bits[1]) / 8 if bits else 1
