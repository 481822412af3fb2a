"""All engines and edges of a server: what happens when one starts, speaks or ends.

    start:  spawn engines (load) and edges (import) at once -> engine Ready -> a pair with each edge
    engine ends:  EngineLost to the edges at once; restart with back-off; Ready -> pairs
    edge ends:    Detach to the engines; restart with back-off on the same sockets; pairs
    region broke: the edge says so; Detach to the engine, then the pair again, with back-off
    edge hangs:   kill, so that it ends
    engine hangs: EngineLost to the edges; it goes on -> pairs; it does not -> kill, so that it ends

One's end touches its own pairs alone. On the supervisor's thread.

defines: Fleet
"""

from __future__ import annotations

import os
import secrets
import time
from typing import Any

from .. import _core
from ..control import channel
from ..control.child import spawn
from ..errors import EngineError, HardwareError, SublimateError
from .cores import share_machine
from .engine_loads import EngineLoads
from .kernel_memory import KernelMemory
from .launch import Launch
from .listen import Listeners, address_url
from .members import UNREADABLE, EdgeMember, EngineMember, Member, Role, edge_failure, outdated
from .pairs import Pair, Pairs
from .reporter import Reporter

SECRET_BYTES = 32
PREFIX_SECRET_MAX = (1 << 64) - 1


