"""One process at a time in a folder of the data folder.

defines: lock_folder
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ..edge.errors import ApiError


def lock_folder(folder: Path) -> int:
    """A descriptor that holds the folder for this process, made if there is none. Raises ApiError
    if another process has it, OSError if the disk does."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ApiError("data_in_use") from None
    return lock
