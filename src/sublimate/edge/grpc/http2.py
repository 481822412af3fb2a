"""gRPC over HTTP/2: a connection with its streams, and the listener that accepts it.

    bytes --> frames --> head, body --> exchange (in_body.py) --> answer --> frames
    every turn of the event loop in which something was written: one write

A library that hands over whole heads has already expanded what a few bytes refer to, and none ends
a connection for frames that are many and carry nothing. Here frames that carry nothing are counted
before they are handled, work is bounded per turn of the event loop, and what a client does not read
waits in its stream, whose bound the call watches.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...config import LISTEN_BACKLOG
from ...errors import ListenError
from ...kernel.keys import NO_KEY
from .. import limits
from ..errors import ApiError
from ..exchange import Exchange, Request
from ..heads import is_well_formed, request_of, too_large
from ..http import Application
from ..incoming import IncomingBody
from ..tls import load_chain, server_context
from ..wire import Header
from .call import is_call
from .hpack import Field, FloodError, HeadDecoder, HpackError, TooLargeError, encoded, encoded_head
from .in_body import GRPC_SHAPE

LOG = logging.getLogger("sublimate.edge")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = struct.Struct("!HBBBI")
NUMBER = struct.Struct("!I")
SETTING = struct.Struct("!HI")
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY = range(8)
WINDOW_UPDATE, CONTINUATION = 8, 9
END_STREAM = ACK = 1
END_HEADERS, PADDED, PRIORITIZED = 4, 8, 32
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 2, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR = 5, 6, 7, 8, 9
ENHANCE_YOUR_CALM = 11
ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 2, 3, 4
MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 5, 6
WINDOW_BYTES = 65_535
NUMBER_MAX = (1 << 31) - 1
FRAME_SIZES = range(1 << 14, 1 << 24)
FRAMES_PER_LOOK = 16
"""Frames handled between two readings of the clock."""
PRIORITY_BYTES = 5
PING_BYTES = b"sublimat"


class ConnectionFault(Exception):  # noqa: N818 - the protocol's word is connection error
    """Ends the connection."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason


class Allowance:
    """Limits how often a client may do something within a window of time."""

    def __init__(self, most: int, reason: str) -> None:
        self._most, self._reason = most, reason
        self._spent = 0
        self._since = time.monotonic()

    def spend(self, amount: int = 1) -> None:
        """Raises ConnectionFault."""
        self._spent += amount
        if self._spent > self._most:
            now = time.monotonic()
            if now - self._since < limits.HTTP2_BUDGET_SECONDS:
                raise ConnectionFault(ENHANCE_YOUR_CALM, self._reason)
            self._spent, self._since = amount, now

    def earn(self, amount: int) -> None:
        self._spent = max(0, self._spent - amount)


