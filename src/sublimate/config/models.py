"""One of the models of a server that serves several: a table of `[[models]]`.

defines: ModelSettings, with_models
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Meta

from .engine import EngineSettings
from .section import Section, ToolFormatName


class ModelSettings(Section, frozen=True, kw_only=True):
    """What is not said here is as for the whole server."""

    path: Annotated[str, Meta(min_length=1)]
    """As the setting `model`: a name, a path or a repository."""
    name: Annotated[str, Meta(max_length=200)] = ""
    """What requests call it; empty: that of its file."""
    preload: bool = False
    """Loaded when the server starts, and again when there is memory for it."""
    tool_format: ToolFormatName = ""
    engine: EngineSettings = EngineSettings()


def with_models(
    main: str, others: Iterable[str], tables: Sequence[ModelSettings], engine: EngineSettings
) -> tuple[ModelSettings, ...]:
    """All models of a server, its main one first: the one that was named, with the table that says
    more of it if there is one, else the first table; empty if that is the main one alone.

    main: as named somewhere; empty: nobody has. others: named beside it, each as `model` is.
    """
    by_path = {table.path: table for table in tables} | {table.name: table for table in tables}
    named = [name for name in (main, *others) if name]
    found = [by_path.get(name) or ModelSettings(path=name, engine=engine) for name in named]
    every = [*found, *tables]
    distinct = tuple(one for at, one in enumerate(every) if one not in every[:at])
    is_plain = len(distinct) == 1 and not tables
    return () if is_plain else distinct
