"""Starts servers for the process tests, reads their JSON lines, and leaves none behind.

defines: Server, alive, wait_until
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

HERE = Path(__file__).parent


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_until(condition: Callable[[], object], seconds: float = 5.0) -> float:
    """How long it took until the condition held. Fails after `seconds`."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < seconds, "it did not happen in time"
        time.sleep(0.005)
    return time.monotonic() - begin


class Server:
    """A process that prints JSON lines with an "event"."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        paths = [str(HERE), *(path for path in sys.path if path)]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})}
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
        )
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self.url = self.https = self.grpc = ""
        self.data = Path()
        """Its data folder, where a test has set one."""

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(msgspec.json.decode(line))
        self._events.put({"event": "end"})

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line.decode(errors="replace"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        children = [pid for pids in self.pids().values() for pid in pids]
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        wait_until(lambda: not any(map(alive, children)))

    def event(self, name: str, seconds: float = 20.0) -> dict[str, Any]:
        """The next event of that name; others before it are passed over."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                event = self._events.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {name}; stderr: {''.join(self.errors)}") from None
            if event["event"] == name:
                return event
            assert event["event"] != "end", f"ended without {name}; stderr: {''.join(self.errors)}"

    def ready(self, seconds: float = 20.0) -> dict[str, Any]:
        event = self.event("ready", seconds)
        self.url = event["url"]
        return event

    def children(self) -> dict[str, int]:
        """Module of each child -> its process id; of several the last one's."""
        return {module: pids[-1] for module, pids in self.pids().items()}

    def pids(self) -> dict[str, list[int]]:
        """Module of the children -> their process ids, the oldest first."""
        found: dict[str, list[int]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, IndexError):
                fields = path.read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[1]) == self.process.pid and fields[0] not in "ZX":
                    command = (path.parent / "cmdline").read_bytes().split(b"\0")
                    found.setdefault(command[2].decode(), []).append(int(path.parent.name))
        return {module: sorted(pids) for module, pids in found.items()}

    def get(self, path: str = "/", seconds: float = 5.0) -> dict[str, Any]:
        """JSON of a GET."""
        with urllib.request.urlopen(self.url + path, timeout=seconds) as response:
            return msgspec.json.decode(response.read())

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 10.0) -> int:
        return self.process.wait(seconds)
