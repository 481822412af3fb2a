"""HTTP/2 and gRPC over loopback: frames, fields and messages that are small and many. What is
measured is the time of the server's event loop. Where a budget ends the connection, one unit stays
within it and one goes far beyond."""

import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

import http2_frames as h2
from growth import Run, check_flat, check_growth
from harness import Served, serve
from sublimate.config import EdgeSettings
from sublimate.edge.limits import HttpLimits
from sublimate.v1 import messages_pb2

CREATE = "/sublimate.v1.Messages/CreateMessage"
LIST = "/sublimate.v1.Messages/ListModels"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
PRIORITY, INITIAL_WINDOW_SIZE = 2, 4
LAST_PING = b"the last"
ENDED = (b"too many frames carry nothing", b"too many streams are reset", b"too many fields")
ENDED_HEAD = (b"a head comes in too many frames", b"a head is too large")
CONTEXT_TOKENS, PAGES = 1 << 17, 1 << 14
READ_BYTES = 1 << 16
SECONDS = 30.0
OPENING = (
    h2.PREFACE
    + h2.frame(h2.SETTINGS, 0, 0, struct.pack("!HI", INITIAL_WINDOW_SIZE, 1 << 30))
    + h2.frame(h2.WINDOW_UPDATE, 0, 0, struct.pack("!I", 1 << 30))
)
"""Windows that no answer here fills."""
Make = Callable[[int], bytes]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = EdgeSettings(data_dir=str(tmp_path_factory.mktemp("data")))
    limits = HttpLimits(header_bytes_max=1 << 20, header_fields_max=100_000)
    with serve(
        settings=settings, limits=limits, grpc=True, context_tokens=CONTEXT_TOKENS, pages=PAGES
    ) as running:
        yield running


def talk(port: int, data: bytes, ends: tuple[bytes, ...]) -> bytes:
    """Send all, then read until one of `ends` has come."""
    received = bytearray()
    with socket.create_connection(("127.0.0.1", port), SECONDS) as sock:
        try:
            sock.sendall(data)
        except ConnectionError:
            pass  # the server may end it earlier; what it says of that can be read
        while not any(end in received for end in ends):
            piece = sock.recv(READ_BYTES)
            assert piece, bytes(received[-200:])
            received += piece
    return bytes(received)


def over_loopback(served: Served, make: Make, *ends: bytes) -> Callable[[int], Run]:
    def prepare(count: int) -> Run:
        data = OPENING + make(count)
        return lambda: talk(served.server.ports["grpc"], data, ends)

    return prepare


def edge_clock(served: Served) -> Callable[[], float]:
    return lambda: served.call(time.thread_time)


# ---- frames --------------------------------------------------------------------------------------
HEAD = h2.call_head(LIST)


def opened(number: int, path: str = LIST) -> bytes:
    return h2.headers(number, h2.call_head(path))


def numbers(count: int) -> range:
    return range(1, 2 * count, 2)


def settings(value: int) -> bytes:
    return h2.frame(h2.SETTINGS, 0, 0, struct.pack("!HI", INITIAL_WINDOW_SIZE, value))


def window(number: int) -> bytes:
    return h2.frame(h2.WINDOW_UPDATE, 0, number, struct.pack("!I", 1))


def reset(number: int) -> bytes:
    return opened(number) + h2.frame(h2.RST_STREAM, 0, number, struct.pack("!I", h2.CANCEL))


def streams(count: int) -> bytes:
    return b"".join(map(opened, numbers(count)))


def with_fields(count: int, field: Callable[[int], bytes]) -> bytes:
    """The head of a call, which the next frame cancels."""
    block = HEAD + b"".join(map(field, range(count)))
    cancel = h2.frame(h2.RST_STREAM, 0, 1, struct.pack("!I", h2.CANCEL))
    return h2.headers(1, block) + cancel


def kept_and_repeated(size: int) -> bytes:
    """A field with a value of `size` bytes, to which one byte refers later."""
    return b"\x40\1x" + bytes([127]) + h2.integer(size - 127) + b"a" * size


