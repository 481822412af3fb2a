"""Raw sockets of clients that send without reading, read without closing, or never let go."""

import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from harness import (
    Served,
    exchange_bytes,
    http_get,
    is_closed,
    read_reply,
    serve,
    wait_until,
)
from sublimate.config import EdgeSettings
from sublimate.edge import limits
from sublimate.edge.http import HttpConnection
from sublimate.edge.limits import HttpLimits

POST = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n"
UPLOAD_BYTES = 12_000_000
UNSENT_BYTES_MAX = 32 * 1024


def upload(sock: socket.socket, head: bytes, size: int, wanted: list[str]) -> None:
    """All of a body, whatever is answered meanwhile. A failure to send is noted."""
    try:
        sock.sendall(head + b"content-length: %d\r\n\r\n" % size)
        block = b"a" * 65536
        for at in range(0, size, len(block)):
            sock.sendall(block[: min(len(block), size - at)])
    except OSError as problem:
        wanted.append(repr(problem))


def deaf(served: Served) -> socket.socket:
    """A client that takes next to nothing."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", served.port))
    return sock


def connections(served: Served) -> list[HttpConnection]:
    return served.call(lambda: list(served.server._connections))


def unsent(served: Served) -> int:
    return sum(
        served.call(lambda one=one: one.transport.get_write_buffer_size())
        for one in connections(served)
    )


# ---- refused while they still send ---------------------------------------------------------------
@pytest.mark.parametrize("status", [413, 401, 400])
def test_who_sends_all_before_reading_gets_the_whole_refusal(status: int) -> None:
    """Twelve megabytes after the answer was given: no send fails and no reset takes the answer."""
    settings = EdgeSettings(api_keys=("k",))
    bound = HttpLimits(body_bytes_max=1000 if status == 413 else limits.MIB * 32)
    head = POST + (b"" if status == 401 else b"x-api-key: k\r\n")
    head += b"content-encoding: gzip\r\n" if status == 400 else b""
    with serve(settings=settings, limits=bound) as served, served.connect() as sock:
        problems: list[str] = []
        upload(sock, head, UPLOAD_BYTES, problems)
        assert not problems
        reply = read_reply(sock)
        assert reply.status == status and reply.json["type"] == "error"
        assert reply.headers["connection"] == "close" and is_closed(sock)
        sock.close()
        wait_until(lambda: not connections(served))


def test_a_chunked_body_that_grows_too_large_gets_the_whole_refusal() -> None:
    with serve(limits=HttpLimits(body_bytes_max=100_000)) as served, served.connect() as sock:
        sock.sendall(POST + b"transfer-encoding: chunked\r\n\r\n")
        block = b"%x\r\n%b\r\n" % (50_000, b"a" * 50_000)
        for _ in range(100):
            sock.sendall(block)
        reply = read_reply(sock)
        assert reply.status == 413 and is_closed(sock)


def test_lingering_ends_after_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINGER_BYTES_MAX", 1_000_000)
    with serve(limits=HttpLimits(body_bytes_max=1000)) as served, served.connect() as sock:
        problems: list[str] = []
        upload(sock, POST, 200_000_000, problems)
        assert problems, "an upload without end is not read to its end"
        wait_until(lambda: not connections(served))


def test_lingering_ends_after_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINGER_SECONDS", 1.5)
    with serve(limits=HttpLimits(body_bytes_max=1000)) as served, served.connect() as sock:
        assert exchange_bytes(sock, POST + b"content-length: 5000\r\n\r\n").status == 413
        assert len(connections(served)) == 1, "the client has not closed yet"
        begun = time.monotonic()
        wait_until(lambda: not connections(served))
        assert time.monotonic() - begun > 0.1


def test_what_follows_the_last_request_does_no_harm(shared: Served) -> None:
    """The first one asks for the end; what was sent behind it is neither answered nor a fault."""
    behind = http_get("/livez") * 50 + b"\x00nonsense" * 10_000
    with shared.connect() as sock:
        sock.sendall(http_get("/version", connection="close") + behind)
        received = b""
        while more := sock.recv(65536):
            received += more
        assert received.count(b"HTTP/1.1 ") == 1 and received.endswith(b"}")


# ---- never reading -------------------------------------------------------------------------------
@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(limits, "SEND_STALL_SECONDS", 1.5)
    bound = HttpLimits(unsent_bytes_max=UNSENT_BYTES_MAX, keep_alive_seconds=600)
    with serve(limits=bound) as served:
        yield served


def pour(sock: socket.socket, data: bytes, seconds: float) -> int:
    """Send for so long or until nothing more is taken; bytes that were."""
    sock.setblocking(False)
    sent, end = 0, time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            if select.select([], [sock], [], 0.3)[1]:
                sent += sock.send(data)
            else:
                break
    except OSError:
        pass
    return sent


@pytest.mark.parametrize("at_once", [1, 12, 2000])
def test_requests_without_reading_do_not_fill_memory(tight: Served, at_once: int) -> None:
    """Quick answers are large and requests small: the buffer holds the bound and one answer."""
    answer = len(tight.client.get("/openapi.json").content)
    assert answer > 5000
    seen: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while True:
            seen.append(unsent(tight))
            if done.wait(0.002):
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    with deaf(tight) as sock:
        pour(sock, http_get("/openapi.json") * at_once, 3.0)
        done.set()
        watcher.join()
        assert max(seen) <= UNSENT_BYTES_MAX + 2 * answer
        wait_until(lambda: len(connections(tight)) <= 1)
    assert tight.client.get("/livez").status_code == 200


def test_pipelined_requests_wait_for_their_reader(tight: Served) -> None:
    """A dozen large answers to somebody who reads late: all come, in order."""
    size = len(tight.client.get("/openapi.json").content)
    with deaf(tight) as sock:
        sock.settimeout(10)
        sock.sendall(http_get("/openapi.json") * 12)
        time.sleep(0.3)
        received = b""
        while received.count(b"\r\n\r\n") < 12 or len(received.rpartition(b"\r\n\r\n")[2]) < size:
            more = sock.recv(65536)
            assert more, received[-100:]
            received += more
        assert exchange_bytes(sock, http_get("/livez")).status == 200


def test_an_answer_nobody_takes_ends_its_connection(tight: Served) -> None:
    """By the deadline of sending, not by the one of idle connections (ten minutes here)."""
    with deaf(tight) as sock:
        sock.sendall(http_get("/openapi.json") * 16)
        wait_until(lambda: unsent(tight) > UNSENT_BYTES_MAX)
        wait_until(lambda: not connections(tight))


def test_a_closing_connection_has_a_deadline(tight: Served) -> None:
    """The last answer said that it ends; its reader takes nothing of what is still owed."""
    last = http_get("/openapi.json", connection="close")
    with deaf(tight) as sock:
        sock.sendall(http_get("/openapi.json") * 12 + last)
        wait_until(lambda: len(connections(tight)) == 1)
        wait_until(lambda: not connections(tight))


@pytest.mark.parametrize("how", ["end of file", "drain"])
def test_a_connection_that_is_closed_with_bytes_unsent_has_a_deadline(how: str) -> None:
    flood = HttpLimits(keep_alive_seconds=600, unsent_bytes_max=64 * limits.MIB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SEND_STALL_SECONDS", 1.0)
        with serve(limits=flood) as served, deaf(served) as sock:
            sock.sendall(http_get("/openapi.json") * 600)
            wait_until(lambda: unsent(served) > 1_000_000)
            if how == "drain":
                served.call(lambda: served.server.drain(30, lambda: None))
            else:
                sock.shutdown(socket.SHUT_WR)
            wait_until(lambda: not connections(served))
