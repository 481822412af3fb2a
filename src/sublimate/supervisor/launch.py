"""What the processes of a server are started with.

defines: EDGE_MODULE, stamp_of, ModelLaunch, Launch
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..config import EngineSettings, Settings
from ..control import channel
from ..guard.engine_watch import EngineWatch
from ..model.adapters import parse_adapter
from ..model.source import stamp

EDGE_MODULE = "sublimate.edge"
STAMP_BYTES = 7
"""Of a digest that a message can hold as a number."""
Stamp = tuple[int, ...]
Identity = tuple[str, str, Stamp]


def stamp_of(path: str, lora: Sequence[str]) -> Stamp:
    """Of a model with its adapters, whose order counts: requests name them by number. Raises
    OSError."""
    if not lora:
        return stamp(path)
    named = hashlib.blake2b("\n".join(lora).encode(), digest_size=STAMP_BYTES).digest()
    paths = [path, *(str(parse_adapter(text)[1]) for text in lora)]
    parts = [part for each in paths for part in stamp(each)]
    return (*parts, int.from_bytes(named))


def _names_of(lora: Sequence[str]) -> tuple[str, ...]:
    return tuple(parse_adapter(text)[0] for text in lora)


def _stamp_now(path: str, before: Stamp, lora: Sequence[str]) -> Stamp:
    if not before:
        return before
    try:
        return stamp_of(path, lora)
    except OSError:
        return before  # whoever reads it says so


class ModelLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """A model beside the main one."""

    name: str
    path: str
    engine: EngineSettings
    tool_format: str = ""
    preload: bool = False
    model_stamp: Stamp = ()
    model_bytes: int = 0
    """Of its files."""

    @property
    def model(self) -> Identity:
        """As Launch.model."""
        return self.name, self.path, self.model_stamp


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What members are started with; another one after `sublimate reload`."""

    settings: Settings
    model_path: str
    model_name: str
    edge_module: str
    model_stamp: Stamp = ()
    """Tells one file, folder or set of parts at that path, and at those of its adapters, from
    another."""
    model_bytes: int = 0
    """Of its files."""
    more: tuple[ModelLaunch, ...] = ()
    """Models beside that one, the main one; an engine is started with one alone."""
    make_watch: Callable[[], EngineWatch] | None = None
    """For tests; None: as the settings say."""

    def watch(self) -> EngineWatch:
        """Of one engine."""
        server = self.settings.server
        if self.make_watch is not None:
            return self.make_watch()
        return EngineWatch(server.watchdog_seconds, server.gpu_temperature_max)

    def __post_init__(self) -> None:
        if not self.model_path or not self.edge_module:
            raise ValueError("a model and what serves it are to be named")
        if len({self.model_name, *(one.name for one in self.more)}) != 1 + len(self.more):
            raise ValueError("each model has a name of its own")

    @property
    def model(self) -> Identity:
        """An edge's token ids mean something to engines of the same one only."""
        return self.model_name, self.model_path, self.model_stamp

    @property
    def models(self) -> frozenset[Identity]:
        """All that an edge started with this makes token ids for."""
        return frozenset((self.model, *(one.model for one in self.more)))

    @property
    def names(self) -> list[str]:
        """Of all models, the main one first."""
        return [self.model_name, *(one.name for one in self.more)]

    @property
    def loads(self) -> bool:
        """Models come into memory when they are asked for, and leave it."""
        return bool(self.more) or self.settings.server.idle_unload > 0

    def start(self, **more: Any) -> channel.Start:
        """What an edge is told; more: of that edge."""
        return channel.Start(
            settings=self.settings.edge,
            log=self.settings.log,
            model_path=self.model_path,
            model_name=self.model_name,
            model_bytes=self.model_bytes,
            adapters=_names_of(self.settings.engine.lora),
            loads=self.loads,
            more_models=tuple(
                channel.ModelPlace(
                    name=one.name,
                    path=one.path,
                    tool_format=one.tool_format,
                    file_bytes=one.model_bytes,
                    adapters=_names_of(one.engine.lora),
                )
                for one in self.more
            ),
            **more,
        )

    def of(self, name: str) -> Launch | None:
        """For engines of one of its models; None: it has none of that name."""
        if name == self.model_name:
            return msgspec.structs.replace(self, more=())
        one = next((one for one in self.more if one.name == name), None)
        if one is None:
            return None
        return msgspec.structs.replace(
            self,
            settings=msgspec.structs.replace(self.settings, engine=one.engine),
            model_path=one.path,
            model_name=one.name,
            model_stamp=one.model_stamp,
            model_bytes=one.model_bytes,
            more=(),
        )

    def as_it_is(self) -> Launch:
        """With the stamps of the files that are there now, which a process would read."""
        more = tuple(
            msgspec.structs.replace(
                one, model_stamp=_stamp_now(one.path, one.model_stamp, one.engine.lora)
            )
            for one in self.more
        )
        now = _stamp_now(self.model_path, self.model_stamp, self.settings.engine.lora)
        return msgspec.structs.replace(self, model_stamp=now, more=more)

    def with_stamp(self, model: Identity) -> Launch:
        """With what is now known of the file of one of its models."""
        name, _, now = model
        if name == self.model_name:
            return msgspec.structs.replace(self, model_stamp=now)
        more = tuple(
            msgspec.structs.replace(one, model_stamp=now) if one.name == name else one
            for one in self.more
        )
        return msgspec.structs.replace(self, more=more)

    def loads_otherwise(self, other: Launch) -> bool:
        """An engine started with this is another one."""
        return (self.settings.engine, self.model) != (other.settings.engine, other.model)
