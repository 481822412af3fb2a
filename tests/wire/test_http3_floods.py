"""Floods of QUIC and HTTP/3, sent without a key: each ends its connection, the work it causes grows
no faster than its bytes, and what only looks like one is served."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import ErrorCode, FrameType, encode_frame
from aioquic.quic.packet import QuicErrorCode
from aioquic.quic.rangeset import RangeSet

import quic_frames as quic
from harness import Served
from http3_client import Answer, Client
from sublimate.edge import limits
from sublimate.edge.quic.ranges import Ranges, TooManyGapsError

GROWTH_MAX, SECONDS_MIN = 8.0, 0.05
"""Of the edge's work for four times as much; below so many seconds noise is larger."""
PATIENCE_SECONDS = 20.0


@pytest.fixture
def client(served: Served, pair: tuple[Path, Path]) -> Client:
    made = Client(served.server.ports["h3"], pair[0])
    made.run(lambda: made.handshake is not None)
    assert made.ask("GET", "/livez").status == 200
    return made


def edge_seconds(served: Served) -> float:
    """What its thread has spent."""
    return served.call(time.thread_time)


def is_alive(served: Served) -> bool:
    return served.client.get("/livez").status_code == 200


def grows_no_faster(served: Served, attack: Callable[[int], None], count: int) -> None:
    """The edge's work for four times `count`, against that for `count`."""
    spent: list[float] = []
    for times in (1, 4):
        begun = edge_seconds(served)
        attack(times * count)
        assert is_alive(served)
        spent.append(edge_seconds(served) - begun)
    assert spent[1] < GROWTH_MAX * max(spent[0], SECONDS_MIN)


# ---- gaps ----------------------------------------------------------------------------------------
def test_f02_pieces_of_a_hello_end_the_connection(served: Served) -> None:
    def attack(datagrams: int) -> None:
        stranger = quic.Stranger(served.server.ports["h3"])
        for first in range(datagrams):
            offsets = [1000 + 2 * (60 * first + n) for n in range(60)]
            stranger.send(b"".join(map(quic.crypto, offsets)))
        stranger.close()

    grows_no_faster(served, attack, 125)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        pytest.param([quic.crypto(1000 + 2 * n) for n in range(600)], 0xD, id="crypto gaps"),
        pytest.param([quic.crypto(limits.QUIC_CRYPTO_BYTES_MAX)], 0xD, id="crypto far ahead"),
        pytest.param([quic.crypto(n, b"\1") for n in range(17000)], 1, id="crypto in order"),
        pytest.param([quic.stream(4, 1000 + 2 * n) for n in range(30_000)], 1, id="stream gaps"),
        pytest.param([quic.stream(4, 90_000 - 2 * n) for n in range(30_000)], 1, id="backwards"),
        pytest.param([b"\1"] * 60_000, 1, id="PING"),
        pytest.param([b"\1\0"] * 30_000, 1, id="PING and PADDING"),
        pytest.param([b"\x10\x10"] * 30_000, 1, id="MAX_DATA"),
        pytest.param([b"\x1a" + bytes(8)] * 9_000, 1, id="PATH_CHALLENGE"),
        pytest.param([b"\x14\x10"] * 30_000, 1, id="DATA_BLOCKED"),
        pytest.param([b"\2\0\0\0\0"] * 30_000, 1, id="ACK"),
        pytest.param([b"\4\4\0\x43\xe8"] * 30_000, 1, id="RESET_STREAM"),
    ],
)
def test_f02_f03_frames_of_a_flood_end_the_connection(
    served: Served, client: Client, frames: list[bytes], code: int
) -> None:
    assert client.begin("POST", "/v1/messages", b"{", is_end=False) == 4
    client.turn(0)
    begun = edge_seconds(served)
    for content in quic.packets(frames):
        quic.send(client, content)
        client.turn(0)
        if client.ended is not None:
            break
    client.run(lambda: client.ended is not None)
    assert client.ended is not None
    assert client.ended.error_code == code, client.ended
    assert edge_seconds(served) - begun < 3.0
    assert is_alive(served)


def test_f03_gaps_of_a_body_cost_no_more_than_their_bytes(
    served: Served, pair: tuple[Path, Path]
) -> None:
    def attack(count: int) -> None:
        client = Client(served.server.ports["h3"], pair[0])
        client.run(lambda: client.handshake is not None)
        stream_id = client.begin("POST", "/v1/messages", b"{", is_end=False)
        client.send()
        for content in quic.packets([quic.stream(stream_id, 1000 + 2 * n) for n in range(count)]):
            quic.send(client, content)
        client.vanish()

    grows_no_faster(served, attack, 15_000)


