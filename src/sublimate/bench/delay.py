"""A network with a round trip, made of two network namespaces and one process between them.

    with DelayNetwork(round_trip_ms=20) as network:
        with network.server():  # sockets and processes made in here are the server's
            server = subprocess.Popen([...])  # listens on network.server_address
        with network.client():
            socket.create_connection((network.server_address, 8000))

Each side has a loopback of its own and one TUN device, `wire0`; delay_forwarder.py carries its
packets across. A side is a property of the thread that is in it: what it opens or starts inherits
it for good. Nothing has a name on the machine: descriptors hold it all, so it goes when its
processes go, however they end.

Needs CAP_SYS_ADMIN, CAP_NET_ADMIN and /dev/net/tun: root has them, and so has anyone's
`unshare --user --net --map-root-user COMMAND` where user namespaces are allowed.

defines: DelayNetwork, INTERFACE
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Self

import msgspec

from ..errors import ConfigError
from .delay_forwarder import READY, Conditions, Report, Traffic

INTERFACE = "wire0"
SERVER_ADDRESS, CLIENT_ADDRESS = "10.87.0.1", "10.87.0.2"
NETMASK = "255.255.255.0"
MTU_BYTES = 1500
MS_PER_S = 1000.0
FORWARDER = Path(__file__).with_name("delay_forwarder.py")
STOP_SECONDS = 5.0

# Of linux/if.h, linux/if_tun.h, linux/sockios.h and sched.h.
CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN_WITHOUT_HEADER = 0x0001 | 0x1000
IFF_UP = 0x1
SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8913, 0x8914
SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU = 0x8916, 0x891C, 0x8922
NAME_BYTES, REQUEST_BYTES = 16, 40
"""struct ifreq: a name, then a union."""


class DelayNetwork:
    """Two hosts and the wire between them; a context manager.

    round_trip_ms: half of it in each direction. loss: share of packets that vanish, 0 to 1, by a
    seeded generator. rate_mbit: 0 is without limit; else what exceeds `queue_ms` of it is dropped.
    block_udp: as a firewall that lets TCP through. Raises ConfigError where this is not allowed,
    with what would help, and for values that make no network.
    """

    server_address = SERVER_ADDRESS
    client_address = CLIENT_ADDRESS

    def __init__(
        self,
        round_trip_ms: float = 20.0,
        *,
        loss: float = 0.0,
        rate_mbit: float = 0.0,
        queue_ms: float = 50.0,
        block_udp: bool = False,
        seed: int = 1,
    ) -> None:
        if round_trip_ms < 0 or not 0 <= loss < 1 or rate_mbit < 0 or queue_ms <= 0:
            raise ConfigError(
                "A network has a round trip and a rate of 0 or more, and a loss of 0 to below 1."
            )
        self._conditions = Conditions(
            delay_seconds=round_trip_ms / 2 / MS_PER_S,
            loss=loss,
            bytes_per_second=rate_mbit * 1e6 / 8,
            queue_seconds=queue_ms / MS_PER_S,
            block_udp=block_udp,
            seed=seed,
        )
        self._namespaces: dict[str, int] = {}
        self._forwarder: subprocess.Popen[bytes] | None = None
        self.to_client = Traffic()
        """Set when the network has ended."""
        self.to_server = Traffic()

    def __enter__(self) -> Self:
        if self._forwarder is not None:
            raise RuntimeError("a network is entered once")
        tunnels: list[int] = []
        try:
            for side, address in (("server", SERVER_ADDRESS), ("client", CLIENT_ADDRESS)):
                namespace, tunnel = _make_side(address)
                self._namespaces[side] = namespace
                tunnels.append(tunnel)
            self._forwarder = subprocess.Popen(  # noqa: S603 - our own interpreter and file
                [sys.executable, str(FORWARDER), *map(str, tunnels)],
                pass_fds=tunnels,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self.change()
            if self._forwarder.stdout is None or self._forwarder.stdout.readline() != READY:
                raise RuntimeError("the forwarder did not start")
        except OSError as error:
            self._close()
            raise ConfigError(
                f"A network of one's own is not allowed here ({error.strerror}): it needs "
                "/dev/net/tun and the rights of root, or of `unshare --user --net "
                "--map-root-user COMMAND`."
            ) from None
        except BaseException:
            self._close()
            raise
        finally:
            for tunnel in tunnels:
                os.close(tunnel)
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def change(
        self,
        *,
        round_trip_ms: float | None = None,
        loss: float | None = None,
        block_udp: bool | None = None,
    ) -> None:
        """Other conditions from now on; what is not given stays. Packets under way arrive."""
        given = {
            "delay_seconds": None if round_trip_ms is None else round_trip_ms / 2 / MS_PER_S,
            "loss": loss,
            "block_udp": block_udp,
        }
        chosen = {name: value for name, value in given.items() if value is not None}
        self._conditions = msgspec.structs.replace(self._conditions, **chosen)
        if self._forwarder is None or self._forwarder.stdin is None:
            raise RuntimeError("the network is not there")
        self._forwarder.stdin.write(msgspec.json.encode(self._conditions) + b"\n")
        self._forwarder.stdin.flush()

    @contextlib.contextmanager
    def server(self) -> Generator[None]:
        """This thread is on the server's side."""
        with self._side("server"):
            yield

    @contextlib.contextmanager
    def client(self) -> Generator[None]:
        """This thread is on the client's side."""
        with self._side("client"):
            yield

    def _side(self, name: str) -> contextlib.AbstractContextManager[None]:
        if name not in self._namespaces:
            raise RuntimeError("the network is not there")
        return _inside(self._namespaces[name])

    def _close(self) -> None:
        forwarder, self._forwarder = self._forwarder, None
        if forwarder is not None:
            with forwarder:
                try:
                    said, _ = forwarder.communicate(timeout=STOP_SECONDS)
                    report = msgspec.json.decode(said or b"{}", type=Report)
                    self.to_client, self.to_server = report.to_client, report.to_server
                except subprocess.TimeoutExpired:
                    forwarder.kill()
        for namespace in self._namespaces.values():
            os.close(namespace)
        self._namespaces.clear()


