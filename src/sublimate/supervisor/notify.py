"""What a service manager is told: the protocol of systemd's sd_notify(3), a datagram a message.

defines: notify, NotifyingReporter
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any

from .reporter import Reporter

VARIABLE = "NOTIFY_SOCKET"


def notify(*lines: str) -> bool:
    """Send assignments such as READY=1 to whoever started this process; False if it asks for none.

    A manager that does not listen any more, or no descriptor to reach it by, is no reason to fail.
    """
    address = os.environ.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return False
    name = f"\0{address[1:]}" if address[0] == "@" else address
    told = "\n".join(line.replace("\n", " ") for line in lines).encode(errors="replace")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(told, name)
    except OSError:
        return False
    return True


class NotifyingReporter:
    """Another reporter, whose news the service manager hears too.

    Ready is also who stays to answer 503 with the reason: it does what it was started for.
    """

    def __init__(self, inner: Reporter, reload_ended: Callable[[str], None] | None = None) -> None:
        """reload_ended: also told how each reload went."""
        self._inner = inner
        self._reload_ended = reload_ended

    def loading(self, fraction: float) -> None:
        self._inner.loading(fraction)

    def ready(self, url: str, engine: dict[str, Any], edge: dict[str, Any]) -> None:
        self._inner.ready(url, engine, edge)
        notify("READY=1", f"STATUS=Serves on {url}")

    def lost(self, who: str, why: str, restart_seconds: float) -> None:
        self._inner.lost(who, why, restart_seconds)
        notify(f"STATUS=The {who} is restarted in {restart_seconds:.1f} s: {why}")

    def unavailable(self, url: str, reason: str, message: str) -> None:
        self._inner.unavailable(url, reason, message)
        notify("READY=1", f"STATUS=Answers 503 on {url}: {message}")

    def reloaded(self, failure: str) -> None:
        self._inner.reloaded(failure)
        if self._reload_ended is not None:
            with contextlib.suppress(OSError):  # a disk that is full ends no server
                self._reload_ended(failure)
        notify(f"STATUS=Not reloaded: {failure}" if failure else "STATUS=Reloaded")

    def model(self, name: str, what: str) -> None:
        self._inner.model(name, what)

    def draining(self, seconds: float) -> None:
        self._inner.draining(seconds)
        notify("STOPPING=1", f"STATUS=Streams have {seconds:.0f} s to finish")

    def stopped(self) -> None:
        self._inner.stopped()
