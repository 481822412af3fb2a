"""All that is watched of one engine: its loop, its waits for a core, the GPU it computes on.

defines: Verdict, EngineWatch
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from .core_waits import CoreWaits
from .gpu import Gpu, GpuWatch
from .nvml import open_gpu
from .watchdog import Fault, Signs, State, Watchdog

LOSING: frozenset[Fault] = frozenset(("no_turn", "no_step", "starved", "gpu_idle"))
"""Faults of an engine that computes nothing any more: what runs on it is lost. One that is only too
hot finishes what it has."""


SENTENCES: dict[Fault, str] = {
    "": "it works",
    "no_turn": "it stood still",
    "no_step": "it ended no step, though requests ran",
    "starved": "it ran nothing, though requests waited",
    "gpu_hot": "its GPU was too hot",
    "gpu_idle": "its GPU computed nothing, though requests ran",
}


class Verdict(msgspec.Struct, frozen=True):
    """What is to be done with the engine now."""

    state: State = "ok"
    fault: Fault = ""

    @property
    def loses_requests(self) -> bool:
        return self.fault in LOSING

    @property
    def sentence(self) -> str:
        """For a person, after "the engine:"."""
        return SENTENCES[self.fault]


class EngineWatch:
    """For the supervisor's thread. Takes time as an argument."""

    def __init__(
        self,
        hung_seconds: float,
        gpu_temperature_max: int = 0,
        open_gpu: Callable[[Mapping[str, Any]], Gpu | None] = open_gpu,
    ) -> None:
        """hung_seconds: see Watchdog. gpu_temperature_max: in degrees Celsius; 0: the GPU's own."""
        self._watchdog = Watchdog(hung_seconds)
        self._waits = CoreWaits()
        self._temperature_max = gpu_temperature_max
        self._open_gpu = open_gpu
        self._gpu: GpuWatch | None = None
        self._gpu_info: Mapping[str, Any] | None = None
        self._idle_since_seconds: float | None = None
        self.verdict = Verdict()

    @property
    def look_seconds(self) -> float:
        """Between two looks."""
        return self._watchdog.look_seconds

    @property
    def hung_seconds(self) -> float:
        return self._watchdog.hung_seconds

    def begin(self, now_seconds: float, info: Mapping[str, Any]) -> None:
        """A fresh region of an engine that told `info` when it was ready."""
        self._watchdog.begin(now_seconds, float(info.get("warm_up_seconds", 0.0)))
        if self._gpu_info is not info:
            self._gpu_info = info
            gpu, is_hot = self._open_gpu(info), self.verdict.fault == "gpu_hot"
            self._gpu = None if gpu is None else GpuWatch(gpu, self._temperature_max, is_hot=is_hot)
        self._idle_since_seconds = None
        if self.verdict.fault != "gpu_hot":
            self.verdict = Verdict()

    def look(self, now_seconds: float, stats: Mapping[str, int], process_id: int) -> Verdict:
        """Of the region's figures and the engine's process."""
        signs = Signs.of(stats)
        waited_seconds = self._waits.since_last(process_id)
        state, fault = self._watchdog.look(now_seconds, signs, waited_seconds)
        if state == "ok" and self._gpu is not None:
            state, fault = self._look_at_gpu(now_seconds, self._gpu, signs)
        self.verdict = Verdict(state, fault)
        return self.verdict

    def _look_at_gpu(self, now_seconds: float, gpu: GpuWatch, signs: Signs) -> tuple[State, Fault]:
        fault = gpu.look(now_seconds, signs.running > 0)
        if fault != "gpu_idle":
            self._idle_since_seconds = None
            return ("tripped" if fault else "ok"), fault
        if self._idle_since_seconds is None:
            self._idle_since_seconds = now_seconds
        is_hung = now_seconds - self._idle_since_seconds >= self.hung_seconds
        return ("hung" if is_hung else "tripped"), fault
