"""Batches and their requests in one SQLite file. What is committed survives a kill: a request
either has its one result there or runs again.

A request is `waiting` until it has a result; that it runs is known to the runner alone. Every
statement names the owner, so that a batch of another one is not there.

defines: Job, Batch, Result, BatchStore, Transaction
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from ...config.folders import PRIVATE_FOLDER
from ..folder import keep_private

State = Literal["waiting", "succeeded", "errored", "canceled", "expired"]
WAITING: State = "waiting"
EXPIRY_SECONDS = 24 * 3600
KEPT_SECONDS = 29 * 24 * 3600
"""From creation; then a batch is forgotten with its results."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, owner BLOB NOT NULL, created REAL NOT NULL, expires REAL NOT NULL,
    cancelled REAL, ended REAL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS batches_of ON batches (owner, created);
CREATE TABLE IF NOT EXISTS requests (
    batch TEXT NOT NULL, number INTEGER NOT NULL, custom_id TEXT NOT NULL, state TEXT NOT NULL,
    PRIMARY KEY (batch, number)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS states ON requests (batch, state);
CREATE INDEX IF NOT EXISTS waiting ON requests (number, batch) WHERE state = 'waiting';
CREATE TABLE IF NOT EXISTS bodies (
    batch TEXT NOT NULL, number INTEGER NOT NULL, params BLOB, result BLOB,
    PRIMARY KEY (batch, number)
);
"""
# Those of every batch first that come first in it: a small batch does not wait for a large one.
NEXT = """
SELECT batches.id, batches.owner, requests.number, bodies.params FROM requests
JOIN batches ON batches.id = requests.batch
JOIN bodies ON bodies.batch = requests.batch AND bodies.number = requests.number
WHERE requests.state = 'waiting' AND batches.owner NOT IN ({held})
ORDER BY requests.number, requests.batch LIMIT ?
"""


class Job(msgspec.Struct, frozen=True):
    """One request to run."""

    batch: str
    owner: bytes
    number: int
    params: bytes
    """Body of a messages request."""

    @property
    def key(self) -> tuple[str, int]:
        return self.batch, self.number


class Batch(msgspec.Struct, frozen=True):
    """What is known of a batch; times are seconds of the wall clock."""

    id: str
    created: float
    expires: float
    cancelled: float | None
    ended: float | None
    counts: dict[str, int]
    """By state."""


Result = tuple[int, str, str, bytes | None]
"""number, custom_id, state, result: None for what was never run."""


class BatchStore:
    """All methods on one thread. Raises sqlite3.Error and OSError if the disk does."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        keep_private(path)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(SCHEMA)

    def close(self) -> None:
        self._db.close()

    def create(
        self, identifier: str, owner: bytes, requests: Sequence[tuple[str, bytes]], now: float
    ) -> Batch:
        """requests: (custom_id, params)."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO batches VALUES (?, ?, ?, ?, NULL, NULL)",
                (identifier, owner, now, now + EXPIRY_SECONDS),
            )
            self._db.executemany(
                "INSERT INTO requests VALUES (?, ?, ?, 'waiting')",
                ((identifier, number, name) for number, (name, _) in enumerate(requests)),
            )
            self._db.executemany(
                "INSERT INTO bodies VALUES (?, ?, ?, NULL)",
                ((identifier, number, params) for number, (_, params) in enumerate(requests)),
            )
        return self._known(identifier, owner)

    def get(self, identifier: str, owner: bytes) -> Batch | None:
        found = self._db.execute(
            "SELECT id, created, expires, cancelled, ended FROM batches WHERE id = ? AND owner = ?",
            (identifier, owner),
        ).fetchone()
        if found is None:
            return None
        counts = self._db.execute(
            "SELECT state, COUNT(*) FROM requests WHERE batch = ? GROUP BY state", (identifier,)
        )
        name, created, expires, cancelled, ended = found
        return Batch(name, created, expires, cancelled, ended, dict(counts.fetchall()))

    def _known(self, identifier: str, owner: bytes) -> Batch:
        batch = self.get(identifier, owner)
        if batch is None:
            raise RuntimeError("a batch that was just written is gone")
        return batch

    def identifiers(self, owner: bytes) -> list[str]:
        """The newest first."""
        rows = self._db.execute(
            "SELECT id FROM batches WHERE owner = ? ORDER BY created DESC, id DESC", (owner,)
        )
        return [identifier for (identifier,) in rows]

    def cancel(self, identifier: str, owner: bytes, now: float) -> Batch | None:
        """What has no result yet is canceled; one that has ended stays as it is."""
        batch = self.get(identifier, owner)
        if batch is None or batch.ended is not None:
            return batch
        with self._transaction():
            self._db.execute("UPDATE batches SET cancelled = ? WHERE id = ?", (now, identifier))
            self._close_waiting(identifier, "canceled", now)
        return self._known(identifier, owner)

    def delete(self, identifier: str) -> None:
        """With all that belongs to it."""
        with self._transaction():
            self._db.execute("DELETE FROM bodies WHERE batch = ?", (identifier,))
            self._db.execute("DELETE FROM requests WHERE batch = ?", (identifier,))
            self._db.execute("DELETE FROM batches WHERE id = ?", (identifier,))

    def next_jobs(
        self, count: int, taken: frozenset[tuple[str, int]], held: Sequence[bytes] = ()
    ) -> list[Job]:
        """Requests without a result that are not taken, and not of the owners that are held."""
        keys = ", ".join("?" * len(held))
        rows = self._db.execute(NEXT.format(held=keys), (*held, count + len(taken)))
        jobs = [Job(batch, owner, number, params) for batch, owner, number, params in rows]
        return [job for job in jobs if job.key not in taken][:count]

    def finish(self, results: Iterable[tuple[Job, State, bytes]], now: float) -> None:
        """Results of jobs. One whose batch was canceled or deleted meanwhile is dropped."""
        touched: set[str] = set()
        with self._transaction():
            for job, state, result in results:
                changed = self._db.execute(
                    "UPDATE requests SET state = ? WHERE batch = ? AND number = ? "
                    "AND state = 'waiting'",
                    (state, *job.key),
                ).rowcount
                if changed:
                    self._db.execute(
                        "UPDATE bodies SET params = NULL, result = ? "
                        "WHERE batch = ? AND number = ?",
                        (result, *job.key),
                    )
                    touched.add(job.batch)
            for batch in touched:
                self._end_if_done(batch, now)

    def expire(self, now: float) -> None:
        """End what is overdue, and forget what is old."""
        overdue = self._db.execute(
            "SELECT id FROM batches WHERE ended IS NULL AND expires <= ?", (now,)
        ).fetchall()
        for (identifier,) in overdue:
            with self._transaction():
                self._close_waiting(identifier, "expired", now)
        old = self._db.execute("SELECT id FROM batches WHERE created <= ?", (now - KEPT_SECONDS,))
        for (identifier,) in old.fetchall():
            self.delete(identifier)

    def results(self, identifier: str, after: int, count: int) -> list[Result]:
        """Of the requests behind a number, in order."""
        rows = self._db.execute(
            "SELECT requests.number, custom_id, state, result FROM requests JOIN bodies "
            "ON bodies.batch = requests.batch AND bodies.number = requests.number "
            "WHERE requests.batch = ? AND requests.number > ? ORDER BY requests.number LIMIT ?",
            (identifier, after, count),
        )
        return rows.fetchall()

    # ---- inside a transaction ------------------------------------------------------------------
    def _close_waiting(self, identifier: str, state: State, now: float) -> None:
        self._db.execute(
            "UPDATE bodies SET params = NULL WHERE batch = ? AND result IS NULL", (identifier,)
        )
        self._db.execute(
            "UPDATE requests SET state = ? WHERE batch = ? AND state = 'waiting'",
            (state, identifier),
        )
        self._end_if_done(identifier, now)

    def _end_if_done(self, identifier: str, now: float) -> None:
        self._db.execute(
            "UPDATE batches SET ended = ? WHERE id = ? AND ended IS NULL AND NOT EXISTS "
            "(SELECT 1 FROM requests WHERE batch = ? AND state = 'waiting')",
            (now, identifier, identifier),
        )

    def _transaction(self) -> Transaction:
        return Transaction(self._db)


class Transaction:
    """All of a with block, or nothing of it; no transaction is open behind it, even if it could
    not be committed."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: Any, *rest: Any) -> None:
        try:
            if kind is None:
                self._db.execute("COMMIT")
        finally:
            # A full disk ends some transactions by itself.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
