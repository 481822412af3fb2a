"""The models of a server by all the names that requests may call them.

defines: Models, open_models
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .. import _core
from ..control.channel import Message, ModelPlace
from ..errors import ConfigError, nearest
from ..guard.engine_watch import Verdict
from . import limits
from .engine import EngineLink
from .errors import ApiError
from .loading import Loading, OnDemand
from .served import Adapted, NotLoadedError, Served
from .textmodel import TextModel

if TYPE_CHECKING:
    from .app import EdgeServer
    from .exchange import Exchange

LOG = logging.getLogger("sublimate.edge")
Made = TypeVar("Made")
VENDOR_PREFIX = "claude-"
"""An id that begins so and names no other model names the main one: clients work by changing the
base URL alone, and one of them lists only ids that contain this word."""
ALWAYS = ("default", "sublimate")
LATEST = ":latest"
"""A tag that some clients append to each name; a server has one version of a model."""
LISTED_MAX = 8
"""Names that the error for an unknown one repeats."""


@contextlib.contextmanager
def _cancelled_when_gone(exchange: Exchange) -> Generator[None]:
    """The current task, in whatever it awaits here."""
    task, before = asyncio.current_task(), exchange.on_gone

    def gone() -> None:
        if before is not None:
            before()
        if exchange.lease is not None:
            exchange.lease.cancel()
        if task is not None:
            task.cancel()

    exchange.on_gone = gone
    try:
        yield
    finally:
        if exchange.on_gone is gone:
            exchange.on_gone = before


class Models:
    """The first of them is the main one. What engines tell is of the model whose they are. On the
    event loop's thread only, but for `resolve` and `of`."""

    def __init__(self, served: Iterable[Served], loading: Loading, *, loads: bool = False) -> None:
        """loads: models are loaded when a request names them."""
        self.all = tuple(served)
        if len({one.name for one in self.all}) != len(self.all) or not self.all:
            raise ValueError("a server has a model, and each a name of its own")
        self.main = self.all[0]
        self.loading = loading
        self.loads = loads
        self.listed: dict[str, Served] = {}
        """What is shown to who asks for a list."""
        self.answers_all = False
        """An unknown name is answered by the main model."""
        self._names: dict[str, Served] = {}
        for one in self.all:
            self.listed |= {one.name: one, VENDOR_PREFIX + one.name: one}
            one.text_came = lambda one=one: self._add_names(one)
        # A model's own name before what another one is called too.
        for one in self.all:
            self._names.setdefault(one.name, one)
        for one in self.all:
            self._add_names(one)
        for name in ALWAYS:
            self._names.setdefault(name, self.main)
        self._engines: dict[int, Served] = {}
        """By number, of those that were told of, until they have left."""
        self._leaving: set[int] = set()

    def _add_names(self, served: Served) -> None:
        """What else it is called, if nothing else is."""
        for name in (VENDOR_PREFIX + served.name, served.name.lower(), served.display_name):
            self._names.setdefault(name, served)

    # ---- names ---------------------------------------------------------------------------------
    def add_adapters(self, served: Served, names: Sequence[str]) -> None:
        """Of a model, in the order of its engines: each by the model's name, a colon and its own,
        and by its own alone if no other model has one called so. Raises ConfigError."""
        for number, name in enumerate(names, 1):
            known, full = self._names.get(name), f"{served.name}:{name}"
            if full in self._names or (known is not None and not known.adapter):
                raise ConfigError(f"lora {name!r}: a model is called so already.")
            adapted = Adapted(served, full if known is not None else name, number)
            self._names[full] = self._names[adapted.name] = self.listed[adapted.name] = adapted

    @property
    def with_adapters(self) -> list[Served]:
        """All, each followed by its adapters."""
        adapted = {one.name: one for one in self._names.values() if one.adapter}.values()
        return [
            each
            for one in self.all
            for each in (one, *(other for other in adapted if other.parent == one.name))
        ]

    def add_aliases(self, aliases: Sequence[str]) -> None:
        """More names, each as ALIAS=MODEL with a name that is known. Raises ConfigError."""
        for text in aliases:
            alias, _, target = text.partition("=")
            if not (alias and target) or len(alias) > limits.IDENTIFIER_CHARACTERS_MAX:
                raise ConfigError(f"alias {text!r}: expected ALIAS=MODEL.")
            if target not in self._names:
                raise ConfigError(
                    f"alias {text!r}: no model {target!r} is served.{nearest(target, self._names)}"
                )
            self._names[alias] = self.listed[alias] = self._names[target]

    def resolve(self, requested: str) -> Served:
        """The model of an id of a request, in any case and with or without the tag LATEST. Raises
        ApiError (404) for an unknown one.

        A request's id is looked up, never joined to anything.
        """
        if len(requested) <= limits.IDENTIFIER_CHARACTERS_MAX:
            if (known := self._names.get(requested)) is not None:
                return known
            folded = requested.casefold().removesuffix(LATEST)
            for name, served in self._names.items():
                if name.casefold() == folded:
                    return served
            if folded.startswith(VENDOR_PREFIX):
                return self.main
        if self.answers_all:
            return self.main
        names = [one.name for one in self.with_adapters]
        more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
        raise ApiError(
            "unknown_model",
            model=requested[: limits.IDENTIFIER_CHARACTERS_MAX],
            served=", ".join(names[:LISTED_MAX]) + more,
        )

    def of(self, name: str) -> Served:
        """Of a Generation's model_name."""
        return self._names[name]

    # ---- what is not in memory -----------------------------------------------------------------
    async def once_loaded(
        self,
        exchange: Exchange,
        make: Callable[[], Awaitable[Made]],
        *,
        needs_engine: bool = False,
    ) -> Made:
        """What `make` returns, which is called again where it has found a model not loaded; with
        needs_engine, once an engine of it is there, too. Ends when the client of the exchange goes
        meanwhile. Raises ApiError, CancelledError."""
        with contextlib.ExitStack() as waits:
            while True:
                try:
                    return await make()
                except NotLoadedError as error:
                    error.needs_engine |= needs_engine
                    waits.enter_context(self.loading.waits(error.served))
                    with _cancelled_when_gone(exchange):
                        await self.loading.come(error)

    def refuse(self, why: Callable[[], ApiError]) -> None:
        """Nobody waits for a model any more."""
        self.loading.refuse(why)

    def owner_of(self, served: Served, owner: bytes) -> bytes:
        """Whose prompts of that model, or of it with that adapter, these are: what another one has
        read is of no use to it."""
        return owner if served is self.main else owner + served.name.encode()

    def failed(self, name: str, reason: str, message: str) -> None:
        """That model could not be loaded: one that this edge need not have, if others are newer."""
        served = self._names.get(name)
        if served is not None:
            served.engines.was_lost = False  # one that ended as it came
            self.loading.failed(served, reason, message)

    def file_changed(self, name: str) -> None:
        """That model's file is another one. Engines that have the one before are of no use."""
        if (served := self._names.get(name)) is None:
            return
        for link in served.links:
            self.lost(link.number)
        served.engines.was_lost = False
        self.loading.file_changed(served)

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
        """As Engines.up, of that model; empty: the main one. Where nothing has been read of its
        file yet it is taken once that was, and what is wrong with it is found then."""
        served = self._engines[number] = self._names[model] if model else self.main

        def arrive() -> None:
            served.engines.up(region, info, on_broken, number, worker, prefixes)

        def arrive_late() -> None:
            try:
                arrive()
            except _core.CoreError:
                LOG.exception("the region of an engine cannot be used")
                served.engines.lost(number)
                on_broken()

        is_read = served.text_if_read is not None
        self.loading.arrived(served, number, arrive if is_read else arrive_late)

    def engines_of(self, number: int) -> Served:
        """Whose engine that is. One that nobody has told of is the main model's."""
        return self._engines.get(number, self.main)

    def lost(self, number: int, reason: str = "", message: str = "") -> None:
        """As Engines.lost."""
        served = self.engines_of(number)
        # One that was not to leave comes back under its number, or leaves before it does.
        if number in self._leaving:
            self._leaving.discard(number)
            del self._engines[number]
        served.engines.lost(number, reason, message)
        self.loading.left(served, number)

    def leave(self, number: int, idle: Callable[[], None]) -> None:
        """As Engines.leave. `idle` at once where nobody has told of it."""
        served = self._engines.get(number)
        if served is None:
            idle()
            return
        if any(link.number == number for link in served.links):
            self._leaving.add(number)
        else:
            del self._engines[number]
        self.loading.left(served, number)
        served.engines.leave(number, idle)

    def told(self, number: int, verdict: Verdict) -> None:
        """What the watchdog has found of an engine."""
        self.engines_of(number).standing.told(number, verdict)

    def standing_shown(self) -> list[dict[str, Any]]:
        """Of the engines that are not well, for /readyz."""
        return [shown for one in self.all for shown in one.standing.shown()]

    @property
    def are_tripped(self) -> bool:
        """None of what is in memory is to get anything new."""
        return all(one.engines.is_tripped for one in self.all if not one.rests)

    def unready_reason(self) -> str:
        """Empty if one of them would serve a new request; else why the first does not."""
        reasons = [one.unready_reason() for one in self.all]
        return reasons[0] if all(reasons) else ""

    def is_healthy(self) -> bool:
        """What is in memory makes steps where it has work; of several models, some of it."""
        there = [one for one in self.all if not one.rests]
        engines = [one.engines.first for one in there]
        return not there or any(engine is not None and engine.is_healthy() for engine in engines)

    def close(self) -> None:
        """Forget all engines."""
        self.loading.close()
        for one in self.all:
            one.engines.close()


def _tell_nobody(message: Message) -> None:
    del message


def open_models(
    server: EdgeServer, text: TextModel, on_demand: OnDemand | None, adapters: tuple[str, ...]
) -> Models:
    """Those that a server begins with, by all their names. Raises ConfigError for an alias of none
    of them, or an adapter called like one."""
    places = (ModelPlace(name=text.name, path="", adapters=adapters),)
    if on_demand is not None:
        places = (on_demand.main, *on_demand.more)
    routes = server.settings.routing == "prefix"
    texts = [text, *[None] * (len(places) - 1)]
    tell = on_demand.tell if on_demand is not None else _tell_nobody
    loading = Loading(server.loop, server.aside, tell, server.settings.queue_max)
    served = [
        Served(where, of, server.loop, server.stories, server.place, routes=routes)
        for where, of in zip(places, texts, strict=True)
    ]
    models = Models(served, loading, loads=on_demand is not None)
    for one in models.all:
        one.loads = models.loads
    for one in models.all:
        models.add_adapters(one, one.where.adapters)
    models.add_aliases(server.settings.aliases)
    models.answers_all = server.settings.any_model
    return models
