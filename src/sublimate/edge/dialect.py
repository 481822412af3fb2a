"""The answer to a request of a surface that frames for itself.

A Dialect is one small class per surface: it turns the pieces of the text path into frames, or
into the body of a whole answer. Both kinds of answer here give it the same pieces, so a stream that
is folded together says what the whole answer says.

defines: Score, scores_of, Dialect, DialectStream, DialectWhole, surface
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from .. import _core
from .blocks import Piece
from .errors import ApiError, ErrorShape
from .exchange import EVENT_STREAM, Exchange
from .generation import Prompt, Reader, Surface
from .stream import COMPLETE, Answer


class Score(msgspec.Struct, frozen=True):
    """Log-probability of a token of the answer."""

    token: int
    logprob: float
    best: list[tuple[int, float]]
    """(token, log-probability) of the likeliest, as many as were asked for."""


def scores_of(event: _core.StreamEvent) -> list[Score]:
    """Of the tokens of one poll, if they were asked for."""
    if not event.logprob_ids:
        return []
    return [
        Score(token, chosen, best)
        for token, (chosen, best) in zip(event.logprob_ids, event.logprobs, strict=True)
    ]


class Dialect(ErrorShape):
    """Frames of one answer, in the order of its events. `error_shape` is that of the surface; a
    stream that breaks ends with what the dialect makes of it."""

    content_type = EVENT_STREAM
    error_shape: ErrorShape = ErrorShape()

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.id_headers = self.error_shape.id_headers

    def begin(self) -> bytes:
        """The request was admitted: its prompt is being read."""
        raise NotImplementedError

    def progress(self, pieces: list[Piece], scores: list[Score]) -> bytes:
        """What one poll brought."""
        raise NotImplementedError

    def end(self, event: _core.StreamEvent) -> bytes:
        """Behind the last piece of an answer that is complete."""
        raise NotImplementedError

    def ping(self) -> bytes:
        """Says nothing, so that the client hears something."""
        return b": ping\n\n"

    def whole(
        self, pieces: list[Piece], scores: list[Score], event: _core.StreamEvent
    ) -> dict[str, Any]:
        """The body of a complete answer."""
        raise NotImplementedError

    def status(self, error: ApiError) -> int:
        return self.error_shape.status(error)

    def body(self, error: ApiError, request_id: str) -> bytes:
        return self.error_shape.body(error, request_id)

    def event(self, error: ApiError, request_id: str) -> bytes:
        return self.error_shape.event(error, request_id)


class DialectStream(Answer):
    """Frames as the pieces come."""

    format = "blocks"

    def __init__(self, *arguments: Any, dialect: Callable[[Answer], Dialect], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._dialect = dialect(self)
        self.exchange.error_shape = self._dialect

    def _progress(self, event: _core.StreamEvent, now_seconds: float) -> None:
        frames = self._frames(event)
        if frames:
            self._write(frames, now_seconds)

    def _frames(self, event: _core.StreamEvent) -> bytes:
        frames = self._dialect.begin() if event.admitted else b""
        if event.pieces or event.logprob_ids:
            frames += self._dialect.progress(event.pieces, scores_of(event))
        return frames

    def _write(self, frames: bytes, now_seconds: float) -> None:
        exchange = self.exchange
        if exchange.streaming:
            exchange.write(exchange.framed(frames))
        else:
            kind = self._dialect.content_type
            exchange.start_stream(self._headers(), exchange.framed(frames), kind)
        self._last_seconds = now_seconds

    def _finished(self, event: _core.StreamEvent) -> None:
        frames = self._frames(event)
        if event.stop_reason in COMPLETE:
            frames += self._dialect.end(event)
            if not self.exchange.streaming:
                self.exchange.start_stream(self._headers(), b"", self._dialect.content_type)
            self.exchange.finish(self.exchange.framed(frames))
            return
        if frames:
            self._write(frames, self._last_seconds)
        self.exchange.fail(self._refusal(event))

    def tick(self, now_seconds: float) -> None:
        if self._ended or now_seconds - self._last_seconds < self._ping_seconds:
            return
        self._write(self._dialect.ping(), now_seconds)
        self._metrics.pings += 1


class DialectWhole(Answer):
    """One JSON body at the end."""

    format = "text"

    def __init__(self, *arguments: Any, dialect: Callable[[Answer], Dialect], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._dialect = dialect(self)
        self._scores: list[Score] = []

    def _progress(self, event: _core.StreamEvent, now_seconds: float) -> None:
        if event.admitted:
            self._headers()  # those of the engine are fixed at admission
        self._scores += scores_of(event)

    def _finished(self, event: _core.StreamEvent) -> None:
        if event.stop_reason not in COMPLETE:
            self.exchange.fail(self._refusal(event))
            return
        self._scores += scores_of(event)
        pieces = list(event.pieces)
        if event.text:
            pieces = [("text", event.text, ""), ("stop", "", "")]
        body = msgspec.json.encode(self._dialect.whole(pieces, self._scores, event))
        self.exchange.send_json(200, body, self._headers())


def surface(
    read: Reader,
    dialect: Callable[[Answer], Dialect],
    identifier: str,
    split: Callable[[Exchange, Sequence[Prompt]], Sequence[Exchange]] | None = None,
) -> Surface:
    """Of an API whose answers have frames of their own."""
    return Surface(
        split=split,
        read=read,
        streamed=partial(DialectStream, dialect=dialect),
        collected=partial(DialectWhole, dialect=dialect),
        identifier=identifier,
    )
