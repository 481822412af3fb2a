"""The head of a request as HTTP/3 brings it.

defines: request_of
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ApiError
from ..exchange import Request
from ..http import FIELD_OVERHEAD_BYTES, SINGLE_FIELDS
from ..limits import HttpLimits


def request_of(head: Sequence[tuple[bytes, bytes]], most: HttpLimits) -> Request:
    """The library has checked names, values and pseudo fields; what it found wrong ended the
    connection. Raises ApiError for a head that is too large, or leaves a doubt."""
    size = sum(len(name) + len(value) + FIELD_OVERHEAD_BYTES for name, value in head)
    if size > most.header_bytes_max or len(head) > most.header_fields_max:
        raise ApiError(
            "headers_too_large", maximum=most.header_bytes_max, fields=most.header_fields_max
        )
    pseudo: dict[bytes, bytes] = {}
    fields: dict[bytes, bytes] = {}
    for name, value in head:
        if name[:1] == b":":
            pseudo[name] = value
        elif name not in fields:
            fields[name] = value
        elif name in SINGLE_FIELDS:
            raise ApiError("malformed_request")  # twice is a doubt, not a list
        else:
            fields[name] += (b"; " if name == b"cookie" else b", ") + value
    authority = pseudo.get(b":authority")
    if authority is not None and fields.setdefault(b"host", authority) != authority:
        raise ApiError("malformed_request")  # which host was meant decides what is let in
    target = pseudo.get(b":path", b"")
    if b"host" not in fields or not (target.startswith(b"/") or target == b"*"):
        raise ApiError("malformed_request")
    method = pseudo.get(b":method", b"").decode("latin-1")
    return Request(method, target, fields)
