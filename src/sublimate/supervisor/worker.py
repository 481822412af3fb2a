"""One supervised child with its channel: alive or not, when it is restarted, how it ended. A worker
by its number, as everywhere else, is a pair of such children: an engine and an edge.

defines: Worker
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ..control import channel
from .backoff import Backoff

# A child closes its end of the channel a moment before it is gone. Its own exit status says more
# than our kill would, so it has this long.
ENDING_SECONDS = 2.0

CUT_SHORT = " (a file that it reads was cut short, or its disk fails)"

Spawn = Callable[[str, Any], tuple[subprocess.Popen[bytes], channel.Channel[Any]]]


class Worker:
    """A child process that may be started many times. All methods from one thread."""

    def __init__(self, name: str, module: str, incoming: Any) -> None:
        self.name = name
        self.restart_at_seconds: float | None = None
        self.kill_at_seconds: float | None = None
        """Set when the child has closed its end but still lives."""
        self._module = module
        self._incoming = incoming
        self._backoff = Backoff()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: channel.Channel[Any] | None = None
        self._pidfd = -1

    @property
    def alive(self) -> bool:
        return self._process is not None

    @property
    def process_id(self) -> int:
        """0 when not alive."""
        return self._process.pid if self._process else 0

    def start(self, spawn: Spawn) -> None:
        """Start the child. Raises OSError (no process, no descriptor left), and then none runs."""
        self.restart_at_seconds = None
        # Also of a start that fails: else an old healthy life would keep the delay at its least.
        self._backoff.started(time.monotonic())
        self._process, self._channel = spawn(self._module, self._incoming)
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            self._close()
            raise

    def fds(self) -> tuple[int, ...]:
        """What becomes readable when the child speaks or ends."""
        if self._process is None:
            return ()
        if self._channel is None:
            return (self._pidfd,)
        return (self._channel.fileno(), self._pidfd)

    @property
    def hung_up(self) -> bool:
        """Alive, but it can neither say nor be told anything any more."""
        return self._process is not None and self._channel is None

    def send(self, message: channel.Message, fds: tuple[int, ...] = ()) -> bool:
        """False if there is no child to tell. A child that does not read its channel is killed."""
        if self._channel is None:
            return False
        try:
            self._channel.send(message, fds)
        except BlockingIOError:
            self.kill()
            return False
        except OSError:
            return False  # it has just ended; ended() says so in this turn or the next
        return True

    def receive(self) -> Iterator[channel.Received[Any]]:
        """All messages that have arrived. A child that breaks the protocol is killed.

        Descriptors that came with a message are closed when the next one is asked for: who needs
        one for longer duplicates it.
        """
        while self._channel is not None:
            try:
                received = self._channel.receive()
            except BlockingIOError:
                return
            except msgspec.DecodeError:
                self.kill()
                return
            if received is None:
                self._hang_up()
                return
            try:
                yield received
            finally:
                for fd in received.fds:
                    os.close(fd)

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self.kill_at_seconds = time.monotonic() + ENDING_SECONDS

    def kill_if_overdue(self, now_seconds: float) -> None:
        """A child that closed its end and does not go is helped along."""
        if self.kill_at_seconds is not None and now_seconds >= self.kill_at_seconds:
            self.kill_at_seconds = None
            self.kill()

    def ended(self) -> str | None:
        """How the child ended, once, after it has; else None."""
        if self._process is None or self._process.poll() is None:
            return None
        code = self._process.returncode
        self._close()
        if code < 0:
            more = CUT_SHORT if -code == signal.SIGBUS else ""
            return f"signal {_signal_name(-code)}{more}"
        return f"exit code {code}"

    def plan_restart(self) -> float:
        """Set when to start again; returns the delay in seconds."""
        delay = self._backoff.ended(time.monotonic())
        self.restart_at_seconds = time.monotonic() + delay
        return delay

    def is_due(self, now_seconds: float) -> bool:
        return self.restart_at_seconds is not None and now_seconds >= self.restart_at_seconds

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def stop(self) -> None:
        """It is not needed any more, and has a while to go."""
        if self.kill_at_seconds is None:
            self.ask_to_stop(at_once=False)
            self.kill_at_seconds = time.monotonic() + ENDING_SECONDS

    def ask_to_stop(self, at_once: bool) -> None:
        if at_once or not self.send(channel.Stop()):
            self.kill()

    def reap(self, deadline_seconds: float) -> None:
        """Wait for the end until the deadline, then kill."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, deadline_seconds - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
        self._process, self._channel, self._pidfd = None, None, -1
        self.kill_at_seconds = None


def _signal_name(number: int) -> str:
    """Those of real time have a number alone."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
