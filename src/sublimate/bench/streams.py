"""Many streamed requests at once from one thread: plain sockets, epoll, connections that stay.

A client on the machine of the server takes time from it, so this one costs little: a `recv` and a
stored piece of bytes per arrival. What the bytes say is read when all streams have ended.

defines: Streams, CUT
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator

from ..errors import PeerError
from .http import HEADER_BYTES_MAX, LAST_CHUNK, READ_BYTES, Exchange, Target

CONNECT_SECONDS = 10.0
POLL_SECONDS = 0.1
CUT = "cut off by the client"
OVERLOADED = 529
HEAD_END = b"\r\n\r\n"


class _Stream:
    """One connection and the request that is under way on it."""

    __slots__ = ("body", "close_after", "exchange", "head", "left_bytes", "socket", "tail")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.body = b""
        self.exchange: Exchange | None = None
        self.head: bytes | None = b""
        """What came of the head; None once it is complete."""
        self.left_bytes = 0
        """Of a body whose length was told; -1: chunks, or until the end of the connection."""
        self.tail = b""
        self.close_after = False


class Streams:
    """Connections to one server. Use it as a context manager."""

    def __init__(self, target: Target, headers: dict[str, str]) -> None:
        if target.scheme != "http":
            raise PeerError("This measures servers that speak plain http.")
        self._target = target
        lines = [f"host: {target.host}:{target.port}"]
        self._fields = "\r\n".join([*lines, *(f"{k}: {v}" for k, v in headers.items())])
        self._epoll = select.epoll()
        self._idle: list[_Stream] = []
        self._busy: dict[int, _Stream] = {}
        self.refused = 0

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *error: object) -> None:
        for stream in (*self._idle, *self._busy.values()):
            stream.socket.close()
        self._epoll.close()

    def connect(self, count: int) -> None:
        """Have so many connections ready. Raises PeerError."""
        while len(self._idle) < count:
            self._idle.append(self._connected())

    def run(
        self,
        path: str,
        bodies: Iterator[bytes],
        concurrency: int,
        *,
        seconds: float = 0.0,
        cut_seconds: float = 0.0,
        timeout_seconds: float = 600.0,
        done: Callable[[Exchange], None] | None = None,
    ) -> list[Exchange]:
        """Keep `concurrency` requests under way until the bodies end or `seconds` have passed, then
        let those under way end. With `done`, answers go there and none are returned. After
        `cut_seconds` all that is under way is cut and returned as it is, with the error CUT.

        A request that the server has no room for (529) is sent again when another one has ended,
        and counted in `refused`.
        """
        if concurrency < 1 or min(seconds, cut_seconds) < 0:
            raise ValueError("a load has at least one stream and no negative time")
        self.connect(concurrency)
        begin = time.perf_counter()
        stop_at = begin + seconds if seconds else float("inf")
        results: list[Exchange] = []
        take = results.append if done is None else done
        again: deque[bytes] = deque()

        def send_next() -> None:
            body = again.popleft() if again else None
            if body is None and time.perf_counter() < stop_at:
                body = next(bodies, None)
            if body is not None:
                self._send(path, body)

        for _ in range(concurrency):
            send_next()
        while self._busy:
            for number, _ in self._epoll.poll(POLL_SECONDS):
                stream = self._busy.get(number)
                if stream is None or not self._receive(stream):
                    continue
                body = stream.body
                answer = self._finish(stream)
                if answer.status == OVERLOADED and self._busy:
                    self.refused += 1
                    again.append(body)
                    continue
                take(answer)
                send_next()
            passed = time.perf_counter() - begin
            is_cut = 0 < cut_seconds < passed
            if is_cut or passed > timeout_seconds:
                why = CUT if is_cut else f"no end within {timeout_seconds:.0f} s"
                for stream in list(self._busy.values()):
                    self._fail(stream, why)
                    take(self._finish(stream))
        return results

    # ---- one stream ----------------------------------------------------------------------------
    def _connected(self) -> _Stream:
        where = (self._target.host, self._target.port)
        try:
            connection = socket.create_connection(where, CONNECT_SECONDS)
        except OSError as error:
            why = error.strerror or "no reply"
            raise PeerError(f"Nothing answers at {where[0]}:{where[1]}: {why}.") from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._epoll.register(connection.fileno(), select.EPOLLIN)
        return _Stream(connection)

    def _send(self, path: str, body: bytes) -> None:
        stream = self._idle.pop() if self._idle else self._connected()
        stream.head, stream.tail, stream.left_bytes, stream.close_after = b"", b"", -1, False
        head = f"POST {path} HTTP/1.1\r\n{self._fields}\r\ncontent-length: {len(body)}\r\n\r\n"
        self._busy[stream.socket.fileno()] = stream
        stream.body = body
        stream.exchange = Exchange(started_seconds=time.perf_counter(), arrivals=[])
        try:
            stream.socket.settimeout(CONNECT_SECONDS)
            stream.socket.sendall(head.encode() + body)
            stream.socket.setblocking(False)
        except OSError as error:
            self._fail(stream, error.strerror or "the connection broke")
            # Seen as an end when its socket is polled next.

    def _receive(self, stream: _Stream) -> bool:
        """Take what is there; True at the end of the answer."""
        try:
            piece = stream.socket.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self._fail(stream, error.strerror or "the connection broke")
            return True
        now = time.perf_counter()
        exchange = stream.exchange
        if exchange is None:
            return False
        if not piece:
            if stream.head is not None or exchange.chunked or stream.left_bytes > 0:
                self._fail(stream, "the connection closed before the answer was complete")
            stream.close_after = True
            return True
        if stream.head is not None:
            piece = self._take_head(stream, exchange, stream.head + piece)
            if not piece:
                return exchange.error != "" or stream.left_bytes == 0
        exchange.arrivals.append((now, piece))
        if stream.left_bytes > 0:
            stream.left_bytes -= len(piece)
            return stream.left_bytes <= 0
        if exchange.chunked:
            stream.tail = (stream.tail + piece)[-len(LAST_CHUNK) :]
            return stream.tail == LAST_CHUNK
        return False

    def _take_head(self, stream: _Stream, exchange: Exchange, data: bytes) -> bytes:
        """The body's beginning, if the head is complete."""
        head, found, rest = data.partition(HEAD_END)
        if not found:
            stream.head = data
            if len(data) > HEADER_BYTES_MAX:
                self._fail(stream, "the head has no end")
            return b""
        stream.head = None
        stream.tail = b"\r\n"
        first, *lines = head.decode("latin-1").split("\r\n")
        parts = first.split()
        exchange.status = int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0
        for line in lines:
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip()
            if name == "transfer-encoding":
                exchange.chunked = "chunked" in value.lower()
            elif name == "content-length" and value.isdigit():
                stream.left_bytes = int(value)
            elif name == "request-id":
                exchange.request_id = value
            elif name == "connection":
                stream.close_after = value.lower() == "close"
        return rest

    def _fail(self, stream: _Stream, why: str) -> None:
        stream.close_after = True
        if stream.exchange is not None and not stream.exchange.error:
            stream.exchange.error = why

    def _finish(self, stream: _Stream) -> Exchange:
        del self._busy[stream.socket.fileno()]
        exchange, stream.exchange = stream.exchange, None
        if stream.close_after:
            self._epoll.unregister(stream.socket.fileno())
            stream.socket.close()
        else:
            self._idle.append(stream)
        if exchange is None:
            raise RuntimeError("an idle stream cannot end")
        exchange.ended_seconds = time.perf_counter()
        return exchange
