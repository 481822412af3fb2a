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
    "previous_response_not_found": "previous_response_not_found",
    "rate_limited": "rate_limit_exceeded",
    "too_many_at_once": "rate_limit_exceeded",
}
PARAMS = {"unknown_model": "model", "previous_response_not_found": "previous_response_id"}
OF_PROMPT = ("prompt_too_long", "template_limit")
"""Errors of the field that holds the prompt, whatever the API calls it."""
OVERLOADED, UNAVAILABLE = 529, 503
"""Their clients know, and retry, the second."""


def described(error: ApiError, prompt_field: str = "messages") -> dict[str, Any]:
    """The inner object."""
    kind = TYPES.get(error.kind.type, error.kind.type)
    return {"message": error.text, "type": kind, **_place(error, prompt_field), **error.extra}


def _place(error: ApiError, prompt_field: str) -> dict[str, Any]:
    code = CODES.get(error.code) or error.kind.error_code or None
    param = prompt_field if error.code in OF_PROMPT else PARAMS.get(error.code)
    return {"param": error.path or param, "code": code}


class OpenAIErrors(ErrorShape):
    """`prompt_field`: the field of the API that holds the prompt."""

    id_headers = ("request-id", "x-request-id")

    def __init__(self, prompt_field: str = "messages") -> None:
        self._prompt_field = prompt_field

    def status(self, error: ApiError) -> int:
        return UNAVAILABLE if error.kind.status == OVERLOADED else error.kind.status

    def body(self, error: ApiError, request_id: str) -> bytes:
        del request_id  # in the header
        return msgspec.json.encode({"error": described(error, self._prompt_field)})

    def event(self, error: ApiError, request_id: str) -> bytes:
        return b"data: " + self.body(error, request_id) + b"\n\n"


class SharedErrors(ErrorShape):
    """The envelope of the Messages API with OpenAI's members in its inner object."""

    id_headers = ("request-id", "x-request-id")

    def body(self, error: ApiError, request_id: str) -> bytes:
        whole = msgspec.json.decode(envelope(error, request_id))
        whole["error"] |= _place(error, "messages")
        return msgspec.json.encode(whole)

    def event(self, error: ApiError, request_id: str) -> bytes:
        return b"event: error\ndata: " + self.body(error, request_id) + b"\n\n"


OPENAI_ERRORS = OpenAIErrors()
COMPLETION_ERRORS = OpenAIErrors("prompt")
RESPONSES_ERRORS = OpenAIErrors("input")
SHARED_ERRORS = SharedErrors()
