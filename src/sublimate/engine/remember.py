"""What engines have measured of a model on this machine, in files of the data folder: a later start
goes by it and measures nothing.

Only what was measured with the cores to itself is kept: a number that a busy neighbour has spoilt
would be believed at every start from then on.

defines: recall, keep, CoreWait
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

import msgspec

from .. import _core
from ..control.measured import Measured

FOLDER = "measured"
SUFFIX = ".json"
FILES_MAX = 64
"""Of models and settings; the oldest go."""
FILE_BYTES_MAX = 1 << 16
WAITING_MAX = 0.05
"""Of the time; measuring takes a few hundred milliseconds."""
BUSY_PART = 0.1
"""Of the time: whoever ran for less was not what was measured."""
NS_PER_SECOND = 1_000_000_000
TASKS = Path("/proc/self/task")


def _path(folder: Path, key: str) -> Path:
    """A folder may be shared by machines."""
    machine = f"{os.uname().nodename} {_core.probe()['cpu']}"
    digest = hashlib.sha256(f"{machine}\0{key}".encode()).hexdigest()
    return folder / FOLDER / (digest + SUFFIX)


def recall(folder: Path, key: str) -> Measured | None:
    """What was kept for that key, if it can be read."""
    try:
        with _path(folder, key).open("rb") as file:
            found = msgspec.json.decode(file.read(FILE_BYTES_MAX), type=Measured)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.key == key else None


def keep(folder: Path, measured: Measured) -> None:
    """Where nothing can be written, each start measures."""
    path = _path(folder, measured.key)
    part = path.with_suffix(f".{os.getpid()}.part")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(msgspec.json.encode(measured))
        part.replace(path)
        kept = sorted(path.parent.glob("*" + SUFFIX), key=lambda each: each.stat().st_mtime_ns)
        for old in kept[:-FILES_MAX]:
            old.unlink(missing_ok=True)


class CoreWait:
    """How long the threads of this process that are there at its end had to wait for a core."""

    def __init__(self, tasks: Path = TASKS) -> None:
        self._tasks = tasks
        self._begin_seconds = time.monotonic()
        self._begin = self._told_ns()

    def _told_ns(self) -> dict[str, tuple[int, int]]:
        """(ran, waited) by thread; "run_ns wait_ns turns" is what the kernel tells of one. Empty
        where it does not tell."""
        found: dict[str, tuple[int, int]] = {}
        try:
            for path in self._tasks.glob("*/schedstat"):
                ran, waited, _ = map(int, path.read_text().split())
                found[path.parent.name] = ran, waited
        except (OSError, ValueError):
            return {}
        return found

    def was_short(self) -> bool:
        """Since this was made, in the mean of those that did something; they hand work to each
        other, so that one waits a moment now and then. False where the kernel does not tell."""
        now = self._told_ns()
        took_ns = (time.monotonic() - self._begin_seconds) * NS_PER_SECOND
        waited_ns, busy = 0, 0
        for thread, (ran, waited) in now.items():
            ran_before, waited_before = self._begin.get(thread, (0, 0))
            waited_ns += waited - waited_before
            busy += ran - ran_before >= BUSY_PART * took_ns
        return bool(now) and waited_ns <= WAITING_MAX * took_ns * max(1, busy)
