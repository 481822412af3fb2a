"""The network with a round trip: what it delays, loses and blocks, and that nothing of it stays."""

import contextlib
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sublimate.bench.delay import INTERFACE, DelayNetwork
from sublimate.errors import ConfigError

ROUND_TRIP_MS = 20.0
PINGS = 9
WAIT_SECONDS = 5.0


@contextlib.contextmanager
def made(round_trip_ms: float = ROUND_TRIP_MS, **options: float) -> Iterator[DelayNetwork]:
    """A network, or a skipped test where none is allowed."""
    with contextlib.ExitStack() as stack:
        try:
            network = stack.enter_context(DelayNetwork(round_trip_ms, **options))
        except ConfigError as error:
            pytest.skip(str(error))
        yield network


@pytest.fixture(scope="module")
def network() -> Iterator[DelayNetwork]:
    with made() as network:
        yield network


@contextlib.contextmanager
def echo(network: DelayNetwork, kind: socket.SocketKind) -> Iterator[int]:
    """An echo server on the server's side; its port."""
    with network.server(), socket.socket(socket.AF_INET, kind) as sock:
        sock.bind((network.server_address, 0))
        if kind == socket.SOCK_STREAM:
            sock.listen()
        with network_thread(serve_stream if kind == socket.SOCK_STREAM else serve_packets, sock):
            yield sock.getsockname()[1]


@contextlib.contextmanager
def network_thread(target, sock: socket.socket) -> Iterator[None]:
    thread = threading.Thread(target=target, args=(sock,))
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


def serve_stream(sock: socket.socket) -> None:
    with contextlib.suppress(OSError), sock.accept()[0] as connection:
        while data := connection.recv(1 << 16):
            connection.sendall(data)


