"""Steering in the kernel: two processes on one port, over TCP and UDP, IPv4 and IPv6."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sublimate import _core
from sublimate.config import ServerSettings
from sublimate.kernel.connections import Connections
from sublimate.kernel.keys import packed_address
from sublimate.kernel.steering import FDS, Steering
from sublimate.supervisor.kernel_memory import KernelMemory
from sublimate.supervisor.listen import WorkerSockets

WORKER = Path(__file__).with_name("port_worker.py")
CLIENTS = 24
"""So many are spread over two workers by any hash."""
FEW = _core.KERNEL_LIMITS["STEERED_CONNECTIONS"]
IPV4, IPV6 = socket.AF_INET, socket.AF_INET6
TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM
ID_OF_0, ID_OF_1, UNKNOWN_ID = b"\x01" * 8, b"\x02" * 8, b"\x03" * 8


@pytest.fixture
def steering() -> Iterator[Steering]:
    loaded = Steering.load(entries=64)
    if not loaded.loaded:
        pytest.skip(f"steering is not loaded here: {loaded.reason}")
    yield loaded
    loaded.close()


class Port:
    """One port that two processes serve, steered."""

    def __init__(self, steering: Steering, family: int, kind: int) -> None:
        self.family, self.kind = family, kind
        self.steering = steering
        self.port = 0
        self.workers: list[subprocess.Popen[bytes]] = []
        for number in (0, 1):
            self.start(number)

    def start(self, number: int) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            where = map(str, (int(self.family), int(self.kind), self.port, number, theirs.fileno()))
            command = [sys.executable, str(WORKER), *where]
            self.workers.append(subprocess.Popen(command, pass_fds=(theirs.fileno(),)))
            theirs.close()
            _, fds, _, _ = socket.recv_fds(ours, 16, 1)
        with socket.socket(fileno=fds[0]) as sock:
            self.port = sock.getsockname()[1]
            if number == 0:
                assert self.steering.attach(sock)
            assert self.steering.set_socket(number, sock)

    def ask(self, source: str, payload: bytes = b"?") -> int:
        """From a new port of `source`; the number of the worker that answers."""
        target = "::1" if self.family == IPV6 else "127.0.0.1"
        with socket.socket(self.family, self.kind) as client:
            client.settimeout(5)
            client.bind((source, 0))
            client.connect((target, self.port))
            if self.kind == UDP:
                client.send(payload)
            return client.recv(16)[0]

    def answers(self, source: str, payload: bytes = b"?") -> list[int]:
        return [self.ask(source, payload) for _ in range(CLIENTS)]

    def answers_when(self, number: int, source: str) -> set[int]:
        """To a few, once it was remembered that they are that worker's."""
        self.steering.remember_address(source, number)
        return {self.ask(source) for _ in range(FEW)}

    def kill(self, number: int) -> None:
        self.workers[number].kill()
        self.workers[number].wait()

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


@pytest.fixture
def opened(steering: Steering) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def serve(stack: ExitStack, steering: Steering, family: int, kind: int) -> Port:
    port = Port(steering, family, kind)
    stack.callback(port.close)
    return port


def short(connection_id: bytes) -> bytes:
    return b"\x40" + connection_id + b"sealed"


def long(connection_id: bytes) -> bytes:
    return b"\xc0\0\0\0\x01\x08" + connection_id + b"\0sealed"


@pytest.mark.parametrize("kind", [TCP, UDP], ids=["tcp", "udp"])
def test_a_known_address_goes_to_its_worker(
    steering: Steering, opened: ExitStack, kind: int
) -> None:
    port = serve(opened, steering, IPV4, kind)
    for number, source in enumerate(("127.0.0.2", "127.0.0.3")):
        assert port.answers_when(number, source) == {number}
    assert steering.steered() == {"connection_id": 0, "address": 2 * FEW, "hash": 0, "away": 0}
    assert set(port.answers("127.0.0.4")) == {0, 1}, "the kernel's hash spreads who is unknown"
    assert steering.steered()["hash"] == CLIENTS


@pytest.mark.parametrize("kind", [TCP, UDP], ids=["tcp", "udp"])
def test_ipv6_addresses_too(steering: Steering, opened: ExitStack, kind: int) -> None:
    try:
        port = serve(opened, steering, IPV6, kind)
    except (OSError, IndexError):
        pytest.skip("no IPv6 on this machine's loopback")
    for number in (1, 0):
        assert port.answers_when(number, "::1") == {number}


