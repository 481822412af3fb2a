"""The client's choices without a network: carriers by what is known, the race of handshakes on a
virtual clock, the pipe between its threads."""

import asyncio
import selectors
import threading
from collections.abc import Awaitable, Callable

import pytest

from sublimate.client.background import Background
from sublimate.client.choice import (
    BLOCKED_SECONDS,
    BLOCKED_SECONDS_MAX,
    CARRIERS,
    OVER_HTTP1,
    WITHOUT_QUIC,
    Origin,
    Plan,
    Service,
    allowed_carriers,
    kind_of,
    plan,
)
from sublimate.client.discovery import read_service
from sublimate.client.library import CarrierError, library_name, load_library
from sublimate.client.pipe import UNREAD_BYTES_MAX, Pipe
from sublimate.client.race import Entrant, race
from sublimate.client.report import Tally, Used
from sublimate.errors import ConfigError

CERTIFICATE = "ab" * 32
BOTH = Service(quic_port=8443, grpc_port=8444, certificate_sha256=CERTIFICATE)


def origin(service: Service | None = BOTH, scheme: str = "https") -> Origin:
    return Origin(scheme, "host", 443, is_sublimate=True, service=service)


# ---- what the environment allows -----------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        ((), {}, CARRIERS),
        ((), {"SUBLIMATE_FORCE_HTTP2": "1"}, WITHOUT_QUIC),
        ((), {"ANTHROPIC_FORCE_HTTP2": "true"}, WITHOUT_QUIC),
        ((), {"SUBLIMATE_FORCE_HTTP2": "0"}, CARRIERS),
        ((), {"SUBLIMATE_FORCE_HTTP1": "1", "SUBLIMATE_FORCE_HTTP2": "1"}, OVER_HTTP1),
        ((), {"SUBLIMATE_CARRIERS": "h3, frames"}, ("h3", "frames")),
        (("h3",), {"SUBLIMATE_FORCE_HTTP1": "1"}, ("h3",)),
    ],
    ids=["all", "http2", "anthropic", "off", "http1", "list", "given"],
)
def test_what_may_be_used(
    given: tuple[str, ...], environment: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert allowed_carriers(given, environment) == expected


def test_nothing_of_https_goes_to_a_port_in_clear() -> None:
    """As a server behind a TLS proxy tells of its own gRPC port."""
    bare = Service(grpc_port=1)
    told = plan(origin(bare), "message", ("grpc-h2", "http/1.1"))
    assert told == Plan(("http/1.1",), "grpc in clear")
    assert plan(origin(bare), "message", ("grpc-h2",)).carriers == ("http/1.1",)
    in_clear = plan(origin(bare, "http"), "message", ("grpc-h2", "http/1.1"))
    assert in_clear.carriers[0] == "grpc-h2"


def test_a_carrier_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="'h2' is none of h3, grpc-h3"):
        allowed_carriers((), {"SUBLIMATE_CARRIERS": "h3,h2"})


@pytest.mark.parametrize(
    ("method", "path", "body", "kind"),
    [
        ("POST", "/v1/messages", b'{"stream": true, "messages": [[]]}', "stream"),
        ("POST", "/v1/messages", b'{"stream": false}', "message"),
        ("POST", "/v1/messages", b"{", "other"),
        ("POST", "/v1/messages/count_tokens", b"{}", "count"),
        ("POST", "/v1/messages/batches", b"{}", "other"),
        ("POST", "/v1/chat/completions", b'{"stream": true}', "other"),
        ("GET", "/v1/models", b"", "other"),
        ("GET", "/v1/messages", b"", "other"),
    ],
    ids=["stream", "whole", "broken", "count", "batches", "chat", "models", "get"],
)
def test_kinds(method: str, path: str, body: bytes, kind: str) -> None:
    assert kind_of(method, path, body) == kind


# ---- plans ---------------------------------------------------------------------------------------
def test_all_that_is_there_in_order_of_preference() -> None:
    assert plan(origin(), "stream", CARRIERS) == Plan(CARRIERS)
    assert plan(origin(), "message", CARRIERS).carriers == (
        "h3",
        "grpc-h3",
        "grpc-h2",
        "http/1.1",
    )


def test_what_grpc_does_not_have_goes_over_http() -> None:
    assert plan(origin(), "other", CARRIERS).carriers == ("h3", "http/1.1")
    assert plan(origin(), "other", ("grpc-h2",)).carriers == ("http/1.1",)


