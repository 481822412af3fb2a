"""`sublimate pull` and `sublimate models`.

defines: pull, models
"""

from __future__ import annotations

import msgspec
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from ..config import Effective, cache_folder, format_size
from ..errors import ExitCode
from ..model.files import fetch, local_models
from ..model.registry import DEFAULT, KNOWN
from .output import out


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `models --json`."""

    name: str
    title: str
    licence: str
    size_bytes: int
    path: str | None
    default: bool


def pull(effective: Effective, name: str) -> ExitCode:
    """Fetch and verify a model, with a progress bar. Raises ModelError."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    bars = Progress(*columns, console=out, transient=True, disable=not out.is_terminal)
    with bars:
        task = bars.add_task(name, total=None)

        def progress(what: str, done: int, total: int) -> None:
            bars.update(task, description=f"{name}: {what}", completed=done, total=total or None)

        file = fetch(name, cache_folder(effective.settings), progress)
    out.print(f"{file.name}: {format_size(file.size_bytes)} at {file.path}", soft_wrap=True)
    return ExitCode.OK


def models(effective: Effective, as_json: bool) -> ExitCode:
    """What is known and what of it is here."""
    here = {file.name: file for file in local_models(cache_folder(effective.settings))}
    rows = [
        ModelRow(
            name=known.name,
            title=known.title,
            licence=known.licence,
            size_bytes=known.size_bytes,
            path=str(here[known.name].path) if known.name in here else None,
            default=known.name == DEFAULT.name,
        )
        for known in KNOWN.values()
    ]
    if as_json:
        out.print_json(msgspec.json.encode(rows).decode())
        return ExitCode.OK
    table = Table()
    for title in ("name", "model", "licence", "size", "here"):
        table.add_column(title, overflow="fold")
    for row in rows:
        name = f"{row.name} (default)" if row.default else row.name
        size = format_size(row.size_bytes)
        here_now = "yes" if row.path else "no: sublimate pull"
        table.add_row(name, row.title, row.licence, size, here_now)
    out.print(table)
    out.print(f"Kept in {cache_folder(effective.settings)}", soft_wrap=True)
    out.print(
        "Also: the path of a .gguf file or of a Hugging Face folder (./FOLDER), or "
        "hf:owner/repository[:file]."
    )
    return ExitCode.OK
