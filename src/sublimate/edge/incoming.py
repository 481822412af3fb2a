"""The body of a request while it arrives: decoded, counted, and brought to where it belongs.

defines: IncomingBody
"""

from __future__ import annotations

from .coding import GzipBody
from .errors import ApiError
from .exchange import Exchange


class IncomingBody:
    """Into the exchange's sink if it has one, else into `request.body`."""

    def __init__(self, exchange: Exchange, bytes_max: int, takes_gzip: bool) -> None:
        """Raises ApiError for what the head says of the body."""
        if bytes_max < 0:
            raise ValueError("a body has no fewer than no bytes")
        fields = exchange.request.fields
        self._exchange = exchange
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self._gzip: GzipBody | None = None
        self._is_complete = False
        self.received_bytes = 0
        """As they came, before they were decoded."""
        self.kept_bytes = 0
        """In memory."""
        length = fields.get(b"content-length", b"0")
        if length.isdigit() and int(length) > bytes_max:
            raise ApiError("request_too_large", maximum=bytes_max)
        coding = fields.get(b"content-encoding", b"").lower() or b"identity"
        if takes_gzip and coding in (b"gzip", b"x-gzip"):
            self._gzip = GzipBody(bytes_max)
        elif coding != b"identity":
            raise ApiError("body_encoding")

    def feed(self, data: bytes) -> bool:
        """More of it. False: the sink wants no more until it says so. Raises ApiError."""
        if self._is_complete:
            raise RuntimeError("a body has one end")
        self.received_bytes += len(data)
        if self.received_bytes > self._bytes_max:
            raise ApiError("request_too_large", maximum=self._bytes_max)
        if self._gzip is not None:
            data = self._gzip.feed(data)
        if self._exchange.sink is not None:
            return self._exchange.sink.feed(data)
        self._parts.append(data)
        self.kept_bytes += len(data)
        return True

    def finish(self) -> None:
        """It is complete. Raises ApiError."""
        self._is_complete = True
        if self._gzip is not None and self.received_bytes:
            self._gzip.finish()
        self._exchange.request.body = b"".join(self._parts)
        self._parts = []
