"""What is read of another server's answer, with a server that says what it is told to."""

import asyncio
import contextlib

import pytest

from sublimate.guard.upstream import Upstream, UpstreamError

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-own: yes\r\n\r\nHi"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\ncontent-length: 9\r\nx-hint: yes\r\n\r\n"


async def answer(*said: bytes) -> tuple[int, dict[str, str], bytes]:
    """To a request; each part of it arrives by itself."""

    done = asyncio.Event()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            for part in said:
                writer.write(part)
                await asyncio.sleep(0.05)
            writer.close()
            await writer.wait_closed()
        done.set()

    async with await asyncio.start_server(run, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        try:
            async with Upstream(f"http://127.0.0.1:{port}").post({}, b"") as reply:
                return reply.status, reply.fields, await reply.whole()
        finally:
            await done.wait()


@pytest.mark.parametrize("said", [(CONTINUE, HINTS, ANSWER), (CONTINUE + HINTS + ANSWER,)])
def test_what_comes_before_an_answer_is_none(said: tuple[bytes, ...]) -> None:
    """A server may say that it goes on, or what it is going to say."""
    status, fields, body = asyncio.run(answer(*said))
    assert (status, body) == (200, b"Hi")
    assert fields == {"content-length": "2", "x-own": "yes"}


def test_without_an_answer_there_is_none() -> None:
    with pytest.raises(UpstreamError, match="ended before"):
        asyncio.run(answer(CONTINUE, HINTS))
