"""One QUIC connection to a server, with HTTP/3 on it. On the network's loop only.

defines: QuicStream, QuicSession, Trust, connect
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import certifi
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, ErrorCode, FrameType, H3Connection
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import NetworkAddress, QuicConnection
from aioquic.tls import Epoch, SessionTicket
from cryptography.hazmat.primitives.serialization import Encoding

from .calls import Call, Field
from .choice import Origin
from .library import LEAVING, CarrierError
from .pipe import Pipe

IDLE_SECONDS = 60.0
TICK_SECONDS = 1.0
"""Between looks at a connection on which an answer is awaited. Turns are counted and not seconds:
who was stopped for a while, or lives on a machine that was, has not waited."""
PING_TICKS = 2
"""Without a packet, then the server is asked for one: a long prompt is silence."""
SILENT_TICKS = 6
"""Without a packet, then the connection is given up: a server acknowledges within milliseconds, and
lost packets go again several times before."""
RESET_BYTES_MIN, RESET_TOKEN_BYTES = 21, 16
"""Of a stateless reset (RFC 9000, section 10.3), which ends in its token."""
TICKETS_MAX = 8
DATAGRAM_BYTES_MAX = 65536
"""Announced only: some servers refuse HTTP/3 without it."""
LEFT = "The client was closed."
WRONG_CERTIFICATE = "wrong certificate"
CERTIFICATE_ERRORS = frozenset(0x100 + alert for alert in (42, 43, 44, 45, 46, 48))
"""TLS's alerts about certificates, as QUIC numbers them: bad, unsupported, revoked, expired,
unknown, of an unknown authority."""
FINAL_STATUS_MIN = 200
"""Statuses below are no answer yet."""


@dataclass(frozen=True, slots=True)
class Trust:
    """How a server is known: by its certificate's SHA-256, else by authorities (PEM)."""

    pin_sha256: str = ""
    authorities: bytes = b""
    verify: bool = True

    def roots(self) -> bytes:
        """What a server's certificate follows from, for a library that needs to be told (PEM)."""
        return self.authorities or Path(certifi.where()).read_bytes()


class QuicStream:
    """One request and its answer."""

    def __init__(self, session: QuicSession, number: int) -> None:
        loop = asyncio.get_running_loop()
        self.number = number
        self.head: asyncio.Future[tuple[int, list[Field]]] = loop.create_future()
        self.trailers: list[Field] = []
        """Complete when the body has ended."""
        self.was_early = False
        """Written before the handshake was complete."""
        self.body = Pipe(
            lambda hold: session.on_loop(lambda: session.hold(number, hold)),
            lambda: session.on_loop(lambda: session.cancel(number)),
        )

    def fail(self, error: CarrierError) -> None:
        if not self.head.done():
            self.head.set_exception(error)
            self.head.exception()  # heard, should nobody wait
        self.body.end(error)

    def receive_head(self, headers: list[Field]) -> None:
        fields = [(name, value) for name, value in headers if not name.startswith(":")]
        if self.head.done():
            self.trailers = fields
            return
        status = dict(headers).get(":status", "")
        if not status.isascii() or not status.isdigit():
            self.fail(CarrierError("RemoteProtocolError", "The answer has no status."))
        elif int(status) >= FINAL_STATUS_MIN:
            self.head.set_result((int(status), fields))


