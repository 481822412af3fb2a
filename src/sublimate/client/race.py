"""Several ways to connect, tried in order with a little delay between their starts; the first that
is there carries the request. Only handshakes race: a request is sent once.

defines: Entrant, race
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Connection = TypeVar("Connection")


@dataclass(frozen=True, slots=True)
class Entrant(Generic[Connection]):
    """One way. `connect` keeps what it makes, also when it comes too late for this request."""

    name: str
    after_seconds: float
    """Its start, if those before it have neither won nor failed by then."""
    connect: Callable[[], Awaitable[Connection]]


async def race(
    entrants: Sequence[Entrant[Connection]],
    deadline_seconds: float,
    late: set[asyncio.Task[Connection]],
) -> tuple[str, Connection] | None:
    """The first that connects; None if nobody has at the deadline, or all have failed. Who still
    runs then goes on, held in `late` until it has ended."""
    starts = [entrant.after_seconds for entrant in entrants]
    if not entrants or starts != sorted(starts):
        raise ValueError("entrants stand in the order of their starts")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    waiting = list(entrants)
    running: dict[asyncio.Task[Connection], str] = {}
    try:
        while waiting or running:
            passed = loop.time() - begun
            if waiting and (not running or passed >= waiting[0].after_seconds):
                entrant = waiting.pop(0)
                running[asyncio.ensure_future(_connect(entrant))] = entrant.name
                continue
            until = min([deadline_seconds, *(entrant.after_seconds for entrant in waiting[:1])])
            done, _ = await asyncio.wait(
                running, timeout=max(0.0, until - passed), return_when=asyncio.FIRST_COMPLETED
            )
            ended = [(task, name) for task, name in running.items() if task in done]
            for task, _ in ended:
                del running[task]
            for task, name in [pair for pair in ended if pair[0].exception() is None]:
                return name, task.result()
            if not done and loop.time() - begun >= deadline_seconds:
                return None
        return None
    finally:
        for task in running:
            late.add(task)
            task.add_done_callback(late.discard)
            task.add_done_callback(_heard)


async def _connect(entrant: Entrant[Connection]) -> Connection:
    return await entrant.connect()


def _heard(task: asyncio.Task[Connection]) -> None:
    """Its failure was noted by who connected."""
    if not task.cancelled():
        task.exception()
