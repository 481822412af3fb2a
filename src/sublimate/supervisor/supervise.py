"""The supervisor: one thread that sleeps until a child speaks, a child ends, a signal comes, or
something is due. It holds no request and reads no client byte. What happens to engines and edges is
in fleet.py, which models are in memory in residency.py.

    signal:   Drain to the edges -> Drained or the limit -> Stop; a second signal: kill
    SIGHUP:   Reload to the edges; from a terminal that is gone, as any other signal
    SIGUSR2:  one worker after the other is replaced (rolling.py)

defines: Supervisor
"""

from __future__ import annotations

import errno
import select
import signal
import time
from collections.abc import Callable

from ..control import channel
from ..control.birth import end_unused
from ..control.door import Door
from ..errors import ExitCode, SublimateError
from .fleet import Fleet
from .launch import Launch
from .listen import Listeners
from .reporter import Reporter
from .residency import Residency
from .rolling import Rolling
from .wakeup import Wakeup

# Beyond the streams' own limit the edges have this long to say that they are drained.
DRAIN_GRACE_SECONDS = 1.0
STOP_SECONDS = 2.0
POLL_REFUSED_SECONDS = 0.05
MILLISECONDS = 1000


class Supervisor:
    """Runs engines and edges on bound listening sockets until a signal ends it.

    Raises EngineError (or HardwareError) from run() if an engine fails before anything was
    served, unless settings.server.stay, or if nothing of this program runs on this machine.
    """

    def __init__(
        self,
        launch: Launch,
        listeners: Listeners,
        reporter: Reporter,
        relaunch: Callable[[], Launch] | None = None,
    ) -> None:
        """relaunch: what `sublimate reload` starts members with; raises SublimateError."""
        self._fleet = Fleet(launch, listeners, reporter)
        self._reporter = reporter
        self._residency = Residency(self._fleet, reporter)
        self._door: Door | None = None
        """While it runs."""
        self._relaunch = relaunch
        self._rolling: Rolling | None = None
        self._drain_deadline_seconds: float | None = None
        self._interrupts = 0

    # ---- life ----------------------------------------------------------------------------------
    def run(self) -> ExitCode:
        """Serve until a signal; returns the exit code. Call from the main thread."""
        fleet = self._fleet
        with Wakeup() as wakeup:
            self._door = Door()
            try:
                fleet.start()
                end_unused()  # of what was begun ahead
                while not self._is_finished():
                    self._turn(wakeup)
            finally:
                at_once = self._interrupts > 1 or fleet.failure is not None
                fleet.end(at_once, time.monotonic() + STOP_SECONDS)
                self._door.close()
        if fleet.failure is not None:
            raise fleet.failure
        self._reporter.stopped()
        return ExitCode.INTERRUPTED if self._interrupts > 1 else ExitCode.OK

    def _is_finished(self) -> bool:
        fleet = self._fleet
        if fleet.failure is not None or self._interrupts > 1 or fleet.is_drained:
            return True
        deadline = self._drain_deadline_seconds
        return deadline is not None and time.monotonic() >= deadline

    # ---- one turn ------------------------------------------------------------------------------
    def _turn(self, wakeup: Wakeup) -> None:
        poll = select.poll()
        poll.register(wakeup.fd, select.POLLIN)
        for member in self._fleet.members:
            for fd in member.child.fds():
                poll.register(fd, select.POLLIN)
        for fd in self._door.fds() if self._door is not None else ():
            poll.register(fd, select.POLLIN)
        try:
            poll.poll(self._timeout_milliseconds())
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # Somebody has lowered the limit of descriptors below what is polled.
            time.sleep(POLL_REFUSED_SECONDS)
        for number in wakeup.numbers():
            self._on_signal(number, wakeup)
        self._fleet.serve()
        self._fleet.act_on_time()
        if self._door is not None:
            self._door.serve(self._residency.answer)
        self._residency.step()
        self._roll()

    def _timeout_milliseconds(self) -> float | None:
        due = self._fleet.due_times()
        if self._drain_deadline_seconds is not None:
            due.append(self._drain_deadline_seconds)
        visit_over = self._door.due_seconds if self._door is not None else None
        due += [at for at in (self._residency.due_seconds, visit_over) if at is not None]
        if self._rolling is not None and self._rolling.deadline_seconds is not None:
            due.append(self._rolling.deadline_seconds)
        if not due:
            return None
        return max(0.0, min(due) - time.monotonic()) * MILLISECONDS

    def _on_signal(self, number: int, wakeup: Wakeup) -> None:
        if number == signal.SIGUSR2:
            self._begin_reload()
            return
        if number == signal.SIGHUP and not wakeup.is_hangup():
            for edge in self._fleet.edges:
                edge.child.send(channel.Reload())
            return
        self._interrupts += 1
        if self._drain_deadline_seconds is not None:
            return
        limit = self._fleet.launch.settings.edge.drain_seconds
        self._drain_deadline_seconds = time.monotonic() + limit + DRAIN_GRACE_SECONDS
        self._rolling = None
        self._reporter.draining(limit)
        self._fleet.drain(limit)

    # ---- reload --------------------------------------------------------------------------------
    def _begin_reload(self) -> None:
        """A second one, while one runs, is no other wish. Before the first ready there is nothing
        to replace."""
        fleet = self._fleet
        if self._rolling is not None:
            return
        if fleet.is_ending or not fleet.was_ready:
            why = "is ending" if fleet.is_ending else "serves nothing yet"
            self._reporter.reloaded(f"The server {why}.")
            return
        try:
            launch = self._relaunch() if self._relaunch is not None else fleet.launch
        except (SublimateError, OSError) as error:
            self._reporter.reloaded(str(error))
            return
        self._rolling = Rolling(fleet, launch)
        self._rolling.step()

    def _roll(self) -> None:
        if self._rolling is None:
            return
        self._rolling.step()
        if self._rolling.is_over:
            self._reporter.reloaded(self._rolling.failure)
            self._rolling = None
