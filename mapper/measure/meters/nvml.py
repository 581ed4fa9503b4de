"""The total-energy counter of NVIDIA GPUs, read through NVML."""

import importlib
from typing import Any

from mapper.measure.meters.protocol import MeterError, Unavailable

TICK_S = 0.1  # the counter moves every 20 to 100 ms, depending on the GPU; the slow end is safe
RESOLUTION_J = 1e-3  # Source: NVML reference, nvmlDeviceGetTotalEnergyConsumption: millijoules


class NvmlMeter:
    """Energy of one whole GPU since the meter was opened. The counter restarts when the driver is reloaded."""

    name = "nvml"
    resolution_j = RESOLUTION_J
    tick_s = TICK_S

    def __init__(self, nvml: Any, handle: Any, uuid: str) -> None:
        self.covers = f"whole GPU {uuid}"
        self._nvml = nvml
        self._handle = handle
        self._first_mj = self._last_mj = self._counter_mj()

    def read_j(self) -> float:
        """Return the energy since the meter was opened, in joules.

        Raises:
            MeterError: The counter cannot be read any more, or went back.
        """
        now_mj = self._counter_mj()
        if now_mj < self._last_mj:
            raise MeterError("the GPU's energy counter went back: its driver was reloaded")
        self._last_mj = now_mj
        return (now_mj - self._first_mj) * 1e-3

    def _counter_mj(self) -> int:
        try:
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except self._nvml.NVMLError as error:
            raise MeterError(f"the GPU's energy counter cannot be read: {error}") from error


def open_nvml(uuid: str, nvml: Any = None) -> NvmlMeter | Unavailable:
    """Open the energy counter of the GPU with this UUID, or say why that is impossible.

    The UUID and not an index: `CUDA_VISIBLE_DEVICES` renumbers the devices of CUDA, but not those of NVML.

    Args:
        uuid: As CUDA gives it, `GPU-…`; a `MIG-…` slice is refused.
        nvml: The pynvml module; None imports it.
    """
    if uuid.startswith("MIG-"):
        return Unavailable(reason="a MIG slice has no energy counter of its own: NVML counts the whole GPU")
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return Unavailable(reason="no NVML: the Python package nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Unavailable(reason=f"no NVML: {error} (no NVIDIA driver on this machine?)")
    try:
        return NvmlMeter(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid), uuid)
    except nvml.NVMLError as error:
        return Unavailable(reason=f"NVML does not know GPU {uuid}: {error}")
    except MeterError as error:
        return Unavailable(reason=f"{error} (needs a Volta or newer GPU)")
