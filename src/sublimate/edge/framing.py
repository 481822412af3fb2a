"""How HTTP/1.1 carries one answer: head, chunks, and whether the connection goes on.

defines: Http1Wire
"""

from __future__ import annotations

import http
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .wire import Header

if TYPE_CHECKING:
    from .exchange import Exchange
    from .http import HttpConnection

LAST_CHUNK = b"0\r\n\r\n"
# 529 is no registered status; its phrase is ours.
_PHRASES = {529: "Overloaded"}
PROTOCOLS = {
    (chunked, secure): f"HTTP/1.{int(chunked)}{' over TLS' if secure else ''}"
    for chunked in (False, True)
    for secure in (False, True)
}
"""By whether chunks are understood, and TLS."""


class Http1Wire:
    """One answer on a connection, which gives one after the other."""

    __slots__ = ("_connection", "chunked", "keep_alive", "send", "standing")

    has_trailers = False  # few clients of HTTP/1.1 read them

    def __init__(self, connection: HttpConnection, is_latest: bool, keep_alive: bool) -> None:
        self._connection = connection
        self.chunked = is_latest
        """HTTP/1.1. An older client gets a stream without chunks: the connection's end ends it."""
        self.keep_alive = keep_alive
        self.send = connection.send
        self.standing = connection.standing

    @property
    def descriptor(self) -> int:
        return self._connection.descriptor

    @property
    def connection_key(self) -> bytes:
        return self._connection.known_key()

    @property
    def protocol(self) -> str:
        """For people."""
        return PROTOCOLS[self.chunked, self._connection.is_secure]

    @property
    def is_closing(self) -> bool:
        return self._connection.transport.is_closing()

    def whole(self, status: int, fields: Sequence[Header], body: bytes, /) -> None:
        self.send(self._head(status, fields) + body)

    def begin(self, status: int, fields: Sequence[Header], pieces: bytes, /) -> bool:
        if self.chunked:
            fields = [*fields, ("transfer-encoding", "chunked")]
        else:
            self.keep_alive = False
        return self.send(self._head(status, fields) + pieces)

    def finish(self, pieces: bytes, trailers: Sequence[Header] = (), /) -> None:
        del trailers
        self.send(pieces + LAST_CHUNK if self.chunked else pieces)

    def answered(self, exchange: Exchange, /) -> None:
        self._connection.answered(exchange, self.keep_alive)

    def last(self) -> None:
        self.keep_alive = False

    def framed(self, frames: bytes, /) -> bytes:
        return b"%x\r\n%b\r\n" % (len(frames), frames) if self.chunked else frames

    def unsent_bytes(self) -> int:
        return self._connection.transport.get_write_buffer_size()

    def resume_body(self) -> None:
        self._connection.resume_body()

    def cut(self) -> None:
        self._connection.transport.abort()

    def base_url(self) -> str:
        if self._connection.is_relayed:
            return self._connection.relayed_url
        transport = self._connection.transport
        host, port, *_ = transport.get_extra_info("sockname")
        scheme = "https" if self._connection.is_secure else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def _head(self, status: int, fields: Sequence[Header]) -> bytes:
        phrase = _PHRASES.get(status) or http.HTTPStatus(status).phrase
        lines = [f"HTTP/1.1 {status} {phrase}", *[f"{name}: {value}" for name, value in fields]]
        if not self.keep_alive:
            lines.append("connection: close")
        lines.append("\r\n")
        head = "\r\n".join(lines)
        if head.count("\n") != len(lines) or head.count("\r") != len(lines):
            raise RuntimeError("a field of an answer has more than one line")
        return head.encode("latin-1")
