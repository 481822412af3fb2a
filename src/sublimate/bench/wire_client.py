"""The client of `sublimate wire-compare`: a process of its own, on the client's side.

    python -m sublimate.bench.wire_client

Standard input: Orders, a line of JSON each; standard output: an Outcome for each. One request at a
time, over a connection that stays or over a new one each, in which it resumes the session of the
one before where there is one.

defines: SUBJECTS, carry_out, main
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

from ..errors import PeerError
from .wire_order import (
    EVENTS,
    FRAMES,
    MESSAGES,
    TIMEOUT_SECONDS,
    Counts,
    Order,
    Outcome,
    Session,
    Timing,
    timed,
)

READ_BYTES = 1 << 16
FOUND_STATUS = 302
SETTLE_SECONDS = 0.06
"""After the last request: acknowledgements that are delayed belong to it."""
NEGOTIATE = "/v1/layer/negotiate"


# ---- HTTP/1.1 ------------------------------------------------------------------------------------
class _Reply:
    """Callbacks of the parser."""

    def __init__(self) -> None:
        self.head_complete = self.complete = False
        self.location = ""
        self.body_bytes = 0
        self.first_byte_at = 0.0

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"location":
            self.location = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        if not self.body_bytes:
            self.first_byte_at = time.perf_counter()
        self.body_bytes += len(data)

    def on_message_complete(self) -> None:
        self.complete = True


class Http1:
    """One address."""

    def __init__(
        self,
        order: Order,
        port: int,
        *,
        secure: bool,
        accept: str = EVENTS,
        counts: Counts | None = None,
    ) -> None:
        self.counts = counts or Counts()
        self._place = (order.address, port)
        self._accept = accept
        self._context = _context(order.certificate) if secure else None
        self._session: ssl.SSLSession | None = None
        self._socket: socket.socket | None = None

    def post(self, path: str, body: bytes) -> tuple[int, _Reply]:
        """(status, what came). Raises OSError, PeerError."""
        connection = self._socket or self._connect()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self._place[0]}:{self._place[1]}\r\n"
            f"accept: {self._accept}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        reply = _Reply()
        parser: Any = httptools.HttpResponseParser(reply)
        while not reply.complete:
            data = connection.recv(READ_BYTES)
            if not data:
                raise PeerError(f"{self._place[0]}:{self._place[1]} closed in its answer.")
            parser.feed_data(data)
        return parser.get_status_code(), reply

    def ask(self, body: bytes) -> Timing:
        begun = time.perf_counter()
        status, reply = self.post(MESSAGES, body)
        return timed(begun, status, reply.first_byte_at, reply.body_bytes)

    def hang_up(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            if isinstance(connection, ssl.SSLSocket):
                self._session = connection.session
            connection.close()

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._place, TIMEOUT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            name = self._place[0]
            secure = self._context.wrap_socket(
                connection, server_hostname=name, session=self._session
            )
            self.counts.handshakes += 1
            self.counts.resumed += bool(secure.session_reused)
            connection = secure
        self._socket = connection
        return connection


class OldLayer:
    """Negotiates, goes where it is sent, asks there."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self.counts = Counts()
        self._gateway = Http1(order, order.ports["https"], secure=True, counts=self.counts)
        self._model: Http1 | None = None

    def ask(self, body: bytes) -> Timing:
        begun = time.perf_counter()
        wanted = msgspec.json.encode({"model": msgspec.json.decode(body)["model"]})
        status, reply = self._gateway.post(NEGOTIATE, wanted)
        if status != FOUND_STATUS or not reply.location:
            raise PeerError(f"{NEGOTIATE} answered {status} and not where to go.")
        place = urlsplit(reply.location)
        if self._model is None:
            port = place.port or 0
            self._model = Http1(self._order, port, secure=True, counts=self.counts)
        status, reply = self._model.post(f"{place.path}?{place.query}", body)
        return timed(begun, status, reply.first_byte_at, reply.body_bytes)

    def hang_up(self) -> None:
        for connection in (self._gateway, self._model):
            if connection is not None:
                connection.hang_up()


def _context(certificate: str) -> ssl.SSLContext:
    """Trusts this one certificate; over the network the address is not one of its names."""
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    context.set_alpn_protocols(["http/1.1"])
    return context


# ---- subjects ------------------------------------------------------------------------------------
def _session(order: Order) -> Session:
    """Raises ConfigError where the library of the subject is not installed."""
    match order.subject:
        case "old":
            return OldLayer(order)
        case "uvicorn":
            return Http1(order, order.ports["twin"], secure=True)
        case "http1":
            return Http1(order, order.ports["http"], secure=False)
        case "tls":
            return Http1(order, order.ports["https"], secure=True)
        case "frames":
            return Http1(order, order.ports["https"], secure=True, accept=FRAMES)
        case "h3":
            from .wire_quic import Http3

            return Http3(order)
        case "grpc-h3":
            from .wire_quic import Http3

            return Http3(order, as_call=True)
        case "grpc":
            from .wire_grpc import Grpc

            return Grpc(order)
        case _:
            raise PeerError(f"{order.subject!r} is nothing that can be measured.")


SUBJECTS = {
    "old": ("old layer, TLS", ("https", "model")),
    "uvicorn": ("uvicorn, TLS", ("twin",)),
    "http1": ("HTTP/1.1", ("http",)),
    "tls": ("HTTP/1.1, TLS", ("https",)),
    "frames": ("frames, TLS", ("https",)),
    "grpc": ("gRPC, HTTP/2", ("grpc",)),
    "grpc-h3": ("gRPC, HTTP/3", ("grpc", "h3")),
    "h3": ("frames, HTTP/3", ("h3",)),
}
"""Name -> (what it is called, the ports that the server must have)."""


def carry_out(order: Order) -> Outcome:
    """Raises OSError, PeerError, ConfigError."""
    session = _session(order)
    body = order.body.encode()
    # The one before: a kept connection is opened by it, a new one resumes its session.
    session.ask(body)
    if not order.kept:
        session.hang_up()
        time.sleep(SETTLE_SECONDS)
    counts, before = session.counts, msgspec.structs.astuple(session.counts)
    begin_seconds = time.time()
    timings: list[Timing] = []
    for _ in range(order.requests):
        timings.append(session.ask(body))
        if not order.kept:
            session.hang_up()
    time.sleep(SETTLE_SECONDS)
    end_seconds = time.time()
    after = msgspec.structs.astuple(counts)
    session.hang_up()
    return Outcome(
        begin_seconds=begin_seconds,
        end_seconds=end_seconds,
        timings=timings,
        counts=Counts(*(now - then for now, then in zip(after, before, strict=True))),
    )


def main() -> None:
    """Entry of the process. Ends with its input."""
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Order)
        try:
            outcome = carry_out(order)
        except (OSError, PeerError, httptools.HttpParserError) as error:
            outcome = Outcome(
                begin_seconds=0.0,
                end_seconds=0.0,
                timings=[],
                counts=Counts(),
                error=f"{type(error).__name__}: {error}",
            )
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
