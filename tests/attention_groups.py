"""Attention as ONNX graphs of one group, in the forms in which exporters write it."""

import numpy as np
from small_groups import case, constant


def heads(name, shape, perm):
    """Return the nodes that cut `name` (b, rows, h·width) into heads, and the constant that they read."""
    nodes = [
        ("Reshape", f"{name} {name}_shape", f"{name}1", {}),
        ("Transpose", f"{name}1", f"{name}2", {"perm": perm}),
    ]
    return nodes, constant(f"{name}_shape", shape, np.int64)


def attention(rows, keys, count, width, *, batch=1, values=None, mask=None, joined=True, flat=False, scale_q=False):
    """Return softmax(q · kᵀ / 2.5 [+ mask]) · v over `count` heads of `width`, `values` wide in v.

    `joined` puts the heads of the result beside one another, `flat` then drops the batch axis; `scale_q` scales q
    instead of the scores.
    """
    values = values or width
    q_nodes, q_shape = heads("q", [batch, rows, count, width], [0, 2, 1, 3])
    k_nodes, k_shape = heads("k", [batch, keys, count, width], [0, 2, 3, 1])
    v_nodes, v_shape = heads("v", [batch, keys, count, values], [0, 2, 1, 3])
    scores = [("MatMul", "q2 k2", "s", {}), ("Div", "s c", "scaled", {})]
    if scale_q:
        scores = [("Mul", "q2 c", "q3", {}), ("MatMul", "q3 k2", "scaled", {})]
    masked = [("Add", "scaled m", "masked", {})] if mask else []
    last = "masked" if mask else "scaled"
    nodes = [*q_nodes, *k_nodes, *scores, *masked, ("Softmax", last, "p", {}), *v_nodes]
    nodes.append(("MatMul", "p v2", "o" if joined else "y", {}))
    inputs = {"q": (batch, rows, count * width), "k": (batch, keys, count * width), "v": (batch, keys, count * values)}
    held = [q_shape, k_shape, v_shape, constant("c", 2.5)]
    if joined:
        nodes += [("Transpose", "o", "o1", {"perm": [0, 2, 1, 3]}), ("Reshape", "o1 shape", "y", {})]
        above = [batch * rows] if flat else [batch, rows]
        held.append(constant("shape", [*above, count * values], np.int64))
    return case(nodes, {**inputs, **({"m": mask} if mask else {})}, held)


def bare(*lead, rows, keys, width):
    """Return softmax(q · k) · v of matrices as they come."""
    nodes = [("MatMul", "q k", "s", {}), ("Softmax", "s", "p", {}), ("MatMul", "p v", "y", {})]
    return case(nodes, {"q": (*lead, rows, width), "k": (*lead, width, keys), "v": (*lead, keys, width)})
