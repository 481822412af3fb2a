"""Connections that have ended are freed at once: what waits for a full collection of garbage holds
the event loop for tens of milliseconds when thousands of short connections have left it."""

import gc
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import http2_frames as h2
import quic_frames as quic
from harness import Served, serve
from http3_client import Client
from sublimate.config import EdgeSettings
from sublimate.edge.exchange import Exchange
from sublimate.edge.grpc.http2 import Http2Connection
from sublimate.edge.http import HttpConnection
from sublimate.edge.limits import HttpLimits
from sublimate.edge.quic.connection import Http3Connection
from sublimate.edge.quic.transport import Transport

KINDS = (Exchange, HttpConnection, Http2Connection, Http3Connection, Transport)
COUNT = 3
WAIT_SECONDS = 20.0
BODY = (
    b'{"model":"default","max_tokens":4,"stream":true,"messages":[{"role":"user","content":"a"}]}'
)
POST = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def carriers(tls_settings: EdgeSettings) -> Iterator[Served]:
    with serve(settings=tls_settings, http3=True, limits=HttpLimits(header_seconds=1.0)) as running:
        yield running


@pytest.fixture(scope="module")
def in_clear() -> Iterator[Served]:
    with serve(grpc=True) as running:
        yield running


def comes_true(what: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT_SECONDS
    while not what() and time.monotonic() < end:
        time.sleep(0.05)
    return what()


def over_http1(data: bytes) -> Callable[[int], None]:
    def talk(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass

    return talk


def freed_without_collection(served: Served, talk: Callable[[], None]) -> bool:
    """The first time may fill caches: of the second nothing is left."""
    server = served.server

    def alive() -> list[object]:
        return [one for one in gc.get_objects() if isinstance(one, KINDS)]

    talk()
    assert comes_true(lambda: not server._connections)
    gc.collect()
    before = len(alive())
    gc.disable()
    try:
        talk()
        end = time.monotonic() + WAIT_SECONDS
        while len(alive()) > before and time.monotonic() < end:
            time.sleep(0.05)
        assert not server._answers

        return len(alive()) <= before
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n", id="live"),
        pytest.param(b"GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n", id="no such path"),
        pytest.param(b"GET /nothing HTTP/1.1\r\n\r\n", id="malformed"),
        pytest.param(POST + b"content-length: 3\r\n\r\n{a}", id="no JSON"),
        pytest.param(POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY, id="stream"),
        pytest.param(POST + b"content-length: 9\r\n\r\n{", id="half a body"),
    ],
)
def test_http1_connections_are_freed(in_clear: Served, data: bytes) -> None:
    assert freed_without_collection(in_clear, lambda: over_http1(data)(in_clear.port))


def test_http2_connections_are_freed(in_clear: Served) -> None:
    def talk() -> None:
        with h2.Connection(in_clear.server.ports["grpc"], 5) as connection:
            connection.send(h2.frame(h2.PING, 0, 0, bytes(8)))
            assert connection.until(h2.PING, 5) is not None

    assert freed_without_collection(in_clear, talk)


def test_http3_connections_are_freed(carriers: Served, pair: tuple[Path, Path]) -> None:
    def talk() -> None:
        client = Client(carriers.server.ports["h3"], pair[0])
        client.run(lambda: client.handshake is not None)
        assert client.ask("GET", "/livez").status == 200
        assert client.ask("GET", "/nothing").status == 404
        client.close()

    assert freed_without_collection(carriers, talk)


def test_http3_handshakes_that_end_early_are_freed(carriers: Served) -> None:
    def talk() -> None:
        strangers = [quic.Stranger(carriers.server.ports["h3"]) for _ in range(COUNT)]
        for stranger in strangers:
            stranger.send(b"".join(quic.crypto(1000 + 2 * n) for n in range(60)))
        assert comes_true(lambda: len(carriers.server._connections) == COUNT)
        for stranger in strangers:
            stranger.close()

    assert freed_without_collection(carriers, talk)
