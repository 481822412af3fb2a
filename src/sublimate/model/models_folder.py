"""The models of a folder: GGUF files, one of several parts counted once, and Hugging Face folders.

Only what lies in the folder itself, and what was fetched from a hub into it: links to files
elsewhere are models too, but nothing outside is ever removed.

defines: KeptModel, models_in, found, removed, CACHE
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

import msgspec

from ..errors import ModelError, nearest
from . import hub
from .parts import PART, files_in, is_utf8, stem_of
from .registry import PACKED_SUFFIX, SUFFIX
from .source import weight_bytes

CACHE = "cache"
"""In place of a folder: the one that `pull` fills."""
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Names are written to terminals."""
FIRST_PART = 1
NOTE = ".json"
"""Behind the name of a file, the note that `pull` keeps of it."""
ENTRIES_MAX = 10_000
MODELS_MAX = 256
WEIGHTS, ABOUT = "*.safetensors", "config.json"


class KeptModel(msgspec.Struct, frozen=True, kw_only=True):
    """One of a folder."""

    name: str
    path: Path
    size_bytes: int
    """Of all its files."""
    modified_seconds: float
    """Since the epoch."""
    files: tuple[Path, ...]
    """All that belongs to it; a folder stands for what is in it."""


def models_in(folder: Path) -> list[KeptModel]:
    """By name, so many at most, without what has control characters in its name; none of a folder
    that is not there. Raises ModelError for one that cannot be read."""
    try:
        names = sorted(os.listdir(folder))[:ENTRIES_MAX]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ModelError(f"The folder {folder} cannot be read: {error.strerror}.") from None
    found: list[KeptModel] = []
    for name in names:
        if name.startswith(".") or not is_utf8(name) or CONTROL.search(name):
            continue
        with contextlib.suppress(OSError):
            kept = _kept(folder, name, names)
            found += [kept] if kept is not None else []
    for here in hub.fetched(folder):
        with contextlib.suppress(OSError):
            found.append(_fetched(here))
    return sorted(found, key=lambda kept: kept.name)[:MODELS_MAX]


def _fetched(here: hub.Fetched) -> KeptModel:
    return KeptModel(
        name=here.name,
        path=here.path,
        size_bytes=weight_bytes(str(here.path)),
        modified_seconds=here.path.stat().st_mtime,
        files=here.files,
    )


def _kept(folder: Path, name: str, names: list[str]) -> KeptModel | None:
    path = folder / name
    if name.lower().endswith(SUFFIX) and path.is_file():
        match = PART.fullmatch(name)
        if match is not None and int(match[2]) != FIRST_PART:
            return None
        stem, files = stem_of(path), files_in(path)
        size = sum(each.stat().st_size for each in files)
        notes = [folder / (each.name + NOTE) for each in files if each.name + NOTE in names]
        every = (*files, *notes)
    elif (path / ABOUT).is_file() and (weights := list(path.glob(WEIGHTS))):
        stem, every = name, (path,)
        size = sum(each.stat().st_size for each in weights)
    elif name.lower().endswith(PACKED_SUFFIX) and path.is_file():
        # By its whole name: what it was made of may lie beside it.
        stem, every, size = name, (path,), path.stat().st_size
    else:
        return None
    return KeptModel(
        name=stem,
        path=path,
        size_bytes=size,
        modified_seconds=path.stat().st_mtime,
        files=every,
    )


def removed(folder: Path, name: str) -> KeptModel:
    """Take a model of the folder away, for good; a link goes and what it leads to stays. Returns
    what it was. Raises ModelError."""
    kept = found(folder, name)
    for path in kept.files:
        if folder not in path.parents:
            raise ModelError(f"{path} is not in {folder}: it stays.")
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise ModelError(f"{path} cannot be removed: {error.strerror}.") from None
    return kept


def found(folder: Path, name: str) -> KeptModel:
    """The model of that name, or of that file, which a folder is with a slash behind it. Raises
    ModelError if there is none, or more than one."""
    every = models_in(folder)
    named = [kept for kept in every if kept.name == name] or [
        kept for kept in every if kept.path.parent == folder and _in_folder(kept) == name
    ]
    if not named:
        hint = nearest(name, [kept.name for kept in every])
        raise ModelError(f"There is no model {name!r} in {folder}.{hint}")
    if len(named) > 1:
        which = " or ".join(_in_folder(kept) for kept in named)
        raise ModelError(f"Several models in {folder} are called {name!r}: name {which}.")
    return named[0]


def _in_folder(kept: KeptModel) -> str:
    return kept.path.name + ("/" if kept.path.is_dir() else "")
