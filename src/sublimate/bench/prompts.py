"""Distinct prompts of a given length, and the count of tokens in a text.

defines: Counter, PromptMaker
"""

from __future__ import annotations

import random
from collections.abc import Callable

Counter = Callable[[str], int]
"""Tokens in a text."""

WORDS = (
    "alpha beta delta house river stone cloud window garden market bridge paper silver orange "
    "yellow simple modern ancient quiet north south summer winter music letter number forest "
    "island valley copper doctor engine farmer"
).split()
DISTINCT = 10**9
TOKENS_PER_WORD_GUESS = 1.02
FIT_ROUNDS = 4


class PromptMaker:
    """Makes prompts that differ from their first word on, so that no prefix cache helps.

    With a counter the length is exact to a few tokens; without one it is estimated.
    """

    def __init__(self, tokens: int, counter: Counter | None, seed: int) -> None:
        self._tokens = max(1, tokens)
        self._counter = counter
        self._random = random.Random(seed)  # noqa: S311 - load, not secrets

    def make(self) -> str:
        words = [str(self._random.randrange(DISTINCT))]
        count = int(self._tokens / TOKENS_PER_WORD_GUESS)
        words += self._random.choices(WORDS, k=count)
        if self._counter is None:
            return " ".join(words)
        for _ in range(FIT_ROUNDS):
            missing = self._tokens - self._counter(" ".join(words))
            if missing > 0:
                words += self._random.choices(WORDS, k=missing)
            elif missing < 0:
                words = words[: max(1, len(words) + missing)]
            else:
                break
        return " ".join(words)
