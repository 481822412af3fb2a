"""Requests that another edge of this server answers, because what they are about is kept there.

    batches and files          worker 0 has the folders
    idempotency-key            the worker that the key selects, so that a repeat finds its answer
    responses, stories by id   the worker that made the id (exchange.py)

The request goes over a connection that the other edge serves as any client's (it looks at the key,
too), with its head in a binary form that no field of a client can reach out of (RelayedHead), and
the answer comes back as it is. A call of gRPC goes as the request that it
stands for, and its errors come back as a call's. A client that goes takes that connection with it.
Where the other edge does not run, a request with an idempotency-key is served here, a response or a
story is not found (the edge that has ended kept it in memory), and one for batches or files is a
503. What only worker 0 answers is kept there under its idempotency-key, too.

defines: ElsewhereError, RelaySink, relay, relay_or, serve_siblings,
         kept_here_or_raise, kept_elsewhere, first_or_here, relays_to_first, ask
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import httptools
import msgspec

from . import limits
from .errors import ApiError, error_again
from .exchange import Exchange, RelayedHead, worker_of
from .http import HttpConnection
from .idempotency import FIELD, keeper_of
from .wire import Header

if TYPE_CHECKING:
    from .app import EdgeServer

OF_CONNECTION = frozenset(
    b"connection transfer-encoding content-length content-encoding expect".split()
)
NOT_PASSED_ON = frozenset(("connection", "transfer-encoding", "keep-alive"))
UNSENT_BYTES_MAX = 1 << 20
LOST = "engine_lost"
"""What a client is told whose answer ends with the other edge."""
OK = 200
LENGTH_BYTES = 4
WIRE_TYPE_BITS, WITH_LENGTH = 3, 2
"""Of protobuf's encoding."""
LIMITS_PREFIX = "anthropic-ratelimit-"


class ElsewhereError(Exception):
    """Raised by what looks for something that another worker keeps. `otherwise` is called if that
    worker has no edge now, and may raise ApiError."""

    def __init__(self, worker: int, otherwise: Callable[[], None]) -> None:
        super().__init__(worker)
        self.worker = worker
        self.otherwise = otherwise


