"""Sublimate: a language-model server whose scheduler and executor are one resident C++ loop.

`Engine` runs that loop in the caller's process; `sublimate serve` runs it as a server. Names are
loaded when they are first used, so that importing the package costs nothing but the look at its
signature: a policy or decision module that was changed is an InvalidSignatureError at import.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .policy.signature import check_or_exit, is_own, way_back

if TYPE_CHECKING:
    from .engine.inprocess import Engine as Engine
    from .engine.results import Completion as Completion
    from .engine.results import Piece as Piece
    from .errors import InvalidSignatureError as InvalidSignatureError
    from .errors import SublimateError as SublimateError

    __version__: str

__all__ = [
    "Completion",
    "Engine",
    "InvalidSignatureError",
    "Piece",
    "SublimateError",
    "__version__",
    "provenance_kind",
]

_PROVENANCE = check_or_exit(__path__, sys.argv)
if is_own(sys.argv):
    from .extension import explain_failures

    explain_failures(way_back(_PROVENANCE.kind))

_HOMES = {
    "Completion": ".engine.results",
    "Engine": ".engine.inprocess",
    "InvalidSignatureError": ".errors",
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


def provenance_kind() -> str:
    """Who made this installation: "release", "dev", or "unsigned" for a checkout of the sources."""
    return _PROVENANCE.kind


def _version() -> str:
    # Costs more than the rest of the package's import: only when asked for.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sublimate")
    except PackageNotFoundError:
        return "0+source"
