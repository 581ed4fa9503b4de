"""Owns the ONNX model of one fusion group, from which its kernel is lowered and its reference computed."""

from collections.abc import Iterable, Mapping
from typing import Any

import onnx
from onnx import helper, numpy_helper

from mapper.plan.group import baked_constants, local_names
from mapper.plan.tensors import dtype_number, tensor_array
from mapper.records import Group, Operator, OperatorGraph


def group_model(canonical: onnx.ModelProto, graph: OperatorGraph, group: Group) -> onnx.ModelProto:
    """Return `group` as an ONNX model: activations and weights as inputs, baked constants as initializers.

    All names are local (`in0` …, `w0` …, `c0` …, `t0` …, `out0` …), so groups of equal key give the same bytes; across
    models of another opset or IR version those two numbers differ. Every tensor inside carries its static shape.
    """
    operators = [graph.operators[index] for index in group.operators]
    baked = baked_constants(graph, operators)
    local = local_names(operators, group, baked)

    def values(names: Iterable[str]) -> list[Any]:
        specs = [(local[name], graph.tensors[name]) for name in names]
        return [helper.make_tensor_value_info(name, dtype_number(spec.dtype), spec.shape) for name, spec in specs]

    arguments = {*group.inputs, *group.weights, *group.outputs, *baked}
    proto = helper.make_graph(
        [_node(canonical.graph.node[operator.index], operator, local) for operator in operators],
        "group",
        values((*group.inputs, *group.weights)),
        values(group.outputs),
        initializer=[_initializer(local[name], graph.constants[name]) for name in baked],
        value_info=values(name for name in local if name not in arguments),
    )
    # Before IR version 4 an initializer had to be an input as well.
    ir_version = max(4, canonical.ir_version)
    imports = _imports(canonical, operators)
    return helper.make_model(proto, producer_name="mapper", opset_imports=imports, ir_version=ir_version)


def _node(original: onnx.NodeProto, operator: Operator, local: Mapping[str, str]) -> onnx.NodeProto:
    node = helper.make_node(
        operator.op_type,
        [local[name] if name else "" for name in operator.inputs],
        [local[name] if name else "" for name in operator.outputs],
        domain=operator.domain,
    )
    node.attribute.extend(sorted(original.attribute, key=lambda attribute: attribute.name))
    for attribute in node.attribute:
        attribute.ClearField("doc_string")
    return node


def _initializer(name: str, value: object) -> onnx.TensorProto:
    assert isinstance(value, Mapping)
    if value["dtype"] == "string":
        return helper.make_tensor(name, onnx.TensorProto.STRING, value["shape"], [str(item) for item in value["data"]])
    return numpy_helper.from_array(tensor_array(value), name)


def _imports(canonical: onnx.ModelProto, operators: Iterable[Operator]) -> list[Any]:
    domains = {operator.domain for operator in operators} | {""}
    versions = {_domain(entry.domain): entry.version for entry in canonical.opset_import}
    return [helper.make_opsetid(domain, versions[domain]) for domain in sorted(domains) if domain in versions]


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
