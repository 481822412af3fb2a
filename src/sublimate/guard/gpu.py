"""What a GPU's own sensors say of the engine that computes on it.

One reading proves nothing: a sensor may err, and between two steps any GPU is idle. So a fault is
what every reading of a window shows, and it is over when every reading of a window is well below.

defines: GpuReading, Gpu, GpuWatch
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import msgspec

from .watchdog import Fault

HOT_WINDOW_SECONDS = 5.0
IDLE_WINDOW_SECONDS = 15.0
"""Longer than a step: utilisation is that of the last second or less."""
BLIND_SECONDS = 5.0
"""Without a reading between two of them, what came before is of another window."""
COOLER_CELSIUS = 5
"""Below the limit a GPU that was too hot takes work again; or it would go on and off."""


class GpuReading(msgspec.Struct, frozen=True):
    """Of one moment."""

    temperature_celsius: int
    utilization_percent: int
    """Share of the last sampling period in which a kernel ran."""


class Gpu(Protocol):
    """The sensors of one GPU."""

    temperature_max_celsius: int
    """From here on it slows itself down."""

    def read(self) -> GpuReading | None:
        """None: it cannot be read now."""
        ...


class GpuWatch:
    """The readings of one GPU's last seconds. Takes time as an argument."""

    def __init__(self, gpu: Gpu, temperature_max_celsius: int = 0, *, is_hot: bool = False) -> None:
        """temperature_max_celsius: 0 takes the GPU's own limit. is_hot: it was, when somebody
        looked last."""
        if temperature_max_celsius < 0 or gpu.temperature_max_celsius <= COOLER_CELSIUS:
            raise ValueError("no GPU is ever cooler than its limit")
        self._gpu = gpu
        self._max_celsius = temperature_max_celsius or gpu.temperature_max_celsius
        self._window: deque[tuple[float, GpuReading, bool]] = deque()
        self._is_hot = is_hot
        self.last: GpuReading | None = None

    def look(self, now_seconds: float, has_work: bool) -> Fault:
        """What the window shows now. `has_work`: requests run in the engine."""
        reading = self._gpu.read()
        if reading is None:
            # A driver that does not answer says nothing; the engine's own heartbeat will.
            self._window.clear()
            return "gpu_hot" if self._is_hot else ""
        self.last = reading
        if self._window and now_seconds - self._window[-1][0] > BLIND_SECONDS:
            self._window.clear()
        self._window.append((now_seconds, reading, has_work))
        # Looks come when they come: one reading from before the window shows that it is full.
        while len(self._window) > 1 and self._window[1][0] <= now_seconds - IDLE_WINDOW_SECONDS:
            self._window.popleft()
        self._is_hot = self._hot(now_seconds)
        if self._is_hot:
            return "gpu_hot"
        return "gpu_idle" if self._idle(now_seconds) else ""

    def _hot(self, now_seconds: float) -> bool:
        recent = self._since(now_seconds - HOT_WINDOW_SECONDS)
        if recent is None:
            return self._is_hot
        temperatures = [reading.temperature_celsius for reading, _ in recent]
        if self._is_hot:
            return max(temperatures) > self._max_celsius - COOLER_CELSIUS
        return min(temperatures) >= self._max_celsius

    def _idle(self, now_seconds: float) -> bool:
        recent = self._since(now_seconds - IDLE_WINDOW_SECONDS)
        return recent is not None and all(
            has_work and reading.utilization_percent == 0 for reading, has_work in recent
        )

    def _since(self, begin_seconds: float) -> list[tuple[GpuReading, bool]] | None:
        """The readings from then on; None if none is as old as that."""
        if self._window[0][0] > begin_seconds:
            return None
        return [(reading, work) for at, reading, work in self._window if at >= begin_seconds]
