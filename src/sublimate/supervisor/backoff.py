"""Delay between restarts of a child that keeps ending.

defines: Backoff
"""

from __future__ import annotations

FIRST_SECONDS = 0.1
LAST_SECONDS = 5.0
HEALTHY_SECONDS = 60.0


class Backoff:
    """0.1 s, doubling to 5 s; starts anew after a life of 60 s. Takes time as an argument."""

    def __init__(self) -> None:
        self._delay_seconds = FIRST_SECONDS
        self._started_seconds = 0.0

    def started(self, now_seconds: float) -> None:
        """The child was started."""
        self._started_seconds = now_seconds

    def ended(self, now_seconds: float) -> float:
        """The child ended; returns how long to wait before the next start."""
        if now_seconds - self._started_seconds >= HEALTHY_SECONDS:
            self._delay_seconds = FIRST_SECONDS
        delay = self._delay_seconds
        self._delay_seconds = min(LAST_SECONDS, 2 * delay)
        return delay
