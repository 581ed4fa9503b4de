"""Small models that the ingress tests share."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from mapper.ingress.model import LoadedModel, load_model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def tensor(name, shape, elem=FLOAT):
    return helper.make_tensor_value_info(name, elem, shape)


def weight(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def model_of(nodes, inputs, outputs, initializers=(), opset=13, **extra):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    given = {"opset_imports": [helper.make_opsetid("", opset)], "ir_version": 8} | extra
    return helper.make_model(graph, **given)


def relu(shape, name="x", **extra):
    return model_of(
        [helper.make_node("Relu", [name], ["y"], name="r")], [tensor(name, shape)], [tensor("y", None)], **extra
    )


def load(tmp_path: Path, model, **given) -> LoadedModel:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return load_model(path, **({"name": "m", "dims": {}, "shapes": {}} | given))


def optimise_basic(source: Path, target: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def optimise_nothing(source: Path, target: Path) -> None:
    shutil.copy(source, target)


def run_unoptimised(path, feeds, names):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(list(names), dict(feeds)), strict=True))


def reference(model, feeds):
    return ReferenceEvaluator(model).run(None, feeds)


def random_feeds(model: LoadedModel, seed=0):
    generator = np.random.default_rng(seed)
    return {s.name: generator.standard_normal(s.shape).astype(s.dtype) for s in model.source.inputs}
