"""What the sync and the async client have in common: which way a request goes, and who remembers.

defines: Way, Core
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import secrets
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import discovery
from .background import Background
from .calls import HOP_BY_HOP, IDEMPOTENCY_KEY, Answer, Call
from .choice import (
    LIST,
    OVER_GRPC,
    OVER_HTTP1,
    OVER_QUIC,
    Carrier,
    Kind,
    Origin,
    Plan,
    Service,
    allowed_carriers,
    kind_of,
    plan,
)
from .events import FRAMES_TYPE
from .library import CarrierError
from .network import Network
from .report import Connections, Tally, Used, say, say_answer

if TYPE_CHECKING:
    from .quic import Trust

KEY_BYTES = 16
NOT_HTTP1: tuple[Carrier, ...] = (*OVER_QUIC, "grpc-h2")
REQUEST_ID = "request-id"
KEYED: tuple[Kind, ...] = ("stream", "message")
PORTS = {"http": 80, "https": 443}
DISCOVERY_SECONDS = 5.0
OK = 200
JSON_TYPES = ("application/json", "application/json;charset=utf-8")


@dataclass(frozen=True, slots=True)
class Way:
    """How one request goes."""

    origin: Origin
    plan: Plan
    call: Call | None
    """None: its body is not in memory, so the HTTP library carries it."""

    @property
    def is_http1(self) -> bool:
        return self.call is None or self.plan.carriers[0] in OVER_HTTP1


class Core:
    """One client's knowledge and connections."""

    def __init__(
        self, library: Any, carriers: Sequence[str], verify: Any, environment: Mapping[str, str]
    ) -> None:
        """carriers: those that may be used, best first; empty: chosen by the environment. Who names
        some, here or there, wants them from the first request on: servers are asked at once."""
        self.library = library
        self.allowed: tuple[Carrier, ...] = allowed_carriers(carriers, environment)
        self.asks_first = bool(carriers or environment.get(LIST))
        self.verify = verify
        self.tally = Tally()
        self._connections = Connections()
        self._origins: dict[tuple[str, str, int], Origin] = {}
        self._lock = threading.Lock()
        self._left_behind: list[Network] = []
        """Of the processes that this one was forked from: ending their connections would hang."""
        self._begin()

    def _begin(self) -> None:
        self.process = os.getpid()
        self.network = Network(self._trust, self._ask)
        self.background = Background("sublimate-client", self.network.close)

    def after_fork(self) -> bool:
        """In a child all connections are made anew: those of the parent are the parent's. True for
        the one caller that has found out."""
        with self._lock:
            if self.process == os.getpid():
                return False
            self._left_behind.append(self.network)
            self._begin()
            for origin in self._origins.values():
                origin.tickets = []  # the parent uses them
            if "grpc-h2" in self.allowed:
                self.allowed = tuple(name for name in self.allowed if name != "grpc-h2")
            return True

    # ---- which way -----------------------------------------------------------------------------
    def origin(self, url: Any) -> Origin:
        """Of an URL of the library."""
        key = (url.scheme, url.host, url.port or PORTS.get(url.scheme, 0))
        with self._lock:
            found = self._origins.get(key)
            if found is None:
                found = self._origins[key] = Origin(*key)
            return found

    def way(self, request: Any) -> Way:
        """From what is known now. Sends nothing and waits for nothing."""
        origin = self.origin(request.url)
        try:
            body: bytes = request.content
        except self.library.RequestNotRead:
            chosen = plan(origin, "other", self.allowed)
            return Way(origin, chosen.without(OVER_GRPC, "body is a stream"), None)
        kind = kind_of(request.method, request.url.path, body)
        if FRAMES_TYPE in request.headers.get("accept", "") or not _is_plain(request.headers):
            kind = "other"  # the caller reads frames, or the server has to look at how it is coded
        chosen = plan(origin, kind, self.allowed)
        if request.method == "HEAD":  # over HTTP/3 a length without a body passes for a cut answer
            return Way(origin, chosen.without(NOT_HTTP1, "head"), None)
        now = time.monotonic()
        if origin.udp.probe_is_due(now) or origin.http2.probe_is_due(now):
            say(f"{origin.host}: another handshake, with no request waiting for it")
            self._discover_and_warm(origin)
        is_reading = request.method == "GET" or kind == "count"
        is_replayable = is_reading or IDEMPOTENCY_KEY in request.headers
        timeout = request.extensions.get("timeout", {})
        call = Call(
            kind=kind,
            method=request.method,
            scheme=request.url.scheme,
            authority=request.headers.get("host", request.url.netloc.decode()),
            target=request.url.raw_path.decode(),
            headers=[
                (name, value)
                for name, value in _fields(request.headers.raw)
                if name not in HOP_BY_HOP
            ],
            body=body,
            is_replayable=is_replayable,
            connect_seconds=timeout.get("connect"),
            read_seconds=timeout.get("read"),
            key=secrets.token_hex(KEY_BYTES) if kind in KEYED and not is_replayable else "",
        )
        say(f"{request.method} {request.url}: {' > '.join(chosen.carriers)} {chosen.fallback}")
        return Way(origin, chosen, call)

    def must_ask(self, request: Any) -> Origin | None:
        """The origin, if it has to be asked what it is before this request can go."""
        origin = self.origin(request.url)
        asked = origin.service is not None or origin.is_sublimate is False
        return None if asked or not self.asks_first else origin

    # ---- what comes back -----------------------------------------------------------------------
    def note_http(self, way: Way, response: Any, framed: bool, fallback: str) -> None:
        """A response of the HTTP library's own transport, whose body is still to come."""
        if way.origin.learn(response.headers) and way.origin.scheme == "https":
            if any(name not in OVER_HTTP1 for name in self.allowed):
                self._discover_and_warm(way.origin)
        used = Used(
            "frames" if framed else "http/1.1",
            reused=not self._connections.is_new(response),
            fallback=fallback or way.plan.fallback,
        )
        self.tally.note(used)
        say_answer(response.status_code, used, response.headers.get(REQUEST_ID, ""))
        response.extensions["sublimate"] = used

    def exchange(self, way: Way, call: Call) -> concurrent.futures.Future[Answer]:
        """On the network's thread. The future raises CarrierError."""
        return self.background.submit(self.network.exchange(way.origin, call, way.plan))

    def response(self, answer: Answer, stream: Any) -> Any:
        """As the library has it."""
        self.tally.note(answer.used)
        say_answer(answer.status, answer.used, dict(answer.headers).get(REQUEST_ID, ""))
        version = b"HTTP/3" if answer.used.protocol in OVER_QUIC else b"HTTP/2"
        return self.library.Response(
            answer.status,
            headers=answer.headers,
            stream=stream,
            extensions={"http_version": version, "sublimate": answer.used},
        )

    def http_request(self, way: Way, request: Any) -> tuple[Any, bool]:
        """The request for the library's own transport, and whether it asks for frames. Without them
        it is the caller's, untouched."""
        call = way.call
        if call is None or call.kind != "stream" or "frames" not in way.plan.carriers:
            return request, False
        headers = request.headers.copy()
        headers["accept"] = FRAMES_TYPE
        made = self.library.Request(
            request.method,
            request.url,
            headers=headers,
            content=call.body,
            extensions=request.extensions,
        )
        return made, True

    def reframed(self, response: Any, headers: list[tuple[str, str]], stream: Any) -> Any:
        """The response with what is read of its frames in place of them."""
        return self.library.Response(
            response.status_code, headers=headers, stream=stream, extensions=response.extensions
        )

    # ---- the network's questions ---------------------------------------------------------------
    def ask(self, origin: Origin) -> concurrent.futures.Future[None]:
        """What is it? Done when that is known."""
        return self.background.submit(self.network.discover(origin))

    def _discover_and_warm(self, origin: Origin) -> None:
        network, allowed = self.network, self.allowed

        async def story() -> None:
            await network.discover(origin)
            network.warm(origin, allowed)

        self.background.submit(story())

    async def _ask(self, origin: Origin) -> Service | None:
        """One request, over a connection of its own that the HTTP library has verified."""
        library = self.library
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        url = f"{origin.scheme}://{host}:{origin.port}{discovery.PATH}"
        try:
            async with (
                asyncio.timeout(DISCOVERY_SECONDS),
                library.AsyncClient(verify=self.verify, timeout=DISCOVERY_SECONDS) as client,
                client.stream("GET", url) as response,
            ):
                origin.learn(response.headers)
                if response.status_code != OK or not origin.is_sublimate:
                    return None
                return discovery.read_service(await _bounded(response))
        except TimeoutError:
            text = f"{discovery.PATH} has not come within {DISCOVERY_SECONDS:g} s."
            raise CarrierError("ConnectError", text, unsent=True) from None
        except library.HTTPError as error:
            raise CarrierError("ConnectError", str(error), unsent=True) from None

    def _trust(self, origin: Origin) -> Trust:
        """The pin was read over a connection that was verified as the caller wants it, so a server
        that has it is trusted as that one."""
        from .quic import Trust

        pin = origin.service.certificate_sha256 if origin.service else ""
        return Trust(pin_sha256=pin, authorities=authorities(self.verify), verify=bool(self.verify))


async def _bounded(response: Any) -> bytes:
    """What is read of the answer: no more than makes it too long."""
    body = b""
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > discovery.BYTES_MAX:
            break
    return body


def _is_plain(headers: Any) -> bool:
    """The body is JSON in UTF-8, and not compressed."""
    kind = headers.get("content-type", "").lower().replace(" ", "")
    return kind in JSON_TYPES and "content-encoding" not in headers


def _fields(raw: Sequence[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw]


def authorities(verify: Any) -> bytes:
    """Certificates (PEM) that a setting of the HTTP library trusts; empty: the usual ones."""
    if isinstance(verify, ssl.SSLContext):
        found = verify.get_ca_certs(binary_form=True)
        return "".join(ssl.DER_cert_to_PEM_cert(der) for der in found).encode()
    return b""
