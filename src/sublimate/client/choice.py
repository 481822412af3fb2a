"""Which carriers a request may take, from what is known of its server. No input or output here; the
time is a parameter.

defines: Carrier, CARRIERS, allowed_carriers, Kind, kind_of, Service, Block, Origin, Plan, plan
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import msgspec

from ..errors import ConfigError

Carrier = Literal["grpc-h3", "h3", "grpc-h2", "frames", "http/1.1"]
CARRIERS: tuple[Carrier, ...] = ("h3", "grpc-h3", "grpc-h2", "frames", "http/1.1")
"""Best first. h3 comes before grpc-h3, since it carries all requests, and their errors as they are.
h3, frames: streams are binary frames; http/1.1: server-sent events."""
OVER_QUIC: tuple[Carrier, ...] = ("grpc-h3", "h3")
OVER_GRPC: tuple[Carrier, ...] = ("grpc-h3", "grpc-h2")
WITHOUT_QUIC: tuple[Carrier, ...] = ("grpc-h2", "frames", "http/1.1")
OVER_HTTP1: tuple[Carrier, ...] = ("frames", "http/1.1")
FORCE_HTTP1 = ("SUBLIMATE_FORCE_HTTP1",)
FORCE_HTTP2 = ("SUBLIMATE_FORCE_HTTP2", "ANTHROPIC_FORCE_HTTP2")
LIST = "SUBLIMATE_CARRIERS"

BLOCKED_SECONDS = 60.0
"""How long no handshake is tried after one that failed; doubled each time, up to the next
figure."""
BLOCKED_SECONDS_MAX = 900.0
PORT_MAX = 65535
DIGEST_CHARACTERS = 64

Kind = Literal["stream", "message", "count", "other"]
"""A stream or a whole answer of the Messages API, a count of tokens, all else. gRPC has the models
too, but not with all that their JSON says."""
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"


def allowed_carriers(given: Sequence[str], environment: Mapping[str, str]) -> tuple[Carrier, ...]:
    """Best first. What the caller gives wins over the environment. Raises ConfigError."""
    names = [*given] or [name.strip() for name in environment.get(LIST, "").split(",") if name]
    if wrong := [name for name in names if name not in CARRIERS]:
        raise ConfigError(f"carriers: {wrong[0]!r} is none of {', '.join(CARRIERS)}.")
    if names:
        return cast(tuple[Carrier, ...], tuple(names))
    if _is_on(environment, FORCE_HTTP1):
        return OVER_HTTP1
    return WITHOUT_QUIC if _is_on(environment, FORCE_HTTP2) else CARRIERS


def _is_on(environment: Mapping[str, str], names: Sequence[str]) -> bool:
    return any(environment.get(name, "").lower() not in ("", "0", "false", "no") for name in names)


class _Asked(msgspec.Struct):
    """The one member of a body that decides how its answer is framed."""

    stream: bool = False


def kind_of(method: str, path: str, body: bytes) -> Kind:
    """path: without the query."""
    path = path.rstrip("/")
    if method != "POST" or not body:
        return "other"
    if path == COUNT:
        return "count"
    if path != MESSAGES:
        return "other"
    try:
        return "stream" if msgspec.json.decode(body, type=_Asked).stream else "message"
    except msgspec.DecodeError:
        return "other"  # the server says what is wrong with it


@dataclass(frozen=True, slots=True)
class Service:
    """What /.well-known/sublimate says. A port of 0 is none."""

    quic_port: int = 0
    grpc_port: int = 0
    certificate_sha256: str = ""
    """In hex, of the certificate on all of these ports."""
    certificate: bytes = field(default=b"", repr=False)
    """The same in PEM, where it had to be fetched; added by the client."""

    def __post_init__(self) -> None:
        """Raises ValueError for what no server of ours says."""
        if any(not 0 <= port <= PORT_MAX for port in (self.quic_port, self.grpc_port)):
            raise ValueError("a port is out of range")
        digest = self.certificate_sha256
        if digest and (
            len(digest) != DIGEST_CHARACTERS or not set(digest) <= set("0123456789abcdef")
        ):
            raise ValueError("a SHA-256 is 64 hexadecimal digits")


@dataclass
class Block:
    """Of one way to a server: it does not get through, for a while. Any thread."""

    failures: int = 0
    """Handshakes that failed since the last that did not."""
    until_seconds: float = 0.0
    reason: str = ""
    """Of the last of them."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def failed(self, now_seconds: float, reason: str) -> None:
        """A handshake was refused or too slow: others go first for a while."""
        with self._lock:
            self.failures += 1
            self.reason = reason
            wait = min(BLOCKED_SECONDS * 2 ** (self.failures - 1), BLOCKED_SECONDS_MAX)
            self.until_seconds = now_seconds + wait

    def worked(self) -> None:
        """A handshake was completed, be it late."""
        with self._lock:
            self.failures, self.until_seconds, self.reason = 0, 0.0, ""

    def probe_is_due(self, now_seconds: float) -> bool:
        """May a handshake be tried again, with no request waiting for it? True for one caller."""
        with self._lock:
            if not self.failures or now_seconds < self.until_seconds:
                return False
            self.until_seconds = now_seconds + BLOCKED_SECONDS
            return True


