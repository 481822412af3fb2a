"""What a carrier is given and what it returns, whatever it is.

defines: IDEMPOTENCY_KEY, Call, Answer
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .choice import OVER_QUIC, Carrier, Kind
from .events import Decoder
from .pipe import Pipe
from .report import Used

Field = tuple[str, str]
IDEMPOTENCY_KEY = "idempotency-key"

# Of HTTP/1.1's connection, and what a carrier says in its own way.
HOP_BY_HOP = frozenset(
    ("connection", "content-length", "host", "keep-alive", "te", "transfer-encoding", "upgrade")
)


@dataclass(frozen=True, slots=True)
class Call:
    """A request, whole in memory."""

    kind: Kind
    method: str
    scheme: str
    authority: str
    target: str
    """Path and query."""
    headers: list[Field]
    """Names in lower case, without those of HTTP/1.1's connection."""
    body: bytes = field(repr=False)
    is_replayable: bool
    """The server does the work once however often it comes: it reads only, or has a key."""
    connect_seconds: float | None = None
    read_seconds: float | None = None
    key: str = ""
    """An idempotency key for carriers whose cancel the server takes for one: those over QUIC. It is
    there for a message that its caller gave none."""

    def __post_init__(self) -> None:
        """Raises ValueError for what would break a carrier's framing."""
        if not self.target.startswith("/") or not self.method.isupper():
            raise ValueError("a request has a method and a path")
        for name, value in self.headers:
            if name != name.lower() or name in HOP_BY_HOP or name.startswith(":"):
                raise ValueError(f"{name} is no field that every carrier has")
            if "\r" in value or "\n" in value:
                raise ValueError(f"{name} has a line break in its value")

    def may_repeat(self, carrier: Carrier) -> bool:
        """Whether it may be sent early, or again: the server does the work once."""
        return self.is_replayable or (carrier in OVER_QUIC and self.key != "")


@dataclass(frozen=True, slots=True)
class Answer:
    """A response whose head is there."""

    status: int
    headers: list[Field]
    body: Pipe
    used: Used
    decoder: Decoder | None = None
    """Makes the caller's bytes of the body's."""
