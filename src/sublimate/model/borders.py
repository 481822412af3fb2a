"""Where a prompt may be cut: behind its messages and its paragraphs, in tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

NEWLINE = b"\n"
PARAGRAPH_END = b"\n\n"


class BorderFinder:
    """For one vocabulary. A message ends with one of the model's stop tokens, a paragraph with an
    empty line."""

    def __init__(self, token_bytes: Sequence[bytes], stop_tokens: Iterable[int]) -> None:
        self._is_stop = np.zeros(len(token_bytes), bool)
        self._is_stop[[token for token in stop_tokens if token < len(token_bytes)]] = True
        texts = [token.replace(b"\r", b"") for token in token_bytes]
        self._has_paragraph_end = np.array([text.endswith(PARAGRAPH_END) for text in texts], bool)
        self._ends_line = np.array([text.endswith(NEWLINE) for text in texts], bool)
        self._is_newline = np.array([text == NEWLINE for text in texts], bool)

    def find(self, ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """(ends of messages, ends of paragraphs): tokens before each, the prompt's end left out.
        Linear in the length of the prompt."""
        tokens = np.asarray(ids, np.int64)
        if len(tokens) < 2:
            return [], []
        inner = tokens[:-1]
        messages = np.flatnonzero(self._is_stop[inner]) + 1
        empty_line = self._has_paragraph_end[inner]
        empty_line[1:] |= self._is_newline[inner[1:]] & self._ends_line[inner[:-1]]
        return messages.tolist(), (np.flatnonzero(empty_line) + 1).tolist()
