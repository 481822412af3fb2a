"""`sublimate reload`: every worker is replaced, one after the other, and no request is lost.

    engine (where what it loads has changed): a new one loads -> a pair with each edge -> the edges
        give the old one nothing more -> it is idle -> Stop
    edge: a new one starts -> a pair with each engine -> it listens on the same sockets -> the old
        one accepts nothing more, serves what it has, tells its clients to go -> Stop

Where the model has changed both of a worker come together and take over together, for an engine and
an edge of different models have no pair: a text's token ids are the model's own.

If what comes does not get so far, the old ones stay and the reload ends there: who was replaced by
then stays so, and the next reload goes by what each one was started with.

defines: Rolling
"""

from __future__ import annotations

import time
from typing import Literal

from ..control import channel
from .fleet import Fleet
from .launch import Launch
from .members import EdgeMember, EngineMember, Member

Kind = Literal["engine", "edge"]

ENGINE_SECONDS_MAX = 600.0
"""To load a model anew; then the old one stays."""
EDGE_SECONDS_MAX = 60.0
GRACE_SECONDS = 1.0
"""Beyond what the streams of an edge or engine that leaves have."""


class Rolling:
    """One reload. `step` is called whenever something has happened, until `is_over`."""

    def __init__(self, fleet: Fleet, launch: Launch) -> None:
        """launch: of those that come."""
        if fleet.is_replacing:
            raise ValueError("one reload at a time")
        workers = sorted({edge.worker for edge in fleet.edges})
        if not workers:
            raise ValueError("there is a worker to replace")
        fleet.is_replacing = True
        self.failure = ""
        """Why it ended before its time."""
        self.is_over = False
        self.deadline_seconds: float | None = None
        """Of the present step."""
        self._fleet = fleet
        self._launch_before, fleet.launch = fleet.launch, launch
        self._left = [(worker, kinds) for worker in workers for kinds in self._steps(worker)]
        self._coming: list[Member] = []
        """They take over together."""
        self._leaving: list[Member] = []
        """One after the other."""

    def _steps(self, worker: int) -> list[tuple[Kind, ...]]:
        """What is replaced there, by what serves there now."""
        fleet, launch = self._fleet, self._fleet.launch
        if launch.loads:
            return [("edge",)]  # engines of before leave by residency.py, and come back otherwise
        before = self._launch_before
        engines = [engine for engine in fleet.engines if engine.worker == worker]
        if before.loads:  # those of its other models leave by residency.py as well
            engines = [one for one in engines if one.launch.model_name == before.model_name]
        serving = [*engines, *(edge for edge in fleet.edges if edge.worker == worker)]
        if any(member.launch.model != launch.model for member in serving):
            return [("engine", "edge")]
        if any(launch.loads_otherwise(engine.launch) or engine.failed for engine in engines):
            return [("engine",), ("edge",)]
        return [("edge",)]

    def step(self) -> None:
        """Whatever can be done now."""
        if self.is_over:
            return
        if self._leaving:
            self._follow_leaving(self._leaving[0])
        elif self._coming:
            self._follow_coming()
        if not self._coming and not self._leaving and not self.is_over:
            self._next()

    def _next(self) -> None:
        if not self._left:
            self._end("")
            return
        worker, kinds = self._left.pop(0)
        limit = ENGINE_SECONDS_MAX if "engine" in kinds else EDGE_SECONDS_MAX
        self.deadline_seconds = time.monotonic() + limit
        if "engine" in kinds:
            self._coming.append(self._fleet.add_engine(worker, "coming"))
        if "edge" in kinds:
            self._coming.append(self._fleet.add_edge(worker, "coming"))

    def _follow_coming(self) -> None:
        fleet = self._fleet
        for coming in self._coming:
            if coming not in fleet.members:
                why = coming.said if isinstance(coming, EngineMember) else ""
                self._give_up(f"The new {coming.name} could not start{': ' if why else '.'}{why}")
                return
        if self._is_late():
            late = next((one for one in self._coming if one.info is None), self._coming[0])
            self._give_up(f"The new {late.name} was not ready in time.")
            return
        if not fleet.is_up(*self._coming):
            return
        kinds = {type(coming) for coming in self._coming}
        worker = self._coming[0].worker
        serving = [one for one in fleet.members if one.worker == worker and one.role == "serving"]
        old = [one for one in serving if type(one) in kinds]
        for coming in self._coming:
            coming.role = "serving"
        self._coming = []
        self.deadline_seconds = None
        # An edge still has something with its engine.
        self._leaving = sorted(old, key=lambda one: isinstance(one, EngineMember))
        if self._leaving:
            self._leave(self._leaving[0])

    def _give_up(self, why: str) -> None:
        for coming in self._coming:
            coming.child.kill()
        self._end(why)

    def _leave(self, member: Member) -> None:
        fleet = self._fleet
        seconds = member.launch.settings.edge.drain_seconds
        member.role = "leaving"
        member.child.restart_at_seconds = None
        self.deadline_seconds = time.monotonic() + seconds + GRACE_SECONDS
        if isinstance(member, EdgeMember):
            told = member.child.send(channel.Drain(seconds=seconds, serves=True))
            member.is_drained = not told
        elif isinstance(member, EngineMember):
            fleet.retire(member)

    def _follow_leaving(self, leaving: Member) -> None:
        fleet = self._fleet
        if leaving in fleet.members and leaving.child.alive:
            if self._is_done(leaving) or self._is_late():
                self.deadline_seconds = None
                leaving.child.stop()
            return
        if leaving in fleet.members:  # it was waiting to be started again
            fleet.remove(leaving)
        self._leaving.pop(0)
        if self._leaving:
            self._leave(self._leaving[0])

    def _is_done(self, leaving: Member) -> bool:
        """Nothing is in flight there any more."""
        if isinstance(leaving, EdgeMember):
            return leaving.is_drained
        return isinstance(leaving, EngineMember) and self._fleet.is_idle(leaving)

    def _is_late(self) -> bool:
        return self.deadline_seconds is not None and time.monotonic() >= self.deadline_seconds

    def _end(self, failure: str) -> None:
        self.failure = failure
        self.is_over = True
        self.deadline_seconds = None
        self._fleet.is_replacing = False
        if failure:
            self._fleet.launch = self._launch_before
