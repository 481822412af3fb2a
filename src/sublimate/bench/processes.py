"""Processes of a measurement: a server of one's own, the processor time of others, busy loops.

defines: Process, Server, own_server, listening_processes, cpu_seconds, thread_seconds, busy_loops
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import msgspec

from ..config import PORT_MAX
from ..errors import EngineError, PeerError

NS_PER_S = 1e9
START_SECONDS = 120.0
STOP_SECONDS = 15.0
SHOWN_LINES = 20
"""Of what a server wrote that did not start; the last ones say only that it ended."""
LISTENING = "0A"
"""State of a socket in /proc/net/tcp."""
CPU_CLOCK_OF_PROCESS = 2
"""CPUCLOCK_SCHED of linux/posix-timers.h: the time of all threads, also those that ended."""


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, user and system. 0 if it has gone."""
    try:
        return time.clock_gettime((~pid << 3) | CPU_CLOCK_OF_PROCESS)
    except OSError:
        return 0.0


def thread_seconds(pids: Sequence[int]) -> dict[tuple[int, int], float]:
    """(process, thread) -> seconds on a core so far."""
    found: dict[tuple[int, int], float] = {}
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                nanoseconds = int((task / "schedstat").read_text().split()[0])
                found[pid, int(task.name)] = nanoseconds / NS_PER_S
    return found


class Process(msgspec.Struct, frozen=True):
    """One process of a server. role: edge, engine, supervisor, or what it is called."""

    role: str
    pid: int


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A running server whose processor time can be read."""

    url: str
    processes: list[Process]
    log: Path | None = None

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def cpu_seconds(self) -> dict[str, float]:
        """Role -> processor time so far."""
        sums: dict[str, float] = {}
        for process in self.processes:
            sums[process.role] = sums.get(process.role, 0.0) + cpu_seconds(process.pid)
        return sums

    def log_lines(self) -> list[bytes]:
        """What it has written so far, a JSON object each."""
        return self.log.read_bytes().splitlines() if self.log else []


class _Ready(msgspec.Struct):
    """What is used of a JSON line that a server prints at its start."""

    event: str = ""
    url: str = ""


@contextlib.contextmanager
def own_server(command: Sequence[str], role: str = "server") -> Generator[Server]:
    """A server that prints a JSON line {"event": "ready", "url": ...} when it answers.

    Its standard error goes to a file for as long as it runs, and what it keeps to a folder of its
    own: the machine's own server may run beside it. Raises EngineError.
    """
    with tempfile.TemporaryDirectory(prefix="sublimate-tax-") as folder:
        log = Path(folder) / "log"
        with (
            log.open("wb") as errors,
            subprocess.Popen(  # noqa: S603 - our own interpreter and files
                [sys.executable, *command],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "XDG_DATA_HOME": folder},
            ) as process,
        ):
            try:
                url = _wait_ready(process, log)
                yield Server(url=url, processes=_family(process.pid, role), log=log)
            finally:
                process.terminate()
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()


def _wait_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    if process.stdout is None:
        raise EngineError("The server has no output.")
    deadline = time.monotonic() + START_SECONDS
    for line in process.stdout:
        with contextlib.suppress(msgspec.DecodeError):
            said = msgspec.json.decode(line, type=_Ready)
            if said.event == "ready" and said.url:
                return said.url
        if time.monotonic() > deadline:
            break
    written = log.read_text(errors="replace").strip().splitlines()[-SHOWN_LINES:]
    raise EngineError("\n".join(["The server did not start.", *written]))


def _family(pid: int, role: str) -> list[Process]:
    """A process and its children; a child that runs a module of ours is named by it."""
    family = [Process(role, pid)]
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
            if parent == pid:
                command = (path.parent / "cmdline").read_bytes().decode(errors="replace")
                module = re.search(r"sublimate\.(edge|engine)\b", command)
                name = module.group(1) if module else role
                family.append(Process(name, int(path.parent.name)))
    return family


def listening_processes(port: int) -> list[Process]:
    """Whoever listens on a local port, with children. Raises PeerError if that cannot be seen."""
    if not 0 < port <= PORT_MAX:
        raise PeerError(f"{port} is no port.")
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    found: dict[int, Process] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.readlink(fd) in inodes for fd in (folder / "fd").iterdir()):
                for process in _family(int(folder.name), "server"):
                    found.setdefault(process.pid, process)
    if not found:
        raise PeerError(f"No process that listens on port {port} can be seen on this machine.")
    return list(found.values())


@contextlib.contextmanager
def busy_loops(count: int) -> Generator[list[int]]:
    """So many processes that do nothing but keep a core busy each; their process ids."""
    if count < 1:
        raise ValueError("at least one process keeps a core busy")
    # In this session, so that a scheduler that groups by session treats all alike.
    command = [sys.executable, "-S", "-c", "while True: pass"]
    loops = [subprocess.Popen(command) for _ in range(count)]  # noqa: S603 - our own interpreter
    try:
        yield [loop.pid for loop in loops]
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()
