"""Calls of gRPC over HTTP/3, as a server that follows the proposal answers them: what the caller
gets is HTTP's."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from quic_peer import Connection, Headers, Peer, peer
from sublimate.client.calls import Call
from sublimate.client.choice import Kind, Plan
from sublimate.client.library import CarrierError
from sublimate.client.mapping import FlagCutter, framed
from sublimate.v1 import frames_pb2, messages_pb2
from sublimate.wire.frames import message_of
from test_client_quic import known, network, whole

ONLY = Plan(("grpc-h3",))
TYPE = ("content-type", "application/grpc+proto")
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "tiny",
    "content": [{"type": "text", "text": "Hello"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "stop_details": None,
    "container": None,
    "diagnostics": None,
    "usage": {
        "input_tokens": 1,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 2,
    },
}


def details(message: str) -> str:
    import base64

    error = frames_pb2.Error(type="overloaded_error", message=message, request_id="req_1")
    status = messages_pb2.Status(code=14, message=message)
    status.details.add().Pack(error)
    return base64.b64encode(status.SerializeToString()).decode().rstrip("=")


def end(connection: Connection, stream: int, code: int, text: str = "") -> None:
    fields = [(b"grpc-status", b"%d" % code)]
    if text:
        fields.append((b"grpc-message", text.encode()))
        fields.append((b"grpc-status-details-bin", details(text).encode()))
        fields.append((b"x-http-status", b"529"))
    connection.http.send_headers(stream, fields, end_stream=True)
    connection.transmit()


def answer(connection: Connection, stream: int, headers: Headers, body: bytes) -> None:
    """By the json_body that was asked with."""
    asked = messages_pb2.CreateMessageRequest.FromString(body[5:]).json_body.decode()
    ping = frames_pb2.StreamEvent(ping=frames_pb2.Ping())
    stop = frames_pb2.StreamEvent(message_stop=frames_pb2.MessageStop())
    if asked == "http":
        connection.head(stream, 415, ("content-type", "application/json"), end=True)
        return
    if asked == "refused":
        connection.head(
            stream,
            200,
            TYPE,
            ("request-id", "req_1"),
            ("grpc-status", "14"),
            ("grpc-message", "full"),
            ("grpc-status-details-bin", details("full")),
            ("x-http-status", "529"),
            end=True,
        )
        return
    connection.head(stream, 200, TYPE, ("request-id", "req_1"))
    if headers[":path"].endswith("CountTokens"):
        connection.data(stream, framed(b"\x08\x07"))
    elif headers[":path"].endswith("CreateMessage"):
        connection.data(stream, framed(message_of(MESSAGE).SerializeToString()))
    else:
        connection.data(stream, framed(ping.SerializeToString()))
        if asked == "fails":
            end(connection, stream, 14, "full")
            return
        connection.data(stream, framed(stop.SerializeToString()))
    end(connection, stream, 0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Peer]:
    with peer(tmp_path, answer) as seen:
        yield seen


def call(kind: Kind, asked: str = "works") -> Call:
    return Call(
        kind=kind,
        method="POST",
        scheme="https",
        authority="127.0.0.1",
        target="/v1/messages",
        headers=[("x-api-key", "k"), ("accept", "application/json")],
        body=asked.encode(),
        is_replayable=True,
        connect_seconds=5.0,
        read_seconds=5.0,
    )


async def got(server: Peer, kind: Kind, asked: str = "works") -> tuple[int, dict[str, str], str]:
    net = network()
    try:
        reply = await net.exchange(known(server), call(kind, asked), ONLY)
        data, decoder = await whole(reply), reply.decoder
        if decoder is not None:
            data = decoder.feed(data) + decoder.finish()
        return reply.status, dict(reply.headers), data.decode()
    finally:
        await net.close()


async def test_a_stream(server: Peer) -> None:
    status, headers, text = await got(server, "stream")
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    assert [line for line in text.splitlines() if line.startswith("event")] == [
        "event: ping",
        "event: message_stop",
    ]
    assert server.requests == ["POST /sublimate.v1.Messages/StreamMessage"]
    assert headers["request-id"] == "req_1"


async def test_whole_answers(server: Peer) -> None:
    status, headers, text = await got(server, "message")
    assert status == 200 and json.loads(text) == MESSAGE
    assert headers["content-length"] == str(len(text))
    assert json.loads((await got(server, "count"))[2]) == {"input_tokens": 7}


@pytest.mark.parametrize("kind", ["stream", "message"])
async def test_an_error_before_the_first_message(server: Peer, kind: Kind) -> None:
    status, headers, text = await got(server, kind, "refused")
    told = json.loads(text)
    assert status == 529 and headers["content-type"] == "application/json"
    assert told["error"] == {"type": "overloaded_error", "message": "full"}
    assert told["request_id"] == "req_1" and "x-http-status" not in headers


async def test_an_error_in_a_stream_is_its_last_event(server: Peer) -> None:
    status, _, text = await got(server, "stream", "fails")
    assert status == 200 and text.count("event: ") == 2
    assert '"type":"overloaded_error","message":"full"' in text


async def test_a_server_without_it_is_told_apart(server: Peer) -> None:
    with pytest.raises(CarrierError, match="no gRPC over HTTP/3") as caught:
        await got(server, "message", "http")
    assert caught.value.unsent


def test_the_flag_of_each_message_is_cut_wherever_the_pieces_end() -> None:
    data = framed(b"abc") + framed(b"") + framed(b"x" * 300)
    expected = b"".join(len(one).to_bytes(4, "big") + one for one in (b"abc", b"", b"x" * 300))
    for size in (1, 2, 3, 7, 1000):
        cutter = FlagCutter()
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert b"".join(map(cutter.feed, pieces)) == expected
    with pytest.raises(CarrierError, match="compressed"):
        FlagCutter().feed(b"\x01\0\0\0\0")
