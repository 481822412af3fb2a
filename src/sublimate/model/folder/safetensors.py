"""What lies where in safetensors files, of which nothing is trusted.

Format: huggingface/safetensors, README: eight bytes of header length, a JSON object of tensors,
then their bytes without a gap. A model in several files has an index that names the file of each
tensor.

defines: Stored, Shards, read_shards, read_header, shard_names
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ... import _core
from ...errors import ModelError
from .documents import decode, read_document, read_part, size_of
from .form import INDEX, SINGLE

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.safetensors", re.ASCII)
"""No separator: a name in the index cannot lead out of the folder."""
SHARDS_MAX = 1024
LENGTH_BYTES = 8
HEADER_BYTES_MAX = 16 << 20
"""Some two hundred bytes for each tensor that a model may have."""
TENSORS_MAX = _core.LIMITS["GGUF_TENSORS_MAX"]
DIMENSIONS_MAX = _core.LIMITS["GGUF_DIMENSIONS_MAX"]
METADATA = "__metadata__"
ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


class _Entry(msgspec.Struct, frozen=True):
    """Of a header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


class Stored(msgspec.Struct, frozen=True):
    """One tensor in a file."""

    dtype: str
    shape: tuple[int, ...]
    """Slowest dimension first."""
    file: int
    """Index of Shards.files."""
    begin: int
    """Byte of the file."""
    size_bytes: int

    def check(self, name: str) -> None:
        """Its type, its dimensions and its bytes fit each other. Raises ModelError."""
        element_bytes = ELEMENT_BYTES.get(self.dtype)
        if element_bytes is None:
            raise ModelError(
                f"Tensor {name!r} has the type {self.dtype[:20]}; of safetensors F32, F16 and BF16 "
                f"are read. Take the model unquantised, or a GGUF file of it."
            )
        if not 1 <= len(self.shape) <= DIMENSIONS_MAX:
            raise ModelError(f"Tensor {name!r} has {len(self.shape)} dimensions.")
        elements = 1
        for length in self.shape:
            elements *= length
        if elements * element_bytes != self.size_bytes or elements == 0:
            raise ModelError(f"Tensor {name!r} is damaged: its bytes do not fit its shape.")


class Shards(msgspec.Struct, frozen=True):
    """All tensors of a model by their names, and the files that they lie in."""

    files: list[tuple[Path, int]]
    """(path, bytes)"""
    tensors: Mapping[str, Stored]

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(size for _, size in self.files)


def read_shards(folder: Path) -> Shards:
    """Raises ModelError that names the file and what is wrong with it."""
    index = folder / INDEX
    wanted: dict[str, str] = {}
    names = [SINGLE]
    if index.exists():
        wanted = read_document(index, _Index, HEADER_BYTES_MAX).weight_map
        names = _checked_names(wanted, index)
    files: list[tuple[Path, int]] = []
    tensors: dict[str, Stored] = {}
    for number, name in enumerate(names):
        path = folder / name
        size = size_of(path)
        files.append((path, size))
        for tensor, stored in read_header(path, size, number).items():
            if tensor in tensors:
                raise ModelError(f"{path}: tensor {tensor[:80]!r} is in another file as well.")
            tensors[tensor] = stored
        if len(tensors) > TENSORS_MAX:
            raise ModelError(f"{folder} holds more than {TENSORS_MAX} tensors.")
    for tensor, name in wanted.items():
        if tensor not in tensors or names[tensors[tensor].file] != name:
            raise ModelError(f"{folder / name} has no tensor {tensor[:80]!r}, which {INDEX} names.")
    return Shards(files, tensors)


def shard_names(index: Path) -> list[str]:
    """The files that an index names. Raises ModelError."""
    return _checked_names(read_document(index, _Index, HEADER_BYTES_MAX).weight_map, index)


def _checked_names(weight_map: Mapping[str, str], index: Path) -> list[str]:
    names = sorted(set(weight_map.values()))
    if not 1 <= len(names) <= SHARDS_MAX:
        raise ModelError(f"{index} names {len(names)} files, not 1 to {SHARDS_MAX}.")
    for name in names:
        if not FILE_NAME.fullmatch(name):
            raise ModelError(f"{index}: {name[:80]!r} is no safetensors file of this folder.")
    return names


def read_header(path: Path, size: int, number: int = 0) -> dict[str, Stored]:
    """Tensors of a file of `size` bytes by their names; number: its index. Raises ModelError."""
    length = int.from_bytes(read_part(path, 0, LENGTH_BYTES), "little")
    if size < LENGTH_BYTES or length > size - LENGTH_BYTES:
        raise ModelError(f"{path} is damaged: its header is longer than the file.")
    if length > HEADER_BYTES_MAX:
        raise ModelError(f"{path}: a header of {length} bytes; this server reads 16 MiB.")
    header = read_part(path, LENGTH_BYTES, length)
    entries = decode(header, path, dict[str, msgspec.Raw])
    entries.pop(METADATA, None)
    data = LENGTH_BYTES + length
    tensors: dict[str, Stored] = {}
    for name, raw in entries.items():
        entry = decode(bytes(raw), path, _Entry)
        begin, end = entry.data_offsets
        if not 0 <= begin <= end <= size - data or min(entry.shape, default=0) < 0:
            raise ModelError(
                f"{path}: tensor {name[:80]!r} lies outside the file, which may be cut short."
            )
        tensors[name] = Stored(entry.dtype, tuple(entry.shape), number, data + begin, end - begin)
    _check_cover(path, tensors, data, size)
    return tensors


def _check_cover(path: Path, tensors: Mapping[str, Stored], data: int, size: int) -> None:
    """Bytes of tensors neither overlap nor leave any to nobody, as the format wants it."""
    end = data
    for stored in sorted(tensors.values(), key=_place):
        if stored.begin != end:
            raise ModelError(f"{path} is damaged: its tensors overlap or leave a gap at {end}.")
        end += stored.size_bytes
    if end != size:
        raise ModelError(f"{path} is damaged: {size - end} bytes at its end are no tensor's.")


def _place(stored: Stored) -> Any:
    return stored.begin, stored.size_bytes
