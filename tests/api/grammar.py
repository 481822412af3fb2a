"""The stream contract of the Messages API as a checker: the union of what real clients insist on.

    stream = message_start *ping *( block *ping ) message_delta message_stop   ; or error, then end

defines: Event, parse_events, Folded, check_stream
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

TYPES = {
    *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
    *("message_delta", "message_stop", "ping", "error"),
}
COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
EMPTY_BLOCK = {"type": "text", "text": ""}


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
    index = 0
    open_block = False
    for event in events:
        data = event.data
        assert data["index"] == index, "indices have no gaps"
        if event.type == "content_block_start":
            assert not open_block and data["content_block"] == EMPTY_BLOCK
            open_block = True
            folded.texts.append("")
        elif event.type == "content_block_delta":
            assert open_block and data["delta"]["type"] == "text_delta"
            assert data["delta"]["text"], "no empty delta"
            folded.texts[-1] += data["delta"]["text"]
        else:
            assert event.type == "content_block_stop" and open_block
            assert folded.texts[-1], "a block opens with content"
            open_block = False
            index += 1
    assert not open_block, "every block is closed"
    folded.message["content"] = [{"type": "text", "text": text} for text in folded.texts]


def _check_end(data: dict[str, Any], folded: Folded) -> None:
    for name in ("stop_reason", "stop_sequence"):
        folded.message[name] = data["delta"][name]
    assert folded.message["stop_reason"] in ("end_turn", "max_tokens", "stop_sequence")
    started = folded.message["usage"]
    for name in COUNTS:
        assert type(data["usage"][name]) is int, name
    for name in COUNTS[:3]:
        assert data["usage"][name] == started[name], "prompt counts are known from the start"
    folded.message["usage"] = {**started, **data["usage"]}


def prompt_tokens(message: dict[str, Any]) -> int:
    """What the usage of a message adds up to."""
    usage = message["usage"]
    return sum(usage[name] for name in COUNTS[:3])
