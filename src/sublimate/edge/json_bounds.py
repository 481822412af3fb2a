"""JSON of clients before and after its decoder: what is mended, what is bounded (UTF-8, nesting,
number of parts), and what is said of a syntax error. The passes over the bytes are C++
(core/text/json_bounds.h), which lets other threads run.
"""

from __future__ import annotations

import re

import msgspec

from .. import _core
from . import limits
from .errors import ApiError

BYTE_ORDER_MARK, AS_SPACES = b"\xef\xbb\xbf", b"   "
MALFORMED = re.compile(r"JSON is malformed: (.+) \(byte (\d+)\)")
READ_ALREADY = frozenset(
    (
        "trailing characters",
        "invalid escape character in string",
        "invalid character in unicode escape",
    )
)
"""For these causes the decoder reports the byte after the wrong one."""
WORD = re.compile(rb"[A-Za-z]+")
NOT_NUMBERS = (b"NaN", b"Infinity")


def decodable(body: bytes) -> bytes:
    """The same without a byte order mark, and with U+FFFD for lone surrogates, which clients write
    that cut a string in two. Positions stay."""
    if body.startswith(BYTE_ORDER_MARK):
        body = AS_SPACES + body[len(BYTE_ORDER_MARK) :]
    return _core.whole_characters(body)


def syntax_error(error: Exception, body: bytes) -> ApiError:
    """The error for a client of what a JSON decoder has raised."""
    return ApiError("invalid_json", cause=syntax_cause(error, body))


def syntax_cause(error: Exception, body: bytes) -> str:
    """What is wrong and where, in bytes from 0. The decoder's own texts are fixed."""
    if not body.strip():
        return "it is empty"
    malformed = MALFORMED.fullmatch(str(error))
    if malformed is None:
        if isinstance(error, msgspec.DecodeError):
            return f"it ends too early, at byte {len(body)}"
        return "it is nested too deeply"
    cause, at = malformed[1], int(malformed[2])
    if cause in READ_ALREADY:
        at -= 1
    word = WORD.match(body, at)
    if word is not None and word[0] in NOT_NUMBERS:
        cause = "NaN and Infinity are not JSON"
    return f"{cause}, at byte {at}"


def checked_json(body: bytes) -> bytes:
    """What is to be decoded. Raises ApiError for bytes that are not UTF-8, or that nest or count
    beyond the limits.

    Says nothing about syntax: the decoder does.
    """
    if (position := _core.ill_formed_utf8(body)) >= 0:
        raise ApiError("invalid_utf8", position=position)
    body = decodable(body)
    counts = _core.json_counts(body)
    if (
        counts.quotes > 2 * limits.JSON_STRINGS_MAX
        or counts.containers > limits.JSON_CONTAINERS_MAX
        or counts.keys > limits.JSON_KEYS_MAX
        or counts.commas > limits.JSON_ELEMENTS_MAX
    ):
        raise ApiError("json_too_many")
    if counts.depth > limits.JSON_DEPTH_MAX:
        raise ApiError("json_too_deep", maximum=limits.JSON_DEPTH_MAX)
    if counts.object_keys > limits.JSON_OBJECT_KEYS_MAX:
        raise ApiError("json_too_many")
    return body
