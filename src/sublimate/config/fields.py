"""Each leaf of the settings, as files, environment and flags see it: read from its types.
Only who reads settings needs it; other processes are told theirs.

defines: Field, FIELDS
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from .section import Section
from .tree import ENVIRONMENT_PREFIX, SECTIONS, Settings


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
