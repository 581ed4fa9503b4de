"""One group and one choice in, one scheduled PrimFunc out.

The group's ONNX model is imported operator by operator (the template's own converters first), legalised, and its
whole body made one primitive function, so that FuseTIR gives one PrimFunc whatever the operators are. Physical layouts
are then a re-indexing of the boundary buffers; scheduling is the template's.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax, s_tir
from tvm.relax.frontend.onnx import onnx_frontend

from mapper.errors import BadInputError
from mapper.records import Choice, GroupSpec
from mapper.templates import elementwise
from mapper.templates.protocol import Convert, Template

KERNEL = "kernel"


class LoweringError(Exception):
    """A group that does not become one kernel with this choice; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A scheduled kernel: `module` holds one PrimFunc called `kernel`; None when only its code was kept.

    Its arguments are activations, weights (packed where the template packs), lifted constants, outputs; `shapes`
    and `dtypes` follow that order.
    """

    module: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    constants: tuple[np.ndarray[Any, Any], ...]


def lower(spec: GroupSpec, model: onnx.ModelProto, choice: Choice, template: Template) -> Lowered:
    """Lower a group with a choice.

    Raises:
        LoweringError: the importer, the legaliser or the schedule refuses, or the result is not one kernel of the
            declared output shapes.
    """
    if not template.matches(spec):
        raise LoweringError(f"template {template.name} does not implement {spec.name}")
    try:
        template.check(spec, choice)
        module = _import(spec, model, choice, template)
        function, constants = _one_primitive(module)
        sch = s_tir.Schedule(tvm.IRModule({KERNEL: function.with_attr("global_symbol", KERNEL)}))
        sch.work_on(KERNEL)
        _place_layouts(sch, spec, choice)
        template.apply(sch, spec, choice)
    except (LoweringError, BadInputError) as error:
        raise LoweringError(str(error)) from error
    except Exception as error:
        raise LoweringError(f"{type(error).__name__}: {_last_line(error)}") from error
    module = s_tir.transform.ConvertSSA()(sch.mod)  # inlining may have repeated a let binding
    params = [_buffer(parameter) for parameter in module[KERNEL].params]
    return Lowered(
        module=module,
        shapes=tuple(shape for shape, _ in params),
        dtypes=tuple(dtype for _, dtype in params),
        constants=constants,
    )


class _Importer(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer, with converters of our own for some operators."""

    def __init__(self, converters: dict[str, Convert]) -> None:
        super().__init__({}, "float32", sanitize=False)
        self._converters = converters
        self._dtype: dict[str, str] = {}

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        convert = self._converters.get(attrs["tvm_custom"]["name"])
        if convert is None:
            return super()._convert_operator(op_name, inputs, attrs, opset)
        return self.bb.normalize(convert(self.bb, list(inputs), attrs))