def test_a_server_that_was_not_heard_or_is_another_gets_plain_http() -> None:
    unknown = Origin("https", "host", 443)
    assert plan(unknown, "stream", CARRIERS) == Plan(("http/1.1",), "first")
    assert not unknown.learn({"server": "x"})
    assert plan(unknown, "stream", CARRIERS) == Plan(("http/1.1",), "other server")
    assert unknown.learn({"x-layer": "1"}) and not unknown.learn({"x-layer": "1"})
    assert plan(unknown, "stream", CARRIERS) == Plan(OVER_HTTP1, "not asked yet")


def test_in_clear_frames_are_the_best_there_is() -> None:
    assert plan(origin(None, "http"), "stream", CARRIERS) == Plan(OVER_HTTP1)


def test_missing_ports_are_told() -> None:
    only_grpc = Service(grpc_port=1, certificate_sha256=CERTIFICATE)
    only_quic = Service(quic_port=1)
    assert plan(origin(only_grpc), "stream", CARRIERS) == Plan(WITHOUT_QUIC, "no quic port")
    assert plan(origin(only_quic), "stream", WITHOUT_QUIC) == Plan(OVER_HTTP1, "no grpc port")


def test_udp_that_failed_is_left_alone_and_probed_after_a_while() -> None:
    known = origin()
    known.udp.failed(100.0, "udp blocked")
    assert plan(known, "stream", CARRIERS) == Plan(WITHOUT_QUIC, "udp blocked")
    assert not known.udp.probe_is_due(100.0 + BLOCKED_SECONDS - 1)
    assert known.udp.probe_is_due(100.0 + BLOCKED_SECONDS)
    assert not known.udp.probe_is_due(100.0 + BLOCKED_SECONDS), "one probe is enough"
    assert plan(known, "stream", CARRIERS).fallback == "udp blocked", "no request waits for it"
    known.udp.worked()
    assert plan(known, "stream", CARRIERS) == Plan(CARRIERS)


def test_each_failure_doubles_the_wait_up_to_a_limit() -> None:
    known = origin()
    waits: list[float] = []
    for _ in range(8):
        known.udp.failed(0.0, "udp blocked")
        waits.append(known.udp.until_seconds)
    assert waits[:3] == [BLOCKED_SECONDS, BLOCKED_SECONDS * 2, BLOCKED_SECONDS * 4]
    assert waits[-1] == BLOCKED_SECONDS_MAX


def test_tickets_are_used_once_and_the_newest_first() -> None:
    known = origin()
    for ticket in "abc":
        known.put_ticket(ticket, CERTIFICATE, 2)
    assert [known.take_ticket(CERTIFICATE) for _ in range(3)] == ["c", "b", None]


@pytest.mark.parametrize(
    ("body", "service"),
    [
        (b'{"ports":{"http":1,"https":2}}', Service()),
        (
            b'{"ports":{"h3":2,"grpc":3},"certificate_sha256":"' + b"A" * 64 + b'","policy":"p"}',
            Service(2, 3, "a" * 64),
        ),
        (b'{"ports":{"h3":70000}}', None),
        (b'{"ports":{"h3":1},"certificate_sha256":"ab"}', None),
        (b"<html>", None),
        (b'{"a":"' + b"a" * (64 << 10) + b'"}', None),
    ],
    ids=["clear", "all", "port", "digest", "html", "large"],
)
def test_what_a_server_says_of_itself(body: bytes, service: Service | None) -> None:
    assert read_service(body) == service


def test_the_report_sums_what_was_used() -> None:
    tally = Tally()
    tally.note(Used("h3", reused=False, early_data=True))
    tally.note(Used("frames", fallback="udp blocked"))
    report = tally.report()
    assert report.requests == {"h3": 1, "frames": 1}
    assert (report.early_data, report.handshakes) == (1, 1)
    assert report.fallbacks == {"udp blocked": 1} and report.last == Used(
        "frames", fallback="udp blocked"
    )


def test_the_library_is_the_one_of_the_sdk() -> None:
    import anthropic

    base = anthropic.DefaultHttpxClient.__mro__[-3].__module__.partition(".")[0]
    assert library_name() == base and load_library().__name__ == base
    with pytest.raises(ConfigError, match="'requests' is none of httpx2, httpx"):
        load_library("requests")


