"""What engines are told to load: the settings of their model, the cores and memory of their worker,
and the weights that another one has packed already.

defines: EngineLoads
"""

from __future__ import annotations

import msgspec

from ..config import data_folder
from ..control import channel
from ..control.measured import Measured
from .cores import Share
from .launch import Launch
from .members import EngineMember
from .model_memory import kv_parts
from .shared_weights import SharedWeights


class EngineLoads:
    """Of one fleet."""

    def __init__(self, shares: list[Share], prefix_secret: int) -> None:
        """shares: of each worker's engines; those of several models have the same."""
        if not shares:
            raise ValueError("there is a worker")
        self._shares = shares
        self._prefix_secret = prefix_secret
        self._weights: dict[tuple[str, int], SharedWeights[EngineMember]] = {}
        """By the name of their model and memory node."""
        self._measured: dict[tuple[str, int], Measured] = {}
        """By that and worker: what the last engine found, for the next one to judge whether it
        holds."""

    def may_load(self, engine: EngineMember) -> bool:
        """False: not now, as another one packs the same weights; it is named later."""
        return self._weights_of(engine).may_load(engine)

    def send(self, engine: EngineMember, fleet: Launch) -> None:
        """fleet: of who is added now, with all models."""
        launch = engine.launch
        settings = launch.settings.engine
        share = self._shares[engine.worker]
        if share.threads and not settings.threads:
            settings = msgspec.structs.replace(settings, threads=share.threads)
        load = channel.Load(
            settings=settings,
            model_path=launch.model_path,
            prefix_secret=self._prefix_secret,
            cpus=share.cpus,
            engines=len(self._shares),
            kv_parts=kv_parts(fleet, launch),
            measured=self._measured.get((launch.model_name, engine.worker)),
            remembers=str(data_folder(launch.settings.edge)),
        )
        engine.child.send(load, self._weights_of(engine).fds)

    def packed(self, engine: EngineMember, fds: tuple[int, ...]) -> list[EngineMember]:
        """It hands its weights over. Returns those to ask for again. Raises OSError, ValueError."""
        self._weights_of(engine).take(fds)
        return self.settled(engine)

    def settled(self, engine: EngineMember) -> list[EngineMember]:
        """It has packed, or will not. Returns those to ask for again."""
        return self._weights_of(engine).settled(engine)

    def found(self, engine: EngineMember, measured: Measured | None) -> None:
        """On its cores; None: nothing new."""
        if measured is not None:
            self._measured[engine.launch.model_name, engine.worker] = measured

    def ended(self, engine: EngineMember) -> list[EngineMember]:
        """Returns those to ask for again."""
        return self._weights_of(engine).forget(engine)

    def drop(self, name: str) -> None:
        """No engine of that model is left: what was packed of it is memory for others."""
        for key in [key for key in self._weights if key[0] == name]:
            self._weights.pop(key).close()

    def close(self) -> None:
        """Idempotent."""
        for weights in self._weights.values():
            weights.close()

    def _weights_of(self, engine: EngineMember) -> SharedWeights[EngineMember]:
        key = engine.launch.model_name, self._shares[engine.worker].node
        return self._weights.setdefault(key, SharedWeights())
