"""Figures of a process over time, and what they come to: growth, slope, a table, a picture.

defines: Sample, sample, Trend, trend, table, picture
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sublimate.bench import svg

KIB = 1024
GROWTH_SHARE_MAX, GROWTH_KIB_MAX = 0.02, 1024
"""Beyond both a process counts as growing: allocators and caches breathe by less."""
DESCRIPTORS_MAX = 6
"""So many more are connections that clients keep or have given up."""


@dataclass(frozen=True)
class Sample:
    """Of one process at rest. memory_bytes: anonymous pages, swapped out ones too: what a leak
    cannot hide in."""

    at_seconds: float
    role: str
    process_id: int
    memory_bytes: int
    descriptors: int
    threads: int


def sample(role: str, process_id: int, at_seconds: float) -> Sample:
    """Raises OSError if the process is gone."""
    status = Path(f"/proc/{process_id}/status").read_text()
    found = dict(re.findall(r"^(RssAnon|VmSwap|Threads):\s+(\d+)", status, re.M))
    memory = (int(found.get("RssAnon", 0)) + int(found.get("VmSwap", 0))) * KIB
    descriptors = len(list(Path(f"/proc/{process_id}/fd").iterdir()))
    return Sample(at_seconds, role, process_id, memory, descriptors, int(found.get("Threads", 0)))


@dataclass(frozen=True)
class Trend:
    """Of one role, over the samples of the process that lived to the end."""

    role: str
    samples: int
    minutes: float
    first_kib: float
    last_kib: float
    slope_kib_per_minute: float
    first_descriptors: int
    last_descriptors: int

    @property
    def grows(self) -> bool:
        """From the first third to the last, by more than noise."""
        growth = self.last_kib - self.first_kib
        memory = growth > GROWTH_KIB_MAX and growth > GROWTH_SHARE_MAX * self.first_kib
        return memory or self.last_descriptors > self.first_descriptors + DESCRIPTORS_MAX


def trend(samples: Sequence[Sample], role: str, since_seconds: float) -> Trend:
    """Medians of the first and the last third, and the least squares' slope. Raises ValueError for
    fewer than six samples."""
    own = [one for one in samples if one.role == role and one.at_seconds >= since_seconds]
    own = [one for one in own if one.process_id == own[-1].process_id]
    if len(own) < 6:
        raise ValueError(f"{len(own)} samples of {role} tell nothing")
    third = len(own) // 3
    first, last = own[:third], own[-third:]

    def memory(of: Sequence[Sample]) -> float:
        return statistics.median(one.memory_bytes for one in of) / KIB

    def descriptors(of: Sequence[Sample]) -> int:
        return round(statistics.median(one.descriptors for one in of))

    slope = statistics.linear_regression(
        [one.at_seconds / 60 for one in own], [one.memory_bytes / KIB for one in own]
    ).slope
    minutes = (own[-1].at_seconds - own[0].at_seconds) / 60
    first_kib, last_kib = memory(first), memory(last)
    ends = (descriptors(first), descriptors(last))
    return Trend(role, len(own), minutes, first_kib, last_kib, slope, *ends)


def table(trends: Sequence[Trend]) -> str:
    """Markdown."""
    lines = [
        "| process | samples | minutes | RssAnon + VmSwap, first and last third | slope |"
        " descriptors | |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in trends:
        lines.append(
            f"| {one.role} | {one.samples} | {one.minutes:.1f} "
            f"| {one.first_kib / KIB:.2f} → {one.last_kib / KIB:.2f} MiB "
            f"| {one.slope_kib_per_minute:+.1f} KiB/min "
            f"| {one.first_descriptors} → {one.last_descriptors} "
            f"| {'**grows**' if one.grows else 'flat'} |"
        )
    return "\n".join(lines)


def picture(samples: Sequence[Sample], kills: Sequence[tuple[float, str]]) -> str:
    """Memory of each role over time; a dashed line where a process was killed."""
    roles = sorted({one.role for one in samples})
    panels = [_panel(role, samples, [at for at, who in kills if who == role]) for role in roles]
    return svg.document("Memory at rest while it is used, killed and reloaded", panels)


def _panel(role: str, samples: Sequence[Sample], kills: Sequence[float]) -> svg.Panel:
    own = [one for one in samples if one.role == role]
    most = max(one.memory_bytes for one in own) * 1.15
    end = max(one.at_seconds for one in samples)

    def draw(x: float, y: float) -> list[str]:
        left, top, bottom = x + 56, y + svg.TITLE_HEIGHT, y + svg.PANEL_HEIGHT - 28
        width, height = svg.PANEL_WIDTH - 72, bottom - top

        def place(one: Sample) -> str:
            across = left + width * one.at_seconds / end
            return f"{across:.1f},{bottom - height * one.memory_bytes / most:.1f}"

        lines = [svg.text(x, y + 20, f"{role}: RssAnon + VmSwap, MiB", "ink title")]
        for part in (0.0, 0.5, 1.0):
            at, number = bottom - height * part, most * part / (KIB * KIB)
            lines.append(f'<path class="rule" d="M{left:.0f} {at:.0f}h{width:.0f}"/>')
            lines.append(svg.text(x, at + 4, f"{number:.1f}", "dim value"))
        for at in kills:
            across = left + width * at / end
            down = f'd="M{across:.1f} {top:.0f}V{bottom:.0f}"'
            lines.append(f'<path class="rule" stroke-dasharray="2 3" {down}/>')
        marks = "".join(
            f'<circle cx="{point.split(",")[0]}" cy="{point.split(",")[1]}" r="2"/>'
            for point in map(place, own)
        )
        lines.append(f'<g class="a">{marks}</g>')
        lines.append(svg.text(left, bottom + 20, f"0 to {end / 60:.0f} minutes", "dim"))
        return lines

    return draw
