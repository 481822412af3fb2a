"""Files of a folder that nobody trusts: regular ones, of a bounded length, read whole.

defines: VOCABULARY_BYTES_MAX, DOCUMENT_BYTES_MAX, size_of, read_file, read_part, decode,
read_document, read_optional
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ...errors import ModelError

VOCABULARY_BYTES_MAX = 64 << 20
"""The largest that families have, of 262,208 tokens with their merges, takes half."""
DOCUMENT_BYTES_MAX = 4 << 20
"""Of all else: settings, templates."""

Document = TypeVar("Document")


def _open(path: Path) -> tuple[int, int]:
    """(descriptor, bytes) of a regular file; a pipe does not make us wait. Raises ModelError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a name of a file"
        raise ModelError(f"{path} cannot be read: {reason}.") from None
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        os.close(descriptor)
        raise ModelError(f"{path} is not a regular file.")
    return descriptor, about.st_size


def size_of(path: Path) -> int:
    """Bytes of a regular file. Raises ModelError."""
    descriptor, size = _open(path)
    os.close(descriptor)
    return size


def read_file(path: Path, bytes_max: int = DOCUMENT_BYTES_MAX) -> bytes:
    """A whole file; a longer one is refused. Raises ModelError."""
    data = read_part(path, 0, bytes_max + 1)
    if len(data) > bytes_max:
        raise ModelError(f"{path} is longer than {bytes_max >> 20} MiB.")
    return data


def read_part(path: Path, begin: int, count: int) -> bytes:
    """The bytes from `begin` on that there are, at most `count`. Raises ModelError."""
    descriptor, _ = _open(path)
    with os.fdopen(descriptor, "rb") as file:
        try:
            file.seek(begin)
            return file.read(count)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}.") from None


def decode(data: bytes, path: Path, kind: type[Document]) -> Document:
    """JSON as `kind`. Raises ModelError that names the file and the place in it."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ModelError(f"{path} is damaged: {error}.") from None
    except (RecursionError, UnicodeDecodeError):
        raise ModelError(f"{path} is damaged: it is no JSON of a usual kind.") from None


def read_document(
    path: Path, kind: type[Document], bytes_max: int = DOCUMENT_BYTES_MAX
) -> Document:
    """A whole JSON file as `kind`. Raises ModelError."""
    return decode(read_file(path, bytes_max), path, kind)


def read_optional(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file. Raises ModelError."""
    if not os.path.lexists(path):
        return {}
    return read_document(path, dict[str, Any])
