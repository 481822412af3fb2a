"""What the in-process engine takes and returns, as plain data.

defines: Sampling, TokenLogprob, Piece, Completion
"""

from __future__ import annotations

import msgspec

from ..config import Profile


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen. The defaults are greedy."""

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int = -1
    """-1 none; else the number of alternatives per token."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    adapter: str = ""
    """Name of a LoRA adapter of this engine; empty: the model as it is."""
    profile: Profile = "high-throughput"
    cache: bool = True
    """False neither reads nor writes the prefix cache."""


TokenLogprob = tuple[float, list[tuple[int, float]]]
"""(log-probability of the token, [(id, log-probability) of the best alternatives])"""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream yields: the tokens of one step of one request."""

    token_ids: list[int]
    text: str
    """Of these tokens, where a tokenizer is there; a split code point waits for its rest."""
    logprobs: list[TokenLogprob]
    finish_reason: str
    """Empty but for the last piece."""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer to one prompt."""

    token_ids: list[int]
    text: str | None
    finish_reason: str
    """end_turn (a stop token, which is not in token_ids) or max_tokens."""
    logprobs: list[TokenLogprob]
    prompt_tokens: int
    cached_tokens: int
    first_token_seconds: float
    """From submission to the first token; 0 without one."""
    total_seconds: float
    arrivals_seconds: list[float] = []
    """When tokens came, each from submission; tokens that were taken together came together."""
