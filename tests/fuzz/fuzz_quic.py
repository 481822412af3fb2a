"""Fuzz target of the HTTP/3 adapter: datagrams that were broken on their way, bytes on request and
control streams that are no HTTP/3, sealed as a client would seal them, and first datagrams whose
label the client invents as long or short as it likes.

Nothing of it may raise past the connection, which goes on, or ends with every request of it told
that its client is gone.

    PYTHONPATH=tests python tests/fuzz/fuzz_quic.py --seconds 60     # tests run it for a moment

defines: one_connection, stream_bytes, one_stream, first_datagrams, run
"""

import asyncio
import random
import socket
import ssl
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from fuzz.fuzz_request import Application, mutate
from fuzz.seeds import main
from sublimate.cli.certificate import own_certificate
from sublimate.edge.exchange import Exchange
from sublimate.edge.quic import connection as adapter
from sublimate.edge.quic.listener import QuicListener
from sublimate.edge.quic.transport import Transport, configuration_of

ADDRESS = ("127.0.0.1", 4433)
TURNS = 12
LABEL_BYTES, LABEL_BYTES_MAX = 8, 20
HEAD = bytes.fromhex("0000d1d7508cf1e3c2e5f23a6ba0ab90f4ffc1")
"""GET https with an authority, as QPACK has it without its table."""
FRAMES = (b"\x01" + bytes([len(HEAD)]) + HEAD, b"\x00\x05hello", b"\x00\x04\x00", b"\x04\x00")
WORDS = (b"\x01", b"\x40\x41", b"\x07\x01\x00", b"\x21\xff", b"\xc0" * 8, *FRAMES)


class Labels:
    """Stands where the kernel's table is, which has no shorter ones."""

    def label_given(self, label: bytes) -> None:
        if len(label) < LABEL_BYTES:
            raise ValueError("no label")

    def label_retired(self, label: bytes) -> None: ...


class Answers(Application):
    """Says yes to everything, and counts what it has begun and what has ended."""

    def __init__(self) -> None:
        self.left: set[Exchange] = set()
        self.kernel = Labels()

    def is_replay_safe(self, exchange: Exchange) -> bool:
        return True

    def handshake_done(self, seconds: float, *, resumed: bool, early: bool) -> None: ...

    def handle(self, exchange: Exchange) -> None:
        self.left.add(exchange)
        exchange.on_gone = lambda: self.left.discard(exchange)
        if exchange.request.path != "/wait":
            self.left.discard(exchange)
            super().handle(exchange)


class Line:
    """Stands where the listener is: what the server sends is kept."""

    base_url = "https://127.0.0.1:1"

    def __init__(self, application: Answers, loop: asyncio.AbstractEventLoop) -> None:
        self.application, self.loop = application, loop
        self.sent: list[bytes] = []
        self.is_closed = False

    def send_flight(self, flight: list[tuple[bytes, Any]]) -> None:
        self.sent += [data for data, _ in flight]

    def know(self, label: bytes, connection: Any) -> None: ...

    def forget(self, label: bytes) -> None: ...

    def handshake_done(self, connection: Any, event: Any) -> None: ...

    def closed(self, connection: Any) -> None:
        self.is_closed = True


@cache
def pair() -> tuple[str, str]:
    certificate, key = own_certificate(Path(tempfile.mkdtemp(prefix="sublimate-fuzz-")))
    return str(certificate), str(key)


