"""The options of every listening socket and of what it accepts, read back from the kernel."""

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Served, serve
from sublimate.cli.certificate import own_certificate
from sublimate.config import LISTEN_BACKLOG, EdgeSettings
from sublimate.edge import limits
from sublimate.edge.server import (
    KEEP_ALIVE_IDLE_SECONDS,
    KEEP_ALIVE_INTERVAL_SECONDS,
    KEEP_ALIVE_PROBES,
)

TCP_LISTEN = 10
BACKLOG_OFFSET = 28
"""Of tcpi_sacked in struct tcp_info, which of a listening socket is its backlog."""
INFO_BYTES = 104
CROWD = 1000
CONNECT_SECONDS = 20.0
CARRIERS = ("http", "https", "grpc")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("certificate")
    certificate, key = own_certificate(folder)
    settings = EdgeSettings(
        data_dir=str(folder), tls_certificate=str(certificate), tls_key=str(key)
    )
    with serve(settings=settings, tls=True, grpc=True) as running:
        yield running


def tcp_sockets() -> Iterator[socket.socket]:
    """A duplicate of each TCP socket of this process."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if (Path("/proc/self/fd") / name).readlink().name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as sock:
                    if sock.family in (socket.AF_INET, socket.AF_INET6):
                        if sock.type == socket.SOCK_STREAM:
                            yield sock


def backlogs(port: int) -> list[int]:
    """Of this process's sockets that listen on a port."""
    found: list[int] = []
    for sock in tcp_sockets():
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
        if sock.getsockname()[1] == port and info[0] == TCP_LISTEN:
            found.append(struct.unpack_from("I", info, BACKLOG_OFFSET)[0])
    return found


@pytest.mark.parametrize("carrier", CARRIERS)
def test_f07_the_backlog_asked_for_is_there(served: Served, carrier: str) -> None:
    most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    found = backlogs(served.server.ports[carrier])
    assert found and min(found) >= min(LISTEN_BACKLOG, most)


@pytest.mark.parametrize("carrier", ["http", "https"])
def test_f07_accepted_connections_have_the_options_asked_for(served: Served, carrier: str) -> None:
    port = served.server.ports[carrier]
    with socket.create_connection(("127.0.0.1", port), timeout=CONNECT_SECONDS) as client:
        served.client.get("/livez")
        mine = client.getsockname()
        options = {
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
            (socket.SOL_SOCKET, socket.SO_SNDBUF): 2 * limits.SOCKET_SEND_BUFFER_BYTES,
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): KEEP_ALIVE_IDLE_SECONDS,
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): KEEP_ALIVE_INTERVAL_SECONDS,
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): KEEP_ALIVE_PROBES,
            (socket.IPPROTO_TCP, socket.TCP_NODELAY): 1,
        }
        read = [
            {option: sock.getsockopt(*option) for option in options}
            for sock in tcp_sockets()
            if is_accepted(sock, port, mine)
        ]
        assert read == [options]


def is_accepted(sock: socket.socket, port: int, client: tuple[str, int]) -> bool:
    """The server's end of that client's connection."""
    with contextlib.suppress(OSError):  # a socket that is not connected
        return sock.getsockname()[1] == port and sock.getpeername() == client
    return False


@pytest.mark.parametrize("carrier", ["http", "https"])
def test_f07_a_crowd_connects_while_the_loop_is_busy(served: Served, carrier: str) -> None:
    """The kernel holds all of them until the loop turns again; none is dropped or refused."""
    port = served.server.ports[carrier]
    go_on = threading.Event()
    crowd: list[socket.socket] = []
    served.loop.call_soon_threadsafe(go_on.wait)
    try:
        for _ in range(CROWD):
            crowd.append(socket.create_connection(("127.0.0.1", port), timeout=CONNECT_SECONDS))
    finally:
        go_on.set()
        for sock in crowd:
            sock.close()
    assert len(crowd) == CROWD
    assert served.client.get("/livez").status_code == 200
