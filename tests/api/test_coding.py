"""gzip over the wire: whole answers for clients that take it, request bodies if switched on."""

import gzip
from collections.abc import Iterator

import msgspec
import pytest

from harness import Served, body, exchange_bytes, http_post, is_closed, serve
from sublimate.config import EdgeSettings
from sublimate.edge import limits
from sublimate.edge.limits import HttpLimits
from test_errors import check_error

BODY_MAX = 100_000


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    settings = EdgeSettings(request_gzip=True)
    with serve(settings=settings, limits=HttpLimits(body_bytes_max=BODY_MAX)) as running:
        yield running


def zipped(content: object = "say hello") -> bytes:
    return gzip.compress(msgspec.json.encode(body(content)))


def test_a_compressed_body_is_read(served: Served) -> None:
    for coding in ("gzip", "x-gzip", "GZIP"):
        reply = served.client.post(
            "/v1/messages", content=zipped(), headers={"content-encoding": coding}
        )
        assert reply.json()["content"][0]["text"] == "Hello there!"


def test_it_may_come_in_chunks_and_the_next_request_is_plain(served: Served) -> None:
    data = zipped()
    head = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-encoding: gzip\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (1, data[i : i + 1]) for i in range(len(data)))
    with served.connect() as sock:
        request = head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        assert exchange_bytes(sock, request).status == 200
        assert exchange_bytes(sock, http_post(body())).status == 200


def test_a_bomb_is_413_before_it_is_a_body(served: Served) -> None:
    bomb = gzip.compress(bytes(64 << 20))
    assert len(bomb) < BODY_MAX
    with served.connect() as sock:
        reply = exchange_bytes(sock, http_post(bomb, content_encoding="gzip"))
        assert reply.status == 413
        details = reply.json["error"]["details"]
        assert details["error_code"] == "request_body_too_large_after_decoding"
        assert reply.json["request_id"] == reply.headers["request-id"]
        assert is_closed(sock)


@pytest.mark.parametrize(
    "data",
    [b"{}", zipped()[:-3], zipped() + b"x"],
    ids=["no gzip", "cut", "a byte behind"],
)
def test_what_is_no_gzip_is_400(served: Served, data: bytes) -> None:
    headers = {"content-encoding": "gzip"}
    reply = served.client.post("/v1/messages", content=data, headers=headers)
    check_error(reply, 400)
    assert reply.json()["error"]["details"]["error_code"] == "request_body_encoding_invalid"


def test_other_codings_are_refused_as_ever(served: Served) -> None:
    for coding in ("br", "deflate", "gzip, gzip", "zstd"):
        headers = {"content-encoding": coding}
        reply = served.client.post("/v1/messages", content=zipped(), headers=headers)
        check_error(reply, 400)


def test_large_answers_are_compressed_for_who_takes_it(served: Served) -> None:
    plain = served.client.get("/openapi.json", headers={"accept-encoding": "identity"})
    assert len(plain.content) > 8192 and "content-encoding" not in plain.headers
    assert plain.headers["vary"] == "accept-encoding"
    with served.client.stream(
        "GET", "/openapi.json", headers={"accept-encoding": "br, gzip"}
    ) as reply:
        raw = b"".join(reply.iter_raw())
    assert reply.headers["content-encoding"] == "gzip"
    assert int(reply.headers["content-length"]) == len(raw) < len(plain.content) / 2
    assert gzip.decompress(raw) == plain.content
    head = served.client.head("/openapi.json", headers={"accept-encoding": "gzip"})
    assert head.headers["content-length"] == reply.headers["content-length"]


def test_small_answers_and_streams_are_not(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"accept-encoding": "gzip"}
    small = served.client.post("/v1/messages", json=body(), headers=headers)
    assert "content-encoding" not in small.headers
    monkeypatch.setattr(limits, "GZIP_BYTES_MIN", 1024)  # a stream that is read late is short
    stream = body("count", stream=True, max_tokens=4000)
    with served.client.stream("POST", "/v1/messages", json=stream, headers=headers) as reply:
        raw = b"".join(reply.iter_raw())
    assert "content-encoding" not in reply.headers and len(raw) > 1024
    assert raw.startswith(b"event: message_start")
