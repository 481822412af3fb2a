"""`sublimate keys add|list|remove`: API keys with names and limits.

defines: keys_app and the commands add, list, remove
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from ..config import keys_path, load_settings
from ..errors import ExitCode
from ..keys import KeyLimits, add_key, read_keys, remove_key
from . import options as flags
from .output import note, out, print_plain, run_guarded

keys_app = typer.Typer(help="API keys with names and limits.", no_args_is_help=True)

RELOAD = "A running server takes the change at `kill -HUP` of its process; streams go on."
Name = Annotated[str, typer.Argument(help="Letters, digits, _ and -.")]
KeysFile = Annotated[
    Path | None, typer.Option(help="The file; else the configured one, else the user's own.")
]


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `keys list --json`; a limit of 0 is none."""

    name: str
    created: str
    requests_per_minute: int
    tokens_per_minute: int
    input_tokens_per_minute: int
    output_tokens_per_minute: int
    concurrency: int


def _limit(text: str) -> Any:
    return typer.Option(min=0, help=f"{text}; 0: no limit.")


def _path(keys_file: Path | None, config: Path | None) -> Path:
    return keys_file or keys_path(load_settings(config=config).settings)


@keys_app.command("add")
def add(
    name: Name,
    requests_per_minute: Annotated[int, _limit("Requests a minute")] = 0,
    tokens_per_minute: Annotated[int, _limit("Tokens a minute, in and out")] = 0,
    input_tokens_per_minute: Annotated[int, _limit("Prompt tokens a minute")] = 0,
    output_tokens_per_minute: Annotated[int, _limit("Answer tokens a minute")] = 0,
    concurrency: Annotated[int, _limit("Requests at once")] = 0,
    keys_file: KeysFile = None,
    json: flags.Json = False,
    config: flags.ConfigFile = None,
) -> None:
    """Make a key. It is shown this once: the file keeps its hash alone."""
    limits = KeyLimits(
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        input_tokens_per_minute=input_tokens_per_minute,
        output_tokens_per_minute=output_tokens_per_minute,
        concurrency=concurrency,
    )

    def action() -> ExitCode:
        path = _path(keys_file, config)
        secret = add_key(path, name, limits)
        if json:
            made = {"name": name, "key": secret, "file": str(path)}
            print_plain(msgspec.json.encode(made).decode())
        else:
            print_plain(secret)
            note(f"This is the only time that the key is shown. {RELOAD}")
        return ExitCode.OK

    raise typer.Exit(run_guarded(action))


@keys_app.command("list")
def list_keys(
    keys_file: KeysFile = None, json: flags.Json = False, config: flags.ConfigFile = None
) -> None:
    """Names and limits."""

    def action() -> ExitCode:
        path = _path(keys_file, config)
        try:
            keys = read_keys(path)
        except FileNotFoundError:
            keys = {}
        limits = KeyLimits.__struct_fields__
        rows = [
            KeyRow(name=name, created=key.created, **{of: getattr(key, of) for of in limits})
            for name, key in keys.items()
        ]
        if json:
            print_plain(msgspec.json.encode(rows).decode())
            return ExitCode.OK
        told = [
            name for name in KeyRow.__struct_fields__ if any(getattr(row, name) for row in rows)
        ]
        from rich.table import Table

        table = Table(box=None)  # with the limits that some key has: all of them fit few terminals
        for title in told:
            table.add_column(title.replace("_", " "), overflow="fold")
        for row in rows:
            table.add_row(*(str(getattr(row, name) or "") for name in told))
        out.print(table)
        out.print(f"Kept in {path}", soft_wrap=True)
        return ExitCode.OK

    raise typer.Exit(run_guarded(action))


@keys_app.command("remove")
def remove(name: Name, keys_file: KeysFile = None, config: flags.ConfigFile = None) -> None:
    """Take a key away. Its running requests finish."""

    def action() -> ExitCode:
        path = _path(keys_file, config)
        remove_key(path, name)
        note(RELOAD)
        if not read_keys(path):
            note(f"No key is left. Delete {path} to open the server to everybody.")
        return ExitCode.OK

    raise typer.Exit(run_guarded(action))
