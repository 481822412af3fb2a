"""What takes requests that no engine here can take, if the server has something that does.

defines: REASONS, Relief, is_relieved
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .errors import ApiError
from .exchange import Exchange

if TYPE_CHECKING:
    from .app import EdgeServer
    from .stream import Answer

REASONS = {
    "overloaded": "overload",
    "engine_unavailable": "engine_unavailable",
    "engine_tripped": "engine_unavailable",
    "load_failed": "engine_unavailable",
    "hardware_not_supported": "hardware",
}
"""Errors that another server may not have, and what they count as."""


class Relief(Protocol):
    """On the event loop's thread only."""

    def check(self, exchange: Exchange) -> None:
        """Before a request goes to an engine. Raises ApiError (503) where the engine has failed and
        another request is trying it."""
        ...

    def is_open(self, exchange: Exchange) -> bool:
        """Whether the fallback would answer this request."""
        ...

    def weigh(self, exchange: Exchange) -> None:
        """Before it is handed over. Raises ApiError (529) where the decision about the request is
        that another server answers it."""
        ...

    def takes(self, exchange: Exchange, error: ApiError) -> bool:
        """Whether it answers in place of an error."""
        ...

    def begun(self, answer: Answer) -> None:
        """It was handed over; `ended` is called for it, too."""
        ...

    def ended(self, answer: Answer) -> None:
        """Of an engine here."""
        ...


def is_relieved(server: EdgeServer, exchange: Exchange, error: ApiError) -> bool:
    """Another server answers in place of the error. One that could have and does not is counted."""
    if server.relief is not None and server.relief.takes(exchange, error):
        return True
    if error.shed_reason or (server.relief is not None and error.code in REASONS):
        reason = error.shed_reason or REASONS[error.code]
        server.metrics.fallbacks[reason, "none"] += 1
    return False
