"""Answers of the Messages API, as a stream or whole, with what only it tells: where a prompt left
the cached one, what was cleared of it, and that the context's end was met.

defines: Amendment, StreamedMessage, CollectedMessage, usage
"""

from __future__ import annotations

from typing import Any

import msgspec

from ... import _core
from ...edge.blocks import fold_pieces
from ...edge.exchange import EVENT_STREAM
from ...edge.stream import COMPLETE, Answer
from .read import MessagesGeneration

WINDOW_EXCEEDED = "model_context_window_exceeded"
NO_DIAGNOSTICS = b'"diagnostics":null'
MAX_TOKENS = b'"stop_reason":"max_tokens"'
END_USAGE = b'},"usage":'
"""Of message_delta; that of message_start is in the middle of an object."""
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
ENCODE = msgspec.json.Encoder().encode
SLACK_TOKENS = 2 * _core.LIMITS["PAGE_TOKENS"]
"""The last page of a prompt is seldom whole, and the next turn begins elsewhere in it."""


def diagnostics(
    generation: MessagesGeneration, prompt_tokens: int, cached_tokens: int
) -> dict[str, Any] | None:
    """As the API has it; None: not asked for, or all that was there before came from the cache."""
    if generation.previous_message_id is None:
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


def context_management(generation: MessagesGeneration) -> dict[str, Any] | None:
    """What was cleared; None: the request names no edits."""
    if generation.original_tokens is None:
        return None
    return {"applied_edits": generation.applied_edits}


def stop_reason(generation: MessagesGeneration, event: _core.StreamEvent) -> str:
    """The event's, unless it was the end of the context and not the client's own limit."""
    clamped = event.output_tokens < generation.sampling.max_tokens
    if event.stop_reason == "max_tokens" and clamped and generation.names_window:
        return WINDOW_EXCEEDED
    return event.stop_reason


class Amendment(msgspec.Struct, frozen=True):
    """What the Messages API tells of an event and the core does not know."""

    diagnostics: dict[str, Any] | None = None
    """Of message_start."""
    is_window_exceeded: bool = False
    """The stop reason of message_delta is not max_tokens but this."""
    context_management: dict[str, Any] | None = None
    """Of message_delta."""


NOTHING = Amendment()


class StreamedMessage(Answer):
    """Server-sent events. Frames come ready from the core, which writes them to the socket itself
    as long as it takes them at once; pings are made here."""

    format = "sse"
    content_type = EVENT_STREAM
    ping = PING

    def _progress(self, event: _core.StreamEvent, now_seconds: float) -> None:
        if data := self._shown(event):
            self._write(data, now_seconds)

    def _shown(self, event: _core.StreamEvent) -> bytes:
        """Frames of an event as they go out."""
        data = event.data
        amendment = self._amendment(event) if data else NOTHING
        if amendment == NOTHING:
            return data
        if not self.exchange.chunked:
            return self._amended(data, amendment)
        head, _, frames = data.partition(b"\r\n")
        if int(head, 16) + 2 != len(frames):
            raise ValueError("one chunk was expected")
        return self.exchange.framed(self._amended(frames[:-2], amendment))

    def _amendment(self, event: _core.StreamEvent) -> Amendment:
        generation = self.generation
        if not isinstance(generation, MessagesGeneration):
            return NOTHING
        found = None
        if event.admitted:
            found = diagnostics(generation, self.prompt_tokens, self.cached_tokens)
        if not event.finished:
            return Amendment(found)
        is_exceeded = stop_reason(generation, event) == WINDOW_EXCEEDED
        return Amendment(found, is_exceeded, context_management(generation))

    def _amended(self, frames: bytes, amendment: Amendment) -> bytes:
        """Text in frames is escaped, so it never reads like a field."""
        if amendment.diagnostics is not None:
            told = b'"diagnostics":' + msgspec.json.encode(amendment.diagnostics)
            frames = frames.replace(NO_DIAGNOSTICS, told, 1)
        if amendment.is_window_exceeded:
            told = b'"stop_reason":"' + WINDOW_EXCEEDED.encode() + b'"'
            frames = frames.replace(MAX_TOKENS, told, 1)
        if (edits := amendment.context_management) is not None:
            told = b'},"context_management":' + msgspec.json.encode(edits) + b',"usage":'
            frames = frames.replace(END_USAGE, told, 1)
        return frames

    def _write(self, data: bytes, now_seconds: float) -> None:
        """With the head of the answer before the first bytes: these come at admission, or as a
        ping in a long queue."""
        exchange = self.exchange
        if exchange.streaming:
            is_sent = exchange.write(data)
        else:
            is_sent = exchange.start_stream(self._headers(), data, self.content_type)
        self._last_seconds = now_seconds
        # From the first token on: that one is to be seen here.
        if is_sent and self.output_tokens and self._engine and self._ticket:
            self._engine.lend_socket(self._ticket, exchange.descriptor())

    def _finished(self, event: _core.StreamEvent) -> None:
        exchange = self.exchange
        if event.stop_reason in COMPLETE:
            if not exchange.streaming:
                exchange.start_stream(self._headers(), b"", self.content_type)
            exchange.finish(self._shown(event))
        else:
            if data := self._shown(event):
                self._write(data, self._last_seconds)
            exchange.fail(self._refusal(event))

    def tick(self, now_seconds: float) -> None:
        if self._ended or self._engine is None or self._ticket is None:
            return
        _, sent_seconds = self._engine.progress(self._ticket)
        if now_seconds - max(self._last_seconds, sent_seconds) < self._ping_seconds:
            return
        self._engine.unlend_socket(self._ticket)
        self._write(self.exchange.framed(self.ping), now_seconds)
        self._metrics.pings += 1


class CollectedMessage(Answer):
    """One JSON message at the end."""

    format = "text"

    def _progress(self, event: _core.StreamEvent, now_seconds: float) -> None:
        if event.admitted:
            self._headers()  # those of the engine are fixed at admission

    def _finished(self, event: _core.StreamEvent) -> None:
        if event.stop_reason not in COMPLETE:
            self.exchange.fail(self._refusal(event))
            return
        self.exchange.send_json(200, ENCODE(self._message(event)), self._headers())

    def _message(self, event: _core.StreamEvent) -> dict[str, Any]:
        content = fold_pieces(event.pieces)
        if event.text:
            content = [{"type": "text", "text": event.text}]
        message: dict[str, Any] = {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self.generation.model_name,
            "content": content,
            "stop_reason": event.stop_reason,
            "stop_sequence": event.stop_sequence,
            "stop_details": None,
            "container": None,
            "diagnostics": None,
            "usage": self._usage(event),
        }
        generation = self.generation
        if isinstance(generation, MessagesGeneration):
            message["stop_reason"] = stop_reason(generation, event)
            message["diagnostics"] = diagnostics(generation, self.prompt_tokens, self.cached_tokens)
            if (edits := context_management(generation)) is not None:
                message["context_management"] = edits
        return message

    def _usage(self, event: _core.StreamEvent) -> dict[str, Any]:
        counted = usage(self.prompt_tokens, self.cached_tokens, event.output_tokens)
        if self.has_blocks:
            counted["output_tokens_details"] = {"thinking_tokens": event.thinking_tokens}
        return counted


def usage(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> dict[str, Any]:
    """Integers that add up: input + cache_read + cache_creation = prompt."""
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": output_tokens,
        "service_tier": "standard",
    }
