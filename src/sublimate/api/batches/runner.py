"""Runs the requests of batches behind everybody who waits for an answer.

A request begins only while nothing waits for the engine: alone some at once, beside live requests
one. It is an ordinary request of its owner, under the owner's limits; what the server could not do
at the moment (429, 503, 529, an engine that was lost) is tried again. What an owner has no place
for waits until one is free, and one more where he has several: what is live takes that one, then
the places of his batches, whose requests end for it and run again later. A request whose key was
removed ends with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from ...config import data_folder
from ...edge.errors import ApiError, envelope
from ...edge.exchange import new_identifier
from ..folder import data_unavailable, is_signed_by, lock_folder
from ..messages.handlers import create_message
from .inner import InnerExchange
from .store import BatchStore, Job, State

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

LOG = logging.getLogger("sublimate.batches")
Result = TypeVar("Result")

FOLDER = "batches"
FILE = "batches.sqlite"
PATH = "/v1/messages"
JOBS_AHEAD = 64
"""Read from the file at a time."""
BESIDE_LIVE = 1
"""Batch requests that may run beside live ones."""
LOOK_SECONDS = 0.05
"""Between two looks at whether there is room."""
EXPIRE_SECONDS = 60.0
TAKE_OVER_SECONDS = 1.0
"""The same, while the edge before this one may still have it."""
RESUME_SECONDS = 60.0
"""Between two tries to have the folder."""
GIVEN_WAY_SECONDS = 2.0
"""Until an owner's next request may begin when one had to end: those who wait came in a crowd."""
RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 60.0
"""However long a limit says: it may be another one soon."""
RETRIED = frozenset((429, 503, 529))
LOST = "engine_lost"
TRIES_MAX = 5
"""Of a request whose engine is lost each time: it may be the reason."""


def resume(server: EdgeServer, logged: str = "") -> None:
    """Go on with the batches that an earlier process kept. A folder that cannot be had now, as
    another server of this machine has it, is tried again: everything else is served meanwhile.
    logged: why it could not be had before."""
    if server.place.worker or server.leaving:
        return  # worker 0 runs them all
    if server.draining or not (data_folder(server.settings) / FOLDER / FILE).is_file():
        return
    try:
        server.part(Batches)
    except ApiError as error:
        level, why = logging.WARNING, error.text
        if error.code == "data_in_use":
            if is_signed_by(data_folder(server.settings) / FOLDER, _signature(server)):
                level, why = logging.INFO, "the edge before this one still has their folder."
            elif not server.place.secret:
                level = logging.INFO
        if why != logged:
            LOG.log(level, "batches wait: %s", why)
        is_new = time.monotonic() - server.began_seconds < RESUME_SECONDS
        is_soon_free = is_new and error.code == "data_in_use"
        seconds = TAKE_OVER_SECONDS if is_soon_free else RESUME_SECONDS
        server.loop.call_later(seconds, resume, server, why)


def _signature(server: EdgeServer) -> bytes:
    """The same for all edges of a server and for no other server; empty without a supervisor."""
    return server.place.key("data folder").hex().encode() if server.place.secret else b""


