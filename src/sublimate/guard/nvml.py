"""The sensors of NVIDIA's GPUs, through the driver's own library (NVML), which needs no toolkit.

defines: NvmlGpu, open_gpu
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping
from typing import Any

from .gpu import Gpu, GpuReading

LOG = logging.getLogger("sublimate.guard")
LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0
# Of nvml.h.
TEMPERATURE_GPU = 0
TEMPERATURE_THRESHOLD_SLOWDOWN = 1
TEMPERATURE_MAX_CELSIUS = 90
"""Where the driver does not tell its own limit."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class NvmlGpu:
    """One GPU. A Gpu of gpu.py."""

    def __init__(self, library: Any, index: int) -> None:
        """Raises OSError if the driver knows no such GPU."""
        self._library = library
        self._handle = ctypes.c_void_p()
        if library.nvmlInit_v2() != SUCCESS:
            raise OSError("NVML cannot be initialised")
        handle = ctypes.byref(self._handle)
        if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), handle) != SUCCESS:
            raise OSError(f"NVML knows no GPU {index}")
        limit = ctypes.c_uint()
        told = library.nvmlDeviceGetTemperatureThreshold(
            self._handle, TEMPERATURE_THRESHOLD_SLOWDOWN, ctypes.byref(limit)
        )
        known = told == SUCCESS and limit.value > 0
        self.temperature_max_celsius = limit.value if known else TEMPERATURE_MAX_CELSIUS

    def read(self) -> GpuReading | None:
        temperature, share = ctypes.c_uint(), _Utilization()
        results = (
            self._library.nvmlDeviceGetTemperature(
                self._handle, TEMPERATURE_GPU, ctypes.byref(temperature)
            ),
            self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(share)),
        )
        if any(result != SUCCESS for result in results):
            return None
        return GpuReading(temperature.value, share.gpu)


def open_gpu(info: Mapping[str, Any]) -> Gpu | None:
    """The GPU that an engine computes on, by what it told when it was ready (`gpu_index`); None: it
    uses none, or its sensors cannot be read here."""
    index = info.get("gpu_index")
    if not isinstance(index, int):
        return None
    try:
        return NvmlGpu(ctypes.CDLL(LIBRARY), index)
    except (OSError, AttributeError) as error:
        LOG.warning("The sensors of GPU %d are not watched: %s.", index, error)
        return None
