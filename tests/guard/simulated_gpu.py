"""A GPU whose sensors a test sets, also from another process by a file.

defines: SimulatedGpu, GpuFile
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from sublimate.guard.gpu import GpuReading


@dataclass
class SimulatedGpu:
    """Its readings are what was set last."""

    temperature: int
    utilization: int
    temperature_max: int
    is_readable: bool = True

    @property
    def temperature_max_celsius(self) -> int:
        return self.temperature_max

    def read(self) -> GpuReading | None:
        return GpuReading(self.temperature, self.utilization) if self.is_readable else None


class GpuFile:
    """The same of a JSON file of a GpuReading; without the file it cannot be read."""

    temperature_max_celsius = 85

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> GpuReading | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=GpuReading)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
