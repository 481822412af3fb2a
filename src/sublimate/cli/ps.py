"""`sublimate ps`: the servers of this machine, or one that is named.

defines: ServerRow, row_of, table_of, span, ps
"""

from __future__ import annotations

import contextlib
import time
from urllib.parse import urlsplit

import msgspec
from rich.table import Table

from ..config import format_size
from ..errors import ExitCode, PeerError
from .output import out
from .peer import Peer, gauges, local_urls

UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
VENDOR_PREFIX = "claude-"
"""Each model is listed twice, once with this before its name."""


class ModelLine(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a server, as /v1/models tells of it."""

    id: str
    state: str
    memory_bytes: int
    requests: int
    idle_seconds: float | None = None
    parent: str | None = None
    """Of an adapter: its model, which is what is in memory."""


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
    models: tuple[ModelLine, ...] = ()
    """Of a server whose models come and go."""
    problem: str = ""
    """Why the rest is not known; empty if it is."""


class _Started(msgspec.Struct):
    created: int
    state: str = ""
    """Of a model that may be out of memory."""


class _Listed(msgspec.Struct):
    data: list[ModelLine]


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
        models=_models_of(peer) if entry.state else (),
    )


def _models_of(peer: Peer) -> tuple[ModelLine, ...]:
    """Each under its own name. Raises PeerError."""
    listed = msgspec.convert(peer.json("/v1/models?limit=1000"), _Listed).data
    return tuple(one for one in listed if not (one.parent or one.id.startswith(VENDOR_PREFIX)))


def table_of(rows: list[ServerRow]) -> Table:
    """A line each, also where 80 columns are all there is: a long name of a model is cut."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("url", no_wrap=True)
    table.add_column("model", overflow="ellipsis")  # the only one that gives way
    for title in ("context", "run", "wait", "rows", "KV", "up"):
        table.add_column(title, no_wrap=True, justify="right")
    for row in rows:
        counts = (row.running, row.waiting, row.step_rows)
        table.add_row(
            row.url,
            row.model,
            f"{row.context_tokens:,}",
            *map(str, counts),
            f"{row.kv_share:.0%}",
            span(row.uptime_seconds),
        )
    return table


def span(seconds: int) -> str:
    """So long in the largest two units: 3d 4h."""
    if seconds < 0:
        raise ValueError("time does not go back")
    words: list[str] = []
    for name, length in UNITS:
        count, seconds = divmod(seconds, length)
        if count or words or name == "s":
            words.append(f"{count}{name}")
    return " ".join(words[:2])


def ps(peer: Peer, url: str, as_json: bool) -> ExitCode:
    """`peer`: the one that a URL names; without a URL, whose key those of this machine are asked
    with. Exit code PEER if a server that was named does not answer."""
    rows = [row_of(peer)] if url else _found(peer.key)
    if as_json:
        out.print_json(msgspec.json.encode(rows).decode())
        return ExitCode.OK
    if not rows:
        out.print("No server of this user runs here. Start one: sublimate serve")
        return ExitCode.OK
    table = table_of([row for row in rows if not row.problem])
    if table.row_count:
        out.print(table)
    for row in rows:
        if row.models:
            out.print(_models_table(row))
    for row in rows:
        if row.problem:
            out.print(row.problem)
    return ExitCode.OK


def _models_table(row: ServerRow) -> Table:
    table = Table(box=None)
    table.add_column(row.url, overflow="fold")
    for title in ("state", "memory", "requests", "unused for"):
        table.add_column(title, no_wrap=True)
    for one in row.models:
        idle = "" if one.idle_seconds is None else span(int(one.idle_seconds))
        memory = format_size(one.memory_bytes) if one.memory_bytes else ""
        table.add_row(one.id, one.state, memory, str(one.requests), idle)
    return table


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
