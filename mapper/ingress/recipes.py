"""Giving a network that only declares its weights seeded ones, scaled so that its activations stay of order one."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mapper.ingress.feeds import float_feed
from mapper.ingress.statics import spec_of

RECIPE_VERSION = 1
Run = Callable[[Path, Mapping[str, np.ndarray], Sequence[str]], dict[str, np.ndarray]]
_MAX_ROUNDS = 10
_STEPS_PER_OCTAVE = 8
_IR_VERSION = 8
_LAYERS = ("Conv", "Gemm")


def seed_weights(model: onnx.ModelProto, seed: int, run: Run, workdir: Path) -> onnx.ModelProto:
    """Return the model with every float parameter an initializer of seeded random values.

    Weights start at He scale; then, for at most 10 rounds, each Conv and Gemm is rescaled with its bias until its
    output has a standard deviation near 1 on the seeded input. Scales are powers of two in steps of an eighth, so
    that rounding differences between machines do not reach the bytes.

    Args:
        model: A network of ConstantOfShape weights, as the onnx package ships them; consumed.
        seed: Seed of the weights and of the input.
        run: Executes the model file at a path and returns the named tensors.
        workdir: Where that file is put; it is removed afterwards.
    """
    generator = np.random.default_rng(seed)
    parameters = _parameters(model, generator)
    _install(model, parameters)
    inputs = [spec for value in model.graph.input if (spec := spec_of(value)) is not None]
    feeds = {spec.name: float_feed(spec.shape, generator) for spec in inputs}
    layers = [node for node in model.graph.node if node.op_type in _LAYERS]
    upstream = _upstream(model.graph.node)
    for _ in range(_MAX_ROUNDS):
        steps = _steps(layers, upstream, _log_spreads(model, layers, feeds, run, workdir))
        if not any(steps):
            break
        for node, step in zip(layers, steps, strict=True):
            _rescale(node, parameters, np.float32(2.0 ** (-step / _STEPS_PER_OCTAVE)))
        _store(model, parameters)
    return model


def _parameters(model: onnx.ModelProto, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw a value for every float parameter, by the role it has at the node that reads it."""
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {name: tuple(t.dims) for name, t in stored.items() if t.data_type == onnx.TensorProto.FLOAT}
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shapes[node.output[0]] = tuple(map(int, numpy_helper.to_array(stored[node.input[0]])))
    roles: dict[str, str] = {}
    for node in reversed(graph.node):
        for position, name in enumerate(node.input):
            role = roles.get(node.output[0], "") if node.op_type == "Unsqueeze" else f"{node.op_type}:{position}"
            roles[name] = role
    return {name: _draw(roles.get(name, ""), shape, generator) for name, shape in sorted(shapes.items())}


def _draw(role: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Return seeded values: He scale for weights, [0.5, 1.5) for what scales or is a variance, small otherwise."""
    if role in ("Conv:1", "Gemm:1"):
        fan_in = int(np.prod(shape[1:]))
        values = generator.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / fan_in))
    elif role in ("BatchNormalization:1", "BatchNormalization:4", "Mul:1"):
        values = generator.uniform(0.5, 1.5, shape)
    else:
        values = generator.normal(0, 0.1, shape)
    return np.asarray(values, np.float32)


def _install(model: onnx.ModelProto, parameters: Mapping[str, np.ndarray]) -> None:
    """Drop what declared the weights, and store the values instead."""
    graph = model.graph
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in graph.node if n.op_type != "ConstantOfShape"]
    read = {name for node in nodes for name in node.input}
    kept = [onnx.TensorProto.FromString(t.SerializeToString()) for t in graph.initializer if t.name in read]
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in graph.input if v.name not in stored]
    for field, values in ((graph.node, nodes), (graph.initializer, kept), (graph.input, inputs)):
        values = list(values)  # noqa: PLW2901 - the field is emptied below
        del field[:]
        field.extend(values)
    model.ir_version = _IR_VERSION
    _store(model, parameters)


def _store(model: onnx.ModelProto, parameters: Mapping[str, np.ndarray]) -> None:
    graph = model.graph
    kept = [onnx.TensorProto.FromString(t.SerializeToString()) for t in graph.initializer if t.name not in parameters]
    read = {name for node in graph.node for name in node.input}
    del graph.initializer[:]
    graph.initializer.extend(kept)
    for name in sorted(parameters):
        if name in read:
            graph.initializer.append(numpy_helper.from_array(parameters[name], name))


def _upstream(nodes: Sequence[onnx.NodeProto]) -> dict[str, list[str]]:
    """Return, for the output of each layer, the outputs of the layers nearest before it."""
    nearest: dict[str, list[str]] = {}
    found = {}
    for node in nodes:
        data = list(node.input[:1]) if node.op_type in _LAYERS else list(node.input)
        before = list(dict.fromkeys(name for read in data for name in nearest.get(read, ())))
        if node.op_type in _LAYERS:
            found[node.output[0]] = before
            before = [node.output[0]]
        nearest.update(dict.fromkeys(node.output, before))
    return found


def _log_spreads(
    model: onnx.ModelProto,
    layers: Sequence[onnx.NodeProto],
    feeds: Mapping[str, np.ndarray],
    run: Run,
    workdir: Path,
) -> list[float]:
    """Return log2 of the standard deviation of each layer's output, computed inside the model: two scalars a layer."""
    probe = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    probe.graph.CopyFrom(model.graph)
    names = []
    for position, node in enumerate(layers):
        mean, square, power = (f"__{what}_{position}" for what in ("mean", "square", "power"))
        probe.graph.node.extend(
            [
                helper.make_node("ReduceMean", [node.output[0]], [mean], keepdims=0),
                helper.make_node("Mul", [node.output[0], node.output[0]], [square]),
                helper.make_node("ReduceMean", [square], [power], keepdims=0),
            ]
        )
        names += [mean, power]
    probe.graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []) for name in names)
    path = workdir / "probe.onnx"
    onnx.save(probe, path)
    try:
        results: dict[str, Any] = run(path, feeds, names)
    finally:
        path.unlink()
    means, powers = ([float(results[name]) for name in names[start::2]] for start in (0, 1))
    return [0.5 * float(np.log2(max(p - m * m, 1e-30))) for m, p in zip(means, powers, strict=True)]


def _steps(
    layers: Sequence[onnx.NodeProto], upstream: Mapping[str, Sequence[str]], spreads: Sequence[float]
) -> list[int]:
    """Return how many eighths of an octave each layer is too loud, once those before it are corrected."""
    steps = []
    shifts: dict[str, float] = {}
    for node, spread in zip(layers, spreads, strict=True):
        before = upstream[node.output[0]]
        arriving = sum(shifts[name] for name in before) / len(before) if before else 0.0
        step = round((spread + arriving) * _STEPS_PER_OCTAVE)
        steps.append(step)
        shifts[node.output[0]] = arriving - step / _STEPS_PER_OCTAVE
    return steps


def _rescale(node: onnx.NodeProto, parameters: dict[str, np.ndarray], factor: np.float32) -> None:
    for name in node.input[1:]:
        parameters[name] = parameters[name] * factor
