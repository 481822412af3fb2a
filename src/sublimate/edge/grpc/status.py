"""What an error of the table becomes in gRPC: a code, a text, and details.

defines: Status, status_of
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...v1 import frames_pb2, messages_pb2
from ..errors import ApiError, grpc_code
from ..wire import Header

HIGHEST_CODE = 16
HTTP_STATUS = "x-http-status"
"""Of the same error over HTTP: several of its statuses share one code of gRPC."""


class Status(msgspec.Struct, frozen=True):
    """How a call ended; without arguments: well."""

    code: int = 0
    text: str = ""
    details: bytes = b""
    """A google.rpc.Status, for grpc-status-details-bin; empty: none."""
    trailers: tuple[Header, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.code <= HIGHEST_CODE:
            raise ValueError(f"{self.code} is no code of google.rpc")
        if self.details and not self.code:
            raise ValueError("what ended well has no details")


def status_of(error: ApiError, request_id: str, fields: Sequence[Header] = ()) -> Status:
    """`fields`: more trailers, where there was no head that could have had them."""
    code = grpc_code(error.kind)
    told = frames_pb2.Error(type=error.kind.type, message=error.text, request_id=request_id)
    if error.kind.error_code:
        told.error_code = error.kind.error_code
    status = messages_pb2.Status(code=code, message=error.text)
    status.details.add().Pack(told)
    trailers = (*fields, *error.headers(), (HTTP_STATUS, str(error.kind.status)))
    return Status(code, error.text, status.SerializeToString(), trailers)
