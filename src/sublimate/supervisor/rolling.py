"""`sublimate reload`: every worker is replaced, one after the other, and no request is lost.

    engine (where what it loads has changed): a new one loads -> a pair with each edge -> the edges
        give the old one nothing more -> it is idle -> Stop
    edge: a new one starts -> a pair with each engine -> it listens on the same sockets -> the old
        one accepts nothing more, serves what it has, tells its clients to go -> Stop

If the one that comes does not get so far, the old one stays and the reload ends there.

defines: Rolling
"""

from __future__ import annotations

import time

from ..control import channel
from .fleet import Fleet
from .members import EdgeMember, EngineMember

ENGINE_SECONDS_MAX = 600.0
"""To load a model anew; then the old one stays."""
EDGE_SECONDS_MAX = 60.0
GRACE_SECONDS = 1.0
"""Beyond what the streams of an edge or engine that leaves have."""


class Rolling:
    """One reload. `step` is called whenever something has happened, until `is_over`."""

    def __init__(self, fleet: Fleet, *, with_engines: bool) -> None:
        if fleet.is_replacing:
            raise ValueError("one reload at a time")
        fleet.is_replacing = True
        self.failure = ""
        """Why it ended before its time."""
        self.is_over = False
        self.deadline_seconds: float | None = None
        """Of the present step."""
        self._fleet = fleet
        workers = sorted({edge.worker for edge in fleet.edges})
        if not workers:
            raise ValueError("there is a worker to replace")
        kinds = ("engine", "edge") if with_engines else ("edge",)
        self._left = [(kind, worker) for worker in workers for kind in kinds]
        self._coming: EngineMember | EdgeMember | None = None
        self._leaving: EngineMember | EdgeMember | None = None

    def step(self) -> None:
        """Whatever can be done now."""
        if self.is_over:
            return
        if self._leaving is not None:
            self._follow_leaving(self._leaving)
        elif self._coming is not None:
            self._follow_coming(self._coming)
        if self._coming is None and self._leaving is None and not self.is_over:
            self._next()

    def _next(self) -> None:
        if not self._left:
            self._end("")
            return
        kind, worker = self._left.pop(0)
        now = time.monotonic()
        if kind == "engine":
            self.deadline_seconds = now + ENGINE_SECONDS_MAX
            self._coming = self._fleet.add_engine(worker, "coming")
        else:
            self.deadline_seconds = now + EDGE_SECONDS_MAX
            self._coming = self._fleet.add_edge(worker, "coming")

    def _follow_coming(self, coming: EngineMember | EdgeMember) -> None:
        fleet = self._fleet
        if coming not in fleet.members:
            why = coming.said if isinstance(coming, EngineMember) else ""
            self._end(f"The new {coming.name} could not start{': ' if why else '.'}{why}")
            return
        if self._is_late():
            coming.child.kill()
            self._end(f"The new {coming.name} was not ready in time.")
            return
        if not fleet.is_up(coming):
            return
        same = fleet.engines if isinstance(coming, EngineMember) else fleet.edges
        old = [each for each in same if each.worker == coming.worker and each.role == "serving"]
        coming.role = "serving"
        self._coming = None
        self.deadline_seconds = None
        for each in old:
            self._leave(each)

    def _leave(self, member: EngineMember | EdgeMember) -> None:
        fleet = self._fleet
        if self._leaving is not None:
            raise RuntimeError("one leaves at a time")
        seconds = fleet.launch.settings.edge.drain_seconds
        member.role = "leaving"
        member.child.restart_at_seconds = None
        self.deadline_seconds = time.monotonic() + seconds + GRACE_SECONDS
        self._leaving = member
        if isinstance(member, EdgeMember):
            told = member.child.send(channel.Drain(seconds=seconds, serves=True))
            member.is_drained = not told
            return
        for edge in fleet.edges:
            if not edge.child.send(channel.EngineLeaving(engine=member.number)):
                member.idle_edges.add(edge.number)

    def _follow_leaving(self, leaving: EngineMember | EdgeMember) -> None:
        fleet = self._fleet
        if leaving not in fleet.members:
            self._leaving = None
            return
        if not leaving.child.alive:  # it was waiting to be started again
            fleet.remove(leaving)
            self._leaving = None
            return
        if isinstance(leaving, EdgeMember):
            is_done = leaving.is_drained
        else:
            is_done = leaving.idle_edges >= {
                edge.number for edge in fleet.edges if edge.child.alive
            }
        if is_done or self._is_late():
            self.deadline_seconds = None
            leaving.child.stop()

    def _is_late(self) -> bool:
        return self.deadline_seconds is not None and time.monotonic() >= self.deadline_seconds

    def _end(self, failure: str) -> None:
        self.failure = failure
        self.is_over = True
        self.deadline_seconds = None
        self._fleet.is_replacing = False
