"""One request with its answer. Handlers write here; the connection decides what follows.

defines: Request, BodySink, Exchange
"""

from __future__ import annotations

import http
import secrets
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from .coding import accepts_gzip, compress, pays
from .errors import MESSAGES_SHAPE, ApiError, ErrorShape
from .quota import NOBODY, Lease

if TYPE_CHECKING:
    from .http import HttpConnection

Header = tuple[str, str]
JSON_TYPE = ("content-type", "application/json")
EVENT_STREAM = "text/event-stream; charset=utf-8"
LAST_CHUNK = b"0\r\n\r\n"
REQUEST_ID_BYTES = 12
SERVER_ERROR = 500

# 529 is no registered status; its phrase is ours.
_PHRASES = {529: "Overloaded"}
_PROCESS_PREFIX = secrets.token_hex(REQUEST_ID_BYTES // 2)


class _Sequence:
    """Identifiers that are unique without a draw of randomness each."""

    def __init__(self) -> None:
        self._next = secrets.randbits(REQUEST_ID_BYTES * 2)

    def take(self) -> str:
        self._next += 1
        return f"{_PROCESS_PREFIX}{self._next & 0xFFFFFFFFFFFF:012x}"


_identifiers = _Sequence()


def new_identifier(kind: str) -> str:
    """req_... or msg_...: unique, not secret."""
    return f"{kind}_{_identifiers.take()}"


class Request:
    """What the client asked. `target` is the raw request target; path and query come from it."""

    __slots__ = ("body", "fields", "is_latest", "method", "path", "query", "target")

    def __init__(
        self, method: str, target: bytes, fields: dict[bytes, bytes], is_latest: bool
    ) -> None:
        self.method = method
        self.target = target
        self.fields = fields
        self.is_latest = is_latest
        """HTTP/1.1: chunks are understood."""
        raw, _, query = target.decode("latin-1").partition("?")
        if not raw.startswith("/"):
            # The absolute form names a host, which is never used.
            _, found, rest = raw.partition("://")
            raw = "/" + rest.partition("/")[2] if found else raw
        self.path = raw
        self.query = query
        self.body = b""

    def segments(self) -> list[str]:
        """Decoded parts of the path; %2F stays inside its part."""
        return [unquote(part) for part in self.path.split("/")[1:]]

    def field(self, name: bytes) -> str:
        return self.fields.get(name, b"").decode("latin-1")


class BodySink(Protocol):
    """Where the body of a request goes while it arrives, if not into memory."""

    def feed(self, data: bytes) -> bool:
        """More of it, decoded. False: the connection is not read until `resume_body` is called."""
        ...

    def close(self) -> None:
        """The exchange has ended. Idempotent."""
        ...


class Exchange:
    """One request and the writer of its answer. On the event loop's thread only."""

    __slots__ = (
        "_connection",
        "answered",
        "chunked",
        "error_code",
        "error_shape",
        "handler",
        "keep_alive",
        "lease",
        "on_gone",
        "owner",
        "refusal",
        "request",
        "request_id",
        "sink",
        "standing_headers",
        "started_seconds",
        "status",
        "streaming",
        "was_slow",
    )

    def __init__(self, connection: HttpConnection, request: Request, keep_alive: bool) -> None:
        self._connection = connection
        self.chunked = request.is_latest
        """How a stream is framed: without chunks the end of the connection ends it."""
        self.request = request
        self.keep_alive = keep_alive
        self.request_id = new_identifier("req")
        self.started_seconds = time.monotonic()
        self.sink: BodySink | None = None
        """Takes the body in place of `request.body`; closed when the exchange ends."""
        self.refusal: ApiError | None = None
        """Set by the head alone; handlers never see such a request."""
        self.error_code = ""
        """Of the error that it was answered with."""
        self.handler: Any = None
        """Of the route that was found; called with the exchange."""
        self.error_shape: ErrorShape = MESSAGES_SHAPE
        """Of the surface whose path this is; of the answer, once that streams."""
        self.owner = NOBODY
        """Whose API key was accepted."""
        self.lease: Lease | None = None
        """What the owner's limits were charged for it."""
        self.standing_headers: list[Header] = []
        """Headers of every answer on this exchange."""
        self.status = 0
        """0 until the head of the answer is written."""
        self.streaming = False
        self.answered = False
        self.was_slow = False
        self.on_gone: Callable[[], None] | None = None
        """Called once when the client has gone before the answer was complete."""

    @property
    def tenant_key(self) -> bytes:
        """Names the owner in what is kept per tenant."""
        return self.owner.key

    # ---- whole answers -------------------------------------------------------------------------
    def send(self, status: int, headers: list[Header], body: bytes) -> None:
        """Head and body at once."""
        if self.answered:
            return
        is_head = self.request.method == "HEAD"
        if pays(len(body)):
            headers = [*headers, ("vary", "accept-encoding")]
            if accepts_gzip(self.request.field(b"accept-encoding")):
                body = compress(body)
                headers.append(("content-encoding", "gzip"))
        headers = [*headers, ("content-length", str(len(body)))]
        head = self._head(status, headers)
        self._finish(head if is_head else head + body)

    def send_json(self, status: int, body: bytes, headers: list[Header] | None = None) -> None:
        self.send(status, [JSON_TYPE, *(headers or [])], body)

    def fail(self, error: ApiError) -> None:
        """An error in the envelope; on a stream that has begun, as its last event."""
        if self.answered:
            return
        self.error_code = error.code
        if self.streaming:
            self.finish(self.framed(self.error_shape.event(error, self.request_id)))
            return
        if error.kind.close:
            self.keep_alive = False
        body = self.error_shape.body(error, self.request_id)
        self.send_json(self.error_shape.status(error), body, error.headers())

    # ---- streams -------------------------------------------------------------------------------
    def start_stream(
        self, headers: list[Header], data: bytes, content_type: str = EVENT_STREAM
    ) -> bool:
        """The head of a stream of events, and its first bytes; as `write`."""
        if self.streaming or self.answered:
            raise RuntimeError("an answer has one head")
        self.streaming = True
        stream = [
            ("content-type", content_type),
            ("cache-control", "no-cache"),
        ]
        if self.chunked:
            stream.append(("transfer-encoding", "chunked"))
        else:
            self.keep_alive = False
        return self._connection.send(self._head(200, [*stream, *headers]) + data)

    def write(self, data: bytes) -> bool:
        """Bytes of a stream, framed. True: all of it is with the kernel, nothing waits here."""
        if not self.streaming:
            raise RuntimeError("a stream begins with its head and ends with `finish`")
        return self._connection.send(data)

    def finish(self, data: bytes = b"") -> None:
        """The last bytes of a stream, framed."""
        if not self.answered:
            self._finish(data + LAST_CHUNK if self.chunked else data)

    def framed(self, frames: bytes) -> bytes:
        """Events as this stream carries them."""
        return b"%x\r\n%b\r\n" % (len(frames), frames) if self.chunked else frames

    def descriptor(self) -> int:
        """Of the socket, for who may write to it while nothing waits here; -1 if nobody may."""
        return self._connection.descriptor

    def _finish(self, data: bytes) -> None:
        self.answered = True
        self.on_gone = None
        self._connection.send(data)
        self._close_sink()
        self.streaming = False
        self._connection.answered(self)

    def _head(self, status: int, headers: list[Header]) -> bytes:
        self.status = status
        phrase = _PHRASES.get(status) or http.HTTPStatus(status).phrase
        lines = [
            f"HTTP/1.1 {status} {phrase}",
            f"date: {_date()}",
            *(f"{name}: {self.request_id}" for name in self.error_shape.id_headers),
        ]
        lines += [f"{name}: {value}" for name, value in self.standing_headers]
        lines += [f"{name}: {value}" for name, value in headers]
        if not self.keep_alive:
            lines.append("connection: close")
        lines.append("\r\n")
        return "\r\n".join(lines).encode("latin-1")

    # ---- the other end -------------------------------------------------------------------------
    @property
    def gone(self) -> bool:
        """The client has closed before the answer was complete."""
        return self._connection.transport.is_closing() and not self.answered

    def client_gone(self) -> None:
        """From the connection: it is lost."""
        callback, self.on_gone = self.on_gone, None
        if callback is not None and not self.answered:
            callback()
        self._close_sink()

    def _close_sink(self) -> None:
        if self.sink is not None:
            self.sink.close()

    def resume_body(self) -> None:
        """From the sink: there is room for more."""
        self._connection.resume_body()

    def cut(self) -> None:
        """End the connection at once: its client takes nothing."""
        self.was_slow = True
        self._connection.transport.abort()

    def slow_reader(self) -> None:
        """From the connection: the client leaves too much unread and is cut off."""
        self.was_slow = True

    def base_url(self) -> str:
        """Of this server as the client reached it, by address: a host field may say anything."""
        host, port, *_ = self._connection.transport.get_extra_info("sockname")
        secure = self._connection.transport.get_extra_info("sslcontext") is not None
        scheme = "https" if secure else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def unsent_bytes(self) -> int:
        return self._connection.transport.get_write_buffer_size()


class _Clock:
    """The date header, made once a second."""

    second = -1
    text = ""


def _date() -> str:
    now = int(time.time())
    if now != _Clock.second:
        _Clock.second = now
        _Clock.text = formatdate(now, usegmt=True)
    return _Clock.text
