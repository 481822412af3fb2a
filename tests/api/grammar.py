"""The stream contract of the Messages API as a checker: the union of what real clients insist on.

    stream = message_start *ping *( block *ping ) message_delta message_stop   ; or error, then end
    block  = content_block_start 1*( content_block_delta / ping ) content_block_stop
    text: text_delta. tool_use: input_json_delta, together one object. thinking: thinking_delta
    (none if it is omitted), then one signature_delta.

defines: Event, parse_events, Folded, check_stream
"""

import itertools
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

TYPES = {
    *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
    *("message_delta", "message_stop", "ping", "error"),
}
COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
EMPTY_BLOCKS = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "tool_use": {"type": "tool_use", "input": {}},
}
DELTAS = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}
"""Per block: type of a delta -> its key."""
STOP_REASONS = (
    "model_context_window_exceeded",
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
)


@dataclass
class Event:
    type: str
    data: dict[str, Any]


def parse_events(body: bytes) -> list[Event]:
    """Frames of a whole stream. Fails on anything that is no exact frame."""
    assert body.endswith(b"\n\n"), body[-80:]
    events = []
    for frame in body[:-2].split(b"\n\n"):
        lines = frame.split(b"\n")
        assert len(lines) == 2, frame
        assert lines[0].startswith(b"event: ") and lines[1].startswith(b"data: "), frame
        data = msgspec.json.decode(lines[1][len(b"data: ") :])
        events.append(Event(lines[0][len(b"event: ") :].decode(), data))
    return events


@dataclass
class Folded:
    """A stream folded into the message it stands for."""

    message: dict[str, Any]
    texts: list[str] = field(default_factory=list)
    pings: int = 0
    error: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


def check_stream(body: bytes, *, may_fail: bool = False) -> Folded:
    """Checks a whole stream and folds it."""
    events = parse_events(body)
    assert events
    for event in events:
        assert event.type in TYPES, event.type
        assert event.data["type"] == event.type
    pings = sum(event.type == "ping" for event in events)
    rest = [event for event in events if event.type != "ping"]
    if rest[-1].type == "error":
        assert may_fail, rest[-1].data
        return _failed(rest, pings)
    start, *blocks, delta, stop = rest
    assert start.type == "message_start" and delta.type == "message_delta"
    assert stop.type == "message_stop" and stop.data == {"type": "message_stop"}
    assert events[-1].type == "message_stop", "nothing follows message_stop"
    folded = Folded(_started(start.data), pings=pings)
    _check_blocks(blocks, folded)
    _check_end(delta.data, folded)
    return folded


def _failed(rest: list[Event], pings: int) -> Folded:
    error = rest[-1].data
    assert error["error"]["type"].endswith("_error") and error["error"]["message"]
    assert not any(event.type in ("message_stop", "error") for event in rest[:-1])
    message = _started(rest[0].data) if rest[0].type == "message_start" else {}
    return Folded(message, pings=pings, error=error)


def _started(data: dict[str, Any]) -> dict[str, Any]:
    message = data["message"]
    assert message["id"].startswith("msg_") and message["role"] == "assistant"
    assert message["type"] == "message" and message["content"] == []
    assert message["stop_reason"] is None and message["stop_sequence"] is None
    for name in COUNTS:
        assert type(message["usage"][name]) is int, name
    assert message["usage"]["output_tokens"] == 0
    return message


def _check_blocks(events: list[Event], folded: Folded) -> None:
    content: list[dict[str, Any]] = []
    folded.message["content"] = content
    is_open = False
    for event in events:
        data = event.data
        if event.type == "content_block_start":
            assert not is_open and data["index"] == len(content), "indices have no gaps"
            content.append(_begun(data["content_block"]))
            is_open = True
            continue
        assert is_open and data["index"] == len(content) - 1
        if event.type == "content_block_delta":
            _add(content[-1], data["delta"])
        else:
            assert event.type == "content_block_stop"
            _end(content[-1])
            is_open = False
    assert not is_open, "every block is closed"
    calls = [block["id"] for block in content if block["type"] == "tool_use"]
    assert len(set(calls)) == len(calls), "each call has an id of its own"
    kinds = [block["type"] for block in content]
    assert ("text", "text") not in list(itertools.pairwise(kinds)), "one text, one block"
    folded.texts += [block["text"] for block in content if block["type"] == "text"]


def _begun(block: dict[str, Any]) -> dict[str, Any]:
    """The block that a start opens; its deltas gather in it."""
    rest = dict(block)
    if block["type"] == "tool_use":
        assert re.fullmatch(r"[a-zA-Z0-9_-]+", rest.pop("id")) and rest.pop("name")
    assert rest == EMPTY_BLOCKS[block["type"]], block
    return {**block, "input": ""} if block["type"] == "tool_use" else dict(block)


def _add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    key = DELTAS[block["type"]][delta["type"]]
    assert set(delta) == {"type", key} and delta[key], "no empty delta"
    assert not block.get("signature"), "nothing follows the signature"
    block["input" if key == "partial_json" else key] += delta[key]


def _end(block: dict[str, Any]) -> None:
    if block["type"] == "tool_use":
        block["input"] = msgspec.json.decode(block["input"])
        assert isinstance(block["input"], dict), "arguments are an object"
    elif block["type"] == "thinking":
        assert block["signature"], "thinking is signed"
    else:
        assert block["text"], "a block opens with content"


def _check_end(data: dict[str, Any], folded: Folded) -> None:
    for name in ("stop_reason", "stop_sequence"):
        folded.message[name] = data["delta"][name]
    reason = folded.message["stop_reason"]
    assert reason in STOP_REASONS
    has_calls = any(block["type"] == "tool_use" for block in folded.message["content"])
    assert reason != "tool_use" if not has_calls else reason != "end_turn"
    if "context_management" in data:
        folded.message["context_management"] = data["context_management"]
    started = folded.message["usage"]
    for name in COUNTS:
        assert type(data["usage"][name]) is int, name
    for name in COUNTS[:3]:
        assert data["usage"][name] == started[name], "prompt counts are known from the start"
    details = data["usage"].get("output_tokens_details", {"thinking_tokens": 0})
    assert 0 <= details["thinking_tokens"] <= data["usage"]["output_tokens"]
    folded.message["usage"] = {**started, **data["usage"]}


def prompt_tokens(message: dict[str, Any]) -> int:
    """What the usage of a message adds up to."""
    usage = message["usage"]
    return sum(usage[name] for name in COUNTS[:3])
