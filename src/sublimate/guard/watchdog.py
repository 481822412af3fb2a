"""Whether an engine's loop still turns and makes steps, told from outside by what it publishes.

The loop writes its heartbeat once per turn. One that has no work sleeps and does not turn, so
whoever looks rings its bell first: a living loop wakes, beats and sleeps again. A loop that turns
and finishes no step, though requests run or wait, does no work either. On a machine with more to
run than cores it may have to wait for one: that is slow, and not standing still.

defines: State, STATES, Fault, Signs, Watchdog
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from ..config import STALLED_SECONDS

LOOKS_PER_STALL = 5
# One turn computes one step, and of a large model on few cores that can take long: the limits are
# never below so many times the warm-up, which runs a step of every size.
STALLED_WARM_UPS = 2.0
HUNG_WARM_UPS = 4.0
STEPLESS_FACTOR = 3.0
"""A loop that turns may wait for others: for a mask, or for an edge to read, which it gives up
after five seconds. So it has longer until it is tripped."""

State = Literal["ok", "tripped", "hung"]
"""tripped: it gets no work until it goes on; hung: it will not, and is to be restarted."""
STATES: tuple[State, ...] = ("ok", "tripped", "hung")
Fault = Literal["", "no_turn", "no_step", "starved", "gpu_hot", "gpu_idle"]
"""no_turn: the heartbeat stands still; no_step: it beats, requests run, and no step ends; starved:
requests wait, none runs, and no step ends."""


class Signs(msgspec.Struct, frozen=True, kw_only=True):
    """What a watched loop shows: an engine by its region (StatsPage in core/ring/ring.h)."""

    heartbeat: int
    """Changes while the loop turns: a time or a count."""
    step_count: int = 0
    running: int = 0
    waiting: int = 0

    @classmethod
    def of(cls, stats: Mapping[str, int]) -> Signs:
        return cls(
            heartbeat=stats["engine_heartbeat_ns"],
            step_count=stats["step_count"],
            running=stats["running"],
            waiting=stats["waiting"],
        )

    @property
    def has_work(self) -> bool:
        return self.running + self.waiting > 0


class Watchdog:
    """Counts the time in which nothing moves. Takes time as an argument.

    hung_seconds: limit after which the engine is to be killed; 0 never: then it only trips.
    """

    def __init__(self, hung_seconds: float) -> None:
        if hung_seconds < 0:
            raise ValueError("a limit lies in the future")
        self._set_seconds = hung_seconds or math.inf
        self.stalled_seconds = 0.0
        self.hung_seconds = 0.0
        self.look_seconds = 0.0
        self.begin(0.0, 0.0)

    def begin(self, now_seconds: float, warm_up_seconds: float) -> None:
        """A fresh region, whose heartbeat has not been seen yet."""
        least = min(STALLED_SECONDS, self._set_seconds / 2)
        self.stalled_seconds = max(least, STALLED_WARM_UPS * warm_up_seconds)
        self.hung_seconds = max(self._set_seconds, HUNG_WARM_UPS * warm_up_seconds)
        self.look_seconds = least / LOOKS_PER_STALL
        self._looked_seconds = now_seconds
        self._turnless_seconds = 0.0
        self._stepless_seconds = 0.0
        self._seen = Signs(heartbeat=0)

    def look(
        self, now_seconds: float, signs: Signs, waited_seconds: float = 0.0
    ) -> tuple[State, Fault]:
        """What it looks like now. `waited_seconds`: since the last look, for a core."""
        if waited_seconds < 0:
            raise ValueError("nobody waits for less than no time")
        # A watcher that was stopped itself (a frozen container) has not watched meanwhile.
        passed = min(now_seconds - self._looked_seconds, 2 * self.look_seconds)
        passed = max(0.0, passed - waited_seconds)
        self._looked_seconds = now_seconds
        seen, self._seen = self._seen, signs
        is_turning = signs.heartbeat != seen.heartbeat
        self._turnless_seconds = 0.0 if is_turning else self._turnless_seconds + passed
        is_stepping = signs.step_count != seen.step_count or not signs.has_work
        self._stepless_seconds = 0.0 if is_stepping else self._stepless_seconds + passed
        if (state := self._state(self._turnless_seconds, self.stalled_seconds)) != "ok":
            return state, "no_turn"
        longer_seconds = min(
            STEPLESS_FACTOR * self.stalled_seconds, (self.stalled_seconds + self.hung_seconds) / 2
        )
        if (state := self._state(self._stepless_seconds, longer_seconds)) != "ok":
            return state, "no_step" if signs.running else "starved"
        return "ok", ""

    def _state(self, still_seconds: float, tripped_seconds: float) -> State:
        if still_seconds >= self.hung_seconds:
            return "hung"
        return "tripped" if still_seconds >= tripped_seconds else "ok"
