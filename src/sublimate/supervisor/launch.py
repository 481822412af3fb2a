"""What the processes of a server are started with.

defines: EDGE_MODULE, Launch
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..config import Settings
from ..guard.engine_watch import EngineWatch
from ..model.source import stamp

EDGE_MODULE = "sublimate.edge"


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What members are started with; another one after `sublimate reload`."""

    settings: Settings
    model_path: str
    model_name: str
    edge_module: str
    model_stamp: tuple[int, ...] = ()
    """Tells one file, folder or set of parts at that path from another."""
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

    @property
    def model(self) -> tuple[str, tuple[int, ...]]:
        """An edge's token ids mean something to engines of the same one only."""
        return self.model_path, self.model_stamp

    def as_it_is(self) -> Launch:
        """With the stamp of the file that is there now, which a process would read."""
        if not self.model_stamp:
            return self
        try:
            return msgspec.structs.replace(self, model_stamp=stamp(self.model_path))
        except OSError:
            return self  # whoever reads it says so

    def loads_otherwise(self, other: Launch) -> bool:
        """An engine started with this is another one."""
        return (self.settings.engine, self.model) != (other.settings.engine, other.model)
