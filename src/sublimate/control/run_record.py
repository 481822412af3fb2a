"""Which processes belong to one run of a server, kept where a later run can read it.

The supervisor makes one file a run and holds its lock (flock) for as long as it lives: a file that
can be locked is of a run that ended badly. Every process of the run adds a line with its number
and the moment it started, so that a number that was given to another process since is told apart.

    {"name":"sublimate","process_id":71,"start_ticks":9128,"boot":"...","namespace":"pid:[...]"}

The supervisor's own lines beside these: what an earlier run had left, and how each reload went.

defines: Process, ReloadEnd, StaleRun, RunRecord, this_process, join_run, orphans_told, record_of,
         reload_ends, stale_runs
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from .birth import RUN_VARIABLE, record_ahead

SUFFIX, UNBORN = ".run", ".unborn"
NAME_BYTES = 8
UNBORN_SECONDS = 60.0
RECORD_BYTES_MAX = 1 << 20
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
OPEN = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
STATE_FIELD, START_FIELD = 0, 19
"""In /proc/PID/stat, counted from behind the name: proc(5) has them as 3 and 22."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process, whoever has its number later."""

    name: str
    process_id: int
    start_ticks: int
    """Clock ticks after boot."""
    boot: str = ""
    namespace: str = ""
    """Of process numbers."""

    def state(self) -> Literal["runs", "zombie", "gone"]:
        """What has become of it. gone: also when another process has its number now."""
        if (self.boot, self.namespace) != _here():
            return "gone"
        fields = _stat(self.process_id)
        if fields is None or int(fields[START_FIELD]) != self.start_ticks:
            return "gone"
        return "zombie" if fields[STATE_FIELD] in ("Z", "X") else "runs"

    def is_of(self, record: Path) -> bool:
        """Whether it was started by the run with this record: its environment names it, which a
        record alone, whoever wrote it, cannot bring about."""
        try:
            named = record_of(self.process_id)
            return named is not None and os.path.samefile(named, record)
        except OSError:
            return False


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the supervisor's: what an earlier run had left."""

    cleaned: dict[str, int]
    left: dict[str, int]


class ReloadEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the supervisor's: how `sublimate reload` went."""

    reload_failure: str
    """Empty: all were replaced."""
    reload_notes: list[str]
    """What of the settings was passed over."""


class StaleRun(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a run that ended badly; its lock is ours until `close`."""

    path: Path
    processes: tuple[Process, ...]
    """The supervisor first. Empty: nothing of the file can be read."""
    descriptor: int

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self.descriptor)


class RunRecord:
    """The record of this process's run, from now until `close`. Raises OSError."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        # Processes that were begun ahead know it by now.
        name = record_ahead(str(folder)) or os.urandom(NAME_BYTES).hex() + SUFFIX
        self.path = folder / Path(name).name
        # Nobody sees it under its name before it is locked.
        unborn = self.path.with_suffix(UNBORN)
        self._descriptor = os.open(unborn, OPEN | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unborn.rename(self.path)
        except OSError:
            os.close(self._descriptor)
            raise
        os.environ[RUN_VARIABLE] = str(self.path)
        join_run()

    def tell_reload(self, failure: str, notes: Sequence[str]) -> None:
        """For who waits for it."""
        end = ReloadEnd(reload_failure=failure, reload_notes=list(notes))
        os.write(self._descriptor, msgspec.json.encode(end) + b"\n")

    def tell(self, cleaned: dict[str, int], left: dict[str, int]) -> None:
        """Things by kind that an earlier run had left, for those of this run to show."""
        os.write(self._descriptor, msgspec.json.encode(_Found(cleaned=cleaned, left=left)) + b"\n")

    def close(self) -> None:
        """This run ends well, with all of its processes."""
        os.environ.pop(RUN_VARIABLE, None)
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


def this_process() -> Process:
    """Under the name of its main module."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    fields = _stat(os.getpid())
    if fields is None:
        raise OSError("/proc does not show this process")
    boot, namespace = _here()
    return Process(
        name=(spec.parent or spec.name) if spec else "sublimate",
        process_id=os.getpid(),
        start_ticks=int(fields[START_FIELD]),
        boot=boot,
        namespace=namespace,
    )


def join_run() -> None:
    """Add this process to the run that the environment names, if any. A run whose record cannot be
    written goes on without."""
    path = os.environ.get(RUN_VARIABLE, "")
    if not path:
        return
    with contextlib.suppress(OSError):
        line = msgspec.json.encode(this_process()) + b"\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(descriptor, line)  # whole: it is short, and nobody reads it yet
        finally:
            os.close(descriptor)


def orphans_told() -> tuple[dict[str, int], dict[str, int]]:
    """(cleaned, left) by kind, as the supervisor of this process's run told."""
    path = os.environ.get(RUN_VARIABLE, "")
    lines = b""
    with contextlib.suppress(OSError):
        lines = Path(path).read_bytes() if path else b""
    for line in lines.splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            told = msgspec.json.decode(line, type=_Found)
            return told.cleaned, told.left
    return {}, {}


def record_of(process_id: int) -> Path | None:
    """Of the run that started a process, by its environment; None: it tells none."""
    prefix = f"{RUN_VARIABLE}=".encode()
    with contextlib.suppress(OSError):
        for each in Path(f"/proc/{process_id}/environ").read_bytes().split(b"\0"):
            if each.startswith(prefix):
                return Path(os.fsdecode(each[len(prefix) :]))
    return None


def reload_ends(record: Path) -> list[ReloadEnd]:
    """Of a run, the last one last. Raises OSError."""
    found: list[ReloadEnd] = []
    for line in record.read_bytes().splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(msgspec.json.decode(line, type=ReloadEnd))
    return found


def stale_runs(folder: Path) -> Iterator[StaleRun]:
    """Those whose supervisor is gone. Whoever is given one closes it."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        path = folder / name
        if path.suffix == SUFFIX or (path.suffix == UNBORN and _is_old(path)):
            try:
                descriptor = os.open(path, OPEN)
            except OSError:
                continue
            if _take(descriptor, path):
                processes = tuple(_processes(os.read(descriptor, RECORD_BYTES_MAX)))
                yield StaleRun(path=path, processes=processes, descriptor=descriptor)
            else:
                os.close(descriptor)


def _take(descriptor: int, path: Path) -> bool:
    """Lock it, unless its run lives, or it is not the file of that name any more, or none of ours:
    what others may write is believed in nothing."""
    try:
        about = os.fstat(descriptor)
        is_ours = about.st_uid == os.geteuid() and not about.st_mode & OTHERS_WRITE
        if not (stat.S_ISREG(about.st_mode) and is_ours):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(about, os.stat(path))
    except OSError:
        return False


def _processes(data: bytes) -> Iterator[Process]:
    """Of all lines that are whole: the machine may have lost its power while one was written."""
    for line in data.splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            yield msgspec.json.decode(line, type=Process)


def _is_old(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime > UNBORN_SECONDS
    return False


def _stat(process_id: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; None if there is no such process."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _here() -> tuple[str, str]:
    """(boot, namespace) of this process: outside of them a process's number means nothing."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return boot, os.readlink("/proc/self/ns/pid")
