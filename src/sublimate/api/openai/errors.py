"""Errors as OpenAI's clients read them: the texts of the one table in their envelope, and, where
clients of both families ask, in one that both can read.

defines: OpenAIErrors, OPENAI_ERRORS, SharedErrors, SHARED_ERRORS, described
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...edge.errors import ApiError, ErrorShape, envelope

TYPES = {"request_too_large": "invalid_request_error", "not_found_error": "invalid_request_error",
         "overloaded_error": "server_error", "api_error": "server_error"}  # fmt: skip
CODES = {
    "unauthenticated": "invalid_api_key",
    "unknown_model": "model_not_found",
    "prompt_too_long": "context_length_exceeded",
    "response_not_found": "previous_response_not_found",
    "rate_limited": "rate_limit_exceeded",
    "too_many_at_once": "rate_limit_exceeded",
}
PARAMS = {
    "unknown_model": "model",
    "prompt_too_long": "messages",
    "response_not_found": "previous_response_id",
}
OVERLOADED, UNAVAILABLE = 529, 503
"""Their clients know, and retry, the second."""


def described(error: ApiError) -> dict[str, Any]:
    """The inner object."""
    kind = TYPES.get(error.kind.type, error.kind.type)
    return {"message": error.text, "type": kind, **_place(error), **error.extra}


def _place(error: ApiError) -> dict[str, Any]:
    code = CODES.get(error.code) or error.kind.error_code or None
    return {"param": error.path or PARAMS.get(error.code), "code": code}


class OpenAIErrors(ErrorShape):
    id_headers = ("request-id", "x-request-id")

    def status(self, error: ApiError) -> int:
        return UNAVAILABLE if error.kind.status == OVERLOADED else error.kind.status

    def body(self, error: ApiError, request_id: str) -> bytes:
        del request_id  # in the header
        return msgspec.json.encode({"error": described(error)})

    def event(self, error: ApiError, request_id: str) -> bytes:
        return b"data: " + self.body(error, request_id) + b"\n\n"


class SharedErrors(ErrorShape):
    """The envelope of the Messages API with OpenAI's members in its inner object."""

    id_headers = ("request-id", "x-request-id")

    def body(self, error: ApiError, request_id: str) -> bytes:
        whole = msgspec.json.decode(envelope(error, request_id))
        whole["error"] |= _place(error)
        return msgspec.json.encode(whole)

    def event(self, error: ApiError, request_id: str) -> bytes:
        return b"event: error\ndata: " + self.body(error, request_id) + b"\n\n"


OPENAI_ERRORS = OpenAIErrors()
SHARED_ERRORS = SharedErrors()
