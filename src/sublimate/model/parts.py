"""The files that one model is in: NAME-00001-of-00003.gguf and the others of that name, else one.

By names alone: what a part says of itself the core reads (core/model/gguf_parts.cpp).

defines: files_in, first_part, stem_of, is_utf8
"""

from __future__ import annotations

import os
import re
from pathlib import Path

PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.ASCII | re.DOTALL)


def files_in(path: Path) -> list[Path]:
    """Parts of the same model that are there, in order; of a name that is no part's the path."""
    match = PART.fullmatch(path.name)
    if match is None:
        return [path]
    stem, _, count, _ = match.groups()
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:
        return [path]  # whoever opens it says why
    found = [(name, PART.fullmatch(name)) for name in names]
    return [
        path.with_name(name)
        for name, other in found
        if other is not None and other[1] == stem and other[3] == count
    ] or [path]


def first_part(path: Path) -> Path:
    """A model in parts goes by its first one, whichever was named."""
    return files_in(path)[0]


def stem_of(path: Path) -> str:
    """What a model is called for its file."""
    match = PART.fullmatch(path.name)
    return match[1] if match else path.stem


def is_utf8(path: Path | str) -> bool:
    """It can be said to another process, and in JSON."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True
