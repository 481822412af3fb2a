"""How answers are put into packets, against a client of the library's in this process, on a clock
of the test's: fresh bytes and the library's own writing of them bring the same."""

import random
import ssl
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import encode_frame
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import StreamDataReceived, StreamReset
from aioquic.tls import Epoch

from sublimate.cli.certificate import own_certificate
from sublimate.edge.quic.messages import DATA_TYPE, data_head
from sublimate.edge.quic.transport import LAZY_ACK_SECONDS, Transport, configuration_of

SERVER, CLIENT = ("127.0.0.1", 1), ("127.0.0.1", 2)
STREAMS = range(0, 4 * 20, 4)
EVENT = b"event: " + b"x" * 170
LIBRARY_ACK_SECONDS = 0.001
Flight = list[tuple[bytes, Any]]


class Twin(Transport):
    """The slow one: all that is written is the library's to send."""

    def send_stream_data(self, stream_id: int, data: bytes, end_stream: bool = False) -> None:
        QuicConnection.send_stream_data(self, stream_id, data, end_stream)


@cache
def pair() -> tuple[str, str]:
    certificate, key = own_certificate(Path(tempfile.mkdtemp(prefix="sublimate-test-")))
    return str(certificate), str(key)


class Line:
    """A client and a server with everything between them, and the time."""

    def __init__(self, kind: type[Transport] = Transport, window: int = 1 << 20) -> None:
        settings = QuicConfiguration(
            alpn_protocols=["h3"],
            verify_mode=ssl.CERT_NONE,
            max_data=4 * window,
            max_stream_data=window,
        )
        self.now = 100.0
        self.client = QuicConnection(configuration=settings)
        self.client.connect(SERVER, self.now)
        self.server = kind(
            b"secret",
            configuration=configuration_of(*pair()),
            original_destination_connection_id=self.client.original_destination_connection_id,
        )
        self.is_lost: Callable[[], bool] = lambda: False
        self.got: dict[int, bytes] = {}
        self.ended: set[int] = set()
        for _ in range(4):
            self.turn()
        for stream_id in STREAMS:
            self.client.send_stream_data(stream_id, b"?", True)
        self.turn()
        self.turn()

    def turn(self, seconds: float = 0.002) -> Flight:
        """Both ways once, and the timers. The flight of the server."""
        self.now += seconds
        for end in (self.client, self.server):
            due = end.get_timer()
            if due is not None and due <= self.now:
                end.handle_timer(self.now)
        flight: Flight = []
        if self.server._network_paths:
            flight = self.server.datagrams_to_send(self.now)
        for data, _ in flight:
            if not self.is_lost():
                self.client.receive_datagram(data, SERVER, self.now)
        for data, _ in self.client.datagrams_to_send(self.now):
            if not self.is_lost():
                self.server.receive_datagram(data, CLIENT, self.now)
        while self.server.next_event() is not None:
            pass
        while (event := self.client.next_event()) is not None:
            if isinstance(event, StreamDataReceived):
                self.got[event.stream_id] = self.got.get(event.stream_id, b"") + event.data
                if event.end_stream:
                    self.ended.add(event.stream_id)
            elif isinstance(event, StreamReset):
                self.ended.add(event.stream_id)
        return flight


def written(line: Line, seed: int) -> dict[int, bytes]:
    """Pieces of all sizes on all streams for a while, until all have arrived."""
    draw = random.Random(seed)
    wrote = dict.fromkeys(STREAMS, b"")
    for _ in range(60):
        for stream_id in draw.sample(STREAMS, draw.randrange(len(STREAMS))):
            for _ in range(draw.choice((1, 1, 2))):
                piece = draw.randbytes(draw.choice((0, 1, 40, 180, 180, 1150, 4000)))
                line.server.send_stream_data(stream_id, piece)
                wrote[stream_id] += piece
        line.turn()
    for stream_id in STREAMS:
        line.server.send_stream_data(stream_id, b"end", True)
        wrote[stream_id] += b"end"
    turns = 0
    while len(line.ended) < len(STREAMS):
        line.turn()
        turns += 1
        assert turns < 20_000, "something is never sent"
    return wrote


