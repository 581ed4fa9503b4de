"""Inputs to run a model on: seeded and index-sensitive, or the user's own."""

from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import onnx

from mapper.errors import BadInputError
from mapper.ingress.model import LoadedModel
from mapper.ingress.statics import fold_small, small_constants, types_of
from mapper.ingress.wiring import attributes, reads, writes
from mapper.records import TensorSpec

RAMP = 0.25
SAMPLING_RATE_HZ = 16000
_BYTE_VALUES = 256
_SMALL_INTEGERS = 8
_INDEX_OPERAND = {"Gather": 1, "GatherElements": 1, "ScatterElements": 1, "Scatter": 1}
_HANDS_ON = frozenset(
    {"Cast", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Slice", "Concat", "Tile"}
)


def make_feeds(model: LoadedModel, seed: int) -> dict[str, np.ndarray]:
    """Return one array for every graph input, the same for the same seed.

    Floats are standard normal plus a ramp over the flat index, so that swapped axes and shifted rows show. Integers
    that end as indices or are compared with a constant vocabulary stay in its range; byte inputs with a padding token
    end in padding; masks are ones; a sampling rate is 16 kHz; other integers are small. Booleans are random.
    """
    generator = np.random.default_rng(seed)
    ranges = _integer_ranges(model.proto)
    return {spec.name: _feed(spec, ranges.get(spec.name), generator) for spec in model.source.inputs}


def float_feed(shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Return standard normal values plus a ramp from -0.25 to 0.25 over the flat index, float32."""
    values = generator.standard_normal(shape) + np.linspace(-RAMP, RAMP, int(np.prod(shape))).reshape(shape)
    return np.asarray(values, np.float32)


def load_feeds(path: Path, model: LoadedModel) -> dict[str, np.ndarray]:
    """Read the user's inputs from an .npz file.

    Raises:
        BadInputError: when the file cannot be read, or names, shapes or dtypes are not those of the model's inputs.
    """
    arrays = read_npz(path)
    wanted = {spec.name: spec for spec in model.source.inputs}
    missing, unknown = sorted(wanted.keys() - arrays.keys()), sorted(arrays.keys() - wanted.keys())
    if missing or unknown:
        raise BadInputError(
            f"{path}: expected one array for each input {sorted(wanted)}, missing {missing}, unknown {unknown}: "
            "save it with numpy.savez(path, **{name: array})"
        )
    for name, spec in wanted.items():
        found = arrays[name]
        if found.shape != spec.shape:
            raise BadInputError(
                f"{path}: array '{name}': expected shape {list(spec.shape)}, found {list(found.shape)}: "
                "reshape it, or bind the model to its shape with --shape"
            )
        if found.dtype.name != spec.dtype:
            raise BadInputError(
                f"{path}: array '{name}': expected dtype {spec.dtype}, found {found.dtype.name}: convert it with astype"
            )
    return {name: np.ascontiguousarray(arrays[name]).reshape(spec.shape) for name, spec in wanted.items()}


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read every array of an .npz file; pickled objects are refused.

    Raises:
        BadInputError: when it is not such a file.
    """
    try:
        stored = np.load(path, allow_pickle=False)
        if isinstance(stored, np.ndarray):
            raise BadInputError(f"{path}: expected an .npz archive, found a single array: use numpy.savez")
        with stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise BadInputError(f"{path}: cannot be read as .npz: {error}: save it with numpy.savez") from error


def _feed(spec: TensorSpec, limits: tuple[int, int] | None, generator: np.random.Generator) -> np.ndarray:
    dtype = np.dtype(spec.dtype) if spec.dtype != "bfloat16" else onnx.helper.tensor_dtype_to_np_dtype(16)
    if dtype.kind == "b":
        return np.asarray(generator.integers(0, 2, spec.shape), dtype)
    if dtype.kind not in "iu":
        return np.asarray(float_feed(spec.shape, generator)).astype(dtype)
    return np.asarray(_integers(spec, limits, generator), dtype)


def _integers(spec: TensorSpec, limits: tuple[int, int] | None, generator: np.random.Generator) -> np.ndarray:
    name = spec.name.lower()
    if name == "sr" or "sample_rate" in name or "sampling_rate" in name:
        return np.full(spec.shape, SAMPLING_RATE_HZ)
    if "mask" in name:
        return np.ones(spec.shape)
    low, high = limits or (0, _SMALL_INTEGERS - 1)
    if (low, high) == (0, _BYTE_VALUES) and spec.shape:
        values = generator.integers(0, _BYTE_VALUES, spec.shape)
        values[..., spec.shape[-1] - spec.shape[-1] // 8 :] = _BYTE_VALUES
        return values
    return generator.integers(low, high + 1, spec.shape)


def _integer_ranges(model: onnx.ModelProto) -> dict[str, tuple[int, int]]:
    """Return inclusive limits for the graph inputs whose values end as indices or meet a constant vocabulary."""
    types = types_of(model.graph)
    values = small_constants(model.graph)
    fold_small(model, types, values)
    vocabularies = values | _unrolled(model.graph, values)
    origin = {value.name: value.name for value in model.graph.input}
    found: dict[str, tuple[int, int]] = {}
    for node in model.graph.node:
        for name in reads(node):
            limits = _limits(node, name, types, vocabularies) if name in origin else None
            if limits is not None:
                low, high = found.get(origin[name], limits)
                found[origin[name]] = (max(low, limits[0]), min(high, limits[1]))
        if node.op_type in _HANDS_ON:
            sources = [origin[name] for name in reads(node) if name in origin]
            origin.update((name, sources[0]) for name in writes(node) if sources)
    return {name: limits for name, limits in found.items() if limits[0] <= limits[1]}


def _limits(
    node: onnx.NodeProto, name: str, types: Mapping[str, TensorSpec], values: Mapping[str, np.ndarray]
) -> tuple[int, int] | None:
    """Return what one use of a tensor allows: indices stay inside the axis they pick from."""
    names = list(node.input)
    position = names.index(name) if name in names else -1
    if node.op_type in _INDEX_OPERAND and position == _INDEX_OPERAND[node.op_type] and names[0] in types:
        size = types[names[0]].shape[attributes(node).get("axis", 0)]
        return 0, size - 1
    if node.op_type == "GatherND" and position == 1 and names[0] in types and name in types:
        first = attributes(node).get("batch_dims", 0)
        return 0, min(types[names[0]].shape[first : first + types[name].shape[-1]]) - 1
    if node.op_type == "OneHot" and position == 0 and names[1] in values:
        return 0, int(values[names[1]].reshape(-1)[0]) - 1
    if node.op_type == "Equal":
        other = values.get(names[1 - position])
        if other is not None and other.size > 1 and other.dtype.kind in "iu":
            return int(other.min()), int(other.max())
    return None


def _unrolled(graph: onnx.GraphProto, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return constants that reach an Equal through shape-only nodes, where too large for `values`."""
    known: dict[str, np.ndarray] = {}
    for node in graph.node:
        if node.op_type in _HANDS_ON and node.input[0] in values and node.output[0] not in values:
            known[node.output[0]] = values[node.input[0]]
    return known
