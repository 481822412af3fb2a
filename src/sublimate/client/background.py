"""A thread with an event loop for connections that must live longer than a caller's loop.

defines: Background
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")

CLOSE_SECONDS = 2.0


class Background:
    """Started when it is first needed. A process that was forked off has none of the parent's."""

    def __init__(self, name: str, at_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """at_end: run on the loop before it ends."""
        self._name = name
        self._at_end = at_end
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = 0
        self._closed = False

    @property
    def is_foreign(self) -> bool:
        """Started by the process that this one was forked from: its thread is not here."""
        return self._process not in (0, os.getpid())

    def start(self) -> asyncio.AbstractEventLoop:
        """Its loop. Raises RuntimeError once it is closed."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            if self._loop is None:
                self._loop = asyncio.SelectorEventLoop()
                self._process = os.getpid()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
            return self._loop

    def submit(self, story: Coroutine[Any, Any, Value]) -> concurrent.futures.Future[Value]:
        """Run it there."""
        try:
            return asyncio.run_coroutine_threadsafe(story, self.start())
        except RuntimeError:
            story.close()
            raise

    def call(self, function: Callable[[], object]) -> None:
        """Call it there, soon; nothing if that loop has ended."""
        with self._lock:
            if self._loop is not None and not self._loop.is_closed() and not self.is_foreign:
                self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """End the loop and the thread. Idempotent."""
        with self._lock:
            self._closed = True
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None or self.is_foreign:
            return
        if thread is threading.current_thread():  # the collector of garbage chose this one
            loop.call_soon(loop.stop)
            return
        ending = asyncio.run_coroutine_threadsafe(self._at_end(), loop)
        try:
            ending.result(CLOSE_SECONDS)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            ending.cancel()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_SECONDS)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
