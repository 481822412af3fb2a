"""Tokenizer of a model file, as far as the in-process engine and the bench need it.

defines: Text, load_text
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .. import _core


class Text(msgspec.Struct, frozen=True):
    """Text to ids and back."""

    encode: Callable[[str], list[int]]
    vocabulary: _core.Vocabulary
    stop_tokens: tuple[int, ...]


def load_text(path: str) -> Text | None:
    """The tokenizer of a GGUF file; None if it has none of a kind that is known here."""
    raise NotImplementedError(path)
