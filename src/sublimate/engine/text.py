"""Tokenizer of a model file, as far as the in-process engine and the bench need it.

defines: Text, load_text
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .. import _core
from ..errors import ModelError
from ..model.source import metadata_of
from ..model.tokenizer import tokenizer_from_metadata


class Text(msgspec.Struct, frozen=True):
    """Text to ids and back."""

    encode: Callable[[str], list[int]]
    """Plain text; control tokens written in it are ordinary characters."""
    vocabulary: _core.Vocabulary
    stop_tokens: tuple[int, ...]


def load_text(path: str) -> Text | None:
    """The tokenizer of a model; None if it has none of a kind that is known here.

    Raises ModelError if it is damaged.
    """
    metadata = metadata_of(path)
    if "tokenizer.ggml.model" not in metadata:
        return None
    try:
        tokenizer = tokenizer_from_metadata(metadata)
    except ModelError:
        # Token ids still work, as they do without any tokenizer.
        return None
    vocabulary = _core.Vocabulary(tokenizer.token_bytes)
    return Text(tokenizer.encode, vocabulary, tokenizer.stop_tokens)
