"""Which models are in memory: each comes when somebody asks for it, and leaves when nobody does, or
when another one needs the memory.

    an edge wants a model -> those that were used least lately leave, until there is room ->
        its engines load -> pairs with the edges -> the requests that waited -> ModelTaken
    a model leaves: the edges give it nothing more -> what it has is done -> Stop; whoever asks for
        it meanwhile waits, and it comes back

One that is wanted is not taken away before its requests were handed over, and one that is busy not
before it has served for as long as it took to load: so each gets its turn, and no more time goes by
with loading than with answers. On the supervisor's thread.

defines: Residency
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

from ..config import format_size
from ..control import channel
from ..control.door import AskModels, ModelRow, Question, StopModel, Told
from .fleet import Fleet
from .launch import Launch
from .members import EdgeMember, EngineMember
from .model_memory import estimated_bytes, limit_bytes, needed_bytes
from .reporter import Reporter

LOAD_SECONDS_MAX = 600.0
FAILED_SECONDS = 5.0
"""A model that could not be loaded is not tried again before; who asks is told at once."""
LOOK_SECONDS = 0.05
"""Between two looks at a model that is to leave and is busy."""
NS_PER_SECOND = 1e9
START = -1
"""In place of an edge: it is to be there from the start."""


class _Resident:
    """One model, as far as it is in memory."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: Literal["absent", "coming", "here", "leaving"] = "absent"
        self.engines: list[EngineMember] = []
        self.since_seconds = 0.0
        """When that state began."""
        self.load_seconds = 0.0
        self.wanted_by: dict[int, float] = {}
        """Edges where requests wait, and since when."""
        self.is_to_stop = False
        self.need_bytes = 0
        """As its engines have told; 0: it was never loaded as it is now."""
        self.needed_as: Launch | None = None
        """What they were started with."""
        self.failure: channel.ModelFailed | None = None

    @property
    def wanted_seconds(self) -> float:
        """Since when; it is wanted."""
        return min(self.wanted_by.values())


