"""The Messages API in terms of chat completions, and back: for a server that speaks only the other.

Pure functions of decoded JSON. What has no counterpart that means the same is refused, so that no
request is answered as another one; hints that change no meaning (thinking, metadata, cache_control)
are left out.

defines: UnmappableError, chat_request, message_of_chat, tokens_of, ChatEvents
"""

from __future__ import annotations

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
        if said.get("content"):
            content.append({"type": "text", "text": _string(said["content"])})
        for call in said.get("tool_calls") or ():
            content.append(_tool_use(call))
        stop = STOP_REASONS.get(choice.get("finish_reason"), "end_turn")
    except (KeyError, IndexError, TypeError, AttributeError, msgspec.DecodeError):
        raise UnmappableError("choices") from None
    return {**_message(message_id, model), "content": content, "stop_reason": stop,
            "usage": _usage(chat.get("usage"))}  # fmt: skip


def _tool_use(call: Json) -> Json:
    function = call["function"]
    given = msgspec.json.decode((function.get("arguments") or "{}").encode())
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}


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
class ChatEvents:
    """The events of one streamed message, made of the chunks of a chat completion."""

    def __init__(self, message_id: str, model: str) -> None:
        self._message = _message(message_id, model)
        self._has_begun = False
        self._index = -1
        self._open = ""
        """Kind of the open block; empty: none."""
        self._call = -1
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
                if text := delta.get("content"):
                    events += self._enter("text", {"type": "text", "text": ""})
                    events.append(self._delta({"type": "text_delta", "text": _string(text)}))
                calls: list[Json] = delta.get("tool_calls") or []
                for call in calls:
                    events += self._called(call)
                if reason := choice.get("finish_reason"):
                    self._stop_reason = STOP_REASONS.get(reason, "end_turn")
                    self.has_finished = True
        except (KeyError, TypeError, AttributeError):
            raise UnmappableError("choices") from None
        return events

    def _called(self, call: Json) -> list[Json]:
        events: list[Json] = []
        function: Json = call.get("function") or {}
        if call.get("index", 0) != self._call or self._open != "tool_use":
            self._call = call.get("index", 0)
            events += self._leave()
            named = {"id": call["id"], "name": function["name"]}
            events += self._enter("tool_use", {"type": "tool_use", **named, "input": {}})
        if arguments := function.get("arguments"):
            piece = {"type": "input_json_delta", "partial_json": _string(arguments)}
            events.append(self._delta(piece))
        return events

    def end(self) -> list[Json]:
        """The last events. Raises UnmappableError if there was no chunk."""
        if not self._has_begun:
            raise UnmappableError("choices")
        events = self._leave()
        delta = {"stop_reason": self._stop_reason, "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": _usage(self._usage)})
        return [*events, {"type": "message_stop"}]

    def _enter(self, kind: str, block: Json) -> list[Json]:
        if self._open == kind:
            return []
        events = self._leave()
        self._open = kind
        self._index += 1
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*events, start]

    def _leave(self) -> list[Json]:
        if not self._open:
            return []
        self._open = ""
        return [{"type": "content_block_stop", "index": self._index}]

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}
