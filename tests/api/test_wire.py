"""Raw sockets: limits, deadlines and framing, one behaviour each."""

import gzip
import json
import select
import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest

from grammar import check_stream
from harness import (
    Served,
    body,
    exchange_bytes,
    http_get,
    http_post,
    is_closed,
    is_cut,
    read_reply,
    serve,
    unchunk,
    wait_until,
)
from sublimate.config import EdgeSettings
from sublimate.edge import limits
from sublimate.edge.limits import HttpLimits

POST = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
GET = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n"


def refused(served: Served, data: bytes, status: int = 400) -> None:
    """The bytes are answered with the status in the envelope, and the connection ends."""
    with served.connect() as sock:
        reply = exchange_bytes(sock, data)
        assert reply.status == status, reply
        assert reply.json["type"] == "error"
        assert reply.json["request_id"] == reply.headers["request-id"]
        assert reply.headers["connection"] == "close"
        assert is_closed(sock)


@pytest.mark.parametrize(
    "data",
    [
        POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        POST + b"content-length: 5\r\ncontent-length: 5\r\n\r\nabcde",
        POST + b"content-length: 5, 5\r\n\r\nabcde",
        POST + b"content-length: +5\r\n\r\nabcde",
        POST + b"content-length: 0x5\r\n\r\nabcde",
        POST + b"content-length : 5\r\n\r\nabcde",
        POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED + b"5\r\nabcdeXX0\r\n\r\n",
        CHUNKED + b"5\nabcde\r\n0\r\n\r\n",
        CHUNKED + b"5;a\nb\r\nabcde\r\n0\r\n\r\n",
        CHUNKED + b"5;a\x01b\r\nabcde\r\n0\r\n\r\n",
        CHUNKED + b"5 \r\nabcde\r\n0\r\n\r\n",
        CHUNKED + b"0x5\r\nabcde\r\n0\r\n\r\n",
        CHUNKED + b"ffffffffffffffffff\r\nabcde\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\nhost: x\n\n",
        b"GET / HTTP/1.1\r\nhost: x\na: b\r\n\r\n",
        GET + b"a: b\r\n c\r\n\r\n",
        GET + b"a b: c\r\n\r\n",
        GET + b"a: b\x00c\r\n\r\n",
        GET + b": c\r\n\r\n",
        GET + b"host: y\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\nhost: localhost\r\n\r\n",
        b"GET /\x01 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"BREW / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        bytes.fromhex("16030102000100"),
        GET + b"authorization: a\r\nauthorization: b\r\n\r\n",
    ],
    ids=range(34),
)
def test_doubtful_framing_is_refused_and_closes(shared: Served, data: bytes) -> None:
    refused(shared, data)


def test_the_path_of_an_absolute_target_counts_and_its_host_does_not(shared: Served) -> None:
    with shared.connect() as sock:
        absolute = b"GET http://evil.test/livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
        assert exchange_bytes(sock, absolute).status == 200


# ---- head ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "head",
    [
        b"x-forwarded-for: " + b"A" * 20_000 + b"\r\n\r\n",
        b"x-forwarded-for: " + b"A" * 20_000,
        b"".join(b"h%d: v\r\n" % number for number in range(101)) + b"\r\n",
        b"cookie: " + b"\r\ncookie: ".join([b"c" * 1000] * 17) + b"\r\n\r\n",
    ],
    ids=["long field", "unfinished field", "many fields", "sum of fields"],
)
def test_large_heads_are_431(shared: Served, head: bytes) -> None:
    refused(shared, GET + head, 431)


