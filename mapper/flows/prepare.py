"""From what the user named to a canonical graph with feeds: the ingress stages in order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from mapper.config import ExploreRequest
from mapper.errors import BadInputError
from mapper.ingress import feeds as feeding
from mapper.ingress import zoo
from mapper.ingress.model import LoadedModel, load_model
from mapper.ingress.normalize import Normalized, normalize
from mapper.plan.fusion import group_taps
from mapper.plan.graph import operator_graph
from mapper.records import OperatorGraph
from mapper.worker.client import ChildFailureError
from mapper.worker.exchange import write_feeds
from mapper.worker.reference import ReferenceWorker

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A model ready to be planned: `folder` holds `bound.onnx`, `canonical.onnx` and `feeds.npz`."""

    folder: Path
    model: LoadedModel
    normalized: Normalized
    graph: OperatorGraph
    taps: tuple[str, ...]  # inner tensors that verification compares besides the outputs
    feeds: Mapping[str, Array]

    @property
    def bound(self) -> Path:
        """The original model, dimensions bound."""
        return self.folder / "bound.onnx"

    @property
    def canonical(self) -> Path:
        """The canonical model."""
        return self.folder / "canonical.onnx"

    @property
    def feeds_file(self) -> Path:
        """The feeds by position."""
        return self.folder / "feeds.npz"


def prepare(request: ExploreRequest, reference: ReferenceWorker, folder: Path) -> Prepared:
    """Find, read, bind, normalise and feed the model.

    Raises:
        BadInputError: whatever is wrong with the model or the flags that bind it.
    """
    path, name = find_model(request, reference)
    npz = feeding.read_npz(request.inputs_npz) if request.inputs_npz else None
    model = load_model(
        path,
        name=name,
        dims=request.dims,
        shapes=request.shapes,
        npz_shapes={key: value.shape for key, value in npz.items()} if npz else None,
        default_shapes=zoo.default_shapes(name) if request.model.startswith("zoo:") else None,
    )
    save_model(model.proto, folder / "bound.onnx")
    normalized = normalize(model, _translated(reference.optimise, model.source.path), folder)
    save_model(normalized.proto, folder / "canonical.onnx")
    graph = operator_graph(normalized.proto)
    feeds = (
        feeding.load_feeds(request.inputs_npz, model) if request.inputs_npz else feeding.make_feeds(model, request.seed)
    )
    write_feeds(folder / "feeds.npz", [feeds[name] for name in graph.inputs])
    return Prepared(
        folder=folder,
        model=model,
        normalized=normalized,
        graph=graph,
        taps=_known_taps(model, graph),
        feeds=feeds,
    )


def find_model(request: ExploreRequest, reference: ReferenceWorker) -> tuple[Path, str]:
    """Return the model's file and short name; `zoo:NAME` is materialised into the cache first."""
    if not request.model.startswith("zoo:"):
        path = Path(request.model)
        return path, path.stem
    name = request.model.removeprefix("zoo:")

    def run(model: Path, feeds: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        values = reference.run(model, list(feeds.values()))
        return dict(zip(outputs, values[-len(outputs) :], strict=True))

    return zoo.materialise(name, cache_dir=request.cache_dir, run=run), name


def save_model(proto: onnx.ModelProto, path: Path) -> None:
    """Write a model; past protobuf's 2 GiB its tensors go to a file beside it."""
    if proto.ByteSize() < (1 << 31) - (1 << 20):
        onnx.save_model(proto, path)
    else:
        onnx.save_model(proto, path, save_as_external_data=True, location=f"{path.stem}.data")


def reference_outputs(prepared: Prepared, reference: ReferenceWorker, level: str = "none") -> dict[str, Array]:
    """Run the original model, dimensions bound, and return its outputs and the taps.

    Raises:
        BadInputError: onnxruntime cannot run the model.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(prepared.model.proto)
    present = [output.name for output in proto.graph.output]
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(tap) for tap in prepared.taps)
    path = prepared.folder / "tapped.onnx"
    save_model(proto, path)
    ordered = [prepared.feeds[item.name] for item in prepared.model.source.inputs]
    try:
        values = reference.run(path, ordered, level)
    except ChildFailureError as error:
        raise BadInputError(f"{prepared.model.source.path}: the reference cannot run it: {error.reason}") from error
    return dict(zip((*present, *prepared.taps), values, strict=True))


def _known_taps(model: LoadedModel, graph: OperatorGraph) -> tuple[str, ...]:
    """Return the taps of the canonical graph that the original model computes under the same name."""
    computed = {output for node in model.proto.graph.node for output in node.output}
    return tuple(sorted(tap for tap in group_taps(graph) if tap in computed and tap not in graph.outputs))


def _translated(optimise: Callable[[Path, Path], None], where: str) -> Callable[[Path, Path], None]:
    def run(source: Path, target: Path) -> None:
        try:
            optimise(source, target)
        except ChildFailureError as error:
            raise BadInputError(f"{where}: {error.reason}") from error

    return run
