"""Binary frames of a stream, and the same events as the JSON of server-sent events, both ways and
without loss. proto/sublimate/v1/frames.proto says what a frame is, docs/frames.md how to get them.

    decoder = FrameDecoder()
    for piece in body:
        for event in decoder.feed(piece):
            event_json(event)   # {"type": "content_block_delta", "index": 0, "delta": {...}}
    decoder.close()

defines: FrameError, FrameTooLargeError, MalformedFrameError, TruncatedStreamError,
         InexpressibleError, FrameDecoder, encode_frame, encode_sse, event_json, event_of,
         message_json, message_of
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import msgspec
from google.protobuf.message import DecodeError

from .. import _core
from ..errors import PeerError
from ..v1 import frames_pb2 as v1

LENGTH_BYTES = 4
FRAME_BYTES_MAX = _core.LIMITS["FRAME_BYTES_MAX"]
REASON_PREFIX = "STOP_REASON_"
DELTAS = {
    "text": "text_delta",
    "thinking": "thinking_delta",
    "signature": "signature_delta",
    "partial_json": "input_json_delta",
}
"""Field of a ContentBlockDelta, which is the key in JSON too -> type in JSON."""
ENDS = frozenset(("message_stop", "error"))

Json = dict[str, Any]
Value = TypeVar("Value")


class FrameError(PeerError):
    """A stream that is no stream of frames."""


class FrameTooLargeError(FrameError):
    """A frame says that it is longer than the reader takes."""


class MalformedFrameError(FrameError):
    """A frame whose bytes are no event, or that follows the last one."""


class TruncatedStreamError(FrameError):
    """The stream was cut before its last event."""


class InexpressibleError(ValueError):
    """JSON that frames.proto has no place for."""


# ---- frames --------------------------------------------------------------------------------------
def encode_frame(event: v1.StreamEvent) -> bytes:
    """Length and event. Raises FrameTooLargeError."""
    data = event.SerializeToString()
    if len(data) > FRAME_BYTES_MAX:
        raise FrameTooLargeError(f"A frame of {len(data)} bytes; {FRAME_BYTES_MAX} is the limit.")
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


class FrameDecoder:
    """Bytes in, in any pieces; events out. Holds one unfinished frame of limit_bytes at most. After
    an error it takes nothing more."""

    def __init__(self, limit_bytes: int = FRAME_BYTES_MAX) -> None:
        if not 0 < limit_bytes <= FRAME_BYTES_MAX:
            raise ValueError("the limit is one of this format")
        self._limit_bytes = limit_bytes
        self._rest = bytearray()
        self.is_ended = False
        """message_stop or error has come."""

    def feed(self, data: bytes) -> list[v1.StreamEvent]:
        """The events that are whole now, of kinds that are known here: others are left out. Raises
        FrameTooLargeError or MalformedFrameError; events before the wrong frame are lost then."""
        rest = self._rest
        rest += data
        events: list[v1.StreamEvent] = []
        at, end = 0, len(rest)
        while end - at >= LENGTH_BYTES and not self.is_ended:
            begin = at + LENGTH_BYTES
            length = int.from_bytes(rest[at:begin], "big")
            if length > self._limit_bytes:
                limit = self._limit_bytes
                raise FrameTooLargeError(f"A frame of {length} bytes; {limit} is the limit.")
            if end - begin < length:
                break
            at = begin + length
            if (event := self._event(bytes(rest[begin:at]))) is not None:
                events.append(event)
        del rest[:at]
        if rest and self.is_ended:
            raise MalformedFrameError("Bytes follow the last event of the stream.")
        return events

    def _event(self, data: bytes) -> v1.StreamEvent | None:
        try:
            event = v1.StreamEvent.FromString(data)
        except DecodeError:
            raise MalformedFrameError("The bytes of a frame are no event.") from None
        kind = event.WhichOneof("event")
        self.is_ended = kind in ENDS
        return None if kind is None else event

    def close(self) -> None:
        """The connection has no more. Raises TruncatedStreamError."""
        if not self.is_ended:
            raise TruncatedStreamError("The stream of frames ended before its last event.")


# ---- event -> JSON -------------------------------------------------------------------------------
def event_json(event: v1.StreamEvent) -> Json:
    """The data of the server-sent event, with its members in the same order. Raises
    MalformedFrameError if the event is empty."""
    kind = event.WhichOneof("event")
    if kind is None:
        raise MalformedFrameError("The event is of no kind that is known here.")
    return _TO_JSON[kind](getattr(event, kind))


def encode_sse(event: v1.StreamEvent) -> bytes:
    """The event as the bytes of a server-sent event. Raises MalformedFrameError."""
    data = event_json(event)
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), msgspec.json.encode(data))


def message_json(message: v1.Message) -> Json:
    """A whole message, or what message_start has of it. Raises MalformedFrameError."""
    data: Json = {
        "id": message.id,
        "type": "message",
        "role": "assistant",
        "model": message.model,
        "content": [_block_json(block) for block in message.content],
        "stop_reason": _reason_json(message.stop_reason),
        "stop_sequence": message.stop_sequence if message.HasField("stop_sequence") else None,
        "stop_details": None,
        "container": None,
        "diagnostics": _diagnostics_json(message),
        "usage": _usage_json(message.usage),
    }
    if message.HasField("context_management"):
        data["context_management"] = _management_json(message.context_management)
    return data


def _delta_json(delta: v1.ContentBlockDelta) -> Json:
    key = delta.WhichOneof("delta")
    if key is None:
        raise MalformedFrameError("A delta is of no kind that is known here.")
    inner = {"type": DELTAS[key], key: getattr(delta, key)}
    return {"type": "content_block_delta", "index": delta.index, "delta": inner}


def _end_json(end: v1.MessageDelta) -> Json:
    delta = {
        "stop_reason": _reason_json(end.stop_reason),
        "stop_sequence": end.stop_sequence if end.HasField("stop_sequence") else None,
        "stop_details": None,
        "container": None,
    }
    data: Json = {"type": "message_delta", "delta": delta}
    if end.HasField("context_management"):
        data["context_management"] = _management_json(end.context_management)
    data["usage"] = _usage_json(end.usage)
    return data


def _error_json(error: v1.Error) -> Json:
    inner: Json = {"type": error.type, "message": error.message}
    if error.HasField("error_code"):
        inner["details"] = {"error_code": error.error_code}
    return {"type": "error", "error": inner, "request_id": error.request_id}


_TO_JSON: dict[str, Callable[[Any], Json]] = {
    "message_start": lambda e: {"type": "message_start", "message": message_json(e.message)},
    "content_block_start": lambda e: {
        "type": "content_block_start",
        "index": e.index,
        "content_block": _block_json(e.content_block),
    },
    "content_block_delta": _delta_json,
    "content_block_stop": lambda e: {"type": "content_block_stop", "index": e.index},
    "message_delta": _end_json,
    "message_stop": lambda e: {"type": "message_stop"},
    "ping": lambda e: {"type": "ping"},
    "error": _error_json,
}


def _block_json(block: v1.ContentBlock) -> Json:
    kind = block.WhichOneof("block")
    if kind == "text":
        return {"type": kind, "text": block.text.text}
    if kind == "thinking":
        thinking = block.thinking
        return {"type": kind, "thinking": thinking.thinking, "signature": thinking.signature}
    if kind != "tool_use":
        raise MalformedFrameError("A block is of no kind that is known here.")
    tool = block.tool_use
    try:
        chosen = msgspec.json.decode(tool.input or b"{}", type=Json)
    except msgspec.MsgspecError:
        raise MalformedFrameError("The input of a tool is no JSON object.") from None
    return {"type": kind, "id": tool.id, "name": tool.name, "input": chosen}


def _reason_json(reason: int) -> str | None:
    if reason == v1.STOP_REASON_UNSPECIFIED:
        return None
    if reason not in v1.StopReason.values():
        raise MalformedFrameError("A stop reason that is not known here.")
    return v1.StopReason.Name(reason).removeprefix(REASON_PREFIX).lower()


def _usage_json(usage: v1.Usage) -> Json:
    data: Json = {
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "cache_read_input_tokens": usage.cache_read_input_tokens,
    }
    if usage.HasField("cache_creation"):
        created = usage.cache_creation
        data["cache_creation"] = {
            "ephemeral_5m_input_tokens": created.ephemeral_5m_input_tokens,
            "ephemeral_1h_input_tokens": created.ephemeral_1h_input_tokens,
        }
    data["output_tokens"] = usage.output_tokens
    if usage.HasField("service_tier"):
        data["service_tier"] = usage.service_tier
    if usage.HasField("output_tokens_details"):
        thinking_tokens = usage.output_tokens_details.thinking_tokens
        data["output_tokens_details"] = {"thinking_tokens": thinking_tokens}
    return data


def _diagnostics_json(message: v1.Message) -> Json | None:
    if not message.HasField("diagnostics"):
        return None
    if not message.diagnostics.HasField("cache_miss_reason"):
        return {"cache_miss_reason": None}
    reason = message.diagnostics.cache_miss_reason
    why: Json = {"type": reason.type}
    if reason.HasField("cache_missed_input_tokens"):
        why["cache_missed_input_tokens"] = reason.cache_missed_input_tokens
    return {"cache_miss_reason": why}


def _management_json(management: v1.ContextManagement) -> Json:
    edits: list[Json] = []
    for edit in management.applied_edits:
        data: Json = {"type": edit.type}
        for name in ("cleared_thinking_turns", "cleared_tool_uses"):
            if edit.HasField(name):
                data[name] = getattr(edit, name)
        edits.append({**data, "cleared_input_tokens": edit.cleared_input_tokens})
    return {"applied_edits": edits}


# ---- JSON -> event -------------------------------------------------------------------------------
def event_of(data: Mapping[str, Any]) -> v1.StreamEvent:
    """The event of a server-sent event's data. Raises InexpressibleError if anything of it would be
    lost."""
    return _lossless(data, _event, event_json)


def message_of(data: Mapping[str, Any]) -> v1.Message:
    """A whole message. Raises InexpressibleError."""
    return _lossless(data, _message, message_json)


def _lossless(
    data: Mapping[str, Any],
    make: Callable[[Mapping[str, Any]], Value],
    back: Callable[[Value], Json],
) -> Value:
    """What `make` does not read is found by the way back."""
    try:
        made = make(data)
        is_same = _sorted(back(made)) == _sorted(data)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, MalformedFrameError):
        raise InexpressibleError("The JSON has not the form of the event that it names.") from None
    if not is_same:
        raise InexpressibleError("The JSON has members that frames.proto has no place for.")
    return made


def _sorted(data: object) -> bytes:
    """Tells 1 from 1.0 and from true, which Python takes for equal."""
    return msgspec.json.encode(data, order="sorted")


def _event(data: Mapping[str, Any]) -> v1.StreamEvent:
    kind: str = data["type"]
    return v1.StreamEvent(**{kind: _OF_JSON[kind](data)})


def _message(data: Mapping[str, Any]) -> v1.Message:
    diagnostics = None
    if (told := data["diagnostics"]) is not None:
        diagnostics = v1.Diagnostics(cache_miss_reason=_miss(told["cache_miss_reason"]))
    return v1.Message(
        id=data["id"],
        model=data["model"],
        content=[_block(block) for block in data["content"]],
        stop_reason=_reason(data["stop_reason"]),
        stop_sequence=data["stop_sequence"],
        usage=_usage(data["usage"]),
        diagnostics=diagnostics,
        context_management=_management(data),
    )


def _miss(reason: Mapping[str, Any] | None) -> v1.CacheMissReason | None:
    if reason is None:
        return None
    tokens = reason.get("cache_missed_input_tokens")
    return v1.CacheMissReason(type=reason["type"], cache_missed_input_tokens=tokens)


def _block(block: Mapping[str, Any]) -> v1.ContentBlock:
    if block["type"] == "text":
        return v1.ContentBlock(text=v1.TextBlock(text=block["text"]))
    if block["type"] == "thinking":
        thinking = v1.ThinkingBlock(thinking=block["thinking"], signature=block["signature"])
        return v1.ContentBlock(thinking=thinking)
    text = msgspec.json.encode(block["input"]).decode() if block["input"] else ""
    tool = v1.ToolUseBlock(id=block["id"], name=block["name"], input=text)
    return v1.ContentBlock(tool_use=tool)


def _reason(reason: str | None) -> v1.StopReason:
    if reason is None:
        return v1.STOP_REASON_UNSPECIFIED
    return cast(v1.StopReason, v1.StopReason.Value(REASON_PREFIX + reason.upper()))


def _usage(data: Mapping[str, Any]) -> v1.Usage:
    created = data.get("cache_creation")
    details = data.get("output_tokens_details")
    return v1.Usage(
        input_tokens=data["input_tokens"],
        cache_creation_input_tokens=data["cache_creation_input_tokens"],
        cache_read_input_tokens=data["cache_read_input_tokens"],
        output_tokens=data["output_tokens"],
        cache_creation=v1.CacheCreation(**created) if created is not None else None,
        output_tokens_details=v1.OutputTokensDetails(**details) if details is not None else None,
        service_tier=data.get("service_tier"),
    )


def _management(data: Mapping[str, Any]) -> v1.ContextManagement | None:
    told = data.get("context_management")
    if told is None:
        return None
    edits = [v1.AppliedEdit(**edit) for edit in told["applied_edits"]]
    return v1.ContextManagement(applied_edits=edits)


def _delta(data: Mapping[str, Any]) -> v1.ContentBlockDelta:
    kinds = [key for key, kind in DELTAS.items() if kind == data["delta"]["type"]]
    (key,) = kinds
    return v1.ContentBlockDelta(**{"index": data["index"], key: data["delta"][key]})


def _end(data: Mapping[str, Any]) -> v1.MessageDelta:
    return v1.MessageDelta(
        stop_reason=_reason(data["delta"]["stop_reason"]),
        stop_sequence=data["delta"]["stop_sequence"],
        usage=_usage(data["usage"]),
        context_management=_management(data),
    )


def _error(data: Mapping[str, Any]) -> v1.Error:
    inner = data["error"]
    return v1.Error(
        type=inner["type"],
        message=inner["message"],
        request_id=data["request_id"],
        error_code=inner["details"]["error_code"] if "details" in inner else None,
    )


_OF_JSON: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "message_start": lambda e: v1.MessageStart(message=_message(e["message"])),
    "content_block_start": lambda e: v1.ContentBlockStart(
        index=e["index"], content_block=_block(e["content_block"])
    ),
    "content_block_delta": _delta,
    "content_block_stop": lambda e: v1.ContentBlockStop(index=e["index"]),
    "message_delta": _end,
    "message_stop": lambda e: v1.MessageStop(),
    "ping": lambda e: v1.Ping(),
    "error": _error,
}
