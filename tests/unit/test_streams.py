"""The client that measures: every way in which an answer can come, end or fail; and what it knows
of processes."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sublimate.bench import processes
from sublimate.bench.http import Target
from sublimate.bench.streams import CUT, Streams
from sublimate.errors import EngineError, PeerError

CHUNKED = b"HTTP/1.1 200 OK\r\nRequest-Id: req_1\r\ntransfer-encoding: chunked\r\n\r\n"
Answer = Callable[[socket.socket, bytes], None]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@contextmanager
def server(answer: Answer) -> Iterator[Streams]:
    """A thread per connection; `answer` gets the socket and each request's body."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            data = b""
            while piece := connection.recv(1 << 16):
                data += piece
                head, found, body = data.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split()[0] or 0)
                if found and len(body) >= length:
                    data = body[length:]
                    answer(connection, body[:length])

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    port = listening.getsockname()[1]
    try:
        with Streams(Target.parse(f"http://127.0.0.1:{port}"), {"x-api-key": "k"}) as streams:
            yield streams
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def test_chunks_lengths_and_ids() -> None:
    def answer(connection: socket.socket, body: bytes) -> None:
        if body == b"whole":
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab")
            connection.sendall(b"cde")
        elif body == b"empty":
            connection.sendall(b"HTTP/1.1 204 No\r\ncontent-length: 0\r\n\r\n")
        else:
            for byte in CHUNKED + chunk(b"data: x\n\n") + b"0\r\n\r\n":
                connection.sendall(bytes([byte]))

    with server(answer) as streams:
        whole, empty, chunked = (
            streams.run("/p", iter([body]), 1)[0] for body in (b"whole", b"empty", b"stream")
        )
        assert len(streams._idle) == 1, "one connection served all three"
    assert (whole.status, whole.body(), whole.error) == (200, b"abcde", "")
    assert (empty.status, empty.body(), empty.error) == (204, b"", "")
    assert (chunked.body(), chunked.request_id, chunked.chunked) == (b"data: x\n\n", "req_1", True)
    assert chunked.started_seconds < chunked.arrivals[0][0] <= chunked.ended_seconds


def test_so_many_at_once_and_no_more() -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def answer(connection: socket.socket, body: bytes) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        connection.sendall(CHUNKED + chunk(body) + b"0\r\n\r\n")

    with server(answer) as streams:
        answers = streams.run("/", iter([b"%d" % n for n in range(12)]), 3)
        assert sorted(int(one.body()) for one in answers) == list(range(12)) and most == 3
        seen: list[bytes] = []
        none = streams.run("/", iter([b"z"]), 3, done=lambda one: seen.append(one.body()))
        assert none == [] and seen == [b"z"]
        endless = (b"x" for _ in iter(int, 1))
        timed = streams.run("/", endless, 2, seconds=0.1)
        assert 4 <= len(timed) <= 14


def test_what_breaks_is_told_and_the_others_go_on() -> None:
    def answer(connection: socket.socket, body: bytes) -> None:
        if body == b"cut":
            connection.sendall(CHUNKED + chunk(b"half"))
            connection.close()
        elif body == b"short":
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab")
            connection.close()
        elif body == b"silent":
            connection.close()
        elif body == b"until the end":
            connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall")
            connection.close()
        else:
            connection.sendall(CHUNKED + chunk(b"fine") + b"0\r\n\r\n")

    bodies = [b"cut", b"fine", b"short", b"silent", b"until the end", b"fine"]
    with server(answer) as streams:
        answers = [streams.run("/", iter([body]), 1)[0] for body in bodies]
    assert [bool(one.error) for one in answers] == [True, False, True, True, False, False]
    assert "closed before" in answers[0].error and answers[0].body() == b"half"
    assert answers[4].body() == b"all"


def test_without_room_it_is_sent_again() -> None:
    refused = 0
    lock = threading.Lock()

    def answer(connection: socket.socket, body: bytes) -> None:
        nonlocal refused
        with lock:
            is_refused = refused < 2 and body != b"0"
            refused += is_refused
        if is_refused:
            connection.sendall(b"HTTP/1.1 529 Overloaded\r\ncontent-length: 0\r\n\r\n")
            return
        time.sleep(0.05)
        connection.sendall(CHUNKED + chunk(body) + b"0\r\n\r\n")

    with server(answer) as streams:
        answers = streams.run("/", iter([b"%d" % n for n in range(5)]), 3)
        assert streams.refused == 2
    assert sorted(one.body() for one in answers) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_load_can_be_cut_and_ends_in_time() -> None:
    def answer(connection: socket.socket, body: bytes) -> None:
        connection.sendall(CHUNKED + chunk(b"first"))
        time.sleep(30 if body else 0)

    with server(answer) as streams:
        begin = time.monotonic()
        answers = streams.run("/", iter([b"a", b"b"]), 2, cut_seconds=0.2)
        assert time.monotonic() - begin < 5
        assert [(one.error, one.body()) for one in answers] == [(CUT, b"first")] * 2
        late = streams.run("/", iter([b"c"]), 1, timeout_seconds=0.1)
        assert "no end within" in late[0].error


def test_nothing_there_and_nonsense() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with Streams(Target.parse(f"http://127.0.0.1:{port}"), {}) as streams:
        with pytest.raises(PeerError, match="Nothing answers"):
            streams.connect(1)
        with pytest.raises(ValueError):
            streams.run("/", iter([]), 0)
    with pytest.raises(PeerError, match="plain http"):
        Streams(Target.parse("https://example.org"), {})


# ---- processes ---------------------------------------------------------------------------------
def test_busy_loops_are_busy_and_end() -> None:
    with processes.busy_loops(1) as (pid,):
        deadline = time.monotonic() + 20
        while processes.cpu_seconds(pid) < 0.05:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        threads = processes.thread_seconds([pid])
        assert threads[pid, pid] > 0.01
    assert not os.path.exists(f"/proc/{pid}")
    assert processes.cpu_seconds(pid) == 0
    assert processes.thread_seconds([pid]) == {}


def test_a_server_of_ones_own(tmp_path: object) -> None:
    program = (
        "import sys, time; print('noise', flush=True); print('a line', file=sys.stderr, flush=True)"
        '; print(\'{"event": "ready", "url": "http://h:1"}\', flush=True); time.sleep(60)'
    )
    with processes.own_server(["-c", program], "thing") as server:
        assert server.url == "http://h:1" and server.log_lines() == [b"a line"]
        assert [process.role for process in server.processes] == ["thing"]
        assert server.cpu_seconds()["thing"] > 0
    assert processes.cpu_seconds(server.pids[0]) == 0
    with pytest.raises(EngineError, match=r"did not start\.\nwhy not"):
        with processes.own_server(["-c", "import sys; sys.exit('why not')"]):
            pytest.fail("it does not start")


def test_who_listens_on_a_port() -> None:
    program = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 0));"
        "print(s.getsockname()[1], flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        found = processes.listening_processes(port)
        child.kill()
    assert [process.pid for process in found] == [child.pid]
    with pytest.raises(PeerError, match=f"port {port}"):
        processes.listening_processes(port)
    with pytest.raises(PeerError, match="no port"):
        processes.listening_processes(0)
    with pytest.raises(ValueError), processes.busy_loops(0):
        pytest.fail("nothing is busy")
