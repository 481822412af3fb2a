"""One engine and one edge as the supervisor knows them: a child process, and how far it has come.

A member may start many times: it is the place that a process fills. While a worker is replaced it
has two members, one that comes and one that leaves.

defines: Role, Member, EngineMember, EdgeMember, outdated, edge_failure
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from .. import _core
from ..control import channel
from ..errors import EngineError, ExitCode, ModelError, SublimateError
from ..guard.edge_watch import EdgeWatch
from .launch import Launch
from .worker import Worker

if TYPE_CHECKING:
    from .pairs import Pair

ENGINE_MODULE = "sublimate.engine"
UNREADABLE = "The edge cannot serve this model (see above)."
"""It has told what is wrong itself."""
INBOX_BYTES = 1 << 20
"""That wait for one edge."""

Role = Literal["serving", "coming", "leaving"]
"""Only who serves is started again when it ends."""


class Member:
    """What both kinds have."""

    def __init__(self, worker: int, name: str, module: str, incoming: Any, launch: Launch) -> None:
        """worker: its number, 0 for the first; name: for people; launch: each time it starts."""
        if worker < 0:
            raise ValueError("workers are counted from 0")
        self.worker = worker
        self.name = name
        self.launch = launch
        self.child = Worker(name, module, incoming)
        self.role: Role = "serving"
        self.info: dict[str, Any] | None = None
        """Of the process that runs, once it can serve."""
        self.look_at_seconds: float | None = None
        """When the watchdog looks at it next; None: it does not watch it now."""


class EngineMember(Member):
    """One engine."""

    def __init__(self, number: int, worker: int, name: str, launch: Launch) -> None:
        """number: unlike that of any other engine before it; edges know it by this."""
        super().__init__(worker, name, ENGINE_MODULE, channel.FromEngine, launch)
        if number < 0:
            raise ValueError("engines are counted from 0")
        self.number = number
        self.said = ""
        """Why it ends, in its own words."""
        self.was_loaded = False
        """At least once: what fails later may be transient."""
        self.prefix_fd = -1
        """Of its prefix table, for the edges; with it the supervisor sees how busy it is."""
        self.prefixes: _core.PrefixTable | None = None
        self.failed: channel.Failed | None = None
        """It cannot start, and will not be tried again."""
        self.watch = launch.watch()
        self.watched: Pair | None = None
        """In whose region its heartbeat is looked at."""
        self.is_stalled = False
        self.idle_edges: set[int] = set()
        """Of one that leaves: the edges that have nothing with it any more."""

    def take_prefixes(self, fds: tuple[int, ...]) -> None:
        """The table of the engine that has just loaded."""
        self.drop_prefixes()
        if len(fds) != 1:
            raise ValueError("an engine has one prefix table")
        self.prefixes = _core.PrefixTable.attach(fds[0])
        self.prefix_fd = os.dup(fds[0])

    def drop_prefixes(self) -> None:
        """It has ended."""
        self.prefixes = None
        if self.prefix_fd >= 0:
            os.close(self.prefix_fd)
            self.prefix_fd = -1

    def stats(self, region: _core.Region) -> dict[str, int]:
        """Of its loop, with the requests of all edges."""
        stats = region.stats()
        if self.prefixes is not None:
            load = self.prefixes.load()
            stats |= {name: load[name] for name in ("running", "waiting")}
        return stats


class EdgeMember(Member):
    """One edge."""

    def __init__(self, number: int, worker: int, name: str, launch: Launch) -> None:
        """number: unlike that of any other edge that runs; siblings know it by this."""
        super().__init__(worker, name, launch.edge_module, channel.FromEdge, launch)
        if number < 0:
            raise ValueError("edges are counted from 0")
        self.number = number
        self.is_drained = False
        self.refuses = False
        """It cannot read the model, and says so to every request."""
        self.failed = ""
        """Why it ends: what is wrong with the model."""
        self.watch = EdgeWatch(launch.settings.server.watchdog_seconds)
        self.inbox: socket.socket | None = None
        """The end that its siblings write to."""

    def take_last(self, message: channel.Drained | channel.Failed) -> None:
        """After this it says nothing more."""
        if isinstance(message, channel.Failed):
            self.failed = message.message
        else:
            self.is_drained = True

    def open_inbox(self) -> socket.socket:
        """A fresh one; returns the end that the edge reads."""
        self.close_inbox()
        self.inbox, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.inbox.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, INBOX_BYTES)
        return theirs

    def close_inbox(self) -> None:
        """It has ended."""
        if self.inbox is not None:
            self.inbox.close()
            self.inbox = None


def outdated(engines: Sequence[EngineMember], edges: Sequence[EdgeMember]) -> list[Member]:
    """Who has a file of a model that is another one by now, and nobody to work with. Edges only
    once an engine has loaded the new one: it may be broken, and then they answer that."""
    lonely: list[Member] = []
    those: tuple[Sequence[Member], Sequence[Member]] = engines, edges
    for mine, theirs in (those, those[::-1]):
        models = {other.launch.model for other in theirs}
        alone = [one for one in mine if one.launch.model not in models]
        lonely += [one for one in alone if one.launch.model != one.launch.as_it_is().model]
    loaded = {engine.launch.model for engine in engines if engine.info is not None}
    return [
        one
        for one in lonely
        if isinstance(one, EngineMember) or one.launch.as_it_is().model in loaded
    ]


def edge_failure(edge: EdgeMember, why: str) -> SublimateError:
    """What an edge that could not start means, in its own words where there are any."""
    if why == f"exit code {ExitCode.MODEL.value}":
        return ModelError(edge.failed or UNREADABLE)
    return EngineError(f"The edge ended before it was ready: {why}.")
