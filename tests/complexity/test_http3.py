"""QUIC and HTTP/3 over loopback: frames, ranges, datagrams and fields that are small and many. What
is measured is the time of the server's event loop. Where a budget ends the connection, one unit
stays within it and one goes far beyond."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pylsqpack
import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import FrameType, encode_frame

import quic_frames as quic
from growth import Run, check_flat, check_growth
from harness import Served, serve
from http3_client import Answer, Client
from sublimate.cli.certificate import own_certificate
from sublimate.config import EdgeSettings
from sublimate.edge import limits
from sublimate.edge.limits import HttpLimits

FRAMES_PER_DATAGRAM = limits.QUIC_FRAMES_PER_DATAGRAM
"""With so many the budget of a connection is not touched."""
DATAGRAMS_AT_ONCE = 32
"""More could be lost in the socket's buffer, and would then cost nothing."""
STREAM_GAPS = limits.QUIC_GAPS_MAX - 56
CLOSE = b"\x1c\0\0\0"
Fields = list[tuple[bytes, bytes]]
FIELDS: Fields = [
    *((b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"localhost")),
    *((b":path", b"/v1/messages"), (b"content-type", b"application/json")),
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return own_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def served(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = EdgeSettings(
        tls_certificate=str(pair[0]),
        tls_key=str(pair[1]),
        data_dir=str(tmp_path_factory.mktemp("data")),
    )
    most = HttpLimits(header_bytes_max=1 << 20, header_fields_max=100_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "QUIC_HALF_OPEN_MAX", 10_000)  # no client has to come again
        with serve(settings=settings, http3=True, limits=most) as running:
            yield running


def edge_clock(served: Served) -> Callable[[], float]:
    return lambda: served.call(time.thread_time)


def wait_until_read(served: Served) -> None:
    """All datagrams that were sent before: a turn of the event loop reads as many at least."""
    for _ in range(2):
        served.call(lambda: None)


def headed(more: Fields) -> bytes:
    """A HEADERS frame without the table, which the server does not offer."""
    block = pylsqpack.Encoder().encode(0, [*FIELDS, *more])[1]
    return encode_frame(FrameType.HEADERS, block)


# ---- QUIC ----------------------------------------------------------------------------------------
def strange(served: Served, count: int, each: Callable[[int], bytes]) -> None:
    """CRYPTO frames before a handshake."""
    stranger = quic.Stranger(served.server.ports["h3"])
    contents = quic.packets([each(n) for n in range(count)], FRAMES_PER_DATAGRAM)
    for number, content in enumerate(contents, 1):
        stranger.send(content)
        if number % DATAGRAMS_AT_ONCE == 0:
            wait_until_read(served)
    stranger.send(CLOSE)
    wait_until_read(served)
    stranger.close()


CRYPTO: dict[str, tuple[Callable[[int], bytes], int]] = {
    "in order": (lambda n: quic.crypto(n, b"\1"), 1500),
    "the same again": (lambda n: quic.crypto(1000), 1500),
}


@pytest.mark.parametrize("name", CRYPTO)
def test_crypto_without_a_handshake(served: Served, name: str) -> None:
    each, units = CRYPTO[name]
    check_growth(lambda n: lambda: strange(served, n, each), units, edge_clock(served))


def test_crypto_beyond_the_gaps_costs_nothing_more(served: Served) -> None:
    def each(number: int) -> bytes:
        return quic.crypto(1000 + 2 * (number % 7000))

    check_flat(lambda n: lambda: strange(served, n, each), 600, edge_clock(served))


def established(served: Served, pair: tuple[Path, Path]) -> Client:
    client = Client(served.server.ports["h3"], pair[0])
    Client.alive.remove(client)
    client.run(lambda: client.handshake is not None)
    for _ in range(5):
        client.turn(0.001)
    return client


Contents = Callable[[int], list[bytes]]


def sent(served: Served, pair: tuple[Path, Path], contents: list[bytes], step: int = 1) -> Client:
    """Packets of a new connection, `step` apart in their numbers."""
    client = established(served, pair)
    for number, content in enumerate(contents, 1):
        quic.send(client, content)
        client.quic._packet_number += step - 1
        if number % DATAGRAMS_AT_ONCE == 0:
            wait_until_read(served)
    quic.send(client, CLOSE)
    wait_until_read(served)
    client.vanish()
    return client


def few(frames: list[bytes]) -> list[bytes]:
    return quic.packets(frames, FRAMES_PER_DATAGRAM)


def gaps(count: int) -> list[bytes]:
    """On many streams: one has a bound."""
    return few(
        [quic.stream(4 * (n // STREAM_GAPS), 10 + 2 * (n % STREAM_GAPS)) for n in range(count)]
    )


def backwards(count: int) -> list[bytes]:
    return few(
        [quic.stream(4 * (n // STREAM_GAPS), 1000 - 2 * (n % STREAM_GAPS)) for n in range(count)]
    )


def filled(count: int) -> list[bytes]:
    """Gaps that are closed again: of 200 bytes, each second one comes after the others. They all
    belong to one DATA frame."""
    head = headed([]) + b"\0" + encode_uint_var(1 << 29)
    places = [
        block + at
        for block in range(0, count, 200)
        for at in (*range(1, 200, 2), *range(0, 200, 2))
    ]
    return few([quic.stream(0, 0, head), *(quic.stream(0, len(head) + at) for at in places)])


def acks(count: int) -> list[bytes]:
    """Ranges of ACK frames that acknowledge what was never sent, 400 in each."""
    ack = b"\2" + encode_uint_var(2000) + b"\0" + encode_uint_var(400) + b"\0"
    return [ack + b"\0\0" * 400] * (count // 400)


QUIC: dict[str, tuple[Contents, int, int]] = {
    "STREAM fragments in order": (
        lambda n: few([quic.stream(0, at, b"\x21\0"[at % 2 :][:1]) for at in range(n)]),
        200,
        1,
    ),
    "STREAM fragments with gaps": (gaps, 2000, 1),
    "STREAM fragments backwards": (backwards, 2000, 1),
    "STREAM fragments again": (lambda n: few([quic.stream(0, 5)] * n), 2000, 1),
    "STREAM fragments whose gaps are filled": (filled, 1000, 1),
    "streams": (lambda n: few([quic.stream(4 * i, 0, b"\0") for i in range(n)]), 12, 1),
    "small datagrams beside streams": (
        lambda n: [*few([quic.stream(4 * i, 0, b"\0") for i in range(n)]), *[b"\1"] * 8 * n],
        12,
        1,
    ),
    "ACK ranges": (acks, 4000, 1),
    "ACK frames": (lambda n: few([b"\2\0\0\0\0"] * n), 2000, 1),
    "PING": (lambda n: few([b"\1"] * n), 2000, 1),
    "small datagrams": (lambda n: [b"\1"] * n, 200, 1),
    "small datagrams with gaps in their numbers": (lambda n: [b"\1"] * n, 200, 2),
    "datagrams without frames that need an answer": (lambda n: [b"\0"] * n, 200, 1),
}


@pytest.mark.parametrize("name", QUIC)
def test_quic(served: Served, pair: tuple[Path, Path], name: str) -> None:
    contents, units, step = QUIC[name]

    def make(count: int) -> Run:
        prepared = contents(count)
        return lambda: sent(served, pair, prepared, step)

    check_growth(make, units, edge_clock(served))


BEYOND: dict[str, Contents] = {
    "PING": lambda n: quic.packets([b"\1"] * n),
    "ACK frames": lambda n: quic.packets([b"\2\0\0\0\0"] * n),
    "STREAM fragments with gaps": lambda n: quic.packets(
        [quic.stream(0, 10 + 2 * at) for at in range(n)]
    ),
}


@pytest.mark.parametrize("name", BEYOND)
def test_quic_beyond_a_budget_costs_nothing_more(
    served: Served, pair: tuple[Path, Path], name: str
) -> None:
    def make(count: int) -> Run:
        prepared = BEYOND[name](count)
        return lambda: sent(served, pair, prepared)

    check_flat(make, 6000, edge_clock(served))


# ---- HTTP/3 --------------------------------------------------------------------------------------
def asked(served: Served, pair: tuple[Path, Path], more: Fields, rest: bytes) -> Client:
    """One request, until it is answered or the connection ends."""
    client = established(served, pair)
    stream_id = client.quic.get_next_available_stream_id()
    answer = client.answers[stream_id] = Answer()
    client.quic.send_stream_data(stream_id, headed(more) + rest, True)
    client.run(lambda: answer.is_over or client.ended is not None)
    client.close()
    return client


HTTP3: dict[str, tuple[Callable[[int], tuple[Fields, bytes]], int]] = {
    "header fields": (lambda n: ([(b"x", b"y")] * n, b""), 1000),
    "different header fields": (lambda n: ([(b"x%d" % i, b"y") for i in range(n)], b""), 1000),
    "long fields of one name": (lambda n: ([(b"x", b"y" * 100)] * n, b""), 800),
    "DATA of one byte": (lambda n: ([], b"\0\1 " * n), 115),
    "empty DATA": (lambda n: ([], b"\0\0" * n), 115),
    "unknown frames": (lambda n: ([], b"\x21\0" * n), 115),
}


@pytest.mark.parametrize("name", HTTP3)
def test_http3(served: Served, pair: tuple[Path, Path], name: str) -> None:
    parts, units = HTTP3[name]

    def make(count: int) -> Run:
        more, rest = parts(count)
        return lambda: asked(served, pair, more, rest)

    check_growth(make, units, edge_clock(served))


@pytest.mark.parametrize("unit", [b"\0\1 ", b"\0\0", b"\x21\0"], ids=["DATA", "empty", "unknown"])
def test_http3_frames_beyond_a_budget_cost_nothing_more(
    served: Served, pair: tuple[Path, Path], unit: bytes
) -> None:
    def make(count: int) -> Run:
        return lambda: asked(served, pair, [], unit * count)

    assert asked(served, pair, [], unit * 3000).ended is not None
    check_flat(make, 3000, edge_clock(served))
