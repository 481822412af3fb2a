"""What several edges count together: buckets and running requests of one key."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sublimate.edge.errors import ApiError
from sublimate.edge.ledger import EDGES_MAX, Entry, OwnLedger, SharedLedgers
from sublimate.edge.quota import Quota
from sublimate.keys import KeyLimits


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("quotas")
    yield descriptor
    os.close(descriptor)


class Edge:
    """One edge's quota of a key. In one process, so locks of the kernel keep nobody out here."""

    def __init__(self, memory: int, number: int, limits: KeyLimits, key: str = "key") -> None:
        self.ledgers = SharedLedgers(os.dup(memory), number)
        self.now = 100.0
        self.quota = Quota(limits, lambda: self.now, self.ledgers.of(key))

    def close(self) -> None:
        self.ledgers.close()


def test_a_limit_a_minute_holds_for_all_edges_together(memory: int) -> None:
    limits = KeyLimits(requests_per_minute=6)
    edges = [Edge(memory, number, limits) for number in range(3)]
    for turn in range(6):
        edges[turn % 3].quota.admit(10)
    for edge in edges:
        with pytest.raises(ApiError) as refused:
            edge.quota.admit(10)
        assert refused.value.retry_after_seconds == 10
        assert dict(edge.quota.headers())["anthropic-ratelimit-requests-remaining"] == "0"
        edge.now += 10
    edges[0].quota.admit(10)
    with pytest.raises(ApiError):
        edges[1].quota.admit(10)
    for edge in edges:
        edge.close()


LOCK_NOW = """
import fcntl, sys
try:
    fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("locked")
else:
    print("free")
"""


def test_one_process_changes_a_line_at_a_time(memory: int) -> None:
    ledgers = SharedLedgers(os.dup(memory), 0)

    def seen_by_another() -> str:
        command = [sys.executable, "-c", LOCK_NOW, str(memory)]
        done = subprocess.run(command, pass_fds=(memory,), capture_output=True, text=True)
        return done.stdout.strip()

    assert seen_by_another() == "free"
    with ledgers.locked():
        with ledgers.locked():
            assert seen_by_another() == "locked"
        assert seen_by_another() == "locked", "the outer one holds it still"
    assert seen_by_another() == "free"
    with pytest.raises(ZeroDivisionError), ledgers.locked():
        raise ZeroDivisionError
    assert seen_by_another() == "free"
    ledgers.close()


def test_requests_at_once_are_counted_together_and_an_edge_that_died_leaves_none(
    memory: int,
) -> None:
    limits = KeyLimits(concurrency=3)
    first, second = Edge(memory, 0, limits), Edge(memory, 1, limits)
    first.ledgers.came(1)
    second.ledgers.came(0)
    leases = [first.quota.admit(1), second.quota.admit(1), second.quota.admit(1)]
    assert first.quota.places() == 0
    with pytest.raises(ApiError):
        first.quota.admit(1)
    leases[1].cancel()
    assert first.quota.places() == second.quota.places() == 1
    second.close()
    first.ledgers.gone(1)
    assert first.quota.places() == 2
    later = Edge(memory, 2, limits)
    later.ledgers.came(0)
    assert later.quota.places() == 2, "nor does who comes later count what that one had"
    later.close()
    again = Edge(memory, 1, limits)
    first.ledgers.came(1)
    again.ledgers.came(0)
    assert first.quota.places() == 2, "what the edge before it had is not running any more"
    leases[0].settle(0, 1)
    assert again.quota.places() == 3
    first.close()
    again.close()


def test_another_limit_is_taken_over_once_by_whoever_reads_it_first(memory: int) -> None:
    edges = [Edge(memory, number, KeyLimits(requests_per_minute=10)) for number in range(2)]
    for _ in range(4):
        edges[0].quota.admit(1)
    for edge in edges:
        edge.quota.set_limits(KeyLimits(requests_per_minute=20))
    for edge in edges:
        assert dict(edge.quota.headers())["anthropic-ratelimit-requests-remaining"] == "16"
        edge.close()


def test_while_edges_have_different_limits_each_keeps_its_own_and_what_was_used(
    memory: int,
) -> None:
    """In a reload the edges that leave have the old limits, and the requests that they still end
    are charged by them."""
    for before, after in ((10, 100), (100, 10)):
        name = f"{before} to {after}"
        old = Edge(memory, 0, KeyLimits(requests_per_minute=before), name)
        for _ in range(4):
            old.quota.admit(1)
        new = Edge(memory, 1, KeyLimits(requests_per_minute=after), name)
        old.quota.admit(1)
        new.quota.admit(1)
        lease = old.quota.admit(1)
        lease.cancel()
        for edge, limit in ((old, before), (new, after), (old, before)):
            told = dict(edge.quota.headers())
            assert told["anthropic-ratelimit-requests-limit"] == str(limit)
            assert told["anthropic-ratelimit-requests-remaining"] == str(limit - 6)
        old.close()
        new.close()


def test_keys_have_lines_of_their_own_and_edges_are_bounded(memory: int) -> None:
    ledgers = SharedLedgers(os.dup(memory), 2)
    one, other, same = ledgers.of("one"), ledgers.of("other"), ledgers.of("one")
    one.write(1, Entry(5.0, 6.0, 7.0))
    one.add_running(2)
    assert same.read(1) == Entry(5.0, 6.0, 7.0) and same.running() == 2
    assert other.read(1) == Entry() and other.running() == 0
    for ledger in (other, OwnLedger()):
        with pytest.raises(RuntimeError, match="ended"):
            ledger.add_running(-1)
    ledgers.close()
    with pytest.raises(ValueError, match="edges"):
        SharedLedgers(memory, EDGES_MAX)
    with pytest.raises(ValueError, match="asks"):
        ledgers.gone(2)
