"""A model where it lies: a GGUF file, or a Hugging Face folder. One way to ask either.

defines: Files, name_of, metadata_of, with_text, header_of, files_of, weight_bytes, stamp
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import ModelError
from .parts import files_in, stem_of

if TYPE_CHECKING:
    from .. import _core

PACKED_TEXT = "sublimate.text"
"""PACKED_TEXT_KEY of core/model/packed_file.h."""


class Files(msgspec.Struct, frozen=True):
    """What Model.load needs beside the path: nothing for a GGUF file."""

    header: bytes = b""
    files: list[tuple[str, int]] = msgspec.field(default_factory=list[tuple[str, int]])


def name_of(path: Path) -> str:
    """Of a model that somebody gave by its path."""
    return path.resolve().name if path.is_dir() else stem_of(path)


def metadata_of(path: str) -> dict[str, Any]:
    """Under GGUF's keys, its tokenizer and template included. Raises ModelError."""
    if not os.path.isdir(path):
        return with_text(path, header_of(path).metadata)
    from .folder.reader import open_folder

    folder = open_folder(path)
    return folder.metadata | folder.text_metadata()


def with_text(path: str, metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata of a file with what it says of text in another form: one that `convert` has made
    of a folder does. Raises ModelError."""
    if PACKED_TEXT not in metadata:
        return metadata
    from .folder.packed_text import unpacked_text

    text = metadata.pop(PACKED_TEXT)
    if not isinstance(text, str):
        raise ModelError(f"{path}: key {PACKED_TEXT} must be a string.")
    return metadata | unpacked_text(path, text)


def header_of(path: str, *, any_type: bool = False) -> _core.Gguf:
    """Parsed and checked; of a folder it has no tokenizer. any_type: as for _core.Gguf. Raises
    ModelError."""
    from .. import _core  # what is asked of files must work where it cannot be loaded

    try:
        if not os.path.isdir(path):
            return _core.Gguf(path, any_type=any_type)
        found = files_of(path)
        return _core.Gguf.join(found.header, found.files)
    except _core.CoreError as error:
        told = str(error)
        raise ModelError(told if path in told else f"{path}: {told}") from None


def files_of(path: str) -> Files:
    """Raises ModelError."""
    if not os.path.isdir(path):
        return Files()
    from .folder.reader import open_folder

    folder = open_folder(path)
    return Files(folder.header, folder.files)


def weight_bytes(path: str) -> int:
    """Of a file, of all its parts, or of all safetensors files of a folder; 0 for what cannot be
    read, of which the loader says what is wrong."""
    try:
        if not os.path.isdir(path):
            return sum(part.stat().st_size for part in files_in(Path(path)))
        with os.scandir(path) as entries:
            return sum(e.stat().st_size for e in entries if e.name.endswith(".safetensors"))
    except OSError:
        return 0


def stamp(path: str) -> tuple[int, ...]:
    """Tells what is there from what was: of a file or its parts, or of all files of a folder.
    Raises OSError."""
    paths = list(map(str, files_in(Path(path))))
    if os.path.isdir(path):
        paths = [os.path.join(path, name) for name in sorted(os.listdir(path))]
    told: list[int] = []
    for one in paths:
        about = os.stat(one)
        told += about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
    return tuple(told)
