"""The HTTP library whose clients the installed anthropic package takes: httpx, or httpx2 from its
release 2 on. Both have one interface; a client of one is refused by who wants the other.

defines: library_name, load_library, CarrierError, translated
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from importlib import import_module
from typing import Any, Literal

from ..errors import ConfigError

Failure = Literal[
    "ConnectError",
    "ConnectTimeout",
    "ReadError",
    "ReadTimeout",
    "WriteTimeout",
    "RemoteProtocolError",
]
"""Exceptions of the library that a carrier ends in."""

LIBRARIES = ("httpx2", "httpx")
INSTALL = "pip install 'sublimate[client]'"


LEAVING = "server leaves"
"""Reason of a call that a server which ends has not begun: it may go over another connection."""


class CarrierError(Exception):
    """A carrier has failed; what the caller sees is the library's exception of that name."""

    def __init__(
        self,
        failure: Failure,
        text: str,
        *,
        unsent: bool = False,
        lost: bool = False,
        reason: str = "",
    ) -> None:
        """unsent: the server has certainly not begun to answer, so another carrier may. lost: the
        connection went before there was an answer, and the server may be at work on it. reason: two
        or three words for reports (`Used.fallback`), of what kept a carrier from being used."""
        super().__init__(text)
        if unsent and lost:
            raise ValueError("what was not sent is not lost")
        self.failure: Failure = failure
        self.unsent = unsent
        self.lost = lost
        self.reason = reason


def library_name() -> str:
    """That of the installed anthropic package, else the newer one that is installed. Raises
    ConfigError if there is none."""
    try:
        needed = importlib.metadata.requires("anthropic") or []
    except importlib.metadata.PackageNotFoundError:
        needed = []
    wanted = [name for name in LIBRARIES for line in needed if _is_for(line, name)]
    for name in (*wanted, *LIBRARIES):
        if importlib.util.find_spec(name) is not None:
            return name
    raise ConfigError(f"The client needs httpx: {INSTALL}")


def _is_for(requirement: str, name: str) -> bool:
    """Is this line of a package's metadata about that package, and not only for an extra?"""
    rest = requirement.removeprefix(name)
    return rest != requirement and not rest[:1].isalnum() and "extra ==" not in rest


def load_library(name: str = "") -> Any:
    """The module. Raises ConfigError."""
    name = name or library_name()
    if name not in LIBRARIES:
        raise ConfigError(f"library: {name!r} is none of {', '.join(LIBRARIES)}.")
    if importlib.util.find_spec(name) is None:
        raise ConfigError(f"{name} is not installed: {INSTALL}")
    return import_module(name)


def translated(library: Any, error: CarrierError, request: Any) -> Exception:
    """The library's exception, about this request."""
    kind = getattr(library, error.failure)
    return kind(str(error), request=request)
