"""The trace ring through the binding."""

import pytest

import ring_reference as ring
from sublimate import _core

VOCABULARY = 300
LIMITS = _core.LIMITS


def test_a_trace_reader_begins_where_the_ring_is() -> None:
    region = _core.Region.create(VOCABULARY)
    loop = ring.LoopTwin(region)
    loop.trace(1, 0, 7, 1)
    reader = _core.TraceReader(region)
    assert reader.read(100) == (0, b"")
    loop.trace(5_000_000_000, 3, 7, 2, -1, 40)
    missed, records = reader.read(100)
    assert missed == 0
    assert list(ring.TRACE_RECORD.iter_unpack(records)) == [
        (5_000_000_000, 3, 7, 2, -1, 40, *[0] * 9)
    ]
    for number in range(LIMITS["TRACE_RECORDS"] + 9):
        loop.trace(number, 5)
    missed, records = reader.read(2)
    assert missed == 10
    assert [record[0] for record in ring.TRACE_RECORD.iter_unpack(records)] == [10, 11]
    with pytest.raises(ValueError):
        reader.read(-1)


def test_following_is_a_time_in_the_region() -> None:
    region = _core.Region.create(VOCABULARY)
    loop, reader = ring.LoopTwin(region), _core.TraceReader(region)
    assert loop.read_u64(ring.TRACE_UNTIL) == 0
    reader.follow(1 << 60)
    assert loop.read_u64(ring.TRACE_UNTIL) == 1 << 60
    reader.follow(0)
    assert loop.read_u64(ring.TRACE_UNTIL) == 0
    with pytest.raises(ValueError):
        reader.follow(-1)


def test_the_events_of_the_trace_are_named_once() -> None:
    names = [name for name, _ in _core.TRACE_EVENTS]
    assert len(set(names)) == len(names)
    for name, arguments in _core.TRACE_EVENTS:
        named = arguments.split()
        assert 1 <= len(named) <= 11 and len(set(named)) == len(named), name
    assert LIMITS["TRACE_RECORD_WORDS"] * 8 == ring.TRACE_RECORD_BYTES == ring.TRACE_RECORD.size