def serve_packets(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            data, address = sock.recvfrom(1 << 16)
            if not data:
                return
            sock.sendto(data, address)


def client(network: DelayNetwork, kind: socket.SocketKind, port: int) -> socket.socket:
    with network.client():
        sock = socket.socket(socket.AF_INET, kind)
    sock.settimeout(WAIT_SECONDS)
    sock.connect((network.server_address, port))
    return sock


def ping_ms(sock: socket.socket) -> float:
    begun = time.perf_counter()
    sock.send(b"ping")
    assert sock.recv(16) == b"ping"
    return (time.perf_counter() - begun) * 1000


def test_a_connection_and_each_answer_take_a_round_trip(network: DelayNetwork) -> None:
    with echo(network, socket.SOCK_STREAM) as port:
        begun = time.perf_counter()
        with client(network, socket.SOCK_STREAM, port) as sock:
            connect_ms = (time.perf_counter() - begun) * 1000
            pings = [ping_ms(sock) for _ in range(PINGS)]
    assert connect_ms >= ROUND_TRIP_MS
    assert min(pings) >= ROUND_TRIP_MS
    # The machine is shared: the least of them tells what the wire itself adds.
    assert min(pings) < ROUND_TRIP_MS + 5


def test_conditions_change_while_it_runs(network: DelayNetwork) -> None:
    with echo(network, socket.SOCK_DGRAM) as port:
        with client(network, socket.SOCK_DGRAM, port) as sock:
            slow = statistics.median(ping_ms(sock) for _ in range(3))
            network.change(round_trip_ms=2)
            try:
                ping_ms(sock)
                quick = min(ping_ms(sock) for _ in range(PINGS))
            finally:
                network.change(round_trip_ms=ROUND_TRIP_MS)
    assert slow >= ROUND_TRIP_MS
    assert 2 <= quick < ROUND_TRIP_MS / 2


def test_blocked_udp_is_lost_and_tcp_passes(network: DelayNetwork) -> None:
    with echo(network, socket.SOCK_DGRAM) as port:
        with client(network, socket.SOCK_DGRAM, port) as sock:
            network.change(block_udp=True)
            try:
                sock.settimeout(10 * ROUND_TRIP_MS / 1000)
                with pytest.raises(TimeoutError):
                    ping_ms(sock)
                with echo(network, socket.SOCK_STREAM) as tcp_port:
                    with client(network, socket.SOCK_STREAM, tcp_port) as stream:
                        assert ping_ms(stream) >= ROUND_TRIP_MS
            finally:
                network.change(block_udp=False)


def test_a_lossy_wire_loses_about_its_share_and_counts_what_passed() -> None:
    sent = 400
    with made(1, loss=0.25) as network:
        with echo(network, socket.SOCK_DGRAM) as port:
            with client(network, socket.SOCK_DGRAM, port) as sock:
                for _ in range(sent // 10):
                    for _ in range(10):
                        sock.send(b"x")
                    time.sleep(0.002)
                sock.settimeout(0.1)
                got = 0
                with contextlib.suppress(TimeoutError):
                    while sock.recv(16):
                        got += 1
    there, back = network.to_server, network.to_client
    assert there.packets + there.dropped >= sent
    assert 0.15 * sent < there.dropped < 0.35 * sent
    assert got == back.packets <= there.packets
    assert there.bytes >= 29 * there.packets, "an IPv4 and a UDP header and a byte"


def test_a_rate_spreads_a_burst_and_its_queue_is_bounded() -> None:
    """At 8 Mbit/s a millisecond carries 1000 bytes."""
    with made(0, rate_mbit=8, queue_ms=20) as network:
        with network.server(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
            sink.bind((network.server_address, 0))
            sink.settimeout(0.2)
            port = sink.getsockname()[1]
            with client(network, socket.SOCK_DGRAM, port) as sock:
                begun = time.perf_counter()
                for _ in range(60):
                    sock.send(bytes(972))  # 1000 with its headers
            arrivals = []
            with contextlib.suppress(TimeoutError):
                while sink.recv(1 << 16):
                    arrivals.append(time.perf_counter())
    assert 20 <= len(arrivals) < 60, "20 ms of it fit the queue, the rest is dropped"
    assert arrivals[-1] - begun >= len(arrivals) / 1000
    assert network.to_server.dropped == 60 - len(arrivals)


def test_each_side_is_a_host_of_its_own(network: DelayNetwork) -> None:
    names = {}
    for side, inside in (("server", network.server), ("client", network.client)):
        with inside():
            names[side] = sorted(name for _, name in socket.if_nameindex())
            command = [sys.executable, "-c", "import socket; print(socket.if_nameindex())"]
            child = subprocess.run(command, capture_output=True, text=True, check=True)
            assert INTERFACE in child.stdout, "what is started inside is inside"
    assert names["server"] == names["client"] == sorted(["lo", INTERFACE])
    assert INTERFACE not in [name for _, name in socket.if_nameindex()], "we are back"


CRASHING = """
import os, signal, sys
from sublimate.bench.delay import DelayNetwork
network = DelayNetwork().__enter__()
print(network._forwarder.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_stays_when_its_process_is_killed(network: DelayNetwork) -> None:
    killed = subprocess.run([sys.executable, "-c", CRASHING], capture_output=True, text=True)
    forwarder = Path(f"/proc/{int(killed.stdout)}")
    deadline = time.monotonic() + WAIT_SECONDS
    while forwarder.exists() and b"delay_forwarder" in (forwarder / "cmdline").read_bytes():
        assert time.monotonic() < deadline, "the forwarder outlives who made it"
        time.sleep(0.01)


def test_its_descriptors_are_closed(network: DelayNetwork) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with made():
        assert len(os.listdir("/proc/self/fd")) > before
    assert len(os.listdir("/proc/self/fd")) == before


def test_it_is_used_within_its_block(network: DelayNetwork) -> None:
    with pytest.raises(RuntimeError, match="once"):
        network.__enter__()
    for use in (DelayNetwork().change, DelayNetwork().server().__enter__):
        with pytest.raises(RuntimeError, match="not there"):
            use()


@pytest.mark.parametrize("wrong", [{"round_trip_ms": -1}, {"loss": 1.0}, {"rate_mbit": -1.0}])
def test_values_that_make_no_network_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="round trip"):
        DelayNetwork(**wrong)


def test_where_it_is_not_allowed_it_says_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("sublimate.bench.delay._make_side", refused)
    with pytest.raises(ConfigError, match="unshare --user --net --map-root-user"):
        DelayNetwork().__enter__()