class _Stream:
    """One call from its head to the last byte of its answer, and the wire of its exchange."""

    __slots__ = (
        "_connection",
        "body",
        "exchange",
        "is_closing",
        "is_finishing",
        "is_handled",
        "is_paused",
        "number",
        "pending",
        "progress",
        "received_bytes",
        "room",
        "since",
        "trailers",
        "window",
    )
    chunked = False
    descriptor = -1
    protocol = "HTTP/2"
    has_trailers = True
    standing: Sequence[Header] = ()
    connection_key = b""

    def __init__(self, connection: Http2Connection, number: int) -> None:
        self._connection = connection
        self.number = number
        self.window = 0
        """What the client takes of it, beyond or below the initial window of all streams."""
        self.room = limits.HTTP2_STREAM_WINDOW_BYTES
        """What it may send."""
        self.received_bytes = 0
        self.exchange: Exchange
        self.body: IncomingBody | None = None
        self.is_handled = False
        """The client has said all."""
        self.is_paused = False
        self.is_closing = False
        self.pending = bytearray()
        self.is_finishing = False
        """Nothing follows what is pending but trailers."""
        self.trailers: Sequence[Header] = ()
        self.since = time.monotonic()
        """When its head came, or its client last took something of a whole answer."""
        self.progress = -1

    # ---- Wire ----------------------------------------------------------------------------------
    def whole(self, status: int, fields: Sequence[Header], body: bytes, /) -> None:
        if self.is_closing:
            return
        self._connection.write_head(self, encoded_head(status, fields), is_end=not body)
        if body:
            self.finish(body)

    def begin(self, status: int, fields: Sequence[Header], pieces: bytes, /) -> bool:
        if not self.is_closing:
            self._connection.write_head(self, encoded_head(status, fields), is_end=False)
            self.send(pieces)
        return False

    def send(self, pieces: bytes, /) -> bool:
        if not self.is_closing:
            self.pending += pieces
            self._connection.is_ready(self)
        return False

    def finish(self, pieces: bytes, trailers: Sequence[Header] = (), /) -> None:
        if self.is_closing:
            return
        self.pending += pieces
        if self.exchange.was_slow:
            # Its client would have to read all of it to learn why the call has ended.
            self.pending.clear()
        self.is_finishing, self.trailers = True, trailers
        self._connection.is_ready(self)

    def answered(self, exchange: Exchange, /) -> None:
        del exchange
        self.since = time.monotonic()

    def last(self) -> None:
        """Streams do not disturb each other: the connection goes on."""

    def framed(self, frames: bytes, /) -> bytes:
        return frames

    def unsent_bytes(self) -> int:
        return len(self.pending)

    def resume_body(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._connection.grant(self)

    def cut(self) -> None:
        if not self.is_closing:
            self.exchange.slow_reader()
            self._connection.end_stream(self, CANCEL)

    def base_url(self) -> str:
        return self._connection.base_url


class GrpcApplication(Application, Protocol):
    loop: asyncio.AbstractEventLoop


class Http2Connection(asyncio.Protocol):
    """On the event loop's thread only."""

    key = NO_KEY

    def __init__(self, listener: Http2Listener) -> None:
        self._listener = listener
        self._application = listener.application
        self._loop = listener.application.loop
        self.limits = most = listener.application.limits
        self.transport: Any = None
        self._decoder = HeadDecoder(most.header_bytes_max, most.header_fields_max)
        self._streams: dict[int, _Stream] = {}
        self._last_number = 0
        self._received = bytearray()
        self._has_preface = self._has_settings = False
        self._block: tuple[int, int, bytearray] | None = None
        """A head that is not complete: stream, flags and the bytes so far."""
        self._continuations = 0
        self._waits_since = time.monotonic()
        """For the preface, or the rest of a head."""
        self._goes_on = False
        """It waits for its turn."""
        self._is_paused = False
        """Nothing is read from the socket."""
        self._out: list[bytes] = []
        self._ready: dict[_Stream, None] = {}
        self._all_may_send = False
        """A window of all streams has changed since the last flush."""
        self._flush_handle: asyncio.Handle | None = None
        self._is_full = False
        """The transport takes no more now."""
        self._full_since = 0.0
        self._complete: list[_Stream] = []
        """Their clients have said all; handed on at the end of this turn."""
        self._window, self._stream_window = WINDOW_BYTES, WINDOW_BYTES
        self._frame_bytes = limits.HTTP2_FRAME_BYTES_MAX
        self._room = limits.HTTP2_CONNECTION_WINDOW_BYTES
        self._body_bytes = 0
        """Bytes of incomplete calls."""
        self._resets = Allowance(limits.HTTP2_RESETS_MAX, "too many streams are reset")
        self._control = Allowance(limits.HTTP2_CONTROL_FRAMES_MAX, "too many frames carry nothing")
        self._began = self._heard = self._idle_since = time.monotonic()
        self._pinged = 0.0
        self._is_leaving = self._is_over = False
        self._dropped_bytes = 0
        """That came after the end."""
        self._timer: asyncio.TimerHandle | None = None
        self._handlers: dict[int, Callable[[int, int, bytes], None]] = {
            DATA: self._on_data,
            HEADERS: self._on_headers,
            RST_STREAM: self._on_reset,
            SETTINGS: self._on_settings,
            PING: self._on_ping,
            WINDOW_UPDATE: self._on_window,
            CONTINUATION: self._on_continuation,
            PUSH_PROMISE: self._on_push,
            PRIORITY: self._on_priority,
            GOAWAY: self._on_go_away,
        }

    @property
    def base_url(self) -> str:
        return self._listener.url

    # ---- asyncio -------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=limits.HTTP2_WRITE_BUFFER_BYTES)
        if not self._application.connection_opened(self):
            may_stay = self._application.connection_refused(self)
            self._fail(ENHANCE_YOUR_CALM, "too many connections")
            if not may_stay:
                self.transport.close()
            return
        settings = (
            (MAX_CONCURRENT_STREAMS, limits.GRPC_STREAMS_MAX),
            (INITIAL_WINDOW_SIZE, limits.HTTP2_STREAM_WINDOW_BYTES),
            (MAX_HEADER_LIST_SIZE, self.limits.header_bytes_max),
        )
        self._frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*one) for one in settings))
        more = limits.HTTP2_CONNECTION_WINDOW_BYTES - WINDOW_BYTES
        self._frame(WINDOW_UPDATE, 0, 0, NUMBER.pack(more))
        self._flush_soon()
        self._arm()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > limits.HTTP2_LINGER_BYTES_MAX:
                self.transport.abort()
        else:
            self._heard = time.monotonic()
            self._received += data
            if len(self._received) > limits.HTTP2_STREAM_WINDOW_BYTES:
                self._pause()  # until its turn
            self._go_on_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._is_over = True
        for handle in (self._timer, self._flush_handle):
            if handle is not None:
                handle.cancel()
        self._abandon()
        self._timer = self._flush_handle = None
        self._handlers.clear()  # a cycle of references, which only a collection would free
        self._application.connection_closed(self)

    def pause_writing(self) -> None:
        """Its client does not read: nothing more of it is begun."""
        self._is_full, self._full_since = True, time.monotonic()
        self._pause()

    def resume_writing(self) -> None:
        self._is_full = False
        self._flush_soon()
        self._go_on_soon()

    # ---- frames that come ----------------------------------------------------------------------
    def _go_on_soon(self, *, again: bool = False) -> None:
        if not self._goes_on:
            self._goes_on = True
            self._application.turns.wait(self, again=again)

    def _pause(self) -> None:
        if not self._is_paused and not self.transport.is_closing():
            self._is_paused = True
            self.transport.pause_reading()

    def go_on(self, end: float) -> None:
        """Its turn: handle frames until then."""
        self._goes_on = False
        if self._is_over or self._is_full:
            return
        try:
            is_done = self._read(end)
            self._handle_complete()
        except ConnectionFault as fault:
            self._fail(fault.code, fault.reason)
            return
        except Exception:
            LOG.exception("an HTTP/2 connection failed")
            self._fail(INTERNAL_ERROR, "")
            return
        if self._is_over:
            return
        if not is_done:
            self._pause()
            self._go_on_soon(again=True)
        elif self._is_paused and not self._is_full:
            self._is_paused = False
            self.transport.resume_reading()

    def _read(self, end: float) -> bool:
        """Whether no whole frame is left. Raises ConnectionFault."""
        at = self._read_preface() if not self._has_preface else 0
        frames = 0
        is_done = False
        while self._has_preface and not self._is_over:
            frame = self._next(at)
            if frame is None:
                is_done = True
                break
            at += HEAD.size + len(frame[3])
            self._on_frame(*frame)
            frames += 1
            if frames % FRAMES_PER_LOOK == 0 and time.monotonic() > end:
                break
        del self._received[:at]
        return is_done or not self._has_preface

    def _read_preface(self) -> int:
        if not PREFACE.startswith(self._received[: len(PREFACE)]):
            raise ConnectionFault(PROTOCOL_ERROR, "this port speaks HTTP/2")
        self._has_preface = len(self._received) >= len(PREFACE)
        return len(PREFACE) if self._has_preface else 0

    def _next(self, at: int) -> tuple[int, int, int, bytes] | None:
        """Kind, flags, stream and content of the frame that begins there, once it is whole."""
        received = self._received
        if len(received) < at + HEAD.size:
            return None
        high, low, kind, flags, number = HEAD.unpack_from(received, at)
        size = high << 8 | low
        if size > limits.HTTP2_FRAME_BYTES_MAX:
            raise ConnectionFault(FRAME_SIZE_ERROR, "a frame is too long")
        begin = at + HEAD.size
        if len(received) < begin + size:
            return None
        return kind, flags, number & NUMBER_MAX, bytes(received[begin : begin + size])

    def _on_frame(self, kind: int, flags: int, number: int, content: bytes) -> None:
        if self._block is not None and kind != CONTINUATION:
            raise ConnectionFault(PROTOCOL_ERROR, "only CONTINUATION may follow an incomplete head")
        if not self._has_settings and (kind != SETTINGS or flags & ACK):
            raise ConnectionFault(PROTOCOL_ERROR, "SETTINGS must come first")
        if kind not in (DATA, HEADERS) or not content:
            self._control.spend()
        handler = self._handlers.get(kind)
        if handler is not None:  # the protocol requires that others are ignored
            handler(flags, number, content)

    def _on_push(self, flags: int, number: int, content: bytes) -> None:
        del flags, number, content
        raise ConnectionFault(PROTOCOL_ERROR, "a client must not send PUSH_PROMISE")

    def _on_priority(self, flags: int, number: int, content: bytes) -> None:
        """It is checked and ignored."""
        del flags
        if not number:
            raise ConnectionFault(PROTOCOL_ERROR, "a PRIORITY of the connection")
        if len(content) != PRIORITY_BYTES:
            raise ConnectionFault(FRAME_SIZE_ERROR, "a PRIORITY has a wrong length")

    def _on_go_away(self, flags: int, number: int, content: bytes) -> None:
        """This end opens no streams, so there is nothing to stop."""
        del flags
        if number:
            raise ConnectionFault(PROTOCOL_ERROR, "a GOAWAY of a stream")
        if len(content) < 2 * NUMBER.size:
            raise ConnectionFault(FRAME_SIZE_ERROR, "a GOAWAY is too short")

    def _on_settings(self, flags: int, number: int, content: bytes) -> None:
        if number:
            raise ConnectionFault(PROTOCOL_ERROR, "SETTINGS of a stream")
        if len(content) % SETTING.size or (flags & ACK and content):
            raise ConnectionFault(FRAME_SIZE_ERROR, "malformed SETTINGS")
        if flags & ACK:
            return
        self._has_settings = True
        self._control.spend(len(content) // SETTING.size)
        for name, value in SETTING.iter_unpack(content):
            if name == INITIAL_WINDOW_SIZE:
                if value > NUMBER_MAX:
                    raise ConnectionFault(FLOW_CONTROL_ERROR, "a window is too large")
                if any(one.window + value > NUMBER_MAX for one in self._streams.values()):
                    raise ConnectionFault(FLOW_CONTROL_ERROR, "a stream's window is too large")
                self._stream_window = value
                self._all_may_send = True
            elif name == MAX_FRAME_SIZE:
                if value not in FRAME_SIZES:
                    raise ConnectionFault(PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of range")
            elif name == ENABLE_PUSH and value > 1:
                raise ConnectionFault(PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        self._frame(SETTINGS, ACK, 0)
        self._flush_soon()

    def _on_ping(self, flags: int, number: int, content: bytes) -> None:
        if number:
            raise ConnectionFault(PROTOCOL_ERROR, "a PING of a stream")
        if len(content) != len(PING_BYTES):
            raise ConnectionFault(FRAME_SIZE_ERROR, "a malformed PING")
        if not flags & ACK:
            self._frame(PING, ACK, 0, content)
            self._flush_soon()

    def _on_window(self, flags: int, number: int, content: bytes) -> None:
        del flags
        if len(content) != NUMBER.size:
            raise ConnectionFault(FRAME_SIZE_ERROR, "a WINDOW_UPDATE has a wrong length")
        more = NUMBER.unpack(content)[0] & NUMBER_MAX
        if not number:
            if not more:
                raise ConnectionFault(PROTOCOL_ERROR, "a WINDOW_UPDATE adds nothing")
            self._window += more
            if self._window > NUMBER_MAX:
                raise ConnectionFault(FLOW_CONTROL_ERROR, "a window is too large")
            self._all_may_send = True
            self._flush_soon()
            return
        self._check_begun(number)
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.window += more
        if not more:
            self._reset(number, PROTOCOL_ERROR)
        elif stream.window + self._stream_window > NUMBER_MAX:
            self._reset(number, FLOW_CONTROL_ERROR)
        else:
            self.is_ready(stream)

    def _check_begun(self, number: int) -> None:
        if not number or number > self._last_number or number % 2 == 0:
            raise ConnectionFault(PROTOCOL_ERROR, "a frame names a stream that was not opened")

    def _on_reset(self, flags: int, number: int, content: bytes) -> None:
        del flags
        self._check_begun(number)
        if len(content) != NUMBER.size:
            raise ConnectionFault(FRAME_SIZE_ERROR, "a RST_STREAM has a wrong length")
        self._resets.spend()
        stream = self._streams.get(number)
        if stream is not None:
            self._gone(stream, cancelled=True)

    # ---- heads ---------------------------------------------------------------------------------
    def _on_headers(self, flags: int, number: int, content: bytes) -> None:
        if number % 2 == 0:
            raise ConnectionFault(PROTOCOL_ERROR, "a client's streams have odd numbers")
        content = _unpadded(flags, content)
        if flags & PRIORITIZED:
            if len(content) < PRIORITY_BYTES:
                raise ConnectionFault(FRAME_SIZE_ERROR, "HEADERS are too short")
            content = content[PRIORITY_BYTES:]
        self._continuations = 0
        self._add_to_block(number, flags, bytearray(content), is_whole=bool(flags & END_HEADERS))

    def _on_continuation(self, flags: int, number: int, content: bytes) -> None:
        if self._block is None or self._block[0] != number:
            raise ConnectionFault(PROTOCOL_ERROR, "a CONTINUATION without a head before it")
        self._continuations += 1
        if self._continuations > limits.HTTP2_CONTINUATIONS_MAX:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "a head comes in too many frames")
        number, first_flags, block = self._block
        block += content
        self._add_to_block(number, first_flags, block, is_whole=bool(flags & END_HEADERS))

    def _add_to_block(self, number: int, flags: int, block: bytearray, *, is_whole: bool) -> None:
        if len(block) > limits.HTTP2_HEAD_FACTOR * self.limits.header_bytes_max:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "a head is too large")
        if not is_whole:
            if self._block is None:
                self._waits_since = time.monotonic()
            self._block = number, flags, block
            return
        self._block = None
        head: list[Field] | ApiError
        try:
            head = self._decoder.decode(bytes(block))
        except HpackError:
            raise ConnectionFault(COMPRESSION_ERROR, "a head cannot be read") from None
        except TooLargeError as large:
            head = too_large(self.limits, large.target_bytes)
        except FloodError:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "a head has too many fields") from None
        self._on_head(number, head, is_end=bool(flags & END_STREAM))

    def _on_head(self, number: int, head: list[Field] | ApiError, is_end: bool) -> None:
        """head: the error if it is too large."""
        stream = self._streams.get(number)
        is_first = number > self._last_number
        is_malformed = isinstance(head, list) and not is_well_formed(head, is_first=is_first)
        if stream is not None:  # trailers, which are ignored
            if stream.is_handled:
                self._reset(number, STREAM_CLOSED)
            elif not is_end or is_malformed:
                self._reset(number, PROTOCOL_ERROR)
            else:
                self._on_end(stream)
            return
        if not is_first:  # of a stream that is over, for which only trailers may be under way
            if is_malformed:
                raise ConnectionFault(STREAM_CLOSED, "a stream is opened again")
            self._resets.spend()
            return
        self._last_number = number
        if self._is_leaving or not self._has_room():
            self._reset(number, REFUSED_STREAM)
        elif is_malformed:
            self._reset(number, PROTOCOL_ERROR)
        else:
            self._begin(number, head, is_end)

    def _has_room(self) -> bool:
        unsent = sum(len(stream.pending) for stream in self._streams.values())
        return (
            len(self._streams) < limits.GRPC_STREAMS_MAX
            and self._listener.calls < limits.GRPC_CALLS_MAX
            and unsent <= limits.CONNECTION_UNSENT_BYTES_MAX
        )

    def _begin(self, number: int, head: list[Field] | ApiError, is_end: bool) -> None:
        stream = self._streams[number] = _Stream(self, number)
        self._listener.calls += 1
        if len(self._streams) == 1:
            self._arm()
        application = self._application
        stream.exchange = exchange = Exchange(stream, Request("POST", b"", {}))
        exchange.error_shape = GRPC_SHAPE
        try:
            if isinstance(head, ApiError):
                self._resets.spend(limits.HTTP2_REFUSED_HEAD_RESETS)
                raise head
            exchange.request = request = request_of(head)
            if not is_call(request.fields):
                raise ApiError("call_content_type")
            refusal = application.refuse_early(exchange)
            if refusal is not None:
                raise refusal
            stream.body = IncomingBody(exchange, self.limits.body_bytes_max, False)
        except ApiError as error:
            stream.is_handled = is_end
            self._refuse(stream, error)
            return
        if is_end:
            self._on_end(stream)

    # ---- bodies --------------------------------------------------------------------------------
    def _on_data(self, flags: int, number: int, content: bytes) -> None:
        self._check_begun(number)
        self._room -= len(content)
        if self._room < 0:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "more was sent than the window takes")
        most = limits.HTTP2_CONNECTION_WINDOW_BYTES
        if self._room < most // 2:
            self._frame(WINDOW_UPDATE, 0, 0, NUMBER.pack(most - self._room))
            self._room = most
            self._flush_soon()
        stream = self._streams.get(number)
        if stream is None:
            return  # it is over, and its client does not know yet
        if stream.is_handled:
            self._reset(number, STREAM_CLOSED)
            return
        stream.room -= len(content)
        if stream.room < 0:
            self._reset(number, FLOW_CONTROL_ERROR)
            return
        data = _unpadded(flags, content)
        if stream.body is not None and data:
            self._feed(stream, stream.body, data)
        if not stream.is_paused:
            self.grant(stream)
        if flags & END_STREAM and stream.number in self._streams:
            self._on_end(stream)

    def _feed(self, stream: _Stream, body: IncomingBody, data: bytes) -> None:
        stream.received_bytes += len(data)
        self._body_bytes += len(data)
        if self._body_bytes > limits.HTTP2_BODIES_BYTES_MAX:
            self._reset(stream.number, ENHANCE_YOUR_CALM)
            return
        try:
            stream.is_paused = not body.feed(data)
        except ApiError as error:
            self._refuse(stream, error)

    def grant(self, stream: _Stream) -> None:
        """What came of it is taken: its window moves on."""
        most = limits.HTTP2_STREAM_WINDOW_BYTES
        if stream.room < most // 2 and not stream.is_handled and not stream.is_closing:
            self._frame(WINDOW_UPDATE, 0, stream.number, NUMBER.pack(most - stream.room))
            stream.room = most
            self._flush_soon()

    def _on_end(self, stream: _Stream) -> None:
        """The client has said all."""
        body, exchange = stream.body, stream.exchange
        stream.is_handled, stream.body = True, None
        received, stream.received_bytes = stream.received_bytes, 0
        self._body_bytes -= received
        if body is None or exchange.answered:
            self.is_ready(stream)
            return
        if int(exchange.request.fields.get(b"content-length", received)) != received:
            self._reset(stream.number, PROTOCOL_ERROR)  # RFC 9113, 8.1.1
            return
        try:
            body.finish()
        except ApiError as error:
            self._refuse(stream, error)
            return
        self._complete.append(stream)

    def _handle_complete(self) -> None:
        """Hand on the requests that are complete and were not reset by a frame behind them: one
        that comes with its reset reaches no engine."""
        complete, self._complete = self._complete, []
        for stream in complete:
            if stream.number in self._streams:
                self._application.handle(stream.exchange)

    def _refuse(self, stream: _Stream, error: ApiError) -> None:
        """Answer before the request is complete; the rest of it is not wanted."""
        if not stream.exchange.answered:
            stream.body = None
            stream.exchange.fail(error)
            self._application.refused(stream.exchange)

    # ---- frames that go ------------------------------------------------------------------------
    def _frame(self, kind: int, flags: int, number: int, content: bytes | bytearray = b"") -> None:
        size = len(content)
        self._out.append(HEAD.pack(size >> 8, size & 0xFF, kind, flags, number))
        if content:
            self._out.append(bytes(content))

    def write_head(self, stream: _Stream, block: bytes, *, is_end: bool) -> None:
        """Head or trailers of an answer."""
        flags, kind = END_STREAM if is_end else 0, HEADERS
        most = self._frame_bytes
        while len(block) > most:
            self._frame(kind, flags, stream.number, block[:most])
            block, flags, kind = block[most:], 0, CONTINUATION
        self._frame(kind, flags | END_HEADERS, stream.number, block)
        if is_end:
            self._answered(stream)
        self._flush_soon()

    def is_ready(self, stream: _Stream) -> None:
        """It has something to send, or its client takes more of it."""
        self._ready[stream] = None
        self._flush_soon()

    def _flush_soon(self) -> None:
        """When this turn of the loop is over, with what else was written in it."""
        if self._flush_handle is None and not self._is_over:
            self._flush_handle = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_handle = None
        budget = limits.HTTP2_WRITE_BUFFER_BYTES
        if self._all_may_send:
            self._all_may_send = False
            self._ready |= dict.fromkeys(one for one in self._streams.values() if one.pending)
        while self._ready and not self._is_full and budget > 0:
            ready, self._ready = self._ready, {}
            for stream in ready:  # a frame of each in turn
                budget -= self._write_some(stream)
        out, self._out = self._out, []
        if out and not self.transport.is_closing():
            self.transport.write(b"".join(out))
        if self._ready and not self._is_full:
            self._flush_soon()
        if self._is_leaving and not self._streams:
            self._close()

    def _write_some(self, stream: _Stream) -> int:
        if stream.is_closing:
            return 0
        window = min(stream.window + self._stream_window, self._window)
        size = min(len(stream.pending), window, self._frame_bytes)
        if size > 0:
            self._frame(DATA, 0, stream.number, stream.pending[:size])
            del stream.pending[:size]
            stream.window -= size
            self._window -= size
            if not stream.pending or size >= limits.HTTP2_USEFUL_BYTES_MIN:
                self._control.earn(limits.HTTP2_CONTROL_FRAMES_PER_DATA)
            if stream.pending or stream.is_finishing:
                self._ready[stream] = None
        elif stream.is_finishing and not stream.pending:
            stream.is_finishing = False
            if stream.trailers:
                self.write_head(stream, encoded(stream.trailers), is_end=True)
            else:
                self._frame(DATA, END_STREAM, stream.number)
                self._answered(stream)
        return max(0, size)

    def _answered(self, stream: _Stream) -> None:
        """The last of its answer is written."""
        if not stream.is_handled:
            self._frame(RST_STREAM, 0, stream.number, NUMBER.pack(NO_ERROR))
        stream.is_closing = True
        self._release(stream)

    # ---- ends ----------------------------------------------------------------------------------
    def _release(self, stream: _Stream) -> None:
        if self._streams.pop(stream.number, None) is not None:
            self._listener.calls -= 1
            self._body_bytes -= stream.received_bytes
            stream.received_bytes = 0
            self._ready.pop(stream, None)
            self._idle_since = time.monotonic()

    def _reset(self, number: int, code: int) -> None:
        """It is not taken, or its client broke a rule; the connection goes on."""
        self._resets.spend()
        stream = self._streams.get(number)
        if stream is not None:
            self.end_stream(stream, code)
        else:
            self._frame(RST_STREAM, 0, number, NUMBER.pack(code))
            self._flush_soon()

    def end_stream(self, stream: _Stream, code: int) -> None:
        """Reset the stream."""
        self._frame(RST_STREAM, 0, stream.number, NUMBER.pack(code))
        self._flush_soon()
        self._gone(stream)

    def _gone(self, stream: _Stream, *, cancelled: bool = False) -> None:
        stream.is_closing = True
        self._release(stream)
        stream.exchange.client_gone(cancelled=cancelled)

    def _abandon(self) -> None:
        """The connection carries nothing any more, and what it had sent is forgotten."""
        for stream in list(self._streams.values()):
            self._gone(stream)
        self._received.clear()
        self._complete.clear()
        self._ready.clear()

    def _fail(self, code: int, reason: str) -> None:
        """End the connection for what its client did."""
        self._go_away(code, reason)
        self._abandon()
        self._flush()
        if code == NO_ERROR or self.transport.is_closing():
            self._close()
        elif not self._is_over:
            self._linger()

    def _linger(self) -> None:
        """What still comes is read and dropped for a moment: a close with bytes unread is a reset,
        which can take the last word from the client."""
        self._is_over = True
        if self._is_paused:
            self.transport.resume_reading()
        if self._timer is not None:
            self._timer.cancel()
        seconds = limits.HTTP2_LINGER_SECONDS
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._timer = self._loop.call_later(seconds, self.transport.abort)
        else:
            self._close_when_silent(self._loop.time() + seconds)

    def _close_when_silent(self, end: float, dropped_bytes: int = -1) -> None:
        """TLS has no half-close, so the client sees the end only when the connection is closed.
        Close it once the client is silent."""
        if self._dropped_bytes == dropped_bytes or self._loop.time() > end:
            self.transport.close()
            return
        seconds = limits.LINGER_SILENCE_SECONDS
        self._timer = self._loop.call_later(
            seconds, self._close_when_silent, end, self._dropped_bytes
        )

    def _go_away(self, code: int, reason: str = "") -> None:
        content = NUMBER.pack(self._last_number) + NUMBER.pack(code) + reason.encode()
        self._frame(GOAWAY, 0, 0, content)

    def _close(self) -> None:
        """What was written still goes out, if its client takes it."""
        if not self._is_over:
            self._is_over = True
            self._full_since = time.monotonic()
            self.transport.close()
            self._arm()

    def close(self) -> None:
        if not self._is_over:
            self._fail(NO_ERROR, "")

    def go_away(self) -> None:
        """Its client begins nothing more here; closed when all is done."""
        if not self._is_leaving and not self._is_over:
            self._is_leaving = True
            self._go_away(NO_ERROR)
            self._flush_soon()

    close_if_idle = go_away

    # ---- deadlines -----------------------------------------------------------------------------
    def _arm(self) -> None:
        is_busy = self._streams or not self._has_preface or self._block or self._is_over
        seconds = limits.TICK_SECONDS if is_busy else limits.HTTP2_TICK_IDLE_SECONDS
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._tick)

    def _tick(self) -> None:
        now, most = time.monotonic(), self.limits
        is_waiting = not self._has_preface or self._block is not None
        if (self._is_full or self._is_over) and now - self._full_since > limits.SEND_STALL_SECONDS:
            self.transport.abort()
            return
        if self._is_over:
            self._arm()
            return
        if is_waiting and now - self._waits_since > most.header_seconds:
            self._fail(ENHANCE_YOUR_CALM, "a head did not arrive in time")
            return
        for stream in list(self._streams.values()):
            self._check(stream, now)
        if now - self._began > limits.GRPC_CONNECTION_SECONDS:
            self.go_away()
            end = limits.GRPC_CONNECTION_SECONDS + limits.GRPC_CONNECTION_GRACE_SECONDS
            if now - self._began > end:
                self._fail(NO_ERROR, "")
                return
        elif not self._streams and now - self._idle_since > most.keep_alive_seconds:
            self.go_away()
        self._check_peer(now)
        if not self._is_over:
            self._arm()

    def _check_peer(self, now: float) -> None:
        """One that is silent is asked whether it lives."""
        if now - self._heard < limits.GRPC_PING_SECONDS:
            self._pinged = 0.0
        elif not self._pinged:
            self._pinged = now
            self._frame(PING, 0, 0, PING_BYTES)
            self._flush_soon()
        elif now - self._pinged > limits.GRPC_PING_ANSWER_SECONDS:
            self._is_over = True
            self.transport.abort()

    def _check(self, stream: _Stream, now: float) -> None:
        waited = now - stream.since
        exchange = stream.exchange
        if exchange.answered:
            if len(stream.pending) != stream.progress:
                stream.progress, stream.since = len(stream.pending), now
            elif waited > limits.SEND_STALL_SECONDS:
                stream.cut()
        elif not stream.is_handled and not exchange.streaming:
            if waited > self.limits.body_seconds:
                self._refuse(stream, ApiError("body_too_slow"))


