"""What `serve --json` tells, for programs: the events of screen.py, one JSON line each. It loads
nothing of what draws a screen.

defines: JsonReporter
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from ..config import Settings
from ..control.stamps import stamps

if TYPE_CHECKING:
    from ..guard.orphans import Orphan

WHOLE = 1.0


class JsonReporter:
    """One JSON line per event on standard output."""

    def __init__(self, settings: Settings, model_name: str, started_seconds: float) -> None:
        self.model_name = model_name
        self._started_seconds = started_seconds
        del settings

    def _say(self, event: str, **fields: Any) -> None:
        line = {"event": event, "time": time.time(), **fields}
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()

    def orphan(self, orphan: Orphan) -> None:
        """A run that was killed has left this."""
        self._say("orphan", **msgspec.structs.asdict(orphan))

    def fetching(self, what: str, done: int, total: int) -> None:
        if done == total:
            self._say("fetching", what=what, bytes=done)

    def loading(self, fraction: float) -> None:
        if fraction >= WHOLE:
            self._say("loaded")

    def ready(self, url: str, engine: dict[str, Any], edge: dict[str, Any]) -> None:
        seconds = time.monotonic() - self._started_seconds
        self._say(
            "ready",
            url=url,
            port=int(url.rpartition(":")[2]),
            model=self.model_name,
            seconds=round(seconds, 3),
            stamps=stamps(),
            engine=engine,
            edge=edge,
        )

    def lost(self, who: str, why: str, restart_seconds: float) -> None:
        self._say("lost", who=who, why=why, restart_seconds=restart_seconds)

    def unavailable(self, url: str, reason: str, message: str) -> None:
        self._say("unavailable", url=url, reason=reason, message=message)

    def reloaded(self, failure: str) -> None:
        self._say("reloaded", failure=failure)

    def noted(self, text: str) -> None:
        """Something that was passed over."""
        self._say("noted", text=text)

    def model(self, name: str, what: str) -> None:
        self._say("model", name=name, what=what)

    def draining(self, seconds: float) -> None:
        self._say("draining", seconds=seconds)

    def stopped(self) -> None:
        self._say("stopped")