def _import(spec: GroupSpec, model: onnx.ModelProto, choice: Choice, template: Template) -> Any:
    packings = template.packings(spec, choice)
    graph = onnx.GraphProto()
    graph.CopyFrom(model.graph)
    for value in graph.input:
        if value.name in packings:
            elem_type = value.type.tensor_type.elem_type
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, elem_type, packings[value.name].shape))
    for index, node in enumerate(graph.node):
        node.name = f"op{index}"
    own = {**elementwise.converters(spec), **template.converters(spec, choice)}
    converters = {f"op{index}": convert for index, convert in own.items()}
    importer = _Importer(converters)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    module = importer.from_onnx(graph, opset)
    _check_outputs(spec, module["main"])
    passes = [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.LegalizeOps(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(),
    ]
    return tvm.ir.transform.Sequential(passes)(module)


def _check_outputs(spec: GroupSpec, main: Any) -> None:
    """Compare declared with obtained output shapes and dtypes (the importer is known to get some wrong)."""
    types = main.ret_ty.fields if hasattr(main.ret_ty, "fields") else [main.ret_ty]
    for name, found in zip(spec.outputs, types, strict=True):
        declared = spec.tensors[name]
        try:
            shape = tuple(int(size) for size in found.shape)
        except (TypeError, ValueError) as error:
            raise LoweringError(f"output {name} has no static shape after import: {found}") from error
        dtype = str(found.dtype)
        if shape != declared.shape or dtype != declared.dtype:
            raise LoweringError(
                f"output {name} of {spec.name}: declared {declared.dtype}{list(declared.shape)}, "
                f"imported as {dtype}{list(shape)}"
            )


def _one_primitive(module: Any) -> tuple[Any, tuple[np.ndarray[Any, Any], ...]]:
    """Make main's body one primitive function, fuse it to one PrimFunc, and return it with its lifted constants."""
    main = module["main"]
    lifted: dict[Any, np.ndarray[Any, Any]] = {}
    body = _lift_constants(main, lifted)
    params = [*main.params, *lifted]
    inner = relax.utils.copy_with_new_vars(relax.Function(params, body.body, main.ret_ty, is_pure=True))
    outer_params = [relax.Var(f"a{i}", parameter.ty) for i, parameter in enumerate(params)]
    builder = relax.BlockBuilder(module)
    variable = builder.add_func(inner.with_attr("Primitive", True), "fused_group")
    with builder.function("entry", outer_params):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(variable, outer_params))
        builder.emit_func_output(result)
    whole = builder.get()
    del whole["main"]
    fused = relax.transform.FuseTIR()(whole)
    calls = [
        binding.value
        for block in fused["entry"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call) and binding.value.op == tvm.ir.Op.get("relax.call_tir")
    ]
    if len(calls) != 1:
        raise LoweringError(f"the group lowers to {len(calls)} kernels, not to one")
    order = [outer_params.index(argument) for argument in calls[0].args[1].fields]
    if order != list(range(len(outer_params))):
        raise LoweringError(f"the fused kernel takes its arguments in another order: {order}")
    return fused[calls[0].args[0].name_hint], tuple(lifted.values())


def _lift_constants(main: Any, lifted: dict[Any, np.ndarray[Any, Any]]) -> Any:
    """Replace tensor constants in the body by new parameters, collected in `lifted`."""

    @relax.expr_functor.mutator
    class Lift(relax.PyExprMutator):  # type: ignore[misc]
        def visit_generic_const_(self, op: Any) -> Any:
            value = op.value.numpy()
            variable = relax.Var(f"const{len(lifted)}", relax.TensorType(value.shape, str(value.dtype)))
            lifted[variable] = value
            return variable

    return Lift().visit_expr(main)


def _place_layouts(sch: Any, spec: GroupSpec, choice: Choice) -> None:
    """Re-index each boundary buffer to its physical layout."""
    names = (*spec.inputs, *spec.outputs)
    if len(choice.layouts) != len(names):
        raise LoweringError(f"{len(choice.layouts)} layouts for {len(names)} activation arguments")
    parameters = list(sch.mod[KERNEL].params)
    count_in = len(spec.inputs)
    buffers = [*parameters[:count_in], *parameters[len(parameters) - len(spec.outputs) :]]
    for name, layout, parameter in zip(names, choice.layouts, buffers, strict=True):
        if layout == "nhwc":
            block, role = _access(sch, str(parameter.name))
            if block is None:
                raise LoweringError(f"no block touches {name}")
            sch.transform_layout(block, role, lambda n, c, h, w: [n, h, w, c])


def _access(sch: Any, buffer: str) -> tuple[Any, tuple[str, int]]:
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        statement = sch.get(block)
        for kind, regions in (("read", statement.reads), ("write", statement.writes)):
            for index, region in enumerate(regions):
                if str(region.source.name) == buffer:
                    return block, (kind, index)
    return None, ("read", 0)


def _buffer(parameter: Any) -> tuple[tuple[int, ...], str]:
    kind = parameter.ty
    return tuple(int(size) for size in kind.shape), str(kind.dtype)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"
