"""Answers of the Messages API, with what only it tells: where a prompt left the cached one, and
that the context's end was met.

defines: StreamedMessage, CollectedMessage
"""

from __future__ import annotations

from typing import Any

import msgspec

from ... import _core
from ...edge.exchange import Exchange
from ...edge.stream import CollectedAnswer, StreamedAnswer
from .read import MessagesGeneration

WINDOW_EXCEEDED = "model_context_window_exceeded"
NO_DIAGNOSTICS = b'"diagnostics":null'
MAX_TOKENS = b'"stop_reason":"max_tokens"'
SLACK_TOKENS = 2 * _core.LIMITS["PAGE_TOKENS"]
"""The last page of a prompt is seldom whole, and the next turn begins elsewhere in it."""


def diagnostics(
    generation: MessagesGeneration, prompt_tokens: int, cached_tokens: int
) -> dict[str, Any] | None:
    """As the API has it; None: not asked for, or all that was there before came from the cache."""
    if not generation.wants_diagnostics or generation.previous_message_id is None:
        return None
    reason = generation.miss_reason
    if not reason and cached_tokens + SLACK_TOKENS < generation.previous_tokens:
        return {"cache_miss_reason": {"type": "unavailable"}}
    if not reason:
        return None
    why: dict[str, Any] = {"type": reason}
    if reason != "previous_message_not_found":
        why["cache_missed_input_tokens"] = prompt_tokens - cached_tokens
    return {"cache_miss_reason": why}


def stop_reason(generation: MessagesGeneration, event: _core.StreamEvent) -> str:
    """The event's, unless it was the end of the context and not the client's own limit."""
    clamped = event.output_tokens < generation.sampling.max_tokens
    if event.stop_reason == "max_tokens" and clamped and generation.names_window:
        return WINDOW_EXCEEDED
    return event.stop_reason


def amended(exchange: Exchange, data: bytes, old: bytes, new: bytes) -> bytes:
    """Frames as they go out, with one field of theirs another. Text in frames is escaped, so it
    never reads like a field."""
    if not exchange.chunked:
        return data.replace(old, new, 1)
    head, _, frames = data.partition(b"\r\n")
    if int(head, 16) + 2 != len(frames):
        raise ValueError("one chunk was expected")
    return exchange.framed(frames[:-2].replace(old, new, 1))


class StreamedMessage(StreamedAnswer):
    """As frames of the text path."""

    def _shown(self, event: _core.StreamEvent) -> bytes:
        data, generation = event.data, self.generation
        if not data or not isinstance(generation, MessagesGeneration):
            return data
        found = None
        if event.admitted:
            found = diagnostics(generation, self.prompt_tokens, self.cached_tokens)
        if found is not None:
            told = b'"diagnostics":' + msgspec.json.encode(found)
            data = amended(self.exchange, data, NO_DIAGNOSTICS, told)
        if event.finished and stop_reason(generation, event) == WINDOW_EXCEEDED:
            told = b'"stop_reason":"' + WINDOW_EXCEEDED.encode() + b'"'
            data = amended(self.exchange, data, MAX_TOKENS, told)
        return data


class CollectedMessage(CollectedAnswer):
    """As one JSON body."""

    def _message(self, event: _core.StreamEvent) -> dict[str, Any]:
        message = super()._message(event)
        generation = self.generation
        if isinstance(generation, MessagesGeneration):
            message["stop_reason"] = stop_reason(generation, event)
            message["diagnostics"] = diagnostics(generation, self.prompt_tokens, self.cached_tokens)
            if generation.original_tokens is not None:
                edits = {"applied_edits": generation.applied_edits}
                message["context_management"] = edits
        return message
