"""What a storm came to: its figures, and whether they are within bounds.

defines: SLOWER_TIMES, Figures, findings, row
"""

import math
import statistics
from dataclasses import dataclass, field

KIB_PER_SOCKET_MAX = 96
"""Beyond what a storm needs in any case: grpcio takes some 80 KiB for a connection."""
BASE_KIB = 32 << 10
SLOWER_TIMES, SLOWER_MS = 2.0, 10.0
"""Of p99, and what is no difference on a machine with more to run than cores."""
SLOWER_TIMES_OF = {"HTTP/2 rapid resets": 4.0, "HTTP/3 resets": 5.0}
"""Storms that use a core of their own and one of the edge's: as measured where there are two."""
ANSWERS_MIN = 20
"""Fewer have no p99."""


@dataclass
class Figures:
    """Of one storm."""

    name: str
    calm_ms: list[float]
    storm_ms: list[float]
    did: dict[str, int]
    kib_before: int
    kib_peak: int
    kib_after: int
    descriptors: tuple[int, int, int]
    failures: list[str] = field(default_factory=list)


def p(share: float, values: list[float]) -> float:
    """Not a number where there are too few."""
    if len(values) < 2:
        return math.nan
    return statistics.quantiles(values, n=1000)[round(share * 1000) - 1]


def findings(one: Figures, sockets: int) -> list[str]:
    """What must not be."""
    found = list(one.failures[:5])
    if one.kib_peak - one.kib_before > BASE_KIB + KIB_PER_SOCKET_MAX * sockets:
        found.append("memory followed the sockets")
    if one.descriptors[2] > one.descriptors[0]:
        found.append("descriptors did not come back")
    calm, storm = p(0.99, one.calm_ms), p(0.99, one.storm_ms)
    if min(len(one.calm_ms), len(one.storm_ms)) < ANSWERS_MIN:
        found.append("the good client got too few answers to tell")
    elif storm > SLOWER_TIMES_OF.get(one.name, SLOWER_TIMES) * calm + SLOWER_MS:
        found.append(f"p99 of the good client: {calm:.0f} ms before, {storm:.0f} ms in it")
    return [f"{one.name}: {text}" for text in found]


def row(one: Figures) -> str:
    did = ", ".join(f"{count} {what}" for what, count in one.did.items())
    ms = [f"{p(0.5, of):.1f} / {p(0.99, of):.1f}" for of in (one.calm_ms, one.storm_ms)]
    memory = " → ".join(f"{k / 1024:.0f}" for k in (one.kib_before, one.kib_peak, one.kib_after))
    held = " → ".join(map(str, one.descriptors))
    return f"| {one.name} | {did} | {memory} | {held} | {ms[0]} | {ms[1]} |"
