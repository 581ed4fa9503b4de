"""Built kernels on disk, so that a fresh process or a later run loads in a millisecond what took a tenth of a second.

A folder holds the kernels of one compiler, target, thread count and version of mapper's own templates, by symbol: the
shared library, what is known of it as JSON, and constants that lowering lifted out. Without a C compiler to link with
nothing is kept and everything still works.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.support import cc

from mapper.backends.tvm.build import Kernel
from mapper.backends.tvm.lower import Lowered
from mapper.records import Choice, GroupSpec

_PARTS = ("so", "npz", "json")  # the description last: what it names is complete
_INSIDE = ("tir", "s", "inside")


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of built kernels; see the module's docstring."""

    folder: Path

    def keep(self, kernel: Kernel) -> bool:
        """Write a kernel down unless it is there; say whether it is there now."""
        if self._path(kernel.symbol, "json").exists():
            return True
        assert kernel.lowered.module is not None
        with tempfile.TemporaryDirectory(dir=_made(self.folder)) as name:
            parts = Path(name)
            try:
                kernel.module.write_to_file(str(parts / "o"), "o")
                cc.create_shared(str(parts / "so"), [str(parts / "o")])
            except (RuntimeError, ValueError, OSError):  # no compiler, or one that cannot link what LLVM wrote
                return False
            np.savez(parts / "npz", *kernel.lowered.constants)
            (parts / "npz.npz").rename(parts / "npz")
            (parts / "json").write_text(json.dumps(_description(kernel)), encoding="utf-8")
            for part in _PARTS:
                os.replace(parts / part, self._path(kernel.symbol, part))
        return True

    def load(self, symbol: str, spec: GroupSpec, choice: Choice) -> Kernel | None:
        """Return a kernel that was kept; None when there is none, or what is there cannot be read."""
        if not self._path(symbol, "json").exists():
            return None
        try:
            description = json.loads(self._path(symbol, "json").read_text(encoding="utf-8"))
            with np.load(self._path(symbol, "npz")) as arrays:
                constants = tuple(arrays[f"arr_{index}"] for index in range(len(arrays.files)))
            module = tvm.runtime.load_module(str(self._path(symbol, "so")))
            lowered = Lowered(
                module=None,
                shapes=tuple(tuple(shape) for shape in description["shapes"]),
                dtypes=tuple(description["dtypes"]),
                constants=constants,
            )
        except Exception:  # whatever is wrong with the files, the kernel can be built again
            self._path(symbol, "json").unlink(missing_ok=True)
            return None
        ir_hash = str(description["ir_hash"])
        return Kernel(symbol=symbol, spec=spec, choice=choice, lowered=lowered, module=module, ir_hash=ir_hash)

    def inspection(self, symbol: str, folder: Path, stem: str) -> Mapping[str, Any] | None:
        """Copy what an earlier inspection wrote to `folder`; return sizes and loop nest, None when there was none."""
        with contextlib.suppress(OSError, ValueError):
            inside = json.loads(self._path(symbol, "inside").read_text(encoding="utf-8"))
            for part in ("tir", "s"):
                shutil.copyfile(self._path(symbol, part), folder / f"{stem}.{part}")
            return dict(inside)
        return None

    def keep_inspection(self, symbol: str, folder: Path, stem: str, inside: Mapping[str, Any]) -> None:
        """Keep what an inspection wrote to `folder`, for kernels that are kept."""
        if not self._path(symbol, "json").exists():
            return
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            for part in ("tir", "s"):
                shutil.copyfile(folder / f"{stem}.{part}", Path(name) / part)
            (Path(name) / "inside").write_text(json.dumps(inside), encoding="utf-8")
            for part in _INSIDE:
                os.replace(Path(name) / part, self._path(symbol, part))

    def _path(self, symbol: str, part: str) -> Path:
        return self.folder / f"{symbol}.{part}"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _description(kernel: Kernel) -> Mapping[str, Any]:
    return {"shapes": kernel.lowered.shapes, "dtypes": kernel.lowered.dtypes, "ir_hash": kernel.ir_hash}
