"""The supervisor's parts: control channel, back-off, one child, the listening socket."""

import array
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from sublimate.config import EdgeSettings, EngineSettings, LogSettings
from sublimate.control import channel
from sublimate.control.birth import CONTROL_BUFFER_BYTES
from sublimate.control.channel import Channel
from sublimate.errors import ListenError
from sublimate.supervisor import backoff
from sublimate.supervisor.backoff import Backoff
from sublimate.supervisor.listen import address_url, answers_at, bind, bind_each
from sublimate.supervisor.wakeup import has_terminal
from sublimate.supervisor.worker import Worker

ANY = channel.ToEngine | channel.FromEngine


@pytest.fixture
def pair() -> Iterator[tuple[Channel[Any], Channel[Any]]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ends = Channel(ours, ANY), Channel(theirs, ANY)
    for end in ends:
        end.setblocking(False)
    yield ends
    for end in ends:
        end.close()


MESSAGES = [
    channel.Load(settings=EngineSettings(threads=3), model_path="/m"),
    channel.Attach(edge=1),
    channel.Detach(edge=1),
    channel.Stop(),
    channel.Progress(fraction=0.5),
    channel.Weights(),
    channel.Ready(info={"vocabulary": 10}),
    channel.Failed(message="no"),
    channel.Attached(edge=1),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_arrive_as_they_were(
    pair: tuple[Channel[Any], Channel[Any]], message: channel.Message
) -> None:
    pair[0].send(message)
    received = pair[1].receive()
    assert received is not None and received.message == message and received.fds == ()


def test_the_wire_form_is_the_documented_one() -> None:
    assert msgspec.json.encode(channel.Attach(edge=2)) == b'{"op":"attach","edge":2}'
    start = channel.Start(
        settings=EdgeSettings(), log=LogSettings(), model_path="/m", model_name="m"
    )
    decoded = msgspec.json.decode(msgspec.json.encode(start))
    assert decoded["op"] == "start" and decoded["model_name"] == "m"
    for union, ops in (
        (
            channel.FromEdge,
            {"ready", "failed", "region_broken", "engine_idle", "drained"}
            | {"model_wanted", "model_taken", "model_stop", "pong"},
        ),
        (
            channel.ToEdge,
            {"start", "engine_up", "engine_lost", "engine_leaving", "health", "kernel_memory"}
            | {"sibling", "sibling_gone", "reload", "drain", "stop"}
            | {"model_failed", "model_changed", "edge_health", "ping"},
        ),
    ):
        tags = {kind.__struct_config__.tag for kind in union.__args__}
        assert tags == ops


def test_descriptors_travel_and_belong_to_the_receiver(
    pair: tuple[Channel[Any], Channel[Any]],
) -> None:
    read_end, write_end = os.pipe()
    pair[0].send(channel.Attach(edge=1), (write_end,))
    os.close(write_end)
    received = pair[1].receive()
    assert received is not None and len(received.fds) == 1
    assert not os.get_inheritable(received.fds[0])
    os.write(received.fds[0], b"x")
    os.close(received.fds[0])
    assert os.read(read_end, 9) == b"x"
    os.close(read_end)


def test_order_is_kept_and_the_end_is_told(pair: tuple[Channel[Any], Channel[Any]]) -> None:
    for edge in range(5):
        pair[0].send(channel.Attach(edge=edge))
    pair[0].close()
    edges = []
    while (received := pair[1].receive()) is not None:
        edges.append(received.message.edge)
    assert edges == list(range(5))
    with pytest.raises(OSError, match="Broken pipe"):
        pair[1].send(channel.Stop())


def test_a_reader_that_sleeps_blocks_nobody(pair: tuple[Channel[Any], Channel[Any]]) -> None:
    with pytest.raises(BlockingIOError):
        for _ in range(100_000):
            pair[0].send(channel.Progress(fraction=0.1))
    with pytest.raises(ValueError, match="limit"):
        pair[0].send(channel.Failed(message="x" * channel.DATAGRAM_BYTES_MAX))


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"op":"unknown"}', b'{"op":"attach"}', b"\xff"])
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end: Channel[Any] = Channel(theirs, ANY)
    ours.send(data)
    with pytest.raises(msgspec.DecodeError):
        end.receive()
    ours.close()
    end.close()


def test_too_many_descriptors_are_an_error() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end: Channel[Any] = Channel(theirs, ANY)
    before = len(os.listdir("/proc/self/fd"))
    fds = array.array("i", [0] * (channel.DESCRIPTORS_MAX + 3))
    ours.sendmsg([b'{"op":"stop"}'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    with pytest.raises(msgspec.DecodeError, match="truncated"):
        end.receive()
    assert len(os.listdir("/proc/self/fd")) == before, "descriptors are left open"
    ours.close()
    end.close()


def test_only_a_control_socket_is_taken_over() -> None:
    read_end, write_end = os.pipe()
    os.close(write_end)
    with pytest.raises((ValueError, OSError)):
        Channel.from_fd(read_end, ANY)
    os.close(read_end)


def test_back_off_doubles_to_its_limit_and_forgets_after_a_healthy_minute() -> None:
    delays, now = [], 0.0
    timer = Backoff()
    for _ in range(8):
        timer.started(now)
        now += 1.0
        delays.append(timer.ended(now))
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    timer.started(now)
    assert timer.ended(now + backoff.HEALTHY_SECONDS - 0.01) == backoff.LAST_SECONDS
    timer.started(now)
    assert timer.ended(now + backoff.HEALTHY_SECONDS) == backoff.FIRST_SECONDS


# ---- one child -----------------------------------------------------------------------------------
CHILD = """
import os, signal, socket, sys, time
control = socket.socket(fileno=int(sys.argv[1]))
"""


def spawning(code: str) -> Any:
    """A Worker's spawn that runs `code` with `control` open."""

    def spawn(module: str, incoming: Any) -> tuple[subprocess.Popen[bytes], Channel[Any]]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CONTROL_BUFFER_BYTES)
            fd = theirs.fileno()
            process = subprocess.Popen(
                [sys.executable, "-c", CHILD + code, str(fd)], pass_fds=(fd,)
            )
        ours.setblocking(False)
        return process, Channel(ours, incoming)

    return spawn


def worker_running(code: str) -> Worker:
    worker = Worker("child", "unused", channel.FromEngine)
    worker.start(spawning(code))
    return worker


def wait_for_end(worker: Worker) -> tuple[list[Any], str]:
    messages: list[Any] = []
    deadline = time.monotonic() + 10
    while (now := time.monotonic()) < deadline:
        worker.kill_if_overdue(now)
        messages += [received.message for received in worker.receive()]
        if (why := worker.ended()) is not None:
            return messages, why
        time.sleep(0.01)
    pytest.fail("the child did not end")


def test_last_words_of_a_child_are_heard_before_its_end() -> None:
    code = """control.send(b'{"op":"failed","message":"m"}'); sys.exit(3)"""
    messages, why = wait_for_end(worker_running(code))
    assert messages == [channel.Failed(message="m")] and why == "exit code 3"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "signal SIGKILL"),
        ("os.abort()", "signal SIGABRT"),
        (
            "os.kill(os.getpid(), signal.SIGBUS)",
            "signal SIGBUS (a file that it reads was cut short, or its disk fails)",
        ),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 6)", f"signal {signal.SIGRTMIN + 6}"),
        ("control.send(b'nonsense'); time.sleep(60)", "signal SIGKILL"),
        ("control.close(); time.sleep(60)", "signal SIGKILL"),
    ],
)
def test_how_a_child_ended(code: str, why: str) -> None:
    worker = worker_running(code)
    assert wait_for_end(worker)[1] == why
    assert not worker.alive and worker.fds() == () and worker.process_id == 0
    assert not worker.send(channel.Stop())


