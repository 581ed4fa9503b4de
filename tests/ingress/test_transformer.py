import json
import math
import struct

import numpy as np
import onnx
import pytest
from ingress_models import reference

from mapper.ingress.transformer import read_safetensors, write_encoder

WIDTH, HEADS, TOKENS = 24, 12, 5


def weights():
    generator = np.random.default_rng(0)
    shapes = {
        "embeddings.word_embeddings.weight": (11, WIDTH),
        "embeddings.position_embeddings.weight": (8, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
    }
    dense = {f"attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")}
    dense |= {"attention.output.dense": (WIDTH, WIDTH), "intermediate.dense": (40, WIDTH), "output.dense": (WIDTH, 40)}
    for layer in range(2):
        for name, shape in dense.items():
            shapes[f"encoder.layer.{layer}.{name}.weight"] = shape
            shapes[f"encoder.layer.{layer}.{name}.bias"] = shape[:1]
    norms = ["embeddings.LayerNorm"]
    norms += [f"encoder.layer.{i}.{part}.LayerNorm" for i in range(2) for part in ("attention.output", "output")]
    for name in norms:
        shapes |= {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def pack(tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, value in tensors.items():
        offsets = [len(data), len(data) + value.nbytes]
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": offsets}
        data += value.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def encode(w, ids):
    """The encoder in numpy, head by head."""

    def dense(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True)) * w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in range(2):
        p = f"encoder.layer.{layer}."
        q, k, v = (dense(x, f"{p}attention.self.{part}") for part in ("query", "key", "value"))
        size = WIDTH // HEADS
        heads = []
        for part in (slice(i * size, (i + 1) * size) for i in range(HEADS)):
            powers = np.exp(q[:, part] @ k[:, part].T / math.sqrt(size))
            heads.append(powers / powers.sum(-1, keepdims=True) @ v[:, part])
        x = norm(dense(np.concatenate(heads, -1), f"{p}attention.output.dense") + x, f"{p}attention.output.LayerNorm")
        wide = dense(x, f"{p}intermediate.dense")
        wide = 0.5 * wide * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))
        x = norm(dense(wide, f"{p}output.dense") + x, f"{p}output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def test_written_graph_computes_the_encoder():
    tensors = weights()
    model = write_encoder(pack(tensors), TOKENS)
    onnx.checker.check_model(model, full_check=True)
    ids = np.array([3, 0, 10, 7, 3])
    (result,) = reference(model, {"ids": ids[None]})
    double = {name: value.astype(np.float64) for name, value in tensors.items()}
    np.testing.assert_allclose(result[0], encode(double, ids), rtol=1e-3, atol=1e-4)


def test_safetensors_hold_what_was_packed():
    tensors = weights()
    found = read_safetensors(pack(tensors))
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("data", [b"", b"1234567", struct.pack("<Q", 1 << 40) + b"{}", struct.pack("<Q", 0)])
def test_other_bytes_are_refused(data):
    with pytest.raises(ValueError, match="no safetensors header"):
        read_safetensors(data)
