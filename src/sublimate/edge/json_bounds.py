"""What is checked of a body before it is decoded: UTF-8, nesting, number of parts. Linear time.

defines: check_json
"""

from __future__ import annotations

import re

from . import limits
from .errors import ApiError

QUOTE, ESCAPED_BACKSLASH, ESCAPED_QUOTE = b'"', b"\\\\", b'\\"'
STRUCTURE = re.compile(rb"[][{}:]")
OPEN_ARRAY, OPEN_OBJECT, COLON, COMMA = b"[", b"{", b":", b","


def check_json(body: bytes) -> None:
    """Raises ApiError for bytes that are not UTF-8, or that nest or count beyond the limits.

    Says nothing about syntax: the decoder does.
    """
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        raise ApiError("invalid_utf8") from None
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
