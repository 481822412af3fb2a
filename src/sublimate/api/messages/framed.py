"""The Messages API's stream as binary frames, for clients that ask for them by
`accept: application/octet-stream`.

The core writes them, as it writes server-sent events; so does it write pings and errors, when the
edge says so. Only what an Amendment tells is put in here, which few requests ask for: the protobuf
runtime is imported then and not before.

defines: FRAMES_SHAPE, FramedMessage, retelling
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ... import _core
from ...edge.coding import FRAMES_TYPE
from ...edge.errors import ApiError, ErrorShape
from .answers import WINDOW_EXCEEDED, Amendment, StreamedMessage

DATA, EVENT_END = b"data: ", b"\n\n"
"""Of a server-sent event, as the core writes it."""


class FrameErrors(ErrorShape):
    """Errors before the stream begins are JSON, with a status; behind that they are frames."""

    def event(self, error: ApiError, request_id: str) -> bytes:
        kind = error.kind
        return _core.error_frame(kind.type, error.text, request_id, kind.error_code)


FRAMES_SHAPE = FrameErrors()


class FramedMessage(StreamedMessage):
    """As its base, byte by byte but for how events are written."""

    format = "frames"
    content_type = FRAMES_TYPE
    ping = _core.ping_frame()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.exchange.error_shape = FRAMES_SHAPE

    def _amended(self, frames: bytes, amendment: Amendment) -> bytes:
        from ...wire.frames import FrameDecoder, encode_frame, event_json, event_of

        amended: list[bytes] = []
        for event in FrameDecoder().feed(frames):
            data = event_json(event)
            if data["type"] == "message_start":
                data["message"]["diagnostics"] = amendment.diagnostics
            elif data["type"] == "message_delta" and amendment.is_window_exceeded:
                data["delta"]["stop_reason"] = WINDOW_EXCEEDED
            if data["type"] == "message_delta" and amendment.context_management is not None:
                data["context_management"] = amendment.context_management
            amended.append(encode_frame(event_of(data)))
        return b"".join(amended)


def retelling(to_frames: bool) -> Callable[[bytes], bytes]:
    """What tells whole events as frames, or whole frames as events."""
    from ...wire.frames import FrameDecoder, encode_frame, encode_sse, event_of

    decoder = FrameDecoder()

    def framed(events: bytes) -> bytes:
        if events and not events.endswith(EVENT_END):
            raise ValueError("an event is whole")
        lines = events.splitlines()
        told = [line.removeprefix(DATA) for line in lines if line.startswith(DATA)]
        return b"".join(encode_frame(event_of(msgspec.json.decode(data))) for data in told)

    def as_events(frames: bytes) -> bytes:
        return b"".join(encode_sse(event) for event in decoder.feed(frames))

    return framed if to_frames else as_events