class _Connection(QuicConnection):
    """Widens a stream's window only while somebody reads it, and says what it has heard."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.held: set[int] = set()

    def _write_stream_limits(self, builder: Any, space: Any, stream: Any) -> None:
        if stream.stream_id not in self.held:
            super()._write_stream_limits(builder, space, stream)

    def newest_packet(self) -> int:
        """The number of the last that could be read after the handshake; -1: none."""
        space = self._spaces.get(Epoch.ONE_RTT)
        return -1 if space is None else int(space.largest_received_packet)


class _Messages(H3Connection):
    """Hears that the server begins nothing more (RFC 9114, section 5.2), which the library does
    not."""

    is_leaving = False

    def _handle_control_frame(self, frame_type: int, frame_data: bytes) -> None:
        self.is_leaving |= frame_type == FrameType.GOAWAY
        super()._handle_control_frame(frame_type, frame_data)


class QuicSession(QuicConnectionProtocol):
    """A connection, from its first packet on."""

    _quic: _Connection

    def __init__(
        self, quic: _Connection, pin_sha256: str, keep: Callable[[SessionTicket], None]
    ) -> None:
        """keep: takes tickets of a server that was found to be the one that it should be."""
        super().__init__(quic)
        self._keep = keep
        self._tickets: list[SessionTicket] = []
        """That came before that was found."""
        self._http = _Messages(quic)
        self._pin_sha256 = pin_sha256
        self._streams: dict[int, QuicStream] = {}
        self._begun_seconds = self._loop.time()
        self._ticking: asyncio.TimerHandle | None = None
        self._silent_ticks = 0
        """Since the last packet that was the server's."""
        self._packets: int = -1
        """The number of the newest of these."""
        self.established: asyncio.Future[None] = self._loop.create_future()
        self.released: asyncio.Future[None] = self._loop.create_future()
        """Done when the socket is closed."""
        self.ended: CarrierError | None = None
        self.early_data_accepted = False
        self.resumed = False
        self.handshake_milliseconds = 0.0

    def on_loop(self, function: Callable[[], object]) -> None:
        """Call it here soon, from any thread; nothing once the loop has ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    @property
    def is_open(self) -> bool:
        """For further requests."""
        return self.ended is None and not self._http.is_leaving

    def receive_ticket(self, ticket: SessionTicket) -> None:
        """A session that is resumed shows no certificate, so a ticket of a server whose certificate
        was not seen to be right would pass for one of the server itself."""
        if self.established.done() and self.ended is None:
            self._keep(ticket)
        else:
            self._tickets.append(ticket)

    # ---- requests ------------------------------------------------------------------------------
    def begin(self) -> None:
        """Send the first packet, without a request in it. Raises CarrierError."""
        if self.ended is not None:
            raise self.ended
        self.transmit()

    def open(
        self, method: str, target: str, call: Call, headers: list[Field], body: bytes
    ) -> QuicStream:
        """Send a request. Raises CarrierError if the connection has ended."""
        if self.ended is not None:
            raise self.ended
        number = self._quic.get_next_available_stream_id()
        stream = self._streams[number] = QuicStream(self, number)
        stream.was_early = not self.established.done()
        head = [
            (":method", method),
            (":scheme", "https"),
            (":authority", call.authority),
            (":path", target),
            *headers,
        ]
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in head]
        self._http.send_headers(number, encoded, end_stream=not body)
        if body:
            self._http.send_data(number, body, end_stream=True)
        self.transmit()
        if self._ticking is None:
            self._silent_ticks = PING_TICKS  # the request asks for a packet as a ping does
            self._ticking = self._loop.call_later(TICK_SECONDS, self._tick)
        return stream

    def cancel(self, number: int, text: str = "The request was cancelled.") -> None:
        """Its reader has gone: the server stops working for it."""
        stream = self._streams.pop(number, None)
        self._quic.held.discard(number)
        if stream is None or self.ended is not None:
            return
        stream.fail(CarrierError("ReadError", text))
        self._quic.reset_stream(number, ErrorCode.H3_REQUEST_CANCELLED)
        self._quic.stop_stream(number, ErrorCode.H3_REQUEST_CANCELLED)
        self.transmit()

    def hold(self, number: int, hold: bool) -> None:
        """Widen the stream's window no more, or again."""
        if hold and number in self._streams:
            self._quic.held.add(number)
        elif not hold and number in self._quic.held:
            self._quic.held.discard(number)
            self.transmit()

    def _tick(self) -> None:
        """While answers are awaited. A peer that says nothing, not even that it has a packet, is
        gone, or another has its address; waiting for the idle time would keep the caller."""
        self._ticking = None
        if not self._streams or self.ended is not None:
            return
        self._silent_ticks += 1
        if self._silent_ticks >= SILENT_TICKS and self.established.done():
            self.end("The server is silent: the connection is given up.")
            return
        if self._silent_ticks >= PING_TICKS:
            self._ping()
        self._ticking = self._loop.call_later(TICK_SECONDS, self._tick)

    def _ping(self) -> None:
        if self.established.done():
            self._quic.send_ping(0)
            self.transmit()

    # ---- events --------------------------------------------------------------------------------
    def datagram_received(self, data: bytes | str, addr: NetworkAddress) -> None:
        if self._is_reset(data):
            self.end("The server does not know the connection any more.")
            return
        super().datagram_received(data, addr)
        newest = self._quic.newest_packet()
        if newest != self._packets:
            self._packets, self._silent_ticks = newest, 0
        # The library tells of a close only after a time of draining, and readers wait for it.
        closed = self._quic._close_event  # pyright: ignore[reportPrivateUsage]
        if closed is not None:
            self._closed_by_peer(closed)

    def _is_reset(self, data: bytes | str) -> bool:
        """Said by a server that was begun anew, of a connection of the one before it. The library
        does not look for it."""
        token = self._quic._peer_cid.stateless_reset_token  # pyright: ignore[reportPrivateUsage]
        if isinstance(data, str) or len(data) < RESET_BYTES_MIN or len(token) != RESET_TOKEN_BYTES:
            return False
        return hmac.compare_digest(data[-RESET_TOKEN_BYTES:], token)

    def _closed_by_peer(self, event: events.ConnectionTerminated) -> None:
        reason = event.reason_phrase or f"error {event.error_code:#x}"
        is_trust = event.error_code in CERTIFICATE_ERRORS
        told = WRONG_CERTIFICATE if is_trust else "quic refused"
        self.end(f"The QUIC connection was closed: {reason}.", told)

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.HandshakeCompleted):
            self._handshake_completed(event)
        elif isinstance(event, events.ConnectionTerminated):
            self._closed_by_peer(event)
        elif isinstance(event, events.StreamReset):
            if (stream := self._streams.pop(event.stream_id, None)) is not None:
                self._cut_off(stream, event.error_code)
        for found in self._http.handle_event(event):
            self._http_event(found)

    def _cut_off(self, stream: QuicStream, error_code: int) -> None:
        if error_code == ErrorCode.H3_REQUEST_REJECTED and not stream.head.done():
            self._http.is_leaving = True  # or as good as
            text = "The server begins nothing more on the connection."
            stream.fail(CarrierError("ConnectError", text, unsent=True, reason=LEAVING))
        else:
            stream.fail(CarrierError("RemoteProtocolError", "The server cut the answer off."))

    def _handshake_completed(self, event: events.HandshakeCompleted) -> None:
        certificate = self._quic.tls._peer_certificate  # pyright: ignore[reportPrivateUsage]
        if self._pin_sha256 and not event.session_resumed:
            der = b"" if certificate is None else certificate.public_bytes(Encoding.DER)
            if hashlib.sha256(der).hexdigest() != self._pin_sha256:
                self.close(error_code=ErrorCode.H3_GENERAL_PROTOCOL_ERROR)
                self.end("The server has another certificate than it says.", WRONG_CERTIFICATE)
                return
        self._silent_ticks = 0
        self.early_data_accepted = event.early_data_accepted
        self.resumed = event.session_resumed
        self.handshake_milliseconds = (self._loop.time() - self._begun_seconds) * 1e3
        if self.established.done():
            return
        self.established.set_result(None)
        tickets, self._tickets = self._tickets, []
        for ticket in tickets:
            self._keep(ticket)

    def _http_event(self, event: H3Event) -> None:
        if not isinstance(event, HeadersReceived | DataReceived):
            return
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        if isinstance(event, HeadersReceived):
            named = [(name.decode(), value.decode("latin-1")) for name, value in event.headers]
            stream.receive_head(named)
        else:
            stream.body.feed(event.data)
        if event.stream_ended:
            del self._streams[event.stream_id]
            self._quic.held.discard(event.stream_id)
            self._finish(stream)

    def _finish(self, stream: QuicStream) -> None:
        if stream.head.done():
            stream.body.end()
        else:
            stream.fail(CarrierError("RemoteProtocolError", "The answer has no head."))

    # ---- the end -------------------------------------------------------------------------------
    def error_received(self, exc: Exception) -> None:
        """The socket's, such as a port that nobody listens on. Who had an answer from there before
        asks once more, since anybody can say so."""
        if not self.established.done():
            self.end("Nobody listens on the UDP port.", "udp port closed")
        elif self._ticking is not None and self._silent_ticks < SILENT_TICKS - 1:
            self._silent_ticks = SILENT_TICKS - 1
            self._ping()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end("The UDP socket was closed.")
        if not self.released.done():
            self.released.set_result(None)

    def end(self, text: str, reason: str = "") -> None:
        """All that is open has failed; reason: for reports, if it never was open. Idempotent."""
        if self.ended is not None:
            return
        unanswered = not self.established.done()
        self.ended = CarrierError("ConnectError", text, unsent=True, reason=reason)
        if unanswered:
            self.established.set_exception(self.ended)
            self.established.exception()  # heard, should nobody wait
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            lost = not stream.head.done()
            failure = "ReadError" if lost else "RemoteProtocolError"
            stream.fail(CarrierError(failure, text, lost=lost))
        for timer in (self._ticking, self._timer, self._transmit_task):
            if timer is not None:
                timer.cancel()
        if self._transport is not None:
            self._transport.close()

    def transmit(self) -> None:
        """Nothing once it has ended: what then remains is the peer's to forget."""
        if self.ended is None:
            super().transmit()

    def leave(self) -> None:
        """Close in order. What is under way is cancelled first: a connection that ends is no
        cancel, and the server would wait for its client to come back."""
        for number in list(self._streams):
            self.cancel(number, LEFT)
        if self.ended is None:
            self.close(error_code=ErrorCode.H3_NO_ERROR)
            self.end(LEFT)


