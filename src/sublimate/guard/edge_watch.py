"""Watches an edge's event loop: EdgeWatch in the supervisor judges the answers to its pings, and
EdgeHealth in an edge holds the findings for metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..families import new_counter, new_gauge
from .core_waits import ALL_THREADS, CoreWaits
from .watchdog import Signs, State, Watchdog

EDGE_HUNG_SECONDS_MAX = 15.0
"""No turn of an event loop may take long, whereas a step of a large model may."""
EDGE_HUNG_SECONDS_MIN = 5.0
"""Also with a smaller limit for engines: a turn that loads a module is not a fault."""
PREFIX = "sublimate_edge_"


class EdgeWatch:
    """Watches successive edge processes of one worker. Callers pass the time."""

    def __init__(self, engine_hung_seconds: float) -> None:
        """engine_hung_seconds: the limit for engines; 0: nothing is killed."""
        least, most = EDGE_HUNG_SECONDS_MIN, EDGE_HUNG_SECONDS_MAX
        limit = engine_hung_seconds and min(most, max(least, engine_hung_seconds))
        self._watchdog = Watchdog(limit)
        self._waits = CoreWaits(ALL_THREADS)
        self._beats = 0
        self.is_awaited = False
        """A ping is under way."""
        self.state: State = "ok"
        self.trips = self.restarts = 0

    @property
    def look_seconds(self) -> float:
        """Between two looks."""
        return self._watchdog.look_seconds

    @property
    def hung_seconds(self) -> float:
        return self._watchdog.hung_seconds

    def begin(self, now_seconds: float) -> None:
        """An edge serves from now on."""
        self._watchdog.begin(now_seconds, 0.0)
        self.is_awaited = False
        self.state = "ok"

    def beat(self) -> None:
        """The loop has answered a ping."""
        self._beats += 1
        self.is_awaited = False

    def look(self, now_seconds: float, process_id: int) -> State:
        """Judge what has come since the last look."""
        waited_seconds = self._waits.since_last(process_id)
        signs = Signs(heartbeat=self._beats)
        before = self.state
        self.state, _ = self._watchdog.look(now_seconds, signs, waited_seconds)
        if before == "ok" != self.state:
            self.trips += 1
        if before != "hung" == self.state:
            self.restarts += 1
        return self.state


class EdgeHealth:
    """What an edge knows of its own loop and of those before it in its place. On its loop."""

    def __init__(self) -> None:
        self.delay_seconds = 0.0
        """How long the last ping took from the supervisor to this loop."""
        self.trips = self.restarts = 0

    def pinged(self, sent_seconds: float, now_seconds: float) -> None:
        """Both by the monotonic clock, which is one for all processes."""
        self.delay_seconds = max(0.0, now_seconds - sent_seconds)

    def families(self, labels: dict[str, str]) -> Iterator[Any]:
        """Metrics."""
        values = list(labels.values())
        delay = new_gauge(
            PREFIX + "heartbeat_delay_seconds",
            "How long the supervisor's last ping waited for the event loop.",
            labels=labels,
        )
        delay.add_metric(values, self.delay_seconds)
        yield delay
        for name, text, count in (
            ("trips", "Times that the edge's event loop was blocked.", self.trips),
            ("restarts", "Edges replaced because their event loop was blocked.", self.restarts),
        ):
            family = new_counter(f"{PREFIX}watchdog_{name}", text, labels=labels)
            family.add_metric(values, count)
            yield family
