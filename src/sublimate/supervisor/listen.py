"""The listening sockets, bound once by the supervisor and inherited by every edge.

Of several workers each has sockets of its own on the same ports (SO_REUSEPORT): the kernel gives
each connection to one of them. They outlive the edges, so that what waits to be accepted is
accepted by the next one.

defines: WorkerSockets, Listeners, bind, bind_each, bind_udp_each, hold, address_url, answers_at
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

import msgspec

from ..config import LISTEN_BACKLOG
from ..errors import ListenError

Address = IPv4Address | IPv6Address


class WorkerSockets(msgspec.Struct, frozen=True):
    """Of one worker."""

    http: socket.socket
    https: socket.socket | None = None
    h3: socket.socket | None = None

    def all(self) -> tuple[socket.socket, ...]:
        """In this order, without those that there are not."""
        return tuple(one for one in (self.http, self.https, self.h3) if one is not None)

    def descriptors(self) -> tuple[int, ...]:
        """Likewise."""
        return tuple(one.fileno() for one in self.all())


class Listeners(msgspec.Struct, frozen=True):
    """Of all workers."""

    workers: tuple[WorkerSockets, ...]
    grpc_address: str = ""
    """host:port, held; empty: no gRPC over HTTP/2."""

    def __post_init__(self) -> None:
        if len({(one.https is None, one.h3 is None) for one in self.workers}) != 1:
            raise ValueError("all workers listen for the same")

    @property
    def http(self) -> socket.socket:
        """One of those that have the server's address."""
        return self.workers[0].http


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one. Raises ListenError."""
    return bind_each(host, port, 1)[0]


def bind_each(host: str, port: int, count: int) -> list[socket.socket]:
    """Listening TCP sockets with one address, one per worker; port 0 takes a free one. Raises
    ListenError."""
    if count < 1:
        raise ValueError("somebody is to listen")
    first = _bound(host, port, "--port")
    socks = [first]
    try:
        socks += _joined(first, count - 1)
        for sock in socks:
            sock.listen(LISTEN_BACKLOG)
            sock.setblocking(False)
    except OSError as error:
        for sock in socks:
            sock.close()
        raise ListenError(_why(host, port, "--port", error)) from None
    return socks


def _joined(first: socket.socket, count: int) -> list[socket.socket]:
    """More sockets at the address of one that was bound alone, so that nobody else had it before:
    from now on the kernel lets sockets of this user join, and of nobody else. Raises OSError."""
    if not count:
        return []
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    more: list[socket.socket] = []
    try:
        for _ in range(count):
            more.append(socket.socket(first.family, first.type))
            if first.type == socket.SOCK_STREAM:
                more[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            more[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            more[-1].bind(first.getsockname())
    except OSError:
        for sock in more:
            sock.close()
        raise
    return more


def hold(host: str, port: int) -> socket.socket:
    """A socket that takes the port and does not listen: what listens there is a library that binds
    by itself, in each edge anew. Nobody else listened on it, and SO_REUSEPORT, set once that is
    known, lets this user's processes do. Raises ListenError."""
    sock = _bound(host, port, "--grpc-port")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return sock


def _bound(host: str, port: int, flag: str) -> socket.socket:
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise ListenError(f"The host {host!r} is not an address of this machine.") from None
    family, kind, protocol, _, address = resolved[0]
    try:
        sock = socket.socket(family, kind, protocol)
    except OSError as error:  # a kernel without that family of addresses
        raise ListenError(_why(host, port, flag, error)) from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise ListenError(_why(host, port, flag, error)) from None
    return sock


def bind_udp_each(socks: Sequence[socket.socket]) -> list[socket.socket]:
    """UDP sockets with the address and port of TCP sockets that share one, as many. Raises
    ListenError."""
    sock = socks[0]
    if sock.type != socket.SOCK_STREAM:
        raise ValueError("a port of TCP was to be matched")
    host, port = sock.getsockname()[:2]
    twin = socket.socket(sock.family, socket.SOCK_DGRAM)
    try:
        twin.bind(sock.getsockname())
        twins = [twin, *_joined(twin, len(socks) - 1)]
    except OSError as error:
        twin.close()
        raise ListenError(
            f"Cannot take UDP port {port} on {host} for HTTP/3: {error.strerror}. Choose another "
            "with --tls-port, or go without by --no-http3."
        ) from None
    for one in twins:
        one.setblocking(False)
    return twins


def _why(host: str, port: int, flag: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} on {host} is in use. Stop what listens there, or choose another "
            f"with {flag} (0 takes a free one)."
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"This user may not listen on port {port}. Choose one above 1023 with {flag}."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine. Choose another with --host."
    return f"Cannot listen on {host}:{port}: {error.strerror}."


def address_url(sock: socket.socket) -> str:
    """URL for a person of this machine; a wildcard address becomes loopback."""
    host, port = sock.getsockname()[:2]
    if sock.family == socket.AF_INET6:
        return f"http://[{'::1' if host == '::' else host}]:{port}"
    wildcard = host == "0.0.0.0"  # noqa: S104 - a comparison, nothing is bound here
    return f"http://{'127.0.0.1' if wildcard else host}:{port}"


# ---- its own address -----------------------------------------------------------------------------
def answers_at(socks: Sequence[socket.socket], host: str, port: int) -> bool:
    """Whether who connects there reaches one of the listening sockets, by whatever name."""
    own = [_address(sock.getsockname()[0]) for sock in socks if sock.getsockname()[1] == port]
    if not own:
        return False
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False  # a name that nobody knows now is told when it is needed
    there = [_address(str(address[0])) for *_, address in found]
    return any(_reaches(one, mine) for one in there for mine in own)


def _address(text: str) -> Address:
    address = ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _reaches(there: Address, own: Address) -> bool:
    """All ways to loopback count as one, those of the other version of IP too: a name such as
    localhost stands for both."""
    if there == own:
        return True
    if own.is_loopback or own.is_unspecified:
        if there.is_loopback or there.is_unspecified:
            return True
    return own.is_unspecified and _is_of_this_machine(there)


def _is_of_this_machine(address: Address) -> bool:
    """Nobody can bind an address of another one."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((str(address), 0))
    except OSError:
        return False
    return True
