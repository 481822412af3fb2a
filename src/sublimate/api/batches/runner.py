"""Runs the requests of batches behind everybody who waits for an answer.

A request begins only while nothing waits for the engine: alone some at once, beside live requests
one. It is an ordinary request of its owner, under the owner's limits; what the server could not do
at the moment (429, 503, 529, an engine that was lost) is tried again.

defines: Batches, resume
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from ...config import data_folder
from ...edge.errors import ApiError
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
RESUME_SECONDS = 60.0
"""Between two tries to have the folder."""
RETRY_SECONDS = 1.0
RETRIED = frozenset((429, 503, 529))
LOST = 500
TRIES_MAX = 5
"""Of a request whose engine is lost each time: it may be the reason."""
OK = 200


def resume(server: EdgeServer) -> None:
    """Go on with the batches that an earlier process kept. A folder that cannot be had now, as
    another server of this machine has it, is tried again: everything else is served meanwhile."""
    if server.draining or not (data_folder(server.settings) / FOLDER / FILE).is_file():
        return
    try:
        server.part(Batches)
    except (ApiError, OSError, sqlite3.Error) as error:
        LOG.warning("batches wait: %s", error)
        server.loop.call_later(RESUME_SECONDS, resume, server)


class Batches:
    """Part of one server. On the event loop's thread, but for what `stored` is given."""

    def __init__(self, server: EdgeServer) -> None:
        """Raises ApiError if another process has the folder."""
        self._server = server
        folder = data_folder(server.settings) / FOLDER
        self._lock = _locked(folder / "lock")
        self._thread = ThreadPoolExecutor(1, "batches")
        try:
            self._store = self._thread.submit(BatchStore, folder / FILE).result()
        except BaseException:
            self._thread.shutdown()
            os.close(self._lock)  # else the next try, and every other server, finds it taken
            raise
        self._running: dict[tuple[str, int], InnerExchange] = {}
        self._taken: set[tuple[str, int]] = set()
        """Read from the file and not finished there."""
        self._done: list[tuple[Job, State, bytes]] = []
        self._flush: asyncio.Task[None] | None = None
        self._tries: dict[tuple[str, int], int] = {}
        self._held: dict[bytes, float] = {}
        """Owner -> when its next request may begin."""
        self._wake = asyncio.Event()
        self._is_draining = False
        self._task = server.loop.create_task(self._work())

    async def stored(self, action: Callable[[BatchStore], Result]) -> Result:
        """The result of a function of the store, on its thread."""
        return await self._server.loop.run_in_executor(self._thread, action, self._store)

    def wake(self) -> None:
        """There may be something to do."""
        self._wake.set()

    def stop(self, batch: str) -> None:
        """End what runs of a batch; the store has been told."""
        for key in [key for key in self._running if key[0] == batch]:
            self._running.pop(key).cancel()
            self._taken.discard(key)

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
        os.close(self._lock)

    # ---- work ----------------------------------------------------------------------------------
    async def _work(self) -> None:
        expired_seconds = 0.0
        while True:
            try:
                if time.monotonic() - expired_seconds > EXPIRE_SECONDS or not expired_seconds:
                    expired_seconds = time.monotonic()
                    await self.stored(lambda store: store.expire(time.time()))
                jobs = await self._next_jobs()
                for job in jobs:
                    await self._begin_when_quiet(job)
            except sqlite3.Error:
                LOG.exception("batches wait: their file cannot be used")
                jobs = []
            await self._pause(LOOK_SECONDS if jobs else EXPIRE_SECONDS)

    async def _next_jobs(self) -> list[Job]:
        taken, held = frozenset(self._taken), self._held_owners()
        return await self.stored(lambda store: store.next_jobs(JOBS_AHEAD, taken, held))

    async def _pause(self, seconds: float) -> None:
        """Until then, or until somebody calls wake."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()

    async def _begin_when_quiet(self, job: Job) -> None:
        if job.owner in self._held_owners():
            return  # read again later
        while not self._has_room():
            await self._pause(LOOK_SECONDS)
        current = await self.stored(lambda store: store.get(job.batch, job.owner))
        if current is None or current.ended is not None or job.key in self._taken:
            return  # canceled or deleted since it was read
        self._begin(job)

    def _held_owners(self) -> list[bytes]:
        now = time.monotonic()
        self._held = {owner: until for owner, until in self._held.items() if until > now}
        return list(self._held)

    def _has_room(self) -> bool:
        server = self._server
        engine = server.engine
        if engine is None or server.draining or engine.stats()["waiting"]:
            return False
        live = server.answers_open - len(self._running)
        room = BESIDE_LIVE if live > 0 else server.settings.batch_concurrency
        return len(self._running) < room

    def _begin(self, job: Job) -> None:
        owner = self._server.access.owner_by_key(job.owner)
        exchange = InnerExchange(
            PATH, job.params, owner, lambda status, body: self._ended(job, status, body)
        )
        exchange.handler = create_message
        self._taken.add(job.key)
        self._running[job.key] = exchange
        self._server.handle(exchange)

    def _ended(self, job: Job, status: int, body: bytes) -> None:
        exchange = self._running.pop(job.key, None)
        if exchange is None or self._is_draining:
            return
        tries = self._tries.pop(job.key, 0) + 1
        if status in RETRIED or (status == LOST and tries < TRIES_MAX and self._is_lost()):
            if status == LOST:
                self._tries[job.key] = tries
            self._held[job.owner] = time.monotonic() + RETRY_SECONDS
            self._taken.discard(job.key)
            self._server.loop.call_later(RETRY_SECONDS, self.wake)
            return
        if status == OK:
            result = b'{"type":"succeeded","message":' + body + b"}"
            self._done.append((job, "succeeded", result))
        else:
            self._done.append((job, "errored", b'{"type":"errored","error":' + body + b"}"))
        if self._flush is None:
            self._flush = self._server.loop.create_task(self._finish())

    def _is_lost(self) -> bool:
        """The engine went, so the request may have been innocent."""
        engine = self._server.engine
        return engine is None or not engine.is_healthy()

    async def _finish(self) -> None:
        """Commit what has ended; all that ends meanwhile goes into the next commit."""
        while self._done:
            done, self._done = self._done, []
            try:
                await self.stored(lambda store, of=done: store.finish(of, time.time()))
            except sqlite3.Error:
                LOG.exception("results cannot be kept; their requests will run again")
            self._taken.difference_update(job.key for job, _, _ in done)
        self._flush = None
        self.wake()


def _locked(path: os.PathLike[str]) -> int:
    """A descriptor that holds the folder for this process."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ApiError("data_in_use") from None
    return lock
