"""Owns the count of useful floating-point operations: one rule an operator type, tabulated in docs/flops.md."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType

from mapper.records import OperatorGraph, TensorSpec

Specs = Sequence[TensorSpec | None]
Attributes = Mapping[str, object]
Rule = Callable[[Attributes, Specs, Specs], tuple[int, int]]


def count(op_type: str, domain: str, attributes: Attributes, inputs: Specs, outputs: Specs) -> tuple[int, int]:
    """Return an operator's useful FLOPs and how many of them are long-latency (exp, log, div, sqrt, erf, …).

    Movement, comparisons and integer arithmetic are 0. A floating-point operator without a rule counts 1 an output
    element; `uncounted` lists those. Source: docs/flops.md.
    """
    if not _is_floating(inputs, outputs):
        return 0, 0
    if not has_rule(op_type, domain):
        return sum(_size(spec) for spec in outputs), 0
    return RULES[op_type](attributes, inputs, outputs)


def has_rule(op_type: str, domain: str) -> bool:
    """Say whether docs/flops.md has a line for this operator type."""
    return domain in ("", "ai.onnx") and op_type in RULES


def uncounted(graph: OperatorGraph) -> tuple[str, ...]:
    """Return the floating-point operator types of `graph` that no rule counts, sorted, `domain.` in front if any."""
    missing = set()
    for operator in graph.operators:
        inputs = [graph.tensors.get(name) for name in operator.inputs]
        outputs = [graph.tensors.get(name) for name in operator.outputs]
        if _is_floating(inputs, outputs) and not has_rule(operator.op_type, operator.domain):
            missing.add(f"{operator.domain}.{operator.op_type}" if operator.domain else operator.op_type)
    return tuple(sorted(missing))


def _is_floating(inputs: Specs, outputs: Specs) -> bool:
    """Tell floating-point work by the first tensors: int8 convolutions are integer though their scales are not."""
    first = [spec for spec in (*inputs[:1], *outputs[:1]) if spec is not None]
    return any("float" in spec.dtype for spec in first)


def _size(spec: TensorSpec | None) -> int:
    return prod(spec.shape) if spec is not None else 0


def _shape(spec: TensorSpec | None) -> tuple[int, ...]:
    return spec.shape if spec is not None else ()


def _present(specs: Specs) -> int:
    return sum(spec is not None for spec in specs)


def _per_output(flops: int, longlat: int = 0) -> Rule:
    def rule(_: Attributes, __: Specs, outputs: Specs) -> tuple[int, int]:
        size = _size(outputs[0])
        return flops * size, longlat * size

    return rule


def _per_input(flops: int, longlat: int = 0) -> Rule:
    def rule(_: Attributes, inputs: Specs, __: Specs) -> tuple[int, int]:
        size = _size(inputs[0])
        return flops * size, longlat * size

    return rule


def _variadic(extra: int = 0) -> Rule:
    """Rule for n operands: n − 1 operations an output element, and `extra` (the division of Mean)."""

    def rule(_: Attributes, inputs: Specs, outputs: Specs) -> tuple[int, int]:
        return (len(inputs) - 1 + extra) * _size(outputs[0]), 0

    return rule


def _clip(attributes: Attributes, inputs: Specs, outputs: Specs) -> tuple[int, int]:
    bounds = _present(inputs[1:]) + ("min" in attributes) + ("max" in attributes)
    return bounds * _size(outputs[0]), 0


def _conv(_: Attributes, inputs: Specs, outputs: Specs) -> tuple[int, int]:
    return 2 * _size(outputs[0]) * prod(_shape(inputs[1])[1:]), 0


def _conv_transpose(_: Attributes, inputs: Specs, __: Specs) -> tuple[int, int]:
    return 2 * _size(inputs[0]) * prod(_shape(inputs[1])[1:]), 0


def _matmul(_: Attributes, inputs: Specs, outputs: Specs) -> tuple[int, int]:
    return 2 * _size(outputs[0]) * _shape(inputs[0])[-1], 0


def _gemm(attributes: Attributes, inputs: Specs, outputs: Specs) -> tuple[int, int]:
    return 2 * _size(outputs[0]) * _shape(inputs[0])[0 if attributes.get("transA") else 1], 0


def _einsum(attributes: Attributes, inputs: Specs, _: Specs) -> tuple[int, int]:
    """One multiplication an extra operand and one addition when an index is summed, over the whole index space."""
    left, arrow, right = str(attributes.get("equation", "")).replace(" ", "").partition("->")
    extents: dict[str, int] = {}
    for term, spec in zip(left.split(","), inputs, strict=True):
        for label, extent in zip(_labels(term, len(_shape(spec))), _shape(spec), strict=True):
            extents[label] = max(extent, extents.get(label, 1))
    kept = set(_labels(right, None)) if arrow else {label for label in extents if left.count(label) == 1}
    summed = any(label not in kept and not label.startswith(".") for label in extents)
    return (len(inputs) - 1 + summed) * prod(extents.values()), 0


def _labels(term: str, rank: int | None) -> list[str]:
    """Return a label an axis; the axes of an ellipsis are numbered from the right, as they broadcast."""
    before, dots, after = term.partition("...")
    hidden = max(0, (rank or 0) - len(before) - len(after)) if dots else 0
    return [*before, *(f".{hidden - position}" for position in range(hidden)), *after]


def _pool(attributes: Attributes, _: Specs, outputs: Specs) -> tuple[int, int]:
    kernel = attributes.get("kernel_shape")
    window = prod(int(extent) for extent in kernel) if isinstance(kernel, list) else 1
    return _size(outputs[0]) * window, 0


def _lp_pool(attributes: Attributes, inputs: Specs, outputs: Specs) -> tuple[int, int]:
    flops, _ = _pool(attributes, inputs, outputs)
    return 2 * flops, 0


def _log_softmax(_: Attributes, __: Specs, outputs: Specs) -> tuple[int, int]:
    return 4 * _size(outputs[0]), _size(outputs[0])


def _lrn(attributes: Attributes, _: Specs, outputs: Specs) -> tuple[int, int]:
    size = attributes.get("size")
    window = size if isinstance(size, int) else 1
    return (window + 5) * _size(outputs[0]), 2 * _size(outputs[0])


def _gelu(attributes: Attributes, _: Specs, outputs: Specs) -> tuple[int, int]:
    size = _size(outputs[0])
    return (9 if attributes.get("approximate") == "tanh" else 5) * size, size


def _resize(attributes: Attributes, inputs: Specs, outputs: Specs) -> tuple[int, int]:
    taps = {"linear": 2, "bilinear": 2, "cubic": 4}.get(str(attributes.get("mode", "nearest")), 0)
    changed = sum(old != new for old, new in zip(_shape(inputs[0]), _shape(outputs[0]), strict=True))
    return (2 * taps**changed * _size(outputs[0]) if taps and changed else 0), 0


def _grid_sample(attributes: Attributes, inputs: Specs, outputs: Specs) -> tuple[int, int]:
    taps = {"nearest": 0, "cubic": 4, "bicubic": 4}.get(str(attributes.get("mode", "linear")), 2)
    return (2 * taps ** (len(_shape(inputs[0])) - 2) * _size(outputs[0]) if taps else 0), 0


def _recurrent(gates: int, pointwise: int, longlat: int) -> Rule:
    def rule(_: Attributes, inputs: Specs, __: Specs) -> tuple[int, int]:
        directions, _rows, features = _shape(inputs[1])
        hidden = _shape(inputs[2])[-1]
        steps = _size(inputs[0]) // max(1, features)  # time steps × batch
        cells = directions * steps * hidden
        return cells * (2 * gates * (features + hidden) + pointwise), cells * longlat

    return rule


def _rules(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


_FREE = _per_output(0)

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **_rules(_conv, "Conv"),
        **_rules(_conv_transpose, "ConvTranspose"),
        **_rules(_matmul, "MatMul"),
        **_rules(_gemm, "Gemm"),
        **_rules(_einsum, "Einsum"),
        **_rules(_per_output(1), "Add Sub Mul Neg Abs Relu LeakyRelu PRelu ThresholdedRelu Floor Ceil Round Mod"),
        **_rules(_variadic(), "Sum Max Min"),
        **_rules(_variadic(1), "Mean"),
        **_rules(_clip, "Clip"),
        **_rules(_per_output(1, 1), "Div Reciprocal Sqrt Exp Log Pow Erf Tanh Sigmoid"),
        **_rules(_per_output(1, 1), "Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh"),
        **_rules(_per_output(2), "Shrink BatchNormalization"),
        **_rules(_per_output(3, 1), "Elu"),
        **_rules(_per_output(4, 1), "Selu"),
        **_rules(_per_output(4, 2), "Celu"),
        **_rules(_per_output(3, 2), "Softplus"),
        **_rules(_per_output(3, 1), "Softsign"),
        **_rules(_per_output(5, 3), "Mish"),
        **_rules(_per_output(4), "HardSigmoid"),
        **_rules(_per_output(5), "HardSwish"),
        **_rules(_per_output(3, 1), "Swish"),
        **_rules(_gelu, "Gelu"),
        **_rules(_per_output(4, 2), "Softmax"),
        **_rules(_log_softmax, "LogSoftmax"),
        **_rules(_per_output(8), "LayerNormalization InstanceNormalization GroupNormalization"),
        **_rules(_per_output(4), "RMSNormalization"),
        **_rules(_per_output(5, 1), "MeanVarianceNormalization"),
        **_rules(_per_output(3, 1), "LpNormalization"),
        **_rules(_lrn, "LRN"),
        **_rules(_per_input(1), "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceLogSum CumSum"),
        **_rules(_per_input(2), "ReduceL1 ReduceL2 ReduceSumSquare"),
        **_rules(_per_input(2, 1), "ReduceLogSumExp"),
        **_rules(_per_input(1), "GlobalAveragePool GlobalMaxPool"),
        **_rules(_per_input(2), "GlobalLpPool"),
        **_rules(_pool, "AveragePool MaxPool"),
        **_rules(_lp_pool, "LpPool"),
        **_rules(_resize, "Resize Upsample"),
        **_rules(_grid_sample, "GridSample"),
        **_rules(_recurrent(4, 9, 5), "LSTM"),
        **_rules(_recurrent(3, 8, 3), "GRU"),
        **_rules(_recurrent(1, 1, 1), "RNN"),
        **_rules(_per_output(1, 1), "QuantizeLinear"),
        **_rules(_per_output(1), "DequantizeLinear"),
        **_rules(_FREE, "Equal Greater GreaterOrEqual Less LessOrEqual IsNaN IsInf Sign Where ArgMax ArgMin TopK"),
        **_rules(_FREE, "Hardmax NonZero NonMaxSuppression Unique And Or Xor Not"),
        **_rules(_FREE, "Cast CastLike Identity Dropout Reshape Flatten Squeeze Unsqueeze Transpose Expand Tile Pad"),
        **_rules(_FREE, "Concat Split Slice Gather GatherElements GatherND ScatterElements ScatterND Scatter OneHot"),
        **_rules(_FREE, "Trilu DepthToSpace SpaceToDepth ReverseSequence MaxUnpool CenterCropPad Compress Col2Im"),
        **_rules(_FREE, "Shape Size Range ConstantOfShape EyeLike"),
    }
)
