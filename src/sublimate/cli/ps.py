"""`sublimate ps`: the servers of this machine, or one that is named.

defines: ServerRow, row_of, ps
"""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from urllib.parse import urlsplit

import msgspec
from rich.table import Table

from ..errors import ExitCode, PeerError
from .output import out
from .peer import Peer, gauges, local_urls


class ServerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `ps --json`."""

    url: str
    model: str = ""
    context_tokens: int = 0
    """As served."""
    running: int = 0
    waiting: int = 0
    step_rows: int = 0
    """Of the last step: hundreds while a prompt is read, one for each stream while they write."""
    kv_share: float = 0.0
    """Of the pages, those that running requests hold."""
    uptime_seconds: int = 0
    """Of its edge process."""
    problem: str = ""
    """Why the rest is not known; empty if it is."""


class _Started(msgspec.Struct):
    created: int


class _WellKnown(msgspec.Struct):
    ports: dict[str, int]


def row_of(peer: Peer) -> ServerRow:
    """What the server says of itself. Raises PeerError."""
    model = peer.model()
    entry = msgspec.convert(peer.json(f"/v1/models/{model.id}"), _Started)
    numbers = gauges(peer.ask("/metrics")[1])
    pages = numbers.get("kv_pages", 0.0)
    idle = numbers.get("kv_pages_free", 0.0) + numbers.get("kv_pages_cached", 0.0)
    return ServerRow(
        url=peer.url,
        model=model.id,
        context_tokens=model.max_input_tokens,
        running=int(numbers.get("num_requests_running", 0)),
        waiting=int(numbers.get("num_requests_waiting", 0)),
        step_rows=int(numbers.get("step_rows", 0)),
        kv_share=round(1 - idle / pages, 3) if pages else 0.0,
        uptime_seconds=max(0, int(time.time()) - entry.created),
    )


def ps(url: str, key: str, as_json: bool) -> ExitCode:
    """Exit code PEER if a server that was named does not answer."""
    if url:
        rows = [row_of(Peer(url, key))]
    else:
        rows = _found(key)
    if as_json:
        out.print_json(msgspec.json.encode(rows).decode())
        return ExitCode.OK
    if not rows:
        out.print("No server of this user runs here. Start one: sublimate serve")
        return ExitCode.OK
    table = Table(box=None)
    table.add_column("url", no_wrap=True)
    for title in ("model", "context", "running", "waiting", "step rows", "KV", "up"):
        table.add_column(title, overflow="fold")
    for row in rows:
        if row.problem:
            continue
        up = str(timedelta(seconds=row.uptime_seconds))
        counts = (row.running, row.waiting, row.step_rows)
        share = f"{row.kv_share:.0%}"
        table.add_row(row.url, row.model, f"{row.context_tokens:,}", *map(str, counts), share, up)
    if table.row_count:
        out.print(table)
    for row in rows:
        if row.problem:
            out.print(row.problem)
    return ExitCode.OK


def _found(key: str) -> list[ServerRow]:
    """Of this user's servers. A port that another one names as its own for TLS or gRPC is no server
    of its own."""
    peers = [Peer(url, key) for url in local_urls()]
    rows = [_told(peer) for peer in peers]
    other_ports: set[int] = set()
    for peer, row in zip(peers, rows, strict=True):
        with contextlib.suppress(PeerError, msgspec.ValidationError):
            if not row.problem:
                named = msgspec.convert(peer.json("/.well-known/sublimate"), _WellKnown)
                other_ports.update(named.ports.values())
    return [row for row in rows if not row.problem or urlsplit(row.url).port not in other_ports]


def _told(peer: Peer) -> ServerRow:
    """A server that was found may want a key that is not known here, or may be loading."""
    try:
        return row_of(peer)
    except PeerError as error:
        return ServerRow(url=peer.url, problem=str(error))
