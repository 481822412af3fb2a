"""Answers of /v1/responses: typed, numbered events, or the response alone.

Both come from the same pass over the pieces: a whole answer is the response that the last event
of a stream would carry.

defines: ResponsesDialect
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from ... import _core
from ...edge.blocks import Piece
from ...edge.dialect import Dialect, Score
from ...edge.errors import ApiError
from ...edge.stream import Answer
from ...model.tool_formats import canonical_json
from ...model.turns import Block, Text, Thinking, ToolCall, Turn, is_continued, merged
from .chat_frames import call_id
from .errors import RESPONSES_ERRORS, described
from .responses import ResponsesGeneration
from .scores import shown_scores
from .tools import CallItem, call_members, fill_call, read_call

ENCODE = msgspec.json.Encoder().encode
Json = dict[str, Any]
DELTAS = {
    "text": "response.output_text",
    "thinking": "response.reasoning_text",
    "arguments": "response.function_call_arguments",
}
CUSTOM_INPUT = "response.custom_tool_call_input"


class ResponsesDialect(Dialect):
    error_shape = RESPONSES_ERRORS

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._generation = cast(ResponsesGeneration, answer.generation)
        self._created = int(time.time())
        self._number = 0
        self._output: list[Json] = []
        """Items; the last one may be open."""
        self._open = ""
        """Kind of the pieces of the open item; "" if none is."""
        self._texts: list[str] = []
        """Of the open item so far."""
        self._is_ended = False
        """The open item has ended; what follows shows whether it is complete."""
        self._is_cut = False
        """The core closed the arguments of the open item, which the model left open."""
        self._delta = b""
        """Head of a delta of the open item."""
        self._scores: list[Score] = []
        """Of tokens without a delta so far."""
        self._shown_scores: list[Json] = []
        """Of the open item so far."""

    # ---- a stream ------------------------------------------------------------------------------
    def begin(self) -> bytes:
        response = self._response("in_progress")
        created = self._event("response.created", response=response)
        return created + self._event("response.in_progress", response=response)

    def progress(self, pieces: Sequence[Piece], scores: list[Score]) -> bytes:
        self._scores += scores
        return b"".join(map(self._framed, pieces))

    def _framed(self, piece: Piece) -> bytes:
        kind, text, identifier = piece
        if kind == "stop":
            self._is_ended = True
            self._is_cut = identifier == "cut"
            return b""
        closed = self._close() if self._is_ended else b""
        return closed + self._shown(kind, text, identifier)

    def _shown(self, kind: str, text: str, identifier: str) -> bytes:
        if kind == "tool_start":
            return self._open_item("arguments", self._call_item(identifier, text))
        opened = b""
        if not self._open:
            item = self._message_item() if kind == "text" else self._reasoning_item()
            opened = self._open_item(kind, item)
        self._texts.append(text)
        if kind == "arguments" and self._output[-1]["type"] != "function_call":
            return opened  # clients wait for the complete call
        shown = b""
        if kind == "text":
            shown = b',"logprobs":' + ENCODE(self._take_scores())
        self._number += 1
        return (
            opened
            + self._delta
            + ENCODE(text)
            + shown
            + b',"sequence_number":%d}\n\n' % (self._number - 1)
        )

    def _open_item(self, kind: str, item: Json) -> bytes:
        self._output.append(item)
        self._open = kind
        place = self._place()
        frames = self._event("response.output_item.added", output_index=place, item=item)
        if kind != "arguments":
            frames += self._event(
                "response.content_part.added", **self._where(), part=self._part("")
            )
        name = f"{DELTAS[kind]}.delta"
        head = ENCODE({"type": name, **self._where()})[:-1]
        self._delta = b"event: " + name.encode() + b"\ndata: " + head + b',"delta":'
        return frames

    def _close(self, *, is_cut: bool = False) -> bytes:
        """The open item has ended. is_cut: at the limit of tokens."""
        kind, text = self._open, "".join(self._texts)
        if not kind:
            return b""
        item = self._output[-1]
        if kind == "arguments":
            is_cut = self._is_cut
            fill_call(item, text)
            frames = self._call_done(item)
        else:
            frames = self._text_done(item, kind, text)
        item["status"] = "incomplete" if is_cut else "completed"
        place = self._place()
        frames += self._event("response.output_item.done", output_index=place, item=item)
        self._open, self._texts, self._shown_scores = "", [], []
        self._is_ended = self._is_cut = False
        return frames

    def _text_done(self, item: Json, kind: str, text: str) -> bytes:
        where = self._where()
        done: Json = {"text": text}
        if kind == "text":
            self._take_scores()
            done["logprobs"] = self._shown_scores
        frames = self._event(f"{DELTAS[kind]}.done", **where, **done)
        item["content"] = [self._part(text)]
        return frames + self._event("response.content_part.done", **where, part=item["content"][0])

    def _call_done(self, item: Json) -> bytes:
        where = self._where()
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            return self._event(f"{DELTAS['arguments']}.done", **where, **done)
        if item["type"] == "custom_tool_call":
            given = item["input"]
            frames = self._event(f"{CUSTOM_INPUT}.delta", **where, delta=given)
            return frames + self._event(f"{CUSTOM_INPUT}.done", **where, input=given)
        return b""

    def end(self, event: _core.StreamEvent) -> bytes:
        frames = self._close(is_cut=event.stop_reason == "max_tokens")
        response = self._ended(event)
        return frames + self._event(f"response.{response['status']}", response=response)

    def event(self, error: ApiError, request_id: str) -> bytes:
        told = described(error, "input")
        shown = {name: told[name] for name in ("code", "message", "param")}
        response = self._response("failed")
        response["error"] = {"code": "server_error", "message": error.text}
        failed = self._event("error", **shown)
        return failed + self._event("response.failed", response=response)

    def _event(self, name: str, /, **members: Any) -> bytes:
        number = self._number
        self._number += 1
        data = ENCODE({"type": name, **members, "sequence_number": number})
        return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"

    # ---- whole ---------------------------------------------------------------------------------
    def whole(
        self, pieces: Sequence[Piece], scores: list[Score], event: _core.StreamEvent
    ) -> dict[str, Any]:
        self.progress(pieces, scores)
        self._close(is_cut=event.stop_reason == "max_tokens")
        return self._ended(event)

    def _ended(self, event: _core.StreamEvent) -> Json:
        """The complete response. It is kept, if that is wanted."""
        cut = event.stop_reason == "max_tokens"
        response = self._response("incomplete" if cut else "completed")
        if cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        answer = self.answer
        response["usage"] = {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": answer.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": event.output_tokens,
            "output_tokens_details": {"reasoning_tokens": event.thinking_tokens},
            "total_tokens": answer.prompt_tokens + event.output_tokens,
        }
        store = self._generation.store
        if store is not None:
            owner = answer.exchange.tenant_key
            turns, inputs = self._conversation(), self._generation.conversation
            if turns is not None:
                store.keep(owner, answer.message_id, ENCODE(response), turns, inputs)
        return response

    def _conversation(self) -> list[Turn] | None:
        """With this answer. None: a call has arguments that cannot be read, such as a number that
        no double holds, so that nobody can go on from it."""
        turns = list(self._generation.conversation)
        try:
            blocks = list(map(_block, self._output))
        except (msgspec.DecodeError, RecursionError):
            return None
        if is_continued(turns) and blocks and isinstance(blocks[0], Text):
            *before, last = turns.pop().blocks
            if isinstance(last, Text):
                blocks[0] = Text(last.text + blocks[0].text)
            else:
                before.append(last)
            blocks = [*before, *blocks]
        return merged([*turns, *(Turn("assistant", (block,)) for block in blocks)])

    def _response(self, status: str) -> Json:
        return {
            "id": self.answer.message_id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self._generation.model_name,
            "output": self._output,
            "usage": None,
            **self._generation.shown,
        }

    # ---- items ---------------------------------------------------------------------------------
    def _place(self) -> int:
        return len(self._output) - 1

    def _where(self) -> Json:
        where = {"item_id": self._output[-1]["id"], "output_index": self._place()}
        return where if self._open == "arguments" else {**where, "content_index": 0}

    def _item(self, prefix: str, kind: str, **members: Any) -> Json:
        own = self.answer.message_id.partition("_")[2]
        identifier = f"{prefix}_{own}{len(self._output):02d}"
        return {"id": identifier, "type": kind, "status": "in_progress", **members}

    def _message_item(self) -> Json:
        return self._item("msg", "message", role="assistant", content=[])

    def _reasoning_item(self) -> Json:
        return self._item("rs", "reasoning", summary=[], content=[])

    def _call_item(self, identifier: str, name: str) -> Json:
        prefix, kind, members = call_members(self._generation.offered.get(name), name)
        return self._item(prefix, kind, call_id=call_id(identifier), **members)

    def _part(self, text: str) -> Json:
        if self._open == "thinking":
            return {"type": "reasoning_text", "text": text}
        scores = self._shown_scores
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": scores}

    def _take_scores(self) -> list[Json]:
        if not self._scores:
            return []
        shown = shown_scores(self._generation.vocabulary, self._scores)
        self._shown_scores += shown
        self._scores = []
        return shown


def _block(item: Json) -> Block:
    """An item of the output as part of a turn."""
    match item["type"]:
        case "message":
            return Text(item["content"][0]["text"])
        case "reasoning":
            return Thinking(item["content"][0]["text"])
        case _:
            identifier, name, arguments = read_call("output", msgspec.convert(item, CallItem))
            return ToolCall(identifier, name, canonical_json(msgspec.json.decode(arguments)))
