"""The client's connections over QUIC against a small server that does as it is told."""

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from aioquic.tls import SessionTicket

from quic_peer import Connection, Headers, Peer, peer
from sublimate.client import quic
from sublimate.client.calls import Answer, Call
from sublimate.client.choice import Origin, Plan, Service
from sublimate.client.library import CarrierError
from sublimate.client.network import FALLBACK_SECONDS, HANDSHAKE_SECONDS, Network
from sublimate.client.pipe import UNREAD_BYTES_MAX
from sublimate.client.quic import Trust

ONLY = Plan(("h3",))
WITH_OTHERS = Plan(("h3", "http/1.1"))
CHUNK, CHUNKS = 64 << 10, 64


def answer(connection: Connection, stream: int, headers: Headers, body: bytes) -> None:
    """By the path."""
    path = headers[":path"]
    if path == "/early" and not connection.is_established:
        connection.head(stream, 425, end=True)
        return
    connection.head(stream, 200, ("content-type", "text/plain"))
    if path == "/cut":
        connection.data(stream, b"begun")
        connection._loop.call_later(0.02, lambda: connection.close(error_code=0x102))
    elif path == "/reset":
        connection.data(stream, b"begun")
        connection._quic.reset_stream(stream, 0x10C)
    elif path == "/open":
        connection.data(stream, b"begun")
    elif path == "/flood":
        for _ in range(CHUNKS):
            connection.data(stream, b"x" * CHUNK)
        connection.data(stream, b"", end=True)
    else:
        connection.data(stream, body or b"-", end=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Peer]:
    with peer(tmp_path, answer) as seen:
        yield seen


def known(server: Peer, pin: str = "") -> Origin:
    service = Service(quic_port=server.port, certificate_sha256=pin or server.pin_sha256)
    return Origin("https", "127.0.0.1", 443, is_sublimate=True, service=service)


def network() -> Network:
    async def ask(origin: Origin) -> Service | None:
        return origin.service

    def trust(origin: Origin) -> Trust:
        return Trust(pin_sha256=origin.service.certificate_sha256 if origin.service else "")

    return Network(trust, ask)


def call(path: str = "/", body: bytes = b"hello", *, replayable: bool = True) -> Call:
    return Call(
        kind="other",
        method="POST",
        scheme="https",
        authority="127.0.0.1",
        target=path,
        headers=[("x-test", "1")],
        body=body,
        is_replayable=replayable,
        connect_seconds=5.0,
        read_seconds=5.0,
    )


async def whole(answer: Answer) -> bytes:
    data = b""
    while piece := await answer.body.read_async(5):
        data += piece
    return data


async def until(condition: object) -> None:
    begun = time.monotonic()
    while not condition():  # type: ignore[operator]
        assert time.monotonic() - begun < 5, "the condition never held"
        await asyncio.sleep(0.002)


async def test_one_connection_carries_all(server: Peer) -> None:
    net, origin = network(), known(server)
    first = await net.exchange(origin, call(), ONLY)
    assert await whole(first) == b"hello" and first.status == 200
    assert not first.used.reused and first.used.handshake_milliseconds > 0
    many = [net.exchange(origin, call(body=b"%d" % n), ONLY) for n in range(20)]
    for n, other in enumerate(await asyncio.gather(*many)):
        assert await whole(other) == b"%d" % n and other.used.reused
    assert server.handshakes == 1
    await net.close()


async def test_requests_at_once_share_one_handshake(server: Peer) -> None:
    net, origin = network(), known(server)
    answers = await asyncio.gather(*(net.exchange(origin, call(), ONLY) for _ in range(8)))
    assert [await whole(one) for one in answers] == [b"hello"] * 8
    assert server.handshakes == 1
    await net.close()


async def resumable(net: Network, server: Peer) -> Origin:
    """An origin that was left, and has given a ticket."""
    origin = known(server)
    await whole(await net.exchange(origin, call(), ONLY))
    await until(lambda: origin.tickets)
    await net.close()
    return origin