@pytest.mark.parametrize("size", [16_400, 17_000, 100_000])
def test_long_targets_are_414(shared: Served, size: int) -> None:
    """RFC 9112, 3."""
    refused(shared, b"GET /" + b"a" * size + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", 414)


def test_a_head_without_end_keeps_memory_flat(shared: Served) -> None:
    with shared.connect() as sock:
        sock.sendall(GET + b"x: ")
        sent = 0
        try:
            for _ in range(1000):
                sent += sock.send(b"A" * 65536)
        except OSError:
            pass
        assert sent < 64 * 1024 * 1024, "the connection was cut long before"


def test_a_head_just_within_the_limits_is_taken(shared: Served) -> None:
    head = b"x: " + b"A" * 15_000 + b"\r\n"
    head += b"".join(b"h%d: v\r\n" % number for number in range(90))
    with shared.connect() as sock:
        assert exchange_bytes(sock, GET + head + b"\r\n").status == 200


def test_heads_arrive_in_any_pieces(shared: Served) -> None:
    data = http_post(body())
    with shared.connect() as sock:
        for at in range(0, len(data), 7):
            sock.sendall(data[at : at + 7])
        assert read_reply(sock).status == 200


# ---- deadlines -----------------------------------------------------------------------------------
QUICK = HttpLimits(header_seconds=0.4, body_seconds=0.9, keep_alive_seconds=30)


def test_silence_after_accept_ends_at_the_deadline() -> None:
    with serve(limits=QUICK) as served, served.connect() as sock:
        begun = time.monotonic()
        assert is_closed(sock)
        assert 0.3 < time.monotonic() - begun < 3.5


def test_a_trickled_head_ends_at_the_absolute_deadline() -> None:
    with serve(limits=QUICK) as served, served.connect() as sock:
        begun = time.monotonic()
        reply = trickle(sock, http_get("/livez")[:-2] + b"x: " + b"a" * 1000)
        assert reply == 408
        assert time.monotonic() - begun < 3


def test_a_trickled_body_ends_at_the_absolute_deadline() -> None:
    with serve(limits=QUICK) as served, served.connect() as sock:
        begun = time.monotonic()
        head, _, rest = http_post(body("x" * 1000)).partition(b"\r\n\r\n")
        sock.sendall(head + b"\r\n\r\n")
        assert trickle(sock, rest) == 408
        assert 0.7 < time.monotonic() - begun < 4


def trickle(sock: socket.socket, data: bytes) -> int:
    """Send a byte every 20 ms; the status of what comes back before the end."""
    for byte in data:
        sock.sendall(bytes([byte]))
        if select.select([sock], [], [], 0.02)[0]:
            return read_reply(sock).status
    raise AssertionError("nobody stopped the trickle")


def test_idle_connections_outlive_the_other_deadlines() -> None:
    with serve(limits=QUICK) as served, served.connect() as sock:
        assert exchange_bytes(sock, http_get("/livez")).status == 200
        time.sleep(1.5)
        assert exchange_bytes(sock, http_post(body())).status == 200


def test_idle_connections_are_kept_longer_than_clients_pool_them() -> None:
    assert HttpLimits().keep_alive_seconds >= 120
    with serve(limits=HttpLimits(keep_alive_seconds=0.3)) as served, served.connect() as sock:
        assert exchange_bytes(sock, http_get("/livez")).status == 200
        assert is_closed(sock)


# ---- bodies --------------------------------------------------------------------------------------
SMALL = HttpLimits(body_bytes_max=1000)


def test_a_declared_length_beyond_the_limit_is_413_before_the_body() -> None:
    with serve(limits=SMALL) as served:
        refused(served, POST + b"content-length: 1001\r\n\r\n", 413)


def test_a_chunked_body_beyond_the_limit_is_413() -> None:
    with serve(limits=SMALL) as served:
        refused(served, CHUNKED + b"3e8\r\n" + b"a" * 1000 + b"\r\n1\r\nb\r\n", 413)


def test_the_client_reads_the_refusal_while_it_still_sends() -> None:
    with serve(limits=SMALL) as served, served.connect() as sock:
        sock.sendall(POST + b"content-length: 3000000\r\n\r\n")
        sender = threading.Thread(target=send_quietly, args=(sock, b"a" * 3_000_000))
        sender.start()
        reply = read_reply(sock)
        sender.join()
        assert reply.status == 413 and reply.json["error"]["type"] == "request_too_large"


def send_quietly(sock: socket.socket, data: bytes) -> None:
    try:
        sock.sendall(data)
    except OSError:
        return


def test_chunked_bodies_and_trailers_are_taken(shared: Served) -> None:
    from msgspec.json import encode

    data = encode(body())
    chunks = b"".join(b"%x;x=y\r\n%b\r\n" % (len(part), part) for part in (data[:9], data[9:]))
    with shared.connect() as sock:
        trailer = b"0\r\nx-api-key: nothing\r\n\r\n"
        assert exchange_bytes(sock, CHUNKED + chunks + trailer).status == 200
        assert exchange_bytes(sock, http_get("/livez")).status == 200


def test_one_byte_chunks_are_refused(shared: Served) -> None:
    with shared.connect() as sock:
        send_quietly(sock, CHUNKED + b"1\r\na\r\n" * 40_000)
        reply = read_reply(sock)
        assert reply.status == 400 and "chunks" in reply.json["error"]["message"]


def test_long_chunk_extensions_are_refused(shared: Served) -> None:
    with shared.connect() as sock:
        send_quietly(sock, CHUNKED + (b"1;" + b"x" * 1000 + b"\r\na\r\n") * 300)
        assert read_reply(sock).status == 400


def test_many_trailer_fields_are_refused(shared: Served) -> None:
    trailer = b"".join(b"t%d: v\r\n" % number for number in range(200))
    refused(shared, CHUNKED + b"1\r\n{\r\n0\r\n" + trailer + b"\r\n", 431)


def test_a_compressed_body_is_refused(shared: Served) -> None:
    with shared.connect() as sock:
        bomb = gzip.compress(b"0" * 10_000_000)
        reply = exchange_bytes(sock, http_post(bomb, content_encoding="gzip"))
        assert reply.status == 400
        code = reply.json["error"]["details"]["error_code"]
        assert code == "request_body_encoding_unsupported"


def test_expect_continue_is_answered(shared: Served) -> None:
    head, _, rest = http_post(body(), expect="100-continue").partition(b"\r\n\r\n")
    with shared.connect() as sock:
        sock.sendall(head + b"\r\n\r\n")
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert exchange_bytes(sock, rest).status == 200


def test_expect_continue_is_refused_before_the_body() -> None:
    with serve(limits=SMALL) as served:
        head = POST + b"expect: 100-continue\r\ncontent-length: 2000\r\n\r\n"
        refused(served, head, 413)


# ---- connections ---------------------------------------------------------------------------------
def test_pipelined_requests_are_answered_in_order(shared: Served) -> None:
    both = http_post(body("say hello")) + http_post(body("say stop")) + http_get("/nope")
    with shared.connect() as sock:
        sock.sendall(both)
        received = b""
        while received.count(b"HTTP/1.1 ") < 3 or not received.endswith(b"}"):
            received += sock.recv(65536)
    places = [received.find(text) for text in (b"Hello there", b"A B STOP", b"There is nothing")]
    assert places == sorted(places) and places[0] > 0


@pytest.mark.parametrize(
    "behind", [b"garbage\r\n\r\n", http_post(body()) * 30], ids=["bad", "many"]
)
def test_answers_that_are_owed_come_before_the_refusal(behind: bytes) -> None:
    with serve(step_delay_us=2000) as served, served.connect() as sock:
        sock.sendall(http_post(body("say stop")) + http_post(body("say hello")) + behind)
        received = b""
        while more := sock.recv(65536):
            received += more
        assert received.index(b"A B STOP C") < received.index(b"Hello there")
        *_, last = received.split(b"HTTP/1.1 ")
        assert last.startswith(b"400 ") and b"connection: close" in last
        assert received.count(b"HTTP/1.1 200") == (2 if behind.startswith(b"garbage") else 17)
        assert served.server.metrics.responses["400"] == 1


def test_nothing_behind_a_refusal_that_is_owed_is_begun() -> None:
    with serve(step_delay_us=20_000) as served, served.connect() as sock:
        sock.sendall(http_post(body("say hello")) + b"garbage\r\n\r\n")
        wait_until(lambda: served.region.stats()["running"] == 1)
        sock.sendall(http_post(body("say stop")))
        received = b""
        while more := sock.recv(65536):
            received += more
        assert b"Hello there" in received and b"A B STOP" not in received
        assert served.region.stats()["accepted"] == 1


@pytest.mark.parametrize(
    ("before", "count"),
    [
        pytest.param(http_get("/livez"), 450, id="heads"),
        pytest.param(http_post(body("x" * 18_000), "/v1/messages/count_tokens"), 1, id="body"),
        pytest.param(http_post({}, "/v1/messages/count_tokens"), 1200, id="small bodies"),
    ],
)
@pytest.mark.parametrize("last", [http_get("/livez"), http_post(body("say stop"))])
def test_requests_before_a_head_are_no_part_of_it(
    shared: Served, before: bytes, count: int, last: bytes
) -> None:
    def received(is_all: Callable[[bytes], bool]) -> bytes:
        data = b""
        while not is_all(data):
            more = sock.recv(65536)
            assert more, data[-300:]
            data += more
        return data

    with shared.connect() as sock:
        sock.sendall(before * count + last[:20])
        received(lambda data: data.count(b"HTTP/1.1 ") == count and data.endswith((b"}", b"ok")))
        sock.sendall(last[20:])
        assert received(lambda data: b"\r\n\r\n" in data).startswith(b"HTTP/1.1 200 ")


def test_too_much_pipelined_is_cut() -> None:
    with serve(step_delay_us=20_000) as served, served.connect() as sock:
        sock.sendall(http_post(body("count", max_tokens=200)))
        wait_until(lambda: served.region.stats()["running"] == 1)
        send_quietly(sock, http_get("/livez") * 5000)
        assert is_cut(sock)
        wait_until(served.idle)


def test_http_1_0_gets_an_answer_without_chunks(shared: Served) -> None:
    data = http_post(body("say hello", stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0")
    with shared.connect() as sock:
        sock.sendall(data)
        received = b""
        while more := sock.recv(65536):
            received += more
    head, _, rest = received.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head and b"connection: close" in head
    assert check_stream(rest).text == "Hello there!"


def test_connection_close_is_honoured(shared: Served) -> None:
    with shared.connect() as sock:
        reply = exchange_bytes(sock, http_get("/livez", connection="close"))
        assert reply.headers["connection"] == "close" and is_closed(sock)


H2C = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABk"}
WEBSOCKET = {"connection": "keep-alive, Upgrade", "upgrade": "websocket"}


@pytest.mark.parametrize("asked", [H2C, WEBSOCKET, {**H2C, "upgrade": "h2c, TLS/1.3"}])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_f13_an_upgrade_is_ignored_and_its_body_served(
    shared: Served, asked: dict[str, str], is_chunked: bool
) -> None:
    data = http_post(body(), **asked)
    if is_chunked:
        head, _, content = data.partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.startswith(b"content-length")]
        head = b"\r\n".join([*lines, b"transfer-encoding: chunked"])
        data = head + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
    with shared.connect() as sock:
        for pieces in (1, 3, len(data)):
            size = -(-len(data) // pieces)
            for at in range(0, len(data), size):
                sock.sendall(data[at : at + size])
            assert read_reply(sock).json["content"], "the same connection goes on"


def test_f13_upgrades_follow_each_other_in_one_read(shared: Served) -> None:
    data = http_post(body(), **H2C) + http_get("/livez", **WEBSOCKET)
    with shared.connect() as sock:
        sock.sendall(data * 3)
        received = b""
        while received.count(b'"ok"') < 3:
            received += sock.recv(65536)
        assert received.count(b"HTTP/1.1 200") == 6


def test_f13_what_follows_an_upgrade_is_http(shared: Served) -> None:
    with shared.connect() as sock:
        sock.sendall(http_get("/livez", **WEBSOCKET) + b"\x00\x01rest")
        received = b""
        while piece := sock.recv(65536):
            received += piece
        assert received.startswith(b"HTTP/1.1 200") and b"HTTP/1.1 400" in received


def test_f13_a_tunnel_is_refused(shared: Served) -> None:
    with shared.connect() as sock:
        sock.sendall(b"CONNECT a:1 HTTP/1.1\r\nhost: localhost\r\n\r\n\x00\x01")
        assert read_reply(sock).status >= 400 and is_closed(sock)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expect", "a-thing; q=1"),
        ("te", "trailers, deflate;q=0.5"),
        ("trailer", "x-checksum"),
        ("connection", "keep-alive, x-hop, TE"),
        ("keep-alive", "timeout=5, max=2"),
        ("proxy-connection", "keep-alive"),
        ("range", "bytes=0-10"),
        ("if-match", '"a"'),
        ("if-none-match", "*"),
        ("if-modified-since", "yesterday"),
        ("prefer", "respond-async"),
        ("max-forwards", "0"),
        ("content-language", "de"),
        ("content-md5", "none"),
        ("content-encoding", ""),
        ("accept", "text/html;q=0.1, x"),
        ("accept-charset", "utf-7"),
        ("accept-encoding", "br;q=1.0, *;q=0"),
        ("cookie", "a=b; c"),
        ("forwarded", "for=;"),
        ("traceparent", "zz"),
        ("sec-websocket-key", "x"),
        ("http2-settings", "%%"),
        ("upgrade-insecure-requests", "1"),
        ("date", "never"),
    ],
)
def test_f13_optional_fields_are_ignored(shared: Served, name: str, value: str) -> None:
    with shared.connect() as sock:
        for _ in range(2):
            assert exchange_bytes(sock, http_post(body(), **{name: value})).status == 200


def test_f13_an_expectation_is_met_wherever_it_stands_in_the_list(shared: Served) -> None:
    head, _, content = http_post(body(), expect="x, 100-Continue").partition(b"\r\n\r\n")
    with shared.connect() as sock:
        sock.sendall(head + b"\r\n\r\n")
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert exchange_bytes(sock, content).status == 200


@pytest.mark.parametrize("space", [" ", "\t", " \t "])
def test_f14_white_space_around_a_value_is_not_part_of_it(space: str) -> None:
    settings = EdgeSettings(api_keys=("a-key",))
    with serve(settings=settings) as served, served.connect() as sock:
        for name, value in (("x-api-key", "a-key"), ("authorization", "Bearer a-key")):
            data = http_post(body(), **{name: f"{space}{value}{space}"})
            assert exchange_bytes(sock, data).status == 200
        head, end, content = http_post(body(), **{"x-api-key": "a-key"}).partition(b"\r\n\r\n")
        first, *fields = head.split(b"\r\n")
        spaced = [field + space.encode() for field in fields]
        data = b"\r\n".join([first, *spaced]) + end + content
        assert exchange_bytes(sock, data).status == 200


@pytest.mark.parametrize("space", [b" ", b"\t", b" \t\t "])
def test_f14_transfer_encoding(shared: Served, space: bytes) -> None:
    data = POST + b"transfer-encoding: chunked" + space + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    with shared.connect() as sock:
        assert b"field required" in exchange_bytes(sock, data).body
        assert exchange_bytes(sock, http_get("/livez")).status == 200


def test_f14_a_line_of_white_space_does_not_end_a_head(shared: Served) -> None:
    for line in (b"\t\r\n", b"a: b\r\n\t\r\n", b"a\t\r\n", b"a\t: b\t\r\n"):
        refused(shared, GET + line + b"c: d\t\r\n\r\n")


def test_head_has_no_body(shared: Served) -> None:
    with shared.connect() as sock:
        sock.sendall(http_get("/v1/models", "HEAD") + http_get("/livez"))
        received = b""
        while b'"ok"' not in received:
            received += sock.recv(65536)
        assert received.count(b"HTTP/1.1 200") == 2 and b'"data"' not in received


def test_the_connection_cap() -> None:
    with serve(limits=HttpLimits(connections_max=3)) as served:
        socks = [served.connect() for _ in range(3)]
        assert all(exchange_bytes(sock, http_get("/livez")).status == 200 for sock in socks)
        refused(served, b"", 503)
        for _ in range(20):
            # What was sent before it was refused does not take the refusal away.
            with served.connect() as sock:
                sock.sendall(http_post(body()))
                time.sleep(0.005)
                sock.sendall(b"more")
                assert read_reply(sock).status == 503
        for sock in socks:
            sock.close()
        wait_until(lambda: served.call(lambda: served.server.metrics.connections) == 0)
        assert served.message().status_code == 200
    assert 0 < HttpLimits().connection_cap() < 1 << 20


def test_few_of_the_refused_may_stay() -> None:
    with serve(limits=HttpLimits(connections_max=1)) as served:
        socks = [served.connect() for _ in range(limits.REFUSED_CONNECTIONS_MAX + 9)]
        assert exchange_bytes(socks[0], http_get("/livez")).status == 200
        refusals = [read_reply(sock) for sock in socks[1:]]
        statuses = {reply.status for reply in refusals}
        assert statuses == {503}, "those that sent nothing read it in any case"
        assert min(int(reply.headers["retry-after"]) for reply in refusals) >= 1
        wait_until(lambda: 0 < len(served.server._refused) <= limits.REFUSED_CONNECTIONS_MAX)
        for sock in socks:
            sock.close()
        wait_until(lambda: not served.server._refused)


# ---- slow readers --------------------------------------------------------------------------------
def test_a_slow_reader_is_cut_and_the_others_go_on() -> None:
    limits = HttpLimits(unsent_bytes_max=32 * 1024)
    flood: dict[str, str | bytes] = {"say hello": "Hello there!", "flood": "\x01" * 100_000}
    with (
        serve(limits=limits, context_tokens=131072, answers=flood, step_delay_us=20) as served,
        socket.socket() as slow,
    ):
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", served.port))
        endless = body("flood", max_tokens=100_000, stream=True)
        slow.sendall(http_post(endless))
        wait_until(lambda: served.region.stats()["running"] == 1)
        assert check_stream(served.message(stream=True).content).text == "Hello there!"
        ends = served.metrics.ends
        wait_until(lambda: ends["slow_reader"] == 1, 60)
        wait_until(served.idle)
        assert served.engine.audit() == ""


def test_an_event_larger_than_what_may_wait_is_delivered() -> None:
    """Each event of a response repeats its instructions; the client takes them as it can."""
    limits = HttpLimits(unsent_bytes_max=16 * 1024)
    asked = {
        "model": "tiny",
        "input": "say hello",
        "instructions": "\x01" * 100_000,
        "stream": True,
        "max_output_tokens": 8,
    }
    sent = json.dumps(asked).encode()
    head = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(sent)
    with (
        serve(limits=limits, context_tokens=131072, pages=1 << 14) as served,
        socket.socket() as slow,
    ):
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        slow.settimeout(20)
        slow.connect(("127.0.0.1", served.port))
        slow.sendall(head + sent)
        received = bytearray()
        while piece := slow.recv(65536):
            received += piece
            time.sleep(0.0005)
        assert b"response.completed" in received or b"response.incomplete" in received
        assert served.metrics.ends["slow_reader"] == 0


def test_reset_instead_of_close() -> None:
    with serve(step_delay_us=2000) as served:
        sock = served.connect()
        sock.sendall(http_post(body("count", max_tokens=3000, stream=True)))
        sock.recv(100)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        wait_until(served.idle)
        assert served.metrics.ends["client_gone"] == 1


def test_chunks_of_a_stream_are_whole_frames() -> None:
    """Each HTTP chunk is a batch of whole events, so that readers by chunk see no torn event."""
    with serve(step_delay_us=1000) as served, served.connect() as sock:
        request = body("say utf8", stream=True)
        reply = exchange_bytes(sock, http_post(request))
        assert reply.status == 200
        assert check_stream(reply.body).text == '😸 你好 é\\ "q"\n\ttab'
        sock.sendall(http_post(request))
        raw = b""
        while not raw.endswith(b"0\r\n\r\n"):
            raw += sock.recv(65536)
        data = raw.partition(b"\r\n\r\n")[2]
        while data[:3] != b"0\r\n":
            size, _, data = data.partition(b"\r\n")
            assert data[: int(size, 16)].endswith(b"\n\n")
            data = data[int(size, 16) + 2 :]
        assert unchunk(raw.partition(b"\r\n\r\n")[2]).count(b"event: message_stop") == 1
