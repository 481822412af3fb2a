"""Binary frames of a stream as the server-sent events that the SDK reads.

defines: FRAMES_TYPE, EVENTS_TYPE, Decoder, SseOfFrames, decoder_of
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from .library import CarrierError

FRAMES_TYPE = "application/octet-stream"
EVENTS_TYPE = "text/event-stream; charset=utf-8"


class Decoder(Protocol):
    """Makes the SDK's bytes of a carrier's."""

    def feed(self, data: bytes) -> bytes:
        """What is whole now. Raises CarrierError for bytes that are none of the format."""
        ...

    def finish(self) -> bytes:
        """The carrier has no more. Raises CarrierError if there should have been."""
        ...


class SseOfFrames:
    """Of a body of frames."""

    def __init__(self) -> None:
        from ..wire.frames import FrameDecoder, FrameError, encode_sse

        self._frames = FrameDecoder()
        self._encode = encode_sse
        self._error = FrameError

    def feed(self, data: bytes) -> bytes:
        try:
            return b"".join(self._encode(event) for event in self._frames.feed(data))
        except self._error as error:
            raise CarrierError("RemoteProtocolError", str(error)) from None

    def finish(self) -> bytes:
        try:
            self._frames.close()
        except self._error as error:
            raise CarrierError("RemoteProtocolError", str(error)) from None
        return b""


def decoder_of(
    asked: bool, headers: Iterable[tuple[str, str]]
) -> tuple[Decoder | None, list[tuple[str, str]]]:
    """What reads this answer, None: as it is; and its headers as the SDK gets them. asked: for
    frames, by us and not by the caller."""
    fields = [(name.lower(), value) for name, value in headers]
    if not asked or ("content-type", FRAMES_TYPE) not in fields:
        return None, fields
    shown = [(name, EVENTS_TYPE if name == "content-type" else value) for name, value in fields]
    return SseOfFrames(), shown
