"""The breaker (guard/breaker.py) of one engine link, and the room before it (guard/anteroom.py):
what they are told of requests, and what clients are told by them.

defines: Reservations
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any

from .. import _core
from ..families import new_counter, new_gauge
from ..guard.anteroom import Anteroom
from ..guard.breaker import Breaker, Prices, Shed
from .errors import ApiError

if TYPE_CHECKING:
    from .engine import Submission, Ticket

LOOK_SECONDS = 0.02
"""Between two looks at answers that are told as a whole: nothing tells of their first token. Also
between two looks at who may come in."""

TOKENS_PER_BYTE = 1 / 4
"""Of a request's body, before one was tokenised."""
TOKENS_PER_BYTE_PART = 1 / 32
"""Of each request, in what is known of it later."""
TOKENS_PER_BYTE_MAX = 1 / 2
"""What a body names by an id has tokens and no bytes."""
EXPECTED_PART = 1 / 2
"""Of the mean: bodies differ, and what has fewer tokens than expected would fit once it is read."""


class _Guest:
    """A request that waits for its turn."""

    def __init__(self, is_gone: Callable[[], bool]) -> None:
        self.is_gone = is_gone
        self.turn: asyncio.Future[None] | None = None
        """Of one that had to wait."""


class Reservations:
    """On the event loop's thread only."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, client: _core.EdgeClient, info: dict[str, Any]
    ) -> None:
        self._loop = loop
        self._client = client
        self._breaker = Breaker(Prices.of(info))
        self._anteroom: Anteroom[_Guest] = Anteroom(self._breaker)
        self._timer: asyncio.TimerHandle | None = None
        """While somebody is in there."""
        self._is_called = False
        """At once, without waiting for the next look."""
        self._tickets: dict[int, Ticket] = {}
        self._looked_seconds = 0.0
        self._tokens_per_byte = TOKENS_PER_BYTE

    def refuses_unread(self, tenant: Hashable, body_bytes: int, target_seconds: float) -> bool:
        """Whether a request would be refused that is as long as its body lets expect."""
        tokens = self.expected_tokens(body_bytes)
        now, count = self._now_looked(), self._client.slots_in_use
        return self._anteroom.refuses(tenant, tokens, target_seconds, now, count)

    def refusal_unread(self, body_bytes: int, target_seconds: float) -> ApiError:
        """(529.) Of such a request."""
        tokens = self.expected_tokens(body_bytes)
        return _refused(self._anteroom.shed(tokens, target_seconds, time.monotonic()))

    def refused_elsewhere(self) -> None:
        """A request that would have been refused here, too: it will come back."""
        self._anteroom.refused()

    def expected_tokens(self, body_bytes: int) -> int:
        """Of a prompt in a body of so many bytes."""
        return max(1, int(body_bytes * self._tokens_per_byte * EXPECTED_PART))

    def _now_looked(self) -> float:
        """The time, after the look that was due by then."""
        now = time.monotonic()
        if now - self._looked_seconds >= LOOK_SECONDS:
            self._look(now)
        return now

    def turn(
        self,
        tenant: Hashable,
        prompt_tokens: int,
        body_bytes: int,
        target_seconds: float,
        is_gone: Callable[[], bool],
    ) -> Awaitable[None] | None:
        """When a request may be handed over. None: now. Else it is over as well when its client has
        gone and when the link is; it raises ApiError (529) if more have come since than can be
        served. Raises ApiError if it would wait too long."""
        if body_bytes:
            ratio = min(TOKENS_PER_BYTE_MAX, prompt_tokens / body_bytes)
            self._tokens_per_byte += (ratio - self._tokens_per_byte) * TOKENS_PER_BYTE_PART
        guest, now = _Guest(is_gone), self._now_looked()
        count = self._client.slots_in_use
        try:
            if self._anteroom.ask(guest, tenant, prompt_tokens, target_seconds, now, count):
                return None
        except Shed as shed:
            raise _refused(shed) from None
        if self._timer is None:
            self._is_called = False
            self._timer = self._loop.call_later(LOOK_SECONDS, self._call)
        guest.turn = self._loop.create_future()
        return guest.turn

    def _call(self) -> None:
        """Those in whose turn it is."""
        now = time.monotonic()
        self._timer = None
        self._look(now)
        # One at a time: it is handed over before the next is weighed.
        guest, refused = self._anteroom.call(now, self._client.slots_in_use)
        if guest is not None:
            _end(guest.turn)
        for one, shed in refused:
            _end(one.turn, _refused(shed))
        if len(self._anteroom):
            self._is_called = guest is not None
            wait = 0.0 if self._is_called else LOOK_SECONDS
            self._timer = self._loop.call_later(wait, self._call)

    def close(self) -> None:
        """Nobody waits for this engine any more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for guest in self._anteroom.clear():
            _end(guest.turn)

    def _look(self, now_seconds: float) -> None:
        self._looked_seconds = now_seconds
        for key, ticket in list(self._tickets.items()):
            output_tokens, _ = self._client.progress(ticket.slot, ticket.generation)
            if output_tokens:
                self._first_token(key, now_seconds)
        for guest in self._anteroom.guests():
            if guest.is_gone():
                self._anteroom.leave(guest)
                _end(guest.turn)

    def taken(self, key: int, ticket: Ticket, request: Submission) -> None:
        """It was handed over."""
        self._tickets[key] = ticket
        self._breaker.taken(key, request.tenant, len(request.ids), time.monotonic())

    def follow(self, event: _core.StreamEvent, now_seconds: float) -> None:
        """Of any request."""
        if event.finished and event.output_tokens:
            self._breaker.ended(event.output_tokens)
        if event.key not in self._tickets:
            return
        if event.admitted:
            self._breaker.begun(event.key, event.cached_tokens)
        if event.output_tokens:
            self._first_token(event.key, now_seconds)
        elif event.finished:
            self.gone(event.key)

    def _first_token(self, key: int, now_seconds: float) -> None:
        del self._tickets[key]
        self._breaker.first_token(key, now_seconds)
        if self._timer is not None and not self._is_called:
            # Whoever is next goes at once, lest the engine runs out of what it can begin.
            self._is_called = True
            self._timer.cancel()
            self._timer = self._loop.call_later(0, self._call)

    def gone(self, key: int) -> None:
        """It waits no longer, and had no token. Idempotent."""
        if self._tickets.pop(key, None) is not None:
            self._breaker.gone(key, time.monotonic())

    def families(self, labels: dict[str, str]) -> Iterator[Any]:
        """Metrics."""
        breaker = self._breaker
        for name, text, value in (
            ("first_token_wait_seconds", "Estimate for a request that came now.",
             breaker.wait_seconds()),
            ("first_token_target_seconds", "The relative target of that.", breaker.target_seconds),
            ("prompt_tokens_reserved", "Of requests that wait for their first token.",
             breaker.reserved_tokens),
            ("requests_outside", "Requests that wait until they can be handed to the engine.",
             len(self._anteroom)),
        ):  # fmt: skip
            gauge = new_gauge(f"sublimate_{name}", text, labels=labels)
            gauge.add_metric(list(labels.values()), value)
            yield gauge
        text = "Requests refused since the engine came up, as they would have waited too long."
        sheds = new_counter("sublimate_breaker_sheds", text, labels=labels)
        sheds.add_metric(list(labels.values()), breaker.sheds)
        yield sheds


def _refused(shed: Shed) -> ApiError:
    return ApiError("overloaded").after(shed.retry_seconds)


def _end(turn: asyncio.Future[None] | None, error: ApiError | None = None) -> None:
    # Whoever waited may have been cancelled with its task.
    if turn is None or turn.done():
        return
    if error is None:
        turn.set_result(None)
    else:
        turn.set_exception(error)
