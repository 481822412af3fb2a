"""`sublimate config show`: the settings that hold and where each came from.

defines: show
"""

from __future__ import annotations

from typing import Any

import msgspec
from rich.table import Table

from ..config import FIELDS, Effective, format_size
from ..errors import ExitCode
from .output import out


class SettingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `config show --json`."""

    name: str
    value: Any
    source: str
    environment: str
    flag: str


def show(effective: Effective, as_json: bool) -> ExitCode:
    """Secrets are counted, not shown; what the help does not tell is left out unless it is set."""
    rows: list[SettingRow] = []
    for field in FIELDS.values():
        value = effective.value(field.name)
        if field.hidden and effective.origins[field.name] == "default":
            continue
        if field.secret:
            value = f"{len(value)} set"
        rows.append(
            SettingRow(
                name=field.name,
                value=value,
                source=effective.origins[field.name],
                environment=field.environment,
                flag=field.flag,
            )
        )
    if as_json:
        out.print_json(msgspec.json.encode(rows).decode())
        return ExitCode.OK
    table = Table(box=None)
    for title in ("setting", "value", "source", "environment"):
        table.add_column(title, overflow="fold")
    for row in rows:
        value = row.value
        if FIELDS[row.name].kind == "size" and value:
            value = format_size(value)
        elif FIELDS[row.name].kind == "list" and not FIELDS[row.name].secret:
            value = ", ".join(value)
        source = row.source if row.source == "default" else f"[bold]{row.source}[/bold]"
        table.add_row(row.name, str(value), source, row.environment)
    out.print(table)
    return ExitCode.OK