@pytest.mark.parametrize("header", [short, long])
def test_a_connection_id_counts_more_than_an_address(
    steering: Steering, opened: ExitStack, header: Callable[[bytes], bytes]
) -> None:
    port = serve(opened, steering, IPV4, UDP)
    steering.remember_address("127.0.0.2", 0)
    steering.remember_connection_id(ID_OF_0, 0)
    steering.remember_connection_id(ID_OF_1 + b"more", 1)
    # Each from a new port: a client whose network address changes with each datagram.
    assert port.answers("127.0.0.2", header(ID_OF_1)) == [1] * CLIENTS
    assert port.answers("127.0.0.9", header(ID_OF_0)) == [0] * CLIENTS
    assert port.answers("127.0.0.2", header(UNKNOWN_ID)) == [0] * CLIENTS, "by address"
    assert set(port.answers("127.0.0.9", header(UNKNOWN_ID))) == {0, 1}, "by hash"
    steering.forget_connection_id(ID_OF_1)
    assert port.answers("127.0.0.2", header(ID_OF_1)) == [0] * CLIENTS


@pytest.mark.parametrize("kind", [TCP, UDP], ids=["tcp", "udp"])
def test_what_a_dead_process_had_goes_to_the_others(
    steering: Steering, opened: ExitStack, kind: int
) -> None:
    port = serve(opened, steering, IPV4, kind)
    assert port.answers_when(1, "127.0.0.2") == {1}
    port.kill(1)
    assert port.answers_when(1, "127.0.0.2") == {0}
    assert steering.steered()["away"] == FEW
    port.start(1)
    assert port.answers_when(1, "127.0.0.2") == {1}, "a new process takes its place"


def test_a_crowd_behind_one_address_is_spread(steering: Steering, opened: ExitStack) -> None:
    port = serve(opened, steering, IPV4, TCP)
    assert port.answers_when(1, "127.0.0.2") == {1}
    assert set(port.answers("127.0.0.2")) == {0, 1}
    assert port.answers_when(1, "127.0.0.2") == {1}, "it is remembered anew"
    datagrams = serve(opened, steering, IPV4, UDP)
    assert set(datagrams.answers("127.0.0.2")) == {1}, "a handshake's stay together"


def test_a_cleared_worker_gets_nothing_new(steering: Steering, opened: ExitStack) -> None:
    port, other = (serve(opened, steering, IPV4, kind) for kind in (TCP, UDP))
    steering.remember_address("127.0.0.2", 1)
    assert port.ask("127.0.0.2") == other.ask("127.0.0.2") == 1
    steering.clear_socket(1)
    for each in (port, other):
        assert each.answers_when(1, "127.0.0.2") == {0}, "though its socket is open still"
        assert set(each.answers("127.0.0.9")) == {0}, "nor what the hash would give it"
    assert steering.steered()["away"] == 2 * FEW
    steering.clear_socket(0)
    assert set(port.answers("127.0.0.9")) == {0, 1}, "with nobody left the kernel picks"


def test_a_group_that_is_detached_is_the_kernels_hash(
    steering: Steering, opened: ExitStack
) -> None:
    socks = [opened.enter_context(socket.socket(IPV4, UDP)) for _ in range(2)]
    for number, sock in enumerate(socks):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", 0) if number == 0 else socks[0].getsockname())
        steering.set_socket(number, sock)
    steering.detach(socks[1])
    steering.attach(socks[0])
    client = opened.enter_context(socket.socket(IPV4, UDP))
    client.sendto(b"?", socks[0].getsockname())
    assert sum(steering.steered().values()) == 1
    for sock in socks:
        steering.detach(sock)
    client.sendto(b"?", socks[0].getsockname())
    assert sum(steering.steered().values()) == 1


