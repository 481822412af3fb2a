"""The breaker (guard/breaker.py) of one engine link: what it is told of requests, and what clients
are told by it.

defines: Reservations
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from .. import _core
from ..guard.breaker import Breaker, Prices, Shed
from .errors import ApiError

if TYPE_CHECKING:
    from .engine import Submission, Ticket

LOOK_SECONDS = 0.02
"""Between two looks at answers that are told as a whole: nothing tells of their first token."""


class Reservations:
    """On the event loop's thread only."""

    def __init__(self, client: _core.EdgeClient, info: dict[str, Any]) -> None:
        self._client = client
        self._breaker = Breaker(Prices.of(info))
        self._tickets: dict[int, Ticket] = {}
        self._looked_seconds = 0.0

    def check(self, request: Submission, target_seconds: float) -> None:
        """Before a request is handed over. Raises ApiError (529) if it would wait too long."""
        now = time.monotonic()
        if now - self._looked_seconds >= LOOK_SECONDS:
            self._look(now)
        try:
            self._breaker.admit(request.tenant, len(request.ids), target_seconds, now)
        except Shed as shed:
            raise ApiError("overloaded").after(shed.retry_seconds) from None

    def _look(self, now_seconds: float) -> None:
        self._looked_seconds = now_seconds
        for key, ticket in list(self._tickets.items()):
            output_tokens, _ = self._client.progress(ticket.slot, ticket.generation)
            if output_tokens:
                self._first_token(key, now_seconds)

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
        ):  # fmt: skip
            gauge = GaugeMetricFamily(f"sublimate_{name}", text, labels=list(labels))
            gauge.add_metric(list(labels.values()), value)
            yield gauge
        text = "Requests refused since the engine came up, as they would have waited too long."
        sheds = CounterMetricFamily("sublimate_breaker_sheds", text, labels=list(labels))
        sheds.add_metric(list(labels.values()), breaker.sheds)
        yield sheds
