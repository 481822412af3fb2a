"""A GGUF header for tensors that lie in other files (ggml, docs/gguf.md), which the core reads as
it reads any: with all of its checks.

defines: Placed, gguf_header
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

MAGIC, VERSION = b"GGUF", 3
ALIGNMENT = 1
"""Other files put their tensors where they like."""
TYPES = {"F32": 0, "F16": 1, "BF16": 30}
UINT32, FLOAT64, BOOLEAN, STRING = 4, 12, 7, 8
FLOAT32_BYTES = 4


class Placed(msgspec.Struct, frozen=True):
    """A tensor, and where it lies in one of the files."""

    name: str
    """Of GGUF."""
    dtype: str
    """A key of TYPES."""
    shape: tuple[int, ...]
    """Slowest dimension first, as the other formats have it."""
    file: int
    begin: int


def gguf_header(
    metadata: Mapping[str, Any],
    tensors: Sequence[Placed],
    sizes: Sequence[int],
    vectors: Mapping[str, Sequence[float]],
) -> bytes:
    """Header and, behind it, the tensors that no file has; for `_core.Gguf.join` with files of
    these sizes."""
    keys = _keys({"general.alignment": ALIGNMENT, **metadata})
    table_bytes = sum(len(_entry(name, "F32", (1,), 0)) for name in vectors)
    table_bytes += sum(
        len(_entry(tensor.name, tensor.dtype, tensor.shape, 0)) for tensor in tensors
    )
    end = len(keys) + table_bytes + len(MAGIC) + struct.calcsize("<IQQ")
    own = b"".join(struct.pack(f"<{len(values)}f", *values) for values in vectors.values())
    # Each file begins a page of its own behind all that is made here.
    places: list[int] = []
    place = _whole_pages(end + len(own))
    for size in sizes:
        places.append(place)
        place += _whole_pages(size)
    table: list[bytes] = []
    offset = 0
    for name, values in vectors.items():
        table.append(_entry(name, "F32", (len(values),), offset))
        offset += len(values) * FLOAT32_BYTES
    for tensor in tensors:
        at = places[tensor.file] + tensor.begin - end
        table.append(_entry(tensor.name, tensor.dtype, tensor.shape, at))
    counts = struct.pack("<IQQ", VERSION, len(table), len(metadata) + 1)
    return MAGIC + counts + keys + b"".join(table) + own


def _whole_pages(size: int) -> int:
    return (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE


def _string(text: str) -> bytes:
    data = text.encode(errors="replace")  # the name of a folder may be no UTF-8
    return struct.pack("<Q", len(data)) + data


def _keys(metadata: Mapping[str, Any]) -> bytes:
    parts: list[bytes] = []
    for key, value in metadata.items():
        parts.append(_string(key))
        if isinstance(value, bool):
            parts.append(struct.pack("<IB", BOOLEAN, value))
        elif isinstance(value, int):
            parts.append(struct.pack("<II", UINT32, value))
        elif isinstance(value, float):
            parts.append(struct.pack("<Id", FLOAT64, value))
        else:
            parts.append(struct.pack("<I", STRING) + _string(str(value)))
    return b"".join(parts)


def _entry(name: str, dtype: str, shape: Sequence[int], offset: int) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return _string(name) + dimensions + struct.pack("<IQ", TYPES[dtype], offset)