class Fails(Steering):
    """After so many steps, as where the kernel's table is full or a group is refused."""

    loaded = True

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.attached: set[socket.socket] = set()
        self.is_closed = False

    def _step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise OSError(7, "no room")

    def attach(self, sock: socket.socket) -> bool:
        self._step()
        self.attached.add(sock)
        return True

    def detach(self, sock: socket.socket) -> None:
        self.attached.discard(sock)

    def set_socket(self, index: int, sock: socket.socket) -> bool:
        assert not self.attached, "nobody is steered before all are known"
        self._step()
        return True

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("steps", [0, 3, 4, 5, 6])
def test_steering_that_fails_half_way_steers_nobody(
    monkeypatch: pytest.MonkeyPatch, opened: ExitStack, steps: int
) -> None:
    """Two workers of two sockets, then two groups: six steps."""
    steering = Fails(steps)
    monkeypatch.setattr(Connections, "load", lambda *of: Connections())
    monkeypatch.setattr(Steering, "load", lambda *of: steering)
    socks = [opened.enter_context(socket.socket()) for _ in range(4)]
    memory = KernelMemory(ServerSettings(), [WorkerSockets(*socks[:2]), WorkerSockets(*socks[2:])])
    told = memory._connections.steering
    if steps < 6:
        assert steering.is_closed and not steering.attached
        assert told is not steering and told.reason == "refused"
        memory.edge_is_up(1)
        memory.edge_is_gone(1)
    else:
        assert told is steering and steering.attached == set(socks[:2])


def test_two_clients_never_share_a_key(steering: Steering, opened: ExitStack) -> None:
    """R167: the key is what tells them apart, for each client and each port's group."""
    port = serve(opened, steering, IPV4, TCP)
    clients = [f"127.0.1.{number}" for number in range(1, 33)]
    assert len({packed_address(client) for client in clients}) == len(clients)
    for number, client in enumerate(clients):
        steering.remember_address(client, number % 2)
    assert [port.ask(client) for client in clients] == [0, 1] * 16


def test_another_process_remembers_through_the_descriptors(steering: Steering) -> None:
    program = (
        "import sys; from sublimate.kernel.steering import Steering\n"
        "steering = Steering.from_fds([int(fd) for fd in sys.argv[1:]])\n"
        "steering.remember_address('10.1.2.3', 5); print(steering.steered())"
    )
    command = [sys.executable, "-c", program, *map(str, steering.fds)]
    said = subprocess.run(command, pass_fds=steering.fds, capture_output=True, check=True)
    assert b"'address': 0" in said.stdout
    entries = dict(zip(["key"], steering._addresses.read(), strict=False))
    assert entries["key"] == packed_address("10.1.2.3")


def test_nothing_is_steered_where_nothing_is_loaded() -> None:
    steering = Steering(reason="no_capability")
    with socket.socket() as sock:
        assert not steering.loaded and steering.reason == "no_capability"
        assert not steering.attach(sock) and not steering.set_socket(0, sock)
    assert not steering.remember_address("127.0.0.1", 0)
    assert not steering.remember_connection_id(ID_OF_0, 0)
    steering.clear_socket(0)
    steering.forget_connection_id(ID_OF_0)
    steering.close()
    assert steering.steered() == {}


def test_what_was_loaded_and_cannot_be_mapped_is_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None of these is a map that could be read: the descriptors are given back."""

    def nothing(*names: str) -> dict[str, int]:
        return {name: os.open(os.devnull, os.O_RDWR) for name in names}

    def load(memory: Connections, entries: int) -> None:
        memory.named = nothing("connections", "digests", "touches", "cache")

    monkeypatch.setattr("sublimate.kernel.steering.missing", lambda: None)
    monkeypatch.setattr("sublimate.kernel.connections.missing", lambda **_: None)
    monkeypatch.setattr(_core, "load_steering", lambda entries: nothing(*FDS))
    monkeypatch.setattr(Connections, "_load", load)
    before = len(os.listdir("/proc/self/fd"))
    assert Steering.load().reason == Connections.load(bytes(32)).reason == "refused"
    assert len(os.listdir("/proc/self/fd")) == before


def test_wrong_use_is_told(steering: Steering) -> None:
    with pytest.raises(ValueError, match="below 64"):
        steering.remember_address("127.0.0.1", 64)
    with pytest.raises(ValueError, match="8 bytes"):
        steering.remember_connection_id(b"short", 0)
    with pytest.raises(OSError, match=r"illegal|invalid"):
        steering.remember_address("no address", 0)
    with pytest.raises(ValueError, match="descriptors"):
        Steering.from_fds([1, 2])
    with socket.create_server(("127.0.0.1", 0)) as sock, pytest.raises(OSError, match="Invalid"):
        steering.set_socket(0, sock)  # bound without SO_REUSEPORT


def test_addresses_are_mapped() -> None:
    assert packed_address("1.2.3.4") == packed_address("::ffff:1.2.3.4")
    assert packed_address("fe80::1%lo") == packed_address("fe80::1")
    assert packed_address("::1") != packed_address("0.0.0.1")
