"""JSON of clients before and after its decoder: what is mended, what is bounded (UTF-8, nesting,
number of parts), and what is said of a syntax error. Linear time.
"""

from __future__ import annotations

import codecs
import re

import msgspec

from . import limits
from .errors import ApiError

QUOTE, ESCAPED_BACKSLASH, ESCAPED_QUOTE = b'"', b"\\\\", b'\\"'
STRUCTURE = re.compile(rb"[][{}:]")
BYTE_ORDER_MARK, AS_SPACES = b"\xef\xbb\xbf", b"   "
SURROGATE_BEGINNINGS = (b"\\ud", b"\\uD")
NO_BACKSLASHES = b"\0\0"
"""Stands for an escaped backslash; valid JSON does not contain it."""
HIGH, LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
LONE_SURROGATE = re.compile(rb"%b(?!%b)|(?<!%b)%b" % (HIGH, LOW, HIGH, LOW))
REPLACEMENT = rb"\\ufffd"
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
OPEN_ARRAY, OPEN_OBJECT, COLON, COMMA = b"[", b"{", b":", b","
UTF8_PIECE_BYTES = 1 << 20


def decodable(body: bytes) -> bytes:
    """The same without a byte order mark, and with U+FFFD for lone surrogates, which clients write
    that cut a string in two, unless there are too many to look at. Positions stay."""
    if body.startswith(BYTE_ORDER_MARK):
        body = AS_SPACES + body[len(BYTE_ORDER_MARK) :]
    surrogates = sum(body.count(beginning) for beginning in SURROGATE_BEGINNINGS)
    if not 0 < surrogates <= limits.JSON_SURROGATES_MAX or b"\0" in body:
        return body
    hidden = LONE_SURROGATE.sub(REPLACEMENT, body.replace(ESCAPED_BACKSLASH, NO_BACKSLASHES))
    return hidden.replace(NO_BACKSLASHES, ESCAPED_BACKSLASH)


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
    _check_utf8(body)
    body = decodable(body)
    # Without its escapes every second piece between quotes lies outside of strings. Whole-buffer
    # operations only: nothing here is done per string, of which a body can have millions.
    unescaped = body.replace(ESCAPED_BACKSLASH, b"").replace(ESCAPED_QUOTE, b"")
    if unescaped.count(QUOTE) > 2 * limits.JSON_STRINGS_MAX:
        raise ApiError("json_too_many")
    bare = b"".join(unescaped.split(QUOTE)[::2])
    containers = bare.count(OPEN_ARRAY) + bare.count(OPEN_OBJECT)
    if containers > limits.JSON_CONTAINERS_MAX:
        raise ApiError("json_too_many")
    keys = bare.count(COLON)
    if keys > limits.JSON_KEYS_MAX or bare.count(COMMA) > limits.JSON_ELEMENTS_MAX:
        raise ApiError("json_too_many")
    if containers > limits.JSON_DEPTH_MAX or keys > limits.JSON_OBJECT_KEYS_MAX:
        _check_structure(bare)
    return body


def _check_utf8(body: bytes) -> None:
    """In pieces, between which other threads get the interpreter's lock. Raises ApiError."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for begin in range(0, len(body), UTF8_PIECE_BYTES):
        piece = body[begin : begin + UTF8_PIECE_BYTES]
        held = len(decoder.getstate()[0])
        try:
            decoder.decode(piece, begin + len(piece) == len(body))
        except UnicodeDecodeError as error:
            raise ApiError("invalid_utf8", position=begin - held + error.start) from None


def _check_structure(bare: bytes) -> None:
    """Depth, and keys of each object. `bare` has no strings."""
    open_keys: list[int] = []
    for match in STRUCTURE.finditer(bare):
        character = match.group()
        if character in (OPEN_ARRAY, OPEN_OBJECT):
            open_keys.append(0)
            if len(open_keys) > limits.JSON_DEPTH_MAX:
                raise ApiError("json_too_deep", maximum=limits.JSON_DEPTH_MAX)
        elif character == COLON:
            if open_keys:
                open_keys[-1] += 1
                if open_keys[-1] > limits.JSON_OBJECT_KEYS_MAX:
                    raise ApiError("json_too_many")
        elif open_keys:
            open_keys.pop()
