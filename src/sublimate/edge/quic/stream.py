"""The wire of one answer on a request stream of HTTP/3.

defines: StreamWire
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..wire import Header

if TYPE_CHECKING:
    from ..exchange import Exchange
    from .connection import Http3Connection


class StreamWire:
    """Nothing is sent from here at once: the connection sends what all its streams have written
    when the event loop's turn is over, so that a step of the engine is one flight."""

    __slots__ = ("_connection", "is_closing", "stream_id")

    chunked = False
    descriptor = -1
    protocol = "HTTP/3"
    has_trailers = True
    standing: Sequence[Header] = ()

    def __init__(self, connection: Http3Connection, stream_id: int) -> None:
        self._connection = connection
        self.stream_id = stream_id
        self.is_closing = False

    @property
    def connection_key(self) -> bytes:
        return self._connection.known_key()

    def whole(self, status: int, fields: Sequence[Header], body: bytes, /) -> None:
        if self.is_closing:
            return
        messages = self._connection.messages
        messages.begin(self.stream_id, status, fields, not body)
        if body:
            messages.write(self.stream_id, body)
            messages.end(self.stream_id, ())
        self._connection.transmit_soon()

    def begin(self, status: int, fields: Sequence[Header], pieces: bytes, /) -> bool:
        if not self.is_closing:
            self._connection.messages.begin(self.stream_id, status, fields, False)
            self._connection.write(self.stream_id, pieces)
        return False

    def send(self, pieces: bytes, /) -> bool:
        if not self.is_closing:
            self._connection.write(self.stream_id, pieces)
        return False

    def finish(self, pieces: bytes, trailers: Sequence[Header] = (), /) -> None:
        if self.is_closing:
            return
        messages = self._connection.messages
        messages.write(self.stream_id, pieces)
        messages.end(self.stream_id, trailers)
        self._connection.transmit_soon()

    def answered(self, exchange: Exchange, /) -> None:
        self._connection.answered(exchange, self.stream_id)

    def last(self) -> None:
        """Streams do not disturb each other: the connection goes on."""

    def framed(self, frames: bytes, /) -> bytes:
        return frames

    def unsent_bytes(self) -> int:
        return self._connection.transport.unsent_bytes(self.stream_id)

    def resume_body(self) -> None:
        self._connection.resume_body(self.stream_id)

    def cut(self) -> None:
        self._connection.cut(self.stream_id)

    def base_url(self) -> str:
        return self._connection.base_url
