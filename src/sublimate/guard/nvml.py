"""The sensors of NVIDIA's GPUs, through the driver's own library (NVML), which needs no toolkit.

defines: NvmlGpu, open_gpu
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .gpu import Gpu, GpuReading

if TYPE_CHECKING:
    from ..probe.nvml import Library

LOG = logging.getLogger("sublimate.guard")
TEMPERATURE_MAX_CELSIUS = 90
"""Where the driver does not tell its own limit."""


class NvmlGpu:
    """One GPU. A Gpu of gpu.py."""

    def __init__(self, library: Library, index: int) -> None:
        """Raises NvmlError if the driver knows no such GPU."""
        self._library = library
        self._index = index
        self.temperature_max_celsius = library.slowdown_celsius(index) or TEMPERATURE_MAX_CELSIUS

    def read(self) -> GpuReading | None:
        from ..probe.nvml import NvmlError

        try:
            temperature, share = self._library.sensors(self._index)
        except NvmlError:
            return None
        if temperature is None or share is None:
            return None
        return GpuReading(temperature, share)


def open_gpu(info: Mapping[str, Any]) -> Gpu | None:
    """The GPU that an engine computes on, by what it told when it was ready (`gpu_index`); None: it
    uses none, or its sensors cannot be read here."""
    index = info.get("gpu_index")
    if not isinstance(index, int):
        return None
    from ..probe.nvml import Library, NvmlError  # not for servers without a GPU

    try:
        return NvmlGpu(Library(), index)
    except NvmlError as error:
        LOG.warning("The sensors of GPU %d are not watched: %s.", index, error)
        return None
