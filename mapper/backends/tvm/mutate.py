"""Wrong weights on purpose: the corruptions that a verification has to notice."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
KINDS = ("tap", "swap", "scale", "border")


def corrupt(value: Array, kind: str) -> Array:
    """Return a copy of a packed weight with one fault.

    `tap` zeroes the first slice of the second axis (one kernel row, one step of a reduction), `swap` exchanges the
    first two lanes of the last axis (channel order), `scale` is a tenth off everywhere (a wrong bias or epilogue
    constant), `border` zeroes the last slice of the first axis (the last channel block).
    """
    changed = value.copy()
    if kind == "tap":
        if changed.ndim > 1:
            changed[:, 0] = 0
        else:
            changed[0] = 0
    elif kind == "swap":
        if changed.shape[-1] > 1:
            changed[..., [0, 1]] = changed[..., [1, 0]]
    elif kind == "scale":
        changed = (changed * 1.1).astype(value.dtype)
    elif kind == "border":
        changed[-1] = 0
    else:
        raise ValueError(f"unknown corruption {kind!r}: expected one of {', '.join(KINDS)}")
    return changed
