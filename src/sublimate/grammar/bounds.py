"""Bounds of what a schema leaves open, so that every answer ends: digits, nesting, size.

The library's grammars allow numbers, free objects and texts of any length. Masks leave out the
tokens that would go beyond these bounds, as long as other tokens remain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core import LIMITS
from .vocabulary import GrammarVocabulary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DIGITS_MAX = {"integer": 20, "fraction": 20, "exponent": 2}
"""Digits of the parts of a number. All 64-bit integers fit, and each such number fits a double."""
DEPTH_MAX = LIMITS["CALL_DEPTH_MAX"]
"""Objects and arrays inside each other: what a client can send back inside a conversation."""
DOCUMENT_BYTES_MAX = 1 << 18
"""Longer documents close as soon as they may."""

QUOTE, BACKSLASH = b'"\\'


class JsonBounds:
    """Follows the JSON of one answer. Text around it (a call's markers) does no harm."""

    def __init__(self) -> None:
        self._bytes = 0
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._part = ""
        """The part of the number that is being written; empty outside of numbers."""
        self._digits = 0
        """Digits of that part so far."""

    def feed(self, text: bytes) -> None:
        self._bytes += len(text)
        for byte in text:
            if not self._in_string:
                self._step(byte)
            elif self._is_escaped:
                self._is_escaped = False
            elif byte == BACKSLASH:
                self._is_escaped = True
            elif byte == QUOTE:
                self._in_string = False

    def _step(self, byte: int) -> None:
        if byte in b"0123456789":
            self._part = self._part or "integer"
            self._digits += 1
        elif self._part and byte in b".eE":
            self._part, self._digits = "fraction" if byte == ord(".") else "exponent", 0
        elif self._part != "exponent" or byte not in b"+-":
            self._part, self._digits = "", 0
            self._in_string = byte == QUOTE
            self._depth += (byte in b"[{") - (byte in b"]}")

    def apply(self, words: NDArray[np.uint32], vocabulary: GrammarVocabulary) -> None:
        """Leave out of a mask what goes beyond the bounds, unless nothing would remain."""
        if self._bytes > DOCUMENT_BYTES_MAX and _keep(words, words & vocabulary.closing_words):
            return
        if self._part:
            left = max(0, DIGITS_MAX[self._part] - self._digits)
            _keep(words, words & ~vocabulary.digit_words(left))
        elif self._depth >= DEPTH_MAX and not self._in_string:
            _keep(words, words & ~vocabulary.opening_words)


def _keep(words: NDArray[np.uint32], kept: NDArray[np.uint32]) -> bool:
    if not kept.any():
        return False
    words[:] = kept
    return True
