"""Errors as Ollama's clients read them: the texts of the one table, without any envelope.

defines: OllamaErrors, OLLAMA_ERRORS
"""

from __future__ import annotations

import msgspec

from ...edge.errors import ApiError, ErrorShape

OVERLOADED, UNAVAILABLE = 529, 503
"""Their clients know the second."""


class OllamaErrors(ErrorShape):
    def status(self, error: ApiError) -> int:
        return UNAVAILABLE if error.kind.status == OVERLOADED else error.kind.status

    def body(self, error: ApiError, request_id: str) -> bytes:
        del request_id  # in the header
        return msgspec.json.encode({"error": error.text, **error.extra})

    def event(self, error: ApiError, request_id: str) -> bytes:
        return self.body(error, request_id) + b"\n"


OLLAMA_ERRORS = OllamaErrors()