# ---- the race, on a clock of its own -------------------------------------------------------------
class VirtualSelector(selectors.DefaultSelector):
    """Waits by moving the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


def on_virtual_clock(story: Callable[[], Awaitable[object]]) -> object:
    selector = VirtualSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        return loop.run_until_complete(story())  # type: ignore[arg-type]
    finally:
        loop.close()


class Runner:
    """Connects after a time, or fails then."""

    def __init__(self, name: str, after: float, seconds: float, works: bool = True) -> None:
        self.begun: float | None = None
        self.done = False
        self.seconds, self.works, self.name = seconds, works, name
        self.entrant = Entrant(name, after, self.connect)

    async def connect(self) -> str:
        self.begun = asyncio.get_running_loop().time()
        await asyncio.sleep(self.seconds)
        self.done = True
        if not self.works:
            raise CarrierError("ConnectError", "no", unsent=True)
        return self.name


def raced(*runners: Runner, deadline: float = 0.25) -> tuple[object, float]:
    """Who has won, and when."""
    late: set[asyncio.Task[str]] = set()

    async def story() -> object:
        won = await race([runner.entrant for runner in runners], deadline, late)
        ended = asyncio.get_running_loop().time()
        await asyncio.sleep(10)
        assert not late, "the losers are let go when they have ended"
        return won and won[0], ended

    return on_virtual_clock(story)  # type: ignore[return-value]


def test_the_first_wins_alone_while_it_is_quick() -> None:
    quic, tcp = Runner("quic", 0, 0.04), Runner("tcp", 0.05, 0.01)
    assert raced(quic, tcp) == ("quic", 0.04)
    assert tcp.begun is None, "no handshake for nothing"


def test_the_second_wins_a_race_that_the_first_loses() -> None:
    quic, tcp = Runner("quic", 0, 3.0), Runner("tcp", 0.05, 0.04)
    won, ended = raced(quic, tcp)
    assert won == "tcp" and ended == pytest.approx(0.09)
    assert quic.done, "it goes on, for the requests to come"


def test_a_failure_starts_the_next_at_once() -> None:
    quic, tcp = Runner("quic", 0, 0.001, works=False), Runner("tcp", 0.05, 0.01)
    won, ended = raced(quic, tcp)
    assert won == "tcp" and ended == pytest.approx(0.011)


def test_nobody_within_the_deadline() -> None:
    assert raced(Runner("quic", 0, 3.0), Runner("tcp", 0.05, 3.0)) == (None, 0.25)


def test_all_have_failed() -> None:
    runners = Runner("quic", 0, 0.01, works=False), Runner("tcp", 0.05, 0.01, works=False)
    won, ended = raced(*runners)
    assert won is None and ended == pytest.approx(0.02)


# ---- the pipe ------------------------------------------------------------------------------------
def test_a_pipe_holds_its_writer_while_much_is_unread() -> None:
    held: list[bool] = []
    pipe = Pipe(held.append, lambda: None)
    pipe.feed(b"a" * UNREAD_BYTES_MAX)
    assert held == []
    pipe.feed(b"b")
    pipe.feed(b"c")
    assert held == [True]
    assert pipe.read(1) == b"a" * UNREAD_BYTES_MAX + b"bc" and held == [True, False]
    pipe.end()
    assert pipe.read(1) == b""


def test_a_pipe_says_what_came_before_it_broke() -> None:
    pipe = Pipe(lambda hold: None, lambda: None)
    pipe.feed(b"a")
    pipe.end(CarrierError("RemoteProtocolError", "cut"))
    pipe.end()
    assert pipe.read(1) == b"a"
    with pytest.raises(CarrierError, match="cut"):
        pipe.read(1)


def test_a_reader_that_leaves_tells_it_once() -> None:
    left: list[bool] = []
    pipe = Pipe(lambda hold: None, lambda: left.append(True))
    pipe.close()
    pipe.close()
    pipe.feed(b"x")
    assert left == [True]
    ended = Pipe(lambda hold: None, lambda: left.append(True))
    ended.end()
    ended.close()
    assert left == [True]


async def test_a_pipe_is_read_in_any_loop_and_in_any_thread() -> None:
    pipe = Pipe(lambda hold: None, lambda: None)
    feeding = threading.Timer(0.01, lambda: pipe.feed(b"a"))
    feeding.start()
    assert await pipe.read_async(5) == b"a"
    feeding.join()
    reading = asyncio.create_task(asyncio.to_thread(pipe.read, 5))
    await asyncio.sleep(0.01)
    pipe.feed(b"b")
    assert await reading == b"b"
    with pytest.raises(CarrierError) as caught:
        await pipe.read_async(0.001)
    assert caught.value.failure == "ReadTimeout"
    with pytest.raises(CarrierError):
        pipe.read(0.001)


def test_a_background_ends_with_all_that_runs_in_it() -> None:
    ended: list[str] = []

    async def at_end() -> None:
        ended.append("at end")

    async def forever() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("cancelled")

    background = Background("test-background", at_end)
    running = background.submit(forever())
    background.close()
    background.close()
    assert ended == ["at end", "cancelled"] and running.cancelled()
    assert not [t for t in threading.enumerate() if t.name == "test-background"]
    with pytest.raises(RuntimeError, match="closed"):
        background.start()
