"""The four figures of the tax as one picture.

defines: draw
"""

from __future__ import annotations

from math import ceil, floor, log10

from .svg import (
    PANEL_WIDTH,
    TITLE_HEIGHT,
    VALUE_WIDTH,
    Bar,
    Panel,
    bars,
    document,
    milliseconds,
    text,
)
from .tax_ceiling import OURS, TWIN, without_engine
from .tax_ledger import Ledger
from .tax_report import Report

TAX_SCALE = 0.05
STAGES_MAX, STAGE_HEIGHT, STAGE_LABEL_WIDTH = 11, 20, 90


def draw(report: Report) -> str:
    """The picture of what was measured; panels without figures are left out."""
    panels: list[Panel] = []
    if report.ceiling:
        panels.append(lambda x, y: _ceiling(report, x, y))
    if report.tax:
        panels.append(lambda x, y: _tax(report, x, y))
    if report.ledger:
        panels.append(lambda x, y: _ledger(report.ledger[0], x, y))
    if report.interference:
        panels.append(lambda x, y: _interference(report, x, y))
    where = f"{report.cpu}, {report.cores} cores" if report.cpu else f"{report.cores} cores"
    return document(f"The tax of serving: {report.model}, {where}", panels)


# ---- panels ------------------------------------------------------------------------------------
def _ceiling(report: Report, x: float, y: float) -> list[str]:
    names = {OURS: "a", TWIN: "b"}
    shown = [
        (
            f"{row.concurrency} at once, {row.server}",
            without_engine(row.event_us),
            f"{without_engine(row.event_us):.1f} µs",
            names.get(row.server, "c"),
        )
        for row in report.ceiling
    ]
    title = "Processor time per streamed event, mock engine"
    return bars(x, y, title, "without the engine process; shorter is better", shown)


def _tax(report: Report, x: float, y: float) -> list[str]:
    shown: list[Bar] = []
    for row in report.tax:
        for name, tail in (("first token", row.first_token), ("per token", row.per_token)):
            label = f"{row.concurrency} at once, {name}"
            shown.append((label, max(0.0, tail.p50), f"{tail.p50:+.1%}", "a"))
    title = "Time through HTTP over time in-process"
    return bars(x, y, title, "median; 0 % is the engine alone", shown, most=TAX_SCALE)


def _ledger(ledger: Ledger, x: float, y: float) -> list[str]:
    """A mark per stage on a logarithmic axis: the stages differ by factors of thousands."""
    title = f"Where the {ledger.end_to_end_ms:.0f} ms of a request go, {ledger.concurrency} at once"
    lines = [
        text(x, y + 16, title, "ink title"),
        text(x, y + 36, f"ms, logarithmic; the stages leave {ledger.residue:.2%} of it", "dim"),
    ]
    stages = [stage for stage in ledger.stages if stage.mean_ms > 0][:STAGES_MAX]
    if not stages:
        return lines
    least = floor(log10(min(stage.mean_ms for stage in stages)))
    most = max(least + 1, ceil(log10(max(stage.mean_ms for stage in stages))))
    left = x + STAGE_LABEL_WIDTH
    room = PANEL_WIDTH - STAGE_LABEL_WIDTH - VALUE_WIDTH
    bottom = y + TITLE_HEIGHT + len(stages) * STAGE_HEIGHT
    for decade in range(least, most + 1):
        at = left + room * (decade - least) / (most - least)
        lines.append(
            f'<line class="rule" x1="{at:.1f}" x2="{at:.1f}" y1="{y + TITLE_HEIGHT - 8:.1f}" '
            f'y2="{bottom:.1f}"/>'
        )
        lines.append(text(at, bottom + 14, f"{10.0**decade:g}", "dim", anchor="middle"))
    for place, stage in enumerate(stages):
        middle = y + TITLE_HEIGHT + place * STAGE_HEIGHT + STAGE_HEIGHT / 2 - 4
        at = left + room * (log10(stage.mean_ms) - least) / (most - least)
        lines += [
            text(left - 10, middle + 4, stage.name.replace("_", " "), "ink", anchor="end"),
            f'<circle class="a" cx="{at:.1f}" cy="{middle:.1f}" r="5"/>',
            text(at + 10, middle + 4, milliseconds(stage.mean_ms), "ink value"),
        ]
    return lines


def _interference(report: Report, x: float, y: float) -> list[str]:
    shown: list[Bar] = []
    for row in report.interference:
        name = OURS if row.server == OURS else "peer"
        shown.append((f"{name}, kept", row.kept, f"{row.kept:.0%}", "a"))
        shown.append(("its fair share", row.fair_share, f"{row.fair_share:.0%}", "b"))
    first = report.interference[0]
    title = f"Throughput kept beside {first.busy_processes} busy processes"
    return bars(x, y, title, f"{first.concurrency} streams on {first.cores} cores", shown, most=1.0)
