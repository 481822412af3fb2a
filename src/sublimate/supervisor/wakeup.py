"""How a signal wakes the supervisor's thread, and whether there is a terminal to end with.

defines: Wakeup, has_terminal
"""

from __future__ import annotations

import errno
import os
import select
import signal
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


class Wakeup:
    """From `__enter__` to `__exit__` signals are bytes of a pipe. On the main thread."""

    def __enter__(self) -> Wakeup:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_fd = signal.set_wakeup_fd(self._write_fd)
        # A closed terminal is a reason to drain, unless someone chose that it is none (nohup).
        self._hangup_ends = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN and has_terminal()
        self._old_handlers = {number: signal.signal(number, _no_action) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._write_fd)

    def numbers(self) -> bytes:
        """Of the signals that came."""
        try:
            return os.read(self.fd, select.PIPE_BUF)
        except BlockingIOError:
            return b""

    def is_hangup(self) -> bool:
        """SIGHUP means now that the terminal is gone."""
        return self._hangup_ends and not has_terminal()


def has_terminal() -> bool:
    """This process has a controlling terminal; one that was closed is none, and one that cannot be
    opened for want of a descriptor may be any."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return True


def _no_action(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor carries the signal; a handler must exist for it to be written."""
