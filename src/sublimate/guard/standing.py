"""What an edge knows of the health of its engines, as the supervisor's watchdog tells it.

defines: Standing
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from .engine_watch import Verdict
from .watchdog import STATES


class Standing:
    """By an engine's number. On the event loop's thread only."""

    def __init__(self) -> None:
        self._verdicts: dict[int, Verdict] = {}
        self._trips: Counter[tuple[int, str]] = Counter()
        self._restarts: Counter[tuple[int, str]] = Counter()

    def told(self, engine: int, verdict: Verdict) -> None:
        """It may be told the same twice."""
        if (verdict.state == "ok") != (verdict.fault == ""):
            raise ValueError("an engine is well, or something was found")
        before = self.of(engine)
        self._verdicts[engine] = verdict
        if verdict.state != "ok" and before.state == "ok":
            self._trips[engine, verdict.fault] += 1
        if verdict.state == "hung" and before.state != "hung":
            self._restarts[engine, verdict.fault] += 1

    def of(self, engine: int) -> Verdict:
        return self._verdicts.get(engine, Verdict())

    def is_tripped(self, engine: int = 0) -> bool:
        """It gets nothing new."""
        return self.of(engine).state != "ok"

    def shown(self) -> list[dict[str, Any]]:
        """Of the engines that are not well, for /readyz."""
        return [
            {"engine": engine, "state": verdict.state, "fault": verdict.fault}
            for engine, verdict in sorted(self._verdicts.items())
            if verdict.state != "ok"
        ]

    def families(self, labels: dict[str, str]) -> Iterator[Any]:
        """Metrics; `labels` of the server, whose `engine` is each engine's own here."""
        text = "1 for the state that the watchdog sees the engine in."
        states = GaugeMetricFamily("sublimate_watchdog_state", text, labels=[*labels, "state"])
        for engine in sorted(self._verdicts) or [0]:
            mine = {**labels, "engine": str(engine)}
            for state in STATES:
                states.add_metric([*mine.values(), state], float(self.of(engine).state == state))
        yield states
        for name, text, counts in (
            ("trips", "Engines taken out of service, by what was found.", self._trips),
            ("restarts", "Engines ended by the watchdog, by what was found.", self._restarts),
        ):
            family = CounterMetricFamily(
                f"sublimate_watchdog_{name}", text, labels=[*labels, "fault"]
            )
            for (engine, fault), count in sorted(counts.items()):
                mine = {**labels, "engine": str(engine)}
                family.add_metric([*mine.values(), fault], count)
            yield family
