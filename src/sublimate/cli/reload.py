"""`sublimate reload`: has a running server replace its workers one after the other, and waits.

defines: running_server, reload, reload_command
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ..config import Effective, load_settings
from ..control.run_record import SUFFIX, Process, ReloadEnd, record_of, reload_ends
from ..errors import ConfigError, ExitCode, PeerError
from ..guard.orphans import places_of
from . import options as flags
from .output import note, out, run_guarded

LOOK_SECONDS = 0.1
EDGE = "sublimate.edge"
LINE_BYTES_MAX = 1 << 16


def running_servers(effective: Effective) -> list[int]:
    """Process ids of supervisors whose records of their runs are in the data folder."""
    folder = places_of(effective.settings).runs
    return sorted({process.process_id for process in _supervisors(folder)})


def running_server(effective: Effective) -> int:
    """The only one of them. Raises PeerError without one, ConfigError with several."""
    found = running_servers(effective)
    if not found:
        folder = places_of(effective.settings).runs.parent
        raise PeerError(f"No server with the data folder {folder} runs here.")
    if len(found) > 1:
        ids = ", ".join(map(str, found))
        raise ConfigError(f"Several servers have this data folder (processes {ids}): name --pid.")
    return found[0]


def _supervisors(folder: Path) -> Iterator[Process]:
    for path in folder.glob("*" + SUFFIX):
        with contextlib.suppress(OSError, msgspec.MsgspecError), path.open("rb") as file:
            first = msgspec.json.decode(file.readline(LINE_BYTES_MAX), type=Process)
            if first.state() == "runs":
                yield first


def _edges(process_id: int) -> set[int]:
    """Its children that are edges."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            fields = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == process_id and fields[0] not in "ZX":
                words = (path / "cmdline").read_bytes().split(b"\0")
                if words[2].decode(errors="replace").endswith((EDGE, ".legacy")):
                    found.add(int(path.name))
    return found


def _ends(edges: set[int]) -> list[ReloadEnd] | None:
    """What the run of these has told of reloads; None: it keeps no record."""
    for edge in edges:
        if (record := record_of(edge)) is not None:
            with contextlib.suppress(OSError):
                return reload_ends(record)
    return None


def reload(effective: Effective, process_id: int, seconds: float) -> ExitCode:
    """Raises PeerError if the server does not run, does not reload, or takes longer."""
    process_id = process_id or running_server(effective)
    old = _edges(process_id)
    if not old:
        raise PeerError(f"Process {process_id} is no server of this user that is ready.")
    before = _ends(old)
    try:
        os.kill(process_id, signal.SIGUSR2)
    except OSError as error:
        raise PeerError(f"Process {process_id}: {error.strerror}.") from None
    begun = time.monotonic()
    while (end := _told(process_id, old, before)) is None:
        if time.monotonic() - begun > seconds:
            left = len(old & _edges(process_id))
            raise PeerError(
                f"{left} of {len(old)} workers were not replaced in {seconds:.0f} s. What was "
                "served is served on; the server's log says why."
            )
        time.sleep(LOOK_SECONDS)
    for text in end.reload_notes:
        note(text)
    if end.reload_failure:
        why = end.reload_failure.rstrip(".")
        raise PeerError(f"Not reloaded. {why}. What was served is served on.")
    what = "1 worker was" if len(old) == 1 else f"{len(old)} workers were"
    out.print(f"{what} replaced in {time.monotonic() - begun:.1f} s.")
    return ExitCode.OK


def _told(process_id: int, old: set[int], before: list[ReloadEnd] | None) -> ReloadEnd | None:
    """How it went; None: it goes on. Without a record it is over when the edges are gone."""
    now = _edges(process_id)
    if not Path(f"/proc/{process_id}").exists():
        raise PeerError(f"Process {process_id} has ended.")
    if before is None:
        return None if old & now else ReloadEnd(reload_failure="", reload_notes=[])
    ends = _ends(now) or []
    return ends[len(before)] if len(ends) > len(before) else None


def reload_command(
    pid: Annotated[int, typer.Option(min=0, help="Process of `serve`; 0 finds it.")] = 0,
    seconds: Annotated[float, typer.Option(min=0, help="How long to wait.")] = 600.0,
    data_dir: flags.DataDir = None,
    config: flags.ConfigFile = None,
) -> None:
    """Have a running server read its settings again and replace its workers, losing no request."""

    def action() -> int:
        chosen = {"data_dir": data_dir} if data_dir else {}
        return reload(load_settings(chosen, config=config), pid, seconds)

    if code := run_guarded(action):
        raise typer.Exit(code)
