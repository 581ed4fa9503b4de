"""Loading a model: read, checked, bound to static shapes, hashed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import helper, inliner

from mapper.errors import BadInputError
from mapper.ingress import checks
from mapper.ingress.conditionals import inline_known_branches
from mapper.ingress.dims import Bindings, bind_inputs
from mapper.ingress.files import read_model
from mapper.ingress.statics import Statics, analyse, constant_names, dtype_name, elem_type_of, spec_of
from mapper.records import ModelSource, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that can be mapped.

    `proto` is the original with every dimension bound, model-local functions and decided Ifs inlined, nodes in an
    executable order, static shapes stored for every tensor, and all data inside. `original` are the nodes of the file
    as they stand there, which `NodeRef.index` counts.
    """

    source: ModelSource
    proto: onnx.ModelProto
    original: tuple[onnx.NodeProto, ...]


def load_model(
    path: Path,
    *,
    name: str,
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    npz_shapes: Mapping[str, tuple[int, ...]] | None = None,
    default_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> LoadedModel:
    """Read an ONNX file and bind its inputs.

    Args:
        path: The file; external data is looked for beside it only.
        name: What the model is called in the sheet.
        dims: `--dim`: sizes by symbol.
        shapes: `--shape`: shapes by input.
        npz_shapes: Shapes of the user's own inputs (`--inputs`).
        default_shapes: Shapes for the inputs that none of the above binds (the zoo's manifest).

    Raises:
        BadInputError: one line that says what is wrong with the file, the model or a binding, and what to do.
    """
    where = str(path)
    model, sha256 = read_model(path)
    opset = checks.check_versions(where, model)
    ir_version = model.ir_version
    _drop_constant_inputs(model)
    for node in model.graph.node:
        if node.domain == "ai.onnx":
            node.domain = ""
    order = checks.check_structure(where, model.graph)
    checks.check_interface(where, model)
    wanted = Bindings(dims=dims, shapes=shapes, npz_shapes=npz_shapes or {}, default_shapes=default_shapes or {})
    bound_shapes, bound_dims = bind_inputs(where, model.graph.input, wanted)
    checks.check_sizes(where, _declared(model, bound_shapes))
    original = _copies(model.graph)
    _reorder(model.graph, order)
    declared = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
    _clear_stale(model.graph, bound_shapes)
    model, statics = _settle(where, model, opset)
    checks.check_sizes(where, statics.types)
    checks.check_static(where, model.graph.node, [value.name for value in model.graph.output], statics)
    _store_types(where, model.graph, statics, declared)
    source = ModelSource(
        name=name,
        path=where,
        sha256=sha256,
        opset=opset,
        ir_version=ir_version,
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        inputs=tuple(_spec(value) for value in model.graph.input),
        outputs=tuple(_spec(value) for value in model.graph.output),
        bound_dims=bound_dims,
    )
    return LoadedModel(source=source, proto=model, original=original)


def _settle(where: str, model: onnx.ModelProto, opset: int) -> tuple[onnx.ModelProto, Statics]:
    """Inline functions and decided Ifs, infer static types, and refuse operators without a kernel."""
    if model.functions:
        model = inliner.inline_local_functions(model)
        _reorder(model.graph, checks.check_structure(where, model.graph))
    stored = frozenset(tensor.name for tensor in model.graph.initializer)
    if any(checks.is_unknown(node, opset) for node in model.graph.node):
        checks.check_operators(where, model.graph.node, opset, constant_names(model.graph.node, stored, frozenset()))
    checks.check_onnx(where, model)
    for value in model.graph.output:
        value.ClearField("type")  # inference shall find it, not repeat it
    statics = _analysed(where, model)
    outer = {name for node in model.graph.node for name in node.output}
    while inline_known_branches(model.graph, statics.values):
        _reorder(model.graph, checks.check_structure(where, model.graph))
        statics = _analysed(where, model)
    stored = frozenset(tensor.name for tensor in model.graph.initializer)
    constant = constant_names(model.graph.node, stored, frozenset(statics.types))
    hidden = frozenset(name for node in model.graph.node for name in node.output if name not in outer)
    checks.check_operators(where, model.graph.node, opset, constant, hidden)
    return model, statics


def _analysed(where: str, model: onnx.ModelProto) -> Statics:
    try:
        return analyse(model)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        raise BadInputError(
            f"{where}: the shapes contradict each other: {checks.one_line(error)}: bind other sizes or repair the model"
        ) from error


def _drop_constant_inputs(model: onnx.ModelProto) -> None:
    """Drop inputs that are initializers too (IR before 4): defaults that nothing overrides here."""
    stored = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in stored]
    if len(kept) < len(model.graph.input):
        copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
        del model.graph.input[:]
        model.graph.input.extend(copies)
    model.ir_version = max(model.ir_version, 4)


def _declared(model: onnx.ModelProto, bound: Mapping[str, tuple[int, ...]]) -> dict[str, TensorSpec]:
    found = {}
    for value in model.graph.input:
        dtype = dtype_name(value.type.tensor_type.elem_type)
        found[value.name] = TensorSpec(name=value.name, shape=bound[value.name], dtype=dtype)
    for tensor in model.graph.initializer:
        found[tensor.name] = TensorSpec(name=tensor.name, shape=tuple(tensor.dims), dtype=dtype_name(tensor.data_type))
    return found


def _copies(graph: onnx.GraphProto) -> tuple[onnx.NodeProto, ...]:
    return tuple(onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node)


def _reorder(graph: onnx.GraphProto, order: list[int]) -> None:
    if order == sorted(order):
        return
    nodes = _copies(graph)
    del graph.node[:]
    graph.node.extend(nodes[index] for index in order)


def _clear_stale(graph: onnx.GraphProto, bound: Mapping[str, tuple[int, ...]]) -> None:
    """Write the bound shapes into the inputs, and forget every shape that was stored for other sizes."""
    for value in graph.input:
        tensor = value.type.tensor_type
        tensor.shape.Clear()
        for size in bound[value.name]:
            tensor.shape.dim.add().dim_value = size
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    del graph.value_info[:]


def _store_types(where: str, graph: onnx.GraphProto, statics: Statics, declared: Mapping[str, int]) -> None:
    for value in graph.output:
        spec = statics.types[value.name]
        if declared[value.name] and dtype_name(declared[value.name]) != spec.dtype:
            raise BadInputError(
                f"{where}: graph output '{value.name}' is declared {dtype_name(declared[value.name])}: "
                f"its node gives {spec.dtype}; export the model again"
            )
        value.CopyFrom(helper.make_tensor_value_info(value.name, elem_type_of(spec.dtype), spec.shape))
    ends = {value.name for value in (*graph.input, *graph.output)} | {tensor.name for tensor in graph.initializer}
    written = (name for node in graph.node for name in node.output if name)
    graph.value_info.extend(
        helper.make_tensor_value_info(name, elem_type_of(statics.types[name].dtype), statics.types[name].shape)
        for name in written
        if name not in ends and name in statics.types
    )


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    spec = spec_of(value)
    assert spec is not None
    return spec
