"""Owns the faults of where an operator reads: parts exchanged, slices and indices one off, axes mixed up."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import numpy_helper

from mapper.validate.fault import Fault, View, attribute_of, equal_axes, pruned, set_attribute


def index_faults(view: View, index: int) -> Iterator[Fault]:
    """Yield the fault of one operator that moves data, if there is one that keeps its shapes."""
    node = view.model.graph.node[index]
    makers = {
        "Concat": _concat_fault,
        "Transpose": _transpose_fault,
        "Slice": _slice_fault,
        "Split": _split_fault,
        "Gather": _gather_fault,
        "Pad": _pad_fault,
        "Resize": _resize_fault,
        "DepthToSpace": _depth_fault,
    }
    made = view.copy()
    note = makers[node.op_type](view, node, made, made.graph.node[index]) if node.op_type in makers else None
    if note is not None:
        yield Fault(kind="index", note=note, model=pruned(made))


def _concat_fault(view: View, node: Any, made: Any, changed: Any) -> str | None:
    if len(node.input) < 2 or node.input[0] == node.input[1]:
        return None
    changed.input[0], changed.input[1] = node.input[1], node.input[0]
    return "first two parts of Concat exchanged"


def _transpose_fault(view: View, node: Any, made: Any, changed: Any) -> str | None:
    shape = view.shape(node.output[0])
    perm = list(attribute_of(node, "perm", list(range(len(shape)))[::-1]))
    pair = equal_axes(shape)
    if pair is None:
        return None
    first, second = pair
    perm[first], perm[second] = perm[second], perm[first]
    set_attribute(changed, "perm", perm)
    return f"axes {first} and {second} of Transpose exchanged"


def _slice_fault(view: View, node: Any, made: Any, changed: Any) -> str | None:
    if len(node.input) < 3 or any(name not in view.constants for name in node.input[1:] if name):
        return None
    starts, ends = (view.constants[name].astype(np.int64) for name in node.input[1:3])
    shape = view.shape(node.input[0])
    axes = view.constants[node.input[3]].tolist() if len(node.input) > 3 and node.input[3] else range(len(starts))
    steps = view.constants[node.input[4]].tolist() if len(node.input) > 4 and node.input[4] else [1] * len(starts)
    for at, (axis, step) in enumerate(zip(axes, steps, strict=True)):
        size = shape[axis]
        low = min(int(starts[at]) + size if starts[at] < 0 else int(starts[at]), size)
        high = min(int(ends[at]) + size if ends[at] < 0 else int(ends[at]), size)
        by = -1 if low > 0 else 1
        if step != 1 or high + by > size:
            continue
        moved_starts, moved_ends = starts.copy(), ends.copy()
        moved_starts[at], moved_ends[at] = low + by, high + by
        for position, value in ((1, moved_starts), (2, moved_ends)):
            made.graph.initializer.append(numpy_helper.from_array(value, f"moved{position}"))
            changed.input[position] = f"moved{position}"
        return f"Slice of axis {axis} moved by {by}"
    return None


def _split_fault(view: View, node: Any, made: Any, changed: Any) -> str | None:
    if len(node.output) < 2 or view.shape(node.output[0]) != view.shape(node.output[1]):
        return None
    changed.output[0], changed.output[1] = node.output[1], node.output[0]
    return "first two parts of Split exchanged"


def _gather_fault(view: View, node: Any, made: Any, changed: Any) -> str | None:
    if node.input[1] not in view.constants:
        return None
    indices = view.constants[node.input[1]]
    size = view.shape(node.input[0])[attribute_of(node, "axis", 0)]
    made.graph.initializer.append(numpy_helper.from_array(np.asarray((indices + 1) % size, indices.dtype), "moved"))
    changed.input[1] = "moved"
    return "indices of Gather one off"


def _pad_fault(view: View, node: Any, made: Any, changed: Any) -> str | None:
    if len(node.input) < 2 or node.input[1] not in view.constants:
        return None
    pads = view.constants[node.input[1]].copy()
    source = int(np.argmax(pads > 0))
    if pads[source] <= 0:
        return None
    target = (source + len(pads) // 2) % len(pads)
    pads[source] -= 1
    pads[target] += 1
    made.graph.initializer.append(numpy_helper.from_array(pads, "moved"))
    changed.input[1] = "moved"
    return "Pad moved by one"


def _resize_fault(view: View, node: Any, made: Any, changed: Any) -> str | None:
    if attribute_of(node, "mode", b"nearest") == b"nearest":
        is_floor = attribute_of(node, "nearest_mode", b"round_prefer_floor") != b"ceil"
        set_attribute(changed, "nearest_mode", "ceil" if is_floor else "floor")
        return "Resize rounds the other way"
    is_asymmetric = attribute_of(node, "coordinate_transformation_mode", b"half_pixel") == b"asymmetric"
    set_attribute(changed, "coordinate_transformation_mode", "half_pixel" if is_asymmetric else "asymmetric")
    return "Resize places its samples otherwise"


def _depth_fault(view: View, node: Any, made: Any, changed: Any) -> str | None:
    set_attribute(changed, "mode", "CRD" if attribute_of(node, "mode", b"DCR") == b"DCR" else "DCR")
    return "DepthToSpace in the other order"