class _Pipe(asyncio.Protocol):
    """One connection to the other edge: a request out, its answer back."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.on_room: Callable[[], None] = lambda: None
        self.has_room = True
        self._parser: Any = httptools.HttpResponseParser(self)

    # ---- asyncio -------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def pause_writing(self) -> None:
        self.has_room = False

    def resume_writing(self) -> None:
        self.has_room = True
        self.on_room()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.ended()

    def status(self) -> int:
        return self._parser.get_status_code()

    def ended(self) -> None:
        """Whatever has come is all."""


class _Answer(_Pipe):
    """Passes the answer on to who asked."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange
        self._fields: list[Header] = []
        self._is_stream = False
        self._body: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.decode("latin-1").lower()
        self._is_stream |= lower == "transfer-encoding"
        if lower not in NOT_PASSED_ON:
            self._fields.append((lower, value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if self._exchange.gone or self._exchange.answered:
            self.transport.abort()
        elif self._is_stream:
            self._exchange.pass_on_stream(self.status(), self._fields, b"")

    def on_body(self, data: bytes) -> None:
        if not self._is_stream:
            self._body.append(data)
        elif not self._exchange.answered:
            self._exchange.write(self._exchange.framed(data))

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange.gone or exchange.answered:
            pass
        elif self._is_stream:
            exchange.finish()
        else:
            exchange.pass_on(self.status(), self._fields, b"".join(self._body))
        self.transport.close()

    def ended(self) -> None:
        if not self._exchange.answered and not self._exchange.gone:
            self._exchange.fail(ApiError(LOST).after(limits.ENGINE_LOST_RETRY_SECONDS))


class _CallAnswer(_Answer):
    """For a call of gRPC: a message, whole frames, or its error."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._rest = bytearray()
        """A frame that is not whole."""

    def on_body(self, data: bytes) -> None:
        if not self._is_stream:
            self._body.append(data)
            return
        self._rest += data
        for frame in _whole_frames(self._rest):
            if self._exchange.answered:
                return
            if (told := _error_in(frame)) is None:
                self._exchange.write(frame)
            else:
                self._exchange.request_id = told.request_id
                self._exchange.fail(error_again(told.error))

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if self.status() != OK and not exchange.gone and not exchange.answered:
            self._fail()
        super().on_message_complete()

    def _fail(self) -> None:
        exchange = self._exchange
        told = msgspec.json.decode(b"".join(self._body), type=_Envelope)
        exchange.request_id = told.request_id
        exchange.standing_headers += [
            field for field in self._fields if field[0].startswith(LIMITS_PREFIX)
        ]
        exchange.fail(error_again(told.error, self.status(), dict(self._fields)))


class _Envelope(msgspec.Struct):
    """Of an error that another edge tells."""

    error: dict[str, Any]
    request_id: str


def _whole_frames(data: bytearray) -> Iterator[bytes]:
    """Takes them out of the data."""
    while len(data) >= LENGTH_BYTES:
        end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "big")
        if len(data) < end:
            return
        frame = bytes(data[:end])
        del data[:end]
        yield frame


def _error_in(frame: bytes) -> _Envelope | None:
    """That a stream ends with."""
    from ..v1 import frames_pb2 as v1  # calls alone need it

    tag = v1.StreamEvent.ERROR_FIELD_NUMBER << WIRE_TYPE_BITS | WITH_LENGTH
    if frame[LENGTH_BYTES : LENGTH_BYTES + 1] != bytes((tag,)):
        return None
    told = v1.StreamEvent.FromString(frame[LENGTH_BYTES:]).error
    error = {"type": told.type, "message": told.message}
    return _Envelope({**error, "details": {"error_code": told.error_code}}, told.request_id)


class _Text(_Pipe):
    """Keeps a whole answer."""

    def __init__(self, done: asyncio.Future[bytes]) -> None:
        super().__init__()
        self._done = done
        self._body: list[bytes] = []

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        if not self._done.done():
            self._done.set_result(b"".join(self._body) if self.status() == OK else b"")
        self.transport.close()

    def ended(self) -> None:
        if not self._done.done():
            self._done.set_result(b"")


def _head(
    exchange: Exchange, body_bytes: int | None, left_out: frozenset[bytes] = OF_CONNECTION
) -> bytes:
    request = exchange.request
    return RelayedHead(
        # The response parser would wait for a body. Exchange.pass_on leaves it out.
        method="GET" if request.method == "HEAD" else request.method,
        target=request.target,
        fields=tuple(field for field in request.fields.items() if field[0] not in left_out),
        base_url=exchange.base_url(),
        streams=exchange.streams,
        body_bytes=body_bytes,
    ).encoded()


async def _open(server: EdgeServer, number: int, pipe: _Pipe) -> bool:
    """False if the other edge cannot be had."""
    sock: socket.socket | None = server.siblings.connect(number)
    if sock is None:
        return False
    await server.loop.create_connection(lambda: pipe, sock=sock)
    return True


async def relay(server: EdgeServer, exchange: Exchange, worker: int) -> bool:
    """Have that worker's edge answer. False: there is none, and nothing was done."""
    number = server.siblings.of_worker(worker)
    if number is None or exchange.is_relayed:
        return False
    pipe = _CallAnswer(exchange) if exchange.is_of_call else _Answer(exchange)
    if not await _open(server, number, pipe):
        return False
    exchange.was_noted = True  # by the other edge
    if exchange.gone:
        pipe.transport.abort()
        return True
    exchange.on_gone = pipe.transport.abort
    body = exchange.request.body
    pipe.transport.write(_head(exchange, len(body)) + body)
    return True


async def ask(server: EdgeServer, number: int, exchange: Exchange) -> bytes:
    """What another edge answers to the same request; empty if it does not, or is too slow."""
    done: asyncio.Future[bytes] = server.loop.create_future()
    pipe = _Text(done)
    if not await _open(server, number, pipe):
        return b""
    plain = OF_CONNECTION | {b"accept-encoding"}
    pipe.transport.write(_head(exchange, 0, plain))
    try:
        return await asyncio.wait_for(done, limits.SIBLING_SECONDS)
    except TimeoutError:
        pipe.transport.abort()
        return b""


class RelaySink:
    """The body of a request for another edge, passed on while it arrives."""

    def __init__(self, server: EdgeServer, exchange: Exchange, number: int) -> None:
        self._pipe = _Answer(exchange)
        self._pipe.on_room = exchange.resume_body
        self._waiting: list[bytes] = []
        self._has_begun = False
        """The head was written: the pipe may be there some turns of the loop before it is."""
        self._is_complete = self._is_closed = False
        self._task = server.loop.create_task(self._begin(server, exchange, number))

    async def _begin(self, server: EdgeServer, exchange: Exchange, number: int) -> None:
        if not await _open(server, number, self._pipe):
            if not self._is_closed:
                exchange.fail(_first_is_gone())
                server.refused(exchange)
            return
        exchange.was_noted = True  # by the other edge
        transport = self._pipe.transport
        if self._is_closed:
            transport.abort()  # nobody sends the rest any more
            return
        transport.write(_head(exchange, None))
        transport.write(b"".join(self._waiting))
        self._waiting.clear()
        self._has_begun = True

    def feed(self, data: bytes) -> bool:
        """As BodySink's."""
        if data:
            self._write(b"%x\r\n%b\r\n" % (len(data), data))
        return self._pipe.has_room

    def finish(self) -> None:
        """The body is whole."""
        self._is_complete = True
        self._write(b"0\r\n\r\n")

    def _write(self, data: bytes) -> None:
        if self._has_begun:
            self._pipe.transport.write(data)
        else:
            self._waiting.append(data)

    def close(self) -> None:
        """As BodySink's: without its whole body there is no request."""
        if self._is_complete:
            return
        self._is_closed = True
        if self._pipe.transport is not None:
            self._pipe.transport.abort()


async def relay_or(server: EdgeServer, exchange: Exchange, elsewhere: ElsewhereError) -> None:
    """Have the other edge answer, or do without it. Raises ApiError."""
    if not await relay(server, exchange, elsewhere.worker):
        elsewhere.otherwise()


def serve_siblings(server: EdgeServer) -> None:
    """Connections that other edges open are served as any client's."""

    def serve(sock: socket.socket) -> None:
        def connection() -> HttpConnection:
            return HttpConnection(server, server.loop, relayed=True)

        server.hold(server.loop.connect_accepted_socket(connection, sock))

    server.siblings.on_connection = serve


def kept_here_or_raise(server: EdgeServer, exchange: Exchange) -> None:
    """Of a request with an idempotency key. Raises ElsewhereError if another worker keeps its
    answer."""
    place = server.place
    if place.workers == 1 or exchange.is_relayed or exchange.is_kept_here:
        return
    if exchange.handler in server.routes.of_first:
        return  # one worker answers, and keeps the answers

    def here() -> None:
        exchange.is_kept_here = True
        server.handle(exchange)

    worker = keeper_of(exchange.tenant_key, exchange.request.fields[FIELD], place.workers)
    if worker != place.worker:
        raise ElsewhereError(worker, here)


def kept_elsewhere(server: EdgeServer, exchange: Exchange, identifier: str) -> int | None:
    """The other worker that has made an identifier, and keeps what it names."""
    worker = worker_of(identifier) if server.place.workers > 1 else None
    is_other = worker is not None and worker != server.place.worker
    return worker if is_other and not exchange.is_relayed else None


def first_or_here(server: EdgeServer) -> None:
    """For what reads from the folders while it answers something else. Raises ElsewhereError if
    another edge has them."""

    def otherwise() -> None:
        raise _first_is_gone()

    if server.place.worker or server.leaving:
        raise ElsewhereError(0, otherwise)


def _first_is_gone() -> ApiError:
    return ApiError("worker_unavailable").after(limits.ENGINE_LOST_RETRY_SECONDS)


def relays_to_first(server: EdgeServer, exchange: Exchange) -> bool:
    """True if the edge that has the folders has to answer; the exchange then gets a handler that
    relays it. During a reload that is the new edge. Raises ApiError if it does not run: this edge
    must not take the folders, because it would keep them."""
    if exchange.handler not in server.routes.of_first or exchange.is_relayed:
        return False
    is_first = server.place.worker == 0
    if is_first and not server.leaving:
        return False
    number = server.siblings.of_worker(0)
    if number is None:
        if is_first:
            return False
        raise _first_is_gone()
    if exchange.handler in server.routes.sinks:
        exchange.sink = RelaySink(server, exchange, number)
        exchange.handler = _finish_body
    else:
        exchange.handler = _relay_to_first
    return True


async def _relay_to_first(server: EdgeServer, exchange: Exchange) -> None:
    if not await relay(server, exchange, 0):
        raise _first_is_gone()


def is_for_first(exchange: Exchange) -> bool:
    """Whether relays_to_first gave it a handler that relays it."""
    return exchange.handler in (_relay_to_first, _finish_body)


def _finish_body(server: EdgeServer, exchange: Exchange) -> None:
    """The handler of a request whose body went through a RelaySink."""
    del server
    if not isinstance(exchange.sink, RelaySink):
        raise RuntimeError("its body was passed on")
    exchange.sink.finish()
