"""What `sublimate wire-compare` and its client say to each other.

defines: Order, Counts, Outcome, Timing, Session, timed
"""

from __future__ import annotations

import time
from typing import Protocol

import msgspec

from ..errors import PeerError

TIMEOUT_SECONDS = 30.0
MS_PER_S = 1e3
OK_STATUS = 200
MESSAGES = "/v1/messages"
EVENTS, FRAMES = "text/event-stream", "application/octet-stream"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """So many requests, by one of SUBJECTS."""

    subject: str
    kept: bool
    """Connections stay, and were opened and used once before; else each request has its own."""
    requests: int
    address: str
    ports: dict[str, int]
    certificate: str
    body: str
    """Of the Messages API, JSON."""

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise ValueError("an order is for one request or more")


class Timing(msgspec.Struct, frozen=True):
    """One request, from before its connection."""

    first_byte_ms: float
    """Of the answer's body."""
    whole_ms: float
    body_bytes: int


class Counts(msgspec.Struct):
    """Of secure handshakes, TLS and QUIC."""

    handshakes: int = 0
    resumed: int = 0
    early: int = 0
    """Of the resumed: requests that went out with the first flight."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen. Times in seconds since the epoch: packets between them belong to it."""

    begin_seconds: float
    end_seconds: float
    timings: list[Timing]
    counts: Counts
    error: str = ""

    def __post_init__(self) -> None:
        if self.end_seconds < self.begin_seconds:
            raise ValueError("what is measured ends after it begins")
        if not self.error and not self.timings:
            raise ValueError("what was measured has times")


class Session(Protocol):
    """A subject's connections."""

    counts: Counts

    def ask(self, body: bytes) -> Timing:
        """Opens what it needs. Raises OSError, PeerError."""
        ...

    def hang_up(self) -> None:
        """Connections end; what is needed to resume them is kept."""
        ...


def timed(begun: float, status: int, first_byte_at: float, body_bytes: int) -> Timing:
    """Raises PeerError for an answer that is none."""
    now = time.perf_counter()
    if status != OK_STATUS or not body_bytes:
        raise PeerError(f"A request was answered with status {status} and {body_bytes} bytes.")
    return Timing((first_byte_at - begun) * MS_PER_S, (now - begun) * MS_PER_S, body_bytes)
