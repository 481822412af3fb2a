"""One request to another server, over a connection of its own, whose answer is read as it comes.

Only the operator names the server; redirects are not followed. The connection ends with the
request, however that ends: there is no pool that could run dry.

defines: MESSAGES, CHAT, Address, address_of, check_key, UpstreamError, Reply, Upstream
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from urllib.parse import urlsplit

import httptools
import msgspec

from ..errors import ConfigError

CONNECT_SECONDS = 5.0
SILENT_SECONDS = 120.0
"""Without a byte: a long answer that is sent as a whole takes its time."""
READ_BYTES = 1 << 16
HEAD_BYTES_MAX = 1 << 16
WHOLE_BYTES_MAX = 32 << 20
MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
PORTS = {"http": 80, "https": 443}


PRINTABLE = re.compile(r"[!-~]*", re.ASCII)


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go."""

    host: str
    port: int
    authority: str
    """For the host field."""
    path: str
    speaks_chat: bool
    is_secure: bool


def address_of(url: str) -> Address:
    """url: base of a server of the Messages API, or one that ends with /v1/chat/completions.
    Raises ConfigError, with a text that has no password."""
    if PRINTABLE.fullmatch(url) is None:
        # What follows would pass over line ends, and spaces would end up in the request.
        raise ConfigError("fallback: a URL has no spaces, line ends or letters beyond ASCII.")
    if "@" in url or "?" in url or "#" in url:
        raise ConfigError("fallback: a URL without user, query and fragment. Keys have a setting.")
    expected = f"fallback = {url!r}: expected http://HOST[:PORT] or https://..."
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(expected) from None
    host = parts.hostname
    if parts.scheme not in PORTS or not host or port == 0:
        raise ConfigError(expected)
    path = parts.path.rstrip("/")
    speaks_chat = path.endswith(CHAT)
    for ending in (CHAT, MESSAGES, "/v1"):
        path = path.removesuffix(ending)
    return Address(
        host=host,
        port=port or PORTS[parts.scheme],
        authority=parts.netloc,
        path=path + (CHAT if speaks_chat else MESSAGES),
        speaks_chat=speaks_chat,
        is_secure=parts.scheme == "https",
    )


def check_key(key: str) -> None:
    """Raises ConfigError for one that no header field can have."""
    if PRINTABLE.fullmatch(key) is None:
        raise ConfigError("fallback_key: a key has no spaces, line ends or letters beyond ASCII.")


class UpstreamError(Exception):
    """No answer, or only a part of one."""


class Reply:
    """An answer: its head, then its body in pieces."""

    def __init__(self, reader: asyncio.StreamReader, silent_seconds: float) -> None:
        self.status = 0
        self.fields: dict[str, str] = {}
        self._reader = reader
        self._silent_seconds = silent_seconds
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._has_head = self._is_complete = False

    # Callbacks of the parser.
    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        # 1xx only says that the answer is still to come.
        self._has_head = self.status >= 200
        if not self._has_head:
            self.fields.clear()

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._is_complete = self._has_head

    async def read_head(self) -> None:
        """Raises UpstreamError."""
        received = 0
        while not self._has_head:
            received += await self._more()
            if received > HEAD_BYTES_MAX and not self._has_head:
                raise UpstreamError("the head of its answer has no end")

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises UpstreamError."""
        while True:
            pieces, self._pieces = self._pieces, []
            for piece in pieces:
                yield piece
            if self._is_complete and not self._pieces:
                return
            await self._more()

    async def whole(self) -> bytes:
        """All of the body. Raises UpstreamError."""
        body = bytearray()
        async for piece in self.pieces():
            body += piece
            if len(body) > WHOLE_BYTES_MAX:
                raise UpstreamError("its answer is too long")
        return bytes(body)

    async def _more(self) -> int:
        try:
            async with asyncio.timeout(self._silent_seconds):
                data = await self._reader.read(READ_BYTES)
        except TimeoutError:
            raise UpstreamError("it said nothing for too long") from None
        except OSError as error:
            raise UpstreamError(error.strerror or "the connection broke") from None
        if not data:
            if self._has_head and not {"content-length", "transfer-encoding"} & self.fields.keys():
                self._is_complete = True  # such a body ends with its connection
                return 0
            raise UpstreamError("the connection ended before the answer did")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            raise UpstreamError("its answer is no HTTP") from None
        return len(data)


class Upstream:
    """Where requests go."""

    def __init__(
        self,
        url: str,
        *,
        connect_seconds: float = CONNECT_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        """url: as address_of takes it. Raises ConfigError."""
        to = self.address = address_of(url)
        self._tls = ssl.create_default_context() if to.is_secure else None
        self._connect_seconds = connect_seconds
        self._silent_seconds = silent_seconds

    @contextlib.asynccontextmanager
    async def post(self, fields: Mapping[str, str], body: bytes) -> AsyncGenerator[Reply, None]:
        """The answer to a POST, with its head. Raises UpstreamError."""
        reader, writer = await self._connect()
        try:
            to = self.address
            lines = [f"POST {to.path} HTTP/1.1", f"host: {to.authority}"]
            lines += [f"{name}: {value}" for name, value in fields.items()]
            lines += [f"content-length: {len(body)}", "connection: close", "", ""]
            if any(character in line for line in lines for character in "\r\n\0"):
                raise UpstreamError("a field of the request would end its line")
            writer.write("\r\n".join(lines).encode("latin-1", "replace") + body)
            reply = Reply(reader, self._silent_seconds)
            await reply.read_head()
            yield reply
        finally:
            # At once, whatever is still to come: nobody is going to read it.
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(self._connect_seconds):
                return await asyncio.open_connection(
                    self.address.host, self.address.port, ssl=self._tls
                )
        except TimeoutError:
            raise UpstreamError("it takes no connection in time") from None
        except OSError as error:
            raise UpstreamError(error.strerror or "it takes no connection") from None
