"""Log-probabilities as the OpenAI APIs write them. Ollama writes those of chats.

defines: Vocabulary, shown_scores, shown_token, completion_scores
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...edge.dialect import Score

Vocabulary = Sequence[bytes]
"""Bytes of each token; empty for control tokens, which are no text and not told."""


def shown_token(vocabulary: Vocabulary, token: int, logprob: float) -> dict[str, Any]:
    """One token. Its text alone may be no whole character; `bytes` says what it is."""
    raw = vocabulary[token]
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}


def shown_scores(vocabulary: Vocabulary, scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Of a chat: per token of the answer itself and its alternatives."""
    return [
        {
            **shown_token(vocabulary, score.token, score.logprob),
            "top_logprobs": [shown_token(vocabulary, *best) for best in score.best],
        }
        for score in scores
        if vocabulary[score.token]
    ]


def completion_scores(
    vocabulary: Vocabulary, scores: Sequence[Score], offset: int
) -> dict[str, Any]:
    """Of a completion. offset: characters before the first of these tokens."""
    shown: dict[str, list[Any]] = {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }
    for score in scores:
        if not vocabulary[score.token]:
            continue
        text = vocabulary[score.token].decode("utf-8", "replace")
        shown["tokens"].append(text)
        shown["token_logprobs"].append(score.logprob)
        best = {vocabulary[token].decode("utf-8", "replace"): value for token, value in score.best}
        shown["top_logprobs"].append({text: score.logprob, **best})
        shown["text_offset"].append(offset)
        offset += len(text)
    return shown
