"""The models of a server by all the names that requests may call them.

defines: Models
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .. import _core
from ..errors import ConfigError, nearest
from ..guard.engine_watch import Verdict
from . import limits
from .engine import EngineLink
from .errors import ApiError
from .served import Served

VENDOR_PREFIX = "claude-"
"""An id that begins so and names no other model names the main one: clients work by changing the
base URL alone, and one of them lists only ids that contain this word."""
ALWAYS = ("default", "sublimate")


class Models:
    """The first of them is the main one. What engines tell is of the model whose they are. On the
    event loop's thread only, but for `resolve` and `of`."""

    def __init__(self, served: Iterable[Served]) -> None:
        self.all = tuple(served)
        if len({one.name for one in self.all}) != len(self.all) or not self.all:
            raise ValueError("a server has a model, and each a name of its own")
        self.main = self.all[0]
        self.listed: dict[str, Served] = {}
        """What is shown to who asks for a list."""
        self._names: dict[str, Served] = {}
        for one in self.all:
            self.listed |= {one.name: one, VENDOR_PREFIX + one.name: one}
        # A model's own name before what another one is called too.
        for names_of in (_own_names, _more_names):
            for one in self.all:
                for name in names_of(one):
                    self._names.setdefault(name, one)
        for name in ALWAYS:
            self._names.setdefault(name, self.main)
        self._engines: dict[int, Served] = {}
        """By number, of those that were told of."""

    # ---- names ---------------------------------------------------------------------------------
    def add_aliases(self, aliases: Sequence[str]) -> None:
        """More names, each as ALIAS=MODEL with a name that is known. Raises ConfigError."""
        for text in aliases:
            alias, _, target = text.partition("=")
            if not alias or len(alias) > limits.IDENTIFIER_CHARACTERS_MAX:
                raise ConfigError(f"alias {text!r}: expected ALIAS=MODEL.")
            if target not in self._names:
                raise ConfigError(
                    f"alias {text!r}: no model {target!r} is served.{nearest(target, self._names)}"
                )
            self._names[alias] = self.listed[alias] = self._names[target]

    def resolve(self, requested: str) -> Served:
        """The model of an id of a request. Raises ApiError (404) for an unknown one.

        A request's id is looked up, never joined to anything.
        """
        if len(requested) <= limits.IDENTIFIER_CHARACTERS_MAX:
            if (known := self._names.get(requested)) is not None:
                return known
            if requested.startswith(VENDOR_PREFIX):
                return self.main
        raise ApiError("unknown_model", model=requested[: limits.IDENTIFIER_CHARACTERS_MAX])

    def of(self, name: str) -> Served:
        """Of a Generation's model_name."""
        return self._names[name]

    # ---- engines -------------------------------------------------------------------------------
    @property
    def links(self) -> list[EngineLink]:
        """All that take requests, of all models."""
        return [link for one in self.all for link in one.links]

    def up(
        self,
        model: str,
        region: _core.Region,
        info: dict[str, Any],
        on_broken: Callable[[], None],
        number: int = 0,
        worker: int = 0,
        prefixes: _core.PrefixTable | None = None,
    ) -> None:
        """As Engines.up, of that model; empty: the main one."""
        served = self._engines[number] = self._names[model] if model else self.main
        served.engines.up(region, info, on_broken, number, worker, prefixes)

    def engines_of(self, number: int) -> Served:
        """Whose engine that is. One that nobody has told of is the main model's."""
        return self._engines.get(number, self.main)

    def lost(self, number: int, reason: str = "", message: str = "") -> None:
        """As Engines.lost."""
        self.engines_of(number).engines.lost(number, reason, message)

    def leave(self, number: int, idle: Callable[[], None]) -> None:
        """As Engines.leave."""
        self.engines_of(number).engines.leave(number, idle)

    def told(self, number: int, verdict: Verdict) -> None:
        """What the watchdog has found of an engine."""
        self.engines_of(number).standing.told(number, verdict)

    def standing_shown(self) -> list[dict[str, Any]]:
        """Of the engines that are not well, for /readyz."""
        return [shown for one in self.all for shown in one.standing.shown()]

    def close(self) -> None:
        """Forget all engines."""
        for one in self.all:
            one.engines.close()


def _own_names(served: Served) -> tuple[str, ...]:
    return served.name, VENDOR_PREFIX + served.name


def _more_names(served: Served) -> tuple[str, ...]:
    return served.name.lower(), served.text.display_name