async def connect(origin: Origin, port: int, trust: Trust, early: bool) -> QuicSession:
    """Begin a connection: nothing is sent yet, so that a request may go with its first packet
    (early, if there is a ticket); `begin` or `open` sends. Raises CarrierError."""
    loop = asyncio.get_running_loop()
    ticket = origin.take_ticket(trust.pin_sha256) if early else None
    configuration = QuicConfiguration(
        alpn_protocols=H3_ALPN,
        is_client=True,
        idle_timeout=IDLE_SECONDS,
        max_datagram_frame_size=DATAGRAM_BYTES_MAX,
        server_name=origin.host,
        session_ticket=ticket if isinstance(ticket, SessionTicket) else None,
        verify_mode=ssl.CERT_NONE if trust.pin_sha256 or not trust.verify else None,
    )
    configuration.load_verify_locations(cadata=trust.authorities or None)

    def keep(ticket: SessionTicket) -> None:
        origin.put_ticket(ticket, trust.pin_sha256, TICKETS_MAX)

    def receive(ticket: SessionTicket) -> None:
        session.receive_ticket(ticket)

    quic = _Connection(configuration=configuration, session_ticket_handler=receive)
    session = QuicSession(quic, trust.pin_sha256, keep)
    try:
        transport, _ = await loop.create_datagram_endpoint(
            lambda: session, remote_addr=(origin.host, port)
        )
    except (OSError, socket.gaierror):
        text = f"{origin.host} has no address that can be reached."
        raise CarrierError("ConnectError", text, unsent=True, reason="no address") from None
    session.connect(transport.get_extra_info("peername"), transmit=False)
    return session
