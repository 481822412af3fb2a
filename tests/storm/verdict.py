"""What a storm came to: its figures, and whether they are within bounds.

defines: SLOWER_TIMES, Figures, findings, row
"""

import math
import statistics
from dataclasses import dataclass, field

KIB_PER_SOCKET_MAX = 96
"""Beyond what a storm needs in any case: grpcio takes some 80 KiB for a connection."""
BASE_KIB = 32 << 10
BASE_KIB_OF = {"HTTP/1.1 large bodies": 512 << 10}
"""Three bodies that arrive, each of them once more when it is whole, and one that is read."""
FLOODS = (
    *("HTTP/1.1 large bodies", "HTTP/1.1 pipelining"),
    *("HTTP/2 references", "HTTP/2 long references", "HTTP/2 CONTINUATION", "HTTP/2 resets"),
    *("HTTP/2 empty CONTINUATION", "HTTP/2 SETTINGS", "HTTP/2 PING", "QUIC gaps of a hello"),
    *("QUIC gaps of a body", "QUIC PING", "QUIC small frames"),
)
"""Storms in which the slowest /livez and the largest gap have bounds, and not the good client's
p99; those of attacks.FLOODS."""
SLOWER_TIMES, SLOWER_MS = 2.0, 10.0
"""Of p99, and what is no difference on a machine with more to run than cores."""
SLOWER_TIMES_OF = {"HTTP/2 rapid resets": 4.0, "HTTP/3 resets": 5.0}
"""Storms that use a core of their own and one of the edge's: as measured where there are two."""
LIVE_MS_MAX, LIVE_MEDIAN_MS_MAX, GAP_TIMES_MAX = 100.0, 50.0, 3.0
"""In a flood: of the ten slowest /livez on each port, and of a stream's largest gap against that
before it."""
WORST = 10
HEADER = (
    "| storm | what was done | memory, MiB | descriptors | p50 / p99 before, ms | in it "
    "| worst ten /livez: median, max | largest gap before, in it |\n"
    "|---|---|---|---|---|---|---|---|\n"
)
ANSWERS_MIN = 20
"""Fewer have no p99."""


@dataclass
class Seen:
    """By probes.py, in milliseconds: the slowest of each port, and the largest gaps."""

    worst: dict[str, list[float]] = field(default_factory=dict)
    quiet_gap_ms: float = 0.0
    gap_ms: float = 0.0

    def add(self, quiet: dict[str, list[float]], stormy: dict[str, list[float]]) -> None:
        self.quiet_gap_ms = max(quiet.pop("gaps", []), default=math.nan)
        self.gap_ms = max(stormy.pop("gaps", []), default=math.nan)
        self.worst = {port: sorted(took)[-WORST:] for port, took in stormy.items()}


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
    seen: Seen = field(default_factory=Seen)


def p(share: float, values: list[float]) -> float:
    """Not a number where there are too few."""
    if len(values) < 2:
        return math.nan
    return statistics.quantiles(values, n=1000)[round(share * 1000) - 1]


def findings(one: Figures, sockets: int) -> list[str]:
    """What must not be."""
    found = list(one.failures[:5])
    if one.kib_peak - one.kib_before > (
        BASE_KIB_OF.get(one.name, BASE_KIB) + KIB_PER_SOCKET_MAX * sockets
    ):
        found.append("memory followed the sockets")
    if one.descriptors[2] > one.descriptors[0]:
        found.append("descriptors did not come back")
    calm, storm = p(0.99, one.calm_ms), p(0.99, one.storm_ms)
    if one.name in FLOODS:
        found += _seen(one.seen)
    elif min(len(one.calm_ms), len(one.storm_ms)) < ANSWERS_MIN:
        found.append("the good client got too few answers to tell")
    elif storm > SLOWER_TIMES_OF.get(one.name, SLOWER_TIMES) * calm + SLOWER_MS:
        found.append(f"p99 of the good client: {calm:.0f} ms before, {storm:.0f} ms in it")
    return [f"{one.name}: {text}" for text in found]


def _seen(seen: Seen) -> list[str]:
    """What must not be in a flood."""
    found: list[str] = [] if seen.worst else ["the probes failed"]
    for port, worst in seen.worst.items():
        if len(worst) < WORST:
            found.append(f"{port}: /livez was asked too seldom to tell")
        elif worst[-1] > LIVE_MS_MAX or statistics.median(worst) > LIVE_MEDIAN_MS_MAX:
            found.append(f"{port}: the ten slowest /livez, ms: {_numbers(worst)}")
    if not seen.gap_ms < GAP_TIMES_MAX * seen.quiet_gap_ms:
        found.append(f"a stream's gap: {seen.quiet_gap_ms:.0f} ms before, {seen.gap_ms:.0f} in it")
    return found


def _numbers(values: list[float]) -> str:
    return " ".join(f"{value:.0f}" for value in values)


def row(one: Figures) -> str:
    did = ", ".join(f"{count} {what}" for what, count in one.did.items())
    ms = [f"{p(0.5, of):.1f} / {p(0.99, of):.1f}" for of in (one.calm_ms, one.storm_ms)]
    memory = " → ".join(f"{k / 1024:.0f}" for k in (one.kib_before, one.kib_peak, one.kib_after))
    held = " → ".join(map(str, one.descriptors))
    seen = one.seen
    live = ", ".join(
        f"{port} {statistics.median(worst):.0f}, {worst[-1]:.0f}"
        for port, worst in seen.worst.items()
        if worst
    )
    gaps = f"{seen.quiet_gap_ms:.0f}, {seen.gap_ms:.0f}"
    return f"| {one.name} | {did} | {memory} | {held} | {ms[0]} | {ms[1]} | {live} | {gaps} |"
