"""What is checked of a protobuf message before it is parsed: its number of fields. Two bytes can
stand for a submessage, which takes hundreds in memory and microseconds to turn into JSON."""

from __future__ import annotations

from typing import Any

from ...edge.errors import ApiError
from ...edge.limits import MESSAGE_FIELDS_MAX

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
VARINT_BYTES_MAX = 10


def check_fields(kind: Any, data: bytes) -> None:
    """Count the fields of a message of a descriptor's kind and of all messages within, and stop at
    the bound. Groups, which no kind here has, are refused as malformed. Raises ApiError."""
    fields = 0
    waiting: list[tuple[Any, int, int]] = [(kind, 0, len(data))]
    while waiting:
        kind, at, end = waiting.pop()
        known = kind.fields_by_number
        while at < end:
            fields += 1
            if fields > MESSAGE_FIELDS_MAX:
                raise ApiError("message_fields", maximum=MESSAGE_FIELDS_MAX)
            tag, at = _varint(data, at, end)
            wire_type = tag & 7
            if wire_type == VARINT:
                _, at = _varint(data, at, end)
            elif wire_type == BYTES:
                size, at = _varint(data, at, end)
                field = known.get(tag >> 3)
                if field is not None and field.message_type is not None:
                    waiting.append((field.message_type, at, min(at + size, end)))
                at += size
            elif wire_type in FIXED_BYTES:
                at += FIXED_BYTES[wire_type]
            else:
                raise ApiError("call_message")
        if at > end:
            raise ApiError("call_message")


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number that begins there, and where it ends."""
    value = 0
    for index in range(min(VARINT_BYTES_MAX, end - at)):
        byte = data[at + index]
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, at + index + 1
    raise ApiError("call_message")
