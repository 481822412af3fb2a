"""Redis: a server of one's own for as long as the layer runs, and a connection to it.

The connection pipelines: commands go out as they come, replies are matched in order, and what is
sent within one turn of the event loop leaves in one write. It speaks the second version of the
protocol (https://redis.io/docs/latest/develop/reference/protocol-spec/), and of that what the layer
uses: arrays hold no arrays.

defines: own_broker, Broker, ReplyParser, Reply
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from ..control.child import die_with_parent
from ..errors import ConfigError

HOST = "127.0.0.1"
PROGRAM = "redis-server"
PASSWORD_BYTES = 24
START_SECONDS, LOOK_SECONDS, STOP_SECONDS = 10.0, 0.01, 5.0
BULK_BYTES_MAX = 1 << 26
"""A question holds a request's body, which the edge's limits bound by half of that."""
ITEMS_MAX = 1024
LINE_BYTES_MAX = 1 << 16
Reply = bytes | int | str | None | list[Any]
"""A text is an error's. list: of the others."""


@contextlib.contextmanager
def own_broker() -> Generator[tuple[int, str]]:
    """(port, password) of a Redis on loopback that keeps nothing. Raises ConfigError."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise ConfigError(
            f"The old layer's broker is Redis, and there is no {PROGRAM} here: "
            "`apt-get install redis-server`, or leave --legacy-layer out."
        )
    with tempfile.TemporaryDirectory(prefix="sublimate-broker-") as folder:
        with socket.create_server((HOST, 0)) as probe:
            port = int(probe.getsockname()[1])
        password = secrets.token_urlsafe(PASSWORD_BYTES)
        settings = (
            f'port {port}\nbind {HOST}\nrequirepass {password}\nsave ""\nappendonly no\n'
            f"dir {folder}\nloglevel warning\n"
        )
        with subprocess.Popen(  # noqa: S603 - found on the path; its settings are ours
            [program, "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent,  # there are no threads yet
        ) as process:
            try:
                if process.stdin is not None:
                    process.stdin.write(settings.encode())
                    process.stdin.close()
                _wait_until_it_answers(process, port)
                yield port, password
            finally:
                process.terminate()
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port)):
            return
        time.sleep(LOOK_SECONDS)
    raise ConfigError(f"{PROGRAM} did not start: exit code {process.poll()}.")


class ReplyParser:
    """Replies out of bytes as they come. Raises ValueError for what is none."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Reply]:
        """All replies that are complete now."""
        self._bytes += data
        replies: list[Reply] = []
        at = 0
        while (found := self._reply(at)) is not None:
            reply, at = found
            replies.append(reply)
        del self._bytes[:at]
        return replies

    def _line(self, at: int) -> tuple[bytes, int] | None:
        end = self._bytes.find(b"\r\n", at, at + LINE_BYTES_MAX)
        if end < 0:
            if len(self._bytes) - at >= LINE_BYTES_MAX:
                raise ValueError("a line of a reply has no end")
            return None
        return bytes(self._bytes[at:end]), end + 2

    def _reply(self, at: int) -> tuple[Reply, int] | None:
        if not self._bytes.startswith(b"*", at):
            return self._scalar(at)
        if (line := self._line(at)) is None:
            return None
        count, at = int(line[0][1:]), line[1]
        if count > ITEMS_MAX:
            raise ValueError("a reply has too many items")
        items: list[Reply] = []
        for _ in range(count):
            if (item := self._scalar(at)) is None:
                return None
            items.append(item[0])
            at = item[1]
        return (items if count >= 0 else None), at

    def _scalar(self, at: int) -> tuple[Reply, int] | None:
        if (line := self._line(at)) is None:
            return None
        text, at = line
        kind, rest = text[:1], text[1:]
        if kind == b"$":
            size = int(rest)
            if size < 0:
                return None, at
            if size > BULK_BYTES_MAX:
                raise ValueError("a reply is too large")
            end = at + size
            if len(self._bytes) < end + 2:
                return None
            return bytes(self._bytes[at:end]), end + 2
        if kind == b":":
            return int(rest), at
        if kind in (b"+", b"-"):
            return (rest if kind == b"+" else rest.decode("utf-8", "replace")), at
        raise ValueError("this is no reply")


class Broker(asyncio.Protocol):
    """One connection. What waits for a reply when it is lost gets ConnectionError."""

    def __init__(self, on_published: Callable[[bytes], None], on_lost: Callable[[], None]) -> None:
        self._published = on_published
        self._lost = on_lost
        self._parser = ReplyParser()
        self._awaited: deque[asyncio.Future[Reply] | None] = deque()
        self._transport: Any = None

    @classmethod
    async def connect(
        cls,
        port: int,
        password: str,
        on_published: Callable[[bytes], None] = lambda data: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> Broker:
        """Raises ConnectionError."""
        loop = asyncio.get_running_loop()
        _, broker = await loop.create_connection(lambda: cls(on_published, on_lost), HOST, port)
        await broker.call(b"AUTH", password.encode())
        return broker

    def send(self, *parts: bytes) -> None:
        """A command whose reply nobody needs."""
        self._write(parts, None)

    async def call(self, *parts: bytes) -> Reply:
        """The reply. Raises ConnectionError, also for a reply that is an error."""
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._write(parts, reply)
        value = await reply
        if isinstance(value, str):
            raise ConnectionError(value)
        return value

    async def subscribe(self, channel: bytes) -> None:
        """From now on the connection only listens: what is published goes to `on_published`."""
        if not channel:
            raise ValueError("a channel has a name")
        await self.call(b"SUBSCRIBE", channel)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _write(self, parts: tuple[bytes, ...], reply: asyncio.Future[Reply] | None) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the broker is gone")
        self._awaited.append(reply)
        sized = [b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]
        self._transport.write(b"*%d\r\n%b" % (len(parts), b"".join(sized)))

    # ---- asyncio -------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for reply in self._parser.feed(data):
            if isinstance(reply, list) and reply[:1] == [b"message"]:
                self._published(reply[2])
                continue
            if not self._awaited:
                raise ConnectionError("the broker replies to what it was not told")
            awaited = self._awaited.popleft()
            if awaited is not None and not awaited.done():
                awaited.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        for awaited in self._awaited:
            if awaited is not None and not awaited.done():
                awaited.set_exception(ConnectionError("the broker is gone"))
        self._awaited.clear()
        self._lost()
