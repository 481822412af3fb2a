"""Shares the event loop between connections that have sent more than is handled at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Protocol


class TakesTurns(Protocol):
    def go_on(self, end: float) -> None:
        """Handle received bytes until that time (time.monotonic), at least one piece of them, and
        wait for another turn if some are left."""
        ...


class Turns:
    """Bounds the time that connections take in one turn of the event loop, however much they send.
    A connection with bytes left continues in later turns. Connections that have not had a turn yet
    go first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """seconds: the budget of one turn of the event loop."""
        self._loop, self._seconds = loop, seconds
        self._new: deque[TakesTurns] = deque()
        self._old: deque[TakesTurns] = deque()
        """Connections that have had a turn and have bytes left."""
        self._is_due = False
        self._began = self._end = 0.0

    def end(self) -> float:
        """The time (time.monotonic) at which the work of this turn has to stop."""
        began = self._loop.time()  # uvloop: the same for a whole turn
        if began != self._began:
            self._began, self._end = began, time.monotonic() + self._seconds
        return self._end

    def wait(self, connection: TakesTurns, *, again: bool = False) -> None:
        """again: it has just had its turn."""
        (self._old if again else self._new).append(connection)
        self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due = False
        end = self.end()
        while queue := self._new or self._old:
            queue.popleft().go_on(end)
            if time.monotonic() >= end:
                break
        if self._new or self._old:
            self._turn_soon()
