"""One HTTP/1.1 connection: limits, deadlines, framing, and the answer to one request at a time.

An asyncio protocol of our own over httptools (llhttp): a general ASGI server has no deadlines for
header and body, no byte budget for either, answers its own errors as plain text, and puts a task
switch and three dictionaries between a ready frame and the socket.

    accept --header deadline--> head --body deadline--> body --> answer --idle deadline--> head ...

What arrives while an answer is under way is parsed and waits. A reset cancels the answer. After an
end of file a complete request is still answered, because a client may close its sending side alone
(not over TLS, which closes both); one that has closed both is found by a probe and cancelled
(`_probe`). While answers wait unread in our memory no request is begun and nothing is read. What
comes is parsed in slices, within the budget of each turn of the event loop (turns.py). Any
doubt about framing is a 400, after the answers that are owed, and the end of the connection, which
lingers: our side is closed, what the client still sends is read and dropped, so that it sees the
answer and not a reset. Whatever is being ended has a deadline.

defines: Application, HttpConnection
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import httptools

from ..kernel.keys import NO_KEY, tcp_key
from . import limits
from .errors import ApiError, ErrorShape
from .exchange import Exchange, RelayedHead, Request, relayed_head
from .framing import Http1Wire
from .heads import FIELD_OVERHEAD_BYTES, SINGLE_FIELDS, too_large
from .incoming import IncomingBody
from .limits import HttpLimits
from .turns import Turns
from .wire import Header

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
WHITE_SPACE = b" \t"
TCP_CLOSED = 7
"""The first byte of TCP_INFO after a reset."""
SSE_COMMENT = b":\n\n"


class Connection(Protocol):
    """What a server needs of each connection."""

    key: bytes
    """As the kernel knows it, once a request has asked for it (kernel/keys.py)."""

    def close_if_idle(self) -> None:
        """Take nothing new; what is under way goes on."""
        ...

    def go_away(self) -> None:
        """Another process serves what is new: tell the client, as far as the protocol can."""
        ...

    def close(self) -> None:
        """End it now."""
        ...


class Application(Protocol):
    """What a connection needs of the server behind it."""

    limits: HttpLimits
    draining: bool
    """Nothing new is served: an answer is a connection's last."""
    leaving: bool
    """Another process serves what is new: an answer that begins now is a connection's last."""
    takes_gzip: bool
    """Request bodies may be compressed."""
    turns: Turns
    """Shared by all connections."""

    def connection_opened(self, connection: Connection) -> bool:
        """False if there is no room for it."""
        ...

    def connection_refused(self, connection: Connection) -> bool:
        """Whether it may stay until its client has read that there is no room."""
        ...

    def connection_closed(self, connection: Connection) -> None: ...

    def error_shape(self, path: str) -> ErrorShape:
        """How errors look at a path."""
        ...

    def refuse_early(self, exchange: Exchange) -> ApiError | None:
        """Access and route, decided by the head alone."""
        ...

    def handle(self, exchange: Exchange) -> None:
        """Begin to answer. Never raises."""
        ...

    def refused(self, exchange: Exchange) -> None:
        """It was answered with an error before it could be handled: for logs and counters."""
        ...


class _RefusedError(Exception):
    """Stops the parser; the reason is in the connection's `_refusal`."""


def _without_last_tabs(data: bytes) -> bytes:
    """Trim values in a head at the start of the data: behind the fields that frame a body the
    parser takes spaces alone."""
    if b"\t" not in data:
        return data
    head, end, rest = data.partition(b"\r\n\r\n")
    lines = [line.rstrip(WHITE_SPACE) or line for line in head.split(b"\r\n")]
    return b"\r\n".join(lines) + end + rest


