"""Which energy meter serves a device."""

from pathlib import Path

from mapper.measure.meters.nvml import open_nvml
from mapper.measure.meters.protocol import Meter, Unavailable
from mapper.measure.meters.rapl import open_rapl


def pick_meter(root: Path = Path("/"), gpu_uuid: str | None = None) -> Meter | Unavailable:
    """Open the meter of the CPU, or of the GPU that is named; `Unavailable` carries the reason when there is none.

    Args:
        root: Where `/sys` hangs, for replayed trees.
        gpu_uuid: The GPU, `GPU-…` or `MIG-…`; None for the CPU.
    """
    return open_rapl(root) if gpu_uuid is None else open_nvml(gpu_uuid)
