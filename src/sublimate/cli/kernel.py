"""`sublimate kernel`: what the servers of this machine have in its kernel.

defines: Server, kernel
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ..errors import ExitCode, SublimateError
from .output import out, print_plain, run_guarded

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..kernel.objects import Loaded

LIVE_SECONDS = 1.0
MIB = 1 << 20


class Server(NamedTuple):
    """Who has loaded something."""

    process_id: int
    """0: nobody holds it any more."""
    ports: list[int]
    """TCP, that it listens on."""

    def __str__(self) -> str:
        if not self.process_id:
            return "held by no process"
        named = f"port {', '.join(map(str, self.ports))}" if self.ports else "no port"
        return f"process {self.process_id}, {named}"


NOBODY = Server(0, [])


def kernel(
    live: Annotated[bool, typer.Option("--live", help="Go on, and measure the cost.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Forget all that is remembered.")] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON, once.")] = False,
) -> None:
    """Show what servers have in this machine's kernel (eBPF): programs, maps, hit ratio, cost."""
    code = run_guarded(lambda: _run(live, clear, json))
    if code:
        raise typer.Exit(code)


def _run(live: bool, clear: bool, as_json: bool) -> ExitCode:
    from .. import _core

    found = _found(clear)
    servers = _servers(found)
    if as_json:
        import msgspec

        shown = [
            {
                **msgspec.structs.asdict(each),
                **servers.get(each.id, NOBODY)._asdict(),
                "hit_ratio": each.hit_ratio,
                "touch_ns": each.touch_ns,
            }
            for each in found
        ]
        print_plain(msgspec.json.encode(shown).decode())
    elif not live:
        out.print(_table(found, servers))
    else:
        from rich.live import Live

        # While this is open the kernel counts what programs cost.
        counting = _core.enable_statistics()
        try:
            with Live(_table(found, servers), console=out, auto_refresh=False) as screen:
                while True:
                    time.sleep(LIVE_SECONDS)
                    found = _found(False)
                    if {each.id for each in found} - set(servers):
                        servers = _servers(found)
                    screen.update(_table(found, servers), refresh=True)
        finally:
            os.close(counting)
    return ExitCode.OK


def _found(clear: bool) -> list[Loaded]:
    from ..kernel.objects import find

    try:
        return find(clear)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            raise
        raise SublimateError(
            "The kernel shows its programs to CAP_SYS_ADMIN only (root). What one server counts is "
            "at its /metrics: sublimate_kernel_..."
        ) from None


def _servers(found: list[Loaded]) -> dict[int, Server]:
    """By group: whose it is."""
    from ..kernel.objects import holders
    from .peer import listening_ports

    held = holders(found)
    told = {one: Server(one, listening_ports(Path(f"/proc/{one}"))) for one in held.values()}
    return {each.id: told[held[each.id]] if each.id in held else NOBODY for each in found}


def _table(found: list[Loaded], servers: dict[int, Server]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if not found:
        return Text("No server has anything here: see sublimate_kernel_state at /metrics.")
    parts: list[RenderableType] = []
    for each in found:
        ratio = "no lookup yet" if each.hit_ratio is None else f"hit ratio {each.hit_ratio:.1%}"
        title = Text(f"{each.part} {each.id}", style="bold")
        title.append(f"  {servers.get(each.id, NOBODY)}", style="default")
        if each.part == "connections":
            title.append(f"  {ratio}", style="default")
        if each.touch_ns is not None:
            title.append(f"  {each.touch_ns:.0f} ns a run", style="default")
        table = Table(box=None, pad_edge=False)
        table.add_column("", no_wrap=True)
        for name in ("id", "entries", "of", "MiB", "runs", "ns a run"):
            table.add_column(name, justify="right", no_wrap=True)
        for program in each.programs:
            cost = f"{program.run_ns / program.runs:.0f}" if program.runs else ""
            runs = f"{program.runs:,}" if program.runs else ""
            table.add_row(program.name, str(program.id), "", "", "", runs, cost)
        for one in each.maps:
            entries = "" if one.entries is None else f"{one.entries:,}"
            memory = f"{one.memory_bytes / MIB:.1f}"
            table.add_row(one.name, str(one.id), entries, f"{one.capacity_entries:,}", memory)
        counted = ", ".join(f"{name} {count:,}" for name, count in each.counters.items() if count)
        parts += [title, table, Text(counted, style="dim"), Text("")]
    return Group(*parts[:-1])
