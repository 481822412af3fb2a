"""What a folder says of text, in a packed file: as JSON, since a tokenizer.json is no metadata of
GGUF.

defines: packed_text, unpacked_text
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...errors import ModelError
from ..tokenizer_json import DOCUMENT, STRIPS, TokenizerJson


class _Text(msgspec.Struct, kw_only=True):
    keys: dict[str, Any]
    """Of GGUF."""
    tables: dict[str, bytes]
    """Those that are no text."""
    strips: dict[str, tuple[bool, bool]]
    document: TokenizerJson | None


def packed_text(metadata: Mapping[str, Any]) -> str:
    """Of text_metadata and sampling_metadata."""
    rest = {key: value for key, value in metadata.items() if key not in (STRIPS, DOCUMENT)}
    text = _Text(
        keys={key: value for key, value in rest.items() if not isinstance(value, bytes)},
        tables={key: value for key, value in rest.items() if isinstance(value, bytes)},
        strips=metadata.get(STRIPS, {}),
        document=metadata.get(DOCUMENT),
    )
    return msgspec.json.encode(text).decode()


def unpacked_text(path: str, text: str) -> dict[str, Any]:
    """The same again. Raises ModelError."""
    try:
        read = msgspec.json.decode(text, type=_Text)
    except (msgspec.MsgspecError, RecursionError):
        raise ModelError(f"{path}: its tokenizer is damaged: convert the model again.") from None
    metadata = read.keys | read.tables | {STRIPS: read.strips}
    return metadata if read.document is None else metadata | {DOCUMENT: read.document}
