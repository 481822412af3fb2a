"""Order statistics of samples.

defines: percentile, Percentiles, Spread
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec


def percentile(values: Sequence[float], fraction: float) -> float:
    """Linear between the two nearest ranks; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


class Percentiles(msgspec.Struct, frozen=True):
    """p50, p90 and p99."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        return cls(*(percentile(values, fraction) for fraction in (0.50, 0.90, 0.99)))


class Spread(msgspec.Struct, frozen=True):
    """Median, least and greatest of repetitions."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if not values:
            return cls(math.nan, math.nan, math.nan)
        return cls(percentile(values, 0.5), min(values), max(values))
