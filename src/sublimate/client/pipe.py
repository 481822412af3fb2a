"""Bytes of one answer, from the thread that has the network to the one that reads them.

defines: Pipe
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from .library import CarrierError

UNREAD_BYTES_MAX = 256 << 10
"""More than this unread, and the sender is held by the carrier's flow control."""


class Pipe:
    """One writer, on the network's loop; one reader, on any thread or loop."""

    def __init__(self, hold: Callable[[bool], None], leave: Callable[[], None]) -> None:
        """hold: called on the reader's or the network's thread when the sender shall stop (True) or
        may go on. leave: called once, on the reader's thread, if it goes before the end."""
        self._hold = hold
        self._leave = leave
        self._lock = threading.Lock()
        self._pieces: deque[bytes] = deque()
        self._unread_bytes = 0
        self._is_held = False
        self._ended = False
        self._left = False
        self._error: CarrierError | None = None
        self._wake: Callable[[], None] | None = None

    @staticmethod
    def of(data: bytes) -> Pipe:
        """One that is whole."""
        pipe = Pipe(lambda hold: None, lambda: None)
        pipe.feed(data)
        pipe.end()
        return pipe

    # ---- writer --------------------------------------------------------------------------------
    def feed(self, data: bytes) -> None:
        if not data:
            return
        with self._lock:
            if self._ended or self._left:
                return
            self._pieces.append(data)
            self._unread_bytes += len(data)
            hold = self._unread_bytes > UNREAD_BYTES_MAX and not self._is_held
            self._is_held |= hold
            wake, self._wake = self._wake, None
        if hold:
            self._hold(True)
        if wake is not None:
            wake()

    def end(self, error: CarrierError | None = None) -> None:
        """What was fed before is still read. The first end counts."""
        with self._lock:
            if self._ended:
                return
            self._ended, self._error = True, error
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    # ---- reader --------------------------------------------------------------------------------
    def read(self, seconds: float | None) -> bytes:
        """All that is there, else the next piece; b"" at the end. Raises CarrierError."""
        woken = threading.Event()
        while (data := self._take(woken.set)) is None:
            if not woken.wait(seconds):
                raise self._too_late()
        return data

    async def read_async(self, seconds: float | None) -> bytes:
        """As `read`, in an asyncio loop."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        while (data := self._take(wake)) is None:
            try:
                async with asyncio.timeout(seconds):
                    await woken.wait()
            except asyncio.CancelledError:
                self._wake = None
                raise
            except TimeoutError:
                raise self._too_late() from None
        return data

    def _too_late(self) -> CarrierError:
        self._wake = None
        return CarrierError("ReadTimeout", "Nothing came for as long as the timeout allows.")

    def _take(self, wake: Callable[[], None]) -> bytes | None:
        """None: nothing is there yet, and `wake` will be called once."""
        with self._lock:
            if self._left:
                raise CarrierError("ReadError", "The answer was closed.")
            if self._wake is not None:
                raise RuntimeError("an answer has one reader")
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._unread_bytes = 0
            go_on, self._is_held = self._is_held, False
            if not data and not self._ended:
                self._wake = wake
                return None
            error = self._error
        if go_on:
            self._hold(False)
        if not data and error is not None:
            raise error
        return data

    def close(self) -> None:
        """The reader goes. Idempotent."""
        with self._lock:
            leave = not (self._ended or self._left)
            self._left = True
            self._wake = None
            self._pieces.clear()
        if leave:
            self._leave()
