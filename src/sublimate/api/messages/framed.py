"""The Messages API's stream as binary frames, for clients that ask for them by
`accept: application/octet-stream`.

The core writes them, as it writes server-sent events; so does it write pings and errors, when the
edge says so. Only what an Amendment tells is put in here, which few requests ask for: the protobuf
runtime is imported then and not before.

defines: FRAMES_SHAPE, FramedMessage
"""

from __future__ import annotations

from typing import Any

from ... import _core
from ...edge.coding import FRAMES_TYPE
from ...edge.errors import ApiError, ErrorShape
from .answers import WINDOW_EXCEEDED, Amendment, StreamedMessage


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
