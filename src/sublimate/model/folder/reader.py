"""A folder as a whole.

defines: Folder, open_folder
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec

from ...errors import ModelError
from .documents import read_document
from .families import Family, family_of, gguf_name, keys_of
from .fields import Fields
from .form import CONFIG, check_form
from .header import Placed, gguf_header
from .rope import read_rope
from .safetensors import Shards, read_shards
from .texts import sampling_metadata, text_metadata

TIED = "output.weight"


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A model whose header is read and checked; its weights are still in the files."""

    path: Path
    config: Fields
    """Of config.json, with the family's defaults."""
    metadata: dict[str, Any]
    """Keys of GGUF, without those of text."""
    header: bytes
    """For _core.Gguf.join and Model.load, with `files`."""
    files: list[tuple[str, int]]
    """(path, bytes)"""
    rows: int
    """Of the embedding: ids that the model knows."""

    def text_metadata(self) -> dict[str, Any]:
        """Those of text. Raises ModelError."""
        text = text_metadata(self.path, self.config, self.rows)
        return text | sampling_metadata(self.path)

    @property
    def size_bytes(self) -> int:
        """Of all weights."""
        return sum(size for _, size in self.files)


def open_folder(path: str | Path) -> Folder:
    """Raises ModelError that names the file and what is wrong with it."""
    folder = Path(path)
    check_form(folder)
    told = read_document(folder / CONFIG, dict[str, Any])
    _, family = family_of(Fields(told, str(folder / CONFIG)))
    # A model that also sees keeps what its text part needs in an object of its own.
    inner = told.get("text_config")
    if isinstance(inner, dict):
        told = told | cast(dict[str, Any], inner)
    config = Fields(told, str(folder / CONFIG)).with_defaults(family.defaults)
    metadata = keys_of(config, family)
    name = family.architecture
    rope = read_rope(config, family, metadata[f"{name}.attention.key_length"])
    metadata |= {f"{name}.{key}": value for key, value in rope.keys.items()}
    metadata["general.name"] = folder.resolve().name
    shards = read_shards(folder)
    placed = _placed(shards, family)
    if config.flag("tie_word_embeddings"):
        placed.pop(TIED, None)
    embedding = placed.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{folder} has no tensor 'model.embed_tokens.weight'.")
    files = [(str(file), size) for file, size in shards.files]
    header = gguf_header(
        metadata, list(placed.values()), [size for _, size in files], rope.divisors
    )
    return Folder(
        path=folder,
        config=config,
        metadata=metadata,
        header=header,
        files=files,
        rows=embedding.shape[0],
    )


def _placed(shards: Shards, family: Family) -> dict[str, Placed]:
    """The tensors that a text needs, by GGUF's names. Raises ModelError."""
    placed: dict[str, Placed] = {}
    for name, stored in shards.tensors.items():
        known = gguf_name(name, family)
        if not known:
            continue
        if known in placed:
            raise ModelError(f"Tensor {name[:80]!r} is there under two names.")
        stored.check(name)
        placed[known] = Placed(known, stored.dtype, stored.shape, stored.file, stored.begin)
    return placed
