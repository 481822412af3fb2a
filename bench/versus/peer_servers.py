"""Servers under test: started once, and standing still while it is another one's turn.

defines: Server, session_pids, cpu_seconds
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

READY_SECONDS = 600.0
STOP_SECONDS = 20.0
IDLE_SECONDS = 1.0
IDLE_SHARE_MAX = 0.01


class Server:
    """`{port}` in the command is replaced by a free port. A server that takes more than one per
    cent of a core while nothing is asked of it is stopped outside of its turns."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], log: Path):
        self.name = name
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [part.format(port=self.port) for part in command],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.session = self._process.pid
        self.idle_share = 0.0
        self._paused = False

    def wait_ready(self, path: str) -> None:
        """Until `path` answers 200. Raises RuntimeError if it ends or does not in time."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self._process.returncode}")
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(self.url + path, timeout=5):
                    return
            time.sleep(0.2)
        raise RuntimeError(f"{self.name} does not answer")

    def rest(self) -> None:
        """The end of its turn."""
        before = cpu_seconds(self.session)
        time.sleep(IDLE_SECONDS)
        self.idle_share = (cpu_seconds(self.session) - before) / IDLE_SECONDS
        if self.idle_share > IDLE_SHARE_MAX:
            self._paused = True
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._signal(signal.SIGCONT)

    def stop(self) -> None:
        self.resume()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        for pid in session_pids(self.session):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def session_pids(session: int) -> list[int]:
    """All processes of a session."""
    found = list[int]()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(int(entry)) == session:
                    found.append(int(entry))
    return found


def cpu_seconds(session: int) -> float:
    """Processor time of the processes of a session that still run."""
    ticks = 0
    for pid in session_pids(session):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # utime and stime, counted from the state
    return ticks / os.sysconf("SC_CLK_TCK")