class Fleet:
    """See above. Whoever runs it asks `failure` after each call."""

    def __init__(self, launch: Launch, listeners: Listeners, reporter: Reporter) -> None:
        self.launch = launch
        """Of who is added; a member that is started again is what it was."""
        self.engines: list[EngineMember] = []
        self.edges: list[EdgeMember] = []
        self.failure: SublimateError | None = None
        """Why nothing can be served; before there was anything that could."""
        self.was_ready = False
        """Some edge has served with some engine: from now on who fails is tried again, whatever the
        others do, and streams may be open."""
        self.is_ending = False
        """Nothing is started any more."""
        self._told_unavailable = False
        self.is_replacing = False
        """Members come and go as they should."""
        if not listeners.workers:
            raise ValueError("there is a worker to start")
        self._listeners = listeners
        self._reporter = reporter
        self._pairs = Pairs()
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._prefix_secret = 1 + secrets.randbelow(PREFIX_SECRET_MAX)
        self._quotas = -1
        """Memory of the edges, empty at first."""
        self._kernel: KernelMemory | None = None
        """From when it runs."""
        self._engines_made = 0
        shares = share_machine(launch.settings.server.worker_cpus, self.workers)
        self._loads = EngineLoads(shares, self._prefix_secret)
        self.asked: list[tuple[EdgeMember, channel.FromEdge | None]] = []
        """What edges have said of models (residency.py takes it); None: that one has ended."""

    # ---- members -------------------------------------------------------------------------------
    @property
    def members(self) -> list[Member]:
        return [*self.engines, *self.edges]

    def start(self) -> None:
        """The first of all."""
        if self.members:
            raise RuntimeError("a fleet is started once")
        server = self.launch.settings.server
        self._kernel = KernelMemory(server, self._listeners.workers)
        self._quotas = os.memfd_create("sublimate-quotas", os.MFD_CLOEXEC)
        for worker in range(self.workers):
            self.add_engine(worker)
        for worker in range(self.workers):
            self.add_edge(worker)

    @property
    def workers(self) -> int:
        return len(self._listeners.workers)

    def add_engine(self, worker: int, role: Role = "serving", model: str = "") -> EngineMember:
        """model: its name; empty: the main one. Raises ValueError for one that is not served."""
        launch = self.launch.of(model or self.launch.model_name)
        if launch is None:
            raise ValueError(f"{model} is no model of this server")
        name = self._name("engine", worker) + (f" of {model}" if model else "")
        engine = EngineMember(self._engines_made, worker, name, launch)
        self._engines_made += 1
        engine.role = role
        self.engines.append(engine)
        self._start_engine(engine)
        return engine

    def add_edge(self, worker: int, role: Role = "serving") -> EdgeMember:
        taken = {edge.number for edge in self.edges}
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        if number >= _core.LIMITS["EDGES_MAX"]:
            raise RuntimeError("an engine serves no more edges")
        name = self._name("edge", worker)
        edge = EdgeMember(number, worker, name, self.launch)
        edge.role = role
        self.edges.append(edge)
        self._start_edge(edge)
        return edge

    def _name(self, kind: str, worker: int) -> str:
        return kind if self.workers == 1 else f"{kind} {worker}"

    def is_up(self, *more: Member) -> bool:
        """All that serve, and these, can be reached by all. Who cannot start is not waited for."""
        engines = [each for each in self.engines if each.role == "serving" or each in more]
        engines = [each for each in engines if each.failed is None]
        edges = [each for each in self.edges if each.role == "serving" or each in more]
        told = all(each.info is not None for each in (*engines, *edges))
        return told and self._pairs.are_up(engines, edges)

    # ---- one turn ------------------------------------------------------------------------------
    def serve(self) -> None:
        """Whatever members have said, and those that have ended."""
        for engine in list(self.engines):
            self._serve_engine(engine)
        for edge in list(self.edges):
            self._serve_edge(edge)

    def due_times(self) -> list[float]:
        """Seconds of the monotonic clock at which there is something to do."""
        times = [pair.due_seconds for pair in self._pairs]
        times += [member.look_at_seconds for member in self.members]
        for member in self.members:
            times += [member.child.restart_at_seconds, member.child.kill_at_seconds]
        return [at for at in times if at is not None]

    def act_on_time(self) -> None:
        """All that is due now."""
        now = time.monotonic()
        for member in self.members:
            member.child.kill_if_overdue(now)
        for engine in self.engines:
            if engine.child.is_due(now) and not self.is_ending:
                self._start_engine(engine)
        for edge in self.edges:
            if edge.child.is_due(now) and not self.is_ending:
                self._start_edge(edge)
        for pair in self._pairs:
            if pair.due_seconds is None or now < pair.due_seconds:
                continue
            if pair.engine.role == "leaving":
                pair.forget()
            else:
                self._make_pair(pair.engine, pair.edge)
        for engine in self.engines:
            if engine.look_at_seconds is not None and now >= engine.look_at_seconds:
                self._look_at(engine, now)
        for edge in self.edges:
            if edge.look_at_seconds is not None and now >= edge.look_at_seconds:
                self._look_at_edge(edge, now)

    def _start(self, member: Member) -> bool:
        """Start a child. One that cannot be started, as when no process or descriptor is left, is
        tried again later."""
        try:
            member.child.start(spawn)
        except OSError as error:
            why = f"it cannot be started: {error.strerror}"
            if member.role != "serving":
                self.remove(member)
            elif not self.was_ready and not self._is_unavailable:
                self.failure = self.failure or EngineError(f"The {member.name}: {why}.")
            else:
                self._reporter.lost(member.name, why, member.child.plan_restart())
            return False
        return True

    def _launch(self, member: Member) -> Launch:
        """What it is started with now. Where the model's file is another one by now, those that
        still have the one before are started again, too; or, where models come and go, edges are
        told to read it again."""
        before, member.launch = member.launch, member.launch.as_it_is()
        if self.launch.loads and isinstance(member, EngineMember):
            self._tell_changed(member.launch)
        elif member.launch.model != before.model:
            self._end_outdated()
        return member.launch

    def _end_outdated(self) -> None:
        for one in () if self.launch.loads else outdated(self.engines, self.edges):
            one.child.kill()

    def _tell_changed(self, launch: Launch) -> None:
        """Edges whose model of that name is another file; engines that have it are of no use."""
        name = launch.model_name
        self.launch = self.launch.with_stamp(launch.model)
        for engine in self.engines_of(name):
            if engine.launch.model != launch.model and engine.role != "leaving":
                self._lose_engine(engine)
                engine.child.kill()
        for edge in self.edges:
            if name in edge.launch.names and launch.model not in edge.launch.models:
                edge.launch = edge.launch.with_stamp(launch.model)
                edge.child.send(channel.ModelChanged(model=name))

    def remove(self, member: Member) -> None:
        """It has ended and does not come back."""
        if isinstance(member, EngineMember):
            self.engines.remove(member)
            self._pairs.remove_engine(member)
            if not self.engines_of(member.launch.model_name):
                self._loads.drop(member.launch.model_name)
        elif isinstance(member, EdgeMember):
            self.edges.remove(member)
            self._pairs.remove_edge(member)

    @property
    def _is_unavailable(self) -> bool:
        """No engine can start, or no edge can read the model, and the edges stay to say so."""
        engines, edges = self.engines, self.edges
        no_engine = bool(engines) and all(engine.failed is not None for engine in engines)
        return no_engine or (bool(edges) and all(edge.refuses for edge in edges))

    # ---- engines -------------------------------------------------------------------------------
    def _start_engine(self, engine: EngineMember) -> None:
        if self._start(engine):
            self._load(engine)

    def _load(self, engine: EngineMember) -> None:
        if self._loads.may_load(engine):
            self._launch(engine)
            self._loads.send(engine, self.launch)

    def _load_all(self, engines: list[EngineMember]) -> None:
        for each in engines:
            self._load(each)

    def _serve_engine(self, engine: EngineMember) -> None:
        for received in engine.child.receive():
            try:
                self._hear_engine(engine, received)
            except (OSError, ValueError, _core.CoreError) as error:
                # No descriptor or memory is left for what it sent, or it sent what cannot be: it
                # alone ends of it.
                why = f"What the {engine.name} sent cannot be taken: {error}."
                self._engine_failed(engine, channel.Failed(message=why))
                engine.child.kill()
        if engine.child.hung_up:
            self._lose_engine(engine)
        if (why := engine.child.ended()) is not None:
            self._load_all(self._loads.ended(engine))
            self._engine_ended(engine, why)

    def _hear_engine(
        self, engine: EngineMember, received: channel.Received[channel.FromEngine]
    ) -> None:
        match received.message:
            case channel.Progress(fraction=fraction):
                self._reporter.loading(fraction)
            case channel.Weights():
                self._load_all(self._loads.packed(engine, received.fds))
            case channel.Ready(info=info, measured=measured):
                self._load_all(self._loads.settled(engine))
                self._loads.found(engine, measured)
                engine.take_prefixes(received.fds)
                engine.info = info
                engine.was_loaded = True
                self._end_outdated()
                for edge in self.edges if engine.role != "leaving" else ():
                    self._make_pair(engine, edge)
            case channel.Failed() as failed:
                self._engine_failed(engine, failed)
            case channel.Attached(edge=pair):
                if (edge := self._pairs.complete(engine, pair)) is not None:
                    self._tell_health(engine, [edge])
                    if engine.role == "serving" or not self.launch.loads:
                        self._report_ready()

    def _engine_failed(self, engine: EngineMember, failed: channel.Failed) -> None:
        engine.said = failed.message
        if engine.was_loaded or self.was_ready or engine.role != "serving":
            return
        if self.launch.settings.server.stay or self._nothing_fits(failed):
            engine.failed = failed
            if self._is_unavailable:
                self._tell_who_watches(failed)
            self._tell_unavailable(engine, self.edges)
            self._report_ready()
        else:
            kind = HardwareError if failed.reason == "hardware_not_supported" else EngineError
            self.failure = kind(failed.message)

    def _tell_who_watches(self, failed: channel.Failed) -> None:
        """Once: a file that no edge can read is one that no engine can load, most times."""
        if not self._told_unavailable:
            self._told_unavailable = True
            url = address_url(self._listeners.http)
            self._reporter.unavailable(url, failed.reason, failed.message)

    def _nothing_fits(self, failed: channel.Failed) -> bool:
        """No setting is at fault, and no restart would help: who asks is told why, on and on."""
        no_choice = not self.launch.settings.engine.isa
        return failed.reason == "hardware_not_supported" and no_choice

    def _lose_engine(self, engine: EngineMember) -> None:
        """Tell the edges, once, that an engine they work with is gone."""
        if engine.info is not None:
            engine.info = None
            engine.drop_prefixes()
            self._pairs.end_engine(engine)
            self._unwatch(engine)
            for edge in self.edges:
                edge.child.send(channel.EngineLost(engine=engine.number))

    def _engine_ended(self, engine: EngineMember, why: str) -> None:
        self._lose_engine(engine)
        if engine.role != "serving":
            self.remove(engine)
            return
        if engine.failed is not None:
            self._tell_unavailable(engine, self.edges)
            return
        if self.failure is not None or self.is_ending:
            return
        if not engine.was_loaded and not engine.said:
            message = f"The {engine.name} ended before it was ready: {why}."
            self._engine_failed(engine, channel.Failed(message=message))
            if engine.failed is not None or self.failure is not None:
                return
        delay = engine.child.plan_restart()
        self._reporter.lost(engine.name, engine.said or why, delay)
        engine.said = ""

    def _tell_unavailable(self, engine: EngineMember, edges: list[EdgeMember]) -> None:
        if (failed := engine.failed) is None:
            return
        lost = channel.EngineLost(
            engine=engine.number, reason=failed.reason, message=failed.message
        )
        for edge in edges:
            edge.child.send(lost)

    # ---- models that come and go ---------------------------------------------------------------
    def engines_of(self, name: str) -> list[EngineMember]:
        return [engine for engine in self.engines if engine.launch.model_name == name]

    def is_reached(self, engines: list[EngineMember]) -> bool:
        """They are loaded, and every edge that serves can give them requests."""
        edges = [edge for edge in self.edges if edge.role == "serving" and edge.info is not None]
        told = all(engine.info is not None for engine in engines)
        return told and self._pairs.are_up(engines, edges)

    def retire(self, engine: EngineMember) -> None:
        """The edges give it nothing more, and say when it has nothing left to do."""
        engine.role = "leaving"
        engine.child.restart_at_seconds = None
        for edge in self.edges:
            if not edge.child.send(channel.EngineLeaving(engine=engine.number)):
                engine.idle_edges.add(edge.number)

    def is_idle(self, engine: EngineMember) -> bool:
        """Of one that leaves."""
        return engine.idle_edges >= {edge.number for edge in self.edges if edge.child.alive}

    def stats_of(self, engine: EngineMember) -> dict[str, int]:
        """Of its loop, with the requests of all edges; empty while it serves none."""
        regions = [pair.region for pair in self._pairs.of_engine(engine) if pair.region is not None]
        return engine.stats(regions[0]) if regions else {}

    # ---- edges ---------------------------------------------------------------------------------
    def _start_edge(self, edge: EdgeMember) -> None:
        if not self._start(edge):
            return
        launch = self._launch(edge)
        sockets = self._listeners.workers[edge.worker]
        start = launch.start(
            grpc_address=self._listeners.grpc_address,
            number=edge.number,
            worker=edge.worker,
            workers=self.workers,
            secret=self._secret,
            prefix_secret=self._prefix_secret,
            waits=edge.role == "coming" and not launch.loads,
            stays=launch.settings.server.stay and not self.was_ready,
            extras=("inbox", "quotas"),
        )
        try:
            inbox = edge.open_inbox()
        except OSError:
            edge.child.kill()  # no descriptor is left: it is tried again, as any that ends
            return
        with inbox:
            extras = inbox.fileno(), self._quotas
            edge.child.send(start, (*sockets.descriptors(), *extras))
        self._introduce(edge)
        if self._kernel is not None:
            self._kernel.tell(edge.child, edge.number, edge.worker)
        for engine in self.engines:
            self._tell_unavailable(engine, [edge])
            if engine.role == "leaving":
                engine.idle_edges.add(edge.number)  # it never had anything with it
            else:
                self._make_pair(engine, edge)

    def _introduce(self, edge: EdgeMember) -> None:
        """It and all others can hand things on to each other."""
        for other in self.edges:
            if other is edge or not other.child.alive:
                continue
            for one, told in ((edge, other), (other, edge)):
                if one.inbox is not None:
                    sibling = channel.Sibling(number=one.number, worker=one.worker)
                    told.child.send(sibling, (one.inbox.fileno(),))

    def _serve_edge(self, edge: EdgeMember) -> None:
        for received in edge.child.receive():
            match received.message:
                case channel.EdgeReady() as ready:
                    self._edge_is_up(edge, ready.info, ready.refuses)
                    if ready.answers_pings:
                        self._watch_edge(edge)
                case channel.Pong():
                    edge.watch.beat()
                case channel.RegionBroken(edge=number):
                    for pair in self._pairs.of_edge(edge):
                        if pair.number == number and pair.is_up:
                            self._plan_pair(pair, "the edge cannot use it")
                case channel.EngineIdle(engine=number):
                    for engine in self.engines:
                        if engine.number == number:
                            engine.idle_edges.add(edge.number)
                case channel.Drained() | channel.Failed() as last:
                    edge.take_last(last)
                case channel.ModelWanted() | channel.ModelTaken() | channel.ModelStop() as said:
                    self.asked.append((edge, said))
                case _:
                    pass
        if (why := edge.child.ended()) is not None:
            self._edge_ended(edge, why)

    def _edge_is_up(self, edge: EdgeMember, info: dict[str, Any], refuses: bool) -> None:
        edge.info, edge.refuses = None if refuses else info, refuses
        try:
            if self._kernel is not None:
                self._kernel.edge_is_up(edge.worker)
        except OSError:
            edge.child.kill()  # no connection would be steered to it
            return
        if refuses:
            self._tell_who_watches(channel.Failed(message=UNREADABLE))
        self._report_ready()

    def _edge_ended(self, edge: EdgeMember, why: str) -> None:
        edge.info = edge.look_at_seconds = None
        if edge.watch.state == "hung":
            why = (
                f"its event loop stood still for {edge.watch.hung_seconds:.0f} s and it was killed"
            )
        for engine in self.engines:
            engine.idle_edges.discard(edge.number)
        others = (one for one in self.edges if one is not edge and one.worker == edge.worker)
        if self._kernel is not None and all(one.info is None for one in others):
            self._kernel.edge_is_gone(edge.worker)
        edge.close_inbox()
        self.asked.append((edge, None))
        for pair in self._pairs.of_edge(edge):
            self._drop_pair(pair)
        for other in self.edges:
            if other is not edge:
                other.child.send(channel.SiblingGone(number=edge.number))
        if edge.role != "serving":
            self.remove(edge)
        elif self.is_ending:
            edge.is_drained = True
        elif not self.was_ready and not self._is_unavailable:
            self.failure = self.failure or edge_failure(edge, why)
        else:
            delay = edge.child.plan_restart()
            self._reporter.lost(edge.name, why, delay)

    # ---- pairs ---------------------------------------------------------------------------------
    def _make_pair(self, engine: EngineMember, edge: EdgeMember) -> None:
        try:
            pair = self._pairs.make(engine, edge)
        except _core.CoreError as error:
            if self.was_ready:
                for one in self._pairs.of_edge(edge):
                    if one.engine is engine:
                        self._plan_pair(one, str(error))
            else:
                self.failure = EngineError(str(error))
            return
        if pair is not None:
            self._watch(engine, pair)

    def _plan_pair(self, pair: Pair, why: str) -> None:
        self._drop_pair(pair)
        delay = self._pairs.plan(pair)
        self._reporter.lost("region", why, delay)

    def _drop_pair(self, pair: Pair) -> None:
        self._pairs.drop(pair)
        if pair.engine.watched is pair:
            self._unwatch(pair.engine)
            for other in self._pairs.of_engine(pair.engine):
                if other.region is not None:
                    self._watch(pair.engine, other)
                    break

    # ---- watching ------------------------------------------------------------------------------
    def _watch(self, engine: EngineMember, pair: Pair) -> None:
        """An engine shows the same heartbeat in each of its regions: one of them is watched."""
        if engine.info is None:
            return
        if engine.watched is not None and engine.watched is not pair:
            return
        now = time.monotonic()
        engine.watched = pair
        engine.is_stalled = False
        engine.watch.begin(now, engine.info)
        engine.look_at_seconds = now + engine.watch.look_seconds

    def _unwatch(self, engine: EngineMember) -> None:
        engine.watched = engine.look_at_seconds = None
        engine.is_stalled = False

    def _look_at(self, engine: EngineMember, now: float) -> None:
        """Two stages: an engine in which nothing moves is lost to the edges, and later killed. One
        that is too hot keeps what it has."""
        pair = engine.watched
        if pair is None or pair.region is None:
            engine.look_at_seconds = None
            return
        engine.look_at_seconds = now + engine.watch.look_seconds
        before = engine.watch.verdict
        verdict = engine.watch.look(now, engine.stats(pair.region), engine.child.process_id)
        # The loop's own bell: one that sleeps beats before the next look.
        os.eventfd_write(pair.region.fds[1], 1)
        if verdict != before:
            self._tell_health(engine, self.edges)
        if verdict.state == "hung":
            engine.look_at_seconds = None
            limit = engine.watch.hung_seconds
            engine.said = f"{verdict.sentence} for {limit:.0f} s and was killed"
            engine.child.kill()
        elif verdict.loses_requests and not engine.is_stalled:
            engine.is_stalled = True
            for edge in self.edges:
                edge.child.send(channel.EngineLost(engine=engine.number))
        elif verdict.state == "ok" and engine.is_stalled:
            for one in self._pairs.of_engine(engine):
                if one.region is not None:
                    self._plan_pair(one, "the engine stood still and goes on")

    def _watch_edge(self, edge: EdgeMember) -> None:
        edge.watch.begin(time.monotonic())
        self._tell_edge_health(edge, [edge])
        self._look_at_edge(edge, time.monotonic())

    def _look_at_edge(self, edge: EdgeMember, now: float) -> None:
        """Replace an edge whose event loop is blocked; the new one takes its sockets."""
        edge.look_at_seconds = now + edge.watch.look_seconds
        before = edge.watch.state
        state = edge.watch.look(now, edge.child.process_id)
        if state == "hung":
            edge.look_at_seconds = None
            edge.child.kill()
        elif not edge.watch.is_awaited:
            edge.watch.is_awaited = edge.child.send(channel.Ping(sent_seconds=now))
        if state != before:
            self._tell_edge_health(edge, self.edges)

    def _tell_edge_health(self, edge: EdgeMember, edges: list[EdgeMember]) -> None:
        watch = edge.watch
        health = channel.EdgeHealth(
            worker=edge.worker, state=watch.state, trips=watch.trips, restarts=watch.restarts
        )
        for one in edges:
            one.child.send(health)

    def _tell_health(self, engine: EngineMember, edges: list[EdgeMember]) -> None:
        verdict = engine.watch.verdict
        health = channel.Health(engine=engine.number, state=verdict.state, fault=verdict.fault)
        for edge in edges:
            if engine.launch.model in edge.launch.models:
                edge.child.send(health)

    def _report_ready(self) -> None:
        if any(pair.is_up and pair.edge.info is not None for pair in self._pairs):
            self.was_ready = True
        if self.is_replacing or not self.is_up():
            return
        engine = next((each.info for each in self.engines if each.info is not None), None)
        edge = self.edges[0].info
        if engine is not None and edge is not None:
            self._reporter.ready(address_url(self._listeners.http), engine, edge)

    # ---- end -----------------------------------------------------------------------------------
    def drain(self, seconds: float) -> None:
        """Take nothing new; streams have so long."""
        self.is_ending = True
        for member in self.members:
            member.child.restart_at_seconds = None
        for edge in self.edges:
            # Before the first ready nobody can have a stream open.
            if not self.was_ready or not edge.child.send(channel.Drain(seconds=seconds)):
                edge.is_drained = True

    @property
    def is_drained(self) -> bool:
        return self.is_ending and all(edge.is_drained for edge in self.edges)

    def end(self, at_once: bool, deadline_seconds: float) -> None:
        """Stop all, edges first."""
        members: list[Member] = [*self.edges, *self.engines]
        for member in members:
            member.child.ask_to_stop(at_once)
        for member in members:
            member.child.reap(deadline_seconds)
        self._loads.close()
        for engine in self.engines:
            engine.drop_prefixes()
        for edge in self.edges:
            edge.close_inbox()
        if self._quotas >= 0:
            os.close(self._quotas)
        if self._kernel is not None:
            self._kernel.close()