def test_f03_ranges_of_an_ack_cost_no_more_than_their_bytes(served: Served, client: Client) -> None:
    def sent() -> None:
        """Only what was sent may be acknowledged."""
        for connection in served.server._quic._labels:
            connection.transport._packet_number += 2000

    served.call(sent)

    def attack(count: int) -> None:
        ack = b"\2" + encode_uint_var(2000) + b"\0" + encode_uint_var(400) + b"\0"
        for _ in range(count):
            quic.send(client, ack + b"\0\0" * 400)

    grows_no_faster(served, attack, 100)


def test_f03_a_head_that_comes_byte_by_byte_is_served(served: Served, client: Client) -> None:
    stream_id = client.quic.get_next_available_stream_id()
    fields = [(b"x-%d" % n, b"y" * 200) for n in range(30)]
    head = [
        *((b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"localhost")),
        *((b":path", b"/livez"), *fields),
    ]
    frame = encode_frame(FrameType.HEADERS, client.h3._encode_headers(stream_id, head))
    client.answers[stream_id] = Answer()
    client.quic.send_stream_data(stream_id, b"")
    pieces = [quic.stream(stream_id, at, frame[at : at + 1]) for at in range(len(frame))]
    pieces[-1] = bytes([quic.STREAM | 1]) + pieces[-1][1:]
    for content in quic.packets(pieces, frames_max=30):
        quic.send(client, content)
        client.turn(0)
    client.run(lambda: client.answers[stream_id].is_over)
    assert client.answers[stream_id].status == 200


def test_f03_what_loss_leaves_is_put_together(served: Served, client: Client) -> None:
    body = b"".join(b"%07d " % n for n in range(100))
    stream_id = client.begin("POST", "/no/such/path", body, is_end=True)
    sender = client.quic._streams[stream_id].sender
    data = bytes(sender._buffer)
    sender._pending.subtract(0, len(data))
    sender._pending_eof = False
    every = [quic.stream(stream_id, at, data[at : at + 8]) for at in range(0, len(data), 8)]
    every[-1] = bytes([quic.STREAM | 1]) + every[-1][1:]
    for content in quic.packets([*every[1::2], *reversed(every[::2])], frames_max=30):
        quic.send(client, content)
    client.run(lambda: client.answers[stream_id].is_over)
    assert client.answers[stream_id].status == 404


def test_f03_small_frames_of_http3_end_the_connection(served: Served, client: Client) -> None:
    stream_id = client.begin("POST", "/v1/messages", b"{", is_end=False)
    client.quic.send_stream_data(stream_id, b"\0\1 " * 40_000)
    client.run(lambda: client.ended is not None, PATIENCE_SECONDS)
    assert client.ended is not None and client.ended.error_code == ErrorCode.H3_EXCESSIVE_LOAD
    assert is_alive(served)


# ---- sets of ranges ------------------------------------------------------------------------------
def test_f02_sets_of_ranges_are_as_the_librarys() -> None:
    draw = random.Random(2)
    for _ in range(200):
        ours, theirs = Ranges(), RangeSet()
        for _ in range(60):
            start = draw.randrange(100)
            stop = start + draw.randrange(1, 12)
            step = "subtract" if draw.random() < 0.3 else "add"
            getattr(ours, step)(start, stop)
            getattr(theirs, step)(start, stop)
            assert list(ours) == list(theirs)
            assert all((n in ours) == (n in theirs) for n in range(115))


def test_f02_a_set_has_a_bound() -> None:
    few = Ranges(3)
    for n in (1, 5, 9):
        few.add(n)
    few.add(5, 7)
    with pytest.raises(TooManyGapsError):
        few.add(12)


# ---- requests ------------------------------------------------------------------------------------
Head = list[tuple[bytes, bytes]]
GET: Head = [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/livez")]


def ask_raw(client: Client, head: Head) -> Answer:
    stream_id = client.quic.get_next_available_stream_id()
    answer = client.answers[stream_id] = Answer()
    data = encode_frame(FrameType.HEADERS, client.h3._encode_headers(stream_id, head))
    client.quic.send_stream_data(stream_id, data, True)
    client.run(lambda: answer.is_over)
    return answer


def test_f16_host_alone_is_enough(served: Served, client: Client) -> None:
    assert ask_raw(client, [*GET, (b"host", b"localhost")]).status == 200
    both = [*GET[:2], (b":authority", b"localhost"), GET[2], (b"host", b"localhost")]
    assert ask_raw(client, both).status == 200
    assert ask_raw(client, [*both[:-1], (b"host", b"elsewhere")]).status == 400


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(GET, id="F16 neither"),
        pytest.param([*GET, (b"Host", b"localhost")], id="F16 upper case"),
        pytest.param([*GET, (b"host", b"localhost"), (b"x(y", b"z")], id="no token"),
        pytest.param([*GET, (b"host", b"")], id="F16 empty"),
        pytest.param([*GET[1:], (b":authority", b"localhost")], id="F16 no method"),
        pytest.param([*GET, (b":authority", b"localhost"), GET[2]], id="F16 twice"),
        pytest.param([*GET, (b"host", b"localhost"), (b"x", b"a\r\nb: c")], id="F16 CR LF"),
        pytest.param([*GET, (b"host", b"localhost"), (b"connection", b"close")], id="F16 own"),
        pytest.param([*GET, (b"host", b"localhost"), (b"content-length", b"4")], id="F16 length"),
    ],
)
def test_f16_a_malformed_request_ends_its_stream_alone(client: Client, head: Head) -> None:
    other = client.begin("POST", "/v1/messages", b"{", is_end=False)
    assert ask_raw(client, head).reset_code == ErrorCode.H3_MESSAGE_ERROR
    client.h3.send_data(other, b"}", True)
    client.run(lambda: client.answers[other].is_over)
    assert client.answers[other].status == 400
    assert client.ask("GET", "/livez").status == 200


