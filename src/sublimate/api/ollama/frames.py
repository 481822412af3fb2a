"""Answers of /api/chat and /api/generate: lines of JSON, or one object.

defines: OllamaDialect, ChatDialect, GenerateDialect, now_text, DONE_REASONS
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from ... import _core
from ...edge.blocks import Piece, fold_pieces
from ...edge.dialect import Dialect, Score
from ...edge.observe.timing import NS_PER_SECOND
from ...edge.stream import Answer
from ..openai.scores import shown_scores
from .errors import OLLAMA_ERRORS
from .request import OllamaGeneration

ENCODE = msgspec.json.Encoder().encode
DONE_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "stop",
    "max_tokens": "length",
}


def now_text() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


LINES = "application/x-ndjson"


class OllamaDialect(Dialect):
    """What both paths share; each says how it shows a part of an answer."""

    content_type = LINES
    error_shape = OLLAMA_ERRORS

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._generation = cast(OllamaGeneration, answer.generation)
        self._head = b'{"model":' + ENCODE(self._generation.requested_name) + b',"created_at":"'
        self._tail = b'",' + ENCODE(self._part(" "))[1:-1].replace(b'" "', b"%b")
        self._tail += b',"done":false}\n'
        """Of a line that only shows text, with a place for it."""
        self._call: dict[str, Any] = {}
        """The one that is being written, and its arguments so far."""
        self._arguments: list[str] = []
        self._calls = 0
        self._scores: list[Score] = []
        """Of tokens without a line so far."""

    def _part(self, text: str = "", **more: Any) -> dict[str, Any]:
        """Members that show text of the answer, and its `thinking` or `tool_calls`."""
        raise NotImplementedError

    # ---- a stream ------------------------------------------------------------------------------
    def begin(self) -> bytes:
        return b""

    def ping(self) -> bytes:
        return self._line(self._part())

    def progress(self, pieces: Sequence[Piece], scores: list[Score]) -> bytes:
        self._scores += scores
        return b"".join(map(self._framed, pieces))

    def _framed(self, piece: Piece) -> bytes:
        kind, text, identifier = piece
        match kind:
            case "text" if not self._scores:
                return self._head + now_text().encode() + self._tail % ENCODE(text)
            case "text":
                return self._line(self._part(text))
            case "thinking":
                return self._line(self._part(thinking=text))
            case "tool_start":
                self._call = {"id": identifier, "name": text}
            case "arguments":
                self._arguments.append(text)
            case _ if self._call:
                given = msgspec.Raw("".join(self._arguments).encode())
                call = self._shown_call(self._call["id"], self._call["name"], given)
                self._call, self._arguments = {}, []
                return self._line(self._part(tool_calls=[call]))
            case _:
                pass
        return b""

    def _shown_call(self, identifier: str, name: str, arguments: msgspec.Raw) -> dict[str, Any]:
        """Arguments are an object here, so a call is shown when it is whole."""
        function = {"index": self._calls, "name": name, "arguments": arguments}
        self._calls += 1
        return {"id": identifier, "function": function}

    def _line(self, members: dict[str, Any]) -> bytes:
        if self._scores:
            members["logprobs"] = shown_scores(self._generation.vocabulary, self._scores)
            self._scores = []
        inner = ENCODE(members)[1:-1]
        return self._head + now_text().encode() + b'",' + inner + b',"done":false}\n'

    def end(self, event: _core.StreamEvent) -> bytes:
        members = {**self._part(), **self._numbers(event)}
        if self._scores:
            members["logprobs"] = shown_scores(self._generation.vocabulary, self._scores)
        return self._head + now_text().encode() + b'",' + ENCODE(members)[1:] + b"\n"

    def _numbers(self, event: _core.StreamEvent) -> dict[str, Any]:
        elapsed = time.monotonic() - self.answer.exchange.started_seconds
        first = event.first_token_ns or event.last_record_ns
        return {
            "done": True,
            "done_reason": DONE_REASONS[event.stop_reason],
            "total_duration": int(elapsed * NS_PER_SECOND),
            "load_duration": 0,
            "prompt_eval_count": self.answer.prompt_tokens,
            "prompt_eval_duration": first - (event.admitted_ns or first),
            "prompt_cached_count": self.answer.cached_tokens,
            "eval_count": event.output_tokens,
            "eval_duration": event.last_record_ns - first,
        }

    # ---- whole ---------------------------------------------------------------------------------
    def whole(
        self, pieces: Sequence[Piece], scores: list[Score], event: _core.StreamEvent
    ) -> dict[str, Any]:
        blocks = fold_pieces(pieces)
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        thinking = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
        calls = [
            self._shown_call(block["id"], block["name"], block["input"])
            for block in blocks
            if block["type"] == "tool_use"
        ]
        more: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if calls:
            more["tool_calls"] = calls
        shown: dict[str, Any] = {"model": self._generation.requested_name, "created_at": now_text()}
        shown |= self._part(text, **more) | self._numbers(event)
        if self._generation.sampling.logprobs >= 0:
            shown["logprobs"] = shown_scores(self._generation.vocabulary, scores)
        return shown


class ChatDialect(OllamaDialect):
    def _part(self, text: str = "", **more: Any) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, **more}}


class GenerateDialect(OllamaDialect):
    def _part(self, text: str = "", **more: Any) -> dict[str, Any]:
        return {"response": text, **more}
