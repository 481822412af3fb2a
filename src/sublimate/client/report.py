"""What carried a request, and the sums of a client.

defines: Used, Report, Tally, Connections, say, say_answer
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

DEBUG = "SUBLIMATE_DEBUG"


@dataclass(frozen=True, slots=True)
class Used:
    """How one request went: `response.extensions["sublimate"]`."""

    protocol: str
    """grpc-h3, h3, grpc-h2, frames (over HTTP/1.1) or http/1.1 (with server-sent events)."""
    reused: bool = True
    """The connection was there before; True also where the HTTP library does not tell."""
    early_data: bool = False
    """Sent with the first packet of the handshake, and accepted so (0-RTT)."""
    handshake_milliseconds: float = 0.0
    """Of the connection, if this request waited for one."""
    fallback: str = ""
    """Why no better carrier was used; empty where it is the best that was allowed."""

    def __post_init__(self) -> None:
        if self.early_data and self.reused:
            raise ValueError("early data opens a connection")


@dataclass(frozen=True, slots=True)
class Report:
    """Sums since the client was made: `client.report()`."""

    requests: dict[str, int]
    """By protocol."""
    early_data: int
    handshakes: int
    """Requests for which a connection was opened."""
    fallbacks: dict[str, int]
    """Requests by the reason why no better carrier was used."""
    last: Used | None


@dataclass
class Tally:
    """Collects a report. Any thread."""

    requests: Counter[str] = field(default_factory=Counter[str])
    fallbacks: Counter[str] = field(default_factory=Counter[str])
    early_data: int = 0
    handshakes: int = 0
    last: Used | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, used: Used) -> None:
        with self._lock:
            self.requests[used.protocol] += 1
            self.early_data += used.early_data
            self.handshakes += not used.reused
            if used.fallback:
                self.fallbacks[used.fallback] += 1
            self.last = used

    def report(self) -> Report:
        with self._lock:
            return Report(
                requests=dict(self.requests),
                early_data=self.early_data,
                handshakes=self.handshakes,
                fallbacks=dict(self.fallbacks),
                last=self.last,
            )


class Connections:
    """Those of the HTTP library that have carried a request. Any thread."""

    def __init__(self) -> None:
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()

    def is_new(self, response: Any) -> bool:
        """Its answer is the first over its connection. The library names that by an object."""
        stream = response.extensions.get("network_stream")
        if stream is None:
            return False
        with self._lock:
            try:
                is_new = stream not in self._seen
                self._seen.add(stream)
            except TypeError:  # of a class that cannot be remembered so
                return False
        return is_new


def say(text: str) -> None:
    """A decision, on standard error, if the environment asks for them."""
    if os.environ.get(DEBUG, "") not in ("", "0"):
        sys.stderr.write(f"sublimate: {text}\n")


def say_answer(status: int, used: Used, request_id: str) -> None:
    """That one has begun, and the id by which `sublimate debug` tells the server's side of it."""
    early = " in the first packet" if used.early_data else ""
    say(f"{status} over {used.protocol}{early}: {request_id or 'without a request-id'}")
