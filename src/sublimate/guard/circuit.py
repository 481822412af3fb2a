"""Whether something that failed is asked again: a circuit breaker, which closes again by probing.

    closed     -> open after some failures in a row, or at once when it is known to be down
    open       -> half open after a while, twice as long after each probe that failed
    half open  -> one request is let through: closed if it is answered, else open

defines: CircuitState, CIRCUIT_STATES, Circuit
"""

from __future__ import annotations

from typing import Literal

CircuitState = Literal["closed", "open", "half_open"]
CIRCUIT_STATES: tuple[CircuitState, ...] = ("closed", "open", "half_open")
FAILURES_MAX = 3
OPEN_SECONDS = 1.0
OPEN_SECONDS_MAX = 60.0
PROBE_SECONDS = 30.0
"""A probe that tells nothing for so long is given up, and another one is let through."""


class Circuit:
    """Takes time as an argument."""

    def __init__(
        self, failures_max: int = FAILURES_MAX, open_seconds: float = OPEN_SECONDS
    ) -> None:
        if failures_max < 1 or open_seconds <= 0:
            raise ValueError("a circuit opens after a failure, for a while")
        self._failures_max = failures_max
        self._first_seconds = self._open_seconds = open_seconds
        self._failures = 0
        self._is_closed = True
        self._opens_at_seconds = 0.0
        """When the next probe may begin."""
        self._is_probing = False

    @property
    def state(self) -> CircuitState:
        if self._is_closed:
            return "closed"
        return "half_open" if self._is_probing else "open"

    def would_let(self, now_seconds: float) -> bool:
        """Whether `let` would say yes."""
        return self._is_closed or now_seconds >= self._opens_at_seconds

    def let(self, now_seconds: float) -> bool:
        """Whether a request may go. It owes a word of how it went: one of the next three."""
        if self._is_closed:
            return True
        if now_seconds < self._opens_at_seconds:
            return False
        self._is_probing = True
        self._opens_at_seconds = now_seconds + PROBE_SECONDS
        return True

    def succeeded(self) -> None:
        """It was answered."""
        self._failures = 0
        self._is_closed, self._is_probing = True, False
        self._open_seconds = self._first_seconds

    def failed(self, now_seconds: float) -> None:
        """It was not."""
        self._failures += 1
        if self._is_probing or self._failures >= self._failures_max:
            self.trip(now_seconds)

    def gave_up(self, now_seconds: float) -> None:
        """Who asked has gone: that says nothing."""
        if self._is_probing:
            self._is_probing = False
            self._opens_at_seconds = now_seconds

    def trip(self, now_seconds: float) -> None:
        """It is down."""
        if self._is_closed:
            self._open_seconds = self._first_seconds
        elif self._is_probing:
            self._open_seconds = min(OPEN_SECONDS_MAX, 2 * self._open_seconds)
        self._is_closed = self._is_probing = False
        self._failures = 0
        self._opens_at_seconds = now_seconds + self._open_seconds
