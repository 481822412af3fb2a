"""Floods of HTTP/2 on the gRPC port, sent without a key: each ends its call or its connection, the
work it causes grows no faster than its bytes, and what only looks like one is served."""

import gzip
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

import http2_frames as h2
from harness import Served, serve, wait_until
from sublimate.edge import limits
from sublimate.edge.errors import ApiError
from sublimate.edge.grpc.framing import MessageReader
from sublimate.edge.grpc.hpack import HeadDecoder, HpackError, encoded, encoded_head
from sublimate.edge.limits import HttpLimits
from sublimate.v1 import messages_pb2

PATH = "/sublimate.v1.Messages/ListModels"
LIST = h2.message(b"")
ENHANCE_YOUR_CALM, REFUSED_STREAM = 11, 7
GROWTH_MAX, SECONDS_MIN = 8.0, 0.05
"""Of the edge's work for four times as much; below so many seconds noise is larger."""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve(grpc=True) as running:
        yield running
        assert running.server._grpc is not None and running.server._grpc.calls == 0


def connect(served: Served) -> h2.Connection:
    return h2.Connection(served.server.ports["grpc"], 5)


def with_references(count: int) -> bytes:
    """The head of a call: a field of 4,000 bytes that the table keeps, and references to it."""
    size = bytes([127]) + h2.integer(4000 - 127)
    return h2.call_head(PATH) + b"\x40\1x" + size + b"a" * 4000 + b"\xbe" * count


def call(number: int, block: bytes) -> bytes:
    return h2.headers(number, block) + h2.frame(h2.DATA, h2.END_STREAM, number, LIST)


def edge_seconds(served: Served) -> float:
    """What its thread has spent."""
    return served.call(time.thread_time)


def is_alive(served: Served) -> bool:
    return served.client.get("/livez").status_code == 200


def status_of(answer: h2.Frame | None) -> int:
    """Of a head that is all of an answer: grpc-status, which is written there as it is."""
    assert answer is not None, "the call did not end"
    return int(answer.payload.partition(b"grpc-status")[2][1:3].lstrip(b"\1\2").split(b"\0")[0])


# ---- heads ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [100, 4000, 16_000])
def test_f01_repeats_are_counted_and_the_call_ends_alone(served: Served, count: int) -> None:
    with connect(served) as connection:
        connection.send(call(1, with_references(count)))
        assert status_of(connection.until(h2.HEADERS, 5)) == 8
        connection.frames.clear()
        # What the head has put into the table is there, and the connection goes on.
        connection.send(call(3, h2.call_head(PATH) + b"\xbe"))
        answer = connection.until(h2.HEADERS, 5)
        assert answer is not None and answer.stream == 3 and b"grpc-status" not in answer.payload


def test_f01_repeats_cost_no_more_than_their_bytes(served: Served) -> None:
    def attack(count: int) -> None:
        with connect(served) as connection:
            for number in range(1, 17, 2):
                connection.send(call(number, with_references(count)))
            assert connection.until(h2.HEADERS, 5) is not None

    grows_no_faster(served, attack, 4000)


def grows_no_faster(served: Served, attack: Callable[[int], None], count: int) -> None:
    spent: list[float] = []
    for times in (1, 4):
        begun = edge_seconds(served)
        attack(times * count)
        assert is_alive(served)
        spent.append(edge_seconds(served) - begun)
    assert spent[1] < GROWTH_MAX * max(spent[0], SECONDS_MIN)


def test_f01_fields_and_bytes_have_their_bounds(served: Served) -> None:
    with connect(served) as connection:
        for number, more in enumerate((b"".join(h2.field(b"x", b"y") for _ in range(94)), b"")):
            connection.send(call(2 * number + 1, h2.call_head(PATH) + more))
            connection.frames.clear()
            answer = connection.until(h2.HEADERS, 5)
            assert answer is not None and b"grpc-status" not in answer.payload
        connection.frames.clear()
        more = b"".join(h2.field(b"x", b"y") for _ in range(95))
        connection.send(call(5, h2.call_head(PATH) + more))
        while not (found := [f for f in connection.frames if f.stream == 5 and f.kind == 1]):
            assert connection.read(5)
        assert status_of(found[0]) == 8


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb", b"a\rb", b"a\0b"])
def test_f09_a_value_that_would_end_a_line_is_refused(served: Served, value: bytes) -> None:
    with connect(served) as connection:
        connection.send(call(1, h2.call_head(PATH) + h2.field(b"x-foo", value)))
        reset = connection.until(h2.RST_STREAM, 5)
        assert reset is not None and reset.code == 1
        assert not [one for one in connection.frames if one.kind == h2.HEADERS]


