"""Owns how flag values become request values: dimensions, shapes, budgets, and the cache folder."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import click

from mapper.config import Budget
from mapper.errors import BadInputError

Value = TypeVar("Value")
_SECONDS = {"s": 1.0, "m": 60.0}


def dim(value: str) -> tuple[str, int]:
    """Return the name and size of `NAME=VALUE`; the name may itself contain `=`."""
    name, found, size = value.rpartition("=")
    if not found or not name or not _is_size(size):
        raise click.BadParameter(
            f"expected NAME=VALUE with a whole VALUE of at least 1, as in batch=1, found {value!r}"
        )
    return name, int(size)


def shape(value: str) -> tuple[str, tuple[int, ...]]:
    """Return the input's name and shape of `INPUT=1,3,224,224`; the name may itself contain `=`."""
    name, found, text = value.rpartition("=")
    sizes = text.split(",")
    if not found or not name or not all(_is_size(size) for size in sizes):
        raise click.BadParameter(f"expected INPUT=SHAPE, as in data=1,3,224,224, found {value!r}")
    return name, tuple(int(size) for size in sizes)


def budget(value: str) -> Budget:
    """Return the budget of `200` measured candidates, or of `120s` or `2m` of wall clock."""
    match = re.fullmatch(r"([0-9]{1,9})|([0-9]{1,9}(?:\.[0-9]{1,3})?)([sm])", value)
    if match is None:
        raise click.BadParameter(
            f"expected a number of trials, as in 200, or a time, as in 120s or 2m, found {value!r}"
        )
    if match[1] is not None:
        return Budget(trials=int(match[1]))
    return Budget(seconds=float(match[2]) * _SECONDS[match[3]])


def as_mapping(flag: str, entries: Iterable[tuple[str, Value]]) -> Mapping[str, Value]:
    """Return the entries of a repeated flag by name.

    Raises:
        click.UsageError: a name was given twice with different values.
    """
    values: dict[str, Value] = {}
    for name, value in entries:
        if values.setdefault(name, value) != value:
            raise click.UsageError(f"{flag} {name}: given twice, as {values[name]} and as {value}: give it once")
    return values


def cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for what outlives a run: MAPPER_CACHE_DIR, else XDG_CACHE_HOME/mapper, else ~/.cache/mapper.

    Raises:
        BadInputError: there is no home folder and no variable names one.
    """
    if own := environment.get("MAPPER_CACHE_DIR"):
        return Path(own).expanduser().absolute()
    shared = Path(environment.get("XDG_CACHE_HOME", ""))
    if shared.is_absolute():  # the XDG rules say that a relative one is to be ignored
        return shared / "mapper"
    try:
        return Path.home() / ".cache" / "mapper"
    except RuntimeError as error:
        message = "MAPPER_CACHE_DIR: expected a folder for cached measurements, found no home folder: set the variable"
        raise BadInputError(message) from error


def _is_size(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,12}", text) is not None and int(text) > 0
