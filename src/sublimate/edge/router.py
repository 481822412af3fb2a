"""Which engine a request goes to, where a server has several.

What an engine has read before it need not read again, and what waits there has to be read first.
Both are counted in tokens of prompts, so that they compare: the engine with the least to read until
this prompt is read is chosen. It is the one that holds the longest prefix, unless that one is busy
for longer than the others would take to read what it holds.

Pure: what engines have cached, and how busy they are, they publish themselves (_core.PrefixTable).

defines: Candidate, choose
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

RUNNING_TOKENS = 32
"""A stream that runs slows a prompt beside it down as if it had so many more tokens."""
PROMPT_TOKENS = 128
"""Of a prompt of which no more is known than that it waits."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One engine, as a request meets it. All in tokens but the counts of requests."""

    cached_tokens: int = 0
    """Of this prompt, that it holds."""
    unread_tokens: int = 0
    """Of the prompts of others that it has to read."""
    running: int = 0
    is_near: bool = False
    """It is the one of this worker."""
    is_full: bool = False

    def __post_init__(self) -> None:
        if min(self.cached_tokens, self.unread_tokens, self.running) < 0:
            raise ValueError("an engine holds and owes no less than nothing")

    def work(self, prompt_tokens: int) -> int:
        """Tokens to read until this prompt is read."""
        mine = max(0, prompt_tokens - self.cached_tokens)
        return mine + self.unread_tokens + self.running * RUNNING_TOKENS


def choose(prompt_tokens: int, candidates: Sequence[Candidate]) -> int:
    """Index of the engine for a prompt. Equal ones: the near one, else the first. Raises ValueError
    without any."""
    if not candidates:
        raise ValueError("there is no engine to choose")

    def order(index: int) -> tuple[bool, int, bool, int]:
        one = candidates[index]
        return one.is_full, one.work(prompt_tokens), not one.is_near, index

    return min(range(len(candidates)), key=order)
