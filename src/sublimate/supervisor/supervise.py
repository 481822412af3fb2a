"""The supervisor: one thread that sleeps until a child speaks, a child ends, a signal comes, or a
restart is due. It holds no request and reads no client byte.

    start:  spawn engine (load) and edge (import) at once -> engine Ready -> pair
    pair:   fresh Region -> Attach to the engine -> Attached -> EngineUp to the edge -> forget it
    engine ends:  EngineLost to the edge at once; restart with back-off; Ready -> pair
    edge ends:    Detach to the engine; restart with back-off on the same listening socket; pair
    region broke: the edge says so; Detach to the engine, then pair, with back-off
    engine hangs: EngineLost to the edge; it goes on -> pair; it does not -> kill, so that it ends
    signal:       Drain to the edge -> Drained or the limit -> Stop; a second signal: kill
    SIGHUP:       Reload to the edge; from a terminal that is gone, as any other signal

defines: Supervisor
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import time
from types import FrameType
from typing import Any

from .. import _core
from ..config import Settings
from ..control import channel
from ..control.child import spawn
from ..errors import EngineError, ExitCode, HardwareError, ModelError, SublimateError
from ..guard.engine_watch import EngineWatch
from .backoff import Backoff
from .kernel_memory import KernelMemory
from .listen import address_url
from .reporter import Reporter
from .worker import Worker

ENGINE_MODULE = "sublimate.engine"
EDGE_MODULE = "sublimate.edge"
# Beyond the streams' own limit the edge has this long to say that it is drained.
DRAIN_GRACE_SECONDS = 1.0
STOP_SECONDS = 2.0
POLL_REFUSED_SECONDS = 0.05
MILLISECONDS = 1000


class Supervisor:
    """Runs one engine and one edge on a bound listening socket until a signal ends it.

    Raises EngineError (or HardwareError) from run() if the engine fails before it was ever ready,
    unless settings.server.stay, or if nothing of this program runs on this machine.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        model_path: str,
        model_name: str,
        listen: socket.socket,
        reporter: Reporter,
        listen_tls: socket.socket | None = None,
        grpc_address: str = "",
        listen_udp: socket.socket | None = None,
        edge_module: str = EDGE_MODULE,
        watch: EngineWatch | None = None,
    ) -> None:
        self._settings = settings
        self._model_path = model_path
        self._model_name = model_name
        self._listen = listen
        self._listen_tls = listen_tls
        self._grpc_address = grpc_address
        self._listen_udp = listen_udp
        self._reporter = reporter
        self._kernel: KernelMemory | None = None
        """From when it runs."""
        self._engine = Worker("engine", ENGINE_MODULE, channel.FromEngine)
        self._edge = Worker("edge", edge_module, channel.FromEdge)
        self._engine_info: dict[str, Any] | None = None
        self._engine_said = ""
        self._edge_info: dict[str, Any] | None = None
        self._engine_loaded = False
        """At least once: what fails later may be transient."""
        self._region: _core.Region | None = None
        """Of the pair, for its heartbeat."""
        self._pair = 0
        self._pair_is_up = False
        """EngineUp was sent and not taken back."""
        self._pair_backoff = Backoff()
        self._pair_at_seconds: float | None = None
        self._watch = watch or EngineWatch(
            settings.server.watchdog_seconds, settings.server.gpu_temperature_max
        )
        self._look_at_seconds: float | None = None
        self._stalled = False
        self._was_ready = False
        self._unavailable: channel.Failed | None = None
        self._drain_deadline_seconds: float | None = None
        self._interrupts = 0
        self._drained = False
        self._hangup_ends = False
        self._failure: SublimateError | None = None

    # ---- life ----------------------------------------------------------------------------------
    def run(self) -> ExitCode:
        """Serve until a signal; returns the exit code. Call from the main thread."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        old_wakeup = signal.set_wakeup_fd(wake_write)
        # A closed terminal is a reason to drain, unless someone chose that it is none (nohup).
        self._hangup_ends = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN and _has_terminal()
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        old_handlers = {number: signal.signal(number, _no_action) for number in signals}
        try:
            self._kernel = KernelMemory(self._settings.server)
            self._start_engine()
            self._start_edge()
            while not self._finished():
                self._turn(wake_read)
        finally:
            self._end_children()
            if self._kernel is not None:
                self._kernel.close()
            signal.set_wakeup_fd(old_wakeup)
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
            os.close(wake_read)
            os.close(wake_write)
        if self._failure is not None:
            raise self._failure
        self._reporter.stopped()
        return ExitCode.INTERRUPTED if self._interrupts > 1 else ExitCode.OK

    def _finished(self) -> bool:
        if self._failure is not None or self._interrupts > 1 or self._drained:
            return True
        deadline = self._drain_deadline_seconds
        return deadline is not None and time.monotonic() >= deadline

    def _end_children(self) -> None:
        at_once = self._interrupts > 1 or self._failure is not None
        workers = (self._edge, self._engine)
        for worker in workers:
            worker.ask_to_stop(at_once)
        deadline = time.monotonic() + STOP_SECONDS
        for worker in workers:
            worker.reap(deadline)

    # ---- one turn ------------------------------------------------------------------------------
    def _turn(self, wake_fd: int) -> None:
        poll = select.poll()
        poll.register(wake_fd, select.POLLIN)
        for worker in (self._engine, self._edge):
            for fd in worker.fds():
                poll.register(fd, select.POLLIN)
        try:
            poll.poll(self._timeout_milliseconds())
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # Somebody has lowered the limit of descriptors below what is polled.
            time.sleep(POLL_REFUSED_SECONDS)
        for number in _drain_pipe(wake_fd):
            self._on_signal(number)
        self._serve_engine()
        self._serve_edge()
        self._restart_due()

    def _timeout_milliseconds(self) -> float | None:
        times = [self._drain_deadline_seconds, self._pair_at_seconds, self._look_at_seconds]
        for worker in (self._engine, self._edge):
            times += [worker.restart_at_seconds, worker.kill_at_seconds]
        due = [at for at in times if at is not None]
        if not due:
            return None
        return max(0.0, min(due) - time.monotonic()) * MILLISECONDS

    def _restart_due(self) -> None:
        now = time.monotonic()
        for worker in (self._engine, self._edge):
            worker.kill_if_overdue(now)
        if self._engine.is_due(now):
            self._start_engine()
        if self._edge.is_due(now):
            self._start_edge()
        if self._pair_at_seconds is not None and now >= self._pair_at_seconds:
            self._make_pair()
        if self._look_at_seconds is not None and now >= self._look_at_seconds:
            self._look_at_engine(now)

    def _start(self, worker: Worker) -> bool:
        """Start a child, or plan to try again: a full process or descriptor table passes."""
        try:
            worker.start(spawn)
        except OSError as error:
            why = f"it cannot be started: {error.strerror}"
            if not self._was_ready and self._unavailable is None:
                self._failure = self._failure or EngineError(f"The {worker.name}: {why}.")
            else:
                self._reporter.lost(worker.name, why, worker.plan_restart())
            return False
        return True

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP and not (self._hangup_ends and not _has_terminal()):
            self._edge.send(channel.Reload())
            return
        if self._drain_deadline_seconds is not None:
            self._interrupts += 1
            return
        self._interrupts += 1
        limit = self._settings.edge.drain_seconds
        self._drain_deadline_seconds = time.monotonic() + limit + DRAIN_GRACE_SECONDS
        self._engine.restart_at_seconds = None
        self._reporter.draining(limit)
        # Before the first ready nobody can have a stream open.
        if not self._was_ready or not self._edge.send(channel.Drain(seconds=limit)):
            self._drained = True

    # ---- engine --------------------------------------------------------------------------------
    def _start_engine(self) -> None:
        if not self._start(self._engine):
            return
        load = channel.Load(settings=self._settings.engine, model_path=self._model_path)
        self._engine.send(load)

    def _serve_engine(self) -> None:
        for received in self._engine.receive():
            match received.message:
                case channel.Progress(fraction=fraction):
                    self._reporter.loading(fraction)
                case channel.Ready(info=info):
                    self._engine_info = info
                    self._engine_loaded = True
                    self._make_pair()
                case channel.Failed() as failed:
                    self._engine_failed(failed)
                case channel.Attached(edge=pair):
                    self._complete_pair(pair)
                case _:
                    pass
        if self._engine.hung_up:
            self._lose_engine()
        if (why := self._engine.ended()) is not None:
            self._engine_ended(why)

    def _engine_failed(self, failed: channel.Failed) -> None:
        if self._engine_loaded:
            self._engine_said = failed.message
        elif self._settings.server.stay or self._nothing_fits(failed):
            self._unavailable = failed
            url = address_url(self._listen)
            self._reporter.unavailable(url, failed.reason, failed.message)
            self._tell_unavailable()
        else:
            kind = HardwareError if failed.reason == "hardware_not_supported" else EngineError
            self._failure = kind(failed.message)

    def _nothing_fits(self, failed: channel.Failed) -> bool:
        """No setting is at fault, and no restart would help: who asks is told why, on and on."""
        return failed.reason == "hardware_not_supported" and not self._settings.engine.isa

    def _lose_engine(self) -> None:
        """Tell the edge, once, that the engine it works with is gone."""
        if self._engine_info is not None:
            self._engine_info = None
            self._forget_region()
            self._edge.send(channel.EngineLost())

    def _engine_ended(self, why: str) -> None:
        self._lose_engine()
        if self._unavailable is not None:
            self._tell_unavailable()
            return
        if self._failure is not None or self._drain_deadline_seconds is not None:
            return
        if not self._engine_loaded:
            message = f"The engine ended before it was ready: {why}."
            self._engine_failed(channel.Failed(message=message))
            return
        delay = self._engine.plan_restart()
        self._reporter.lost("engine", self._engine_said or why, delay)
        self._engine_said = ""

    def _tell_unavailable(self) -> None:
        if self._unavailable is not None:
            failed = self._unavailable
            self._edge.send(channel.EngineLost(reason=failed.reason, message=failed.message))

    # ---- edge ----------------------------------------------------------------------------------
    def _start_edge(self) -> None:
        if not self._start(self._edge):
            return
        start = channel.Start(
            settings=self._settings.edge,
            log=self._settings.log,
            model_path=self._model_path,
            model_name=self._model_name,
            grpc_address=self._grpc_address,
        )
        listening = (self._listen, self._listen_tls, self._listen_udp)
        self._edge.send(start, tuple(sock.fileno() for sock in listening if sock is not None))
        if self._kernel is not None:
            self._kernel.tell(self._edge, 0)
        self._tell_unavailable()
        self._make_pair()

    def _serve_edge(self) -> None:
        for received in self._edge.receive():
            match received.message:
                case channel.EdgeReady(info=info):
                    self._edge_info = info
                    self._report_ready()
                case channel.RegionBroken(edge=pair):
                    if pair == self._pair and self._pair_is_up:
                        self._plan_pair("the edge cannot use it")
                case channel.Drained():
                    self._drained = True
                case _:
                    pass
        if (why := self._edge.ended()) is not None:
            self._edge_ended(why)

    def _edge_ended(self, why: str) -> None:
        self._edge_info = None
        self._drop_pair()
        if self._drain_deadline_seconds is not None:
            self._drained = True
        elif not self._was_ready and self._unavailable is None:
            self._failure = self._failure or _edge_failure(why)
        else:
            delay = self._edge.plan_restart()
            self._reporter.lost("edge", why, delay)

    # ---- pair ----------------------------------------------------------------------------------
    def _make_pair(self) -> None:
        """A fresh region for the engine and the edge that live now."""
        self._drop_pair()
        if self._engine_info is None or not self._edge.alive:
            return
        self._pair += 1
        now = time.monotonic()
        self._pair_backoff.started(now)
        try:
            self._region = _core.Region.create(int(self._engine_info["vocabulary"]))
        except _core.CoreError as error:
            if self._was_ready:
                self._plan_pair(str(error))
            else:
                self._failure = EngineError(str(error))
            return
        if self._watch.enabled:
            self._watch.begin(now, self._engine_info)
            self._look_at_seconds = now + self._watch.look_seconds
        self._engine.send(channel.Attach(edge=self._pair), self._region.fds)

    def _complete_pair(self, pair: int) -> None:
        if pair != self._pair or self._region is None or self._engine_info is None:
            self._engine.send(channel.Detach(edge=pair))
            return
        self._edge.send(channel.EngineUp(info=self._engine_info, edge=pair), self._region.fds)
        self._tell_health()
        self._pair_is_up = True
        self._report_ready()

    def _plan_pair(self, why: str) -> None:
        """The pair's region is of no use: another one, not at once if that happens often."""
        self._drop_pair()
        now = time.monotonic()
        delay = self._pair_backoff.ended(now)
        self._pair_at_seconds = now + delay
        self._reporter.lost("region", why, delay)

    def _drop_pair(self) -> None:
        if self._region is not None:
            self._engine.send(channel.Detach(edge=self._pair))
        self._forget_region()

    def _forget_region(self) -> None:
        self._region = None
        self._pair_is_up = self._stalled = False
        self._pair_at_seconds = self._look_at_seconds = None

    def _look_at_engine(self, now: float) -> None:
        """Two stages: an engine in which nothing moves is lost to the edge, and later killed. One
        that is too hot keeps what it has."""
        if self._region is None:
            return
        self._look_at_seconds = now + self._watch.look_seconds
        before = self._watch.verdict
        verdict = self._watch.look(now, self._region.stats(), self._engine.process_id)
        # The loop's own bell: one that sleeps beats before the next look.
        os.eventfd_write(self._region.fds[1], 1)
        if verdict != before:
            self._tell_health()
        if verdict.state == "hung":
            self._look_at_seconds = None
            limit = self._watch.hung_seconds
            self._engine_said = f"{verdict.sentence} for {limit:.0f} s and was killed"
            self._engine.kill()
        elif verdict.loses_requests and not self._stalled:
            self._stalled = True
            self._edge.send(channel.EngineLost())
        elif verdict.state == "ok" and self._stalled:
            self._plan_pair("the engine stood still and goes on")

    def _tell_health(self) -> None:
        verdict = self._watch.verdict
        self._edge.send(channel.Health(state=verdict.state, fault=verdict.fault))

    def _report_ready(self) -> None:
        if self._edge_info is None or self._engine_info is None or not self._pair_is_up:
            return
        self._was_ready = True
        self._reporter.ready(address_url(self._listen), self._engine_info, self._edge_info)


def _edge_failure(why: str) -> SublimateError:
    """What an edge that could not start means; it has told the details itself."""
    if why == f"exit code {ExitCode.MODEL.value}":
        return ModelError("The edge cannot serve this model (see above).")
    return EngineError(f"The edge ended before it was ready: {why}.")


def _no_action(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor carries the signal; a handler must exist for it to be written."""


def _has_terminal() -> bool:
    """This process has a controlling terminal; one that was closed is none."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _drain_pipe(fd: int) -> bytes:
    try:
        return os.read(fd, select.PIPE_BUF)
    except BlockingIOError:
        return b""
