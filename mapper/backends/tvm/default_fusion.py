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
        self._count = 0

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        result = super()._convert_operator(op_name, inputs, attrs, opset)
        index = int(attrs["tvm_custom"]["name"])
        if isinstance(result, relax.Var | relax.Constant | relax.ShapeExpr | relax.PrimValue):
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
    groups: list[list[int]] = []
    for block in fused["main"].body.blocks:
        for binding in block.bindings:
            members = _members(fused, binding)
            if members:
                groups.append(sorted(members))
    return _completed(groups, len(graph.node))


def _members(module: Any, binding: Any) -> set[int]:
    names = [str(binding.var.name_hint)]
    value = binding.value
    if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
        function = module[value.op]
        names += [str(inner.var.name_hint) for block in function.body.blocks for inner in block.bindings]
    return {int(match.group(1)) for name in names if (match := _NAME.match(name))}


def _completed(groups: list[list[int]], count: int) -> list[list[int]]:
    """Keep each node in the last group that names it, and give every unnamed node a group of its own."""
    owner = {index: position for position, members in enumerate(groups) for index in members}
    kept = [[index for index in members if owner[index] == position] for position, members in enumerate(groups)]
    alone = [[index] for index in range(count) if index not in owner]
    return [members for members in kept if members] + alone
