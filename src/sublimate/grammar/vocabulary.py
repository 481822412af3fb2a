"""The model's tokens as the grammar library takes them, and which of them may begin a marker.

defines: GrammarVocabulary, mask_words
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..model.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLTokenizer
    from numpy.typing import NDArray

WORD_BITS = 32
DIGITS = re.compile(rb"[0-9]+")
LARGE_EXPONENT = re.compile(rb"[0-9]*(\.[0-9]+)?[eE][+-]?[0-9]{3}")


def mask_words(vocabulary: int) -> int:
    """32-bit words of one token mask."""
    return (vocabulary + WORD_BITS - 1) // WORD_BITS


class GrammarVocabulary:
    """One model's. `markers`: texts that its formats write around blocks; where such a text is a
    control token of the model, grammars see it as the text that it stands for."""

    def __init__(self, tokenizer: Tokenizer, markers: Collection[str]) -> None:
        self._encode = tokenizer.encode
        self.count = len(tokenizer)
        self.stop_tokens = tokenizer.stop_tokens
        spelled = {tokenizer.special[text]: text for text in markers if text in tokenizer.special}
        self.token_bytes = [
            spelled[token].encode() if token in spelled else text
            for token, text in enumerate(tokenizer.token_bytes)
        ]
        """(vocabulary) what each token says; empty for control tokens."""
        silent = [token for token, text in enumerate(self.token_bytes) if not text]
        self.library = self._library(tokenizer, silent)
        self.stop_words = self.words(self.stop_tokens)
        """(words) the mask of the end of a turn."""
        self.control_words = self.words(silent) | self.stop_words
        """(words) all that no grammar speaks of."""
        self.space_words = self._matching(rb"[ \t\r\n]+")
        self.opening_words = self._matching(rb"[^\"]*[\[{].*")
        """(words) tokens that begin outside of a string and open an object or an array."""
        self.closing_words = self._matching(rb"\"?[\]}]*")
        """(words) tokens that only end strings, objects and arrays."""
        self._digits = {token: len(run[0]) for token, text in enumerate(self.token_bytes)
                        if (run := DIGITS.match(text))}  # fmt: skip
        self._large = [token for token, text in enumerate(self.token_bytes)
                       if LARGE_EXPONENT.match(text)]  # fmt: skip

    def _library(self, tokenizer: Tokenizer, silent: Sequence[int]) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper  # no start waits for it

        names = {token: text for text, token in tokenizer.special.items()}
        tokens = list(self.token_bytes)
        for token in {*silent, *self.stop_tokens}:
            tokens[token] = names.get(token, f"<control {token}>").encode()
        stops = list(self.stop_tokens) or list(silent[:1]) or [0]
        view = _TokenizerView(tokens, stops[0], sorted({*silent, *stops}), self._encode)
        return LLTokenizer(
            cast(Any, TokenizerWrapper(view)),
            n_vocab=self.count,
            eos_token=stops,
            slices=LLTokenizer.json_slices(),
        )

    def words(self, tokens: Iterable[int]) -> NDArray[np.uint32]:
        """(words) a mask that has these tokens."""
        import numpy as np  # no start waits for it

        bits = np.zeros(mask_words(self.count) * WORD_BITS, np.uint8)
        bits[list(tokens)] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def _matching(self, pattern: bytes) -> NDArray[np.uint32]:
        matches = re.compile(pattern, re.DOTALL).fullmatch
        return self.words(token for token, text in enumerate(self.token_bytes)
                          if text and matches(text))  # fmt: skip

    @functools.lru_cache(maxsize=32)  # noqa: B019
    def digit_words(self, count: int) -> NDArray[np.uint32]:
        """(words) tokens that continue a number by more than `count` digits, or by an exponent of
        three."""
        return self.words([*self._large, *(t for t, run in self._digits.items() if run > count)])

    @functools.lru_cache(maxsize=32)  # noqa: B019
    def triggers(self, markers: tuple[bytes, ...]) -> NDArray[np.uint32]:
        """(words) tokens behind which a marker may have begun, or is complete."""
        found: set[int] = set()
        for marker in markers:
            heads = tuple(marker[:length] for length in range(1, len(marker) + 1))
            found.update(
                token
                for token, text in enumerate(self.token_bytes)
                if marker[:1] in text and (text.endswith(heads) or marker in text)
            )
        return self.words(found)


class _TokenizerView:
    """What the library reads of a tokenizer."""

    def __init__(self, tokens: list[bytes], eos: int, special: list[int], encode: Any) -> None:
        self.tokens = tokens
        self.eos_token_id = eos
        self.bos_token_id = None
        self.special_token_ids = special
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text.decode() if isinstance(text, bytes) else text)