# ---- connections ---------------------------------------------------------------------------------
HEAD = h2.call_head(PATH)
CALLED = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, HEAD)
OPENED = h2.frame(h2.HEADERS, 0, 1, HEAD)
LITERALS = h2.frame(h2.CONTINUATION, 0, 1, h2.field(b"x", b"y" * 100) * 150)


def resets(begin: int) -> bytes:
    numbers = range(2 * begin + 1, 2 * begin + 2001, 2)
    reset = struct.pack("!I", h2.CANCEL)
    return b"".join(
        h2.frame(h2.HEADERS, h2.END_HEADERS, n, HEAD) + h2.frame(h2.RST_STREAM, 0, n, reset)
        for n in numbers
    )


FLOODS: list[Any] = [
    pytest.param(OPENED, LITERALS * 20, id="F05 literals in CONTINUATION"),
    pytest.param(OPENED, h2.frame(h2.CONTINUATION, 0, 1) * 5000, id="F05 empty CONTINUATION"),
    pytest.param(
        b"",
        b"".join(call(n, with_references(16_000)) for n in range(1, 401, 2)),
        id="F05 references on 200 streams",
    ),
    pytest.param(b"", resets(0), id="F06 rapid resets"),
    pytest.param(b"", h2.frame(h2.SETTINGS, 0, 0) * 5000, id="F06 SETTINGS"),
    pytest.param(
        b"",
        h2.frame(h2.SETTINGS, 0, 0, struct.pack("!HI", 4, 1000) * 2000) * 2500,
        id="F06 long SETTINGS",
    ),
    pytest.param(b"", h2.frame(h2.PING, 0, 0, bytes(8)) * 5000, id="F06 PING"),
    pytest.param(b"", h2.frame(2, 0, 1, bytes(5)) * 5000, id="F06 PRIORITY"),
    pytest.param(b"", h2.frame(99, 0, 1, b"") * 5000, id="F06 unknown"),
    pytest.param(CALLED, h2.frame(h2.DATA, 0, 1) * 5000, id="F06 empty DATA"),
    pytest.param(
        CALLED, h2.frame(h2.WINDOW_UPDATE, 0, 1, struct.pack("!I", 1)) * 5000, id="F06 windows"
    ),
]


@pytest.mark.parametrize(("first", "flood"), FLOODS)
def test_f05_f06_a_flood_ends_the_connection(served: Served, first: bytes, flood: bytes) -> None:
    begun = edge_seconds(served)
    with connect(served) as connection:
        connection.send(first)
        for at in range(0, len(flood), 1 << 16):
            if not connection.send(flood[at : at + (1 << 16)]):
                break
        connection.is_closed = False  # for sending; what it has been told can be read
        end = connection.until(h2.GOAWAY, 10)
        assert end is not None and end.code == ENHANCE_YOUR_CALM, end
    assert edge_seconds(served) - begun < 3.0
    assert is_alive(served)


def test_f06_what_is_within_the_bounds_is_served(served: Served) -> None:
    reset = struct.pack("!I", h2.CANCEL)
    with connect(served) as connection:
        for number in range(1, 401, 2):
            connection.send(h2.frame(h2.HEADERS, h2.END_HEADERS, number, HEAD))
            connection.send(h2.frame(h2.RST_STREAM, 0, number, reset))
        connection.send(h2.frame(h2.PING, 0, 0, bytes(8)) * 500)
        connection.send(call(401, HEAD))
        answer = connection.until(h2.HEADERS, 5)
        assert answer is not None and answer.stream == 401


def test_f06_a_client_that_does_not_read_is_not_served_further(served: Served) -> None:
    """Answers have no window while they are heads: those that nobody reads stop the reading."""
    with connect(served) as connection:
        connection._socket.settimeout(0.2)
        block = h2.call_head("/no/such")
        numbers = iter(range(1, 1 << 20, 2))
        sent = 0
        while sent < (64 << 20) and not connection.is_closed:
            part = b"".join(call(next(numbers), block) for _ in range(200))
            if not connection.send(part):
                break
            sent += len(part)
        assert sent < 64 << 20
    assert is_alive(served)


class Silent(h2.Connection):
    """It gives no window back."""

    def _take(self, one: h2.Frame) -> None:
        self.frames.append(one)

    def data_bytes(self) -> int:
        return sum(len(one.payload) for one in self.frames if one.kind == h2.DATA)