def _unpadded(flags: int, content: bytes) -> bytes:
    if not flags & PADDED:
        return content
    if not content or content[0] >= len(content):
        raise ConnectionFault(PROTOCOL_ERROR, "a frame has more padding than bytes")
    return content[1 : len(content) - content[0]]


class Http2Listener:
    """Accepts connections on the gRPC port."""

    def __init__(self, application: GrpcApplication) -> None:
        self.application = application
        self.calls = 0
        """Under way, on all connections."""
        self.url = ""
        self._tls: ssl.SSLContext | None = None

    async def listen(self, address: str, certificate: str, key: str) -> asyncio.Server:
        """On host:port, which the supervisor holds (supervisor/listen.py); in the clear without a
        certificate. Raises ConfigError, ListenError."""
        host, _, port = address.rpartition(":")
        if certificate:
            self._tls = server_context(certificate, key, ["h2"])
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            sock.bind((host.strip("[]"), int(port)))
        except (OSError, ValueError):
            sock.close()
            raise ListenError(f"gRPC cannot listen on {address}.") from None
        handshake = self.application.limits.header_seconds if certificate else None
        server = await self.application.loop.create_server(
            lambda: Http2Connection(self),
            sock=sock,
            backlog=LISTEN_BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=handshake,
            ssl_shutdown_timeout=limits.LINGER_SECONDS if certificate else None,
        )
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://{host}:{sock.getsockname()[1]}"
        return server

    def reload(self, certificate: str, key: str) -> None:
        """Connections from now on get it. Raises ConfigError."""
        if self._tls is not None:
            load_chain(self._tls, certificate, key)
