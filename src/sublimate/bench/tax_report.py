"""What `sublimate tax` found: as data, and as tables for people.

defines: Report, tables
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich.table import Table

from .figures import Spread
from .tax import Tail
from .tax_ceiling import ENGINE, Ceiling, Idle, without_engine
from .tax_engine import Side, Tax
from .tax_interference import Interference
from .tax_ledger import RESIDUE_MAX, Ledger


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one run. A figure that was not asked for is empty."""

    version: str
    cpu: str
    cores: int
    model: str
    engine: dict[str, str | int | float | bool]
    """What the in-process engine says of itself, where it was started."""
    prompt_tokens: int
    generate_tokens: int
    rounds: int
    ceiling: list[Ceiling] = []
    idle: Idle | None = None
    tax: list[Tax] = []
    ledger: list[Ledger] = []
    interference: list[Interference] = []
    notes: list[str] = []


def tables(report: Report) -> Iterator[Table]:
    """One per figure that was measured."""
    if report.ceiling:
        yield _ceiling_table(report.ceiling, report.idle)
    if report.tax:
        yield _tax_table(report.tax)
    if report.ledger:
        yield _ledger_table(report.ledger)
    if report.interference:
        yield _interference_table(report.interference)


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right")
    return table


# ---- figure 1 ----------------------------------------------------------------------------------
def _ceiling_table(rows: Sequence[Ceiling], idle: Idle | None) -> Table:
    table = _table(
        "1. Ceiling: an engine that computes nothing. us: processor time of the server without the "
        "mock engine's process (and of that process)",
        ("server", "at once", "req/s", "us/req", "tok/s", "tok/ev", "us/tok", "us/event"),
    )
    for row in rows:
        table.add_row(
            row.server,
            str(row.concurrency),
            f"{row.requests_per_s.median:.0f}",
            _cost(row.request_us, 0),
            f"{row.tokens_per_s.median:.0f}",
            f"{row.tokens_per_event:.1f}",
            _cost(row.token_us, 1),
            _cost(row.event_us, 1),
        )
    table.caption = (
        "us/event: every stream one event each 5 ms; the other figures as fast as it goes.\n"
        f"Client: {min(row.client_cores for row in rows):.2f} to "
        f"{max(row.client_cores for row in rows):.2f} cores."
    )
    if idle is not None:
        table.caption += (
            f" Idle server: {idle.cpu_share:.2%} of a core. Native text path: "
            f"{idle.native_ns_per_token:.0f} ns a token."
        )
    return table


def _cost(costs: dict[str, float], digits: int) -> str:
    own = f"{without_engine(costs):.{digits}f}"
    return f"{own} ({costs[ENGINE]:.{digits}f})" if ENGINE in costs else own


def _spread(value: Spread, digits: int) -> str:
    return f"{value.median:.{digits}f} ({value.least:.{digits}f} to {value.greatest:.{digits}f})"


# ---- figure 2 ----------------------------------------------------------------------------------
MEASURES = {
    "first token": "first_token",
    "per token": "per_token",
    "gap between arrivals": "gap",
}


def _tax_table(rows: Sequence[Tax]) -> Table:
    first = rows[0]
    table = _table(
        f"2. Tax: (server - in-process) / in-process, {first.prompt_tokens:.0f} tokens in, "
        f"{first.generate_tokens} out",
        ("", "p50", "p99", "p99.9"),
    )
    for row in rows:
        own, cached = row.server, row.in_process.cached_tokens
        table.add_row(
            f"[bold]{row.concurrency} at once[/bold], {own.requests} streams each; prompt tokens "
            f"from the cache: {own.cached_tokens:.0f}, in-process {cached:.0f}"
        )
        for title, name in MEASURES.items():
            table.add_row(f"{title}: server", *_times(own, name))
            table.add_row("    in-process", *_times(row.in_process, name))
            if row.peer is not None:
                table.add_row("    peer", *_times(row.peer, name))
            table.add_row("    [bold]tax[/bold]", *_shares(getattr(row, name)))
        table.add_section()
    return table


def _shares(tail: Tail) -> tuple[str, str, str]:
    return f"{tail.p50:+.1%}", f"{tail.p99:+.1%}", f"{tail.p999:+.1%}"


def _times(side: Side, name: str) -> tuple[str, str, str]:
    tail: Tail = getattr(side, f"{name}_ms")
    return f"{tail.p50:.2f} ms", f"{tail.p99:.2f} ms", f"{tail.p999:.2f} ms"


# ---- figure 3 ----------------------------------------------------------------------------------
def _ledger_table(rows: Sequence[Ledger]) -> Table:
    columns = ["stage, mean ms (share)", *(f"{row.concurrency} at once" for row in rows)]
    table = _table("3. Ledger of a request with the real engine", columns)
    for place, stage in enumerate(rows[0].stages):
        cells = [row.stages[place] for row in rows]
        table.add_row(stage.name, *(f"{cell.mean_ms:.3f} ({cell.share:.1%})" for cell in cells))
    table.add_row("residue: sockets, client", *(f"{row.residue:.2%}" for row in rows))
    table.add_row("[bold]end to end[/bold]", *(f"{row.end_to_end_ms:.2f} ms" for row in rows))
    table.add_section()
    verdicts = [f"{'yes' if row.adds_up else 'NO'} (worst {row.residue_worst:.1%})" for row in rows]
    table.add_row(f"adds up within {RESIDUE_MAX:.0%}", *verdicts)
    table.add_row("first token, client", *(f"{row.first_token_ms:.2f} ms" for row in rows))
    ledger = [f"{row.first_token_stages_ms:.2f} ms" for row in rows]
    table.add_row("first token, stages and its way out", *ledger)
    return table


# ---- figure 4 ----------------------------------------------------------------------------------
def _interference_table(rows: Sequence[Interference]) -> Table:
    first = rows[0]
    table = _table(
        f"4. Interference: {first.concurrency} streams, {first.busy_processes} busy processes on "
        f"{first.cores} cores",
        ("", *(row.server for row in rows)),
    )
    lines = {
        "tokens/s, quiet": [_spread(row.quiet_tokens_per_s, 1) for row in rows],
        "tokens/s, beside busy processes": [_spread(row.busy_tokens_per_s, 1) for row in rows],
        "throughput kept": [f"{row.kept:.1%}" for row in rows],
        "fair share of the cores": [f"{row.fair_share:.1%}" for row in rows],
        "[bold]kept of the fair share[/bold]": [f"{row.kept_of_fair_share:.1%}" for row in rows],
        "processor time it still got": [f"{row.cpu_kept:.1%}" for row in rows],
        "first token p50, busy / quiet": [f"{row.first_token_p50_ratio:.2f} x" for row in rows],
        "first token p99, busy / quiet": [f"{row.first_token_p99_ratio:.2f} x" for row in rows],
        "first token p99": [
            f"{row.quiet_first_token_p99_ms:.0f} -> {row.busy_first_token_p99_ms:.0f} ms"
            for row in rows
        ],
    }
    for title, cells in lines.items():
        table.add_row(title, *cells)
    return table
