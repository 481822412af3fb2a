"""A packed file is the memory of the engine that serves it: whoever writes into the file changes
weights under requests that run. No answer is to come of that, so the engine ends, and starts again
with what the file is by then. A file that takes its place (mv) is no change: the map keeps the one
before.

defines: MappedFile
"""

from __future__ import annotations

import _thread
import os
import time
from collections.abc import Callable

LOOK_SECONDS = 0.5


def _state(about: os.stat_result) -> tuple[int, ...]:
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


class MappedFile:
    """To be made before the file is loaded."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._before = _state(os.stat(path))
        except OSError:
            self._before = ()  # whoever loads it says so

    def watch(self, changed: Callable[[str], None]) -> None:
        """From now on and for as long as the process lives, on a thread of its own; `changed` is
        called there, once, with what has happened."""
        if not self._before:
            return
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # gone already, and whole in memory
        now = _state(os.fstat(descriptor))
        if now[:2] != self._before[:2]:
            os.close(descriptor)  # replaced, and nobody can write into the one before
            return
        try:
            _thread.start_new_thread(self._look, (descriptor, changed))
        except RuntimeError:
            os.close(descriptor)  # no thread is left: it is served as it is

    def _look(self, descriptor: int, changed: Callable[[str], None]) -> None:
        while _state(os.fstat(descriptor)) == self._before:
            time.sleep(LOOK_SECONDS)
        changed(
            f"{self._path} was written into while it was served. Put another file in its place "
            "instead (mv, or convert --replace)."
        )