@pytest.mark.parametrize("shut", ["calls", "connection"])
def test_f06_calls_go_on_when_a_window_of_all_opens(served: Served, shut: str) -> None:
    """The connection's own, or the initial one of each call."""
    symbol = b"sublimate.v1.Messages"
    asked = h2.message(b"\x22" + bytes([len(symbol)]) + symbol)
    head = h2.call_head("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    large = h2.frame(h2.WINDOW_UPDATE, 0, 0, struct.pack("!I", 1 << 24))
    with Silent(served.server.ports["grpc"]) as connection:
        initial, most = (0, 0) if shut == "calls" else (1 << 24, 65_535)
        connection.send(h2.frame(h2.SETTINGS, 0, 0, struct.pack("!HI", 4, initial)))
        for number in range(1, 81, 2):
            connection.send(h2.headers(number, head))
            connection.send(h2.frame(h2.DATA, h2.END_STREAM, number, asked))
        while connection.read(0.3) or connection.data_bytes() < most:
            pass
        assert connection.data_bytes() == most
        if shut == "calls":
            connection.send(h2.frame(h2.SETTINGS, 0, 0, struct.pack("!HI", 4, 1 << 24)))
        connection.send(large)
        ended: set[int] = set()
        while len(ended) < 40:
            assert connection.read(5)
            heads = [one for one in connection.frames if one.kind == h2.HEADERS]
            ended = {one.stream for one in heads if one.flags & h2.END_STREAM}


def test_f06_calls_of_a_library_are_as_before(served: Served) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{served.server.ports['grpc']}") as channel:
        method = channel.unary_unary(
            PATH, response_deserializer=messages_pb2.ListModelsResponse.FromString
        )
        for _ in range(300):
            assert method(b"").data
        with pytest.raises(grpc.RpcError) as caught:
            method(b"", metadata=[("x", "y" * 5000)] * 4)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert method(b"").data


def of_window(number: int, more: int) -> bytes:
    return h2.frame(h2.WINDOW_UPDATE, 0, number, struct.pack("!I", more))


LARGEST = (1 << 31) - 1
INITIAL = h2.frame(h2.SETTINGS, 0, 0, struct.pack("!HI", 4, 1 << 30))


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(of_window(0, 0), 1, id="nothing for the connection"),
        pytest.param(of_window(0, LARGEST), 3, id="too much for the connection"),
        pytest.param(of_window(1, LARGEST - 65_535) + INITIAL, 3, id="too much by a setting"),
        pytest.param(h2.frame(h2.SETTINGS, 0, 0, struct.pack("!HI", 2, 2)), 1, id="ENABLE_PUSH"),
        pytest.param(h2.frame(2, 0, 0, bytes(5)), 1, id="PRIORITY of the connection"),
        pytest.param(h2.frame(2, 0, 1, bytes(4)), 6, id="short PRIORITY"),
        pytest.param(h2.frame(h2.HEADERS, 32, 3, bytes(4)), 6, id="short priority of HEADERS"),
        pytest.param(h2.frame(h2.GOAWAY, 0, 1, bytes(8)), 1, id="GOAWAY of a stream"),
        pytest.param(h2.frame(h2.GOAWAY, 0, 0, bytes(7)), 6, id="short GOAWAY"),
    ],
)
def test_frames_that_end_a_connection(served: Served, sent: bytes, code: int) -> None:
    with connect(served) as connection:
        connection.send(h2.headers(1, h2.call_head(PATH)) + sent)
        last = connection.until(h2.GOAWAY, 5)
        assert last is not None and struct.unpack_from("!I", last.payload, 4)[0] == code


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(of_window(1, 0), 1, id="no window"),
        pytest.param(of_window(1, LARGEST), 3, id="too much window"),
        pytest.param(h2.headers(1, h2.field(b":path", b"/"), 1), 1, id="trailers with a path"),
        pytest.param(h2.headers(1, h2.field(b"X", b"y"), 1), 1, id="trailers in upper case"),
        pytest.param(h2.headers(1, h2.field(b"x", b"y")), 1, id="trailers that do not end it"),
    ],
)
def test_frames_that_end_a_call(served: Served, sent: bytes, code: int) -> None:
    with connect(served) as connection:
        connection.send(h2.headers(1, h2.call_head(PATH)) + sent)
        ended = connection.until(h2.RST_STREAM, 5)
        assert ended is not None and struct.unpack("!I", ended.payload)[0] == code
        connection.send(call(3, h2.call_head(PATH)))
        assert connection.until(h2.DATA, 5) is not None, "the connection goes on"


def test_settings_come_first(served: Served) -> None:
    class Hasty(h2.Connection):
        def send(self, data: bytes) -> bool:
            if data.startswith(h2.PREFACE):
                data = h2.PREFACE + h2.frame(h2.PING, 0, 0, bytes(8))
            return super().send(data)

    with Hasty(served.server.ports["grpc"]) as connection:
        last = connection.until(h2.GOAWAY, 5)
        assert last is not None and last.code == 1
        assert not connection.until(h2.PING, 5)