class Batches:
    """Part of one server. On the event loop's thread, but for what `stored` is given."""

    def __init__(self, server: EdgeServer) -> None:
        """Raises ApiError if another process has the folder, or it cannot be used."""
        self._server = server
        folder = data_folder(server.settings) / FOLDER
        try:
            self._lock = lock_folder(folder, signature=_signature(server))
        except OSError as error:
            raise data_unavailable(error) from error
        self._thread = ThreadPoolExecutor(1, "batches")
        try:
            self._store = self._thread.submit(BatchStore, folder / FILE).result()
        except (OSError, sqlite3.Error) as error:
            self._thread.shutdown()
            os.close(self._lock)  # else the next try, and every other server, finds it taken
            raise data_unavailable(error) from error
        self._running: dict[tuple[str, int], InnerExchange] = {}
        self._taken: set[tuple[str, int]] = set()
        """Read from the file and not finished there."""
        self._done: list[tuple[Job, State, bytes]] = []
        self._flush: asyncio.Task[None] | None = None
        self._tries: dict[tuple[str, int], int] = {}
        self._held: dict[bytes, float] = {}
        """Owner -> when its next request may begin."""
        self._full: set[bytes] = set()
        """Owners that had no place when one of their requests was to begin."""
        self._expire_at = 0.0
        self._wake = asyncio.Event()
        self._is_draining = False
        self._task = server.loop.create_task(self._work())

    async def stored(self, action: Callable[[BatchStore], Result]) -> Result:
        """The result of a function of the store, on its thread. Raises ApiError if the disk does
        not do its part."""
        try:
            return await self._server.loop.run_in_executor(self._thread, action, self._store)
        except (OSError, sqlite3.Error) as error:
            raise data_unavailable(error) from error

    def wake(self) -> None:
        """There may be something to do."""
        self._wake.set()

    def stop(self, batch: str) -> None:
        """End what runs of a batch; the store has been told."""
        for key in [key for key in self._running if key[0] == batch]:
            self._running.pop(key).cancel()
            self._taken.discard(key)
        for key in [key for key in self._tries if key[0] == batch]:
            del self._tries[key]

    # ---- part of a server ----------------------------------------------------------------------
    def drain(self) -> None:
        """Begin nothing; what runs is run again by the next process."""
        self._is_draining = True
        self._task.cancel()
        for exchange in self._running.values():
            exchange.cancel()
        self._running.clear()

    def close(self) -> None:
        self.drain()
        self._thread.submit(self._store.finish, self._done, time.time())
        self._thread.submit(self._store.close)
        self._thread.shutdown(wait=True)
        if self._flush is not None:
            self._flush.cancel()
        os.close(self._lock)

    # ---- work ----------------------------------------------------------------------------------
    async def _work(self) -> None:
        while True:
            try:
                seconds = await self._begin_some()
            except ApiError:
                seconds = RETRY_SECONDS  # the disk fails, and the log says so
            except Exception:
                # Whatever it was, the next look may find it gone; without this task no batch ends.
                LOG.exception("batches wait")
                seconds = RETRY_SECONDS
            await self._pause(seconds)

    async def _begin_some(self) -> float:
        """Begin what may begin now; seconds until there may be more."""
        if time.monotonic() >= self._expire_at:
            self._expire_at = time.monotonic() + EXPIRE_SECONDS
            await self.stored(lambda store: store.expire(time.time()))
        jobs = await self._next_jobs()
        for job in jobs:
            if not await self._begin_when_quiet(job):
                break
        if jobs or self._full:
            return LOOK_SECONDS
        held = [until - time.monotonic() for until in self._held.values()]
        return max(LOOK_SECONDS, min([*held, EXPIRE_SECONDS]))

    async def _next_jobs(self) -> list[Job]:
        self._full = {owner for owner in self._full if not self._has_place(owner)}
        taken, held = frozenset(self._taken), [*self._held_owners(), *self._full]
        return await self.stored(lambda store: store.next_jobs(JOBS_AHEAD, taken, held))

    async def _pause(self, seconds: float) -> None:
        """Until then, or until somebody calls wake."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()

    async def _begin_when_quiet(self, job: Job) -> bool:
        """False: it is time to look at the file again."""
        while not self._has_room():
            await self._pause(LOOK_SECONDS)
            if time.monotonic() >= self._expire_at:
                return False
        if job.owner in self._held_owners():
            return True  # read again later
        if not self._has_place(job.owner):
            self._full.add(job.owner)
            return True
        current = await self.stored(lambda store: store.get(job.batch, job.owner))
        if current is None or current.ended is not None or job.key in self._taken:
            return True  # canceled or deleted since it was read
        self._begin(job)
        return True

    def _held_owners(self) -> list[bytes]:
        now = time.monotonic()
        self._held = {owner: until for owner, until in self._held.items() if until > now}
        return list(self._held)

    def _has_place(self, key: bytes) -> bool:
        """A request of this owner would not meet the limit of requests at once, nor would a live
        one because of it."""
        owner = self._server.access.owner_by_key(key)
        places = owner.quota.spare_places() if owner and owner.quota else None
        if places is None:
            return True
        begun = (exchange for exchange in self._running.values() if exchange.owner.key == key)
        return sum(exchange.lease is None for exchange in begun) < places

    def _has_room(self) -> bool:
        server = self._server
        links, loads = server.models.links, server.models.loads
        if server.draining or not (links or loads):
            return False
        if any(link.stats()["waiting"] for link in links):
            return False
        if len(self._done) >= server.settings.batch_concurrency:
            return False  # the disk has to take these first
        live = server.answers_open - len(self._running)
        room = BESIDE_LIVE if live > 0 else server.settings.batch_concurrency
        return len(self._running) < room

    def _begin(self, job: Job) -> None:
        self._taken.add(job.key)
        owner = self._server.access.owner_by_key(job.owner)
        if owner is None:
            # Without its key it would run without its limits.
            self._keep(job, "errored", envelope(ApiError("key_removed"), new_identifier("req")))
            return

        exchange = InnerExchange(
            PATH, job.params, owner, lambda body, error: self._ended(job, body, error)
        )
        exchange.batch = job.batch
        exchange.give_way = lambda: self._give_way(job)
        exchange.handler = create_message
        self._running[job.key] = exchange
        self._server.handle(exchange)

    def _give_way(self, job: Job) -> None:
        """It runs again later, from its beginning."""
        exchange = self._running.pop(job.key, None)
        if exchange is None:
            return
        exchange.cancel()
        self._held[job.owner] = time.monotonic() + GIVEN_WAY_SECONDS
        self._taken.discard(job.key)
        self.wake()

    def _ended(self, job: Job, body: bytes, error: ApiError | None) -> None:
        exchange = self._running.pop(job.key, None)
        if exchange is None or self._is_draining:
            return
        if error is not None and self._is_worth_retrying(job, error):
            seconds = max(RETRY_SECONDS, min(error.retry_after_seconds or 0, RETRY_SECONDS_MAX))
            self._held[job.owner] = time.monotonic() + seconds
            self._taken.discard(job.key)
            self.wake()
            return
        self._tries.pop(job.key, None)
        self._keep(job, "succeeded" if error is None else "errored", body)

    def _is_worth_retrying(self, job: Job, error: ApiError) -> bool:
        if error.code != LOST:
            return error.kind.status in RETRIED
        tries = self._tries[job.key] = self._tries.get(job.key, 0) + 1
        return tries < TRIES_MAX

    def _keep(self, job: Job, state: State, body: bytes) -> None:
        """body: the message or the error."""
        member = b"message" if state == "succeeded" else b"error"
        result = b'{"type":"%b","%b":%b}' % (state.encode(), member, body)
        self._done.append((job, state, result))
        if self._flush is None:
            self._flush = self._server.loop.create_task(self._finish())

    async def _finish(self) -> None:
        """Commit what has ended; all that ends meanwhile goes into the next commit."""
        while self._done:
            done, self._done = self._done, []
            try:
                await self.stored(lambda store, of=done: store.finish(of, time.time()))
            except Exception as error:
                is_bug = not isinstance(error, ApiError)
                LOG.error("%d results wait for the disk", len(done), exc_info=is_bug)
                self._done = done + self._done
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._taken.difference_update(job.key for job, _, _ in done)
        self._flush = None
        self.wake()
