"""How gRPC writes messages, timeouts and texts: the same on HTTP/2 and HTTP/3.

    message = 1 byte (1: compressed) + 4 bytes of length, most significant first + that many bytes

defines: MessageReader, framed_message, split_frames, timeout_seconds, percent_encoded
"""

from __future__ import annotations

import re
import zlib

from .. import limits
from ..errors import ApiError

PREFIX_BYTES = 5
LENGTH_BYTES = 4
UNCOMPRESSED = 0
COMPRESSED = 1
IDENTITY = b"identity"
CODINGS = (b"gzip", b"deflate")
ANY_HEADER_BITS = 47
"""zlib's way to say: the header of either."""

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class MessageReader:
    """Cuts a request's bytes into messages, however they come. Holds what came of one message, of
    which the prefix has told that it is within the bound."""

    def __init__(self, message_bytes_max: int, coding: bytes = IDENTITY) -> None:
        """coding: of messages that are marked as compressed."""
        if message_bytes_max <= 0:
            raise ValueError("a message has at least one byte of room")
        self._most = message_bytes_max
        self._is_coded = coding in CODINGS
        self._prefix = bytearray()
        self._message: bytearray | None = None
        self._length = 0

    @property
    def is_between(self) -> bool:
        """Nothing of a further message has come: here a request may end."""
        return self._message is None and not self._prefix

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that these bytes complete, in order. Raises ApiError for one that is too
        large, compressed, or has no valid prefix; nothing may be fed after that."""
        messages: list[bytes] = []
        view = memoryview(data)
        while view:
            if self._message is None:
                taken = PREFIX_BYTES - len(self._prefix)
                self._prefix += view[:taken]
                view = view[taken:]
                if len(self._prefix) < PREFIX_BYTES:
                    break
                self._length = self._read_length()
                self._message = bytearray()  # grows with what comes: a length is easily said
            message = self._message
            taken = min(len(view), self._length - len(message))
            message += view[:taken]
            view = view[taken:]
            if len(message) == self._length:
                is_coded = self._prefix[0] == COMPRESSED
                messages.append(self._inflated(message) if is_coded else bytes(message))
                self._message = None
                self._prefix.clear()
        return messages

    def _inflated(self, message: bytearray) -> bytes:
        """Decompress a message. Raises ApiError."""
        most = min(self._most, limits.GRPC_INFLATED_BYTES_MAX)
        inflater = zlib.decompressobj(ANY_HEADER_BITS)
        try:
            inflated = inflater.decompress(message, most + 1)
        except zlib.error:
            raise ApiError("call_framing") from None
        if len(inflated) > most:
            raise ApiError("call_too_large", maximum=most)
        if not inflater.eof or inflater.unused_data:
            raise ApiError("call_framing")
        return inflated

    def _read_length(self) -> int:
        """Of the message whose prefix is there. Raises ApiError."""
        flag = self._prefix[0]
        if flag == COMPRESSED and not self._is_coded:
            raise ApiError("call_compressed")
        if flag not in (UNCOMPRESSED, COMPRESSED):
            raise ApiError("call_framing")
        length = int.from_bytes(self._prefix[1:], "big")
        if length > self._most:
            raise ApiError("call_too_large", maximum=self._most)
        return length


def framed_message(message: bytes) -> bytes:
    """With its prefix."""
    if len(message) >> 8 * LENGTH_BYTES:
        raise ValueError("a message has less than 4 GiB")
    return b"\0" + len(message).to_bytes(LENGTH_BYTES, "big") + message


def split_frames(pieces: bytes) -> list[bytes]:
    """The messages in whole frames of binary streaming: 4 bytes of length and the message, any
    number of times. ValueError if they are not whole, which is a bug of ours."""
    messages: list[bytes] = []
    at = 0
    while at < len(pieces):
        begin = at + LENGTH_BYTES
        at = begin + int.from_bytes(pieces[begin - LENGTH_BYTES : begin], "big")
        if begin > len(pieces) or at > len(pieces):
            raise ValueError("a frame is not whole")
        messages.append(pieces[begin:at])
    return messages


def timeout_seconds(text: bytes) -> float:
    """Of the field grpc-timeout. Raises ApiError."""
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise ApiError("call_timeout_field")
    digits, unit = match.groups()
    return int(digits) * _UNIT_SECONDS[unit]


def percent_encoded(text: str) -> str:
    """As grpc-message has it: printable ASCII as it is, but for %, and all other bytes of its
    UTF-8 as %XX."""
    raw = text.encode("utf-8")
    return "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}" for byte in raw
    )
