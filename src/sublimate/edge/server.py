"""Starts an edge in the running event loop: for its own process, for tests, for use inside another.

defines: create_server, listen_on
"""

from __future__ import annotations

import socket
from typing import Any

from .. import _core
from ..config import EdgeSettings
from . import limits
from .app import EdgeServer
from .limits import HttpLimits
from .loading import OnDemand
from .routes import Routes
from .textmodel import TextModel

KEEP_ALIVE_IDLE_SECONDS = 60
KEEP_ALIVE_INTERVAL_SECONDS = 15
KEEP_ALIVE_PROBES = 4


async def create_server(
    settings: EdgeSettings,
    model: TextModel,
    routes: Routes,
    sock: socket.socket,
    *,
    tls_sock: socket.socket | None = None,
    grpc_address: str = "",
    udp_sock: socket.socket | None = None,
    http_limits: HttpLimits | None = None,
    region: _core.Region | None = None,
    engine_info: dict[str, Any] | None = None,
    on_demand: OnDemand | None = None,
    adapters: tuple[str, ...] = (),
) -> EdgeServer:
    """An edge that answers on a listening socket; with a region it serves from the start. On
    tls_sock it speaks TLS, with the certificate of the settings, and on udp_sock, bound to the same
    port, HTTP/3; at grpc_address (host:port) gRPC over HTTP/2. Raises ConfigError, ListenError.

    engine_info: as the engine reports it: at least context_length. on_demand: further models, and
    that this one, too, may be out of memory. adapters: as for EdgeServer.
    """
    server = EdgeServer(
        settings, model, routes, http_limits, on_demand=on_demand, adapters=adapters
    )
    if region is not None:
        server.engine_up(region, engine_info or {})
    await listen_on(server, sock, tls_sock=tls_sock, grpc_address=grpc_address, udp_sock=udp_sock)
    return server


async def listen_on(
    server: EdgeServer,
    sock: socket.socket,
    *,
    tls_sock: socket.socket | None = None,
    grpc_address: str = "",
    udp_sock: socket.socket | None = None,
) -> None:
    """As create_server says. Raises ConfigError, ListenError."""
    tune(sock)
    await server.listen(sock)
    if tls_sock is not None:
        tune(tls_sock)
        await server.listen_tls(tls_sock, udp_sock)
    if grpc_address:
        await server.listen_grpc(grpc_address)


def tune(sock: socket.socket) -> None:
    """Options that accepted connections inherit: bounded kernel memory, and a client whose machine
    has gone is noticed."""
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.SOCKET_SEND_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_IDLE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_ALIVE_INTERVAL_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEP_ALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