def continued(count: int) -> bytes:
    part = h2.field(b"x", b"y") * (h2.FRAME_BYTES // 5)
    begin = h2.frame(h2.HEADERS, 0, 1, HEAD)
    end = h2.frame(h2.CONTINUATION, h2.END_HEADERS, 1)
    return begin + h2.frame(h2.CONTINUATION, 0, 1, part) * count + end


def in_pieces(content: bytes) -> bytes:
    """One message with a DATA frame for each byte."""
    data = h2.message(content)
    frames = [h2.frame(h2.DATA, 0, 1, data[at : at + 1]) for at in range(len(data))]
    return opened(1) + b"".join(frames) + h2.frame(h2.DATA, h2.END_STREAM, 1)


WITHIN: dict[str, tuple[Make, int]] = {
    "SETTINGS": (lambda n: settings(1 << 20) * n, 120),
    "many SETTINGS of a frame": (
        lambda n: h2.frame(h2.SETTINGS, 0, 0, struct.pack("!HI", 4, 1 << 20) * n),
        240,
    ),
    "SETTINGS beside streams": (lambda n: streams(n) + settings(1 << 20) * 3 * n, 30),
    "PING": (lambda n: h2.frame(h2.PING, 0, 0, bytes(8)) * n, 240),
    "PRIORITY": (lambda n: h2.frame(PRIORITY, 0, 1, bytes(5)) * n, 240),
    "unknown frames": (lambda n: h2.frame(99, 0, 1) * n, 240),
    "WINDOW_UPDATE": (lambda n: opened(1) + window(1) * n, 240),
    "WINDOW_UPDATE of the connection": (lambda n: window(0) * n, 240),
    "WINDOW_UPDATE beside streams": (lambda n: streams(n) + window(0) * 7 * n, 30),
    "empty DATA": (lambda n: opened(1) + h2.frame(h2.DATA, 0, 1) * n, 240),
    "DATA of one byte": (lambda n: opened(1) + h2.frame(h2.DATA, 0, 1, b"\0") * n, 2000),
    "streams": (streams, 30),
    "RST_STREAM": (lambda n: b"".join(map(reset, numbers(n))), 60),
    "CONTINUATION": (continued, 1),
    "header fields": (lambda n: with_fields(n, lambda _: h2.field(b"x", b"y")), 1000),
    "different header fields": (
        lambda n: with_fields(n, lambda i: h2.field(b"x%d" % i, b"y")),
        1000,
    ),
    "header fields that the table keeps": (
        lambda n: with_fields(n, lambda i: b"\x40" + h2.field(b"x%d" % i, b"y")[1:]),
        1000,
    ),
    "repeats by reference": (
        lambda n: with_fields(n, lambda i: b"\xbe" if i else kept_and_repeated(127)),
        900,
    ),
    "gRPC metadata": (
        lambda n: with_fields(n, lambda i: h2.field(b"k%d-bin" % (i % 100), b"AAAA")),
        1000,
    ),
}


@pytest.mark.parametrize("name", WITHIN)
def test_frames_within_a_budget(served: Served, name: str) -> None:
    make, units = WITHIN[name]
    ping = h2.frame(h2.PING, 0, 0, LAST_PING)
    prepare = over_loopback(served, lambda n: make(n) + ping, LAST_PING)
    check_growth(prepare, units, edge_clock(served))


BEYOND: dict[str, tuple[Make, int]] = {
    "SETTINGS": (lambda n: settings(1 << 20) * n, 2000),
    "PING": (lambda n: h2.frame(h2.PING, 0, 0, bytes(8)) * n, 4000),
    "PRIORITY": (lambda n: h2.frame(PRIORITY, 0, 1, bytes(5)) * n, 4000),
    "unknown frames": (lambda n: h2.frame(99, 0, 1) * n, 4000),
    "WINDOW_UPDATE": (lambda n: opened(1) + window(1) * n, 4000),
    "empty DATA": (lambda n: opened(1) + h2.frame(h2.DATA, 0, 1) * n, 4000),
    "RST_STREAM": (lambda n: b"".join(map(reset, numbers(n))), 600),
    "CONTINUATION": (continued, 32),
    "empty CONTINUATION": (
        lambda n: h2.frame(h2.HEADERS, 0, 1, HEAD) + h2.frame(h2.CONTINUATION, 0, 1) * n,
        4000,
    ),
}


@pytest.mark.parametrize("name", BEYOND)
def test_frames_beyond_a_budget_cost_nothing_more(served: Served, name: str) -> None:
    make, units = BEYOND[name]
    prepare = over_loopback(served, make, *ENDED, *ENDED_HEAD)
    check_flat(prepare, units, edge_clock(served))


# ---- messages ------------------------------------------------------------------------------------
def reflected(count: int, frame_messages: int) -> bytes:
    """Messages on a client's stream, `frame_messages` in each DATA frame."""
    asked = h2.message(b"\x3a\1x")  # list_services
    frame = h2.frame(h2.DATA, 0, 1, asked * frame_messages)
    frames = frame * (count // frame_messages)
    return opened(1, REFLECTION) + frames + h2.frame(h2.DATA, h2.END_STREAM, 1)


def called(path: str, message: bytes) -> bytes:
    data = h2.message(message)
    parts = [data[at : at + h2.FRAME_BYTES] for at in range(0, len(data), h2.FRAME_BYTES)]
    frames = [h2.frame(h2.DATA, 0, 1, part) for part in parts]
    return opened(1, path) + b"".join(frames) + h2.frame(h2.DATA, h2.END_STREAM, 1)


def created(count: int) -> bytes:
    said = [messages_pb2.InputMessage(role="user", text="a")] * count
    asked = messages_pb2.CreateMessageRequest(model="tiny", max_tokens=1, messages=said)
    return asked.SerializeToString()


MESSAGES: dict[str, tuple[Make, int]] = {
    "messages of a client's stream": (lambda n: reflected(n, 1), 100),
    "messages of one frame": (lambda n: reflected(n, n), 100),
    "pieces of one message": (lambda n: in_pieces(bytes(n)), 2000),
    "repeated fields of a message": (lambda n: called(CREATE, created(n)), 250),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(served: Served, name: str) -> None:
    """Of the whole process: another thread than the event loop's reads what is large."""
    make, units = MESSAGES[name]
    check_growth(over_loopback(served, make, b"grpc-status"), units)
