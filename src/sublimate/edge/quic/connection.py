"""One HTTP/3 connection: its requests, their bodies and answers, and the limits on all of them.

    datagram --> library --> events --> head --body--> handle --> answer (stream.py)
    every turn of the event loop in which something was written: one flight of datagrams

Streams do not wait for each other. What a client must not do to others is bounded per stream (body
bytes, bytes unsent, time for head and body) and per connection (streams, resets, bytes kept). A
client that is gone without a word is found by the idle timeout: while an answer is under way it is
pinged, so that only one that is there stays.

defines: Http3Connection
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from aioquic.h3.connection import ErrorCode
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.events import (
    ConnectionIdIssued,
    ConnectionIdRetired,
    ConnectionTerminated,
    HandshakeCompleted,
    ProtocolNegotiated,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)

from ...kernel.connections import Connections
from ...kernel.keys import NO_KEY, quic_key
from .. import limits
from ..errors import ApiError
from ..exchange import Exchange, Request
from ..heads import request_of
from ..http import Application
from ..incoming import IncomingBody
from .messages import Messages, Refused
from .stream import StreamWire
from .transport import REQUEST_STREAM_MASK, Transport

LOG = logging.getLogger("sublimate.edge")
Flight = list[tuple[bytes, Any]]
"""Datagrams with the addresses that they go to."""


class _Stream:
    """One request from its first byte to the last of its answer."""

    __slots__ = ("body", "exchange", "is_handled", "paused", "progress", "since_seconds", "wire")

    def __init__(self, wire: StreamWire, now: float) -> None:
        self.wire = wire
        self.exchange: Exchange | None = None
        """None until the head is there."""
        self.body: IncomingBody | None = None
        """None once it is complete."""
        self.is_handled = False
        self.paused = False
        self.since_seconds = now
        """Of what is awaited: head, body, or that the client takes the answer."""
        self.progress = -1
        """Bytes that the client had not taken when it was last looked at."""


class Http3Application(Application, Protocol):
    """What a connection needs of the server behind it, beside what HTTP/1.1 needs."""

    kernel: Connections
    """What the kernel does for it."""

    def is_replay_safe(self, exchange: Exchange) -> bool:
        """It does no harm if somebody sends the request again who recorded it."""
        ...

    def handshake_done(self, seconds: float, *, resumed: bool, early: bool) -> None:
        """For counters: early data was taken."""
        ...


class Listener(Protocol):
    """What a connection needs of the socket that it shares."""

    application: Http3Application
    loop: asyncio.AbstractEventLoop
    base_url: str

    def send_flight(self, flight: Flight) -> None: ...

    def know(self, label: bytes, connection: Http3Connection) -> None: ...

    def forget(self, label: bytes) -> None: ...

    def handshake_done(self, connection: Http3Connection, event: HandshakeCompleted) -> None: ...

    def closed(self, connection: Http3Connection) -> None: ...


class Http3Connection:
    """On the event loop's thread only."""

    def __init__(self, listener: Listener, transport: Transport) -> None:
        self.transport = transport
        self.messages: Messages
        self.base_url = listener.base_url
        self.key = NO_KEY
        self.is_established = False
        self.began_seconds = time.monotonic()
        self.early_requests = 0
        self._listener = listener
        self._application = listener.application
        self._limits = listener.application.limits
        self._loop = listener.loop
        self._streams: dict[int, _Stream] = {}
        self._dropped: set[int] = set()
        """Streams whose request is of no interest any more, while their client still sends."""
        self._last_stream_id = -1
        self._resets = 0
        self._resets_since = self.began_seconds
        self._pinged_seconds = self.began_seconds
        self._has_messages = False
        self._is_over = False
        self._is_leaving = False
        self._transmit_handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def known_key(self) -> bytes:
        """As the kernel knows it: made once, at the first request that asks for it."""
        if not self.key:
            self.key = quic_key(self.transport.host_cid)
        return self.key

    # ---- datagrams -----------------------------------------------------------------------------
    def datagram_received(self, data: bytes, address: Any) -> None:
        """Anything at all may be in it. Answers go when all that has arrived is read."""
        if self.transport.is_closing:
            return  # it has ended; late data is dropped
        self._guarded(lambda: self.transport.receive_datagram(data, address, time.monotonic()))

    def _guarded(self, step: Callable[[], None]) -> None:
        """What the library does not survive ends this connection and no other."""
        try:
            step()
            self._take_events()
            # Of a stream that has ended nothing more comes, and no event says so again.
            if self._dropped:
                self._dropped = set(filter(self.transport.is_receiving, self._dropped))
        except Exception:
            LOG.exception("a QUIC connection failed")
            self.transport.close(ErrorCode.H3_INTERNAL_ERROR)
        if self.transport.is_closing:
            self._abandon()
        self.transmit_soon()

    def _take_events(self) -> None:
        while (event := self.transport.next_event()) is not None:
            self._on_event(event)

    def transmit_soon(self) -> None:
        """When this turn of the loop is over, with what else was written in it."""
        if self._transmit_handle is None:
            self._transmit_handle = self._loop.call_soon(self._transmit)

    def _transmit(self) -> None:
        if self._transmit_handle is not None:
            self._transmit_handle.cancel()
            self._transmit_handle = None
        if self._is_over or not self.transport.has_peer:
            return
        now = time.monotonic()
        flight = self.transport.datagrams_to_send(now)
        self._take_events()  # new labels must be registered before the client learns of them
        if flight:
            self._listener.send_flight(flight)
        due = self.transport.get_timer()
        if due is not None:
            self._arm(due, now)

    def _arm(self, due: float, now: float) -> None:
        """One timer. It is moved forward lazily: when it fires too early."""
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(0.0, due - now), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = time.monotonic()
        due = self.transport.get_timer()
        if due is None:
            return
        if now < due:
            self._arm(due, now)
        else:
            self._guarded(lambda: self.transport.handle_timer(now))

    # ---- events --------------------------------------------------------------------------------
    def _on_event(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            self._on_data(event)
        elif isinstance(event, StreamReset):
            self.messages.handle_event(event)
            self._dropped.discard(event.stream_id)
            self._count_reset()
            self._stream_gone(event.stream_id, cancelled=True)
        elif isinstance(event, StopSendingReceived):
            self.messages.handle_event(event)
            self._count_reset()
            self._stream_gone(event.stream_id, cancelled=True)
        elif isinstance(event, ConnectionIdIssued):
            self._listener.know(event.connection_id, self)
        elif isinstance(event, ConnectionIdRetired):
            self._listener.forget(event.connection_id)
        elif isinstance(event, ProtocolNegotiated):
            self.messages = Messages(self.transport, self._limits)
            self._has_messages = True
        elif isinstance(event, HandshakeCompleted):
            self.is_established = True
            self._listener.handshake_done(self, event)
        elif isinstance(event, ConnectionTerminated):
            self._over()

    def _on_data(self, event: StreamDataReceived) -> None:
        stream_id = event.stream_id
        if stream_id in self._dropped:
            if event.end_stream:
                self._dropped.discard(stream_id)
            self.transport.grant(stream_id)
            return
        is_request = not stream_id & REQUEST_STREAM_MASK
        if is_request and stream_id not in self._streams and not self._begin(stream_id):
            return
        for part in self.messages.handle_event(event):
            self._on_part(part)
        stream = self._streams.get(stream_id)
        if stream is None or not stream.paused:
            self.transport.grant(stream_id)

    def _begin(self, stream_id: int) -> bool:
        """The first byte of a request. False: it is not taken."""
        self._last_stream_id = max(self._last_stream_id, stream_id)
        if not self.transport.is_wanted(stream_id):  # datagrams may overtake each other
            self._drop(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
            return False
        kept = sum(s.body.kept_bytes for s in self._streams.values() if s.body is not None)
        unsent = sum(self.transport.unsent_bytes(known) for known in self._streams)
        is_full = kept > self._limits.body_bytes_max or unsent > limits.CONNECTION_UNSENT_BYTES_MAX
        if is_full or self._is_leaving:
            self.transport.reset_stream(stream_id, ErrorCode.H3_REQUEST_REJECTED)
            self._drop(stream_id, ErrorCode.H3_REQUEST_REJECTED)
            return False
        self._streams[stream_id] = _Stream(StreamWire(self, stream_id), time.monotonic())
        return True

    def _on_part(self, part: H3Event) -> None:
        if isinstance(part, HeadersReceived):
            stream = self._streams.get(part.stream_id)
            if stream is None:
                return
            if stream.exchange is None:
                self._on_head(stream, part)
            if part.stream_ended:
                self._on_end(stream)
        elif isinstance(part, DataReceived):
            stream = self._streams.get(part.stream_id)
            if stream is not None and stream.body is not None:
                self._on_body(stream, stream.body, part)
        elif isinstance(part, Refused):
            self._on_refused(part)

    # ---- requests ------------------------------------------------------------------------------
    def _on_head(self, stream: _Stream, part: HeadersReceived) -> None:
        application = self._application
        try:
            request = request_of(part.headers)
        except ApiError as error:
            self._refuse_head(stream, error, part.stream_ended)
            return
        stream.since_seconds = time.monotonic()
        exchange = stream.exchange = Exchange(stream.wire, request)
        exchange.error_shape = application.error_shape(request.path)
        exchange.refusal = application.refuse_early(exchange)
        if exchange.refusal is None and not self.is_established:
            self.early_requests += 1
            if not application.is_replay_safe(exchange):
                exchange.refusal = ApiError("too_early")
        try:
            most = self._limits.body_bytes_max
            stream.body = IncomingBody(exchange, most, application.takes_gzip)
        except ApiError as error:
            exchange.refusal = exchange.refusal or error
        if part.stream_ended:
            return
        if exchange.refusal is not None:
            self._refuse(stream, exchange.refusal)
        elif request.fields.get(b"expect", b"").lower() == b"100-continue":
            self.messages.begin(stream.wire.stream_id, 100, (), False)
            self.transmit_soon()

    def _on_refused(self, part: Refused) -> None:
        """The connection goes on. A malformed request gets no answer, only a reset."""
        stream = self._streams.get(part.stream_id)
        if stream is None:
            return
        if part.error is None:
            self._stream_gone(part.stream_id, code=ErrorCode.H3_MESSAGE_ERROR)
        elif stream.exchange is None:
            self._refuse_head(stream, part.error, part.stream_ended)
        else:
            self._refuse(stream, part.error)

    def _refuse_head(self, stream: _Stream, error: ApiError, is_end: bool) -> None:
        stream.exchange = Exchange(stream.wire, Request("GET", b"", {}))
        self._refuse(stream, error)
        stream.is_handled = is_end

    def _on_body(self, stream: _Stream, body: IncomingBody, part: DataReceived) -> None:
        try:
            if part.data and not body.feed(part.data):
                stream.paused = True
        except ApiError as error:
            self._refuse(stream, error)
            return
        if part.stream_ended:
            self._on_end(stream)

    def _on_end(self, stream: _Stream) -> None:
        """The request is complete."""
        exchange, body = stream.exchange, stream.body
        if exchange is None or stream.is_handled or exchange.answered:
            return
        stream.is_handled = True
        stream.body = None
        stream.paused = False
        try:
            if body is not None:
                body.finish()
        except ApiError as error:
            self._refuse(stream, error)
            return
        self._application.handle(exchange)

    def _refuse(self, stream: _Stream, error: ApiError) -> None:
        """Answer before the request is complete; the rest of it is not wanted."""
        exchange = stream.exchange
        if exchange is not None and not exchange.answered:
            stream.body = None
            exchange.fail(error)
            self._application.refused(exchange)

    def answered(self, exchange: Exchange, stream_id: int) -> None:
        """The last byte of an answer was written; it may wait for the client yet."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if stream.exchange is not exchange:
            raise RuntimeError("an answer to another request")
        stream.since_seconds = time.monotonic()
        stream.progress = -1
        if not stream.is_handled:
            self._drop(stream_id, ErrorCode.H3_NO_ERROR)
        if self.transport.unsent_bytes(stream_id) < limits.QUIC_UNSENT_BYTES_MIN:
            self._release(stream_id)

    def resume_body(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None and stream.paused:
            stream.paused = False
            self.transport.grant(stream_id)
            self.transmit_soon()

    def write(self, stream_id: int, data: bytes) -> None:
        """More of an answer's stream. A client that has left too much of it unread is cut off."""
        if self.transport.unsent_bytes(stream_id) > self._limits.unsent_bytes_max:
            # Not from inside the handler that writes.
            self._loop.call_soon(self.cut, stream_id)
        self.messages.write(stream_id, data)
        self.transmit_soon()

    # ---- ends ----------------------------------------------------------------------------------
    def _drop(self, stream_id: int, code: int) -> None:
        """What the client still sends on a stream is not read."""
        self.transport.stop_stream(stream_id, code)
        if self._has_messages:
            self.messages.forget(stream_id)
        if self.transport.has_stream(stream_id):
            self._dropped.add(stream_id)

    def _stream_gone(
        self,
        stream_id: int,
        *,
        cancelled: bool = False,
        code: int = ErrorCode.H3_REQUEST_CANCELLED,
    ) -> None:
        """It carries nothing any more: its client said so (cancelled), takes nothing, or has sent
        what is no request (code)."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if not stream.wire.is_closing:
            stream.wire.is_closing = True
            self.transport.reset_stream(stream_id, code)
            self._drop(stream_id, code)
        self._release(stream_id, cancelled=cancelled)

    def _release(self, stream_id: int, *, cancelled: bool = False) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is not None and stream.exchange is not None and stream.wire.is_closing:
            stream.exchange.client_gone(cancelled=cancelled)

    def cut(self, stream_id: int) -> None:
        """A client that takes nothing loses this stream."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.wire.is_closing:
            if stream.exchange is not None:
                stream.exchange.slow_reader()
            self._stream_gone(stream_id)
            self.transmit_soon()

    def _count_reset(self) -> None:
        """Who opens requests to drop them makes work for nothing."""
        now = time.monotonic()
        if now - self._resets_since > limits.QUIC_RESET_WINDOW_SECONDS:
            self._resets, self._resets_since = 0, now
        self._resets += 1
        if self._resets > limits.QUIC_RESETS_MAX:
            self.transport.close(ErrorCode.H3_EXCESSIVE_LOAD)

    def _abandon(self) -> None:
        """The connection carries nothing any more."""
        for stream in list(self._streams.values()):
            stream.wire.is_closing = True
            if stream.exchange is not None:
                stream.exchange.client_gone()
        self._streams.clear()

    def _over(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._abandon()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._listener.closed(self)
        self.transport.break_cycles()

    def close(self, code: int = ErrorCode.H3_NO_ERROR) -> None:
        """End it now; the client is told, if it is where it says."""
        if not self.transport.has_shown_address:
            self._over()
        elif not self._is_over:
            self.transport.close(code)
            self._abandon()
            self._transmit()

    def close_if_idle(self) -> None:
        """For draining: what is under way goes on, nothing is begun."""
        if self._is_over or (self._is_leaving and self._streams):
            return
        self._is_leaving = True
        if self._has_messages and self._streams:
            self.messages.go_away(self._last_stream_id)
            self.transmit_soon()
        else:
            self.close()

    def go_away(self) -> None:
        """Its client is told to begin nothing more here; closed when all is done."""
        if self._has_messages and not self._is_over and not self._is_leaving:
            self._is_leaving = True
            self.messages.go_away(self._last_stream_id)
            self.transmit_soon()
        else:
            self.close_if_idle()

    # ---- once a second -------------------------------------------------------------------------
    def tick(self, now: float) -> None:
        """Deadlines, and a sign of life while answers are under way."""
        if not self.is_established and now - self.began_seconds > self._limits.header_seconds:
            self.close(ErrorCode.H3_NO_ERROR)
            return
        if self._is_leaving and not self._streams and not self.transport.has_unsent:
            self.close()
            return
        for stream_id, stream in list(self._streams.items()):
            self._check(stream_id, stream, now)
        if self._streams and now - self._pinged_seconds > limits.QUIC_PING_SECONDS:
            self._pinged_seconds = now
            self.transport.send_ping(0)
            self.transmit_soon()

    def _check(self, stream_id: int, stream: _Stream, now: float) -> None:
        waited = now - stream.since_seconds
        exchange = stream.exchange
        if exchange is None:
            if waited > self._limits.header_seconds:
                stream.exchange = Exchange(stream.wire, Request("GET", b"", {}))
                self._refuse(stream, ApiError("headers_too_slow"))
        elif exchange.answered:
            left = self.transport.unsent_bytes(stream_id)
            if left < limits.QUIC_UNSENT_BYTES_MIN:
                self._release(stream_id)
            elif left != stream.progress:
                stream.progress, stream.since_seconds = left, now
            elif waited > limits.SEND_STALL_SECONDS:
                self.cut(stream_id)
        elif not stream.is_handled and waited > self._limits.body_seconds:
            self._refuse(stream, ApiError("body_too_slow"))
