"""What happened to a request: the last ones, one by its id, and all as they happen.

As /metrics they need a key where the server has keys, and with it they tell of that key's requests
alone; steps of the loop, which are counts, are told to every follower. No text of anybody.

defines: requests, request, follow
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from ..edge import limits
from ..edge.errors import ApiError
from ..edge.exchange import Exchange
from ..edge.observe.narrate import told_record, view
from ..edge.observe.stories import Story
from ..edge.observe.timing import NS_PER_MS
from ..edge.observe.trace import EngineTrace
from ..edge.relay import ElsewhereError, kept_elsewhere

if TYPE_CHECKING:
    from ..edge.app import EdgeServer

ENCODE = msgspec.json.Encoder().encode
PING = b": nothing new\n\n"


def requests(server: EdgeServer, exchange: Exchange) -> None:
    """The last ones, the newest first; those that run among them."""
    now_ns = time.monotonic_ns()
    rows = [_row(story, now_ns) for story in server.stories.latest(exchange.tenant_key)]
    exchange.send_json(200, ENCODE({"data": rows, "clock_ns": now_ns}))


def _row(story: Story, now_ns: int) -> dict[str, Any]:
    whole_ns = (story.ended_ns or now_ns) - story.began_ns
    return {
        "id": story.request_id,
        "state": "ended" if story.ended_ns else "running",
        "method": story.method,
        "path": story.path,
        "status": story.status,
        "end": story.end,
        "prompt_tokens": story.prompt_tokens,
        "cached_tokens": story.cached_tokens,
        "output_tokens": story.output_tokens,
        "began_ns": story.began_ns,
        "end_to_end_ms": round(whole_ns / NS_PER_MS, 3),
    }


def request(server: EdgeServer, exchange: Exchange) -> None:
    """One with everything that is known of it. Raises ApiError (404)."""
    identifier = exchange.request.segments()[-1]
    story = server.stories.find(identifier, exchange.tenant_key)
    if story is None:
        request_id = identifier.partition(".")[0]  # of a further answer: see ChoiceExchange
        if (worker := kept_elsewhere(server, exchange, request_id)) is not None:
            raise ElsewhereError(worker, _unknown)
        _unknown()
        return
    choices = server.stories.choices_of(story)
    exchange.send_json(200, ENCODE({**view(story, time.monotonic_ns()), "choices": choices}))


def _unknown() -> None:
    raise ApiError("unknown_request", maximum=limits.STORIES_MAX)


def follow(server: EdgeServer, exchange: Exchange) -> None:
    """Server-sent events, until the client goes: `server` once, then `request` (submitted), `loop`
    (what the loop has decided, some records at a time), `story` (a request has ended) and `missed`
    (records that came too fast to be read). Raises ApiError (429)."""
    if most := server.stories.followers_max(exchange.tenant_key):
        whose = " with this key" if most < limits.FOLLOWERS_MAX else ""
        raise ApiError("too_many_followers", maximum=most, whose=whose)
    engine = server.engine
    about = {
        "version": server.version,
        "model": server.models.main.name,
        "pages": engine.stats()["pages_total"] if engine is not None else 0,
        "clock_ns": time.monotonic_ns(),
    }
    exchange.start_stream([], exchange.framed(_event("server", about)))
    follower = _Stream(exchange)
    exchange.on_gone = lambda: server.stories.leave(follower)
    server.stories.follow(follower)


def _event(name: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), ENCODE(data))


class _Stream:
    """A Follower whose stream is an exchange's answer. A client that does not read is cut off by
    its connection, as with every stream."""

    def __init__(self, exchange: Exchange) -> None:
        self.owner = exchange.tenant_key
        self._exchange = exchange
        self._pending: list[bytes] = []
        self._told: list[dict[str, Any]] = []
        self._step: dict[str, Any] | None = None
        self._spoke_seconds = time.monotonic()

    def heard(self, story: Story | None, engine: EngineTrace, records: bytes) -> None:
        event = engine.told(records)
        if event["what"] == "step":
            self._step = event
        is_of_step = self._step is not None and self._step["step"] == event.get("step")
        event["text"] = told_record(event, self._step if is_of_step else None)
        event["id"] = story.request_id if story is not None else ""
        self._told.append(event)

    def submitted(self, story: Story) -> None:
        self._say("request", view(story, time.monotonic_ns(), with_events=False))

    def ended(self, story: Story) -> None:
        self._say("story", view(story, time.monotonic_ns(), with_events=False))

    def missed(self, records: int) -> None:
        self._say("missed", {"records": records})

    def _say(self, name: str, data: Any) -> None:
        """In the order in which it happened: after what was heard before."""
        if self._told:
            self._pending.append(_event("loop", self._told))
            self._told = []
        self._pending.append(_event(name, data))

    def flush(self) -> None:
        if self._told:
            self._pending.append(_event("loop", self._told))
            self._told = []
        now = time.monotonic()
        if not self._pending and now - self._spoke_seconds < limits.FOLLOW_PING_SECONDS:
            return
        self._spoke_seconds = now
        events = b"".join(self._pending) or PING
        self._pending = []
        self._exchange.write(self._exchange.framed(events))

    def close(self) -> None:
        self._exchange.finish()
