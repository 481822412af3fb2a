"""A fleet whose children only remember what they are told, and say what a test has them say.

defines: FakeChild, Reporter, Running, launch, the fixtures listeners, prefix_fd, make, running
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sublimate.config import EdgeSettings, EngineSettings, ServerSettings, Settings
from sublimate.control import channel
from sublimate.engine.inprocess import Engine
from sublimate.engine.script import Script
from sublimate.supervisor import members
from sublimate.supervisor.fleet import Fleet
from sublimate.supervisor.launch import Launch
from sublimate.supervisor.listen import Listeners, WorkerSockets, bind_each
from sublimate.supervisor.members import EngineMember, Member
from sublimate.supervisor.reporter import SilentReporter
from sublimate.supervisor.supervise import Supervisor

WORKERS = 2


class FakeChild:
    """In place of worker.Worker."""

    def __init__(self, name: str, module: str, incoming: Any) -> None:
        self.name = name
        self.restart_at_seconds: float | None = None
        self.kill_at_seconds: float | None = None
        self.alive = self.hung_up = False
        self.process_id = 0
        self.starts = 0
        self.told: list[channel.Message] = []
        self.says: list[channel.Received[Any]] = []
        self.end: str | None = None

    def start(self, spawn: Callable[..., Any]) -> None:
        self.restart_at_seconds = None
        self.alive = True
        self.starts += 1
        self.told = []

    def send(self, message: channel.Message, fds: tuple[int, ...] = ()) -> bool:
        self.told += [message] if self.alive else []
        return self.alive

    def receive(self) -> Iterator[channel.Received[Any]]:
        while self.says:
            yield self.says.pop(0)

    def kill_if_overdue(self, now_seconds: float) -> None: ...

    def is_due(self, now_seconds: float) -> bool:
        return self.restart_at_seconds is not None and now_seconds >= self.restart_at_seconds

    def plan_restart(self) -> float:
        self.restart_at_seconds = time.monotonic()
        return 0.0

    def kill(self) -> None:
        if self.alive:
            self.end = "signal SIGKILL"

    def stop(self) -> None:
        self.end = "exit code 0"

    def ask_to_stop(self, at_once: bool) -> None: ...

    def reap(self, deadline_seconds: float) -> None: ...

    def ended(self) -> str | None:
        end, self.end = self.end, None
        if end is not None:
            self.alive = False
        return end

    def last(self, kind: type[Any]) -> Any:
        return [message for message in self.told if isinstance(message, kind)][-1]


class Reporter(SilentReporter):
    """Remembers."""

    def __init__(self) -> None:
        self.readies = 0
        self.losses: list[tuple[str, str]] = []
        self.models: list[tuple[str, str]] = []
        self.reloads: list[str] = []

    def ready(self, url: str, engine: dict[str, Any], edge: dict[str, Any]) -> None:
        self.readies += 1

    def lost(self, who: str, why: str, restart_seconds: float) -> None:
        self.losses.append((who, why))

    def reloaded(self, failure: str) -> None:
        self.reloads.append(failure)

    def model(self, name: str, what: str) -> None:
        self.models.append((name, what))


class Running:
    """A fleet of two workers whose children have been started."""

    def __init__(
        self,
        listeners: Listeners,
        prefix_fd: int,
        *,
        stay: bool = False,
        first: Launch | None = None,
    ) -> None:
        self.launch = first or launch(stay=stay)
        self.reporter = Reporter()
        self.supervisor = Supervisor(
            self.launch, listeners, self.reporter, relaunch=lambda: self.next_launch()
        )
        self.fleet: Fleet = self.supervisor._fleet
        self.next_launch: Callable[[], Launch] = lambda: self.launch
        self.prefix_fd = prefix_fd
        self.fleet.start()

    def child(self, member: Member) -> Any:
        return member.child

    def hear(self, member: Member, message: channel.Message, *fds: int) -> None:
        self.child(member).says.append(channel.Received(message, fds))
        self.fleet.serve()

    def load(self, engine: EngineMember) -> None:
        """It is ready, and serves all regions that it is given."""
        self.hear(engine, channel.Ready(info={"vocabulary": 10}), self.prefix_fd)
        self.attach(engine)

    def attach(self, engine: EngineMember) -> None:
        for message in list(self.child(engine).told):
            if isinstance(message, channel.Attach):
                self.hear(engine, channel.Attached(edge=message.edge))

    def listen(self, edge: Member) -> None:
        self.hear(edge, channel.EdgeReady())
        for engine in self.fleet.engines:
            self.attach(engine)

    def all_up(self) -> None:
        for engine in self.fleet.engines:
            self.load(engine)
        for edge in self.fleet.edges:
            self.listen(edge)
        assert self.fleet.is_up()

    def end(self, member: Member) -> None:
        self.child(member).kill()
        self.fleet.serve()

    def turn(self) -> None:
        self.fleet.serve()
        self.fleet.act_on_time()
        self.supervisor._residency.step()
        self.supervisor._roll()


def launch(model: str = "/a.gguf", *, stay: bool = False, threads: int = 0) -> Launch:
    settings = Settings(
        server=ServerSettings(port=0, stay=stay, kernel_state=False, watchdog_seconds=0.0),
        engine=EngineSettings(threads=threads),
        edge=EdgeSettings(drain_seconds=60.0),
    )
    return Launch(settings=settings, model_path=model, model_name="m", edge_module="none")


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    socks = bind_each("127.0.0.1", 0, WORKERS)
    yield Listeners(tuple(WorkerSockets(sock) for sock in socks))
    for sock in socks:
        sock.close()


@pytest.fixture(scope="module")
def prefix_fd() -> Iterator[int]:
    """Of an engine that has a table."""
    with Engine.scripted(Script(answers=[([], [3])], vocabulary=10, stop_token=2)) as engine:
        yield engine._loop.prefix_fd


@pytest.fixture
def make(
    listeners: Listeners, prefix_fd: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Running]]:
    monkeypatch.setattr(members, "Worker", FakeChild)
    made: list[Running] = []

    def running(**options: Any) -> Running:
        made.append(Running(listeners, prefix_fd, **options))
        return made[-1]

    yield running
    for one in made:
        one.fleet.end(True, 0.0)


@pytest.fixture
def running(make: Callable[..., Running]) -> Running:
    return make()