KEYS = [(b"idempotency-key", b"a"), (b"idempotency-key", b"b")]


@pytest.mark.parametrize(
    "head",
    [
        pytest.param([GET[0], GET[2]], id="no scheme"),
        pytest.param([*GET, (b":protocol", b"websocket")], id="protocol"),
        pytest.param([(b":method", b"GE T"), *GET[1:]], id="method with a space"),
        pytest.param([(b":method", b""), *GET[1:]], id="empty method"),
        pytest.param([*GET[:2], (b":path", b"/liv\xe9z")], id="path of 8 bits"),
        pytest.param([*GET, (b"content-length", b"+0")], id="length with a sign"),
        pytest.param([*GET, (b"content-length", b"0_0")], id="length with a line"),
        pytest.param([*GET, *KEYS], id="two keys"),
    ],
)
def test_a_doubtful_head_is_400(client: Client, head: Head) -> None:
    assert ask_raw(client, [*head, (b"host", b"localhost")]).status == 400
    assert client.ask("GET", "/livez").status == 200


def test_f16_a_head_that_is_too_large_is_answered(client: Client) -> None:
    for more in ([(b"x", b"y" * 17_000)], [(b"x-%d" % n, b"") for n in range(120)]):
        assert ask_raw(client, [*GET, (b"host", b"localhost"), *more]).status == 431
    for size in (16_400, 17_000, 60_000):
        head = [*GET[:2], (b":path", b"/" + b"a" * size), (b"host", b"localhost")]
        assert ask_raw(client, head).status == 414
    assert client.ask("GET", "/livez").status == 200


# ---- rules that the library leaves out -----------------------------------------------------------
def cancelled(client: Client) -> None:
    """A push that was never promised."""
    frame = encode_frame(FrameType.CANCEL_PUSH, encode_uint_var(0))
    client.quic.send_stream_data(client.h3._local_control_stream_id, frame)


def goaway(*contents: bytes) -> Callable[[Client], None]:
    def send(client: Client) -> None:
        frames = b"".join(encode_frame(FrameType.GOAWAY, content) for content in contents)
        for at in range(len(frames)):
            client.quic.send_stream_data(client.h3._local_control_stream_id, frames[at : at + 1])
            client.turn(0)

    return send


def closed(name: str) -> Callable[[Client], None]:
    def send(client: Client) -> None:
        client.quic.send_stream_data(getattr(client.h3, f"_local_{name}_stream_id"), b"", True)

    return send


def acknowledged(client: Client) -> None:
    """A packet far beyond those that were sent."""
    quic.send(client, b"\x02" + encode_uint_var(1 << 20) + b"\0\0\0")


@pytest.mark.parametrize(
    ("send", "code"),
    [
        pytest.param(cancelled, ErrorCode.H3_ID_ERROR, id="CANCEL_PUSH"),
        pytest.param(goaway(b"\0", b"\4"), ErrorCode.H3_ID_ERROR, id="GOAWAY that rises"),
        pytest.param(goaway(b""), ErrorCode.H3_FRAME_ERROR, id="empty GOAWAY"),
        pytest.param(closed("encoder"), ErrorCode.H3_CLOSED_CRITICAL_STREAM, id="encoder"),
        pytest.param(closed("decoder"), ErrorCode.H3_CLOSED_CRITICAL_STREAM, id="decoder"),
        pytest.param(acknowledged, QuicErrorCode.PROTOCOL_VIOLATION, id="ACK of nothing"),
    ],
)
def test_what_a_protocol_forbids_ends_the_connection(
    served: Served, client: Client, send: Callable[[Client], None], code: int
) -> None:
    send(client)
    client.run(lambda: client.ended is not None, PATIENCE_SECONDS)
    assert client.ended is not None and client.ended.error_code == code
    assert is_alive(served)


def test_a_client_may_lower_what_its_goaway_says(client: Client) -> None:
    goaway(b"\x3f", b"\x08", b"\x08", b"\0")(client)
    maximum = encode_frame(FrameType.MAX_PUSH_ID, b"\x3f")
    client.quic.send_stream_data(client.h3._local_control_stream_id, maximum)
    assert client.ask("GET", "/livez").status == 200