async def test_a_ticket_carries_the_request_in_the_first_packet(server: Peer) -> None:
    net = network()
    origin = await resumable(net, server)
    again = await net.exchange(origin, call(), ONLY)
    assert await whole(again) == b"hello"
    assert again.used.early_data and server.early == 1
    await until(lambda: server.early_handshakes == 1)
    assert len(server.requests) == 2, "sent once"
    await net.close()


async def test_what_cannot_be_replayed_waits_for_the_handshake(server: Peer) -> None:
    net = network()
    origin = await resumable(net, server)
    again = await net.exchange(origin, call(replayable=False), ONLY)
    assert await whole(again) == b"hello" and not again.used.early_data
    assert server.early == 0
    await net.close()


async def test_too_early_is_asked_again_after_the_handshake(server: Peer) -> None:
    net = network()
    origin = await resumable(net, server)
    again = await net.exchange(origin, call("/early"), ONLY)
    assert again.status == 200 and await whole(again) == b"hello"
    assert not again.used.early_data and server.requests[1:] == ["POST /early"] * 2
    await net.close()


async def test_early_data_that_is_refused_arrives_all_the_same(server: Peer) -> None:
    net = network()
    origin = await resumable(net, server)
    server.tickets.clear()
    again = await net.exchange(origin, call(), ONLY)
    assert await whole(again) == b"hello" and not again.used.early_data
    assert len(server.requests) == 2
    await net.close()


async def test_another_certificate_than_the_pinned_is_refused(server: Peer) -> None:
    net, origin = network(), known(server, "0" * 64)
    with pytest.raises(CarrierError) as caught:
        await net.exchange(origin, call(), ONLY)
    assert caught.value.unsent and server.requests == []
    assert not origin.tickets
    await net.close()


async def test_a_ticket_is_kept_once_the_certificate_was_seen_to_be_right(server: Peer) -> None:
    """An impostor's may come with its last handshake message. Resumed, it would show nothing."""
    origin = known(server)
    pin = origin.service.certificate_sha256 if origin.service else ""
    session = await quic.connect(origin, server.port, Trust(pin), early=False)
    session.receive_ticket(cast(SessionTicket, "before"))
    assert not origin.tickets
    session.begin()
    await session.established
    assert origin.tickets[0] == (pin, "before")
    session.leave()
    session.receive_ticket(cast(SessionTicket, "after the end"))
    assert "after the end" not in [ticket for _, ticket in origin.tickets]
    origin.put_ticket("of another certificate", "0" * 64, 8)
    assert origin.take_ticket(pin) != "of another certificate"
    assert all(held == pin for held, _ in origin.tickets)


@pytest.mark.parametrize("path", ["/cut", "/reset"])
async def test_an_answer_that_is_cut_is_an_error(server: Peer, path: str) -> None:
    net = network()
    cut = await net.exchange(known(server), call(path), ONLY)
    with pytest.raises(CarrierError) as caught:
        await whole(cut)
    assert caught.value.failure == "RemoteProtocolError"
    await net.close()


async def test_after_a_lost_connection_there_is_a_new_one(server: Peer) -> None:
    net, origin = network(), known(server)
    with pytest.raises(CarrierError):
        await whole(await net.exchange(origin, call("/cut"), ONLY))
    assert await whole(await net.exchange(origin, call(), ONLY)) == b"hello"
    await until(lambda: server.handshakes == 2)
    await net.close()


