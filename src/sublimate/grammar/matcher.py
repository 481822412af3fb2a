"""Follows one answer through its constraint: tokens in, masks out. Nothing is ever rolled back: the
loop samples a token only with the mask of that token.

Thinking is free of masks. At its last token the loop asks for a mask all the same (`free_end`);
from there on the tokens that close the thinking are the only ones allowed, one by one.

defines: Matcher
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .bounds import JsonBounds
from .constraint import END, SLOW_SECONDS, Constraint, Phase
from .vocabulary import WORD_BITS

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher
    from numpy.typing import NDArray

LOG = logging.getLogger("sublimate.grammar")

ALL = (1 << WORD_BITS) - 1
SPACE_MAX = 16
"""Characters of white space between thinking and what has to follow it."""
RENEWALS_MAX = 8
"""New grammars of one answer before it goes on with a relaxed one: each reads all of it again."""
OUTSIDE = "doesn't satisfy"
"""In the library's error for a token outside of the grammar; its other errors are of its limits."""


class Matcher:
    """One answer. One thread at a time. `thinking_tokens`: after so many tokens of the answer its
    thinking has ended; 0: it ends by itself."""

    def __init__(self, constraint: Constraint, thinking_tokens: int = 0) -> None:
        closing = constraint.closing_tokens
        self.free_end = max(1, thinking_tokens - len(closing)) if thinking_tokens and closing else 0
        """Index of the token that needs a mask though the answer be free; 0: none does."""
        self.broken = ""
        """Why the answer cannot be held to its constraint any more; empty: it is."""
        self.is_slow = constraint.begins_slowly
        """The next mask is likely to take longer than SLOW_SECONDS, as the last one did."""
        self._constraint = self._origin = constraint
        self._vocabulary = constraint.vocabulary
        self._index = 0
        self._phase: Phase | None = None
        """The phase at the index; None: the turn ends."""
        self._active: LLMatcher | None = None
        """None: any text is allowed."""
        self.is_stale = False
        """The active grammar has reached the library's limits: the next mask needs another one."""
        self._renewals = 0
        self.renews_at_once = True
        """Otherwise `fill` leaves that to its next call."""
        self._bounds: JsonBounds | None = None
        """Bounds of the JSON of this phase; None until it begins."""
        self._is_watching = False
        self._forced: list[int] = []
        """The next tokens, whatever the model would say."""
        self._is_opened = False
        """A marker was read in this phase."""
        self._said = b""
        """Since the grammar began."""
        self._tokens: list[int] = []
        """That said it."""
        self._enter(0)

    @property
    def is_free(self) -> bool:
        """The next token needs no mask, nor do those after it up to a trigger."""
        return not self._is_watching or bool(self.broken)

    @property
    def triggers(self) -> NDArray[np.uint32]:
        """(words) of the free phase; none if nothing is held any more."""
        if self.broken or self._phase is None or self._phase.kind != "free":
            return self._vocabulary.words(())
        return self._constraint.triggers(self._phase)

    def consume(self, tokens: Iterable[int], count: int = 0) -> None:
        """Tokens of the answer in order, with which it has `count`. Of free text, only triggers and
        what follows them, and the token before `free_end`."""
        self._follow(tokens)
        if 0 < self.free_end <= count and not self.broken:
            self._end_thinking()

    def fill(self, words: NDArray[np.uint32]) -> None:
        """The mask of the next token, into memory; not while free, nor is there one if the matcher
        is stale afterwards. To fill a stale one takes as long as to compile a grammar."""
        begin_seconds = time.perf_counter()
        if self.is_stale:
            self._renew()
        self._fill(words)
        if self.is_stale and self.renews_at_once:
            self._renew()
            self._fill(words)
        self.is_slow = self.is_stale or time.perf_counter() - begin_seconds > SLOW_SECONDS

    def _fill(self, words: NDArray[np.uint32]) -> None:
        vocabulary, phase = self._vocabulary, self._phase
        own = words[: len(vocabulary.stop_words)]
        words[len(own) :] = 0
        if phase is None:
            own[:] = vocabulary.stop_words
        elif self._forced:
            own[:] = vocabulary.words(self._forced[:1])
        elif self._active is None or self.is_free:
            own[:] = ALL
        else:
            self._active.unsafe_compute_mask_ptr(own.ctypes.data, own.nbytes)
            self.is_stale = self._active.is_error()
            if self._bounds is not None:
                self._bounds.apply(own, vocabulary)
            if self._may_be_text(phase):
                own |= vocabulary.control_words  # the answer may end here, too
        if phase is not None and (phase.must_speak or (phase.thinks and not self._is_opened)):
            own &= ~vocabulary.stop_words
            if phase.must_speak and len(self._said) >= SPACE_MAX and self._said.isspace():
                own &= ~vocabulary.space_words

    def _renew(self) -> None:
        """Go on with a new grammar. The library keeps what it has computed for all answers of one,
        so a new one may be all that is needed; else it is one that allows more."""
        self.is_stale = False
        why = self._active.get_error() if self._active is not None else ""
        self._renewals += 1
        for relaxes in (False, True, True)[self._renewals > RENEWALS_MAX :]:
            replace = self._constraint.replacement
            constraint = None if replace is None else replace(self._constraint, relaxes)
            if constraint is None or not self._replay(constraint):
                continue
            if relaxes:
                LOG.warning("an answer goes on with a relaxed grammar: %s", why.partition("\n")[0])
            for one in set(constraint.relaxed) - {
                *self._origin.relaxed,
                *self._origin.relaxed_later,
            }:
                self._origin.relaxed_later.append(one)
            return
        self.abandon(why)

    def _replay(self, constraint: Constraint) -> bool:
        """Bring a new constraint to where the answer is; whether its next mask can be made."""
        phase = constraint.phases[self._index]
        if phase.grammar is None:
            return False
        active = phase.grammar.deep_copy()
        if not active.consume_tokens(self._tokens):
            return False
        words = self._vocabulary.words(())
        active.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if active.is_error():
            return False
        self._constraint, self._phase, self._active = constraint, phase, active
        if self._tokens:
            self._step(phase)
        return True

    def abandon(self, why: str) -> None:
        """The answer has to end: nothing can hold it any more."""
        LOG.warning("an answer cannot be held to its grammar: %s", why.partition("\n")[0])
        self.broken = why

    def _may_be_text(self, phase: Phase) -> bool:
        if phase.kind == "choice":
            return not self._said.lstrip().startswith(phase.beginnings)
        return phase.kind == "free" and not self._is_opened

    # ---- phases --------------------------------------------------------------------------------
    def _enter(self, index: int) -> None:
        self._index = index
        self._phase = None if index == END else self._constraint.phases[index]
        if self._phase is None and not self._vocabulary.stop_tokens:
            self.abandon("the model has no token that ends a turn")
        if self._phase is None or self._phase.kind == "free":
            self._rest()
            self._is_watching = self._phase is None
        else:
            self._watch(self._phase)

    def _rest(self) -> None:
        self._active, self._said, self._tokens, self._forced = None, b"", [], []
        self._is_watching = self._is_opened = self.is_stale = False
        self._bounds = None

    def _watch(self, phase: Phase) -> None:
        self._rest()
        self._is_watching = True
        self._active = None if phase.grammar is None else phase.grammar.deep_copy()
        if phase.kind != "free":
            self._bounds = JsonBounds()

    def _end_thinking(self) -> None:
        phase = self._phase
        if phase is not None and phase.thinks and not self._is_opened and not self._forced:
            self._watch(phase)
            self._forced = list(self._constraint.closing_tokens)

    def _follow(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            if self._phase is not None and not self.broken:
                self._consume(token, self._phase)

    def _consume(self, token: int, phase: Phase) -> None:
        if not self._is_watching:
            if not int(self.triggers[token // WORD_BITS]) >> token % WORD_BITS & 1:
                return
            self._watch(phase)
        del self._forced[:1]
        self._tokens.append(token)
        text = self._vocabulary.token_bytes[token]
        self._said += text
        if self._bounds is not None:
            self._bounds.feed(text)
        if self._active is not None and not self._active.consume_token(token):
            if OUTSIDE not in self._active.get_error():
                self.is_stale = self.is_slow = True  # the next mask replays it
                return
            self._active = None  # free text may have bytes that no grammar has
        self._step(phase)

    def _step(self, phase: Phase) -> None:
        if phase.kind == "free":
            self._step_free(phase)
        elif phase.kind == "held":
            self._step_held(phase)
        else:
            self._step_choice(phase)

    def _step_free(self, phase: Phase) -> None:
        if not self._is_opened:
            ends = [self._said.find(m) + len(m) for m in phase.markers if m in self._said]
            if ends:
                self._is_opened = True
                self._bounds = JsonBounds()
                self._bounds.feed(self._said[min(ends) :])
        if self._is_opened and phase.grammar is None:
            self._enter(phase.then)
        elif self._is_opened:
            self._step_grammar(phase)
        elif not self._forced and not _may_begin(self._said, phase.markers):
            self._rest()

    def _step_held(self, phase: Phase) -> None:
        opening = phase.thinking_opening
        if opening and self._said.lstrip().startswith(opening):
            self._enter(phase.thinking)
        else:
            self._step_grammar(phase)

    def _step_choice(self, phase: Phase) -> None:
        opening, said = phase.thinking_opening, self._said.lstrip()
        if opening and said.startswith(opening):
            self._enter(phase.thinking)
        elif _is_text(said, phase.beginnings):
            tokens = self._tokens
            self._enter(phase.otherwise)
            self._follow(tokens)  # a marker may have begun in what was said so far
        elif phase.grammar is not None:
            self._step_grammar(phase)

    def _step_grammar(self, phase: Phase) -> None:
        if self._active is None or self._active.is_error():
            self.abandon(self._active.get_error() if self._active else "a token outside of it")
        elif self._active.is_stopped():
            self._enter(phase.then)


def _is_text(said: bytes, beginnings: Iterable[bytes]) -> bool:
    """Whether an answer that began so is none of the things that have these beginnings."""
    return bool(said) and not any(
        said.startswith(one) or one.startswith(said) for one in beginnings
    )


def _may_begin(said: bytes, markers: Iterable[bytes]) -> bool:
    """Whether the end of a text may be the beginning of a marker."""
    return any(
        said.endswith(marker[:length]) for marker in markers for length in range(1, len(marker))
    )