def test_a_stream_is_not_opened_again(served: Served) -> None:
    with connect(served) as connection:
        connection.send(call(1, HEAD))
        assert connection.until(h2.DATA, 5) is not None
        connection.send(h2.headers(1, h2.field(b"x", b"y"), h2.END_STREAM) + call(3, HEAD))
        connection.frames.clear()
        assert connection.until(h2.DATA, 5) is not None, "trailers of what is over are ignored"
        connection.send(call(1, HEAD))
        last = connection.until(h2.GOAWAY, 5)
        assert last is not None and last.code == 5


def test_trailers_are_ignored(served: Served) -> None:
    with connect(served) as connection:
        asked = h2.headers(1, h2.call_head(PATH)) + h2.frame(h2.DATA, 0, 1, LIST)
        connection.send(asked + h2.headers(1, h2.field(b"x", b"y"), h2.END_STREAM))
        assert connection.until(h2.DATA, 5) is not None


def test_a_target_that_is_too_long_has_its_own_status(served: Served) -> None:
    """x-http-status says what it would be over HTTP."""
    path = b"/" + b"a" * 20_000
    size = bytes([127]) + h2.integer(len(path) - 127)
    with connect(served) as connection:
        connection.send(call(1, b"\x04" + size + path + h2.call_head(PATH)))
        answer = connection.until(h2.HEADERS, 5)
        assert status_of(answer) == 8
        assert answer is not None and b"x-http-status\x03414" in answer.payload


def test_few_refused_connections_may_stay() -> None:
    with serve(grpc=True, limits=HttpLimits(connections_max=1)) as served:
        more = [connect(served) for _ in range(limits.REFUSED_CONNECTIONS_MAX + 9)]
        ends = [connection.until(h2.GOAWAY, 5) for connection in more[1:]]
        assert {end.code if end is not None else -1 for end in ends} == {ENHANCE_YOUR_CALM}
        assert served.server.metrics.connections_refused == len(ends)
        assert served.call(lambda: len(served.server._refused)) <= limits.REFUSED_CONNECTIONS_MAX
        for connection in more:
            connection.__exit__()
        wait_until(lambda: not served.server._refused)


@pytest.mark.parametrize("length", [0, 3, len(LIST), 10**17])
def test_a_length_that_is_not_that_of_the_body_is_malformed(served: Served, length: int) -> None:
    head = h2.call_head(PATH) + h2.field(b"content-length", str(length).encode())
    with connect(served) as connection:
        connection.send(h2.headers(1, head) + h2.frame(h2.DATA, h2.END_STREAM, 1, LIST))
        kind = h2.HEADERS if length == len(LIST) else h2.RST_STREAM
        assert connection.until(kind, 5) is not None
        assert {one.kind for one in connection.frames if one.stream == 1} >= {kind}
        connection.send(h2.headers(3, h2.call_head(PATH)))
        connection.send(h2.frame(h2.DATA, h2.END_STREAM, 3, LIST))
        assert connection.until(h2.DATA, 5) is not None, "the connection goes on"


# ---- blocks --------------------------------------------------------------------------------------
def test_f01_blocks_of_the_standards_examples() -> None:
    """RFC 7541, appendix C.4 and C.6: packed strings, and a table from block to block."""
    decoder = HeadDecoder(1 << 14, 100)
    first = bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")
    second = bytes.fromhex("828684be5886a8eb10649cbf")
    common = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")]
    authority = (b":authority", b"www.example.com")
    assert decoder.decode(first) == [*common, authority]
    assert decoder.decode(second) == [*common, authority, (b"cache-control", b"no-cache")]


@pytest.mark.parametrize(
    "block",
    [b"\x80", b"\xbe", b"\x40", b"\x40\x05ab", b"\xff\xff\xff\xff\xff\xff\xff", b"\x3f\xff\xff"],
)
def test_f01_what_is_no_block_is_told(block: bytes) -> None:
    with pytest.raises(HpackError):
        HeadDecoder(1 << 14, 100).decode(block)


def test_f01_what_is_written_is_read() -> None:
    fields = [("grpc-status", "0"), ("x", "y" * 300), ("empty", "")]
    head = HeadDecoder(1 << 14, 100).decode(encoded_head(200, fields))
    expected = [(name.encode(), value.encode()) for name, value in fields]
    assert head == [(b":status", b"200"), *expected]
    assert HeadDecoder(1 << 14, 100).decode(encoded(fields)) == expected


def test_f05_a_compressed_message_has_a_bound() -> None:
    def fed(message: bytes) -> list[bytes]:
        reader = MessageReader(1 << 30, b"gzip")
        return reader.feed(b"\1" + struct.pack("!I", len(message)) + message)

    assert fed(gzip.compress(b"hello")) == [b"hello"]
    for bad in (gzip.compress(bytes(limits.GRPC_INFLATED_BYTES_MAX + 1)), b"no gzip", b""):
        with pytest.raises(ApiError):
            fed(bad)
