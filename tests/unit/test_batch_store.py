"""The batches' file: who sees what, which request is next, and what a kill leaves."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from sublimate.api.batches.store import EXPIRY_SECONDS, KEPT_SECONDS, BatchStore, Job, Transaction

ALICE, BOB = b"alice", b"bob"
NOW = 1_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BatchStore]:
    made = BatchStore(tmp_path / "deep" / "batches.sqlite")
    yield made
    made.close()


def requests(count: int) -> list[tuple[str, bytes]]:
    return [(f"r{i}", b'{"n":%d}' % i) for i in range(count)]


def take(store: BatchStore, count: int, *taken: Job, held: tuple[bytes, ...] = ()) -> list[Job]:
    return store.next_jobs(count, frozenset(job.key for job in taken), held)


def test_a_batch_runs_to_its_end(store: BatchStore) -> None:
    batch = store.create("b1", ALICE, requests(3), NOW)
    assert batch.counts == {"waiting": 3} and batch.expires == NOW + EXPIRY_SECONDS
    jobs = take(store, 9)
    assert [job.params for job in jobs] == [b'{"n":0}', b'{"n":1}', b'{"n":2}']
    assert take(store, 9, *jobs[:2]) == [jobs[2]]
    store.finish([(jobs[1], "succeeded", b"one"), (jobs[0], "errored", b"zero")], NOW + 1)
    half = store.get("b1", ALICE)
    assert half and half.counts == {"waiting": 1, "succeeded": 1, "errored": 1} and not half.ended
    store.finish([(jobs[2], "succeeded", b"two")], NOW + 2)
    whole = store.get("b1", ALICE)
    assert whole and whole.ended == NOW + 2 and not take(store, 9)
    rows = store.results("b1", -1, 2)
    assert rows == [(0, "r0", "errored", b"zero"), (1, "r1", "succeeded", b"one")]
    assert store.results("b1", 1, 2) == [(2, "r2", "succeeded", b"two")]


def test_an_owner_sees_their_own_batches_the_newest_first(store: BatchStore) -> None:
    for number, owner in enumerate((ALICE, BOB, ALICE)):
        store.create(f"b{number}", owner, requests(1), NOW + number)
    assert store.identifiers(ALICE) == ["b2", "b0"] and store.identifiers(BOB) == ["b1"]
    assert store.identifiers(b"carol") == []
    assert store.get("b1", ALICE) is None and store.cancel("b1", ALICE, NOW) is None
    batch = store.get("b1", BOB)
    assert batch and batch.cancelled is None and batch.ended is None


def test_a_result_is_kept_once(store: BatchStore) -> None:
    store.create("b1", ALICE, requests(1), NOW)
    [job] = take(store, 1)
    store.finish([(job, "succeeded", b"first"), (job, "errored", b"second")], NOW)
    store.finish([(job, "errored", b"third")], NOW)
    assert store.results("b1", -1, 9) == [(0, "r0", "succeeded", b"first")]


def test_what_was_taken_and_not_finished_is_there_for_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "batches.sqlite"
    first = BatchStore(path)
    first.create("b1", ALICE, requests(5), NOW)
    jobs = take(first, 3)
    first.finish([(jobs[0], "succeeded", b"x")], NOW)
    # No close: the process was killed.
    second = BatchStore(path)
    assert [job.number for job in take(second, 9)] == [1, 2, 3, 4]
    first.close()
    second.close()


def test_small_batches_do_not_wait_for_large_ones(store: BatchStore) -> None:
    store.create("b1", ALICE, requests(100), NOW)
    done = take(store, 10)
    store.finish([(job, "succeeded", b"") for job in done], NOW)
    store.create("b2", BOB, requests(2), NOW + 1)
    assert [job.batch for job in take(store, 4)] == ["b2", "b2", "b1", "b1"]
    held = take(store, 4, held=(BOB,))
    assert {job.batch for job in held} == {"b1"}
    assert not take(store, 4, held=(BOB, ALICE))


def test_others_see_nothing(store: BatchStore) -> None:
    store.create("b1", ALICE, requests(1), NOW)
    store.create("b2", ALICE, requests(1), NOW + 1)
    assert store.identifiers(ALICE) == ["b2", "b1"] and not store.identifiers(BOB)
    assert store.get("b1", BOB) is None and store.cancel("b1", BOB, NOW) is None


def test_cancel_keeps_what_has_a_result(store: BatchStore) -> None:
    store.create("b1", ALICE, requests(3), NOW)
    jobs = take(store, 2)
    store.finish([(jobs[0], "succeeded", b"x")], NOW)
    batch = store.cancel("b1", ALICE, NOW + 5)
    assert batch and batch.counts == {"succeeded": 1, "canceled": 2}
    assert batch.cancelled == batch.ended == NOW + 5
    store.finish([(jobs[1], "succeeded", b"late")], NOW + 6)
    assert [row[2:] for row in store.results("b1", -1, 9)] == [
        ("succeeded", b"x"),
        ("canceled", None),
        ("canceled", None),
    ]
    again = store.cancel("b1", ALICE, NOW + 9)
    assert again and again.cancelled == NOW + 5


def test_a_day_later_it_expires_and_a_month_later_it_is_forgotten(store: BatchStore) -> None:
    store.create("b1", ALICE, requests(2), NOW)
    [job] = take(store, 1)
    store.finish([(job, "succeeded", b"x")], NOW)
    store.expire(NOW + EXPIRY_SECONDS - 1)
    waiting = store.get("b1", ALICE)
    assert waiting and waiting.counts["waiting"] == 1
    store.expire(NOW + EXPIRY_SECONDS)
    ended = store.get("b1", ALICE)
    assert ended and ended.counts == {"succeeded": 1, "expired": 1} and ended.ended
    store.expire(NOW + KEPT_SECONDS)
    assert store.get("b1", ALICE) is None and not store.results("b1", -1, 9)


def test_a_failed_write_leaves_nothing(store: BatchStore) -> None:
    store.create("b1", ALICE, requests(1), NOW)
    with pytest.raises(sqlite3.IntegrityError):
        store.create("b1", ALICE, requests(4), NOW)
    batch = store.get("b1", ALICE)
    assert batch and batch.counts == {"waiting": 1}


def test_a_commit_that_fails_leaves_no_transaction() -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("CREATE TABLE a (id INTEGER PRIMARY KEY)")
        db.execute("CREATE TABLE b (a REFERENCES a DEFERRABLE INITIALLY DEFERRED)")
        with pytest.raises(sqlite3.IntegrityError), Transaction(db):
            db.execute("INSERT INTO b VALUES (7)")
        assert not db.in_transaction
        with Transaction(db):
            db.execute("INSERT INTO a VALUES (1)")
        assert db.execute("SELECT * FROM a, b").fetchall() == []
        assert db.execute("SELECT * FROM a").fetchall() == [(1,)]


def test_a_full_disk_ends_what_was_begun_with_its_own_error(tmp_path: Path) -> None:
    path = tmp_path / "full.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE a (text BLOB)")
        db.execute("PRAGMA max_page_count = 4")
        with pytest.raises(sqlite3.OperationalError, match="full"), Transaction(db):
            db.execute("INSERT INTO a VALUES (zeroblob(100000))")
        with Transaction(db):
            db.execute("INSERT INTO a VALUES (1)")


def test_deleted_is_gone_and_its_late_result_dropped(store: BatchStore) -> None:
    store.create("b1", ALICE, requests(1), NOW)
    [job] = take(store, 1)
    store.delete("b1")
    store.finish([(job, "succeeded", b"x")], NOW)
    assert store.get("b1", ALICE) is None and not store.results("b1", -1, 9)
