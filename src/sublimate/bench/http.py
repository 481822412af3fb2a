"""One streamed HTTP request over a raw asyncio socket, so that the client costs little.

While a stream runs, arriving bytes are only stored with their time; they are parsed afterwards.

defines: Target, Exchange, exchange, body_events
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from ..errors import PeerError

READ_BYTES = 1 << 16
HEADER_BYTES_MAX = 1 << 16
LAST_CHUNK = b"\r\n0\r\n\r\n"
PORTS = {"http": 80, "https": 443}


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> Target:
        """Raises PeerError on what is no http(s) URL."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError:
            raise PeerError(f"{url!r} is no URL.") from None
        if parts.scheme not in PORTS or not parts.hostname:
            raise PeerError(f"{url!r} is no http or https URL.")
        path = parts.path.rstrip("/")
        port = port or PORTS[parts.scheme]
        return cls(scheme=parts.scheme, host=parts.hostname, port=port, path=path)


class Exchange(msgspec.Struct, kw_only=True):
    """What one request brought. Times in seconds of time.perf_counter."""

    started_seconds: float
    ended_seconds: float = 0.0
    status: int = 0
    chunked: bool = False
    request_id: str = ""
    error: str = ""
    arrivals: list[tuple[float, bytes]] = []
    """(time, bytes of the body as they came, still chunked)"""

    def body(self) -> bytes:
        """The whole body, decoded."""
        return b"".join(piece for _, piece in _decoded(self))


async def exchange(
    target: Target,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str],
    timeout_seconds: float,
) -> Exchange:
    """Send one request and store what comes until the end. Never raises for the peer's faults."""
    result = Exchange(started_seconds=time.perf_counter())
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_seconds):
            context = ssl.create_default_context() if target.scheme == "https" else None
            reader, writer = await asyncio.open_connection(target.host, target.port, ssl=context)
            result.started_seconds = time.perf_counter()
            writer.write(_request(target, method, path, body, headers))
            await _read(reader, result)
    except TimeoutError:
        result.error = f"no end within {timeout_seconds:.0f} s"
    except (OSError, EOFError, ValueError) as error:
        result.error = getattr(error, "strerror", None) or type(error).__name__
    finally:
        result.ended_seconds = time.perf_counter()
        if writer is not None:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    return result


def _request(target: Target, method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"host: {target.host}:{target.port}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"content-length: {len(body)}", "connection: close", "", ""]
    return "\r\n".join(lines).encode() + body


async def _read(reader: asyncio.StreamReader, result: Exchange) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    result.status = int(lines[0].split()[1])
    length = -1
    for line in lines[1:]:
        name, _, value = line.partition(":")
        if name.lower() == "transfer-encoding":
            result.chunked = "chunked" in value.lower()
        elif name.lower() == "content-length":
            length = int(value)
    received, tail = 0, b"\r\n"
    while received != length:
        piece = await reader.read(READ_BYTES)
        if not piece:
            break
        result.arrivals.append((time.perf_counter(), piece))
        received += len(piece)
        # Some servers keep the connection open although they were asked to close it.
        tail = (tail + piece)[-len(LAST_CHUNK) :]
        if result.chunked and tail == LAST_CHUNK:
            break


def _decoded(result: Exchange) -> Iterator[tuple[float, bytes]]:
    """The body's bytes with the time of the arrival that completed them, chunking removed."""
    if not result.chunked:
        yield from result.arrivals
        return
    buffer, left = b"", 0  # left: bytes of the chunk that are still to come
    for at, piece in result.arrivals:
        buffer += piece
        while buffer:
            if left:
                part, buffer = buffer[:left], buffer[left:]
                left -= len(part)
                yield at, part
                continue
            buffer = buffer.removeprefix(b"\r\n")
            line, found, rest = buffer.partition(b"\r\n")
            if not found:
                break
            try:
                left = int(line.split(b";")[0], 16)
            except ValueError:
                return  # not a chunk: the rest cannot be trusted
            buffer = rest
            if left == 0:
                return


def body_events(result: Exchange) -> Iterator[tuple[float, bytes]]:
    """(time, data) of the server-sent events of the body."""
    buffer = b""
    for at, piece in _decoded(result):
        buffer += piece
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield at, line[len(b"data:") :].strip()
