"""The scheduler's connections to what computes: this server's own port, over HTTP/1.1 that stays.

defines: Executor, ExecutorConnection
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httptools

REUSED_SECONDS = 60.0
"""A connection that has rested for less is used again; the server keeps one three times as long."""
HeardHead = Callable[[int, list[tuple[str, str]]], None]
HeardPiece = Callable[[bytes, bool], None]
"""(bytes of the body, whether it is the last)."""


class ExecutorConnection(asyncio.Protocol):
    """One request at a time. `on_broken` is called once if it ends before its answer."""

    def __init__(self, release: Callable[[ExecutorConnection], None]) -> None:
        self.rested_since_seconds = 0.0
        self._release = release
        self._transport: Any = None
        self._parser: Any = None
        self._on_head: HeardHead | None = None
        self._on_piece: HeardPiece | None = None
        self._on_broken: Callable[[], None] | None = None
        self._headers: list[tuple[str, str]] = []
        self._pieces: list[bytes] = []
        self._complete = self._stays = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def begin(
        self,
        request: bytes,
        on_head: HeardHead,
        on_piece: HeardPiece,
        on_broken: Callable[[], None],
    ) -> None:
        if self._on_broken is not None:
            raise RuntimeError("a connection answers one request at a time")
        if not self.is_open:
            raise RuntimeError("a connection that has ended answers nothing")
        self._on_head, self._on_piece, self._on_broken = on_head, on_piece, on_broken
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._pieces, self._complete = [], [], False
        self._transport.write(request)

    def cancel(self) -> None:
        """The server takes the end of a connection for the end of its request."""
        self._on_broken = None
        self._transport.abort()

    # ---- asyncio -------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()
            return
        on_piece = self._on_piece
        if on_piece is None or not (self._pieces or self._complete):
            return
        piece, self._pieces = b"".join(self._pieces), []
        if self._complete:
            self._on_broken = self._on_piece = None
            self.rested_since_seconds = time.monotonic()
            if not self._stays:
                self._transport.close()
            self._release(self)
        on_piece(piece, self._complete)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        broken, self._on_broken = self._on_broken, None
        if broken is not None:
            broken()

    # ---- parser --------------------------------------------------------------------------------
    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if self._on_head is not None:
            self._on_head(self._parser.get_status_code(), self._headers)

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        self._complete = True
        self._stays = bool(self._parser.should_keep_alive())  # known here and not later


class Executor:
    """A server that computes, and the connections to it that rest."""

    def __init__(self, host: str, port: int) -> None:
        if not host or port <= 0:
            raise ValueError("an executor has an address")
        self._host, self._port = host, port
        self._resting: list[ExecutorConnection] = []

    async def connection(self) -> ExecutorConnection:
        """Raises OSError."""
        now = time.monotonic()
        while self._resting:
            resting = self._resting.pop()
            if resting.is_open and now - resting.rested_since_seconds < REUSED_SECONDS:
                return resting
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(
            lambda: ExecutorConnection(self._rest), self._host, self._port
        )
        return made

    def _rest(self, connection: ExecutorConnection) -> None:
        if connection.is_open:
            self._resting.append(connection)

    def request(self, headers: list[tuple[str, str]], body: bytes) -> bytes:
        """A POST of the Messages API. Raises ValueError for what no head may hold."""
        if any(set("\r\n") & set(name + value) for name, value in headers):
            raise ValueError("a header ends its line")
        lines = ["POST /v1/messages HTTP/1.1", f"host: {self._host}:{self._port}"]
        lines += [f"{name}: {value}" for name, value in headers]
        lines += [f"content-length: {len(body)}", "", ""]
        return "\r\n".join(lines).encode("latin-1") + body
