"""The scheduler's process: takes questions from the broker, gives out leases, has jobs computed.

What it decides is what such a scheduler decides: who is let in (so many may wait), who goes next
(first come, first served), and when (so many run at once). Answers are published as they come from
the executor, all that one reading of a socket brought in one piece; nothing is decoded on the way.

defines: Scheduler, main
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque

import uvloop

from .. import _core
from ..config import QUEUE_DEFAULT
from ..control.child import die_with_parent
from . import records
from .broker import Broker
from .executor import Executor, ExecutorConnection

RUNNING_MAX = _core.LIMITS["SEQUENCES_MAX"]
LEASE_SECONDS = 30
LEASE_BYTES = 16
Key = tuple[bytes, str]
"""Of a job: who asks counts for itself, and others ask too."""


class Scheduler:
    """Leases, what waits, what runs. On one event loop."""

    def __init__(self, publish: Broker, executor: Executor) -> None:
        self._publish = publish
        self._executor = executor
        self._leases: dict[str, float] = {}
        """Lease -> until when; in the order in which they were given."""
        self._waiting: deque[records.Job] = deque()
        self._running: dict[Key, ExecutorConnection | None] = {}
        """Job -> its connection, None while that is made."""
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, question: records.Question, now_seconds: float) -> None:
        match question:
            case records.Negotiate():
                self._negotiate(question, now_seconds)
            case records.Job():
                self._admit(question, now_seconds)
            case records.Cancel():
                self._cancel(_key(question))

    def _negotiate(self, question: records.Negotiate, now_seconds: float) -> None:
        while self._leases and next(iter(self._leases.values())) <= now_seconds:
            del self._leases[next(iter(self._leases))]
        if len(self._leases) + len(self._waiting) >= QUEUE_DEFAULT:
            self._say(question.reply_to, records.Refused(question.ask, "overloaded"))
            return
        lease = secrets.token_urlsafe(LEASE_BYTES)
        self._leases[lease] = now_seconds + LEASE_SECONDS
        self._say(question.reply_to, records.Granted(question.ask, lease, LEASE_SECONDS))

    def _admit(self, job: records.Job, now_seconds: float) -> None:
        if self._leases.pop(job.lease, 0.0) <= now_seconds:
            self._say(job.reply_to, records.Refused(job.ask, "unknown_lease"))
            return
        self._waiting.append(job)
        self._run_next()

    def _cancel(self, key: Key) -> None:
        self._waiting = deque(job for job in self._waiting if _key(job) != key)
        connection = self._running.pop(key, None)
        if connection is not None:
            connection.cancel()
        self._run_next()

    def _run_next(self) -> None:
        while self._waiting and len(self._running) < RUNNING_MAX:
            job = self._waiting.popleft()
            self._running[_key(job)] = None
            task = asyncio.get_running_loop().create_task(self._run(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, job: records.Job) -> None:
        key = _key(job)

        def end() -> None:
            self._running.pop(key, None)
            self._run_next()

        def heard_head(status: int, headers: list[tuple[str, str]]) -> None:
            self._say(job.reply_to, records.Head(job.ask, status, headers))

        def heard_piece(data: bytes, is_last: bool) -> None:
            self._say(job.reply_to, records.Piece(job.ask, data, is_last))
            if is_last:
                end()

        def broken() -> None:
            self._say(job.reply_to, records.Broken(job.ask))
            end()

        try:
            request = self._executor.request(job.headers, job.body)
            connection = await self._executor.connection()
        except (OSError, ValueError):
            broken()
            return
        if key not in self._running:
            return  # cancelled meanwhile
        if self._running[key] is not None:
            raise RuntimeError("a job is computed once")
        self._running[key] = connection
        connection.begin(request, heard_head, heard_piece, broken)

    def _say(self, channel: bytes, answer: records.Answer) -> None:
        self._publish.send(b"PUBLISH", channel, records.encode(answer))


def _key(question: records.Job | records.Cancel) -> Key:
    return question.reply_to, question.ask


async def _schedule(address: records.Address) -> None:
    """Until the broker is gone. Raises ConnectionError."""
    port, password = address.broker_port, address.broker_password
    questions = await Broker.connect(port, password)
    publish = await Broker.connect(port, password)
    executor = Executor(address.executor_host, address.executor_port)
    scheduler = Scheduler(publish, executor)
    while True:
        found = await questions.call(b"BLPOP", records.QUESTIONS, b"0")
        if not isinstance(found, list) or len(found) != len(("list", "question")):
            raise ConnectionError("the broker gave no question")
        scheduler.take(records.question(found[1]), time.monotonic())


def main() -> None:
    """Entry of `python -m sublimate.legacy.scheduler`."""
    die_with_parent()
    uvloop.run(_schedule(records.address()))


if __name__ == "__main__":
    main()
