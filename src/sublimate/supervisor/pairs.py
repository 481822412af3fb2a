"""The regions between engines and edges: every engine has one with every edge of its model.

    make:     fresh Region -> Attach to the engine
    complete: Attached -> EngineUp to the edge
    drop:     Detach to the engine; plan: drop, and make again with back-off

defines: Pair, Pairs
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from .. import _core
from ..control import channel
from .backoff import Backoff
from .members import EdgeMember, EngineMember


class Pair:
    """One engine and one edge, with the region between them where there is one."""

    def __init__(self, engine: EngineMember, edge: EdgeMember) -> None:
        self.engine = engine
        self.edge = edge
        self.number = 0
        """Of the region; another one has another."""
        self.region: _core.Region | None = None
        self.is_up = False
        """EngineUp was sent and not taken back."""
        self.backoff = Backoff()
        self.due_seconds: float | None = None
        """When it is made again."""

    def forget(self) -> None:
        """Without a word to anybody."""
        self.region = None
        self.is_up = False
        self.due_seconds = None


class Pairs:
    """All of them."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[EngineMember, EdgeMember], Pair] = {}
        self._last_number = 0

    def __iter__(self) -> Iterator[Pair]:
        return iter(list(self._pairs.values()))

    def of_engine(self, engine: EngineMember) -> list[Pair]:
        return [pair for pair in self._pairs.values() if pair.engine is engine]

    def of_edge(self, edge: EdgeMember) -> list[Pair]:
        return [pair for pair in self._pairs.values() if pair.edge is edge]

    def are_up(self, engines: list[EngineMember], edges: list[EdgeMember]) -> bool:
        """Each of these with each of those that serve the same model."""
        made = [
            self._pairs.get((engine, edge))
            for engine in engines
            for edge in edges
            if engine.launch.model in edge.launch.models
        ]
        return all(pair is not None and pair.is_up for pair in made)

    def make(self, engine: EngineMember, edge: EdgeMember) -> Pair | None:
        """A fresh region for an engine and an edge that live now; None if one of them does not,
        or they serve different models. Raises CoreError where there is no memory for it; then the
        pair is there without one."""
        if engine.role == "leaving":
            raise ValueError("one that leaves begins nothing")
        pair = self._pairs.setdefault((engine, edge), Pair(engine, edge))
        self.drop(pair)
        if engine.info is None or not edge.child.alive:
            return None
        if engine.launch.model not in edge.launch.models:
            return None  # to that engine the edge's token ids would be another text
        if pair.region is not None:
            raise RuntimeError("a pair has one region")
        self._last_number += 1
        pair.number = self._last_number
        pair.backoff.started(time.monotonic())
        pair.region = _core.Region.create(int(engine.info["vocabulary"]))
        engine.child.send(channel.Attach(edge=pair.number), pair.region.fds)
        return pair

    def complete(self, engine: EngineMember, number: int) -> EdgeMember | None:
        """The engine serves that region: tell the edge. None: it is no pair's any more, or the
        edge has been told that the engine leaves."""
        pair = next((one for one in self.of_engine(engine) if one.number == number), None)
        leaves = engine.role == "leaving"
        if pair is None or pair.region is None or engine.info is None or leaves:
            engine.child.send(channel.Detach(edge=number))
            return None
        up = channel.EngineUp(
            info=engine.info,
            edge=number,
            engine=engine.number,
            worker=engine.worker,
            model=engine.launch.model_name,
        )
        pair.edge.child.send(up, (*pair.region.fds, engine.prefix_fd))
        pair.is_up = True
        return pair.edge

    def plan(self, pair: Pair) -> float:
        """Its region is of no use: another one, not at once if that happens often. Returns the
        delay in seconds."""
        self.drop(pair)
        now = time.monotonic()
        delay = pair.backoff.ended(now)
        pair.due_seconds = now + delay
        return delay

    def drop(self, pair: Pair) -> None:
        if pair.region is not None:
            pair.engine.child.send(channel.Detach(edge=pair.number))
        pair.forget()

    def end_engine(self, engine: EngineMember) -> None:
        """It has ended, and its regions with it."""
        for pair in self.of_engine(engine):
            pair.forget()

    def remove_edge(self, edge: EdgeMember) -> None:
        """It does not come back."""
        for pair in self.of_edge(edge):
            self.drop(pair)
            del self._pairs[pair.engine, edge]

    def remove_engine(self, engine: EngineMember) -> None:
        """It does not come back."""
        for pair in self.of_engine(engine):
            pair.forget()
            del self._pairs[engine, pair.edge]
