"""Whole small ONNX graphs taken as one fusion group, and machine models to tile them for."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from mapper.plan import fusion
from mapper.plan.graph import operator_graph
from mapper.plan.spec import group_spec
from mapper.plan.submodel import group_model
from mapper.records import MachineModel


def machine(lanes=8, registers=16, threads=2):
    """Return a machine of round numbers: 100 GFLOP/s and 100 GB/s of L1 a thread."""
    one = {"L1": 100e9, "L2": 50e9, "L3": 20e9, "DRAM": 10e9}
    return MachineModel(
        vector_bits=32 * lanes,
        vector_lanes_f32=lanes,
        vector_registers=registers,
        has_fma=True,
        cores=threads,
        threads=threads,
        flops_per_s_1=100e9,
        flops_per_s_n=100e9 * threads,
        bandwidth_b_per_s_1=one,
        bandwidth_b_per_s_n={level: rate * threads for level, rate in one.items()},
        cache_b={"L1": 32 << 10, "L2": 512 << 10, "L3": 16 << 20},
        cache_shared_by={"L1": 1, "L2": 1, "L3": threads},
        line_b=64,
    )


AVX2, AVX512, NEON = machine(8, 16), machine(16, 32), machine(4, 32)


@dataclass(frozen=True)
class Case:
    """One group: its model under the graph's own names, its spec, and its model under local names."""

    model: onnx.ModelProto

    @cached_property
    def graph(self):
        return operator_graph(self.model)

    @cached_property
    def group(self):
        everything = [[operator.index for operator in self.graph.operators]]
        return fusion.from_partition(self.graph, everything, "whole").groups[0]

    @cached_property
    def spec(self):
        return group_spec(self.graph, self.group)

    @cached_property
    def local_model(self):
        return group_model(self.model, self.graph, self.group)

    def layouts(self, policy="nhwc", output=None):
        """Return `policy` for every tensor of rank 4, `output` (the same by default) for those that come out."""

        def one(names, wanted):
            return [wanted if len(self.spec.tensors[name].shape) == 4 else "row" for name in names]

        return (*one(self.spec.inputs, policy), *one(self.spec.outputs, output or policy))

    def values(self, seed=0):
        """Return a value for every input and weight, by local name."""
        rng = np.random.default_rng(seed)
        made = {}
        for name in (*self.spec.inputs, *self.spec.weights):
            tensor = self.spec.tensors[name]
            if tensor.dtype.startswith("float"):
                made[name] = rng.standard_normal(tensor.shape).astype(tensor.dtype)
            else:
                made[name] = rng.integers(0, 2, tensor.shape).astype(tensor.dtype)
        return made

    def expected(self, values):
        """Return what ONNX's own reference implementation computes, by local name."""
        return dict(zip(self.spec.outputs, ReferenceEvaluator(self.local_model).run(None, values), strict=True))


def constant(name, values, dtype=np.float32):
    """Return an initializer of given values."""
    return numpy_helper.from_array(np.array(values, dtype), name)


def case(nodes, inputs, constants=(), *, outputs=("y",), opset=17):
    """Return the group of `nodes`: (operator, inputs, outputs, attributes), shapes of outputs inferred.

    `inputs` maps names to a shape, or to (shape, ONNX element type); `constants` maps names to a shape (values are
    seeded normals) or is an initializer.
    """
    made = [helper.make_node(op, ins.split(" "), outs.split(), **attributes) for op, ins, outs, attributes in nodes]
    takes = [
        helper.make_tensor_value_info(name, *((shape[1], shape[0]) if _is_typed(shape) else (TensorProto.FLOAT, shape)))
        for name, shape in inputs.items()
    ]
    rng = np.random.default_rng(1)
    held = [
        item if isinstance(item, TensorProto) else constant(item[0], rng.standard_normal(item[1])) for item in constants
    ]
    gives = [onnx.ValueInfoProto(name=name) for name in outputs]
    proto = helper.make_graph(made, "case", takes, gives, held)
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return Case(onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True))


def _is_typed(shape):
    return len(shape) == 2 and isinstance(shape[0], tuple)


def conv(image, channels, kernel, *, bias=True, tail=(), constants=(), head=(), inputs=None, **attributes):
    """Return a convolution of `image` (n, c, spatial…) to `channels`, between `head` and `tail` nodes.

    `head` nodes lead from `x` to `h`, `tail` nodes from `t` to `y`.
    """
    groups = attributes.get("group", 1)
    source, target = ("h" if head else "x"), ("t" if tail else "y")
    weights = [("w", (channels, image[1] // groups, *kernel)), *([("b", (channels,))] if bias else [])]
    node = ("Conv", f"{source} w b" if bias else f"{source} w", target, {"kernel_shape": list(kernel), **attributes})
    return case([*head, node, *tail], {"x": image, **(inputs or {})}, [*weights, *constants])


def matmul(a, b, *, b_is_constant=True, tail=(), constants=()):
    """Return a MatMul of shapes `a` and `b`."""
    held = [("w", b), *constants] if b_is_constant else list(constants)
    taken = {"x": a} if b_is_constant else {"x": a, "w": b}
    return case([("MatMul", "x w", "t" if tail else "y", {}), *tail], taken, held)


RELU = ("Relu", "t", "y", {})
RESIDUAL = (("Add", "t r", "s", {}), ("Relu", "s", "y", {}))
SILU = (("Sigmoid", "t", "g", {}), ("Mul", "t g", "y", {}))
