"""`sublimate uninstall`: deletes what Sublimate keeps in the user's own folders."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ..config import (
    Effective,
    cache_folder,
    data_folder,
    format_size,
    keys_path,
    load_settings,
    own_folders,
)
from ..errors import ConfigError, ExitCode, PeerError
from . import options as flags
from .output import print_plain, run_guarded


def uninstall_command(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be deleted.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: flags.ConfigFile = None,
) -> None:
    """Delete this user's models, data, keys and settings; the program itself stays."""

    def action() -> int:
        return uninstall(load_settings({}, config=config), dry_run, yes)

    code = run_guarded(action)
    raise typer.Exit(code)


def uninstall(effective: Effective, is_dry_run: bool, is_sure: bool) -> ExitCode:
    """Raises ConfigError while a server runs (a dry run may) or without a terminal to ask on, and
    PeerError if something cannot be deleted."""
    if not is_dry_run:
        _refuse_beside_server(effective)
    own = [path for path in own_folders() if path.is_dir() or path.is_symlink()]
    for path in own:
        print_plain(f"{path}  {format_size(_size_of(path))}")
    for path in chosen_paths(effective):
        print_plain(f"{path}  stays: the settings name it, and it may hold other files")
    if not own:
        print_plain("Nothing to delete.")
        return ExitCode.OK
    if is_dry_run:
        return ExitCode.OK
    if not is_sure:
        if not sys.stdin.isatty():
            raise ConfigError("Standard input is not a terminal: add --yes to delete anyway.")
        if not typer.confirm("Delete these folders?"):
            return ExitCode.OK
    for path in own:
        _delete(path)
    print_plain("Deleted. Remove the program with `pip uninstall sublimate`, or its checkout.")
    return ExitCode.OK


def chosen_paths(effective: Effective) -> Iterator[Path]:
    """What the settings name outside of these folders."""
    settings = effective.settings
    for path in (cache_folder(settings), data_folder(settings.edge), keys_path(settings)):
        if path.exists() and not any(path.is_relative_to(own) for own in own_folders()):
            yield path


def _refuse_beside_server(effective: Effective) -> None:
    from .reload import running_servers

    found = running_servers(effective)
    if len(found) == 1:
        raise ConfigError(f"A server runs (process {found[0]}): stop it first.")
    if found:
        raise ConfigError(f"Servers run (processes {', '.join(map(str, found))}): stop them first.")


def _size_of(folder: Path) -> int:
    if folder.is_symlink():
        return 0
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def _delete(path: Path) -> None:
    try:
        if path.is_symlink():
            path.unlink()  # and not what it leads to
        else:
            shutil.rmtree(path)
    except OSError as error:
        raise PeerError(f"{error.filename or path}: {error.strerror}.") from None
