"""Stories of requests as a trace for ui.perfetto.dev: Chrome's JSON format, one track per request,
one for the loop with its steps, counters for its rows and its pages.

defines: Recorder
"""

from __future__ import annotations

from typing import Any

import msgspec

NS_PER_US = 1000.0
LOOP, REQUESTS = 1, 2
"""Processes of the trace."""
SHOWN = frozenset(("taken", "waiting", "admitted", "adopted", "refused", "cancelled", "finished"))
"""Moments of a request; the rest has a duration."""


class Recorder:
    """Takes what a server tells and makes the trace of it."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._tracks: dict[str, int] = {}
        self._names = {(LOOP, 0): "resident loop", (REQUESTS, 0): "requests", (LOOP, 1): "steps"}
        """Of processes (track 0) and tracks."""
        self._steps: set[int] = set()
        self._step: dict[str, Any] = {}

    def story(self, story: dict[str, Any]) -> None:
        """A request that has ended: its stages, and its part of the loop if that is there."""
        track = self._track(story["id"])
        self._names[REQUESTS, track] = f"{story['request']['path']} {story['id']}"
        arguments = {**story["request"], **story["answer"], "admission": story["admission"]}
        begin_ns = story["began_ns"]
        self._slice(REQUESTS, track, story["id"], begin_ns, _end(story) - begin_ns, arguments)
        for stage in story["stages"]:
            took_ns = stage["end_ns"] - stage["begin_ns"]
            self._slice(REQUESTS, track, stage["name"], stage["begin_ns"], took_ns, {})
        for event in story.get("events", ()):
            self.told(story["id"], event)

    def told(self, request_id: str, event: dict[str, Any]) -> None:
        """A record of the loop; request_id "": of no request."""
        what, arguments = event["what"], {k: v for k, v in event.items() if k != "ns"}
        if what == "step":
            self._step = event
            self._add_step(event, arguments)
        elif what == "part" and self._step.get("step") == event["step"]:
            kind = "prefill" if event["prompt_rows"] else "decode"
            track, step = self._track(request_id), self._step
            self._slice(REQUESTS, track, kind, step["ns"], step["took_ns"], arguments)
        elif what in SHOWN:
            track = self._track(request_id)
            moment = {"ph": "i", "s": "t", "name": what, "ts": event["ns"] / NS_PER_US}
            self._add(REQUESTS, track, {**moment, "args": arguments})

    def encoded(self) -> bytes:
        """The file."""
        names = [
            {
                "ph": "M",
                "name": "thread_name" if track else "process_name",
                "pid": process,
                "tid": track,
                "args": {"name": name},
            }
            for (process, track), name in self._names.items()
        ]
        return msgspec.json.encode({"traceEvents": names + self._events, "displayTimeUnit": "ms"})

    def _add_step(self, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        if event["step"] in self._steps:
            return  # told by several requests that took part
        self._steps.add(event["step"])
        name = "prefill" if event["prompt_rows"] else "decode"
        self._slice(LOOP, 1, name, event["ns"], event["took_ns"], arguments)
        counters = {
            "rows": event["rows"],
            "KV pages in use": event["pages_owned"],
            "requests that wait": event["waiting"],
        }
        for counter, value in counters.items():
            moment = {"ph": "C", "name": counter, "ts": event["ns"] / NS_PER_US}
            self._add(LOOP, 1, {**moment, "args": {"value": value}})

    def _slice(
        self, process: int, track: int, name: str, ns: int, took_ns: int, arguments: dict[str, Any]
    ) -> None:
        if took_ns < 0:
            raise ValueError(f"{name} ends before it begins")
        times = {"ts": ns / NS_PER_US, "dur": took_ns / NS_PER_US}
        self._add(process, track, {"ph": "X", "name": name, **times, "args": arguments})

    def _track(self, request_id: str) -> int:
        """A number per request."""
        track = self._tracks.setdefault(request_id, len(self._tracks) + 1)
        self._names.setdefault((REQUESTS, track), request_id)
        return track

    def _add(self, process: int, track: int, event: dict[str, Any]) -> None:
        self._events.append({**event, "pid": process, "tid": track})


def _end(story: dict[str, Any]) -> int:
    return int(story["ended_ns"] or story["clock_ns"])
