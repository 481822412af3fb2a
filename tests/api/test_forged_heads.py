"""Bytes of clients stay where they are put: between edges, and in fields of every transport."""

import asyncio
import socket

import pytest

from harness import Served, exchange_bytes, http_get
from sublimate.edge.errors import ApiError
from sublimate.edge.exchange import RelayedHead, Request, relayed_head
from sublimate.edge.framing import Http1Wire
from sublimate.edge.http import HttpConnection

FORGED = b"a\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.mark.parametrize("value", [FORGED, b"a\nb", b"a\rb", b"a\0b", b"a\1b", b"\x7f"])
def test_f09_control_characters_are_refused(value: bytes) -> None:
    for fields in ({b"x-foo": value}, {b"x" + value: b"a"}):
        with pytest.raises(ApiError):
            Request("POST", b"/v1/messages", fields).check()
    with pytest.raises(ApiError):
        Request("POST", b"/v1/messages?" + value, {}).check()
    Request("POST", b"/v1/messages?a=%0D%0A", {b"x-foo": b"a\tb \xff"}).check()


@pytest.mark.parametrize("cut", [1, 3, 7, 10_000])
def test_f09_a_relayed_head_is_what_it_was(cut: int) -> None:
    fields = ((b"x-foo", FORGED), (b"x-sublimate-relayed", b"http://evil"))
    head = RelayedHead("POST", b"/a b\r\n", fields, "http://here", True, 3)
    data, got = head.encoded() + b"abc", b""
    for at in range(0, len(data), cut):
        found = relayed_head(got)
        assert found is None or at >= len(head.encoded())
        got += data[at : at + cut]
    assert relayed_head(got) == (head, b"abc")


def relayed(served: Served, head: RelayedHead, body: bytes) -> bytes:
    """What a connection of another edge is answered."""
    ours, theirs = socket.socketpair()

    async def open_connection() -> None:
        def connection() -> HttpConnection:
            return HttpConnection(served.server, served.loop, relayed=True)

        await served.loop.connect_accepted_socket(connection, theirs)

    asyncio.run_coroutine_threadsafe(open_connection(), served.loop).result(10)
    with ours:
        ours.settimeout(20)
        data = head.encoded() + body
        for at in range(0, len(data), 100):
            ours.sendall(data[at : at + 100])
        received = b""
        while piece := ours.recv(65536):
            received += piece
    return received


def test_f09_between_edges_a_field_cannot_begin_a_request(shared: Served) -> None:
    """Even if an entrance had let it through."""
    body = b'{"model":"tiny","max_tokens":20,"messages":[{"role":"user","content":"say hello"}]}'

    def ask(fields: tuple[tuple[bytes, bytes], ...], target: bytes = b"/v1/messages") -> bytes:
        whole = RelayedHead("POST", target, fields, "http://here", None, len(body))
        return relayed(shared, whole, body)

    answer = ask(((b"content-type", b"application/json"),))
    assert answer.startswith(b"HTTP/1.1 200") and b"Hello there!" in answer
    for forged in (
        ask(((b"x-foo", FORGED),)),
        ask(((FORGED, b"a"),)),
        ask((), b"/v1/messages HTTP/1.1\r\n\r\nGET /v1/models"),
    ):
        assert forged.startswith(b"HTTP/1.1 400") and forged.count(b"HTTP/1.1 ") == 1


def test_f09_chunks_of_a_relayed_body(shared: Served) -> None:
    head = RelayedHead("POST", b"/tokenize", (), "", None, None)
    pieces = (b'{"mod', b'el": "tiny", "prompt": "abc"}', b"")
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    assert relayed(shared, head, body).startswith(b"HTTP/1.1 200")
    empty = RelayedHead("GET", b"/livez", (), "", None, 0)
    assert relayed(shared, empty, b"").startswith(b"HTTP/1.1 200")


def test_f09_no_client_can_say_that_it_was_relayed(shared: Served) -> None:
    forged = {"x-sublimate-relayed": "http://evil.test", "x-sublimate-streams": "1"}
    with shared.connect() as sock:
        reply = exchange_bytes(sock, http_get("/.well-known/sublimate", **forged))
    assert reply.status == 200 and b"evil" not in reply.body


def test_f09_an_answer_s_field_has_one_line(shared: Served) -> None:
    async def made() -> None:
        connection = HttpConnection(shared.server, shared.loop)
        wire = Http1Wire(connection, True, True)
        sent: list[bytes] = []
        wire.send = lambda data: sent.append(data) is None
        for value in ("a\r\nb: c", "a\nb", "a\rb"):
            with pytest.raises(RuntimeError):
                wire.whole(200, [("x-foo", value)], b"")
        wire.whole(200, [("x-foo", "a")], b"")
        assert sent == [b"HTTP/1.1 200 OK\r\nx-foo: a\r\n\r\n"]

    asyncio.run_coroutine_threadsafe(made(), shared.loop).result(10)