class Residency:
    """`step` is called whenever something may have happened."""

    def __init__(self, fleet: Fleet, reporter: Reporter) -> None:
        self._fleet = fleet
        self._reporter = reporter
        self._residents: dict[str, _Resident] = {}
        self._clock: Callable[[], float] = time.monotonic
        self._launch: Launch | None = None
        """By which the models were looked at last."""
        self.due_seconds: float | None = None
        """When `step` is to be called at the latest."""

    def step(self) -> None:
        """Whatever can be done now."""
        fleet = self._fleet
        asked, fleet.asked = fleet.asked, []
        self.due_seconds = None
        if not fleet.launch.loads and not self._residents:
            return
        now = self._clock()
        if fleet.launch is not self._launch:
            self._follow_launch(now)
        for edge, said in asked:
            self._hear(edge, said, now)
        if fleet.is_ending:
            return
        for resident in list(self._residents.values()):
            self._follow(resident, now)
        self._let_go(now)
        self._let_in(now)

    # ---- what there is -------------------------------------------------------------------------
    def rows(self) -> list[ModelRow]:
        """Of all models, for people."""
        now = self._clock()
        rows: list[ModelRow] = []
        for resident in self._residents.values():
            if resident.state == "absent" and not self._is_served(resident):
                continue
            requests, used = self._use(resident)
            rows.append(
                ModelRow(
                    name=resident.name,
                    state=resident.state,
                    memory_bytes=0 if resident.state == "absent" else resident.need_bytes,
                    requests=requests,
                    idle_seconds=None if resident.state != "here" else round(now - used, 1),
                    main=resident.name == self._fleet.launch.model_name,
                )
            )
        return rows

    def answer(self, question: Question) -> Told:
        """To who runs this server."""
        match question:
            case AskModels():
                return Told(models=tuple(self.rows()))
            case StopModel(name=name):
                return Told(models=tuple(self.rows()), error=self._stop_error(name))

    def _stop_error(self, name: str) -> str:
        if not self._residents:
            return "This server keeps its one model in memory, as it has no idle_unload."
        if self.stop(name):
            return ""
        here = [one.name for one in self._residents.values() if one.state != "absent"]
        return f"{name!r} is not in memory; there is: {', '.join(here) or 'none'}."

    def stop(self, name: str) -> bool:
        """That model is to leave. False: there is none of that name in memory."""
        resident = self._residents.get(name)
        if resident is None or resident.state == "absent":
            return False
        # One that leaves is not to leave again when it has come back.
        resident.is_to_stop = resident.state != "leaving"
        return True

    def _follow_launch(self, now: float) -> None:
        """At the start, and after a reload: what is served, and how, may be something else."""
        launch = self._launch = self._fleet.launch
        known = set(self._residents)
        for name in launch.names:
            self._residents.setdefault(name, _Resident(name))
        self._adopt(now)
        stays = {launch.model_name, *(one.name for one in launch.more if one.preload)}
        for name in stays - known:
            if self._residents[name].state == "absent":
                self._residents[name].wanted_by[START] = now
        if not launch.loads:
            self._residents[launch.model_name].wanted_by[START] = now  # it alone, and always
        for resident in self._residents.values():
            wanted = launch.of(resident.name)
            is_here = resident.state in ("coming", "here")
            if is_here and wanted is not None and self._is_other(resident, wanted):
                resident.need_bytes = 0
                self._leave(resident, now, "its settings are others now")
                if resident.name in stays:
                    resident.wanted_by[START] = now

    def _adopt(self, now: float) -> None:
        """Engines that serve and were not begun here: the first of all, and after a reload those of
        a server whose one model stayed."""
        serving: dict[str, list[EngineMember]] = {}
        for engine in self._fleet.engines:
            if engine.role == "serving":
                serving.setdefault(engine.launch.model_name, []).append(engine)
        for name, engines in serving.items():
            resident = self._residents.setdefault(name, _Resident(name))
            if resident.state not in ("absent", "here") or resident.engines == engines:
                continue
            resident.engines, resident.since_seconds = engines, now
            resident.state = "coming" if name == self._fleet.launch.model_name else "here"
            resident.need_bytes = needed_bytes(one.info for one in engines if one.info is not None)

    def _is_served(self, resident: _Resident) -> bool:
        return self._fleet.launch.of(resident.name) is not None

    def _is_other(self, resident: _Resident, launch: Launch) -> bool:
        return any(launch.loads_otherwise(engine.launch) for engine in resident.engines)

    def _hear(self, edge: EdgeMember, said: channel.FromEdge | None, now: float) -> None:
        match said:
            case None:
                for resident in self._residents.values():
                    resident.wanted_by.pop(edge.number, None)
            case channel.ModelWanted(model=name) if name in self._residents:
                self._want(edge, self._residents[name], now)
            case channel.ModelTaken(model=name) if name in self._residents:
                self._residents[name].wanted_by.pop(edge.number, None)
            case channel.ModelStop(model=name):
                self.stop(name)
            case _:
                pass

    def _want(self, edge: EdgeMember, resident: _Resident, now: float) -> None:
        failed = resident.failure
        if failed is not None and now - resident.since_seconds < FAILED_SECONDS:
            edge.child.send(failed)
            return
        resident.wanted_by.setdefault(edge.number, now)
        if resident.state != "here":
            return
        models = edge.launch.models
        if any(engine.launch.model not in models for engine in resident.engines):
            # Its file is another one by now, and that is what this edge has read.
            resident.need_bytes = 0
            self._leave(resident, now, "its file is another one now")

    # ---- one model -----------------------------------------------------------------------------
    def _follow(self, resident: _Resident, now: float) -> None:
        there = [engine for engine in resident.engines if engine in self._fleet.members]
        if resident.state == "coming":
            if len(there) < len(resident.engines):
                gone = next(engine for engine in resident.engines if engine not in there)
                self._fail(resident, now, gone.said or f"The {gone.name} ended as it was loaded.")
            elif self._fleet.is_reached(there):
                self._arrive(resident, now)
            elif now - resident.since_seconds > LOAD_SECONDS_MAX and not self._is_first(there):
                self._fail(resident, now, "It was not loaded in time.")
        elif resident.state == "here":
            # Edges of before a reload go on with what they know until they are gone.
            edges = self._fleet.edges
            if not self._is_served(resident) and all(
                resident.name not in edge.launch.names for edge in edges
            ):
                self._leave(resident, now, "unloaded: it is not served any more")
        elif resident.state == "leaving":
            for engine in there:
                if not engine.child.alive:  # it was waiting to be started again
                    self._fleet.remove(engine)
                elif self._fleet.is_idle(engine):
                    engine.child.stop()
            resident.engines = [one for one in there if one in self._fleet.members]
            if not resident.engines:
                resident.state, resident.since_seconds = "absent", now

    def _is_first(self, engines: list[EngineMember]) -> bool:
        """The server itself waits for these."""
        return all(engine.role == "serving" for engine in engines)

    def _arrive(self, resident: _Resident, now: float) -> None:
        for engine in resident.engines:
            engine.role = "serving"
        resident.load_seconds = now - resident.since_seconds
        resident.state, resident.since_seconds = "here", now
        resident.failure = None
        resident.wanted_by.pop(START, None)
        infos = [engine.info for engine in resident.engines if engine.info is not None]
        resident.need_bytes = needed_bytes(infos)
        resident.needed_as = next((engine.launch for engine in resident.engines), None)
        if self._is_too_large(resident):
            self._fail(resident, now, self._too_large(resident))
            return
        taken = format_size(resident.need_bytes)
        self._reporter.model(resident.name, f"loaded in {resident.load_seconds:.1f} s, {taken}")

    def _is_too_large(self, resident: _Resident) -> bool:
        """For all the memory that models may have, as it was loaded last. The main one is served
        whatever it takes."""
        is_main = resident.name == self._fleet.launch.model_name
        return not is_main and resident.need_bytes > limit_bytes(self._fleet.launch)

    def _too_large(self, resident: _Resident) -> str:
        limit = format_size(limit_bytes(self._fleet.launch))
        return (
            f"It takes {format_size(resident.need_bytes)} and models_memory is {limit}: raise "
            "that, or set its kv_memory or context_length."
        )

    def _fail(self, resident: _Resident, now: float, message: str) -> None:
        failed = channel.ModelFailed(
            model=resident.name, reason="load_failed", message=message.strip()
        )
        self._leave(resident, now, f"not loaded: {message}")
        resident.failure = failed
        resident.wanted_by.clear()
        for edge in self._fleet.edges:
            edge.child.send(failed)

    def _leave(self, resident: _Resident, now: float, why: str) -> None:
        """What it has is done first."""
        for engine in resident.engines:
            if engine.role == "coming" and engine.info is None and engine in self._fleet.members:
                engine.child.kill()  # nobody knows of it
            elif engine in self._fleet.members and engine.role != "leaving":
                self._fleet.retire(engine)
        resident.state, resident.since_seconds = "leaving", now
        resident.is_to_stop = False
        self._reporter.model(resident.name, why)

    def _use(self, resident: _Resident) -> tuple[int, float]:
        """Requests now, and the monotonic clock of its last use."""
        stats = [self._fleet.stats_of(engine) for engine in resident.engines]
        requests = sum(one.get("running", 0) + one.get("waiting", 0) for one in stats)
        last = max((one.get("last_step_ns", 0) for one in stats), default=0) / NS_PER_SECOND
        return requests, max(last, resident.since_seconds)

    # ---- who leaves ----------------------------------------------------------------------------
    def _let_go(self, now: float) -> None:
        """Those that somebody has stopped, and those that nobody uses."""
        seconds = self._fleet.launch.settings.server.idle_unload
        for resident in self._here(self._residents.values()):
            if resident.is_to_stop:
                self._leave(resident, now, "unloaded: stopped")
                continue
            if not seconds or not self._fleet.was_ready:
                continue
            requests, used = self._use(resident)
            due = used + seconds
            if requests:
                due = now + seconds
            elif now >= due:
                self._leave(resident, now, f"unloaded: not used for {seconds:.0f} s")
                continue
            self._look_at(due)

    def _here(self, residents: Iterable[_Resident]) -> list[_Resident]:
        """In memory, and nobody waits for them."""
        return [one for one in residents if one.state == "here" and not one.wanted_by]

    def _look_at(self, seconds: float) -> None:
        self.due_seconds = min(seconds, self.due_seconds or seconds)

    # ---- who comes -----------------------------------------------------------------------------
    def _let_in(self, now: float) -> None:
        """The one that has been wanted for longest, once there is room; one at a time."""
        residents = self._residents.values()
        wanted = [one for one in residents if one.wanted_by and one.state == "absent"]
        if any(one.state in ("coming", "leaving") for one in residents):
            self._look_at(now + LOOK_SECONDS)
        is_busy = any(one.state == "coming" for one in residents)
        if not wanted or is_busy or not self._fleet.was_ready:
            return
        next_one = min(wanted, key=lambda one: one.wanted_seconds)
        launch = self._fleet.launch.of(next_one.name)
        if launch is None:
            self._fail(next_one, now, "It is not served any more.")
            return
        if self._is_too_large(next_one):
            known = next_one.needed_as
            if known is not None and not launch.as_it_is().loads_otherwise(known):
                self._fail(next_one, now, self._too_large(next_one))  # at nobody's expense
                return
            next_one.need_bytes = 0
        fleet = self._fleet
        need = next_one.need_bytes or estimated_bytes(fleet.launch, launch, fleet.workers)
        room = limit_bytes(fleet.launch) - need
        taken = sum(one.need_bytes for one in residents if one.state != "absent")
        stays = sum(one.need_bytes for one in residents if one.state == "here")
        if taken <= max(room, 0):
            self._begin(next_one, now)
        elif stays <= max(room, 0):
            pass  # those that leave have it
        elif set(next_one.wanted_by) == {START}:
            next_one.wanted_by.clear()  # nobody waits for it
        else:
            self._make_room(next_one, now)

    def _begin(self, resident: _Resident, now: float) -> None:
        fleet, name = self._fleet, resident.name
        model = "" if name == fleet.launch.model_name else name
        resident.state, resident.since_seconds = "coming", now
        resident.failure = None
        resident.engines = [
            fleet.add_engine(worker, "coming", model) for worker in range(fleet.workers)
        ]

    def _make_room(self, wanted: _Resident, now: float) -> None:
        """The one leaves that was used least lately. If all are busy, it is one that has served for
        as long as it took to load."""
        uses: list[tuple[bool, float, Any]] = []
        for one in self._here(self._residents.values()):
            requests, used = self._use(one)
            stays_until = one.since_seconds + one.load_seconds
            if requests and now < stays_until:
                self._look_at(min(now + LOOK_SECONDS, stays_until))
            else:
                uses.append((requests > 0, used, one))
        if not uses:
            self._look_at(now + LOOK_SECONDS)
            return
        _, _, victim = min(uses, key=lambda use: use[:2])
        self._leave(victim, now, f"unloaded: its memory is for {wanted.name}")
