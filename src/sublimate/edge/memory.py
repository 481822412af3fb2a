"""Large bodies are read one at a time, and the memory that they leave behind is given back.

Calls that decode, render and split a body of the largest size hold the interpreter's lock for tens
of milliseconds each. With one such body the event loop gets the lock between two calls; with
several it would wait for each of their threads. Such a body takes some hundred MiB while it is
read. The C library keeps what was freed of it, for each thread, and a server that had a few such
bodies would look as large for days.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

from . import limits

Made = TypeVar("Made")

_LIBRARY = ctypes.CDLL(None)
_LARGE = threading.Lock()


def trimmed(make: Callable[[], Made], body_bytes: int) -> Made:
    """Call `make`, on a worker thread, and return or raise what it does. Then memory that a body of
    this size has left is given back where the C library can: some ten milliseconds, without the
    interpreter's lock."""
    with _LARGE if body_bytes >= limits.LARGE_BODY_BYTES else nullcontext():
        try:
            return make()
        finally:
            if body_bytes >= limits.TRIM_BYTES_MIN and hasattr(_LIBRARY, "malloc_trim"):
                _LIBRARY.malloc_trim(ctypes.c_size_t(0))
