"""What the supervisor tells whoever watches it. The command line draws this; tests record it.

defines: Reporter, SilentReporter
"""

from __future__ import annotations

from typing import Any, Protocol


class Reporter(Protocol):
    """All calls come from the supervisor's thread and must return quickly."""

    def loading(self, fraction: float) -> None:
        """The engine has loaded this part, 0 to 1."""
        ...

    def ready(self, url: str, engine: dict[str, Any], edge: dict[str, Any]) -> None:
        """Edge and engine serve; at the first start and again after each restart."""
        ...

    def lost(self, who: str, why: str, restart_seconds: float) -> None:
        """`who` (engine or edge) ended; it is started again after so long."""
        ...

    def unavailable(self, url: str, reason: str, message: str) -> None:
        """The engine cannot start and the edge stays to say so (setting `stay`)."""
        ...

    def reloaded(self, failure: str) -> None:
        """All workers were replaced; or not, and why."""
        ...

    def model(self, name: str, what: str) -> None:
        """A model has come into memory or left it, or could not: told in a few words."""
        ...

    def draining(self, seconds: float) -> None:
        """A first signal came: streams have so long to finish."""
        ...

    def stopped(self) -> None:
        """All children are gone."""
        ...


class SilentReporter:
    """Says nothing."""

    def loading(self, fraction: float) -> None: ...

    def ready(self, url: str, engine: dict[str, Any], edge: dict[str, Any]) -> None: ...

    def lost(self, who: str, why: str, restart_seconds: float) -> None: ...

    def unavailable(self, url: str, reason: str, message: str) -> None: ...

    def reloaded(self, failure: str) -> None: ...

    def model(self, name: str, what: str) -> None: ...

    def draining(self, seconds: float) -> None: ...

    def stopped(self) -> None: ...
