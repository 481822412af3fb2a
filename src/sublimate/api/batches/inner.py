"""A request that no connection carries: its answer is kept instead of sent.

defines: InnerExchange
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...edge.errors import ApiError
from ...edge.exchange import Exchange, Header, Request
from ...edge.quota import Owner

CONTENT_TYPE = b"application/json"


class _NoWire:
    """Stands where the wire of an exchange is."""

    protocol = ""
    has_trailers = False
    chunked = False
    descriptor = -1
    connection_key = b""

    def last(self) -> None:
        """Nothing follows where nothing is carried."""


class InnerExchange(Exchange):
    """`on_answer` is called once, with the body and the error that it tells of (None: an answer);
    not after `cancel`."""

    __slots__ = ("_error", "_is_cancelled", "_on_answer")

    def __init__(
        self,
        path: str,
        body: bytes,
        owner: Owner,
        on_answer: Callable[[bytes, ApiError | None], None],
    ) -> None:
        request = Request("POST", path.encode(), {b"content-type": CONTENT_TYPE})
        request.body = body
        nowhere: Any = _NoWire()
        super().__init__(nowhere, request)
        self.owner = owner
        self._is_cancelled = False
        self._error: ApiError | None = None
        self._on_answer = on_answer

    def send(self, status: int, headers: list[Header], body: bytes) -> None:
        """The whole answer. Headers speak of a transport that there is not."""
        del headers
        if self.answered:
            return
        self.status = status
        self.answered = True
        self.on_gone = None
        if not self._is_cancelled:
            self._on_answer(body, self._error)

    def fail(self, error: ApiError) -> None:
        self._error = error
        super().fail(error)

    def start_stream(self, headers: list[Header], data: bytes, content_type: str = "") -> bool:
        raise RuntimeError("an inner request asks for a whole answer")

    def cancel(self) -> None:
        """As if its client had gone."""
        self._is_cancelled = True
        self.client_gone()

    @property
    def gone(self) -> bool:
        return self._is_cancelled and not self.answered

    def unsent_bytes(self) -> int:
        return 0
