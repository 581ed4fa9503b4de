"""Owns the translation of ONNX tensors and element types to JSON values, names and arrays."""

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mapper.records import TensorSpec


def tensor_json(tensor: onnx.TensorProto) -> dict[str, object]:
    """Return a tensor as a JSON value: dtype, shape and flat data; NaN and infinities become words."""
    array = numpy_helper.to_array(tensor)
    return {"dtype": dtype_name(tensor.data_type), "shape": list(tensor.dims), "data": flat_json(array)}


def tensor_array(value: Mapping[str, object]) -> np.ndarray:
    """Return the array that `tensor_json` described."""
    dtype = helper.tensor_dtype_to_np_dtype(dtype_number(str(value["dtype"])))
    shape = value["shape"]
    data = value["data"]
    assert isinstance(shape, list)
    assert isinstance(data, list)
    if value["dtype"] == "string":
        return np.array(data, dtype=object).reshape(shape)
    if dtype.kind in "biu":
        return np.array(data, dtype=dtype).reshape(shape)
    return np.array([float(item) for item in data]).astype(dtype).reshape(shape)


@lru_cache(maxsize=64)
def dtype_name(number: int) -> str:
    """Return the lower-case name of an ONNX element type: `float32`, `int64`, `bfloat16`, `bool`, …."""
    name: str = onnx.TensorProto.DataType.Name(number).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


@lru_cache(maxsize=64)
def dtype_number(name: str) -> int:
    """Return the ONNX element type that `dtype_name` calls `name`."""
    number: int = onnx.TensorProto.DataType.Value({"float32": "FLOAT", "float64": "DOUBLE"}.get(name, name.upper()))
    return number


def element_bytes(spec: TensorSpec) -> int:
    """Return the bytes of one element, sub-byte types rounded up; a string counts as 0."""
    dtype = helper.tensor_dtype_to_np_dtype(dtype_number(spec.dtype))
    return 0 if dtype.kind == "O" else int(dtype.itemsize)


def flat_json(array: np.ndarray) -> list[object]:
    """Return the elements in row order as JSON values; NaN and infinities become words."""
    if array.dtype.kind in "OSU":
        return [item.decode(errors="backslashreplace") if isinstance(item, bytes) else str(item) for item in array.flat]
    if array.dtype.kind == "c":
        return [str(item) for item in array.flat]
    if array.dtype.kind == "b":
        return [bool(item) for item in array.flat]
    if array.dtype.kind in "iu" or "int" in array.dtype.name:
        return [int(item) for item in array.flat]
    return [float(item) if isfinite(item) else str(float(item)) for item in array.flat]
