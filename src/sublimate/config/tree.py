"""All settings as one tree, and each leaf of it as files, environment and flags see it.

defines: LogSettings, Settings, SECTIONS, Field, FIELDS
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from .edge import EdgeSettings
from .engine import EngineSettings
from .models import ModelSettings
from .section import Section
from .server import ServerSettings

ENVIRONMENT_PREFIX = "SUBLIMATE_"


class LogSettings(Section, frozen=True, kw_only=True):
    """How all processes log."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least that is logged."),
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], Meta(description="Lines for people or JSON lines.")
    ] = "text"


class Settings(Section, frozen=True, kw_only=True):
    """The whole tree."""

    model: Annotated[
        str,
        Meta(min_length=1, description="Name, path of a .gguf file, or Hugging Face repository."),
    ] = "smollm2-135m-instruct"
    models: tuple[ModelSettings, ...] = ()
    """If there are several, or a table says more of the one: all, the main one first."""
    server: ServerSettings = ServerSettings()
    engine: EngineSettings = EngineSettings()
    edge: EdgeSettings = EdgeSettings()
    log: LogSettings = LogSettings()


class Field(msgspec.Struct, frozen=True):
    """One leaf of the tree, as files, environment and flags see it."""

    name: str
    section: str
    kind: str
    help: str
    default: Any
    environment: str
    choices: tuple[str, ...] = ()
    secret: bool = False
    hidden: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


SECTIONS: dict[str, type[Section]] = {
    "server": ServerSettings,
    "engine": EngineSettings,
    "edge": EdgeSettings,
    "log": LogSettings,
}


def _field(owner: type[Section], section: str, name: str, hint: Any, default: Any) -> Field:
    base, meta = get_args(hint)[:2]
    extra: dict[str, Any] = cast(Meta, meta).extra or {}
    choices: tuple[str, ...] = ()
    if get_origin(base) is Literal:
        kind, choices = "str", tuple(str(value) for value in get_args(base))
    elif get_origin(base) is tuple:
        kind = "list"
    else:
        kind = "size" if extra.get("size") else cast(type, base).__name__
    return Field(
        name=name,
        section=section,
        kind=kind,
        help=str(cast(Meta, meta).description),
        default=default,
        environment=ENVIRONMENT_PREFIX + name.upper(),
        choices=choices,
        secret=bool(extra.get("secret")),
        hidden=bool(extra.get("hidden")),
    )


def _collect_fields() -> dict[str, Field]:
    fields: dict[str, Field] = {}
    owners: list[tuple[str, type[Section]]] = [("", Settings), *SECTIONS.items()]
    for section, owner in owners:
        hints = get_type_hints(owner, include_extras=True)
        for info in msgspec.structs.fields(owner):
            if get_origin(hints[info.name]) is not Annotated:
                continue
            if info.name in fields:
                raise TypeError(f"setting {info.name} is defined twice")
            fields[info.name] = _field(owner, section, info.name, hints[info.name], info.default)
    return fields


FIELDS: dict[str, Field] = _collect_fields()
