"""The Messages API in terms of chat completions, and back: for a server that speaks only the other.

Pure functions of decoded JSON. What has no counterpart that means the same is refused, so that no
request is answered as another one; hints that change no meaning (thinking, metadata, cache_control)
are left out.

defines: UnmappableError, chat_request, message_of_chat, tokens_of, ChatEvents
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import Any, cast

import msgspec

from ..model.turns import BLOCK_SEPARATOR

Json = dict[str, Any]
STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
CUT = "max_tokens"
SIGNATURE = "unsigned"
"""Signature of thinking that another server wrote: clients require some signature."""
CALL_ID_BYTES = 12
TOKENS_MAX = (1 << 31) - 1
"""What counts more than that does not count tokens."""
SAME = ("max_tokens", "temperature", "top_p")
HANDLED = frozenset("model messages system stream stop_sequences tools tool_choice".split())
IGNORED = frozenset("metadata thinking service_tier cache_control".split())
"""Hints that change no meaning."""


class UnmappableError(Exception):
    """The request has something that chat completions have no words for."""


# ---- the request ---------------------------------------------------------------------------------
def chat_request(body: Json, model: str) -> Json:
    """Of POST /v1/chat/completions. Raises UnmappableError."""
    given = {name for name, value in body.items() if value is not None}
    if body.get("top_k") == 0 and body["top_k"] is not False:
        given.discard("top_k")  # no limit, as where it is left out
    if unknown := given - HANDLED - IGNORED - set(SAME):
        raise UnmappableError(min(unknown))
    messages: list[Json] = []
    if system := body.get("system"):
        messages.append({"role": "system", "content": _text(system)})
    for message in _list(body.get("messages"), "messages"):
        messages += _messages(message)
    asked: Json = {"model": model, "messages": messages}
    asked |= {name: body[name] for name in SAME if body.get(name) is not None}
    if stops := body.get("stop_sequences"):
        asked["stop"] = stops
    if tools := body.get("tools"):
        asked["tools"] = [_tool(tool) for tool in _list(tools, "tools")]
    if choice := body.get("tool_choice"):
        asked |= _choice(choice)
    if body.get("stream"):
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return asked


def _list(value: Any, name: str) -> list[Json]:
    if not isinstance(value, list):
        raise UnmappableError(name)
    entries = cast(list[Any], value)
    if not all(isinstance(entry, dict) for entry in entries):
        raise UnmappableError(name)
    return cast(list[Json], entries)


def _text(content: Any) -> str:
    """Of a string or of text blocks. Raises UnmappableError."""
    if isinstance(content, str):
        return content
    blocks = _list(content, "content")
    if any(block.get("type") != "text" for block in blocks):
        raise UnmappableError("content")
    return BLOCK_SEPARATOR.join(_string(block.get("text", "")) for block in blocks)


def _messages(message: Json) -> list[Json]:
    """One of theirs may be several here: results of tools have messages of their own."""
    role, content = message.get("role"), message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    found: list[Json] = []
    parts: list[Json] = []
    calls: list[Json] = []
    for block in _list(content, "content"):
        match block.get("type"):
            case "text":
                parts.append({"type": "text", "text": _string(block.get("text", ""))})
            case "image":
                parts.append({"type": "image_url", "image_url": {"url": _image_url(block)}})
            case "tool_use":
                arguments = msgspec.json.encode(block.get("input", {})).decode()
                function = {"name": block.get("name"), "arguments": arguments}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case "tool_result":
                result = {"role": "tool", "tool_call_id": block.get("tool_use_id")}
                found.append({**result, "content": _result(block)})
            case "thinking" | "redacted_thinking":
                continue
            case kind:
                raise UnmappableError(str(kind))
    if parts or calls:
        only_text = all(part["type"] == "text" for part in parts)
        shown: Any = BLOCK_SEPARATOR.join(part["text"] for part in parts) if only_text else parts
        spoken: Json = {"role": role, "content": (shown or None) if calls else shown}
        found.append({**spoken, "tool_calls": calls} if calls else spoken)
    return found


def _result(block: Json) -> str:
    """What a tool has given. That it failed is told as templates tell it (tool_formats.py)."""
    text = _text(block.get("content") or "")
    return f"Error: {text}" if block.get("is_error") else text


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise UnmappableError("text")
    return value


def _image_url(block: Json) -> str:
    source = block.get("source")
    if not isinstance(source, dict):
        raise UnmappableError("source")
    source = cast(Json, source)
    if source.get("type") != "base64":
        raise UnmappableError("source.type")
    return f"data:{source.get('media_type')};base64,{source.get('data')}"


def _tool(tool: Json) -> Json:
    if tool.get("type", "custom") != "custom":
        raise UnmappableError("tools.type")
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _choice(choice: Any) -> Json:
    if not isinstance(choice, dict):
        raise UnmappableError("tool_choice")
    choice = cast(Json, choice)
    words: dict[Any, Any] = {"auto": "auto", "any": "required", "none": "none"}
    words["tool"] = {"type": "function", "function": {"name": choice.get("name")}}
    kind = choice.get("type")
    if not isinstance(kind, str) or kind not in words:
        raise UnmappableError("tool_choice.type")
    chosen: Json = {"tool_choice": words[kind]}
    if choice.get("disable_parallel_tool_use"):
        chosen["parallel_tool_calls"] = False
    return chosen


# ---- a whole answer ------------------------------------------------------------------------------
def message_of_chat(chat: Json, message_id: str, model: str) -> Json:
    """A message. Raises UnmappableError if it is no chat completion."""
    try:
        choice = chat["choices"][0]
        said = choice["message"]
        content: list[Json] = []
        if thought := said.get("reasoning_content") or said.get("reasoning"):
            signed = {"thinking": _string(thought), "signature": SIGNATURE}
            content.append({"type": "thinking", **signed})
        if said.get("content"):
            content.append({"type": "text", "text": _string(said["content"])})
        stop = STOP_REASONS.get(choice.get("finish_reason"), "end_turn")
        calls = [_tool_use(call, may_be_cut=stop == CUT) for call in said.get("tool_calls") or ()]
        content += filter(None, calls)
        if any(calls) and stop == "end_turn":
            stop = "tool_use"
    except (KeyError, IndexError, TypeError, AttributeError):
        raise UnmappableError("choices") from None
    return {**_message(message_id, model), "content": content, "stop_reason": stop,
            "usage": _usage(chat.get("usage"))}  # fmt: skip


def _tool_use(call: Json, *, may_be_cut: bool) -> Json | None:
    """None: its arguments were cut at the limit of tokens. Raises UnmappableError."""
    function = call["function"]
    try:
        given = msgspec.json.decode((function.get("arguments") or "{}").encode())
    except (msgspec.DecodeError, RecursionError):
        if may_be_cut:
            return None
        raise UnmappableError("arguments") from None
    if not isinstance(given, dict):
        raise UnmappableError("arguments")
    identifier = call.get("id") or _call_id()
    name = _string(function["name"])
    return {"type": "tool_use", "id": _string(identifier), "name": name, "input": given}


def _call_id() -> str:
    return f"toolu_{secrets.token_hex(CALL_ID_BYTES)}"


def _block(kind: str) -> Json:
    """The beginning of a block of text or thinking."""
    return {
        "text": {"type": "text", "text": ""},
        "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    }[kind]


def _message(message_id: str, model: str) -> Json:
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(None),
    }


def _usage(told: Any) -> Json:
    counted = _object(told)
    prompt = tokens_of(counted.get("prompt_tokens"))
    details = _object(counted.get("prompt_tokens_details"))
    cached = min(prompt, tokens_of(details.get("cached_tokens")))
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": tokens_of(counted.get("completion_tokens")),
    }


def _object(told: Any) -> Json:
    return cast(Json, told) if isinstance(told, dict) else {}


def tokens_of(told: Any) -> int:
    """A count that another server tells; 0 for what is none."""
    if not isinstance(told, int) or isinstance(told, bool):
        return 0
    return told if 0 <= told <= TOKENS_MAX else 0


# ---- a stream ------------------------------------------------------------------------------------
class _JsonEnd:
    """Finds the end of a JSON object that comes in pieces, in time linear in their length."""

    def __init__(self) -> None:
        self.is_started = self.is_reached = False
        self._depth = 0
        self._in_text = self._is_escaped = False

    def feed(self, piece: str) -> None:
        for character in piece:
            if self._is_escaped:
                self._is_escaped = False
            elif self._in_text:
                self._is_escaped = character == "\\"
                self._in_text = character != '"'
            elif character == '"':
                self._in_text = True
            elif character in "{[":
                self.is_started = True
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                self.is_reached = self._depth <= 0


class _Block:
    """One block of the message: what has come of it and was not sent on yet."""

    def __init__(self, kind: str, start: Json) -> None:
        self.kind = kind
        self.start = start
        """The content block of its first event."""
        self.pieces: list[str] = []
        self.has_begun = False
        self.end = _JsonEnd()
        self.is_complete = False

    @property
    def is_nameless(self) -> bool:
        """A call whose function has not been named yet."""
        return self.kind == "tool_use" and not self.start["name"]

    def add(self, piece: str) -> None:
        if self.kind == "tool_use":
            self.end.feed(piece)
            self.is_complete = self.end.is_reached
        self.pieces.append(piece)

    def delta(self) -> Json:
        """What has come since the last time."""
        text, self.pieces = "".join(self.pieces), []
        if self.kind == "tool_use":
            return {"type": "input_json_delta", "partial_json": text}
        return {"type": f"{self.kind}_delta", self.kind: text}


class ChatEvents:
    """The events of one streamed message, made of the chunks of a chat completion.

    A message has one block after the other, while chunks may mix the pieces of several calls: the
    first block that is not complete is sent on as it comes, and those behind it wait."""

    def __init__(self, message_id: str, model: str) -> None:
        self._message = _message(message_id, model)
        self._has_begun = False
        self._index = 0
        """Index of the first open block."""
        self._open: deque[_Block] = deque()
        self._calls: dict[Any, _Block] = {}
        self._stop_reason = "end_turn"
        self._usage: Any = None
        self.has_finished = False
        """A chunk has told why the answer ends."""

    def chunk(self, chunk: Json) -> list[Json]:
        """Events of one more chunk. Raises UnmappableError."""
        events: list[Json] = []
        if not self._has_begun:
            self._has_begun = True
            events.append({"type": "message_start", "message": self._message})
        self._usage = chunk.get("usage") or self._usage
        try:
            for choice in chunk["choices"][:1]:
                delta: Json = choice.get("delta") or {}
                if thought := delta.get("reasoning_content") or delta.get("reasoning"):
                    self._say("thinking", _string(thought))
                if text := delta.get("content"):
                    self._say("text", _string(text))
                calls: list[Json] = delta.get("tool_calls") or []
                for call in calls:
                    self._add_call(call)
                if reason := choice.get("finish_reason"):
                    self._stop_reason = STOP_REASONS.get(reason, "end_turn")
                    self.has_finished = True
        except (KeyError, TypeError, AttributeError):
            raise UnmappableError("choices") from None
        return [*events, *self._sent_on()]

    def _say(self, kind: str, text: str) -> None:
        last = self._open[-1] if self._open else None
        if last is None or last.kind != kind:
            last = self._append(_Block(kind, _block(kind)))
        last.add(text)

    def _append(self, block: _Block) -> _Block:
        if self._open and self._open[-1].kind != "tool_use":
            self._open[-1].is_complete = True
        self._open.append(block)
        return block

    def _add_call(self, call: Json) -> None:
        function: Json = call.get("function") or {}
        place = call.get("index", 0)
        block = self._calls.get(place)
        identifier = str(call.get("id") or "")
        if block is None or (identifier not in ("", block.start["id"]) and block.is_complete):
            named: Json = {"id": identifier or _call_id(), "name": ""}
            block = _Block("tool_use", {"type": "tool_use", **named, "input": {}})
            self._calls[place] = self._append(block)
        if name := function.get("name"):
            block.start["name"] = block.start["name"] or _string(name)
        if arguments := function.get("arguments"):
            block.add(_string(arguments))

    def _sent_on(self, *, is_end: bool = False) -> list[Json]:
        """Events of the first open block, and of those behind it once it is complete."""
        events: list[Json] = []
        while self._open:
            block = self._open[0]
            if block.is_nameless:
                break
            if not block.has_begun:
                block.has_begun = True
                events.append(self._event("start", content_block=block.start))
            if block.pieces:
                events.append(self._event("delta", delta=block.delta()))
            if not (block.is_complete or is_end):
                break
            if block.kind == "thinking":
                signed = {"type": "signature_delta", "signature": SIGNATURE}
                events.append(self._event("delta", delta=signed))
            events.append(self._event("stop"))
            self._open.popleft()
            self._index += 1
        return events

    def _event(self, what: str, **more: Any) -> Json:
        return {"type": f"content_block_{what}", "index": self._index, **more}

    def end(self) -> list[Json]:
        """The last events. Raises UnmappableError if there was no chunk, and for calls that are not
        whole though the answer was not cut at its limit of tokens."""
        if not self._has_begun:
            raise UnmappableError("choices")
        calls = self._calls.values()
        was_begun = [call for call in calls if call.end.is_started and not call.is_complete]
        if self._stop_reason != CUT and (was_begun or any(call.is_nameless for call in calls)):
            raise UnmappableError("arguments")
        self._open = deque(block for block in self._open if not block.is_nameless)
        events = self._sent_on(is_end=True)
        reason = self._stop_reason
        delta = {
            "stop_reason": "tool_use" if calls and reason == "end_turn" else reason,
            "stop_sequence": None,
        }
        events.append({"type": "message_delta", "delta": delta, "usage": _usage(self._usage)})
        return [*events, {"type": "message_stop"}]
