"""gRPC in the body of an HTTP request and of its answer, on HTTP/2 and HTTP/3 alike: the transport
is an exchange, whose wire has trailers.

    head ─► Call begins     body ─► messages     its end ─► end of messages
    answer: head, body of messages, trailers with the status; or, before any message, head alone

defines: begin_call, answer_call, is_replay_safe, GRPC_SHAPE
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...v1 import layer_pb2, messages_pb2
from ..errors import ApiError, ErrorShape
from ..exchange import Exchange
from ..idempotency import FIELD
from ..wire import Header
from .call import Call, check_call
from .framing import IDENTITY, MessageReader, framed_message, percent_encoded
from .status import Status, status_of

if TYPE_CHECKING:
    from ..app import EdgeServer

CONTENT_TYPE = "application/grpc+proto"
OK = 200


def status_fields(status: Status) -> list[Header]:
    """Trailers, or the part of a head that is theirs where nothing else follows it."""
    fields: list[Header] = [("grpc-status", str(status.code))]
    if status.text:
        fields.append(("grpc-message", percent_encoded(status.text)))
    if status.details:
        encoded = base64.b64encode(status.details).decode().rstrip("=")
        fields.append(("grpc-status-details-bin", encoded))
    return [*fields, *status.trailers]


class GrpcErrors(ErrorShape):
    """What the connection refuses is told as a call's error is."""

    id_headers = ()

    def status(self, error: ApiError) -> int:
        return error.kind.status if error.code == "call_content_type" else OK

    def fields(self, error: ApiError, request_id: str) -> list[Header]:
        told = status_fields(status_of(error, request_id))
        return [("content-type", CONTENT_TYPE), *told]

    def body(self, error: ApiError, request_id: str) -> bytes:
        return b""

    def event(self, error: ApiError, request_id: str) -> bytes:
        return b""

    def trailers(self, error: ApiError, request_id: str) -> list[Header]:
        return status_fields(status_of(error, request_id))


GRPC_SHAPE = GrpcErrors()


class _Carrier:
    """Sends what a call wants by the exchange that it is in."""

    def __init__(self, exchange: Exchange, unsent_bytes_max: int) -> None:
        self.protocol = f"gRPC over {exchange.wire.protocol}"
        self._unsent_bytes_max = unsent_bytes_max
        self._exchange = exchange
        self._head: list[Header] = []

    def head(self, fields: Sequence[Header]) -> None:
        self._head = [*fields]  # goes with what comes first

    def messages(self, messages: Sequence[bytes]) -> None:
        exchange, data = self._exchange, b"".join(map(framed_message, messages))
        if exchange.answered:
            return
        if exchange.streaming:
            exchange.write(data)
        else:
            exchange.start_stream(self._head, data, CONTENT_TYPE)

    def end(self, status: Status) -> None:
        exchange = self._exchange
        if exchange.answered:
            return
        if status.code and exchange.unsent_bytes() > self._unsent_bytes_max:
            exchange.slow_reader()
        fields = status_fields(status)
        if exchange.streaming:
            exchange.finish(b"", fields)
        else:
            exchange.send(OK, [("content-type", CONTENT_TYPE), *self._head, *fields], b"")

    def unsent_bytes(self) -> int:
        return self._exchange.unsent_bytes()

    def base_url(self) -> str:
        return self._exchange.base_url()


class _CallBody:
    """The sink of a call's body: messages as they become whole."""

    def __init__(self, server: EdgeServer, exchange: Exchange) -> None:
        request = exchange.request
        carrier = _Carrier(exchange, server.limits.unsent_bytes_max)
        self.call = Call(server, carrier, request.path, request.fields)
        self._exchange = exchange
        coding = request.fields.get(b"grpc-encoding", IDENTITY)
        self._reader = MessageReader(server.limits.body_bytes_max, coding)
        self._has_begun = False

    def begin(self) -> None:
        """Not before the connection has seen all of the head: what is refused is answered."""
        if not self._has_begun:
            self._has_begun = True
            self.call.begin()
            self._exchange.request_id = self.call.request_id

    def feed(self, data: bytes) -> bool:
        self.begin()
        if self.call.has_ended:
            return True
        try:
            messages = self._reader.feed(data)
        except ApiError as error:
            self.call.fail(error)
            return True
        for message in messages:
            self.call.message(message)
        return True

    def end(self) -> None:
        """The body is complete."""
        self.begin()
        if self._reader.is_between:
            self.call.end_of_messages()
        else:
            self.call.fail(ApiError("call_framing"))

    def close(self) -> None:
        """The answer is sent, or nobody waits for it."""
        self.call.cancelled(is_said=self._exchange.was_cancelled)


def begin_call(server: EdgeServer, exchange: Exchange) -> None:
    """The head of a call has come. Raises ApiError for one that is none."""
    check_call(exchange.request.method, exchange.request.fields)
    exchange.is_carrier = True
    exchange.error_shape = GRPC_SHAPE
    body = _CallBody(server, exchange)
    exchange.sink = body
    exchange.handler = answer_call
    server.loop.call_soon(body.begin)


def is_replay_safe(path: str, fields: dict[bytes, bytes]) -> bool:
    """Whether a call does no harm when it comes again: it has a key, or the method's option in the
    proto says so."""
    if FIELD in fields:
        return True
    service, _, name = path[1:].rpartition("/")
    option: Any = layer_pb2.call
    try:
        method: Any = messages_pb2.DESCRIPTOR.pool.FindMethodByName(f"{service}.{name}")
    except KeyError:
        return False
    return bool(method.GetOptions().Extensions[option].replay_safe)


def answer_call(server: EdgeServer, exchange: Exchange) -> None:
    """The handler of a call: all of its body is there."""
    del server
    if isinstance(exchange.sink, _CallBody):
        exchange.sink.end()
