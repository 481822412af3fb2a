"""Answers of /v1/chat/completions: chunks of a stream, or one object.

defines: ChatDialect, FINISH, usage, call_id
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from ... import _core
from ...edge.blocks import Piece, fold_pieces
from ...edge.dialect import Dialect, Score
from ...edge.stream import Answer
from .chat import ChatGeneration
from .errors import OPENAI_ERRORS
from .scores import shown_scores
from .tools import chat_call, free_text

ENCODE = msgspec.json.Encoder().encode
FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}
DONE = b"data: [DONE]\n\n"


def usage(answer: Answer, event: _core.StreamEvent) -> dict[str, Any]:
    """Of both kinds of completions."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": event.output_tokens,
        "total_tokens": answer.prompt_tokens + event.output_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": event.thinking_tokens},
    }


def call_id(identifier: str) -> str:
    """The text path's id of a call, as these APIs call one."""
    return "call_" + identifier.removeprefix("toolu_")


class ChatDialect(Dialect):
    error_shape = OPENAI_ERRORS

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._generation = cast(ChatGeneration, answer.generation)
        self._created = int(time.time())
        self._head = b"data: " + ENCODE(self._envelope("chat.completion.chunk"))[:-1]
        usage = b',"usage":null' if self._generation.include_usage else b""
        self._tail = b"}]" + usage + b"}\n\n"
        self._calls = -1
        self._custom = False
        """The open call is of a custom tool."""
        self._arguments: list[str] = []
        """The pieces of that call's arguments so far."""
        self._scores: list[Score] = []
        """Of tokens without a chunk so far."""

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.answer.message_id,
            "object": kind,
            "created": self._created,
            "model": self._generation.model_name,
            "system_fingerprint": None,
        }

    # ---- a stream ------------------------------------------------------------------------------
    def begin(self) -> bytes:
        return self._chunk(b'{"role":"assistant","content":""}')

    def progress(self, pieces: Sequence[Piece], scores: list[Score]) -> bytes:
        self._scores += scores
        return b"".join(map(self._framed, pieces))

    def _framed(self, piece: Piece) -> bytes:
        kind, text, identifier = piece
        match kind:
            case "text":
                return self._chunk(b'{"content":' + ENCODE(text) + b"}")
            case "thinking":
                return self._chunk(b'{"reasoning_content":' + ENCODE(text) + b"}")
            case "tool_start":
                self._calls += 1
                self._custom = self._is_custom(text)
                call = {"id": call_id(identifier), **self._call(text, "")}
                return self._chunk(ENCODE({"tool_calls": [{"index": self._calls, **call}]}))
            case "arguments" if self._custom:
                self._arguments.append(text)
                return b""
            case "stop" if self._custom:
                # The input is a string in the arguments, so it is known when they are whole.
                given, self._custom, self._arguments = "".join(self._arguments), False, []
                call = {"index": self._calls, "custom": {"input": free_text(given)}}
                return self._chunk(ENCODE({"tool_calls": [call]}))
            case "arguments":
                head = b'{"tool_calls":[{"index":%d,"function":{"arguments":' % self._calls
                return self._chunk(head + ENCODE(text) + b"}}]}")
            case _:
                return b""

    def _is_custom(self, name: str) -> bool:
        offered = self._generation.offered.get(name)
        return offered is not None and offered.type == "custom"

    def _call(self, name: str, arguments: str) -> dict[str, Any]:
        return chat_call(self._generation.offered.get(name), name, arguments)

    def _chunk(self, delta: bytes, finish: bytes = b"null") -> bytes:
        scores = b"null"
        if self._scores:
            scores = ENCODE({"content": shown_scores(self._generation.vocabulary, self._scores)})
            self._scores = []
        middle = b',"choices":[{"index":0,"delta":' + delta
        return (
            self._head
            + middle
            + b',"logprobs":%b,"finish_reason":%b' % (scores, finish)
            + (self._tail)
        )

    def end(self, event: _core.StreamEvent) -> bytes:
        frames = self._chunk(b"{}", ENCODE(FINISH[event.stop_reason]))
        if self._generation.include_usage:
            counted = ENCODE({"choices": [], "usage": usage(self.answer, event)})
            frames += self._head + b"," + counted[1:] + b"\n\n"
        return frames + DONE

    # ---- whole ---------------------------------------------------------------------------------
    def whole(
        self, pieces: Sequence[Piece], scores: list[Score], event: _core.StreamEvent
    ) -> dict[str, Any]:
        blocks = fold_pieces(pieces)
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        thinking = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
        calls = [
            {
                "id": call_id(block["id"]),
                **self._call(block["name"], bytes(block["input"]).decode()),
            }
            for block in blocks
            if block["type"] == "tool_use"
        ]
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if thinking:
            message["reasoning_content"] = thinking
        if calls:
            message["content"] = text or None
            message["tool_calls"] = calls
        shown = None
        if self._generation.sampling.logprobs >= 0:
            shown = {"content": shown_scores(self._generation.vocabulary, scores)}
        finish = FINISH[event.stop_reason]
        choice = {"index": 0, "message": message, "logprobs": shown, "finish_reason": finish}
        envelope = self._envelope("chat.completion")
        return {**envelope, "choices": [choice], "usage": usage(self.answer, event)}
