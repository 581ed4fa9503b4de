"""Owns the form of the JSON files: written atomically and only with finite numbers, read strictly into records."""

import dataclasses
import functools
import math
import os
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mapper.errors import BadInputError

T = TypeVar("T")


def plain(value: object, notes: list[str]) -> Any:
    """Return `value` (a record) as JSON values that hold finite numbers and valid text only.

    A number that is not finite becomes None, and a `reason` beside it says so; each one adds a line to `notes`.
    """
    return _finite(msgspec.to_builtins(value, enc_hook=_encode_foreign), "", notes)


def encode(tree: object) -> bytes:
    """Return JSON values as the bytes of a file: indented, keys sorted, a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(tree, order="sorted"), indent=2) + b"\n"


def record_bytes(value: object) -> bytes:
    """Return a record, or a tuple of records, as the bytes of a JSON document."""
    return encode(plain(value, []))


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that a reader sees the old file or the new one, never a part.

    Raises:
        BadInputError: the folder cannot be made or written to.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        message = f"{path}: cannot be written ({error.strerror or error}): choose a folder that is writable"
        raise BadInputError(message) from error


def read_record(path: Path, kind: type[T], version: str, what: str) -> T:
    """Read one record from a JSON file. `what` names the file's kind in messages: "mapping sheet".

    Raises:
        BadInputError: no such file, not JSON, another schema version, or a field that is unknown, missing or wrong.
    """
    raw = _read_object(path, what)
    found = raw.get("schema_version")
    if found is None:
        raise BadInputError(f"{path}: not a {what}: expected an object with schema_version {version!r}, found none")
    if found != version:
        raise BadInputError(
            f"{path}: schema_version: expected {version!r}, found {found!r}: "
            f"write this {what} again with this version of mapper, or read it with the version that wrote it"
        )
    try:
        record = msgspec.convert(raw, kind)
    except msgspec.ValidationError:
        record = None
    fault = next(_faults(raw, kind, "", leaves=record is None), None)
    if fault is not None:
        raise BadInputError(f"{path}: {fault}: mend that field, or have mapper write the {what} again")
    assert record is not None, "a record that cannot be read has a fault"
    return record


def _read_object(path: Path, what: str) -> dict[str, Any]:
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError as error:
        message = f"{path}: no such file: expected a {what}, as `mapper explore` writes it"
        raise BadInputError(message) from error
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror or error}): expected a {what}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        message = f"{path}: not a {what}: expected JSON, found something else ({reason}): give the file mapper wrote"
        raise BadInputError(message) from error
    if not isinstance(raw, dict):
        raise BadInputError(f"{path}: not a {what}: expected a JSON object, found {_json_name(raw)}")
    return raw


def _encode_foreign(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item"):  # numpy scalars
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def _finite(value: Any, path: str, notes: list[str]) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        notes.append(f"{path} was {value} and is written as null")
        return None
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list | tuple):
        return [_finite(item, f"{path}[{index}]", notes) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return _finite_object(value, path, notes)
    return value


def _finite_object(value: dict[str, Any], path: str, notes: list[str]) -> dict[str, Any]:
    clean = {_finite(key, path, notes): _finite(item, _join(path, key), notes) for key, item in value.items()}
    for name in ("value", "median"):
        if value.get(name) is not None and clean.get(name) is None and "reason" in value:
            clean.update(grade=None, reason=f"the computed number was not finite ({value[name]})")
    return clean


def _faults(raw: Any, kind: Any, path: str, leaves: bool) -> Iterator[str]:
    """Yield what keeps `raw` from being a `kind`, each with the path of its field.

    msgspec alone passes over unknown fields and does not say which entry of a mapping is wrong. Without `leaves`
    only unknown and missing fields are looked for, which is fast.
    """
    form, inner = _form(kind)
    if form == "record":
        if raw is not None or kind is inner:
            yield from _object_faults(raw, inner, path, leaves)
    elif form == "tuple" and isinstance(raw, list) and (leaves or _form(inner)[0] != "leaf"):
        for index, item in enumerate(raw):
            yield from _faults(item, inner, f"{path}[{index}]", leaves)
    elif form == "mapping" and isinstance(raw, dict) and (leaves or _form(inner)[0] != "leaf"):
        for key, item in raw.items():
            yield from _faults(item, inner, _join(path, key), leaves)
    elif leaves:
        yield from _leaf_faults(raw, kind, path)


def _object_faults(raw: Any, kind: type, path: str, leaves: bool) -> Iterator[str]:
    if not isinstance(raw, dict):
        yield f"{path}: expected an object, found {_json_name(raw)}"
        return
    hints, required, deep = _fields(kind)
    for key in sorted(raw.keys() - hints.keys()):
        yield f"{_join(path, key)}: unknown field; expected one of {', '.join(hints)}"
    for name in sorted(required - raw.keys()):
        yield f"{_join(path, name)}: missing field"
    for name, hint in (hints if leaves else deep).items():
        if name in raw:
            yield from _faults(raw[name], hint, _join(path, name), leaves)


def _leaf_faults(raw: Any, kind: Any, path: str) -> Iterator[str]:
    try:
        msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        yield f"{path}: {str(error).splitlines()[0].replace('`', '')}"


@functools.cache
def _form(kind: Any) -> tuple[str, Any]:
    """Return how a type is built, and of what: a record, a tuple or mapping of something, or a leaf."""
    if isinstance(kind, types.UnionType) and (members := [m for m in kind.__args__ if dataclasses.is_dataclass(m)]):
        return "record", members[0]
    if dataclasses.is_dataclass(kind):
        return "record", kind
    if typing.get_origin(kind) is tuple:
        return "tuple", typing.get_args(kind)[0]
    if typing.get_origin(kind) is Mapping:
        return "mapping", typing.get_args(kind)[1]
    return "leaf", None


@functools.cache
def _fields(kind: type) -> tuple[dict[str, Any], frozenset[str], dict[str, Any]]:
    """Return a record's fields with their types, the names of those without a default, and those that hold records."""
    hints = typing.get_type_hints(kind)
    required = (f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING)
    deep = {name: hint for name, hint in hints.items() if _form(hint)[0] != "leaf"}
    return hints, frozenset(required), deep


def _join(path: str, name: str) -> str:
    name = "".join(letter if letter.isprintable() else "?" for letter in name[:80])
    return f"{path}.{name}" if path else name


def _json_name(raw: Any) -> str:
    names = {
        dict: "an object",
        list: "an array",
        str: "text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return names.get(type(raw), "null")
