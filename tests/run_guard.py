"""Ends what a test run started and removes its temporary folder, however the run itself ends.

`begin` marks the environment, which every process inherits that the run starts, and starts a guard
(this file as a program). The guard waits for the end of the run and kills what still has its mark.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

MARK = "SUBLIMATE_TEST_RUN"
SECONDS_MAX = 10.0


def begin(*, own_folder: bool = True) -> str:
    """The folder for temporary files, which TMPDIR names from now on. own_folder: a new one, which
    goes with the run; else the one of the run that this one is a part of."""
    folder = tempfile.mkdtemp(prefix="sublimate-test-") if own_folder else ""
    if folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
    clean = {name: value for name, value in os.environ.items() if name != MARK}
    os.environ[MARK] = uuid.uuid4().hex
    command = [sys.executable, __file__, str(os.getpid()), os.environ[MARK], folder]
    silent = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    # A session of its own: Ctrl-C is not for it.
    os.posix_spawn(sys.executable, command, clean, file_actions=silent, setsid=True)
    return tempfile.gettempdir()


def marked(mark: str) -> Iterator[int]:
    """Processes that began with this mark in their environment."""
    entry = f"{MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry in (path / "environ").read_bytes().split(b"\0"):
                yield int(path.name)


def main(run: int, mark: str, folder: str) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        ended = select.poll()
        ended.register(os.pidfd_open(run), select.POLLIN)
        ended.poll()
    deadline = time.monotonic() + SECONDS_MAX
    while (left := list(marked(mark))) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
