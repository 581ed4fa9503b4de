"""Reading an ONNX file safely: what it is when it is not one, its external data, its hash."""

import codecs
import hashlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor, uses_external_data

from mapper.errors import BadInputError

_CHUNK_B = 1 << 20
_SIGNATURES = (
    (0, b"version https://git-lfs", "a Git LFS pointer, not the model itself: run `git lfs pull` in its repository"),
    (0, b"PK\x03\x04", "a zip archive: unpack it and give the .onnx file inside"),
    (0, b"\x1f\x8b", "gzip-compressed: unpack it and give the .onnx file inside"),
    (4, b"TFL3", "a TensorFlow Lite model: export or convert it to ONNX"),
    (0, b"\x89HDF", "an HDF5 (Keras) file: export it to ONNX"),
    (0, b"\x93NUMPY", "a numpy array: give the ONNX model"),
    (0, b"GGUF", "a GGUF model: export it to ONNX"),
    (0, b"\x80\x02", "a Python pickle: export the model to ONNX"),
)


def read_model(path: Path) -> tuple[onnx.ModelProto, str]:
    """Read `path` with its external data.

    Returns:
        The model, every tensor's data inside it, and the SHA-256 of the file followed by its external data files
        in order of their location.

    Raises:
        BadInputError: when there is no ONNX model at `path`, or it refers to data that may not or cannot be read.
    """
    data = _read_bytes(path)
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError as error:
        raise BadInputError(
            f"{path}: expected an ONNX model, found a truncated or damaged one ({len(data)} bytes): fetch it again"
        ) from error
    if not model.HasField("graph") or not model.ir_version:
        raise BadInputError(
            f"{path}: expected an ONNX model, found {len(data)} bytes without a graph and IR version: "
            "the file is truncated or is of another kind"
        )
    hasher = hashlib.sha256(data)
    _load_external_data(model, path, hasher)
    return model, hasher.hexdigest()


def tensors_of(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor stored in a graph and its subgraphs: initializers and attributes."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        yield from _attribute_tensors(node)


def _attribute_tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("g"):
            yield from tensors_of(attribute.g)
        for graph in attribute.graphs:
            yield from tensors_of(graph)


def _read_bytes(path: Path) -> bytes:
    if not path.exists():
        raise BadInputError(f"{path}: no such file: give the path of an ONNX model, or zoo:NAME")
    if path.is_dir():
        raise BadInputError(f"{path}: is a directory: give the .onnx file inside it")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read: {error.strerror}: check its permissions") from error
    if not data:
        raise BadInputError(f"{path}: is empty (0 bytes): export or fetch the model again")
    kind = _foreign_kind(data[:4096])
    if kind is not None:
        raise BadInputError(f"{path}: expected an ONNX model, found {kind}")
    return data


def _foreign_kind(head: bytes) -> str | None:
    """Say what a file is when its first bytes are not those of an ONNX model."""
    for offset, magic, kind in _SIGNATURES:
        if head[offset : offset + len(magic)] == magic:
            return kind
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] == b"<":
        return "an HTML or XML page (often a download that needed a log-in): fetch the file itself"
    if _is_text(head):
        return "a text file: give the binary .onnx file"
    return None


def _is_text(head: bytes) -> bool:
    """Tell whether bytes are printable UTF-8; a character cut off at their end is forgiven."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\t\r\n\f" for character in text)


def _load_external_data(model: onnx.ModelProto, path: Path, hasher: "hashlib._Hash") -> None:
    graphs = [tensors_of(model.graph)]
    graphs += [(t for node in function.node for t in _attribute_tensors(node)) for function in model.functions]
    tensors = [tensor for stored in graphs for tensor in stored if uses_external_data(tensor)]
    locations: dict[str, Path] = {}
    for tensor in tensors:
        info = ExternalDataInfo(tensor)
        if info.location not in locations:
            locations[info.location] = _external_file(path, info.location, tensor.name)
        file = locations[info.location]
        end = (info.offset or 0) + (info.length or 0)
        if end > file.stat().st_size:
            raise BadInputError(
                f"{path}: external data file '{info.location}' has {file.stat().st_size} bytes, tensor '{tensor.name}' "
                f"needs {end}: it is truncated, fetch it again"
            )
    for tensor in tensors:
        load_external_data_for_tensor(tensor, str(path.parent))
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
    for _, file in sorted(locations.items()):
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK_B):
                hasher.update(chunk)


def _external_file(path: Path, location: str, tensor: str) -> Path:
    """Return the data file a tensor names, refusing whatever leaves the model's own folder."""
    relative = PurePosixPath(location.replace("\\", "/"))
    absolute = relative.is_absolute() or PureWindowsPath(location).drive or PureWindowsPath(location).is_absolute()
    if not location or absolute or ".." in relative.parts:
        raise BadInputError(
            f"{path}: tensor '{tensor}' keeps its data at '{location}', outside the model's folder: refused; "
            "save the model again with its data beside it"
        )
    file = path.parent
    for part in relative.parts:
        file = file / part
        if file.is_symlink():
            raise BadInputError(
                f"{path}: tensor '{tensor}' keeps its data behind the symbolic link '{location}': refused; "
                "put the data file itself beside the model"
            )
    if not file.is_file():
        raise BadInputError(
            f"{path}: external data file '{location}' of tensor '{tensor}' is missing: put it beside the model"
        )
    return file
