"""The edge process's side of the control channel, without a server behind it."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sublimate import _core
from sublimate.api.routes import ROUTES
from sublimate.config import EdgeSettings, LogSettings
from sublimate.control import channel
from sublimate.control.channel import Channel
from sublimate.edge import process
from sublimate.edge.process import EdgeProcess


class FakeServer:
    """Takes regions as told, and remembers."""

    def __init__(self) -> None:
        self.ups: list[_core.Region] = []
        self.losses = 0
        self.on_broken: Callable[[], None] = lambda: None
        self.refuses = False

    def engine_up(
        self,
        region: _core.Region,
        info: dict[str, Any],
        on_broken: Callable[[], None],
        *,
        model: str,
        engine: int,
        worker: int,
        prefixes: _core.PrefixTable | None,
    ) -> None:
        if self.refuses:
            raise _core.CoreError("no")
        self.ups.append(region)
        self.on_broken = on_broken

    def engine_lost(self, reason: str = "", message: str = "", *, engine: int = 0) -> None:
        self.losses += 1


class StartedServer:
    """What EdgeProcess.serve asks of a server."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.grpc_url, self.tls_info = "", dict[str, Any]()
        self.closed = False
        engines = SimpleNamespace(is_first_awaited=False)
        self.models = SimpleNamespace(main=SimpleNamespace(engines=engines))
        STARTED.append(self)

    def part(self, _: type) -> None:
        """Nothing is left to load."""

    def close(self) -> None:
        self.closed = True

    async def wait_closed(self) -> None:
        assert self.closed


class Model:
    """Of no text."""

    def add_aliases(self, aliases: object) -> None: ...


STARTED: list[StartedServer] = []


class Running:
    """An EdgeProcess between a fake server and our end of its channel."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control: Channel[Any] = Channel(ours, channel.FromEdge)
        self.control.setblocking(False)
        self.their_end: Channel[Any] = Channel(theirs, channel.ToEdge)
        self.their_end.setblocking(False)
        self.process = EdgeProcess(self.their_end, ROUTES)
        self.server = FakeServer()

    def tell(self, message: channel.Message, fds: tuple[int, ...] = ()) -> None:
        self.control.send(message, fds)
        self.process._follow(self.server)  # pyright: ignore[reportArgumentType]

    def said(self) -> list[Any]:
        found: list[Any] = []
        while True:
            try:
                received = self.control.receive()
            except BlockingIOError:
                return found
            assert received is not None
            found.append(received.message)


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    yield made
    made.control.close()
    made.their_end.close()


def test_who_is_stopped_while_it_waits_for_an_engine_never_listens(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    listened: list[object] = []

    async def listen_on(*given: object, **_: object) -> None:
        listened.append(given)

    monkeypatch.setattr(process, "load_text_model", lambda *_: Model())
    monkeypatch.setattr(process, "EdgeServer", StartedServer)
    monkeypatch.setattr(process, "listen_on", listen_on)
    monkeypatch.setattr(process, "configure", lambda _: None)
    running.control.send(channel.Stop())
    start = channel.Start(
        settings=EdgeSettings(), log=LogSettings(), model_path="", model_name="", waits=True
    )
    sock = socket.socket()
    asyncio.run(running.process.serve(start, (sock.detach(),)))
    assert STARTED[-1].closed and listened == [] and running.said() == []


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_region_is_taken_and_the_descriptors_that_came_are_closed(running: Running) -> None:
    region = _core.Region.create(100)
    before = open_descriptors()
    running.tell(channel.EngineUp(info={}, edge=3), region.fds)
    assert len(running.server.ups) == 1 and running.said() == []
    running.server.ups.clear()
    assert open_descriptors() == before
    running.server.on_broken()
    assert running.said() == [channel.RegionBroken(edge=3)]


@pytest.mark.parametrize(
    "case", ["too few", "none", "too many", "no table", "no region", "refused"]
)
def test_a_region_that_cannot_be_used_is_told_and_leaks_nothing(
    running: Running, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A traceback that the test run keeps would keep the region.
    monkeypatch.setattr(process.LOG, "disabled", True)
    region = _core.Region.create(100)
    read_end, write_end = os.pipe()
    fds = {
        "too few": region.fds[:2],
        "none": (),
        "too many": (*region.fds, read_end, read_end),
        "no table": (*region.fds, read_end),
        "no region": (read_end, *region.fds[1:]),
        "refused": region.fds,
    }[case]
    running.server.refuses = case == "refused"
    before = open_descriptors()
    running.tell(channel.EngineUp(info={}, edge=4), fds)
    assert open_descriptors() == before
    assert running.said() == [channel.RegionBroken(edge=4)]
    assert running.server.ups == [] and running.server.losses == 1
    running.server.refuses = False
    running.tell(channel.EngineUp(info={}, edge=5), region.fds)
    assert len(running.server.ups) == 1, "the next one is taken"
    os.close(read_end)
    os.close(write_end)
