"""What an edge knows of the health of its engines, as the supervisor's watchdog tells it.

defines: Standing
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..families import new_counter, new_gauge
from .engine_watch import Verdict
from .watchdog import STATES


class Standing:
    """By an engine's number, which grows with each that replaces one; what people are told is by
    the worker that it belongs to. On the event loop's thread only."""

    def __init__(self) -> None:
        self._workers: dict[int, int] = {}
        """Of the engines that are known here."""
        self._verdicts: dict[int, Verdict] = {}
        self._trips: Counter[tuple[int, str]] = Counter()
        """By worker and fault."""
        self._restarts: Counter[tuple[int, str]] = Counter()

    def came(self, engine: int, worker: int) -> None:
        """It serves this edge. How it is, is told next."""
        self._workers[engine] = worker

    def lost(self, engine: int) -> None:
        """It serves no more. What was found of it holds until it comes back."""
        if self.of(engine).state == "ok":
            self.left(engine)

    def left(self, engine: int) -> None:
        """It is to get nothing more, as another one has its place."""
        self._workers.pop(engine, None)
        self._verdicts.pop(engine, None)

    def told(self, engine: int, verdict: Verdict) -> None:
        """It may be told the same twice, and of an engine that is not known here: that is told
        again when it comes."""
        if (verdict.state == "ok") != (verdict.fault == ""):
            raise ValueError("an engine is well, or something was found")
        worker = self._workers.get(engine)
        if worker is None:
            return
        before = self.of(engine)
        self._verdicts[engine] = verdict
        if verdict.state != "ok" and before.state == "ok":
            self._trips[worker, verdict.fault] += 1
        if verdict.state == "hung" and before.state != "hung":
            self._restarts[worker, verdict.fault] += 1

    def of(self, engine: int) -> Verdict:
        return self._verdicts.get(engine, Verdict())

    def is_tripped(self, engine: int = 0) -> bool:
        """It gets nothing new."""
        return self.of(engine).state != "ok"

    def shown(self) -> list[dict[str, Any]]:
        """Of the engines that are not well, for /readyz."""
        return [
            {"engine": worker, "state": verdict.state, "fault": verdict.fault}
            for worker, verdict in sorted(self._by_worker().items())
            if verdict.state != "ok"
        ]

    def _by_worker(self) -> dict[int, Verdict]:
        """Of two that are one worker's for a while, the one that is not well."""
        found: dict[int, Verdict] = {}
        for engine, worker in self._workers.items():
            if found.get(worker, Verdict()).state == "ok":
                found[worker] = self.of(engine)
        return found

    def families(self, labels: dict[str, str]) -> Iterator[Any]:
        """Metrics; `labels` of the edge, whose `engine` is each engine's own here. Of several edges
        the one of the engine's worker tells."""
        own = labels.get("worker")
        known = self._by_worker()
        workers = sorted(known) or [0] if own is None else [int(own)]
        text = "1 for the state that the watchdog sees the engine in."
        states = new_gauge("sublimate_watchdog_state", text, labels=[*labels, "state"])
        for worker in workers:
            mine = {**labels, "engine": str(worker)}
            seen = known.get(worker, Verdict()).state
            for state in STATES:
                states.add_metric([*mine.values(), state], float(seen == state))
        yield states
        for name, text, counts in (
            ("trips", "Engines taken out of service, by what was found.", self._trips),
            ("restarts", "Engines ended by the watchdog, by what was found.", self._restarts),
        ):
            family = new_counter(f"sublimate_watchdog_{name}", text, labels=[*labels, "fault"])
            for (worker, fault), count in sorted(counts.items()):
                if own in (None, str(worker)):
                    mine = {**labels, "engine": str(worker)}
                    family.add_metric([*mine.values(), fault], count)
            yield family
