"""Lets one process at a time use a folder of the data folder, which is private to its user."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from pathlib import Path

from ..config.folders import private_folder
from ..edge.errors import ApiError
from ..errors import ConfigError

LOG = logging.getLogger("sublimate.data")
PRIVATE_FILE = 0o600
LOCK = "lock"
LOOK_SECONDS = 0.02


def lock_folder(folder: Path, wait_seconds: float = 0.0, signature: bytes = b"") -> int:
    """A descriptor that holds the folder for this process, made if there is none; mode 0700, also
    of one that was there. Raises ApiError if another process has it and does not leave it within
    `wait_seconds`, OSError if the disk fails. signature: for those that find the folder locked."""
    try:
        private_folder(folder)
    except ConfigError as error:
        raise data_unavailable(error) from None
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, PRIVATE_FILE)
    until = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= until:
                os.close(lock)
                raise ApiError("data_in_use") from None
        time.sleep(LOOK_SECONDS)
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, signature, 0)
    except OSError:
        os.close(lock)
        raise
    return lock


def is_signed_by(folder: Path, signature: bytes) -> bool:
    """Whether the present or last holder of the folder's lock left this signature there."""
    try:
        return bool(signature) and (folder / LOCK).read_bytes() == signature
    except OSError:
        return False


def data_unavailable(error: Exception) -> ApiError:
    """The error for a client; the log says what the disk or the database said."""
    LOG.error(
        "The data folder cannot be used: %s. Let the server write there, make room on its disk, or "
        "name another with --data-dir.",
        error,
    )
    return ApiError("data_unavailable")


def keep_private(database: Path) -> None:
    """Before SQLite opens it: mode 0600, also of one that was there and of what lies beside it; new
    ones beside it get the mode of the database. Raises OSError."""
    os.close(os.open(database, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, PRIVATE_FILE))
    for path in database.parent.glob(f"{database.name}*"):
        os.chmod(path, PRIVATE_FILE)
