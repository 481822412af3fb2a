# pyright: reportPrivateUsage=false
"""Sets of ranges for the QUIC library, whose own is searched from its start: a client could order
its bytes so that each of them costs a walk over all gaps before it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import Any, cast

from aioquic.quic.rangeset import RangeSet
from aioquic.quic.stream import QuicStream

START, STOP = attrgetter("start"), attrgetter("stop")


class TooManyGapsError(Exception):
    """More pieces are missing than packet loss explains."""


class Ranges(RangeSet):
    """The library's set of ranges, but searched by bisection."""

    def __init__(self, ranges_max: int = 0) -> None:
        """ranges_max: `add` raises TooManyGapsError beyond; 0: no bound."""
        super().__init__()
        self._ranges: list[range] = cast(Any, self)._RangeSet__ranges
        self._ranges_max = ranges_max

    def add(self, start: int, stop: int | None = None) -> None:
        ranges = self._ranges
        stop = start + 1 if stop is None else stop
        if stop <= start:
            raise ValueError("a range has at least one number")
        begin = bisect_left(ranges, start, key=STOP)
        end = bisect_right(ranges, stop, key=START)
        if begin < end:  # they touch
            start, stop = min(start, ranges[begin].start), max(stop, ranges[end - 1].stop)
        ranges[begin:end] = (range(start, stop),)
        if 0 < self._ranges_max < len(ranges):
            raise TooManyGapsError

    def subtract(self, start: int, stop: int) -> None:
        ranges = self._ranges
        if stop <= start:
            raise ValueError("a range has at least one number")
        begin = bisect_right(ranges, start, key=STOP)
        end = bisect_left(ranges, stop, key=START)
        if begin < end:
            left = range(ranges[begin].start, start)
            right = range(stop, ranges[end - 1].stop)
            ranges[begin:end] = [one for one in (left, right) if one]

    def __contains__(self, value: Any) -> bool:
        at = bisect_right(self._ranges, value, key=STOP)
        return at < len(self._ranges) and value in self._ranges[at]


def bound(stream: QuicStream, gaps_max: int) -> QuicStream:
    """Give a stream these sets, with at most `gaps_max` ranges received."""
    stream.receiver._ranges = Ranges(gaps_max)
    stream.sender._acked, stream.sender._pending = Ranges(), Ranges()
    return stream


class Streams(dict[int, QuicStream]):
    """All streams of a connection, each bound as it is opened."""

    def __init__(self, gaps_max: int) -> None:
        super().__init__()
        self._gaps_max = gaps_max

    def __setitem__(self, stream_id: int, stream: QuicStream) -> None:
        super().__setitem__(stream_id, bound(stream, self._gaps_max))
