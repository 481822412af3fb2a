"""A small HTTP/3 server on aioquic for tests of the client: it answers as it is told, counts what
it has got, and can be as wrong as a test wants it.

defines: Peer, peer
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer, serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import HandshakeCompleted, QuicEvent, StopSendingReceived, StreamReset
from aioquic.tls import SessionTicket

from sublimate.cli.certificate import own_certificate
from sublimate.edge.tls import fingerprint

Headers = dict[str, str]
Writer = Callable[["Connection", int, Headers, bytes], None]


@dataclass
class Peer:
    """What the server has seen."""

    port: int = 0
    pin_sha256: str = ""
    requests: list[str] = field(default_factory=list)
    early: int = 0
    """Requests that came before the handshake was complete."""
    handshakes: int = 0
    early_handshakes: int = 0
    cancelled: set[int] = field(default_factory=set)
    tickets: dict[bytes, SessionTicket] = field(default_factory=dict)
    connections: "list[Connection]" = field(default_factory=list)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.SelectorEventLoop)

    def call(self, function: Callable[[], object]) -> None:
        async def run() -> None:
            function()

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(5)


class Connection(QuicConnectionProtocol):
    """One client. A request is given to the test's writer when it is whole."""

    seen: Peer
    write: Writer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.http = H3Connection(self._quic)
        self.open: dict[int, tuple[Headers, bytearray]] = {}
        self.is_established = False
        self.seen.connections.append(self)

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, HandshakeCompleted):
            self.is_established = True
            self.seen.handshakes += 1
            self.seen.early_handshakes += event.early_data_accepted
        elif isinstance(event, StreamReset | StopSendingReceived):
            self.seen.cancelled.add(event.stream_id)
        for found in self.http.handle_event(event):
            if isinstance(found, HeadersReceived):
                named = {name.decode(): value.decode() for name, value in found.headers}
                self.open[found.stream_id] = named, bytearray()
            elif isinstance(found, DataReceived):
                self.open[found.stream_id][1].extend(found.data)
            if isinstance(found, HeadersReceived | DataReceived) and found.stream_ended:
                headers, body = self.open.pop(found.stream_id)
                self.seen.requests.append(f"{headers[':method']} {headers[':path']}")
                self.seen.early += not self.is_established
                self.write(self, found.stream_id, headers, bytes(body))
                self.transmit()

    def head(self, stream: int, status: int, *fields: tuple[str, str], end: bool = False) -> None:
        named = [(":status", str(status)), *fields]
        self.http.send_headers(stream, [(n.encode(), v.encode()) for n, v in named], end)

    def data(self, stream: int, data: bytes, end: bool = False) -> None:
        self.http.send_data(stream, data, end)
        self.transmit()


def echo(connection: Connection, stream: int, headers: Headers, body: bytes) -> None:
    """200, and the body back."""
    connection.head(stream, 200, ("content-type", "text/plain"), ("x-layer", "test"))
    connection.data(stream, body or b"-", end=True)


@contextlib.contextmanager
def peer(folder: Path, write: Writer = echo) -> Iterator[Peer]:
    """A server for the time of a with block, in a thread of its own."""
    pem, key_pem = own_certificate(folder)
    seen = Peer(pin_sha256=fingerprint(str(pem)))
    own = type("Connection", (Connection,), {"seen": seen, "write": staticmethod(write)})
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, is_client=False)
    configuration.load_cert_chain(pem, key_pem)
    running = threading.Thread(target=seen.loop.run_forever, name="peer")
    running.start()

    def keep(ticket: SessionTicket) -> None:
        seen.tickets[ticket.ticket] = ticket

    async def begin() -> QuicServer:
        return await serve(
            "127.0.0.1",
            0,
            configuration=configuration,
            create_protocol=own,
            session_ticket_handler=keep,
            session_ticket_fetcher=lambda label: seen.tickets.pop(label, None),
        )

    server = asyncio.run_coroutine_threadsafe(begin(), seen.loop).result(5)
    seen.port = server._transport.get_extra_info("sockname")[1]
    try:
        yield seen
    finally:
        seen.call(server.close)
        seen.loop.call_soon_threadsafe(seen.loop.stop)
        running.join()
        seen.loop.close()
