"""Writing a BERT encoder with mean pooling as an ONNX graph, from the weights of a safetensors file."""

import json
import struct
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

ENCODER_VERSION = 1
_OPSET = 17
_IR_VERSION = 8
_HEADS = 12
_EPSILON = 1e-12
_HEADER_LIMIT_B = 1 << 24


def write_encoder(safetensors: bytes, tokens: int) -> onnx.ModelProto:
    """Return a sentence encoder: int64 `ids` (1, tokens) to a unit vector `embedding` (1, width).

    All tokens count and are of type 0: there is no attention mask and no padding.
    Source: Devlin et al., BERT (2018), post-norm layers, Gelu by erf; pooling and normalising as all-MiniLM-L6-v2 has.

    Args:
        safetensors: Weights under the names of a BertModel, float32.
        tokens: The sequence length that is written into the graph.

    Raises:
        ValueError: when the bytes are not such a file.
    """
    return _Writer(read_safetensors(safetensors), tokens).model()


def read_safetensors(data: bytes) -> dict[str, np.ndarray]:
    """Return the float32 tensors of a safetensors file: 8 bytes of header length, a JSON header, raw values.

    Raises:
        ValueError: when the bytes are not such a file.
    """
    length = struct.unpack_from("<Q", data)[0] if len(data) >= 8 else 0
    if not 0 < length <= min(_HEADER_LIMIT_B, len(data) - 8):
        raise ValueError("no safetensors header")
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if entry.get("dtype") == "F32":
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(data[start:end], np.dtype("<f4")).reshape(entry["shape"])
    return tensors


class _Writer:
    """Collects nodes and initializers; each method appends some and returns the name of its result."""

    def __init__(self, weights: Mapping[str, np.ndarray], tokens: int) -> None:
        self.weights = weights
        self.tokens = tokens
        self.width = weights["embeddings.word_embeddings.weight"].shape[1]
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, np.ndarray] = {}

    def model(self) -> onnx.ModelProto:
        """Write the whole graph."""
        hidden = self.embed("ids")
        layers = sum(name.endswith("attention.self.query.weight") for name in self.weights)
        for layer in range(layers):
            hidden = self.layer(hidden, f"encoder.layer.{layer}.")
        pooled = self.add("ReduceMean", "pooled", hidden, axes=[1], keepdims=0)
        length = self.add("ReduceL2", "length", pooled, axes=[1], keepdims=1)
        self.add("Div", "embedding", pooled, length)
        graph = helper.make_graph(
            self.nodes,
            "encoder",
            [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [1, self.tokens])],
            [helper.make_tensor_value_info("embedding", onnx.TensorProto.FLOAT, [1, self.width])],
            [numpy_helper.from_array(value, name) for name, value in self.initializers.items()],
        )
        opsets = [helper.make_opsetid("", _OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="mapper")

    def add(self, op_type: str, result: str, *operands: str, **attributes: object) -> str:
        """Append one node."""
        self.nodes.append(helper.make_node(op_type, list(operands), [result], name=result, **attributes))
        return result

    def constant(self, name: str, value: np.ndarray) -> str:
        """Keep one initializer."""
        self.initializers[name] = np.ascontiguousarray(value)
        return name

    def embed(self, ids: str) -> str:
        """Sum of word, position and type embeddings, normalised."""
        table = self.constant("embeddings.word", self.weights["embeddings.word_embeddings.weight"])
        position = self.weights["embeddings.position_embeddings.weight"][: self.tokens]
        first_type = self.weights["embeddings.token_type_embeddings.weight"][0]
        words = self.add("Gather", "embeddings.gathered", table, ids, axis=0)
        offset = self.constant("embeddings.offset", (position + first_type)[None])
        return self.norm("embeddings.LayerNorm", self.add("Add", "embeddings.sum", words, offset))

    def layer(self, hidden: str, prefix: str) -> str:
        """One post-norm encoder layer."""
        attended = self.linear(self.attention(hidden, prefix), f"{prefix}attention.output.dense")
        total = self.add("Add", f"{prefix}attention.residual", attended, hidden)
        middle = self.norm(f"{prefix}attention.output.LayerNorm", total)
        widened = self.gelu(self.linear(middle, f"{prefix}intermediate.dense"), f"{prefix}gelu.")
        narrowed = self.linear(widened, f"{prefix}output.dense")
        total = self.add("Add", f"{prefix}residual", narrowed, middle)
        return self.norm(f"{prefix}output.LayerNorm", total)

    def attention(self, hidden: str, prefix: str) -> str:
        """Multi-head attention over all tokens, `(1, tokens, width)` to the same."""
        split = self.constant("heads.shape", np.array([1, self.tokens, _HEADS, self.width // _HEADS], np.int64))
        joined = self.constant("hidden.shape", np.array([1, self.tokens, self.width], np.int64))
        heads = {}
        for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
            name = f"{prefix}attention.self.{part}"
            shaped = self.add("Reshape", f"{name}.heads", self.linear(hidden, name), split)
            heads[part] = self.add("Transpose", f"{name}.transposed", shaped, perm=order)
        base = f"{prefix}attention."
        scores = self.add("MatMul", f"{base}scores", heads["query"], heads["key"])
        scale = self.constant("attention.scale", np.array(np.sqrt(self.width // _HEADS), np.float32))
        scaled = self.add("Div", f"{base}scaled", scores, scale)
        shares = self.add("Softmax", f"{base}softmax", scaled, axis=-1)
        context = self.add("MatMul", f"{base}context", shares, heads["value"])
        back = self.add("Transpose", f"{base}context.transposed", context, perm=[0, 2, 1, 3])
        return self.add("Reshape", f"{base}context.joined", back, joined)

    def linear(self, hidden: str, name: str) -> str:
        """Dense layer; the file holds its matrix as (outputs, inputs)."""
        matrix = self.constant(f"{name}.weight", self.weights[f"{name}.weight"].T)
        bias = self.constant(f"{name}.bias", self.weights[f"{name}.bias"])
        return self.add("Add", f"{name}.out", self.add("MatMul", f"{name}.product", hidden, matrix), bias)

    def norm(self, name: str, hidden: str) -> str:
        """Layer normalisation over the last axis."""
        scale = self.constant(f"{name}.weight", self.weights[f"{name}.weight"])
        bias = self.constant(f"{name}.bias", self.weights[f"{name}.bias"])
        return self.add("LayerNormalization", f"{name}.out", hidden, scale, bias, axis=-1, epsilon=_EPSILON)

    def gelu(self, hidden: str, prefix: str) -> str:
        """Gelu by erf: x / 2 · (1 + erf(x / sqrt(2)))."""
        root, half, one = (
            self.constant(f"gelu.{name}", np.array(value, np.float32))
            for name, value in (("root", np.sqrt(2)), ("half", 0.5), ("one", 1))
        )
        error = self.add("Erf", f"{prefix}erf", self.add("Div", f"{prefix}divided", hidden, root))
        weighted = self.add("Mul", f"{prefix}weighted", hidden, self.add("Add", f"{prefix}shifted", error, one))
        return self.add("Mul", f"{prefix}out", weighted, half)