def _call(name: str, *arguments: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _own_namespace() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


@contextlib.contextmanager
def _inside(namespace: int) -> Generator[None]:
    before = _own_namespace()
    try:
        _call("setns", namespace, CLONE_NEWNET)
        try:
            yield
        finally:
            _call("setns", before, CLONE_NEWNET)
    finally:
        os.close(before)


def _make_side(address: str) -> tuple[int, int]:
    """(namespace, tunnel) of a new host. Raises OSError."""
    before = _own_namespace()
    try:
        _call("unshare", CLONE_NEWNET)
        try:
            namespace = _own_namespace()
            try:
                return namespace, _make_devices(address)
            except BaseException:
                os.close(namespace)
                raise
        finally:
            _call("setns", before, CLONE_NEWNET)
    finally:
        os.close(before)


def _make_devices(address: str) -> int:
    """Loopback and a tunnel, both up. Raises OSError."""
    tunnel = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.ioctl(tunnel, TUNSETIFF, _request(INTERFACE, "H", IFF_TUN_WITHOUT_HEADER))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, SIOCSIFADDR, _request(INTERFACE, "16s", _address(address)))
            fcntl.ioctl(control, SIOCSIFNETMASK, _request(INTERFACE, "16s", _address(NETMASK)))
            fcntl.ioctl(control, SIOCSIFMTU, _request(INTERFACE, "i", MTU_BYTES))
            for name in ("lo", INTERFACE):
                answer = fcntl.ioctl(control, SIOCGIFFLAGS, _request(name, "H", 0))
                (flags,) = struct.unpack_from("H", answer, NAME_BYTES)
                fcntl.ioctl(control, SIOCSIFFLAGS, _request(name, "H", flags | IFF_UP))
    except BaseException:
        os.close(tunnel)
        raise
    return tunnel


def _request(name: str, layout: str, value: int | bytes) -> bytes:
    """A struct ifreq."""
    request = struct.pack(f"={NAME_BYTES}s{layout}", name.encode(), value)
    return request.ljust(REQUEST_BYTES, b"\0")


def _address(text: str) -> bytes:
    """A struct sockaddr_in."""
    return struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(text))
