"""Whether the engine's loop still turns, told from outside by the heartbeat in its region.

The loop writes the heartbeat once per turn. One that has no work sleeps and does not turn, so
whoever looks rings its bell first: a living loop wakes, beats and sleeps again. On a machine with
more to run than cores it may have to wait for one: that is slow, and not standing still.

defines: State, Watchdog
"""

from __future__ import annotations

from typing import Literal

from ..config import STALLED_SECONDS

LOOKS_PER_STALL = 5
# One turn computes one step, and of a large model on few cores that can take long: the limits are
# never below so many times the warm-up, which runs a step of every size.
STALLED_WARM_UPS = 2.0
HUNG_WARM_UPS = 4.0

State = Literal["beating", "stalled", "hung"]


class Watchdog:
    """Counts the time in which the heartbeat stands still. Takes time as an argument.

    hung_seconds: limit after which the engine is to be killed; 0 never looks.
    """

    def __init__(self, hung_seconds: float) -> None:
        self.enabled = hung_seconds > 0
        self._set_seconds = hung_seconds
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
        self._still_seconds = 0.0
        self._heartbeat_ns = 0

    def look(self, now_seconds: float, heartbeat_ns: int, waited_seconds: float = 0.0) -> State:
        """What the heartbeat says now. `waited_seconds`: since the last look, for a core."""
        # A watcher that was stopped itself (a frozen container) has not watched meanwhile.
        passed = min(now_seconds - self._looked_seconds, 2 * self.look_seconds)
        passed = max(0.0, passed - waited_seconds)
        self._looked_seconds = now_seconds
        if heartbeat_ns != self._heartbeat_ns:
            self._heartbeat_ns = heartbeat_ns
            self._still_seconds = 0.0
            return "beating"
        self._still_seconds += passed
        if self._still_seconds >= self.hung_seconds:
            return "hung"
        return "stalled" if self._still_seconds >= self.stalled_seconds else "beating"
