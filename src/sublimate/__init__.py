"""Sublimate: a language-model server whose scheduler and executor are one resident C++ loop.

`Engine` runs that loop in the caller's process; `sublimate serve` runs it as a server. Names are
loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine.inprocess import Engine as Engine
    from .engine.results import Completion as Completion
    from .engine.results import Piece as Piece
    from .errors import SublimateError as SublimateError

    __version__: str

__all__ = ["Completion", "Engine", "Piece", "SublimateError", "__version__"]

_HOMES = {
    "Completion": ".engine.results",
    "Engine": ".engine.inprocess",
    "Piece": ".engine.results",
    "SublimateError": ".errors",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    # Costs more than the rest of the package's import: only when asked for.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sublimate")
    except PackageNotFoundError:
        return "0+source"
