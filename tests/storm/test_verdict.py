"""The storms' verdict: what is within the bound of each passes, and what is beyond it is told."""

import math
from pathlib import Path
from typing import Any

import pytest

from storm.verdict import (
    ANSWERS_MIN,
    BASE_KIB,
    FLOODS,
    SLOWER_TIMES_OF,
    Figures,
    Seen,
    findings,
    p,
    row,
)

ROOT = Path(__file__).resolve().parents[2]
SOCKETS = 100


def figures(**changed: Any) -> Figures:
    """Of a storm that nobody noticed."""
    calm = [10.0] * ANSWERS_MIN
    quiet: dict[str, Any] = {"name": "slow-loris", "calm_ms": calm, "storm_ms": calm, "did": {}}
    quiet |= {"kib_before": 80 << 10, "kib_peak": 88 << 10, "kib_after": 88 << 10}
    return Figures(**{**quiet, "descriptors": (38, 138, 37), **changed})


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, ""),
        ({"storm_ms": [30.0] * ANSWERS_MIN}, ""),
        ({"storm_ms": [31.0] * ANSWERS_MIN}, "10 ms before, 31 ms in it"),
        ({"storm_ms": [9.0] * 15 + [40.0] * 5}, "40 ms in it"),
        ({"storm_ms": [50.0] * ANSWERS_MIN, "name": "HTTP/2 rapid resets"}, ""),
        ({"storm_ms": [51.0] * ANSWERS_MIN, "name": "HTTP/2 rapid resets"}, "51 ms in it"),
        ({"storm_ms": [60.0] * ANSWERS_MIN, "name": "HTTP/3 resets"}, ""),
        ({"storm_ms": [61.0] * ANSWERS_MIN, "name": "HTTP/3 resets"}, "61 ms in it"),
        ({"storm_ms": [9.0]}, "too few answers"),
        ({"calm_ms": []}, "too few answers"),
        ({"kib_peak": (80 << 10) + BASE_KIB + 96 * SOCKETS}, ""),
        ({"kib_peak": (80 << 10) + BASE_KIB + 96 * SOCKETS + 1}, "memory followed"),
        ({"descriptors": (38, 138, 39)}, "descriptors did not come back"),
        ({"failures": ["the edge was replaced"]}, "the edge was replaced"),
    ],
)
def test_what_is_beyond_the_bound_of_a_storm_is_told(changed: dict[str, Any], told: str) -> None:
    one = figures(**changed)
    found = findings(one, SOCKETS)
    assert len(found) == bool(told) and told in "".join(found)
    assert all(text.startswith(f"{one.name}: ") for text in found)
    assert row(one).count("|") == 9


def test_a_bound_of_its_own_is_documented_and_of_a_storm_that_there_is() -> None:
    attacks = (ROOT / "tests/storm/attacks.py").read_text()
    told = (ROOT / "docs/storms.md").read_text()
    for name, times in SLOWER_TIMES_OF.items():
        assert f'"{name}":' in attacks and f"| {name} | {times:g} " in told


def test_too_few_have_no_quantile() -> None:
    assert math.isnan(p(0.99, [1.0])) and p(0.5, [1.0, 3.0]) == 2.0


LIVE = {"http": [20.0] * 10, "grpc": [20.0] * 10}


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (Seen(LIVE, 10, 29), ""),
        (Seen({**LIVE, "grpc": [20.0] * 9 + [101.0]}, 10, 29), "grpc: the ten slowest"),
        (Seen({**LIVE, "http": [20.0] * 4 + [90.0] * 6}, 10, 29), "http: the ten slowest"),
        (Seen({**LIVE, "h3": [20.0] * 3}, 10, 29), "too seldom"),
        (Seen(LIVE, 10, 30), "a stream's gap: 10 ms before, 30 in it"),
        (Seen({}, 10, 10), "the probes failed"),
    ],
)
def test_f05_what_a_flood_may_not_do_is_told(seen: Seen, told: str) -> None:
    one = figures(name="HTTP/2 PING", storm_ms=[500.0] * ANSWERS_MIN, seen=seen)
    found = findings(one, SOCKETS)
    assert len(found) == bool(told) and told in "".join(found)


def test_f05_floods_have_bounds_and_a_line_in_the_docs() -> None:
    attacks = (ROOT / "tests/storm/attacks.py").read_text()
    flooded = attacks.partition("FLOODS: dict")[2].partition("\n}\n")[0]
    told = (ROOT / "docs/storms.md").read_text()
    for name in FLOODS:
        assert f'"{name}":' in flooded and f"**{name}**" in told
    assert flooded.count('    "') == len(FLOODS)
