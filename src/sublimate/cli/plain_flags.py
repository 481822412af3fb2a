"""The flags of `serve` where nothing is unusual about them, read in a millisecond: the library that
reads them otherwise takes longer than all else that the command does before its processes can begin
to load. Whatever is unusual, wrong or a question is left to it (serve_command.py), with its words.

defines: ALSO, plain_flags
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import FIELDS, Field

ALSO = {
    "model": ("-m",),
    "port": ("-p",),
    "workers": ("-w",),
    "threads": ("-t",),
    "api_keys": ("--api-key",),
    "cors_origins": ("--cors-origin",),
    "allowed_hosts": ("--allowed-host",),
    "aliases": ("--alias",),
}
"""What a flag is called too."""
NUMBER = {"int": re.compile(r"\d{1,18}", re.ASCII), "float": re.compile(r"\d+(\.\d+)?", re.ASCII)}
TYPES: dict[str, type[int] | type[float]] = {"int": int, "float": float}


def plain_flags(arguments: Sequence[str]) -> dict[str, Any] | None:
    """What `serve` is given, by the names of its parameters. None: it is not for this function to
    say."""
    given: dict[str, Any] = {"json": False, "config": None, **dict.fromkeys(FIELDS)}
    switches = {"--json": ("json", True)}
    takes: dict[str, Field | None] = {"--config": None}
    for field in FIELDS.values():
        if field.kind == "bool":
            switches[field.flag] = field.name, True
            switches[f"--no-{field.flag[2:]}"] = field.name, False
        else:
            takes |= dict.fromkeys((field.flag, *ALSO.get(field.name, ())), field)
    left = list(reversed(arguments))
    while left:
        word = left.pop()
        if word in switches:
            name, value = switches[word]
            given[name] = value
            continue
        flag, is_joined, text = word.partition("=") if word.startswith("--") else (word, "", "")
        if flag not in takes or not (is_joined or left):
            return None
        text = text if is_joined else left.pop()
        if text.startswith("-") or not _take(given, takes[flag], text):
            return None
    return given


def _take(given: dict[str, Any], field: Field | None, text: str) -> bool:
    """A value of a flag; without a field that of --config. False: it is no plain one."""
    if field is None:
        given["config"] = Path(text)
    elif field.kind in NUMBER:
        if not NUMBER[field.kind].fullmatch(text):
            return False
        given[field.name] = TYPES[field.kind](text)
    elif field.kind == "list" or field.name == "model":
        given[field.name] = [*(given[field.name] or ()), text]
    else:
        given[field.name] = text
    return True