@pytest.mark.parametrize("loss", [0.0, 0.05, 0.15])
@pytest.mark.parametrize("kind", [Transport, Twin])
@pytest.mark.parametrize("window", [1 << 20, 3000])
def test_everything_arrives_once_and_in_order(
    kind: type[Transport], loss: float, window: int
) -> None:
    line = Line(kind, window)
    draw = random.Random(7)
    line.is_lost = lambda: draw.random() < loss
    assert written(line, 2) == line.got
    turns = 0
    while any(line.server.has_stream(stream_id) for stream_id in STREAMS):
        line.turn(0.01)
        turns += 1
        assert turns < 5000, "a stream is never done"
    assert not line.server.has_unsent


def test_events_of_all_streams_share_packets_of_one_length() -> None:
    sizes: dict[type[Transport], list[int]] = {}
    for kind in (Transport, Twin):
        line = Line(kind)
        for stream_id in STREAMS:
            line.server.send_stream_data(stream_id, EVENT)
        sizes[kind] = [len(data) for data, _ in line.turn()]
        assert line.got == dict.fromkeys(STREAMS, EVENT)
    assert len(sizes[Transport]) == len(sizes[Twin]) == -(-len(STREAMS) * len(EVENT) // 1150)
    assert len(set(sizes[Transport][:-1])) == 1


def test_the_library_writes_no_frame_of_what_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line()
    monkeypatch.setattr(line.server, "_write_stream_frame", None)
    for _ in range(50):
        for stream_id in STREAMS:
            line.server.send_stream_data(stream_id, EVENT)
        line.turn()
    assert line.got == dict.fromkeys(STREAMS, EVENT * 50)
    assert not line.server.unsent_bytes(0)


def test_a_reset_between_writing_and_sending_drops_what_was_written() -> None:
    line = Line()
    line.server.send_stream_data(0, EVENT)
    line.server.send_stream_data(4, EVENT)
    line.server.reset_stream(0, 7)
    for _ in range(3):
        line.turn()
    assert line.got == {4: EVENT} and line.ended == {0}


def test_nothing_is_sent_behind_an_end() -> None:
    line = Line()
    line.server.send_stream_data(0, EVENT)
    line.server.send_stream_data(0, b"", True)
    with pytest.raises(RuntimeError):
        line.server.send_stream_data(0, EVENT)
    line.turn()
    assert line.got == {0: EVENT} and line.ended == {0}


def test_only_what_brought_bytes_is_acknowledged_at_once() -> None:
    line = Line()
    for _ in range(10):
        line.turn(0.02)
    space = line.server._spaces[Epoch.ONE_RTT]
    for number, (stream_id, seconds) in enumerate(
        ((None, LAZY_ACK_SECONDS), (80, LIBRARY_ACK_SECONDS), (None, LIBRARY_ACK_SECONDS))
    ):
        if stream_id is None:
            line.client.send_ping(number)
        else:
            line.client.send_stream_data(stream_id, b"?")
        for data, _ in line.client.datagrams_to_send(line.now):
            line.server.receive_datagram(data, CLIENT, line.now)
        assert space.ack_at == pytest.approx(line.now + seconds, abs=1e-6)
    line.server.send_stream_data(0, EVENT)
    assert len(line.turn(0.0001)) == 1, "it rides with what is sent anyway"
    assert space.ack_at is None


def test_the_head_of_a_piece_is_the_library_s() -> None:
    for size in (0, 1, 63, 64, 16383, 16384, 1 << 20):
        assert data_head(size) + bytes(size) == encode_frame(0, bytes(size))
        assert data_head(size) == DATA_TYPE + encode_uint_var(size)
