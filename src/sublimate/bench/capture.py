"""A capture of one interface for the time of a with block, by tcpdump.

defines: Capture
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from typing import BinaryIO, Self

from ..errors import ConfigError
from .pcap import Packet, read_packets

PROGRAM = "tcpdump"
KEPT_BYTES = 192
"""Of each packet: headers and the beginning of what they carry."""
BUFFER_KIB = 8192
START_SECONDS, SETTLE_SECONDS, STOP_SECONDS = 10.0, 0.25, 10.0
LISTENING = b"listening on"


class Capture:
    """Packets of an interface of the namespace that this thread is in. Raises ConfigError where
    there is no tcpdump or no right to use it."""

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self._process: subprocess.Popen[bytes] | None = None
        self._file: BinaryIO | None = None
        self.packets: list[Packet] = []
        """Known when the block has ended, in the order of their times."""

    def __enter__(self) -> Self:
        program = shutil.which(PROGRAM)
        if program is None:
            raise ConfigError(f"There is no {PROGRAM} here: `apt-get install {PROGRAM}`.")
        if self._process is not None:
            raise RuntimeError("a capture is made once")
        self._file = tempfile.TemporaryFile()
        self._process = subprocess.Popen(  # noqa: S603 - found on the path, our arguments
            [
                *(program, "-i", self._interface, "-w", "-", "-n", "-U", "--immediate-mode"),
                *("-s", str(KEPT_BYTES), "-B", str(BUFFER_KIB), "ip or ip6"),
            ],
            stdout=self._file,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        said = b""
        deadline = time.monotonic() + START_SECONDS
        while self._process.stderr is not None and time.monotonic() < deadline:
            line = self._process.stderr.readline()
            said += line
            if LISTENING in line:
                return self
            if not line:
                break
        self._end()
        text = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise ConfigError(f"{PROGRAM} cannot capture {self._interface}: {text}")

    def __exit__(self, *_: object) -> None:
        time.sleep(SETTLE_SECONDS)  # what was sent last is still on its way to the file
        self._end()

    def _end(self) -> None:
        process, file = self._process, self._file
        if process is None or file is None:
            raise RuntimeError("a capture ends after it has begun")
        with process:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        with file:
            file.seek(0)
            data = file.read()
        with contextlib.suppress(ValueError):  # nothing was captured
            self.packets = sorted(read_packets(data), key=lambda packet: packet.at_seconds)
