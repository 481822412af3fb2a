"""HTTP/3 messages of one connection: the library's, without what a server of requests never needs.

No dynamic table for what clients send: a field of one byte could stand for four thousand, and a
head would be as large as its client likes. No extended CONNECT, no push.

defines: Messages, data_head
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pylsqpack
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import (
    ErrorCode,
    FrameType,
    H3Connection,
    H3Stream,
    ProtocolError,
    Setting,
    encode_frame,
)

from ..wire import Header
from .transport import Transport

DATA_TYPE = encode_uint_var(FrameType.DATA)
ENCODED_HEAD_FACTOR = 4
"""An encoded head this many times the limit ends the connection; below, its request is refused."""
STREAM_ID_STEP = 4
STATUS_MIN, STATUS_MAX = 100, 599


class ExcessiveLoad(ProtocolError):  # noqa: N818 - named as the others of its base
    """A head that is larger than any that would be taken."""

    error_code = ErrorCode.H3_EXCESSIVE_LOAD


class Messages(H3Connection):
    """Frames of all request streams of a connection."""

    def __init__(self, transport: Transport, header_bytes_max: int) -> None:
        self._header_bytes_max = header_bytes_max
        self._transport = transport
        super().__init__(transport)
        self._decoder = pylsqpack.Decoder(0, 0)

    def _get_local_settings(self) -> dict[int, int]:
        return {
            Setting.QPACK_MAX_TABLE_CAPACITY: 0,
            Setting.QPACK_BLOCKED_STREAMS: 0,
            Setting.MAX_FIELD_SECTION_SIZE: self._header_bytes_max,
            Setting.DUMMY: 1,
        }

    def _check_request_or_push_frame_type(self, frame_type: int, stream: H3Stream) -> None:
        """Called with the head of each frame, before its content is waited for."""
        super()._check_request_or_push_frame_type(frame_type, stream)
        most = ENCODED_HEAD_FACTOR * self._header_bytes_max
        if frame_type == FrameType.HEADERS and (stream.frame_size or 0) > most:
            raise ExcessiveLoad("The headers are too large")

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
