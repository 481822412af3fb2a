"""Memory that large bodies leave behind, given back to the system.

A body of the largest size takes some hundred MiB while it is read. The C library keeps what was
freed of it, for each thread, and a server that had a few such bodies would look as large for days.

defines: trimmed
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TypeVar

from . import limits

Made = TypeVar("Made")

_LIBRARY = ctypes.CDLL(None)


def trimmed(make: Callable[[], Made], body_bytes: int) -> Made:
    """What `make` returns or raises; behind it, what a body of this size has left is given back,
    where the C library can. Some ten milliseconds on a worker thread, without the interpreter's
    lock."""
    try:
        return make()
    finally:
        if body_bytes >= limits.TRIM_BYTES_MIN and hasattr(_LIBRARY, "malloc_trim"):
            _LIBRARY.malloc_trim(ctypes.c_size_t(0))