def test_a_child_that_reads_nothing_is_killed() -> None:
    worker = worker_running("time.sleep(60)")
    while worker.send(channel.Attach(edge=1)):
        pass
    assert wait_for_end(worker)[1] == "signal SIGKILL"


def test_reap_waits_then_kills() -> None:
    polite = worker_running("control.recv(100)")
    polite.ask_to_stop(at_once=False)
    begin = time.monotonic()
    polite.reap(begin + 10)
    assert time.monotonic() - begin < 5 and not polite.alive
    stubborn = worker_running("time.sleep(60)")
    stubborn.ask_to_stop(at_once=False)
    stubborn.reap(time.monotonic() + 0.2)
    assert not stubborn.alive


def test_restart_is_due_after_its_delay() -> None:
    worker = worker_running("pass")
    wait_for_end(worker)
    now = time.monotonic()
    delay = worker.plan_restart()
    assert delay == backoff.FIRST_SECONDS
    assert not worker.is_due(now) and worker.is_due(now + delay + 0.1)


def test_a_start_that_fails_leaves_nothing_and_is_retried_ever_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_process(module: str, incoming: Any) -> Any:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    def no_descriptor(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    worker = Worker("child", "unused", channel.FromEngine)
    delays: list[float] = []
    for _ in range(3):
        with pytest.raises(BlockingIOError):
            worker.start(no_process)
        assert not worker.alive and worker.fds() == ()
        delays.append(worker.plan_restart())
    assert delays == [0.1, 0.2, 0.4]
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pidfd_open", no_descriptor)
    with pytest.raises(OSError, match="Too many"):
        worker.start(spawning("time.sleep(60)"))
    assert not worker.alive and len(os.listdir("/proc/self/fd")) == before


def test_a_terminal_that_nobody_can_open_now_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else SIGHUP, which reads keys again, would end a server without a descriptor left."""
    for number, has in ((errno.EMFILE, True), (errno.ENXIO, False)):

        def refuses(*_: object, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patched:
            patched.setattr(os, "open", refuses)
            assert has_terminal() is has


# ---- the listening socket ------------------------------------------------------------------------
def test_a_free_port_is_chosen_and_a_taken_one_is_a_message() -> None:
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert address_url(sock) == f"http://127.0.0.1:{port}"
        with pytest.raises(ListenError, match=f"Port {port} .* is in use"):
            bind("127.0.0.1", port)
    with bind("0.0.0.0", 0) as sock:  # noqa: S104 - closed at once
        assert address_url(sock).startswith("http://127.0.0.1:")


def test_where_one_cannot_listen_no_socket_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    class Deaf(socket.socket):
        def listen(self, *_: int) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            made.append(self)
            if len(made) == 2:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", Deaf)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ListenError):
            bind_each("127.0.0.1", 0, 3)
        assert len(os.listdir("/proc/self/fd")) == before
    assert [sock.fileno() for sock in made] == [-1, -1]


def test_a_host_that_is_not_ours_is_a_message() -> None:
    for host in ("192.0.2.1", "no such host", "a" * 300):
        with pytest.raises(ListenError, match="address of this machine"):
            bind(host, 0)


def test_a_kernel_without_that_family_of_addresses_is_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(*_: int) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(socket, "socket", refuses)
    with pytest.raises(ListenError, match=r"Cannot listen on 127\.0\.0\.1:0: Address family"):
        bind("127.0.0.1", 0)


def test_its_own_address_is_known_by_any_name() -> None:
    names = ["127.0.0.1", "localhost", "::", "::1", "127.0.0.9", "::ffff:127.0.0.1"]
    names.append("0.0.0.0")  # noqa: S104 - nothing is bound to it
    for host in ("127.0.0.1", "0.0.0.0"):  # noqa: S104 - closed at once
        with bind(host, 0) as sock:
            port = sock.getsockname()[1]
            assert [name for name in names if not answers_at([sock], name, port)] == []
            assert not answers_at([sock], "127.0.0.1", port - 1), "another port"
            assert not answers_at([sock], "192.0.2.1", port), "another machine"
            assert not answers_at([sock], "no such host", port)


def test_an_address_of_this_machine_is_its_own_where_it_listens_on_all() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            mine = probe.getsockname()[0]
        except OSError:
            pytest.skip("this machine has no address but loopback")
    with bind("0.0.0.0", 0) as everywhere, bind("127.0.0.1", 0) as loopback:  # noqa: S104
        assert answers_at([everywhere], mine, everywhere.getsockname()[1])
        assert not answers_at([loopback], mine, loopback.getsockname()[1])


def test_signals_of_the_terminal_do_not_reach_a_child() -> None:
    """spawn gives each child a process group of its own; enter_child ignores SIGINT beside that."""
    from sublimate.control import child

    before = signal.getsignal(signal.SIGINT)  # a job in the background may have it ignored already
    process, control = child.spawn("sublimate.engine", channel.FromEngine)
    try:
        assert os.getpgid(process.pid) == process.pid
    finally:
        control.close()
        process.kill()
        process.wait()
    assert signal.getsignal(signal.SIGINT) is before
