"""Tables for people and rows for machines.

defines: served_table, comparison_table, native_table, to_json
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.table import Table

from .figures import Percentiles, Spread
from .native import NativeRow
from .served import Comparison, Figures


def _percentiles(value: Percentiles) -> str:
    return f"{value.p50:.1f} / {value.p90:.1f} / {value.p99:.1f} ms"


def _range(median: float, least: float, greatest: float) -> str:
    return f"{median:.1f}  ({least:.1f} to {greatest:.1f})"


def _served_cells(figures: Figures) -> dict[str, str]:
    """Title of a row -> its cell."""
    speed = _range(figures.tok_s, figures.tok_s_least, figures.tok_s_greatest)
    return {
        "model": figures.model,
        "API": figures.api,
        "tokens/s (median, range)": speed,
        "first token p50/p90/p99": _percentiles(figures.first_token_ms),
        "between arrivals p50/p90/p99": _percentiles(figures.between_tokens_ms),
        "per token p50/p90/p99": _percentiles(figures.per_token_ms),
        "largest gap": f"{figures.largest_gap_ms:.1f} ms",
        "tokens in / out": f"{figures.input_tokens:.0f} / {figures.output_tokens:.1f}",
        "tokens counted by": figures.counted_by,
        "length forced": "yes" if figures.length_forced else "no",
        "requests / errors": f"{figures.requests} / {figures.errors}",
    }


def served_table(figures: Sequence[Figures]) -> Table:
    """One column per server."""
    table = Table(
        title=f"{figures[0].test}, {figures[0].batch} at once, {figures[0].rounds} rounds"
    )
    table.add_column("")
    for one in figures:
        table.add_column(one.url, justify="right")
    cells = [_served_cells(one) for one in figures]
    for title in cells[0]:
        table.add_row(title, *(column[title] for column in cells))
    for one in figures:
        for text, count in one.error_texts.items():
            table.caption = f"{table.caption or ''}{one.url}: {count} x {text}\n"
    return table


def comparison_table(comparison: Comparison) -> Table:
    """Ratios with their spread."""
    table = Table(title="first against second (above 1: the first is better)")
    table.add_column("")
    table.add_column("median", justify="right")
    table.add_column("range over rounds", justify="right")
    rows: list[tuple[str, Spread]] = [
        ("tokens/s", comparison.tok_s),
        ("first token", comparison.first_token),
        ("time per token", comparison.between_tokens),
    ]
    for title, spread in rows:
        span = f"{spread.least:.2f} to {spread.greatest:.2f}"
        table.add_row(title, f"{spread.median:.2f} x", span)
    return table


def native_table(rows: Sequence[NativeRow]) -> Table:
    """One line per row."""
    table = Table(title=f"resident loop in this process, {rows[0].isa}, {rows[0].threads} threads")
    for name in ("test", "batch", "tokens/s", "range", "repetitions"):
        table.add_column(name, justify="left" if name == "test" else "right")
    for row in rows:
        span = f"{row.tok_s_least:.1f} to {row.tok_s_greatest:.1f}"
        table.add_row(row.test, str(row.batch), f"{row.tok_s:.1f}", span, str(row.repetitions))
    return table


def to_json(rows: Sequence[msgspec.Struct], comparison: Comparison | None = None) -> str:
    """A JSON list, one object with "test", "batch", "tok_s" per row; NaN becomes null."""
    listed = [msgspec.to_builtins(row) for row in rows]
    if comparison is not None:
        listed[0]["ratios"] = msgspec.to_builtins(comparison)
    return msgspec.json.encode(listed).decode()