@dataclass
class Origin:
    """One scheme, host and port, and what is known of it. Any thread."""

    scheme: str
    host: str
    port: int
    is_sublimate: bool | None = None
    """None: no answer of it was seen."""
    service: Service | None = None
    """None: not asked."""
    tickets: list[tuple[str, object]] = field(default_factory=list[tuple[str, object]])
    """Of TLS sessions over QUIC, newest last; each is used once."""
    udp: Block = field(default_factory=lambda: Block())
    http2: Block = field(default_factory=lambda: Block())
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.scheme not in ("http", "https"):
            raise ValueError(f"{self.scheme} is no scheme that is carried")

    def learn(self, headers: Mapping[str, str]) -> bool:
        """From the headers of any answer. True: it is one of ours, and was not known as one."""
        known, self.is_sublimate = self.is_sublimate, "x-layer" in headers
        return self.is_sublimate and not known

    @property
    def grpc_port(self) -> int:
        """0: there is none, or it has no certificate, and nothing of https goes to such a port."""
        service = self.service or Service()
        in_clear = self.scheme == "https" and not service.certificate_sha256
        return 0 if in_clear else service.grpc_port

    def put_ticket(self, ticket: object, pin_sha256: str, count_max: int) -> None:
        """Of a server with this certificate."""
        with self._lock:
            self.tickets = [*self.tickets, (pin_sha256, ticket)][-count_max:]

    def take_ticket(self, pin_sha256: str) -> object | None:
        """The newest of the server with this certificate. Others are of no use any more."""
        with self._lock:
            self.tickets = [held for held in self.tickets if held[0] == pin_sha256]
            return self.tickets.pop()[1] if self.tickets else None


@dataclass(frozen=True, slots=True)
class Plan:
    """Carriers to try, best first; the last one always exists."""

    carriers: tuple[Carrier, ...]
    fallback: str = ""
    """Why a better one that is allowed is missing."""

    def without(self, dropped: Sequence[Carrier], reason: str) -> Plan:
        left: tuple[Carrier, ...] = tuple(name for name in self.carriers if name not in dropped)
        return Plan(left or ("http/1.1",), reason)


def plan(origin: Origin, kind: Kind, allowed: Sequence[Carrier]) -> Plan:
    """Without a look at the clock: who has failed is not tried by a request that would wait."""
    if not allowed:
        raise ValueError("a request needs some carrier")
    if not origin.is_sublimate:
        return Plan(("http/1.1",), "other server" if origin.is_sublimate is False else "first")
    service = origin.service or Service()
    able: list[Carrier] = [name for name in allowed if _can_carry(name, kind)]
    fallback = ""
    rules: tuple[tuple[bool, tuple[Carrier, ...], str], ...] = (
        (not service.quic_port, OVER_QUIC, "no quic port"),
        (origin.udp.failures > 0, OVER_QUIC, origin.udp.reason),
        (not service.grpc_port, ("grpc-h2",), "no grpc port"),
        (not origin.grpc_port, ("grpc-h2",), "grpc in clear"),
        (origin.http2.failures > 0, ("grpc-h2",), origin.http2.reason),
    )
    for missing, names, reason in rules:
        if missing and (dropped := [name for name in able if name in names]):
            fallback = fallback or (reason if able[0] in dropped else "")
            able = [name for name in able if name not in dropped]
    if fallback and origin.service is None:
        # In clear there is nothing better, unless the caller names it, and then it is asked.
        fallback = "not asked yet" if origin.scheme == "https" else ""
    return Plan((*able,) or ("http/1.1",), fallback)


def _can_carry(name: Carrier, kind: Kind) -> bool:
    if name == "frames":
        return kind == "stream"
    return kind in ("stream", "message", "count") if name in OVER_GRPC else True
