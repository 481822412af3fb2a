"""The listening socket, bound once by the supervisor and inherited by every edge.

defines: bind, bind_udp, hold, address_url
"""

from __future__ import annotations

import errno
import socket

from ..errors import ListenError

BACKLOG = 1024


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one. Raises ListenError."""
    sock = _bound(host, port, "--port", BACKLOG)
    sock.setblocking(False)
    return sock


def hold(host: str, port: int) -> socket.socket:
    """A socket that takes the port and does not listen: what listens there is a library that binds
    by itself, in each edge anew. Nobody else listened on it, and SO_REUSEPORT, set once that is
    known, lets this user's processes do. Raises ListenError."""
    sock = _bound(host, port, "--grpc-port")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return sock


def _bound(host: str, port: int, flag: str, backlog: int = 0) -> socket.socket:
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise ListenError(f"The host {host!r} is no address of this machine.") from None
    family, kind, protocol, _, address = resolved[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        if backlog:
            sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise ListenError(_why(host, port, flag, error)) from None
    return sock


def bind_udp(sock: socket.socket) -> socket.socket:
    """A UDP socket with the address and port of a TCP socket. Raises ListenError."""
    if sock.type != socket.SOCK_STREAM:
        raise ValueError("a port of TCP was to be matched")
    host, port = sock.getsockname()[:2]
    twin = socket.socket(sock.family, socket.SOCK_DGRAM)
    try:
        twin.bind(sock.getsockname())
    except OSError as error:
        twin.close()
        raise ListenError(
            f"Cannot take UDP port {port} on {host} for HTTP/3: {error.strerror}. Choose another "
            "with --tls-port, or go without by --no-http3."
        ) from None
    twin.setblocking(False)
    return twin


def _why(host: str, port: int, flag: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} on {host} is in use. Stop what listens there, or choose another "
            f"with {flag} (0 takes a free one)."
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"This user may not listen on port {port}. Choose one above 1023 with {flag}."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine. Choose another with --host."
    return f"Cannot listen on {host}:{port}: {error.strerror}."


def address_url(sock: socket.socket) -> str:
    """URL for a person of this machine; a wildcard address becomes loopback."""
    host, port = sock.getsockname()[:2]
    if sock.family == socket.AF_INET6:
        return f"http://[{'::1' if host == '::' else host}]:{port}"
    wildcard = host == "0.0.0.0"  # noqa: S104 - a comparison, nothing is bound here
    return f"http://{'127.0.0.1' if wildcard else host}:{port}"
