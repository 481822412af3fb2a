"""Parts of the old layer: replies of the broker, and what its scheduler decides."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublimate.config import QUEUE_DEFAULT
from sublimate.errors import ConfigError
from sublimate.legacy import records
from sublimate.legacy.broker import ReplyParser
from sublimate.legacy.executor import Executor, ExecutorConnection
from sublimate.legacy.scheduler import LEASE_SECONDS, RUNNING_MAX, Scheduler

SCALARS = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.integers(-(2**40), 2**40),
    st.text("abc ERR", max_size=20),
)


def encoded(reply: Any) -> bytes:
    """As a server writes it."""
    if isinstance(reply, list):
        return b"*%d\r\n" % len(reply) + b"".join(encoded(item) for item in reply)
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, str):
        return b"-" + reply.encode() + b"\r\n"
    return b"$%d\r\n" % len(reply) + reply + b"\r\n"


@given(st.lists(st.one_of(SCALARS, st.lists(SCALARS, max_size=4)), max_size=5), st.integers(1, 9))
def test_replies_are_the_same_however_they_are_cut(replies: list[Any], size: int) -> None:
    data = b"".join(map(encoded, replies))
    parser = ReplyParser()
    got = []
    for start in range(0, len(data), size):
        got += parser.feed(data[start : start + size])
    assert got == replies
    assert parser.feed(b"+OK\r\n") == [b"OK"], "nothing is left over"


@pytest.mark.parametrize(
    "wrong", [b"?\r\n", b"$x\r\n", b"$999999999999\r\n", b"*9999\r\n", b"+" + b"x" * (1 << 16)]
)
def test_what_is_no_reply_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError):
        ReplyParser().feed(wrong)


@pytest.mark.parametrize(
    "said",
    [
        records.Negotiate(b"c", "1", "m"),
        records.Job(b"c", "1", "l", [("accept", "*/*")], b"\xff{}"),
        records.Cancel(b"c", "1"),
    ],
)
def test_questions_pass_as_they_are(said: records.Question) -> None:
    assert records.question(records.encode(said)) == said


def test_its_processes_are_started_by_the_flag_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(records.ADDRESS_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="--legacy-layer"):
        records.address()


def test_it_adds_its_path_to_all_that_the_edge_has() -> None:
    from sublimate.api.routes import ROUTES
    from sublimate.legacy.gateway import NEGOTIATE_PATH
    from sublimate.legacy.gateway import ROUTES as MORE

    routes = ROUTES.with_paths(MORE)
    kept = set(vars(ROUTES)) - {"table", "_open", "calls"}
    assert all(vars(routes)[name] == vars(ROUTES)[name] for name in kept), kept
    assert routes.table.keys() - ROUTES.table.keys() == {NEGOTIATE_PATH, records.MIGRATION_PATH}
    assert routes.calls.keys() == ROUTES.calls.keys() and routes.replay_safe == ROUTES.replay_safe
    assert routes.sinks == ROUTES.sinks and routes.begin == ROUTES.begin
    assert routes.error_shape("/v1/chat/x") is ROUTES.error_shape("/v1/chat/x")
    with pytest.raises(ValueError, match="already"):
        routes.with_paths(MORE)


# ---- the scheduler -------------------------------------------------------------------------------
class Published:
    """In place of the connection that publishes."""

    def __init__(self) -> None:
        self.said: list[records.Answer] = []

    def send(self, command: bytes, channel: bytes, data: bytes) -> None:
        assert command == b"PUBLISH" and channel in (b"here", b"there")
        self.said.append(records.answer(data))


class Connection:
    """In place of one to the executor."""

    def __init__(self) -> None:
        self.callbacks: tuple[Callable[..., None], ...] = ()
        self.request = b""
        self.cancelled = False

    def begin(self, request: bytes, *callbacks: Callable[..., None]) -> None:
        self.request, self.callbacks = request, callbacks

    def cancel(self) -> None:
        self.cancelled = True

    def answer(self, data: bytes = b"x") -> None:
        head, piece, _ = self.callbacks
        head(200, [("content-type", "text/plain")])
        piece(data, False)
        piece(b"", True)


class FakeExecutor(Executor):
    def __init__(self) -> None:
        super().__init__("h", 1)
        self.connections: list[Connection] = []
        self.refuses = False

    async def connection(self) -> Any:
        if self.refuses:
            raise OSError
        self.connections.append(Connection())
        return self.connections[-1]


def made() -> tuple[Scheduler, Published, FakeExecutor]:
    published, executor = Published(), FakeExecutor()
    return Scheduler(published, executor), published, executor  # type: ignore[arg-type]


def granted(scheduler: Scheduler, published: Published, now: float = 0.0) -> str:
    scheduler.take(records.Negotiate(b"here", "n", "m"), now)
    said = published.said.pop()
    assert isinstance(said, records.Granted)
    return said.lease


def job(lease: str, ask: str = "1", **more: Any) -> records.Job:
    return records.Job(b"here", ask, lease, more.get("headers", []), b"{}")


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_job_is_answered_as_it_is_computed() -> None:
    scheduler, published, executor = made()
    scheduler.take(job(granted(scheduler, published), headers=[("accept", "*/*")]), 1.0)
    await settle()
    (connection,) = executor.connections
    assert connection.request.startswith(b"POST /v1/messages HTTP/1.1\r\n")
    assert b"accept: */*\r\n" in connection.request and connection.request.endswith(b"\r\n\r\n{}")
    connection.answer()
    assert published.said == [
        records.Head("1", 200, [("content-type", "text/plain")]),
        records.Piece("1", b"x"),
        records.Piece("1", b"", True),
    ]


async def test_leases_are_used_once_and_run_out() -> None:
    scheduler, published, executor = made()
    lease = granted(scheduler, published)
    scheduler.take(job(lease), float(LEASE_SECONDS))
    scheduler.take(job("other"), 0.0)
    lease = granted(scheduler, published, 50.0)
    scheduler.take(job(lease), 51.0)
    scheduler.take(job(lease, "2"), 51.0)
    await settle()
    refused = [said for said in published.said if isinstance(said, records.Refused)]
    assert [said.code for said in refused] == ["unknown_lease"] * 3
    assert len(executor.connections) == 1


async def test_so_many_may_wait_and_old_leases_free_their_place() -> None:
    scheduler, published, _ = made()
    for _ in range(QUEUE_DEFAULT):
        granted(scheduler, published, 0.0)
    scheduler.take(records.Negotiate(b"here", "n", "m"), 1.0)
    assert published.said.pop() == records.Refused("n", "overloaded")
    assert granted(scheduler, published, LEASE_SECONDS + 1.0)


async def test_so_many_run_and_the_next_follows_in_order() -> None:
    scheduler, published, executor = made()
    for number in range(RUNNING_MAX + 2):
        scheduler.take(job(granted(scheduler, published), str(number)), 0.0)
    await settle()
    assert len(executor.connections) == RUNNING_MAX
    executor.connections[5].answer()
    await settle()
    executor.connections[-1].answer()
    assert published.said[-1] == records.Piece(str(RUNNING_MAX), b"", True)


async def test_cancels_reach_what_waits_and_what_runs() -> None:
    scheduler, published, executor = made()
    for number in range(RUNNING_MAX + 1):
        scheduler.take(job(granted(scheduler, published), str(number)), 0.0)
    await settle()
    scheduler.take(records.Cancel(b"here", str(RUNNING_MAX)), 0.0)
    scheduler.take(records.Cancel(b"here", "0"), 0.0)
    scheduler.take(records.Cancel(b"here", "unknown"), 0.0)
    scheduler.take(records.Cancel(b"there", "1"), 0.0)
    await settle()
    assert executor.connections[0].cancelled and len(executor.connections) == RUNNING_MAX
    assert not executor.connections[1].cancelled, "another asks with the same number"
    scheduler.take(job(granted(scheduler, published), "early"), 0.0)
    scheduler.take(records.Cancel(b"here", "early"), 0.0)
    await settle()
    assert not any(said for said in published.said), "nobody waits for an answer"


async def test_who_asks_counts_for_itself() -> None:
    """Two model addresses both have a first job."""
    scheduler, published, executor = made()
    for reply_to in (b"here", b"there"):
        lease = granted(scheduler, published)
        scheduler.take(records.Job(reply_to, "1", lease, [], b"{}"), 0.0)
    await settle()
    first, second = executor.connections
    second.answer()
    scheduler.take(records.Cancel(b"here", "1"), 0.0)
    assert first.cancelled and published.said[-1] == records.Piece("1", b"", True)


async def test_an_executor_that_is_gone_breaks_the_answer_and_not_the_scheduler() -> None:
    scheduler, published, executor = made()
    executor.refuses = True
    scheduler.take(job(granted(scheduler, published)), 0.0)
    await settle()
    assert published.said == [records.Broken("1")]
    executor.refuses = False
    scheduler.take(job(granted(scheduler, published), "2", headers=[("a", "b\r\nc: d")]), 0.0)
    await settle()
    assert published.said[-1] == records.Broken("2") and not executor.connections


# ---- its connections to the executor -------------------------------------------------------------
Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def answering(answer: Answering) -> AsyncIterator[tuple[Executor, list[int]]]:
    """An executor, and a place for each connection that its server took."""
    taken: list[int] = []
    ended: list[asyncio.Event] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(len(taken))
        ended.append(asyncio.Event())
        try:
            with contextlib.suppress(asyncio.IncompleteReadError), contextlib.closing(writer):
                await answer(reader, writer)
        finally:
            ended[-1].set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        executor = Executor("127.0.0.1", server.sockets[0].getsockname()[1])
        yield executor, taken
        (await executor.connection()).cancel()
        for event in ended:
            await asyncio.wait_for(event.wait(), 5)


async def test_connections_are_used_again_and_broken_ones_are_told() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            await reader.readexactly(2)
            if b"x-cut" in head:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab")
                return
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
            writer.write(b"1\r\nd\r\n0\r\n\r\n")

    heard: list[Any] = []

    async def ask(executor: Executor, headers: list[tuple[str, str]]) -> None:
        ended = asyncio.Event()
        connection = await executor.connection()

        def piece(data: bytes, is_last: bool) -> None:
            heard.append((data, is_last))
            if is_last:
                ended.set()

        def broken() -> None:
            heard.append("broken")
            ended.set()

        request = executor.request(headers, b"{}")
        connection.begin(request, lambda status, fields: heard.append(status), piece, broken)
        with pytest.raises(RuntimeError):
            connection.begin(request, lambda *_: None, lambda *_: None, broken)
        await asyncio.wait_for(ended.wait(), 5)

    async with answering(answer) as (executor, taken):
        await ask(executor, [])
        await ask(executor, [])
        assert len(taken) == 1, "the connection stays"
        assert b"".join(one[0] for one in heard if isinstance(one, tuple)) == b"abcdabcd"
        heard.clear()
        await ask(executor, [("x-cut", "1")])
        assert heard == [200, (b"ab", False), "broken"]
        await ask(executor, [])
        assert len(taken) == 2


async def test_an_answer_that_is_no_http_is_broken() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"what?\r\n\r\n")
        await reader.read()

    async with answering(answer) as (executor, _):
        connection: ExecutorConnection = await executor.connection()
        broken = asyncio.Event()
        request = executor.request([], b"{}")
        connection.begin(request, lambda *_: None, lambda *_: None, broken.set)
        await asyncio.wait_for(broken.wait(), 5)
        assert not connection.is_open
