"""HTTP/3 for `sublimate wire-compare`, by aioquic: a new connection sends its request with the
first flight (0-RTT) where a ticket of the one before allows it. A call of gRPC waits for the
handshake, since the server takes none that costs something before.

defines: Http3
"""

from __future__ import annotations

import asyncio
import importlib
import secrets
import ssl
import time
from typing import Any

from ..errors import PeerError
from .wire_grpc import METHOD, request_message
from .wire_order import FRAMES, MESSAGES, TIMEOUT_SECONDS, Counts, Order, Timing, timed

NAME = "localhost"
KEY_BYTES = 12
LENGTH_BYTES = 4
CALL_FIELDS = [(b"content-type", b"application/grpc+proto"), (b"te", b"trailers")]
END_SECONDS = 0.02
TOO_EARLY_STATUS = 425
ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - where a client sends from


class Http3:
    """One connection at a time, on an event loop of its own."""

    def __init__(self, order: Order, *, as_call: bool = False) -> None:
        """as_call: requests are gRPC's."""
        self.counts = Counts()
        self.as_call = as_call
        self._order = order
        self._ticket: Any = None
        self._protocol: Any = None
        self._sends_early = not as_call
        self._runner = asyncio.Runner()
        try:
            self._configuration: Any = importlib.import_module("aioquic.quic.configuration")
            self._h3_events: Any = importlib.import_module("aioquic.h3.events")
        except ImportError:
            raise PeerError("aioquic is not installed.") from None

    def ask(self, body: bytes) -> Timing:
        return self._runner.run(self._ask(body))

    def hang_up(self) -> None:
        if self._protocol is not None:
            self._runner.run(self._close())

    async def _close(self) -> None:
        protocol, self._protocol = self._protocol, None
        protocol.close()
        await asyncio.sleep(END_SECONDS)  # the close frame goes out; nobody waits for its echo
        protocol._transport.close()

    async def _ask(self, body: bytes) -> Timing:
        begun = time.perf_counter()
        is_first = self._protocol is None
        protocol = self._protocol or await self._connect()
        reply = await self._answer(protocol, body)
        if reply.status == TOO_EARLY_STATUS:
            # This server wants a whole handshake before such a request; and so it is from now on.
            self._sends_early = False
            await protocol.handshaken
            reply = await self._answer(protocol, body)
        elif is_first and self._sends_early:
            self.counts.early += protocol.took_early
        return timed(begun, reply.status, reply.first_byte_at, reply.body_bytes)

    async def _answer(self, protocol: Any, body: bytes) -> _Reply:
        reply = _Reply(self._h3_events)
        protocol.replies[protocol.begin(body)] = reply
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await reply.ended
        return reply

    async def _connect(self) -> Any:
        configuration = self._configuration.QuicConfiguration(
            is_client=True,
            alpn_protocols=["h3"],
            server_name=NAME,
            max_datagram_frame_size=65536,
            session_ticket=self._ticket,
            verify_mode=ssl.CERT_REQUIRED,
        )
        configuration.load_verify_locations(self._order.certificate)
        self.counts.handshakes += 1
        loop = asyncio.get_running_loop()

        protocol_class = _protocol(self, self._order)
        quic = importlib.import_module("aioquic.quic.connection")
        connection = quic.QuicConnection(
            configuration=configuration, session_ticket_handler=self._keep
        )
        place = (self._order.address, self._order.ports["h3"])
        _, protocol = await loop.create_datagram_endpoint(
            lambda: protocol_class(connection), local_addr=(ANY_ADDRESS, 0)
        )
        early = self._ticket is not None and self._sends_early
        protocol.connect(place, transmit=not early)
        self._protocol = protocol
        if not early:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await protocol.handshaken
        return protocol

    def _keep(self, ticket: Any) -> None:
        self._ticket = ticket


def _protocol(outer: Http3, order: Order) -> Any:
    """A protocol of aioquic's that tells replies apart."""
    base: Any = importlib.import_module("aioquic.asyncio").QuicConnectionProtocol
    h3: Any = importlib.import_module("aioquic.h3.connection")
    events: Any = importlib.import_module("aioquic.quic.events")

    class Protocol(base):
        """Tells replies apart and counts how the handshake went."""

        def __init__(self, connection: Any) -> None:
            super().__init__(connection)  # pyright: ignore[reportUnknownMemberType]
            self.replies: dict[int, _Reply] = {}
            self.took_early = False
            # aioquic's own flag is set for those alone who wait for it beforehand.
            self.handshaken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.h3 = h3.H3Connection(connection)

        def begin(self, body: bytes) -> int:
            stream = int(self._quic.get_next_available_stream_id())
            place = f"{NAME}:{order.ports['h3']}".encode()
            head = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", place)]
            if outer.as_call:
                message = request_message(body)
                body = b"\0" + len(message).to_bytes(LENGTH_BYTES, "big") + message
                more = [(b":path", METHOD.encode()), *CALL_FIELDS]
            else:
                more = [
                    (b":path", MESSAGES.encode()),
                    (b"accept", FRAMES.encode()),
                    (b"content-type", b"application/json"),
                    (b"content-length", str(len(body)).encode()),
                    # A request that may be sent early may be sent twice: it carries its name.
                    (b"idempotency-key", secrets.token_hex(KEY_BYTES).encode()),
                ]
            self.h3.send_headers(stream, [*head, *more])
            self.h3.send_data(stream, body, True)
            self.transmit()
            return stream

        def quic_event_received(self, event: Any) -> None:
            if isinstance(event, events.HandshakeCompleted):
                self.handshaken.set_result(None)
                outer.counts.resumed += bool(event.session_resumed)
                self.took_early = bool(event.early_data_accepted)
            for said in self.h3.handle_event(event):
                reply = self.replies.get(said.stream_id)
                if reply is not None:
                    reply.take(said)
            if isinstance(event, events.ConnectionTerminated):
                for reply in self.replies.values():
                    reply.break_off()

    return Protocol


class _Reply:
    """What came on one stream."""

    def __init__(self, events: Any) -> None:
        self._events = events
        self.status = 0
        self.body_bytes = 0
        self.first_byte_at = 0.0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, said: Any) -> None:
        if isinstance(said, self._events.HeadersReceived):
            fields = dict(said.headers)
            self.status = int(fields.get(b":status", b"0")) or self.status
        elif isinstance(said, self._events.DataReceived):
            if said.data and not self.body_bytes:
                self.first_byte_at = time.perf_counter()
            self.body_bytes += len(said.data)
        if said.stream_ended and not self.ended.done():
            self.ended.set_result(None)

    def break_off(self) -> None:
        if not self.ended.done():
            self.ended.set_exception(PeerError("The connection ended in an answer."))
