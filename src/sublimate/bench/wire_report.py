"""What `sublimate wire-compare` found, as tables and as one picture.

defines: wire_tables, draw_wire
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.table import Table

from .figures import Spread
from .svg import Bar, Panel, bars, document, milliseconds
from .wire_compare import OLD, TWIN, Comparison, Row

COLUMNS = (
    "over",
    "packets",
    "the client's",
    "old / this",
    "connections",
    "handshakes",
    "resumed",
    "early",
    "bytes",
    "first byte, ms",
    "whole, ms",
)


def _how(kept: bool) -> str:
    return "Connections that stay" if kept else "A new connection for each request"


def _where(found: Comparison) -> str:
    network = "on loopback"
    if found.round_trip_ms or found.loss:
        network = f"round trip {found.round_trip_ms:g} ms"
        network += f", loss {found.loss:.1%}" if found.loss else ""
    return f"{found.generate_tokens} tokens, one each {found.step_ms:g} ms, {network}"


def wire_tables(found: Comparison) -> Iterator[Table]:
    """One for new and one for kept connections, and the old layer's packets by hop."""
    for kept in (False, True):
        rows = [row for row in found.rows if row.kept == kept]
        if rows:
            yield _table(found, rows, kept)
    hops = [row for row in found.rows if row.hops]
    if hops:
        yield _hop_table(hops)


def _table(found: Comparison, rows: Sequence[Row], kept: bool) -> Table:
    table = Table(
        title=f"{_how(kept)}, per request: {_where(found)}",
        title_justify="left",
        caption_justify="left",
    )
    for number, name in enumerate(COLUMNS):
        table.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(
            row.title,
            _spread(row.packets, 1),
            f"{row.client_packets:.1f}",
            "" if math.isnan(row.packets_of_old.median) else _spread(row.packets_of_old, 2),
            f"{row.connections:.2g}",
            f"{row.handshakes:.2g}",
            f"{row.resumed_share:.0%}" if row.handshakes else "",
            f"{row.early_share:.0%}" if row.early_share else "",
            f"{row.wire_bytes.median:,.0f}",
            _spread(row.first_byte_ms, 1),
            _spread(row.whole_ms, 1),
        )
    table.caption = (
        f"Medians of {found.rounds} interleaved rounds of {found.requests} requests, below them "
        "least and greatest of the rounds.\nPackets and bytes: IP, of all hops; the client's: its "
        "own alone. resumed: of the handshakes. early: in the first flight."
    )
    return table


def _hop_table(rows: Sequence[Row]) -> Table:
    table = Table(title="The old layer's packets by hop", title_justify="left")
    table.add_column("connections", overflow="fold")
    names = list(dict.fromkeys(name for row in rows for name in row.hops))
    for name in names:
        table.add_column(f"with the {name}", justify="right", overflow="fold")
    for row in rows:
        cells = [f"{row.hops.get(name, 0.0):.1f}" for name in names]
        table.add_row("kept" if row.kept else "new", *cells)
    return table


def _spread(value: Spread, digits: int) -> str:
    """The median, and below it the least and the greatest."""
    least, greatest = f"{value.least:.{digits}f}", f"{value.greatest:.{digits}f}"
    return f"{value.median:.{digits}f}\n{least} to {greatest}"


def draw_wire(found: Comparison) -> str:
    """Packets and first bytes, for new and for kept connections."""
    if not found.rows:
        raise ValueError("nothing was compared")
    colours = {OLD: "c", TWIN: "b"}
    panels: list[Panel] = []
    for kept in (False, True):
        rows = [row for row in found.rows if row.kept == kept]
        packets: list[Bar] = [
            (
                row.title,
                row.packets.median,
                f"{row.packets.median:.0f}",
                colours.get(row.subject, "a"),
            )
            for row in rows
        ]
        times: list[Bar] = [
            (
                row.title,
                row.first_byte_ms.median,
                milliseconds(row.first_byte_ms.median),
                colours.get(row.subject, "a"),
            )
            for row in rows
        ]
        panels.append(_panel("Packets per request", _how(kept).lower(), packets))
        panels.append(_panel("Time to the first byte of the answer", _how(kept).lower(), times))
    return document(f"On the wire: {_where(found)}", panels)


def _panel(title: str, note: str, shown: list[Bar]) -> Panel:
    return lambda x, y: bars(x, y, title, note, shown)
