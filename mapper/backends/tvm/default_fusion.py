"""How TVM's own FuseOps would group a model's operators, read off names that survive its passes."""

import re
from typing import Any

import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

_NAME = re.compile(r"onnx_node_(\d+)_")


class _NamingImporter(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer, every result bound to a name that tells its node."""

    def __init__(self) -> None:
        super().__init__({}, {}, sanitize=False)

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        result = super()._convert_operator(op_name, inputs, attrs, opset)
        index = int(attrs["tvm_custom"]["name"])
        if not isinstance(result, relax.Call):
            return result
        return self.bb.emit(result, name_hint=f"onnx_node_{index}_")


def default_partition(model: onnx.ModelProto) -> list[list[int]]:
    """Return the groups of node indices that TVM fuses, in execution order.

    A node that becomes several TVM operators belongs where its last one goes; a node that becomes none is alone.
    """
    graph = onnx.GraphProto()
    graph.CopyFrom(model.graph)
    for index, node in enumerate(graph.node):
        node.name = str(index)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    module = _NamingImporter().from_onnx(graph, opset)
    passes = [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
    ]
    fused = tvm.ir.transform.Sequential(passes)(module)
    bindings = [binding for block in fused["main"].body.blocks for binding in block.bindings]
    groups = [_named_members(fused, binding) for binding in bindings]
    named = set().union(*groups)
    for members, binding in zip(groups, bindings, strict=True):
        last = _unnamed_last(fused, binding, graph, named)
        if last is not None:
            members.add(last)
            named.add(last)
    return _completed([sorted(members) for members in groups], graph)


def _function(module: Any, binding: Any) -> Any:
    """Return the fused function that a binding calls, None for anything else."""
    value = binding.value
    if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
        return module[value.op]
    return None


def _index(variable: Any) -> int | None:
    match = _NAME.match(str(variable.name))
    return int(match.group(1)) if match else None


def _named_members(module: Any, binding: Any) -> set[int]:
    function = _function(module, binding)
    inner = [item.var for block in function.body.blocks for item in block.bindings] if function is not None else []
    return {index for variable in (binding.var, *inner) if (index := _index(variable)) is not None}


def _unnamed_last(module: Any, binding: Any, graph: onnx.GraphProto, named: set[int]) -> int | None:
    """Return the node behind a fused function's last operator, whose name FuseOps drops.

    It is the one node without a name elsewhere that reads what the operator reads.
    """
    function = _function(module, binding)
    if function is None:
        return None
    sources = _sources(function)
    tensors = {output for index in sources for output in graph.node[index].output}
    readers = [i for i, node in enumerate(graph.node) if i not in named and tensors & set(node.input)]
    return readers[0] if readers else None


def _sources(function: Any) -> set[int]:
    """Return the nodes whose values reach the function's last binding through unnamed ones."""
    values = {item.var: item.value for block in function.body.blocks for item in block.bindings}
    last = list(values)[-1]
    found: set[int] = set()
    pending = list(relax.analysis.free_vars(values[last]))
    while pending:
        variable = pending.pop()
        index = _index(variable)
        if index is not None:
            found.add(index)
        elif variable in values:
            pending += list(relax.analysis.free_vars(values[variable]))
    return found


def _completed(groups: list[list[int]], graph: onnx.GraphProto) -> list[list[int]]:
    """Keep each node in the last group that names it, and place the nodes that nobody names.

    An unnamed node between two nodes of one group is inside it (the importer emitted it without a name); any other is
    alone.
    """
    owner = {index: position for position, members in enumerate(groups) for index in members}
    producer = {output: index for index, node in enumerate(graph.node) for output in node.output}
    readers: dict[str, list[int]] = {}
    for index, node in enumerate(graph.node):
        for name in node.input:
            readers.setdefault(name, []).append(index)
    for index, node in enumerate(graph.node):
        if index not in owner:
            before = {owner[producer[name]] for name in node.input if producer.get(name) in owner}
            after = {owner[reader] for name in node.output for reader in readers.get(name, ()) if reader in owner}
            around = before & after
            if around:
                owner[index] = around.pop()
    kept: dict[int, list[int]] = {}
    for index in range(len(graph.node)):
        kept.setdefault(owner.get(index, len(groups) + index), []).append(index)
    return [kept[position] for position in sorted(kept)]
