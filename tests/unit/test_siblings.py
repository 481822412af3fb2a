"""The inbox of an edge: what comes there, and what becomes of it when nobody writes any more; and
what a call is told that another edge answers."""

import asyncio
import errno
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sublimate import _core
from sublimate.edge.errors import TABLE, ApiError, envelope
from sublimate.edge.exchange import relayed_head
from sublimate.edge.place import ALONE
from sublimate.edge.relay import RelaySink, _CallAnswer
from sublimate.edge.siblings import Siblings, _Message
from sublimate.v1 import frames_pb2 as v1
from sublimate.wire.frames import encode_frame


def test_an_inbox_that_nobody_writes_to_is_read_no_more() -> None:
    """Else the end of the file would wake the loop for ever."""

    async def run() -> tuple[list[bytes], bool]:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        siblings, came = Siblings(loop, ALONE), list[bytes]()
        siblings.on_datagram = lambda data, address: came.append(data)
        siblings.open(ours)
        theirs.send(siblings._encoder.encode(_Message(b"last", ("127.0.0.1", 1))))
        theirs.close()
        for _ in range(3):
            await asyncio.sleep(0)
        is_read = loop.remove_reader(ours.fileno())
        siblings.close()
        siblings.close()
        return came, is_read

    assert asyncio.run(run()) == ([b"last"], False)


class Asked:
    """An exchange of a call, which keeps what it is told."""

    is_of_call = True
    gone = answered = False

    def __init__(self) -> None:
        self.request_id = "req_own"
        self.standing_headers: list[tuple[str, str]] = []
        self.told: list[bytes] = []
        self.error: ApiError | None = None

    def pass_on_stream(self, status: int, fields: Any, frames: bytes) -> None:
        assert status == 200 and not frames and ("request-id", "req_other") in fields

    def write(self, data: bytes) -> None:
        self.told.append(data)

    def fail(self, error: ApiError) -> None:
        self.answered, self.error = True, error


def relayed(reply: bytes, size: int) -> Asked:
    """What a call is told of another edge's reply that comes in pieces of such a size."""
    asked = Asked()
    pipe = _CallAnswer(cast(Any, asked))
    pipe.transport = SimpleNamespace(close=lambda: None, abort=lambda: None)
    for at in range(0, len(reply), size):
        pipe.data_received(reply[at : at + size])
    return asked


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_a_stream_for_a_call_is_whole_frames_and_its_error_the_call_s(size: int) -> None:
    frames = [encode_frame(v1.StreamEvent(ping=v1.Ping()))] * 2
    error = TABLE["engine_lost"]
    last = _core.error_frame(error.type, error.text, "req_other", error.error_code)
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nrequest-id: req_other\r\n\r\n"
    data = b"".join(frames) + last
    asked = relayed(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data), size)
    assert asked.told == frames and asked.request_id == "req_other"
    assert asked.error is not None and asked.error.code == "engine_lost"


@pytest.mark.parametrize(
    ("code", "blanks"),
    [
        ("overloaded", {}),
        ("too_many_at_once", {"maximum": 3}),
        ("field", {"path": "a", "reason": "b"}),
    ],
)
def test_an_error_for_a_call_is_what_the_other_edge_has_told(code: str, blanks: Any) -> None:
    error = ApiError(code, **blanks).after(7)
    body = envelope(error, "req_other")
    fields = [*error.headers(), ("anthropic-ratelimit-requests-limit", "3")]
    lines = [f"{name}: {value}" for name, value in fields]
    head = f"HTTP/1.1 {error.kind.status} No\r\ncontent-length: {len(body)}\r\n"
    asked = relayed((head + "\r\n".join(lines) + "\r\n\r\n").encode() + body, 5)
    told = asked.error
    assert told is not None and (told.text, told.kind.type) == (error.text, error.kind.type)
    assert told.kind.status == error.kind.status and told.headers() == error.headers()
    assert asked.request_id == "req_other" and asked.standing_headers == fields[-1:]


# ---- a body that is passed on while it arrives ---------------------------------------------------
class Uploading:
    """An exchange whose body comes in pieces."""

    gone = answered = was_noted = False
    streams = None
    request = SimpleNamespace(method="POST", target=b"/v1/files", fields={b"host": b"here"})

    def resume_body(self) -> None: ...

    def base_url(self) -> str:
        return "http://here"

    def fail(self, error: ApiError) -> None:
        del error
        self.answered = True


async def passed_on(turns: int, pieces: int, finishes: bool) -> bytes:
    """What reaches the other edge of a body that comes after so many turns of the loop, a piece in
    each."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    siblings = SimpleNamespace(connect=lambda number: ours)
    server: Any = SimpleNamespace(loop=loop, siblings=siblings)
    sink = RelaySink(server, cast(Any, Uploading()), 1)
    for _ in range(turns):
        await asyncio.sleep(0)
    for _ in range(pieces):
        sink.feed(b"piece")
        await asyncio.sleep(0)
    if finishes:
        sink.finish()
    else:
        sink.close()
    theirs.setblocking(False)
    heard = b""
    with theirs:
        while not heard.endswith(b"0\r\n\r\n"):
            got = await asyncio.wait_for(loop.sock_recv(theirs, 1 << 16), 5)
            if not got:
                break
            heard += got
        sink.close()
        sink._pipe.transport.abort()
        await asyncio.sleep(0)
    return heard


@pytest.mark.parametrize("turns", range(7))
@pytest.mark.parametrize("pieces", range(3))
def test_a_body_follows_its_head_whenever_it_comes(turns: int, pieces: int) -> None:
    found = relayed_head(asyncio.run(passed_on(turns, pieces, finishes=True)))
    assert found is not None
    head, body = found
    assert (head.method, head.target, head.body_bytes) == ("POST", b"/v1/files", None)
    assert body == b"5\r\npiece\r\n" * pieces + b"0\r\n\r\n"


@pytest.mark.parametrize("pieces", range(4))
def test_a_body_that_ends_early_ends_its_connection(pieces: int) -> None:
    heard = asyncio.run(passed_on(0, pieces, finishes=False))
    assert not heard or relayed_head(heard) is not None
    assert not heard.endswith(b"0\r\n\r\n")


def test_without_a_descriptor_an_upload_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def run() -> bool:
        loop = asyncio.get_running_loop()
        siblings, exchange = Siblings(loop, ALONE), Uploading()
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socketpair", full)
            refused: list[Any] = []
            server: Any = SimpleNamespace(loop=loop, siblings=siblings, refused=refused.append)
            sink = RelaySink(server, cast(Any, exchange), 1)
            sink.feed(b"piece")
            for _ in range(3):
                await asyncio.sleep(0)
            sink.finish()
        siblings.close()
        return exchange.answered and refused == [exchange]

    assert asyncio.run(run())
