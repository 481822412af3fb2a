"""`sublimate ls`, `rm` and `stop`: the models of a folder, and those of a server's memory.

defines: library_folder, ls_command, rm_command, stop_command
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config import Effective, cache_folder, format_size, load_settings
from ..errors import ConfigError, ExitCode, ModelError, PeerError
from . import options as flags
from .output import out, run_guarded

if TYPE_CHECKING:
    from ..control.door import ModelRow
    from ..model.models_folder import KeptModel

LOOK_SECONDS = 0.1
Library = Annotated[
    str, typer.Option("--library", help="Folder; else that of the settings, else pull's.")
]


def _guarded(action: Any) -> None:
    if code := run_guarded(action):
        sys.exit(code)


def library_folder(effective: Effective, named: str = "") -> Path:
    """Where the models of a library lie."""
    from ..model.models_folder import CACHE

    chosen = named or effective.settings.server.library
    if chosen in ("", CACHE):
        return cache_folder(effective.settings)
    return Path(chosen).expanduser()


# ---- ls ------------------------------------------------------------------------------------------
def ls_command(
    library: Library = "",
    cache_dir: flags.CacheDir = None,
    json: flags.Json = False,
    config: flags.ConfigFile = None,
) -> None:
    """List the models of the library: name, size, architecture, type, when they came."""

    def action() -> int:
        chosen = {"cache_dir": cache_dir} if cache_dir else {}
        effective = load_settings(chosen, config=config)
        folder = library_folder(effective, library)
        # That of `pull` is not there before its first model; one that was named is to be.
        if folder != cache_folder(effective.settings) and not folder.is_dir():
            raise ModelError(f"The library {folder} is no folder.")
        return ls(folder, json)

    _guarded(action)


def ls(folder: Path, as_json: bool) -> ExitCode:
    """Raises ModelError for a folder that cannot be read."""
    import msgspec
    from rich.table import Table

    from ..model.models_folder import models_in

    rows = [_row(kept) for kept in models_in(folder)]
    if as_json:
        out.print_json(msgspec.json.encode(rows).decode())
        return ExitCode.OK
    if not rows:
        out.print(f"There is no model in {folder}. Fetch one: sublimate pull", soft_wrap=True)
        return ExitCode.OK
    table = Table(box=None)
    table.add_column("name", overflow="fold")
    for title in ("size", "architecture", "type", "modified"):
        table.add_column(title, no_wrap=True)
    for row in rows:
        when = row["modified"].replace("T", " ")[: len("2026-01-01 00:00")]
        table.add_row(row["name"], format_size(row["size_bytes"]), row["architecture"],
                      row["type"], when)  # fmt: skip
    out.print(table)
    return ExitCode.OK


def _row(kept: KeptModel) -> dict[str, Any]:
    architecture, kind = _facts(kept)
    modified = datetime.fromtimestamp(kept.modified_seconds, UTC)
    return {
        "name": kept.name,
        "size_bytes": kept.size_bytes,
        "architecture": architecture,
        "type": kind,
        "modified": modified.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "path": str(kept.path),
    }


def _facts(kept: KeptModel) -> tuple[str, str]:
    """Architecture, and the type that most of its weights have. What cannot be read has a dash."""
    from .. import _core

    if kept.path.is_dir():
        return _folder_facts(kept)
    try:
        file = _core.Gguf(str(kept.path), any_type=True)
        architecture = str(file.metadata.get("general.architecture", "-"))
        sizes: dict[str, int] = {}
        for _, kind, _, size_bytes in file.tensors:
            sizes[kind] = sizes.get(kind, 0) + size_bytes
    except _core.CoreError:
        return "-", "-"
    return architecture, max(sizes, key=lambda kind: sizes[kind], default="-")


def _folder_facts(kept: KeptModel) -> tuple[str, str]:
    import msgspec

    from ..model.models_folder import ABOUT

    try:
        about = msgspec.json.decode((kept.path / ABOUT).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError):
        return "-", "-"
    kind = about.get("torch_dtype", about.get("dtype", "-"))
    return str(about.get("model_type", "-")), str(kind)


# ---- rm ------------------------------------------------------------------------------------------
def rm_command(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="As ls names it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    library: Library = "",
    cache_dir: flags.CacheDir = None,
    config: flags.ConfigFile = None,
) -> None:
    """Delete a model of the library, and nothing outside of it."""

    def action() -> int:
        chosen = {"cache_dir": cache_dir} if cache_dir else {}
        return rm(library_folder(load_settings(chosen, config=config), library), name, yes)

    _guarded(action)


def rm(folder: Path, name: str, is_sure: bool) -> ExitCode:
    """Asks at a terminal. Raises ModelError, and ConfigError where nobody can be asked."""
    from ..model.models_folder import found, removed

    kept = found(folder, name)
    what = f"{kept.name} ({format_size(kept.size_bytes)}) in {folder}"
    if not is_sure:
        if not sys.stdin.isatty():
            raise ConfigError(f"To delete {what} without being asked, add --yes.")
        if not typer.confirm(f"Delete {what}?"):
            out.print("It stays.")
            return ExitCode.OK
    removed(folder, name)
    out.print(f"Deleted {what}.", soft_wrap=True)
    return ExitCode.OK


# ---- stop ----------------------------------------------------------------------------------------
def stop_command(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="As ps names it.")],
    pid: Annotated[int, typer.Option(min=0, help="Process of `serve`; 0 finds it.")] = 0,
    seconds: Annotated[float, typer.Option(min=0, help="How long to wait.")] = 60.0,
    data_dir: flags.DataDir = None,
    config: flags.ConfigFile = None,
) -> None:
    """Take a model out of a running server's memory, until somebody asks for it again."""

    def action() -> int:
        chosen = {"data_dir": data_dir} if data_dir else {}
        return stop(load_settings(chosen, config=config), name, pid, seconds)

    _guarded(action)


def stop(effective: Effective, name: str, process_id: int, seconds: float) -> ExitCode:
    """Raises PeerError without a server, or if the model was not out of memory in that time;
    ModelError if it is not in memory."""
    from ..control.door import AskModels, StopModel, knock
    from .reload import running_server

    process_id = process_id or running_server(effective)
    told = knock(process_id, StopModel(name))
    if told.error:
        raise ModelError(told.error)
    before = _of(told.models, name)
    begun = time.monotonic()
    while (now := _of(knock(process_id, AskModels()).models, name)).state != "absent":
        if now.state == "coming":
            break  # it was out, and somebody has asked for it since
        if time.monotonic() - begun > seconds:
            raise PeerError(f"{name} still has {now.requests} requests after {seconds:.0f} s.")
        time.sleep(LOOK_SECONDS)
    out.print(f"{name} is out of memory: {format_size(before.memory_bytes)}.", soft_wrap=True)
    return ExitCode.OK


def _of(models: tuple[ModelRow, ...], name: str) -> ModelRow:
    """Raises PeerError where a reload has taken it away."""
    found = next((row for row in models if row.name == name), None)
    if found is None:
        raise PeerError(f"The server does not serve {name} any more.")
    return found