class HttpConnection(asyncio.Protocol):
    """Protocol instance of one client connection."""

    def __init__(
        self,
        application: Application,
        loop: asyncio.AbstractEventLoop,
        standing: Sequence[Header] = (),
        relayed: bool = False,
    ) -> None:
        """standing: headers of each answer here. relayed: another edge has opened it."""
        self.transport: Any = None
        self.standing = standing
        self.descriptor = -1
        """Of the socket, while it may be written past the transport."""
        self.is_secure = False
        """TLS."""
        self.is_relayed = relayed
        self._relayed: bytes | None = b""
        """What has come of a relayed head; None: it is whole."""
        self.relayed_url = ""
        """Of the server, as the client of the other edge reached it."""
        self.limits = application.limits
        self.key = NO_KEY
        self._application = application
        self._loop = loop
        self._parser: Any = httptools.HttpRequestParser(self)
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._refusal: ApiError | None = None
        self._refusal_owed: ApiError | None = None
        """Said when the answers before it are complete; nothing more is parsed."""
        self._unread: bytes | memoryview = b""
        """Received and not parsed yet."""
        self._waits_for_turn = False
        self._is_reading = True
        """The transport reads from the socket."""
        self._write_paused = False
        self._largest_bytes = 0
        """Size of the largest write of this answer that the kernel did not take at once."""
        self._body_paused = False
        """Its sink has more of a body than it can take."""
        self._wake_is_due = False
        self._lingering = False
        self._unsent_deadline = 0.0
        self._dropped_bytes = 0
        self._pipelined_bytes = 0
        self._in_head = False
        self._in_body = False
        self._has_completed = False
        """A request has ended in what was read last."""
        self._is_tunnel = False
        """CONNECT: what follows is not HTTP."""
        self._body_is_cut_off = False
        """The parser has left out the body of a request that asks for another protocol."""
        self._is_restarting = False
        """A new parser reads framing that is known: nothing is to be heard of it."""
        self._is_half_closed = False
        """The client sends no more and may still read."""
        self._probes = 0
        self._accepted_at = loop.time()
        self._is_first = True
        self._begin_message()

    def _begin_message(self) -> None:
        self._url = b""
        self._fields: dict[bytes, list[bytes]] = {}
        self._field_count = 0
        self._head_bytes = 0
        self._unparsed_bytes = 0
        self._body: IncomingBody | None = None
        self._body_length = 0
        """Value of content-length; 0 for a chunked body."""
        self._body_bytes = 0
        self._body_wire_bytes = 0
        self._started = 0.0
        self._exchange: Exchange | None = None

    # ---- asyncio -------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=self.limits.unsent_bytes_max)
        sock = self.transport.get_extra_info("socket")
        self.is_secure = self.transport.get_extra_info("sslcontext") is not None
        if sock is not None and not self.is_secure and not self.is_relayed:
            self.descriptor = sock.fileno()
        if not self._application.connection_opened(self):
            self._refuse(ApiError("too_many_connections").after(limits.OVERLOAD_RETRY_SECONDS))
            if not self._application.connection_refused(self):
                self.transport.close()
            return
        self._arm(self.limits.header_seconds)

    def data_received(self, data: bytes) -> None:
        if self._lingering or self._is_tunnel or self._refusal_owed is not None:
            self._drop(len(data))
            return
        is_ahead = self._current is not None or bool(self._waiting)
        if is_ahead and self._count_pipelined(len(data)):
            return
        if self._unread:
            data = bytes(self._unread) + data
        elif not self.is_relayed and not self._in_head and not self._in_body:
            data = _without_last_tabs(data)
        self._unread = data if len(data) <= limits.SLICE_BYTES_MIN else memoryview(data)
        if self._waits_for_turn:
            return
        end = self._application.turns.end()
        if time.monotonic() < end:
            self.go_on(end)
        else:
            self._go_on_soon()

    def go_on(self, end: float) -> None:
        """Parse what was received until then, one slice at least."""
        self._waits_for_turn = False
        while self._unread and self._may_parse():
            size = self._slice_bytes()
            data, self._unread = self._unread[:size], self._unread[size:]
            self._take(data)
            if self._unread and time.monotonic() >= end:
                self._go_on_soon(again=True)
                break
        self._read_or_pause()

    def _may_parse(self) -> bool:
        return not self._write_paused and not self._body_paused and not self.transport.is_closing()

    def _go_on_soon(self, *, again: bool = False) -> None:
        if not self._waits_for_turn:
            self._waits_for_turn = True
            self._application.turns.wait(self, again=again)
            self._read_or_pause()

    def _slice_bytes(self) -> int:
        """How much to parse before the clock is read again. A slice that ends a body does not reach
        into the next request."""
        left = self._body_length - self._body_bytes if self._in_body else 0
        return max(limits.SLICE_BYTES_MIN, min(left, limits.SLICE_BYTES_MAX))

    def _read_or_pause(self) -> None:
        """Read from the socket unless received bytes or answers wait. A lingering connection reads
        in any case, because it drops what comes."""
        is_held = bool(self._unread) or self._write_paused or self._body_paused
        if self._is_reading == (self._lingering or not is_held) or self.transport.is_closing():
            return
        self._is_reading = not self._is_reading
        if self._is_reading:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _take(self, data: bytes | memoryview) -> None:
        head_before, body_before = self._in_head, self._in_body
        self._has_completed = False
        try:
            if self.is_relayed:
                self._parse_relayed(data)
            else:
                self._parse(data)
        except (httptools.HttpParserError, _RefusedError):
            self._refuse(self._refusal or ApiError("malformed_request"))
        else:
            self._check_progress(len(data), head_before, body_before)
        if self._is_tunnel:
            self._drop_unread()

    def _drop_unread(self) -> None:
        size, self._unread = len(self._unread), b""
        if size:
            self._drop(size)

    def _parse(self, data: bytes | memoryview) -> None:
        """A request to upgrade is served as if it had not asked (RFC 9110, 7.8). The parser stops
        behind the head of such a request, whether a body follows or not."""
        rest = memoryview(data)
        while True:
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as stopped:
                if self._is_tunnel:
                    return
                rest = rest[stopped.args[0] :]
                self._restart_parser()
            else:
                return

    def _restart_parser(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        if self._body_is_cut_off:
            self._body_is_cut_off = False
            length = self._fields.get(b"content-length")
            self._parse_body(None if length is None else int(length[0]))

    def _parse_body(self, length: int | None) -> None:
        """Have a new parser expect a body; of None bytes: in chunks."""
        framing = (
            b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
        )
        self._is_restarting = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
        self._is_restarting = False

    def _parse_relayed(self, data: bytes | memoryview) -> None:
        """A connection of another edge carries one request: a binary head, then its body."""
        if self._relayed is None:
            self._parser.feed_data(data)
            return
        self._relayed += data
        if (found := relayed_head(self._relayed)) is not None:
            self._relayed = None
            head, body = found
            self._take_relayed(head)
            self._parse_body(head.body_bytes)
            self._parser.feed_data(body)

    def _take_relayed(self, head: RelayedHead) -> None:
        self.on_message_begin()
        self._in_head, self._in_body = False, True
        self._body_length = head.body_bytes or 0
        self.relayed_url = head.base_url
        request = Request(head.method, head.target, dict(head.fields))
        exchange = Exchange(Http1Wire(self, True, False), request)
        exchange.is_relayed, exchange.streams = True, head.streams
        self._admit(exchange, head.body_bytes != 0)

    def eof_received(self) -> bool:
        """True: the transport stays open for the remaining answers."""
        is_owed = self._current is not None or bool(self._waiting)
        if is_owed and not self.is_secure and not self.is_relayed and not self._lingering:
            self._is_half_closed = True
            self._abandon_body()
            self._in_head = self._in_body = False
            self._loop.call_later(limits.PROBE_SECONDS, self._probe)
            return True
        # Now, because the transport may still wait for room to write what is queued.
        self._abandon()
        if not self._lingering:
            self._arm(limits.SEND_STALL_SECONDS)
        return False

    def _probe(self) -> None:
        """Find out whether the client has closed both sides: then any byte makes it send a reset.
        A byte that means nothing is an interim response, or a comment in a stream of events."""
        if self.transport.is_closing():
            return
        if self._was_reset():
            self.transport.abort()
            return
        if self._probes % limits.PROBE_LOOKS == 0 and self._current is not None:
            self._current.probe(CONTINUE, SSE_COMMENT)
        self._probes += 1
        self._loop.call_later(limits.PROBE_SECONDS / limits.PROBE_LOOKS, self._probe)

    def _was_reset(self) -> bool:
        """The transport does not look any more after an end of file."""
        sock = self.transport.get_extra_info("socket")
        try:
            return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSED
        except OSError:
            return False  # not TCP: a write finds it

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.descriptor = -1  # closed next, and then perhaps another connection's
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._application.connection_closed(self)
        self._abandon()
        self._abandon_body()
        # Cycles of references, which only a collection would free.
        self._parser, self._body, self._unread = None, None, b""

    def known_key(self) -> bytes:
        """Made once, at the first request that asks for it."""
        if not self.key:
            ends = (self.transport.get_extra_info(end) for end in ("sockname", "peername"))
            self.key = tcp_key(*ends)
        return self.key

    def _abandon(self) -> None:
        for exchange in (self._current, *self._waiting):
            if exchange is not None:
                exchange.client_gone()
        self._current = None
        self._waiting.clear()

    def _abandon_body(self) -> None:
        """Of a request that will never be whole."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()

    def resume_body(self) -> None:
        """From a sink: it can take more."""
        self._body_paused = False
        self._go_on_soon()

    def pause_writing(self) -> None:
        """More than unsent_bytes_max waits in our memory."""
        self._write_paused = True
        if self._lingering or self.transport.is_closing():
            return  # has its deadline, and goes on to drop what comes
        if not self._cut_if_slow():
            self._read_or_pause()
            self._arm(limits.SEND_STALL_SECONDS)

    def _cut_if_slow(self) -> bool:
        """Abort a stream if too much of it waits unread; True if it was aborted. A single event may
        exceed the usual bound, and its client needs time to read it."""
        most = max(self.limits.unsent_bytes_max, limits.UNSENT_WRITES_MAX * self._largest_bytes)
        exchange = self._current
        if exchange is None or not exchange.streaming or self._unsent_bytes() <= most:
            return False
        exchange.slow_reader()
        self.transport.abort()
        return True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._lingering or self.transport.is_closing():
            return
        self._go_on_soon()
        self._deadline = None
        if self._current is None:
            self._rest()

    def _has_room(self) -> bool:
        """False while answers that nobody reads fill our memory. The transport tells it by
        pause_writing, but some only at the end of the loop's turn."""
        return not self._write_paused and self._unsent_bytes() <= self.limits.unsent_bytes_max

    # ---- parser --------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        if self._is_restarting:
            return
        self._begin_message()
        self._in_head = True
        self._started = self._accepted_at if self._is_first else self._loop.time()
        self._is_first = False

    def on_url(self, url: bytes) -> None:
        if self._is_restarting:
            return
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_restarting:
            return
        self._field_count += 1
        self._count_head(len(name) + len(value) + FIELD_OVERHEAD_BYTES)
        if self._field_count > self.limits.header_fields_max:
            self._stop(self._too_large())
        if self._in_body:
            return  # a trailer field says nothing here
        name, value = name.lower(), value.strip(WHITE_SPACE)
        values = self._fields.setdefault(name, [])
        if values and name in SINGLE_FIELDS:
            self._stop(ApiError("malformed_request"))
        values.append(value)

    def on_headers_complete(self) -> None:
        if self._is_restarting:
            return
        self._in_head = False
        self._in_body = True
        version: str = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._stop(ApiError("unsupported_version"))
        fields = {name: b", ".join(values) for name, values in self._fields.items()}
        if version == "1.1" and b"host" not in fields:
            self._stop(ApiError("malformed_request"))
        coding = fields.get(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or version == "1.0"):
            self._stop(ApiError("unsupported_transfer_encoding"))
        keep_alive = version == "1.1" and self._parser.should_keep_alive()
        self._body_length = int(fields.get(b"content-length", b"0"))
        has_body = coding is not None or self._body_length > 0
        request = Request(self._parser.get_method().decode(), self._url, fields)
        if self._parser.should_upgrade():
            self._is_tunnel = request.method == "CONNECT"
            self._body_is_cut_off = has_body and not self._is_tunnel
            keep_alive = keep_alive and not self._is_tunnel
        keep_alive = keep_alive and not self._application.leaving
        exchange = Exchange(Http1Wire(self, version == "1.1", keep_alive), request)
        self._admit(exchange, has_body)

    def _admit(self, exchange: Exchange, has_body: bool) -> None:
        """A head is complete."""
        self._exchange = exchange
        exchange.error_shape = self._application.error_shape(exchange.request.path)
        try:
            most = self.limits.body_bytes_max
            self._body = IncomingBody(exchange, most, self._application.takes_gzip)
            exchange.refusal = self._application.refuse_early(exchange)
        except ApiError as error:
            exchange.refusal = error.with_traceback(None)
        if has_body:
            self._begin_body(exchange)

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body is None:
            return
        try:
            if not self._body.feed(data):
                self._body_paused = True
        except ApiError as error:
            self._stop(error)

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange is None or self._lingering or self._body_is_cut_off:
            return
        self._in_body = False
        self._has_completed = True
        body, self._body = self._body, None
        try:
            if body is not None:
                body.finish()
        except ApiError as error:
            self._stop(error)
        self._exchange = None
        if len(self._waiting) >= limits.PIPELINED_REQUESTS_MAX:
            self._stop(ApiError("malformed_request"))
        self._waiting.append(exchange)
        if self._current is None and not self._wake_is_due:
            if self._has_room():
                self._next()
            else:
                self._wake()

    # ---- limits --------------------------------------------------------------------------------
    def _stop(self, error: ApiError) -> None:
        self._refusal = error
        raise _RefusedError

    def _too_large(self) -> ApiError:
        return too_large(self.limits, 0 if self._in_body else len(self._url))

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.limits.header_bytes_max:
            self._stop(self._too_large())

    def _begin_body(self, exchange: Exchange) -> None:
        """A body follows the head. Refused requests are answered now, before it is read."""
        if exchange.refusal is not None:
            self._stop(exchange.refusal)
        expected = exchange.request.fields.get(b"expect", b"").lower().split(b",")
        is_next = self._current is None and not self._waiting and not self._lingering
        if is_next and exchange.chunked and b"100-continue" in map(bytes.strip, expected):
            self.transport.write(CONTINUE)

    def _check_progress(self, size: int, head_before: bool, body_before: bool) -> None:
        """After each read: what the parser holds back is counted, and the deadline set anew."""
        if self._in_head:
            # A field that is not complete is only seen as bytes that went in. How many of them
            # were of requests before this one is not known.
            if not self._has_completed:
                self._unparsed_bytes += size
            if self._unparsed_bytes > self.limits.header_bytes_max:
                self._refuse(self._too_large())
                return
        elif self._in_body and not self._has_completed:
            self._body_wire_bytes += size if body_before else max(0, size - self._head_bytes)
            overhead = self._body_wire_bytes - self._body_bytes
            if (
                self._body_wire_bytes > limits.CHUNK_OVERHEAD_BYTES_MIN
                and overhead > limits.CHUNK_OVERHEAD_SHARE_MAX * self._body_wire_bytes
            ):
                self._refuse(ApiError("chunk_overhead"))
                return
        if self._current is not None or self._lingering or self._write_paused:
            return
        if self._in_head and not head_before:
            self._arm_at(self._started + self.limits.header_seconds)
        elif self._in_body and not body_before:
            self._arm_at(self._started + self.limits.body_seconds)

    def _count_pipelined(self, size: int) -> bool:
        """True if more was sent ahead than a client that awaits an answer may send."""
        self._pipelined_bytes += size
        if self._pipelined_bytes <= limits.PIPELINED_BYTES_MAX:
            return False
        self.transport.abort()
        return True

    # ---- deadlines -----------------------------------------------------------------------------
    def _arm(self, seconds: float) -> None:
        self._arm_at(self._loop.time() + seconds)

    def _arm_at(self, deadline: float) -> None:
        """One timer per connection. It is moved forward lazily: when it fires too early."""
        self._deadline = deadline
        if self._timer is not None:
            if self._timer.when() <= deadline:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        deadline = self._deadline
        if deadline is None:
            return
        now = self._loop.time()
        if now < deadline:
            self._arm_at(deadline)
        elif self._lingering and now < self._unsent_deadline and self._unsent_bytes():
            self._arm_at(min(now + limits.LINGER_SECONDS, self._unsent_deadline))
        elif self._lingering or self._write_paused or self.transport.is_closing():
            self.transport.abort()
        elif self._in_head:
            self._refuse(ApiError("headers_too_slow"))
        elif self._in_body and self._current is None:
            self._refuse(ApiError("body_too_slow"))
        elif self._current is None:
            self.transport.abort()

    def _unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    # ---- answers -------------------------------------------------------------------------------
    def _next(self) -> None:
        """Begin to answer the request that has waited longest."""
        exchange = self._waiting.popleft()
        self._current = exchange
        self._deadline = None
        self._largest_bytes = 0
        self._application.handle(exchange)

    def send(self, data: bytes) -> bool:
        """Write at once what the kernel takes, past a transport that holds nothing; the transport
        gets the rest. True: there is no rest."""
        transport = self.transport
        if transport.is_closing():
            return False  # nobody reads it, and one that is closed takes nothing
        if self.descriptor >= 0 and not self._unsent_bytes():
            # An error is the transport's to report.
            with contextlib.suppress(OSError):
                data = data[os.write(self.descriptor, data) :]
            if not data:
                return True
        self._largest_bytes = max(self._largest_bytes, len(data))
        if not self._write_paused or not self._cut_if_slow():
            transport.write(data)
        return False

    def answered(self, exchange: Exchange, keep_alive: bool) -> None:
        """The last byte of an answer was written."""
        if self._current is not exchange:
            return
        self._current = None
        self._pipelined_bytes = 0
        if not keep_alive or self._application.draining:
            self._linger(read_all=True)
        else:
            self._rest()

    def _rest(self) -> None:
        """No answer is under way: the next one, or the deadline of what is awaited."""
        if self._waiting:
            self._wake()
        elif self._refusal_owed is not None:
            self._refuse(self._refusal_owed)
        elif self._write_paused:
            return  # the deadline is that of what the client has not read
        elif self._is_half_closed:
            self._linger(read_all=True)
        elif self._in_head:
            self._arm(self.limits.header_seconds)
        elif self._in_body:
            self._arm(self.limits.body_seconds)
        else:
            self._arm(self.limits.keep_alive_seconds)

    def _wake(self) -> None:
        """Begin the next answer, not from inside the handler of the one before."""
        if not self._wake_is_due:
            self._wake_is_due = True
            self._loop.call_soon(self._next_waiting)

    def _next_waiting(self) -> None:
        self._wake_is_due = False
        if self._current is not None or not self._waiting or self._lingering:
            return
        if self.transport.is_closing() or self._write_paused:
            return  # resume_writing comes back to it
        if self._has_room():
            self._next()
        else:
            self._wake()  # pause_writing comes before the next turn ends

    def close(self) -> None:
        """What was written still goes out."""
        self.transport.close()

    def close_if_idle(self) -> None:
        """For draining: nothing is under way here."""
        if self._lingering or self.transport.is_closing():
            return
        if self._current is None and not self._waiting and not self._in_body:
            self.transport.close()
            self._arm(limits.SEND_STALL_SECONDS)

    def go_away(self) -> None:
        """The next answer says it."""

    def _refuse(self, error: ApiError) -> None:
        """Answer an error whatever state the request is in, and end the connection."""
        if self._lingering or self.transport.is_closing():
            return
        if self._current is not None or self._waiting:
            self._refusal_owed = error  # nothing can be said in between
            self._drop_unread()
            return
        exchange = self._exchange
        if exchange is None:
            exchange = Exchange(Http1Wire(self, True, False), Request("GET", b"", {}))
        exchange.wire.last()
        # Not the current one: `answered` would take it for an answer after which all is read.
        exchange.fail(error)
        self._application.refused(exchange)
        self._linger()

    def _linger(self, read_all: bool = False) -> None:
        """Close our side. The client's is read and dropped until it closes, or a bound is met: a
        close with bytes unread would be a reset, which can take the answer from the client. TLS
        has no half of a close: there a request that was read to its end is closed whole."""
        if self._lingering or self.transport.is_closing():
            return
        self._lingering = True
        self._abandon_body()
        self._in_head = self._in_body = False
        self._body = None
        self._abandon()
        self._drop_unread()
        self._read_or_pause()
        if self._is_half_closed:
            self.transport.close()
        elif self.transport.can_write_eof():
            self.transport.write_eof()
        elif read_all:
            self.transport.close()
        else:
            self._close_when_silent()
        self._unsent_deadline = self._loop.time() + limits.SEND_STALL_SECONDS
        self._arm(limits.LINGER_SECONDS)

    def _close_when_silent(self, dropped_bytes: int = -1) -> None:
        """TLS has no half-close, so the client sees the end only when the connection is closed.
        Close it once the client is silent. The deadline of `_linger` still holds."""
        if self._dropped_bytes == dropped_bytes:
            self.transport.close()
        elif not self.transport.is_closing():
            seconds = limits.LINGER_SILENCE_SECONDS
            self._loop.call_later(seconds, self._close_when_silent, self._dropped_bytes)

    def _drop(self, size: int) -> None:
        self._dropped_bytes += size
        if self._dropped_bytes > limits.LINGER_BYTES_MAX:
            self.transport.abort()