async def one_connection(draw: random.Random) -> str:
    """How it ended."""
    settings = QuicConfiguration(alpn_protocols=["h3"], verify_mode=ssl.CERT_NONE)
    client = QuicConnection(configuration=settings)
    client.connect(ADDRESS, now=time.monotonic())
    application = Answers()
    line = Line(application, asyncio.get_running_loop())
    transport = Transport(
        b"secret",
        configuration=configuration_of(*pair()),
        original_destination_connection_id=client.original_destination_connection_id,
    )
    server = adapter.Http3Connection(line, transport)  # type: ignore[arg-type]
    for turn in range(TURNS):
        for data, _ in client.datagrams_to_send(time.monotonic()):
            is_broken = draw.random() < 0.1
            server.datagram_received(mutate(draw, data, WORDS) if is_broken else data, ADDRESS)
        await asyncio.sleep(0)
        sent, line.sent = line.sent, []
        for data in sent:
            client.receive_datagram(data, ADDRESS, time.monotonic())
        while client.next_event() is not None:
            pass
        if turn > 1 and not transport.is_closing:
            stream_id = draw.choice((0, 4, 8, 2, 6))
            data = stream_bytes(draw)
            try:
                client.send_stream_data(stream_id, data, draw.random() < 0.2)
            except (RuntimeError, ValueError):
                client.send_ping(turn)  # that stream has ended
    end = "closed" if transport.is_closing else "open"
    server.close()
    if application.left:
        raise AssertionError("a request was never told that its client is gone")
    server._over()
    return end


def stream_bytes(draw: random.Random) -> bytes:
    """Of a request stream: frames, mostly."""
    return mutate(draw, b"".join(draw.choices(FRAMES, k=3)), WORDS)[:1000]


async def one_stream(data: bytes) -> str:
    """How a sound connection ended on which a request stream had these bytes."""
    settings = QuicConfiguration(alpn_protocols=["h3"], verify_mode=ssl.CERT_NONE)
    client = QuicConnection(configuration=settings)
    client.connect(ADDRESS, now=time.monotonic())
    application = Answers()
    line = Line(application, asyncio.get_running_loop())
    transport = Transport(
        b"secret",
        configuration=configuration_of(*pair()),
        original_destination_connection_id=client.original_destination_connection_id,
    )
    server = adapter.Http3Connection(line, transport)  # type: ignore[arg-type]
    for turn in range(4):
        for datagram, _ in client.datagrams_to_send(time.monotonic()):
            server.datagram_received(datagram, ADDRESS)
        await asyncio.sleep(0)
        sent, line.sent = line.sent, []
        for datagram in sent:
            client.receive_datagram(datagram, ADDRESS, time.monotonic())
        if turn == 1 and not transport.is_closing:
            client.send_stream_data(0, data, True)
    end = "closed" if transport.is_closing else "open"
    server.close()
    if application.left:
        raise AssertionError("a request was never told that its client is gone")
    server._over()
    return end


async def first_datagrams(draw: random.Random) -> int:
    """How many of them began a connection; the listener has those, and it knows no others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((ADDRESS[0], 0))
        loop = asyncio.get_running_loop()
        listener = QuicListener(Answers(), loop, sock, *pair())  # type: ignore[arg-type]
        for _ in range(TURNS):
            label = draw.randbytes(draw.randrange(LABEL_BYTES_MAX + 1))
            head = b"\xc3\0\0\0\x01" + bytes([len(label)]) + label + b"\x08" + bytes(8)
            data = (head + b"\0\x44\x96").ljust(1200, b"\xaa")
            listener._take(mutate(draw, data, WORDS) if draw.random() < 0.2 else data, ADDRESS)
            if listener._labels and listener._ticker is None:
                raise AssertionError("nobody would end them")
        if any(len(label) < LABEL_BYTES for label in listener._by_label):
            raise AssertionError("a label that is too short was taken")
        begun = listener.connections
        for connection in list(listener._labels):
            connection._over()
        listener.close()
        return begun


def run(seconds: float, seed: int, count_max: int = sys.maxsize) -> dict[str, int]:
    """How often each outcome came."""
    failures: list[object] = []
    said = adapter.LOG.exception
    adapter.LOG.exception = lambda *told: failures.append(told)  # type: ignore[method-assign]
    outcomes: dict[str, int] = {}
    end = time.monotonic() + seconds
    number = 0
    try:
        while number < count_max and time.monotonic() < end:
            outcome = asyncio.run(one_connection(random.Random(seed + number)))
            if failures:
                raise AssertionError(f"seed {seed + number}: the library did not survive it")
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            asyncio.run(first_datagrams(random.Random(seed + number)))
            number += 1
    finally:
        adapter.LOG.exception = said  # type: ignore[method-assign]
    return outcomes


if __name__ == "__main__":
    main(run, __doc__)
