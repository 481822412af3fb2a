"""A method that stands for a route of the HTTP API: its message becomes a request, and what the
route's handler answers becomes messages.

defines: Asked, RouteMethod, CallExchange, check_access
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from .. import limits
from ..errors import ApiError
from ..exchange import Exchange, Request
from ..memory import trimmed
from ..wire import Header
from .call import Call
from .framing import split_frames

JSON = b"application/json"
FRAMES = b"application/octet-stream"
OK = 200
# What a call's own framing says in other words, and what would change the form of an answer.
NOT_OF_A_REQUEST = frozenset(
    b"content-type content-length content-encoding accept accept-encoding te".split()
)
NOT_OF_AN_ANSWER = frozenset(
    "content-type content-length content-encoding cache-control x-accel-buffering date vary".split()
)


class Asked(msgspec.Struct, frozen=True):
    """What one message asks of its route."""

    body: bytes = b""
    target: bytes = b""
    """Empty: the method's own."""


class RouteMethod(msgspec.Struct, frozen=True):
    """`verb` and `target` lead to the route, whatever a message says.

    `read` makes the request of the message; it raises ApiError, and is called on a worker thread
    for long messages. `written` makes the message of the answer's body, and raises ApiError; None:
    the answer is a stream of frames, whose messages go on as they are."""

    verb: str
    target: bytes
    read: Callable[[bytes], Asked]
    written: Callable[[bytes], bytes] | None
    accept: bytes = JSON
    """What the route answers `written` with."""

    def __post_init__(self) -> None:
        if self.verb not in ("GET", "POST") or not self.target.startswith(b"/"):
            raise ValueError(f"{self.verb} {self.target!r} leads to no route")

    def __call__(self, call: Call) -> _Route:
        return _Route(self, call)


class CallExchange(Exchange):
    """Its errors are the call's."""

    __slots__ = ("_route",)
    is_of_call = True

    def __init__(self, route: _Route, request: Request) -> None:
        super().__init__(route, request)
        self._route = route

    def fail(self, error: ApiError) -> None:
        if not self.answered:
            self.error_code = error.code
            fields = self._fields(error.kind.status, [])
            self._begin_end()
            self._route.failed(error, fields)
            self._end()


class _Route:
    """A Talk, and the Wire of its exchange."""

    has_trailers = False
    chunked = False
    descriptor = -1
    connection_key = b""
    standing: Sequence[Header] = ()

    def __init__(self, method: RouteMethod, call: Call) -> None:
        self.protocol = call.carrier.protocol
        self._method = method
        self._call = call
        self._message: bytes | None = None
        self._reading: Future[Asked] | None = None
        self._is_handed_over = False
        fields = {
            name: value
            for name, value in call.fields.items()
            if name not in NOT_OF_A_REQUEST and not name.startswith(b"grpc-")
        }
        fields[b"content-type"] = JSON
        fields[b"accept"] = FRAMES if method.written is None else method.accept
        self._exchange = CallExchange(self, Request(method.verb, method.target, fields))
        self._exchange.streams = method.written is None
        call.request_id = self._exchange.request_id
        refusal = call.server.refuse_early(self._exchange)
        if refusal is not None:
            self._refuse(refusal)

    # ---- Talk ----------------------------------------------------------------------------------
    def message(self, data: bytes) -> None:
        if self._message is not None:
            self._refuse(ApiError("call_one_message"))
        self._message = data

    def end(self) -> None:
        if self._message is None:
            self._refuse(ApiError("call_one_message"))
            return
        data, self._message = self._message, b""
        if len(data) < limits.OFFLOAD_BYTES_MIN:
            self._hand_over(lambda: self._method.read(data))
            return
        server = self._call.server
        self._reading = server.loop.run_in_executor(
            server.workers, lambda: trimmed(lambda: self._method.read(data), len(data))
        )
        self._reading.add_done_callback(self._was_read)

    def _was_read(self, reading: Future[Asked]) -> None:
        if not reading.cancelled():
            self._call.guarded(lambda: self._hand_over(reading.result))

    def _hand_over(self, read: Callable[[], Asked]) -> None:
        try:
            asked = read()
        except ApiError as error:
            self._refuse(error)
            return
        exchange, now = self._exchange, self._exchange.request
        if asked.target:
            exchange.request = Request(now.method, asked.target, now.fields)
        exchange.request.body = asked.body
        self._is_handed_over = True
        self._call.server.handle(exchange)

    def gone(self, error: ApiError | None) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if error is not None and error.code == "call_slow_reader":
            self._exchange.slow_reader()
        if self._is_handed_over:
            self._exchange.client_gone(cancelled=self._call.was_cancelled)
        elif error is not None and not self._exchange.answered:
            self._refuse(error)

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error before a handler has seen the request."""
        self._exchange.fail(error)
        self._call.server.refused(self._exchange)

    # ---- Wire ----------------------------------------------------------------------------------
    @property
    def is_closing(self) -> bool:
        return self._call.has_ended

    def whole(self, status: int, fields: Sequence[Header], body: bytes) -> None:
        if status != OK or self._method.written is None:
            raise ValueError("this answer has no form in gRPC")
        try:
            message = self._method.written(body)
        except ApiError as error:
            self._call.fail(error, _shown(fields))
            return
        self._call.reply([message], _shown(fields))
        self._call.complete()

    def begin(self, status: int, fields: Sequence[Header], pieces: bytes) -> bool:
        if status != OK or self._method.written is not None:
            raise ValueError("this answer has no form in gRPC")
        self._call.reply(split_frames(pieces), _shown(fields))
        return False

    def send(self, pieces: bytes) -> bool:
        self._call.reply(split_frames(pieces))
        return False

    def finish(self, pieces: bytes, trailers: Sequence[Header] = ()) -> None:
        del trailers  # no handler has any
        self._call.reply(split_frames(pieces))
        self._call.complete()

    def failed(self, error: ApiError, fields: Sequence[Header]) -> None:
        """From the exchange: it was answered with an error."""
        self._call.request_id = self._exchange.request_id  # another edge may have answered
        self._call.fail(error, _shown(fields))

    def answered(self, exchange: Exchange) -> None:
        """A call has one answer, and ends with it."""

    def last(self) -> None:
        """Calls of one connection do not follow each other."""

    def framed(self, frames: bytes) -> bytes:
        return frames

    def unsent_bytes(self) -> int:
        return self._call.carrier.unsent_bytes()

    def resume_body(self) -> None:
        """No route behind a method has a sink."""

    def cut(self) -> None:
        self._call.fail(ApiError("call_slow_reader"))

    def base_url(self) -> str:
        return self._call.carrier.base_url()


def _shown(fields: Sequence[Header]) -> list[Header]:
    return [(name, value) for name, value in fields if name not in NOT_OF_AN_ANSWER]


class _Nowhere:
    """The wire of an exchange that only asks for access."""

    has_trailers = False
    chunked = False
    protocol = ""
    standing: Sequence[Header] = ()


def check_access(call: Call, target: bytes) -> None:
    """Of a method that answers by itself: raises ApiError for who may not GET the target."""
    nowhere: Any = _Nowhere()
    call.server.access.check(Exchange(nowhere, Request("GET", target, call.fields)))
