"""Where a 302 of the gateway points: takes the request itself, under its lease.

A server of its own process and port, with the HTTP/1.1 and TLS of the edge. It hands the request to
the scheduler through the broker and writes to the client what comes back, in the pieces in which it
comes.

defines: ModelAddress, main
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import ssl
from urllib.parse import parse_qs

import uvloop

from ..config import LISTEN_BACKLOG
from ..control.child import die_with_parent
from ..edge import limits
from ..edge.errors import MESSAGES_SHAPE, ApiError, ErrorShape
from ..edge.exchange import Exchange
from ..edge.http import Connection, HttpConnection
from ..edge.limits import HttpLimits, limits_from_environment
from ..edge.server import tune
from ..edge.tls import server_context
from ..edge.turns import Turns
from . import records
from .broker import Broker

LOG = logging.getLogger("sublimate.legacy")
PATH = "/v1/messages"
EVENTS = "text/event-stream"
CHANNEL_BYTES = 8
FORWARDED = (
    "accept",
    "anthropic-beta",
    "anthropic-version",
    "authorization",
    "content-type",
    "user-agent",
    "x-api-key",
)
OWN_HEADERS = frozenset(
    "cache-control connection content-length content-type date request-id transfer-encoding "
    "x-accel-buffering".split()
)
"""Of an answer: written here, for this connection."""


class _Answer:
    """One request that is with the scheduler."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.head: records.Head | None = None
        self.body = b""


class ModelAddress:
    """Everything behind the connections (Application of edge/http.py). On one event loop."""

    draining = leaving = False
    takes_gzip = False

    def __init__(self, http_limits: HttpLimits, gateway: str = "") -> None:
        """gateway: its scheme, host and port."""
        self._gateway = gateway
        self.limits = http_limits
        self.turns = Turns(asyncio.get_running_loop(), limits.TURN_SECONDS)
        self._cap = http_limits.connection_cap()
        self._connections: set[Connection] = set()
        self._channel = b"layer:model:" + secrets.token_hex(CHANNEL_BYTES).encode()
        self._commands: Broker | None = None
        self._open: dict[str, _Answer] = {}
        self._count = 0

    async def connect(self, port: int, password: str) -> None:
        """To the broker, once: this process ends with it. Raises ConnectionError."""
        answers = await Broker.connect(port, password, self._hear, self._lose)
        await answers.subscribe(self._channel)
        self._commands = await Broker.connect(port, password, on_lost=self._lose)

    # ---- connections ---------------------------------------------------------------------------
    def connection_opened(self, connection: Connection) -> bool:
        if len(self._connections) >= self._cap:
            return False
        self._connections.add(connection)
        return True

    def connection_refused(self, connection: Connection) -> bool:
        del connection
        return False

    def connection_closed(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def error_shape(self, path: str) -> ErrorShape:
        del path
        return MESSAGES_SHAPE

    def refuse_early(self, exchange: Exchange) -> ApiError | None:
        """Who has a lease was let in by the gateway; the executor looks at the key again."""
        exchange.standing_headers += records.sunset_headers(self._gateway)
        request = exchange.request
        if request.path != PATH:
            return ApiError("not_found")
        if request.method != "POST":
            return ApiError("method", allowed="POST")
        return None if _lease(exchange) else ApiError("unknown_lease")

    def refused(self, exchange: Exchange) -> None:
        """The answer has said it."""

    # ---- requests ------------------------------------------------------------------------------
    def handle(self, exchange: Exchange) -> None:
        if exchange.refusal is not None:
            exchange.fail(exchange.refusal)
            return
        if self._commands is None:
            exchange.fail(ApiError("legacy_unavailable"))
            return
        self._count += 1
        ask = str(self._count)
        headers = [
            (name, value) for name in FORWARDED if (value := exchange.request.field(name.encode()))
        ]
        job = records.Job(self._channel, ask, _lease(exchange), headers, exchange.request.body)
        self._open[ask] = _Answer(exchange)
        exchange.on_gone = lambda: self._cancel(ask)
        self._commands.send(b"RPUSH", records.QUESTIONS, records.encode(job))

    def _cancel(self, ask: str) -> None:
        if self._open.pop(ask, None) is not None and self._commands is not None:
            cancel = records.encode(records.Cancel(self._channel, ask))
            self._commands.send(b"RPUSH", records.QUESTIONS, cancel)

    def _hear(self, data: bytes) -> None:
        said = records.answer(data)
        answer = self._open.get(said.ask)
        if answer is None:
            return  # its client has left
        match said:
            case records.Head():
                if answer.head is not None:
                    raise TypeError("an answer has one head")
                answer.head = said
                answer.exchange.request_id = dict(said.headers).get("request-id", "")
            case records.Piece():
                self._piece(answer, said)
            case records.Refused():
                self._fail(said.ask, said.code)
            case records.Broken():
                self._fail(said.ask, "engine_lost")
            case records.Granted():
                raise TypeError("a lease was granted that nobody asked for here")

    def _piece(self, answer: _Answer, piece: records.Piece) -> None:
        head, exchange = answer.head, answer.exchange
        if head is None:
            raise TypeError("an answer begins with its head")
        if piece.is_last:
            del self._open[piece.ask]
        headers = [(name, value) for name, value in head.headers if name not in OWN_HEADERS]
        content_type = dict(head.headers).get("content-type", "")
        if not content_type.startswith(EVENTS):
            answer.body += piece.data
            if piece.is_last:
                whole = [("content-type", content_type), *headers]
                exchange.send(head.status, whole, answer.body)
            return
        framed = exchange.framed(piece.data) if piece.data else b""
        if not exchange.streaming:
            exchange.start_stream(headers, b"" if piece.is_last else framed, content_type)
        elif not piece.is_last:
            exchange.write(framed)
        if piece.is_last:
            exchange.finish(framed)

    def _fail(self, ask: str, code: str) -> None:
        self._open.pop(ask).exchange.fail(ApiError(code))

    def _lose(self) -> None:
        """Without the broker there is nothing to say. The gateway tells the next client."""
        self._commands = None
        for ask in list(self._open):
            self._fail(ask, "legacy_unavailable")


def _lease(exchange: Exchange) -> str:
    return parse_qs(exchange.request.query).get("lease", [""])[0]


async def _serve(address: records.Address) -> None:
    """Until it is ended. Raises ConfigError, ConnectionError."""
    gateway = f"http://{address.executor_host}:{address.executor_port}"
    model_address = ModelAddress(limits_from_environment(os.environ), gateway)
    await model_address.connect(address.broker_port, address.broker_password)
    loop = asyncio.get_running_loop()
    sock = socket.socket(fileno=address.model_socket)
    tune(sock)
    context: ssl.SSLContext | None = None
    if address.certificate:
        context = server_context(address.certificate, address.key)
    server = await loop.create_server(
        lambda: HttpConnection(model_address, loop),
        sock=sock,
        backlog=LISTEN_BACKLOG,
        ssl=context,
        ssl_handshake_timeout=model_address.limits.header_seconds if context else None,
        ssl_shutdown_timeout=limits.LINGER_SECONDS if context else None,
    )
    await server.serve_forever()


def main() -> None:
    """Entry of `python -m sublimate.legacy.model_address`."""
    die_with_parent()
    uvloop.run(_serve(records.address()))


if __name__ == "__main__":
    main()
