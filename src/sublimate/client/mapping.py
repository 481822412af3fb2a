"""Requests of the Messages API as calls of gRPC, and the answers of these as HTTP's. The Messages
API's JSON goes as it is, in the field json_body.

    message on HTTP/3 = 1 byte (0: not compressed) + 4 bytes of length, big-endian + that many bytes

defines: METHODS, TYPE, fields_of, message_of, framed, Ended, error_of, http_error, shown_fields,
         events_head, body_of, SseOfMessages, FlagCutter
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec
from google.protobuf.message import DecodeError

from ..v1 import frames_pb2, messages_pb2
from ..wire.frames import LENGTH_BYTES, FrameError, encode_sse, event_json, message_json
from .calls import Call, Field
from .choice import Kind
from .events import EVENTS_TYPE, SseOfFrames
from .library import CarrierError

SERVICE = "/sublimate.v1.Messages"
METHODS: dict[Kind, str] = {
    "stream": f"{SERVICE}/StreamMessage",
    "message": f"{SERVICE}/CreateMessage",
    "count": f"{SERVICE}/CountTokens",
}
TYPE = "application/grpc+proto"
JSON_TYPE = "application/json"
PREFIX_BYTES = LENGTH_BYTES + 1
DETAILS = "grpc-status-details-bin"
HTTP_STATUS = "x-http-status"
INTERNAL = 500
# What gRPC says in its own way, and what would be another answer.
NOT_OF_A_CALL = frozenset(("accept", "accept-encoding", "content-type", "user-agent"))
NOT_OF_HTTP = frozenset(("cache-control", "content-type", HTTP_STATUS))


def fields_of(call: Call) -> list[Field]:
    """Metadata. Raises CarrierError (unsent) for a value that gRPC cannot carry."""
    fields = [(name, value) for name, value in call.headers if name not in NOT_OF_A_CALL]
    for name, value in fields:
        if name.endswith("-bin") or not (value.isascii() and value.isprintable()):
            text = f"The header {name} has no form in gRPC."
            raise CarrierError("ConnectError", text, unsent=True, reason="header not for grpc")
    return fields


def message_of(call: Call) -> bytes:
    """The one message of the call."""
    return messages_pb2.CreateMessageRequest(json_body=call.body).SerializeToString()


def framed(message: bytes) -> bytes:
    """As it goes over HTTP/3."""
    return b"\0" + len(message).to_bytes(LENGTH_BYTES, "big") + message


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call ended: by its trailers."""

    code: int
    text: str
    details: bytes
    fields: list[Field]

    @staticmethod
    def of(trailers: Sequence[Field], decode: Callable[[str], bytes]) -> Ended | None:
        """None: these are no trailers of gRPC. decode: of a -bin field's value."""
        named = dict(trailers)
        code = named.get("grpc-status", "")
        if not code.isascii() or not code.isdigit():
            return None
        shown = [(name, value) for name, value in trailers if not name.startswith("grpc-")]
        text = unquote(named.get("grpc-message", ""))
        return Ended(int(code), text, decode(named.get(DETAILS, "")), shown)


def error_of(ended: Ended) -> frames_pb2.StreamEvent | None:
    """The server's own error; None if there is none in it, as when the connection broke."""
    status = messages_pb2.Status()
    error = frames_pb2.Error()
    try:
        status.ParseFromString(ended.details)
        if not any(detail.Unpack(error) for detail in status.details):
            return None
    except DecodeError:
        return None
    return frames_pb2.StreamEvent(error=error)


def http_error(ended: Ended) -> tuple[int, list[Field], bytes]:
    """Status, headers and body of the error as HTTP has it. Raises CarrierError if the server has
    not said one."""
    event = error_of(ended)
    if event is None:
        raise CarrierError("ReadError", f"The call has failed: {ended.text or ended.code}.")
    body = msgspec.json.encode(event_json(event))
    told = dict(ended.fields).get(HTTP_STATUS, "")
    status = int(told) if told.isascii() and told.isdigit() else INTERNAL
    return status, shown_fields(ended.fields, JSON_TYPE, len(body)), body


def shown_fields(fields: Sequence[Field], kind: str, length: int | None) -> list[Field]:
    """Headers of the answer as HTTP has them. length: None for a stream."""
    shown = [(name, value) for name, value in fields if name not in NOT_OF_HTTP]
    shown.append(("content-type", kind))
    shown.append(
        ("cache-control", "no-cache") if length is None else ("content-length", str(length))
    )
    return shown


def body_of(kind: Kind, message: bytes) -> bytes:
    """JSON of a whole answer. Raises CarrierError."""
    try:
        if kind == "message":
            return msgspec.json.encode(message_json(frames_pb2.Message.FromString(message)))
        counted = messages_pb2.CountTokensResponse.FromString(message)
    except (DecodeError, FrameError):
        raise CarrierError("RemoteProtocolError", "The answer is no message.") from None
    body: dict[str, Any] = {"input_tokens": counted.input_tokens}
    if counted.HasField("context_management"):
        edits = counted.context_management
        body["context_management"] = {"original_input_tokens": edits.original_input_tokens}
    return msgspec.json.encode(body)


class SseOfMessages:
    """Of a stream of messages; its trailers, there when the body has ended, say how."""

    def __init__(self, ended: Callable[[], Ended | None], *, has_flags: bool) -> None:
        """has_flags: the lengths have gRPC's flag before them, as they come over HTTP/3."""
        self._frames = SseOfFrames()
        self._ended = ended
        self._cut = FlagCutter() if has_flags else None

    def feed(self, data: bytes) -> bytes:
        return self._frames.feed(self._cut.feed(data) if self._cut is not None else data)

    def finish(self) -> bytes:
        ended = self._ended()
        if ended is None:
            raise CarrierError("RemoteProtocolError", "The call ended without a status.")
        if ended.code == 0:
            return self._frames.finish()
        event = error_of(ended)
        if event is None:
            raise CarrierError("RemoteProtocolError", f"The call has failed: {ended.text}.")
        return encode_sse(event)


class FlagCutter:
    """Messages with gRPC's prefix, in any pieces, as frames: without the first byte of each."""

    def __init__(self) -> None:
        self._prefix = b""
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """Raises CarrierError for a compressed message, which nobody has asked for."""
        out = bytearray()
        at = 0
        while at < len(data):
            if self._left:
                taken = min(self._left, len(data) - at)
                out += data[at : at + taken]
                self._left -= taken
            else:
                taken = min(PREFIX_BYTES - len(self._prefix), len(data) - at)
                self._prefix += data[at : at + taken]
                if self._prefix[0]:
                    raise CarrierError("RemoteProtocolError", "A message is compressed.")
                if len(self._prefix) == PREFIX_BYTES:
                    out += self._prefix[1:]
                    self._left = int.from_bytes(self._prefix[1:], "big")
                    self._prefix = b""
            at += taken
        return bytes(out)


def events_head(fields: Sequence[Field]) -> list[Field]:
    """Headers of a stream."""
    return shown_fields(fields, EVENTS_TYPE, None)
