"""One process at a time in a folder of the data folder, which no other user of the machine reads.

defines: PRIVATE_FOLDER, PRIVATE_FILE, lock_folder, keep_private
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from ..edge.errors import ApiError

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


LOOK_SECONDS = 0.02


def lock_folder(folder: Path, wait_seconds: float = 0.0) -> int:
    """A descriptor that holds the folder for this process, made if there is none; mode 0700, also
    of one that was there. Raises ApiError if another process has it and does not leave it within
    `wait_seconds`, OSError if the disk fails."""
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    os.chmod(folder, PRIVATE_FOLDER)
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, PRIVATE_FILE)
    until = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() >= until:
                os.close(lock)
                raise ApiError("data_in_use") from None
        time.sleep(LOOK_SECONDS)


def keep_private(database: Path) -> None:
    """Before SQLite opens it: mode 0600, also of one that was there and of what lies beside it; new
    ones beside it get the mode of the database. Raises OSError."""
    os.close(os.open(database, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, PRIVATE_FILE))
    for path in database.parent.glob(f"{database.name}*"):
        os.chmod(path, PRIVATE_FILE)