async def test_a_server_that_falls_silent_is_given_up(
    server: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that only has nothing to say yet is not."""
    monkeypatch.setattr(quic, "TICK_SECONDS", 0.02)
    net, origin = network(), known(server)
    answer = await net.exchange(origin, call("/open"), ONLY)
    assert await answer.body.read_async(5) == b"begun"
    await asyncio.sleep(4 * quic.SILENT_TICKS * quic.TICK_SECONDS)
    (connection,) = server.connections
    server.call(lambda: connection.data(0, b"on"))
    assert await answer.body.read_async(5) == b"on"
    begun = time.monotonic()
    monkeypatch.setattr(Connection, "datagram_received", lambda *_: None)
    with pytest.raises(CarrierError, match="silent") as caught:
        await net.exchange(origin, call(replayable=False), ONLY)
    assert caught.value.lost, "its answer had not begun"
    with pytest.raises(CarrierError, match="silent") as cut:
        await answer.body.read_async(5)
    assert cut.value.failure == "RemoteProtocolError"
    assert time.monotonic() - begun < 1.0
    await net.close()


async def test_a_reader_that_leaves_frees_the_server_at_once(server: Peer) -> None:
    net, origin = network(), known(server)
    left = await net.exchange(origin, call("/open"), ONLY)
    assert await left.body.read_async(5) == b"begun"
    left.body.close()
    await until(lambda: server.cancelled == {0})
    assert await whole(await net.exchange(origin, call(), ONLY)) == b"hello"
    await net.close()


async def test_a_cancelled_request_is_cancelled_at_the_server(server: Peer) -> None:
    net, origin = network(), known(server)
    await whole(await net.exchange(origin, call(), ONLY))
    silent = Call(**{**_fields(call("/early")), "is_replayable": False})
    server.connections[0].is_established = True
    waiting = asyncio.create_task(net.exchange(origin, silent, ONLY))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: server.cancelled == {4})
    await net.close()


def _fields(made: Call) -> dict[str, object]:
    return {name: getattr(made, name) for name in Call.__slots__}


async def test_a_slow_reader_holds_the_sender(server: Peer) -> None:
    net, origin = network(), known(server)
    flood = await net.exchange(origin, call("/flood"), ONLY)
    await asyncio.sleep(0.2)
    held = flood.body._unread_bytes
    assert UNREAD_BYTES_MAX < held < CHUNK * CHUNKS // 2, "the window is not widened"
    assert len(await whole(flood)) == CHUNK * CHUNKS
    await net.close()


# ---- no way through ------------------------------------------------------------------------------
@pytest.fixture
def swallow() -> Iterator[int]:
    """A UDP port that takes everything and answers nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


async def test_blocked_udp_is_given_up_in_time_and_remembered(swallow: int) -> None:
    net = network()
    origin = Origin("https", "127.0.0.1", 443, True, Service(quic_port=swallow))
    begun = time.monotonic()
    with pytest.raises(CarrierError) as caught:
        await net.exchange(origin, call(), WITH_OTHERS)
    took = time.monotonic() - begun
    assert FALLBACK_SECONDS <= took < HANDSHAKE_SECONDS / 2, "not the handshake's own time limit"
    assert caught.value.unsent and origin.udp.failures == 1
    await net.close()


async def test_a_closed_port_is_known_at_once(swallow: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        closed = sock.getsockname()[1]
    net = network()
    origin = Origin("https", "127.0.0.1", 443, True, Service(quic_port=closed))
    with pytest.raises(CarrierError) as caught:
        await net.exchange(origin, call(), WITH_OTHERS)
    assert caught.value.unsent and origin.udp.failures == 1 and not net._connecting
    await net.close()


async def test_an_early_request_that_goes_another_way_is_taken_back(
    server: Peer, swallow: int
) -> None:
    net = network()
    origin = await resumable(net, server)
    origin.service = Service(quic_port=swallow, certificate_sha256=server.pin_sha256)
    with pytest.raises(CarrierError) as caught:
        await net.exchange(origin, call(), WITH_OTHERS)
    assert caught.value.unsent and len(server.requests) == 1
    await net.close()


async def test_nothing_is_left_after_close(server: Peer) -> None:
    net, origin = network(), known(server)
    before = threading.active_count()
    for _ in range(3):
        kept = await net.exchange(origin, call("/open"), ONLY)
        await net.close()
        with pytest.raises(CarrierError):
            await whole(kept)
    await asyncio.sleep(0.01)
    gc.collect()
    assert threading.active_count() <= before
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not net._sessions
