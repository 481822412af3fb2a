"""The four figures as one SVG, without a library: readable in a README in light and dark.

Colours are CSS variables that follow the reader's preference; the numbers beside the marks are
text, so that the picture says what the table says.

defines: draw
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, log10
from xml.sax.saxutils import escape

from .tax_ceiling import OURS, TWIN, without_engine
from .tax_ledger import Ledger
from .tax_report import Report

WIDTH, MARGIN, GAP = 960, 24, 24
PANEL_WIDTH = (WIDTH - 2 * MARGIN - GAP) / 2
PANEL_HEIGHT = 300
HEADER_HEIGHT = 64
TITLE_HEIGHT = 56
ROW_HEIGHT, BAR_HEIGHT = 24, 14
LABEL_WIDTH, VALUE_WIDTH = 128, 72
TAX_SCALE = 0.05
ROWS_MAX = (PANEL_HEIGHT - TITLE_HEIGHT) // ROW_HEIGHT
STAGES_MAX, STAGE_HEIGHT, STAGE_LABEL_WIDTH = 11, 20, 90

FONTS = "system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
STYLE = """
  .card { fill: #ffffff; stroke: #d8dce1; }
  .ink { fill: #1b2430; } .dim { fill: #5b6672; } .rule { stroke: #d8dce1; }
  .a { fill: #0b6fb8; } .b { fill: #a9b4bf; } .c { fill: #c2571a; }
  .title { font-size: 15px; font-weight: 600; } .head { font-size: 19px; font-weight: 600; }
  .value { font-variant-numeric: tabular-nums; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #12181f; stroke: #2f3a45; }
    .ink { fill: #e6ebf0; } .dim { fill: #97a3af; } .rule { stroke: #2f3a45; }
    .a { fill: #4aa8e8; } .b { fill: #5c6873; } .c { fill: #ee8a4f; }
  }
"""

Bar = tuple[str, float, str, str]
"""(label, length, text beside it, class of its colour)"""


def draw(report: Report) -> str:
    """The picture of what was measured; panels without figures are left out."""
    panels: list[Callable[[float, float], list[str]]] = []
    if report.ceiling:
        panels.append(lambda x, y: _ceiling(report, x, y))
    if report.tax:
        panels.append(lambda x, y: _tax(report, x, y))
    if report.ledger:
        panels.append(lambda x, y: _ledger(report.ledger[0], x, y))
    if report.interference:
        panels.append(lambda x, y: _interference(report, x, y))
    if not panels:
        raise ValueError("there is no figure to draw")
    lines: list[str] = []
    for place, panel in enumerate(panels):
        x = MARGIN + place % 2 * (PANEL_WIDTH + GAP)
        y = HEADER_HEIGHT + place // 2 * (PANEL_HEIGHT + GAP)
        lines += panel(x, y)
    rows = -(-len(panels) // 2)
    height = HEADER_HEIGHT + rows * (PANEL_HEIGHT + GAP)
    where = f"{report.cpu}, {report.cores} cores" if report.cpu else f"{report.cores} cores"
    head = f"The tax of serving: {report.model}, {where}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="{FONTS}" font-size="13" role="img" '
            f'aria-label="{_attribute(head)}">',
            f"<style>{STYLE}</style>",
            f'<rect class="card" x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="8"/>',
            _text(MARGIN, 40, head, "ink head"),
            *lines,
            "</svg>",
            "",
        ]
    )


# ---- panels ------------------------------------------------------------------------------------
def _ceiling(report: Report, x: float, y: float) -> list[str]:
    names = {OURS: "a", TWIN: "b"}
    bars = [
        (
            f"{row.concurrency} at once, {row.server}",
            without_engine(row.event_us),
            f"{without_engine(row.event_us):.1f} µs",
            names.get(row.server, "c"),
        )
        for row in report.ceiling
    ]
    title = "Processor time per streamed event, mock engine"
    return _bars(x, y, title, "without the engine process; shorter is better", bars)


def _tax(report: Report, x: float, y: float) -> list[str]:
    bars: list[Bar] = []
    for row in report.tax:
        for name, tail in (("first token", row.first_token), ("per token", row.per_token)):
            label = f"{row.concurrency} at once, {name}"
            bars.append((label, max(0.0, tail.p50), f"{tail.p50:+.1%}", "a"))
    title = "Time through HTTP over time in-process"
    return _bars(x, y, title, "median; 0 % is the engine alone", bars, most=TAX_SCALE)


def _ledger(ledger: Ledger, x: float, y: float) -> list[str]:
    """A mark per stage on a logarithmic axis: the stages differ by factors of thousands."""
    title = f"Where the {ledger.end_to_end_ms:.0f} ms of a request go, {ledger.concurrency} at once"
    lines = [
        _text(x, y + 16, title, "ink title"),
        _text(x, y + 36, f"ms, logarithmic; the stages leave {ledger.residue:.2%} of it", "dim"),
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
        lines.append(_text(at, bottom + 14, f"{10.0**decade:g}", "dim", anchor="middle"))
    for place, stage in enumerate(stages):
        middle = y + TITLE_HEIGHT + place * STAGE_HEIGHT + STAGE_HEIGHT / 2 - 4
        at = left + room * (log10(stage.mean_ms) - least) / (most - least)
        lines += [
            _text(left - 10, middle + 4, stage.name.replace("_", " "), "ink", anchor="end"),
            f'<circle class="a" cx="{at:.1f}" cy="{middle:.1f}" r="5"/>',
            _text(at + 10, middle + 4, _milliseconds(stage.mean_ms), "ink value"),
        ]
    return lines


def _interference(report: Report, x: float, y: float) -> list[str]:
    bars: list[Bar] = []
    for row in report.interference:
        name = OURS if row.server == OURS else "peer"
        bars.append((f"{name}, kept", row.kept, f"{row.kept:.0%}", "a"))
        bars.append(("its fair share", row.fair_share, f"{row.fair_share:.0%}", "b"))
    first = report.interference[0]
    title = f"Throughput kept beside {first.busy_processes} busy processes"
    return _bars(x, y, title, f"{first.concurrency} streams on {first.cores} cores", bars, most=1.0)


# ---- marks -------------------------------------------------------------------------------------
def _bars(
    x: float,
    y: float,
    title: str,
    note: str,
    bars: Sequence[Bar],
    *,
    most: float = 0.0,
) -> list[str]:
    """A titled panel of horizontal bars."""
    lines = [
        _text(x, y + 16, title, "ink title"),
        _text(x, y + 36, note, "dim"),
    ]
    shown = bars[:ROWS_MAX]
    lengths = [length for _, length, _, _ in shown]
    most = max([most, *lengths]) or 1.0
    room = PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH - 40
    for place, (label, length, value, colour) in enumerate(shown):
        top = y + TITLE_HEIGHT + place * ROW_HEIGHT
        width = max(1.0, room * length / most)
        left = x + LABEL_WIDTH + 40
        lines += [
            _text(left - 8, top + 12, label, "ink", anchor="end"),
            f'<rect class="{colour}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
            f'height="{BAR_HEIGHT}" rx="2"/>',
            _text(left + width + 8, top + 12, value, "dim value"),
        ]
    return lines


def _milliseconds(value: float) -> str:
    """Two digits that say something."""
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"


def _text(x: float, y: float, words: str, classes: str, anchor: str = "start") -> str:
    return (
        f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )


def _attribute(words: str) -> str:
    return escape(words, {'"': "&quot;"})
