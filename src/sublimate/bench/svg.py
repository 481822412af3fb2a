"""Marks of an SVG that is written without a library: readable in a README in light and dark.

Colours are CSS variables that follow the reader's preference; the numbers beside the marks are
text, so that the picture says what the table says.

defines: WIDTH, MARGIN, GAP, PANEL_WIDTH, PANEL_HEIGHT, TITLE_HEIGHT, VALUE_WIDTH, Bar, document,
         bars, milliseconds, text
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

WIDTH, MARGIN, GAP = 960, 24, 24
PANEL_WIDTH = (WIDTH - 2 * MARGIN - GAP) / 2
PANEL_HEIGHT = 300
HEADER_HEIGHT = 64
TITLE_HEIGHT = 56
ROW_HEIGHT, BAR_HEIGHT = 24, 14
LABEL_WIDTH, VALUE_WIDTH = 128, 72
ROWS_MAX = (PANEL_HEIGHT - TITLE_HEIGHT) // ROW_HEIGHT

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


Panel = Callable[[float, float], list[str]]
"""Lines of one panel whose corner is at (x, y)."""


def document(head: str, panels: Sequence[Panel]) -> str:
    """A heading and panels, two in a row. Raises ValueError without any."""
    if not panels:
        raise ValueError("there is no figure to draw")
    lines: list[str] = []
    for place, panel in enumerate(panels):
        x = MARGIN + place % 2 * (PANEL_WIDTH + GAP)
        y = HEADER_HEIGHT + place // 2 * (PANEL_HEIGHT + GAP)
        lines += panel(x, y)
    rows = -(-len(panels) // 2)
    height = HEADER_HEIGHT + rows * (PANEL_HEIGHT + GAP)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="{FONTS}" font-size="13" role="img" '
            f'aria-label="{_attribute(head)}">',
            f"<style>{STYLE}</style>",
            f'<rect class="card" x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="8"/>',
            text(MARGIN, 40, head, "ink head"),
            *lines,
            "</svg>",
            "",
        ]
    )


def bars(
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
        text(x, y + 16, title, "ink title"),
        text(x, y + 36, note, "dim"),
    ]
    if any(length < 0 for _, length, _, _ in bars):
        raise ValueError("a bar has no negative length")
    shown = bars[:ROWS_MAX]
    lengths = [length for _, length, _, _ in shown]
    most = max([most, *lengths]) or 1.0
    room = PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH - 40
    for place, (label, length, value, colour) in enumerate(shown):
        top = y + TITLE_HEIGHT + place * ROW_HEIGHT
        width = max(1.0, room * length / most)
        left = x + LABEL_WIDTH + 40
        lines += [
            text(left - 8, top + 12, label, "ink", anchor="end"),
            f'<rect class="{colour}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
            f'height="{BAR_HEIGHT}" rx="2"/>',
            text(left + width + 8, top + 12, value, "dim value"),
        ]
    return lines


def milliseconds(value: float) -> str:
    """Two digits that say something."""
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"


def text(x: float, y: float, words: str, classes: str, anchor: str = "start") -> str:
    return (
        f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )


def _attribute(words: str) -> str:
    return escape(words, {'"': "&quot;"})
