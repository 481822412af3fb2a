"""Slow twins of core/text: what each part must do, in the fewest words of Python.

defines: decode, decode_so_far, find_stop, held_back, Answer, answer, frame, message_start,
         text_delta, message_delta, parse_frames, check_grammar
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec


def decode(data: bytes) -> str:
    """Utf8Assembler, at the end of a stream."""
    return data.decode("utf-8", "replace")


# Proper beginnings of code points that take several bytes; the last six bits make no difference.
BEGINNINGS = {
    chr(point).encode()[:n]
    for point in range(0x80, 0x110000, 0x40)
    if not 0xD800 <= point < 0xE000
    for n in range(1, len(chr(point).encode()))
}


def decode_so_far(data: bytes) -> str:
    """Utf8Assembler, while more may come: an unfinished code point at the end is left out.

    Python's incremental decoder waits for the third byte of a surrogate too: never a valid one."""
    carried = max((n for n in (1, 2, 3) if n <= len(data) and data[-n:] in BEGINNINGS), default=0)
    return decode(data[: len(data) - carried])


def find_stop(text: bytes, stops: Sequence[bytes]) -> tuple[int, int] | None:
    """StopMatcher: (index, end) of the match that ends first, of those the longest, of equals the
    first in the list."""
    for end in range(1, len(text) + 1):
        found = [i for i, stop in enumerate(stops) if text[:end].endswith(stop)]
        if found:
            return max(found, key=lambda i: (len(stops[i]), -i)), end
    return None


def held_back(text: bytes, stops: Sequence[bytes]) -> int:
    """Length of the longest end of the text that a stop string begins with."""
    lengths = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max(lengths, default=0)


@dataclass
class Answer:
    """What a client may see after some tokens."""

    text: str
    stop: str | None
    output_tokens: int
    ended: bool


def answer(tokens: Sequence[bytes], stops: Sequence[str], ended: bool) -> Answer:
    """TextStream: the text shown after these tokens. ended: no more will come."""
    encoded = [stop.encode() for stop in stops]
    for count in range(1, len(tokens) + 1):
        data = b"".join(tokens[:count])
        text = decode_so_far(data).encode()
        if ended and count == len(tokens):
            text = decode(data).encode()
        if match := find_stop(text, encoded):
            index, end = match
            return Answer(text[: end - len(encoded[index])].decode(), stops[index], count, True)
    data = b"".join(tokens)
    if ended:
        return Answer(decode(data), None, len(tokens), True)
    text = decode_so_far(data).encode()
    shown = text[: len(text) - held_back(text, encoded)]
    return Answer(shown.decode(), None, len(tokens), False)


# ---- frames -------------------------------------------------------------------------------------


def frame(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\n".encode() + b"data: " + msgspec.json.encode(event) + b"\n\n"


def message_start(message_id: str, model: str, input_tokens: int, cached_tokens: int) -> bytes:
    usage = {
        "input_tokens": input_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 0,
        "service_tier": "standard",
    }
    message = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "diagnostics": None,
        "usage": usage,
    }
    return frame({"type": "message_start", "message": message})


BLOCK_START = frame(
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
)
BLOCK_STOP = frame({"type": "content_block_stop", "index": 0})
MESSAGE_STOP = frame({"type": "message_stop"})


def text_delta(text: str) -> bytes:
    delta = {"type": "text_delta", "text": text}
    return frame({"type": "content_block_delta", "index": 0, "delta": delta})


def message_delta(
    reason: str, stop: str | None, input_tokens: int, cached_tokens: int, output_tokens: int
) -> bytes:
    delta = {"stop_reason": reason, "stop_sequence": stop, "stop_details": None, "container": None}
    usage = {
        "input_tokens": input_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": output_tokens,
    }
    return frame({"type": "message_delta", "delta": delta, "usage": usage})


def parse_frames(data: bytes) -> list[dict[str, Any]]:
    """The events of whole frames; fails on anything else."""
    assert data == b"" or data.endswith(b"\n\n")
    events: list[dict[str, Any]] = []
    for piece in data.split(b"\n\n")[:-1]:
        name, _, payload = piece.partition(b"\n")
        assert (
            name.startswith(b"event: ") and payload.startswith(b"data: ") and b"\n" not in payload
        )
        event = msgspec.json.decode(payload[6:])
        assert name[7:].decode() == event["type"]
        events.append(event)
    return events


NEXT_TYPES = {
    None: {"message_start"},
    "message_start": {"content_block_start", "message_delta"},
    "content_block_start": {"content_block_delta"},
    "content_block_delta": {"content_block_delta", "content_block_stop"},
    "content_block_stop": {"message_delta"},
    "message_delta": {"message_stop"},
    "message_stop": set[str](),
}


def check_grammar(events: list[dict[str, Any]], complete: bool) -> str:
    """Fails unless the events follow the stream grammar; returns their text. complete: it ended."""
    last: str | None = None
    text = ""
    for event in events:
        assert event["type"] in NEXT_TYPES[last], f"{event['type']} after {last}"
        last = event["type"]
        if last == "content_block_delta":
            assert event["delta"]["type"] == "text_delta" and event["delta"]["text"]
            text += event["delta"]["text"]
    assert not complete or last == "message_stop"
    return text
