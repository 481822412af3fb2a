"""The answer to one request, fed by the engine's events. Each surface shows it in its own way.

An answer owns the request from submission to its one terminal event. Its client may go first: then
the request is cancelled, and what still comes is dropped.

defines: Answer, COMPLETE
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from .. import _core
from ..kernel.connections import Use
from . import limits
from .engine import EngineLink, Ticket
from .errors import ApiError
from .exchange import Exchange, Header
from .generation import Prompt
from .observe.answer_metrics import AnswerMetrics
from .observe.timing import NS_PER_SECOND, Timing

LOG = logging.getLogger("sublimate.edge")
COMPLETE = frozenset(("end_turn", "max_tokens", "stop_sequence", "tool_use"))


class Answer:
    """What all kinds share: life, pacing, numbers."""

    format = ""

    def __init__(
        self,
        exchange: Exchange,
        metrics: AnswerMetrics,
        timing: Timing,
        prompt: Prompt,
        *,
        message_id: str,
        ping_seconds: float,
        headers: Callable[[], list[Header]],
        on_end: Callable[[Answer], None],
    ) -> None:
        self.exchange = exchange
        self.timing = timing
        self.message_id = message_id
        self.generation = prompt.generation
        self.prompt_tokens = len(prompt.ids)
        self.has_blocks = False
        """The text path takes the answer apart."""
        self.cached_tokens = 0
        self.bucket_rows = 0
        """Of the first step that it had rows in."""
        self.output_tokens = 0
        self.use: Use | None = None
        """What the kernel remembers of its connection."""
        self.admitted_seconds = 0.0
        self.first_token_seconds = 0.0
        self.stop_reason = ""
        self._metrics = metrics
        self._ping_seconds = ping_seconds
        self._headers = headers
        self._on_end = on_end
        self._engine: EngineLink | None = None
        self._ticket: Ticket | None = None
        self._last_seconds = exchange.started_seconds
        """When the client last heard something."""
        self._ended = False

    @property
    def is_broken(self) -> bool:
        """It has ended, and not as a whole answer."""
        return self._ended and self.stop_reason not in COMPLETE

    def begin(self, engine: EngineLink, ticket: Ticket) -> None:
        """The request was submitted."""
        self._engine, self._ticket = engine, ticket
        self.timing.submitted()
        self.exchange.on_gone = self._client_gone
        if self.exchange.gone:
            self._client_gone()

    # ---- events of the engine ------------------------------------------------------------------
    def on_event(self, event: _core.StreamEvent, now_seconds: float) -> None:
        if self._ended:
            return
        if event.admitted:
            self.cached_tokens = event.cached_tokens
            self.bucket_rows = event.bucket_rows
            self.admitted_seconds = now_seconds
            self.timing.admitted(event)
        is_first = self.output_tokens == 0 and event.output_tokens > 0
        if is_first:
            # A lent socket may have had it long before this event.
            self.first_token_seconds = event.first_sent_ns / NS_PER_SECOND or now_seconds
            waited = self.first_token_seconds - self.exchange.started_seconds
            self._metrics.first_token.observe(waited)
        self.output_tokens = event.output_tokens
        if event.finished:
            self._finished(event)
            self.timing.ended(event)
            self._end(event.stop_reason, now_seconds)
            return
        self._progress(event, now_seconds)
        if is_first:
            self.timing.first_sent(event)

    def _progress(self, event: _core.StreamEvent, now_seconds: float) -> None:
        raise NotImplementedError

    def _finished(self, event: _core.StreamEvent) -> None:
        raise NotImplementedError

    def _refusal(self, event: _core.StreamEvent) -> ApiError:
        """The error for an answer that did not complete."""
        if event.stop_reason == "refused" and event.refuse_reason == "queue_full":
            return ApiError("overloaded").after(limits.OVERLOAD_RETRY_SECONDS)
        if event.stop_reason == "refused":
            # The edge checks what the loop checks; a difference is a bug of ours.
            LOG.error("the engine refused a request: %s", event.refuse_reason)
            return ApiError("internal")
        if event.stop_reason == "cancelled":
            return ApiError("engine_lost").after(limits.ENGINE_LOST_RETRY_SECONDS)
        return ApiError("generation_failed")

    # ---- other ends ----------------------------------------------------------------------------
    def engine_lost(self) -> None:
        """The engine ended; the client is told at once."""
        self.abort(ApiError("engine_lost").after(limits.ENGINE_LOST_RETRY_SECONDS), "engine_lost")

    def broken(self, reason: str = "internal") -> None:
        """The answer cannot go on for a reason here, so the client gets an error."""
        self.abort(ApiError(reason), reason)

    def abort(self, error: ApiError, reason: str) -> None:
        """End with an error that the engine did not cause."""
        if self._ended:
            return
        self._cancel()
        try:
            self.exchange.fail(error)
        finally:
            self._end(reason, 0.0)

    def _client_gone(self) -> None:
        if self._ended:
            return
        self._cancel()
        self._end("slow_reader" if self.exchange.was_slow else "client_gone", 0.0)

    def progress(self) -> int:
        """Output tokens by now, also those that no event has told of."""
        if self._engine is None or self._ticket is None or self._ended:
            return self.output_tokens
        output_tokens, _ = self._engine.progress(self._ticket)
        return max(self.output_tokens, output_tokens)

    def _cancel(self) -> None:
        if self._engine is not None and self._ticket is not None:
            self.output_tokens = self.progress()
            self._engine.cancel(self._ticket)

    def _end(self, reason: str, now_seconds: float) -> None:
        self._ended = True
        self.stop_reason = reason
        try:
            if reason in COMPLETE:
                self._metrics.count_answer(self, now_seconds)
            self._metrics.count_end(reason)
        finally:
            self._on_end(self)

    def tick(self, now_seconds: float) -> None:
        """Once a second."""
