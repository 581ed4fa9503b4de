"""Arrays between parent and child: uncompressed .npz files in the run folder, gone when the exchange ends."""

import contextlib
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Exchange:
    """A folder of its own below the run folder, so that two workers never write the same file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="exchange-", dir=folder))
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def files(self, *words: str) -> Iterator[tuple[Path, ...]]:
        """Name one file a word, and remove them all afterwards, whatever happened in between."""
        number = next(self._numbers)
        paths = tuple(self._folder / f"{word}{number}.npz" for word in words)
        try:
            yield paths
        finally:
            for path in paths:
                path.unlink(missing_ok=True)


def write_feeds(path: Path, feeds: Sequence[Array]) -> None:
    """Write arrays by position, as children read them."""
    save_arrays(path, {f"input{index}": value for index, value in enumerate(feeds)})


def save_arrays(path: Path, values: Mapping[str, Array]) -> None:
    """Write arrays by name."""
    arguments: dict[str, Any] = dict(values)
    np.savez(path, **arguments)


def load_arrays(path: Path) -> dict[str, Array]:
    """Read arrays by name."""
    with np.load(path) as values:
        return dict(values)


def load_outputs(path: Path) -> list[Array]:
    """Read arrays that a child wrote by position."""
    values = load_arrays(path)
    return [values[f"output{index}"] for index in range(len(values))]
