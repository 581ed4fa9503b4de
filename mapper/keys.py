"""Stable names for things: hashes of canonical JSON, independent of node names, compilers and dict order."""

import hashlib
import json
from collections.abc import Mapping

from mapper.records import Choice

HASH_LENGTH = 16


def canonical_json(value: object) -> str:
    """Return `value` as JSON with sorted keys and no spaces, the one form that is ever hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: object) -> str:
    """Return the first 16 hex digits of the SHA-256 of `value`'s canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:HASH_LENGTH]


def choice_json(choice: Choice) -> Mapping[str, object]:
    """Return the JSON form of a choice, as schedule files and journals hold it."""
    return {"template": choice.template, "layouts": list(choice.layouts), "tile": dict(choice.tile)}


def choice_key(choice: Choice) -> str:
    """Return the name of a choice."""
    return digest(choice_json(choice))


def kernel_symbol(group_key: str, choice: Choice) -> str:
    """Return the global name of a kernel: what it computes and how."""
    return f"k_{group_key}_{choice_key(choice)}"
