"""The head of a request: its bounds, and the rules of HTTP/2 and HTTP/3."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .errors import ApiError
from .exchange import Request
from .limits import HttpLimits

Head = Sequence[tuple[bytes, bytes]]
FIELD_OVERHEAD_BYTES = 4  # ": " and CRLF
# Fields that decide framing, access or which answer is repeated: two values are ambiguous.
SINGLE_FIELDS = frozenset(
    b"host content-length content-type content-encoding transfer-encoding "
    b"authorization x-api-key origin idempotency-key".split()
)
NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
FORBIDDEN = re.compile(rb"[\0\r\n]")
METHOD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
TARGET = re.compile(rb"/[!-~]*|\*")
LENGTH = re.compile(rb"[0-9]{1,18}")
PATH = b":path"
PSEUDO_FIELDS = frozenset((b":method", b":scheme", PATH, b":authority"))
REQUIRED_FIELDS = PSEUDO_FIELDS - {b":authority"}
OF_A_CONNECTION = frozenset(
    b"connection keep-alive proxy-connection transfer-encoding upgrade".split()
)


def too_large(most: HttpLimits, target_bytes: int) -> ApiError:
    """The error for a head that exceeds its bounds, whose target has that many bytes so far."""
    if target_bytes > most.header_bytes_max // 2:
        return ApiError("target_too_long", maximum=most.header_bytes_max)
    return ApiError(
        "headers_too_large", maximum=most.header_bytes_max, fields=most.header_fields_max
    )


def check_size(head: Head, most: HttpLimits) -> None:
    """Check the size before anything else reads the head. Raises ApiError."""
    size = sum(len(name) + len(value) + FIELD_OVERHEAD_BYTES for name, value in head)
    if len(head) > most.header_fields_max or size > most.header_bytes_max:
        raise too_large(most, max((len(value) for name, value in head if name == PATH), default=0))


def is_well_formed(head: Head, *, is_first: bool) -> bool:
    """Whether a head, or trailers (not is_first), satisfies RFC 9113, 8.2 and 8.3. HTTP/3 heads are
    checked by the library, and by request_of where it does not."""
    seen: set[bytes] = set()
    is_pseudo = is_first
    for name, value in head:
        if name.startswith(b":"):
            if not is_pseudo or name not in PSEUDO_FIELDS or name in seen:
                return False
            seen.add(name)
        else:
            is_pseudo = False
            if not NAME.fullmatch(name) or name in OF_A_CONNECTION:
                return False
            if name == b"te" and value.lower() != b"trailers":
                return False
        if FORBIDDEN.search(value) or value != value.strip(b" \t"):
            return False
    return seen >= REQUIRED_FIELDS or not is_first


def request_of(head: Head) -> Request:
    """The request of a head whose size, names and values are checked. Raises ApiError if it is
    malformed or ambiguous."""
    pseudo: dict[bytes, bytes] = {}
    values: dict[bytes, list[bytes]] = {}
    for name, value in head:
        if name[:1] == b":":
            pseudo[name] = value
        elif name in SINGLE_FIELDS and name in values:
            raise ApiError("malformed_request")  # two values are ambiguous, not a list
        else:
            values.setdefault(name, []).append(value)
    # Joined once per name: to append each repeat would copy all before it.
    fields = {
        name: (b"; " if name == b"cookie" else b", ").join(parts) for name, parts in values.items()
    }
    authority = pseudo.get(b":authority")
    if authority is not None and fields.setdefault(b"host", authority) != authority:
        raise ApiError("malformed_request")  # which host was meant decides what is let in
    if not REQUIRED_FIELDS <= pseudo.keys() <= PSEUDO_FIELDS or b"host" not in fields:
        raise ApiError("malformed_request")
    method, target = pseudo[b":method"], pseudo[PATH]
    if not METHOD.fullmatch(method) or not TARGET.fullmatch(target):
        raise ApiError("malformed_request")
    if not LENGTH.fullmatch(fields.get(b"content-length", b"0")):
        raise ApiError("malformed_request")
    return Request(method.decode("latin-1"), target, fields)
