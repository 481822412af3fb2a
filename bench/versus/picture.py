"""The comparison as one SVG: a panel per figure, a bar per subject, its range as a thin line.

defines: draw
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from summary import FIGURES, OURS, Line, written

WIDTH, LABEL_WIDTH, VALUE_WIDTH = 760, 150, 200
ROW_HEIGHT, BAR_HEIGHT, TITLE_HEIGHT, PANEL_GAP = 22, 14, 24, 14
STYLE = """
  .card { fill: #ffffff; } .ink { fill: #1b2430; } .dim { fill: #5b6672; }
  .ours { fill: #0b6fb8; } .peer { fill: #a9b4bf; } .range { stroke: #1b2430; }
  text { font: 13px -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; }
  .title { font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #12181f; } .ink { fill: #e6ebf0; } .dim { fill: #97a3af; }
    .ours { fill: #4aa8e8; } .peer { fill: #5c6873; } .range { stroke: #e6ebf0; }
  }
"""


def draw(lines: Sequence[Line]) -> str:
    """Each panel has a scale of its own, from zero."""
    panels: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        panels.setdefault((line.section, line.figure), []).append(line)
    marks, top = list[str](), PANEL_GAP
    for (section, figure), bars in panels.items():
        marks += _panel(section, figure, bars, top)
        top += TITLE_HEIGHT + ROW_HEIGHT * len(bars) + PANEL_GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img">'
    card = f'<rect class="card" width="{WIDTH}" height="{top}" rx="8"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", card, *marks, "</svg>", ""])


def _panel(section: str, figure: str, bars: Sequence[Line], top: float) -> list[str]:
    kind = FIGURES[figure]
    better = "" if kind.higher_is_better else ", less is better"
    title = escape(f"{section}: {kind.title} ({kind.unit}{better})")
    marks = [f'<text class="ink title" x="12" y="{top + 14}">{title}</text>']
    room = WIDTH - LABEL_WIDTH - VALUE_WIDTH
    most = max(bar.greatest for bar in bars) or 1.0
    for row, bar in enumerate(bars):
        y = top + TITLE_HEIGHT + row * ROW_HEIGHT
        middle = y + BAR_HEIGHT / 2
        colour = "ours" if bar.subject == OURS else "peer"
        ends = [LABEL_WIDTH + room * value / most for value in (bar.least, bar.greatest)]
        least, median, greatest = (
            written(value * kind.scale) for value in (bar.least, bar.median, bar.greatest)
        )
        marks += [
            f'<text class="ink" x="12" y="{y + 12}">{escape(bar.subject)}</text>',
            f'<rect class="{colour}" x="{LABEL_WIDTH}" y="{y}" height="{BAR_HEIGHT}" '
            f'width="{room * bar.median / most:.1f}"/>',
            f'<line class="range" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{middle}" '
            f'y2="{middle}"/>',
            f'<text class="dim" x="{WIDTH - VALUE_WIDTH + 8}" y="{y + 12}">'
            f"{median} ({least} to {greatest})</text>",
        ]
    return marks
