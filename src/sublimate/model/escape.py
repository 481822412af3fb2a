"""Keeps what people typed from reading like a control token.

defines: Escape
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

import msgspec


class Escape:
    """Puts a character inside each control token of a text. The tokenizer drops it again, so a
    model sees the text as it is, in ordinary tokens."""

    def __init__(self, special: Sequence[str]) -> None:
        """special: texts of the control tokens, of two characters or more."""
        if any(len(text) < 2 for text in special):
            raise ValueError("a control token of one character cannot be split")
        self._pattern = alternatives(special)
        self._openings = {text[:length] for text in special for length in range(1, len(text))}
        self._opening_characters_max = max(map(len, self._openings), default=0)
        self._first_characters = {text[0] for text in special}

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """Matches each control token; None if there are none."""
        return self._pattern

    def text(self, text: str, marker: str) -> str:
        """The text with `marker` inside each control token, whole or begun at its end."""
        if self._pattern is None or not any(c in text for c in self._first_characters):
            return text
        while self._pattern.search(text):
            text = self._pattern.sub(lambda m: m[0][0] + marker + m[0][1:], text)
        longest = min(self._opening_characters_max, len(text))
        places = [n for n in range(longest, 0, -1) if text[-n:] in self._openings]
        for n in places:
            at = len(text) - n + 1
            text = text[:at] + marker + text[at:]
        return text

    def json(self, data: bytes, marker: str) -> Any:
        """The value of a JSON text, with all its strings escaped, keys too."""
        root: list[Any] = [msgspec.json.decode(data)]
        unseen: list[Any] = [root] if self._pattern else []
        while unseen:
            container = unseen.pop()
            if isinstance(container, dict):
                parts = list(cast(dict[Any, Any], container).items())
                container.clear()  # and filled again: in its order, under escaped keys
            else:
                parts = list[tuple[Any, Any]](enumerate(cast(list[Any], container)))
            for key, part in parts:
                shown = self.text(part, marker) if isinstance(part, str) else part
                if isinstance(shown, dict | list):
                    unseen.append(shown)
                container[self.text(key, marker) if isinstance(key, str) else key] = shown
        return root[0]


def alternatives(texts: Sequence[str]) -> re.Pattern[str] | None:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if texts else None
