"""The Messages API's stream as binary frames, for clients that ask for them by
`accept: application/octet-stream`.

The core writes them, as it writes server-sent events; so does it write pings and errors, when the
edge says so. Only what an Amendment tells is put in here, which few requests ask for: the protobuf
runtime is imported then and not before.

defines: FRAMES_SHAPE, FramedMessage, data_of, Framer, retelling
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ... import _core
from ...edge.coding import FRAMES_TYPE
from ...edge.errors import ApiError, ErrorShape
from ...edge.exchange import new_identifier
from ...guard.message_form import FittedEvents, OddFormError
from .answers import WINDOW_EXCEEDED, Amendment, StreamedMessage

DATA, EVENT_END = b"data:", b"\n\n"
"""Of a server-sent event."""


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


def data_of(block: bytes) -> bytes:
    """What a server-sent event tells, whoever wrote it."""
    lines = [line[len(DATA) :] for line in block.split(b"\n") if line.startswith(DATA)]
    return b"".join(lines).strip()


class Framer:
    """The events of one stream as frames: of another server's what frames have a place for."""

    def __init__(self, model: str = "") -> None:
        """`model`: of a message that names none."""
        self._fitted = FittedEvents(new_identifier("msg"), model)

    def frame(self, event: dict[str, Any]) -> bytes:
        """Empty where there is no place for it. Raises OddFormError."""
        from ...wire.frames import FrameError, InexpressibleError, encode_frame, event_of

        shown = self._fitted.event(event)
        if shown is None:
            return b""
        try:
            return encode_frame(event_of(shown))
        except (InexpressibleError, FrameError) as error:
            raise OddFormError(str(error)) from None


def retelling(to_frames: bool) -> Callable[[bytes], bytes]:
    """What tells whole events as frames, or whole frames as events."""
    from ...wire.frames import FrameDecoder, encode_sse

    decoder = FrameDecoder()

    def as_events(frames: bytes) -> bytes:
        return b"".join(encode_sse(event) for event in decoder.feed(frames))

    return _Framed().frames if to_frames else as_events


class _Framed:
    """Whole events as frames. Where one has no form, the stream ends with an error."""

    def __init__(self) -> None:
        self._framer = Framer()
        self._has_ended = False

    def frames(self, events: bytes) -> bytes:
        if events and not events.endswith(EVENT_END):
            raise ValueError("an event is whole")
        told: list[bytes] = []
        for data in filter(None, map(data_of, events.split(EVENT_END))):
            if not self._has_ended:
                told.append(self._frame(data))
        return b"".join(told)

    def _frame(self, data: bytes) -> bytes:
        try:
            return self._framer.frame(msgspec.json.decode(data))
        except OddFormError:
            self._has_ended = True
            return FRAMES_SHAPE.event(ApiError("fallback_form"), new_identifier("req"))
