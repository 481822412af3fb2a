"""One request of the in-process engine, from submission to its end.

defines: Flight, FINISHED_WELL
"""

from __future__ import annotations

import codecs
import time
from collections import deque

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .results import Completion, Piece, Sampling, TokenLogprob

NANOSECONDS = 1_000_000_000
FINISHED_WELL = frozenset({"end_turn", "max_tokens", "scored"})


class Flight:
    """Collects the events of one request. Touched only under the engine's lock."""

    def __init__(self, tokens: NDArray[np.int32], sampling: Sampling, keep_pieces: bool) -> None:
        self.tokens = tokens
        self.sampling = sampling
        self.slot = -1
        self.generation = -1
        self.finish_reason = ""
        self.refuse_reason = ""
        self.pieces: deque[Piece] = deque()
        self._keep_pieces = keep_pieces
        self._ids: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._cached_tokens = 0
        self._submitted_ns = 0
        self._first_token_ns = 0
        self._end_ns = 0
        self._arrivals_ns: list[int] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def submitted(self) -> None:
        """Time counts from now."""
        self._submitted_ns = time.monotonic_ns()

    @property
    def finished(self) -> bool:
        return bool(self.finish_reason)

    def take(self, event: _core.StreamEvent, vocabulary: _core.Vocabulary | None) -> None:
        """Add what one poll had for this request."""
        if event.admitted:
            self._cached_tokens = event.cached_tokens
        if event.first_token_ns and not self._first_token_ns:
            self._first_token_ns = event.first_token_ns
        ids, logprobs = list(event.token_ids), list(event.logprobs)
        if ids:
            self._arrivals_ns.append(event.last_record_ns)
        if event.finished:
            self.finish_reason = event.stop_reason
            self.refuse_reason = event.refuse_reason
            self._end_ns = time.monotonic_ns()
            if event.stop_reason == "end_turn" and ids and ids[-1] in self.sampling.stop_tokens:
                # The stop token ends the answer and is no part of it.
                ids.pop()
                logprobs = logprobs[: len(ids)]
        text = ""
        if vocabulary is not None:
            text = self._decoder.decode(vocabulary.decode(ids), final=event.finished)
        self._ids += ids
        self._logprobs += logprobs
        self._text.append(text)
        if self._keep_pieces and (ids or event.finished):
            reason = self.finish_reason
            piece = Piece(token_ids=ids, text=text, logprobs=logprobs, finish_reason=reason)
            self.pieces.append(piece)

    def completion(self, has_text: bool) -> Completion:
        """The whole answer; only after the end."""
        first = max(0, self._first_token_ns - self._submitted_ns) if self._first_token_ns else 0
        return Completion(
            token_ids=self._ids,
            text="".join(self._text) if has_text else None,
            finish_reason=self.finish_reason,
            logprobs=self._logprobs,
            prompt_tokens=len(self.tokens),
            cached_tokens=self._cached_tokens,
            first_token_seconds=first / NANOSECONDS,
            total_seconds=(self._end_ns - self._submitted_ns) / NANOSECONDS,
            arrivals_seconds=[(at - self._submitted_ns) / NANOSECONDS for at in self._arrivals_ns],
        )
