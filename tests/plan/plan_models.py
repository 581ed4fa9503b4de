"""Small canonical models for the tests of the plan room."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mapper.plan.graph import operator_graph

IMAGE = (1, 2, 3, 3)
OPSET = 17


def weight(name, shape, dtype=np.float32, seed=0):
    values = np.random.default_rng(seed + len(name)).standard_normal(shape) * 0.5
    return numpy_helper.from_array(np.asarray(values, dtype=dtype), name)


def constant(name, values, dtype=np.float32):
    return numpy_helper.from_array(np.array(values, dtype=dtype), name)


def node(op_type, inputs, outputs, name="", domain="", **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, domain=domain, **attributes)


def model(nodes, inputs, outputs, constants=(), *, opset=OPSET, infer=True, domains=()):
    """Make a model; `inputs` and `outputs` map names to shapes, or to (shape, element type)."""

    def values(specs):
        for name, spec in specs.items():
            shape, kind = spec if len(spec) == 2 and isinstance(spec[0], tuple) else (spec, TensorProto.FLOAT)
            yield helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(nodes, "test", list(values(inputs)), list(values(outputs)), list(constants))
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    result = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return onnx.shape_inference.infer_shapes(result, strict_mode=True, data_prop=True) if infer else result


def graph_of(*args, **kwargs):
    return operator_graph(model(*args, **kwargs))


def residual_block(prefix=""):
    """Return a model of operators 0 Conv, 1 Relu, 2 Conv (shortcut), 3 Conv, 4 Add, 5 Relu."""
    p = prefix
    return model(
        [
            node("Conv", f"{p}x {p}w1 {p}b1", f"{p}a", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node("Relu", f"{p}a", f"{p}b"),
            node("Conv", f"{p}x {p}w2", f"{p}s", kernel_shape=[1, 1]),
            node("Conv", f"{p}b {p}w3", f"{p}c", kernel_shape=[1, 1]),
            node("Add", f"{p}c {p}s", f"{p}d"),
            node("Relu", f"{p}d", f"{p}y"),
        ],
        {f"{p}x": IMAGE},
        {f"{p}y": IMAGE},
        [
            weight(f"{p}w1", (2, 2, 3, 3)),
            weight(f"{p}b1", (2,)),
            weight(f"{p}w2", (2, 2, 1, 1)),
            weight(f"{p}w3", (2, 2, 1, 1)),
        ],
    )
