"""HTTP/3 messages of one connection: the library's, without what a server of requests never needs.

No dynamic table for what clients send: a field of one byte could stand for four thousand, and a
head would be as large as its client likes. No extended CONNECT, no push.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import pylsqpack
from aioquic.buffer import UINT_VAR_MAX, encode_uint_var
from aioquic.h3.connection import (
    ClosedCriticalStream,
    ErrorCode,
    FrameType,
    H3Connection,
    H3Stream,
    HeadersState,
    IdError,
    MessageError,
    ProtocolError,
    Setting,
    StreamType,
    encode_frame,
    parse_max_push_id,
)
from aioquic.h3.events import H3Event

from .. import limits
from ..errors import ApiError
from ..heads import NAME, check_size
from ..limits import HttpLimits
from ..wire import Header
from .transport import Transport

DATA_TYPE = encode_uint_var(FrameType.DATA)
ENCODED_HEAD_FACTOR = 4
"""An encoded head this many times the limit ends the connection; below, its request is refused."""
CRITICAL_STREAMS = (StreamType.QPACK_ENCODER, StreamType.QPACK_DECODER)
"""Beside the control stream, which the library watches: a client may not close them."""
STREAM_ID_STEP = 4
Field = tuple[bytes, bytes]
STATUS_MIN, STATUS_MAX = 100, 599


class ExcessiveLoad(ProtocolError):  # noqa: N818 - named as the others of its base
    """More than a well-behaved client sends."""

    error_code = ErrorCode.H3_EXCESSIVE_LOAD


@dataclass
class Refused(H3Event):
    """A message that is refused; the other streams go on (RFC 9114, 4.1.2)."""

    stream_id: int
    stream_ended: bool
    error: ApiError | None
    """None: the message is malformed and gets no answer."""


class Messages(H3Connection):
    """Frames of all request streams of a connection."""

    def __init__(self, transport: Transport, most: HttpLimits) -> None:
        self._most = most
        self._transport = transport
        self._frames = 0
        self._bytes = 0
        self._waiting: dict[int, bytearray] = {}
        """Incomplete heads, without their first bytes."""
        self._has_goaway = False
        """The frame that the library sees as MAX_PUSH_ID is a GOAWAY."""
        self._goaway_id = UINT_VAR_MAX
        super().__init__(transport)
        self._decoder = pylsqpack.Decoder(0, 0)

    def _get_local_settings(self) -> dict[int, int]:
        return {
            Setting.QPACK_MAX_TABLE_CAPACITY: 0,
            Setting.QPACK_BLOCKED_STREAMS: 0,
            Setting.MAX_FIELD_SECTION_SIZE: self._most.header_bytes_max,
            Setting.DUMMY: 1,
        }

    # ---- what clients send ---------------------------------------------------------------------
    def _check_request_or_push_frame_type(self, frame_type: int, stream: H3Stream) -> None:
        """Called with the head of each frame, before its content is waited for."""
        self._count_frame()
        super()._check_request_or_push_frame_type(frame_type, stream)
        most = ENCODED_HEAD_FACTOR * self._most.header_bytes_max
        if frame_type == FrameType.HEADERS and (stream.frame_size or 0) > most:
            raise ExcessiveLoad("The headers are too large")

    def _check_control_frame_type(self, frame_type: int) -> None:
        self._count_frame()
        super()._check_control_frame_type(frame_type)
        if frame_type == FrameType.CANCEL_PUSH:
            raise IdError("No push was promised")  # RFC 9114, 7.2.3
        self._has_goaway = frame_type == FrameType.GOAWAY
        if self._has_goaway and self._peer_control_stream_id is not None:
            # The library drops the content of a GOAWAY. That of a MAX_PUSH_ID has the same form.
            self._stream[self._peer_control_stream_id].frame_type = FrameType.MAX_PUSH_ID

    def _handle_control_frame(self, frame_type: int, frame_data: bytes) -> None:
        if not self._has_goaway:
            super()._handle_control_frame(frame_type, frame_data)
            return
        goaway_id = parse_max_push_id(frame_data)
        if goaway_id > self._goaway_id:
            raise IdError("GOAWAY raised the identifier")  # RFC 9114, 5.2
        self._goaway_id = goaway_id

    def _count_frame(self) -> None:
        self._frames += 1
        if self._frames > max(limits.H3_FRAMES_MIN, self._bytes // limits.H3_FRAME_BYTES_MIN):
            raise ExcessiveLoad("The frames are too small")

    def _receive_stream_data_uni(
        self, stream: H3Stream, data: bytes, stream_ended: bool
    ) -> list[H3Event]:
        self._bytes += len(data)
        events = super()._receive_stream_data_uni(stream, data, stream_ended)
        if len(stream.buffer) > limits.H3_CONTROL_BYTES_MAX:
            raise ExcessiveLoad("A frame of the control stream is too large")
        if stream_ended and stream.stream_type in CRITICAL_STREAMS:
            raise ClosedCriticalStream("Closing a QPACK stream is not allowed")
        return events

    def _receive_request_or_push_data(
        self, stream: H3Stream, data: bytes, stream_ended: bool
    ) -> list[H3Event]:
        """As the library's, which puts a head together anew for each piece of it that comes, and
        ends the connection for a message that is malformed."""
        self._bytes += len(data)
        size = stream.frame_size
        if size is not None and stream.frame_type == FrameType.HEADERS and not stream_ended:
            waiting = self._waiting.setdefault(stream.stream_id, bytearray())
            if len(stream.buffer) + len(waiting) + len(data) < size:
                waiting += data
                return []
        if waiting := self._waiting.pop(stream.stream_id, None):
            data = bytes(waiting + data)
        try:
            return super()._receive_request_or_push_data(stream, data, stream_ended)
        except MessageError:
            return [Refused(stream.stream_id, stream_ended, None)]
        except ApiError as error:
            return [Refused(stream.stream_id, stream_ended, error)]

    def _decode_headers(self, stream_id: int, frame_data: bytes | None) -> list[Field]:
        """The size is checked before anything reads names and values, and names by the rules of
        all carriers (RFC 9110, 5.1), which the library does not know."""
        head = [*super()._decode_headers(stream_id, frame_data)]
        check_size(head, self._most)
        if not all(NAME.fullmatch(name.removeprefix(b":")) for name, _ in head):
            raise MessageError("A field's name is not a token")
        is_first = self._stream[stream_id].headers_recv_state is HeadersState.INITIAL
        if is_first and all(name != b":authority" for name, _ in head):
            # Either is enough (RFC 9114, 4.3.1); the library requires :authority.
            head[:0] = [(b":authority", value) for name, value in head if name == b"host"][:1]
        return head

    # ---- answers -------------------------------------------------------------------------------
    def begin(self, stream_id: int, status: int, fields: Sequence[Header], is_end: bool) -> None:
        """Head of an answer."""
        if not STATUS_MIN <= status <= STATUS_MAX:
            raise ValueError("a status of HTTP has three digits")
        head = [(b":status", b"%d" % status), *_encoded(fields)]
        self.send_headers(stream_id, head, is_end)

    def write(self, stream_id: int, data: bytes) -> None:
        """More of its body, which does not end with it: a frame as `send_data` would make it."""
        if data:
            self._transport.send_stream_data(stream_id, data_head(len(data)) + data)

    def end(self, stream_id: int, trailers: Sequence[Header]) -> None:
        """Of an answer whose body is written."""
        if trailers:
            self.send_headers(stream_id, _encoded(trailers), True)
        else:
            with self._get_or_create_stream(stream_id) as stream:
                stream.finish_sending()
            self._transport.send_stream_data(stream_id, b"", True)

    def forget(self, stream_id: int) -> None:
        """Nothing of the stream is of interest any more."""
        self._stream.pop(stream_id, None)
        self._waiting.pop(stream_id, None)

    def go_away(self, last_stream_id: int) -> None:
        """Requests behind this one are not begun."""
        if self._local_control_stream_id is not None:
            frame = encode_frame(FrameType.GOAWAY, encode_uint_var(last_stream_id + STREAM_ID_STEP))
            self._transport.send_stream_data(self._local_control_stream_id, frame)


@lru_cache(maxsize=1024)
def data_head(size: int) -> bytes:
    """Of a frame with so many bytes of a body: most of a stream's are of a few sizes."""
    return DATA_TYPE + encode_uint_var(size)


def _encoded(fields: Sequence[Header]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
