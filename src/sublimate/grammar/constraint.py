"""What one request is held to: a few phases, each of which a grammar or nothing governs.

An answer that may call a tool is one phase of free text, whose grammar begins where a marker may
begin; one that must call a tool is one phase that its grammar holds from the first token on; and
thinking is a free phase before either. Thinking cannot end the turn: no end of turn is in it, nor
behind it before the answer has said anything.

defines: Phase, Constraint, END, SLOW_SECONDS
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from .schema import Relaxation
from .vocabulary import GrammarVocabulary

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher
    from numpy.typing import NDArray

END = -1
"""As the next phase: the turn ends."""
SLOW_SECONDS = 0.0003
"""A mask that takes longer is no work for a thread that others wait for."""


Relaxed = tuple[str, Relaxation]
"""(name of the tool, empty for the answer's schema; what is not enforced of it)."""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of an answer."""

    kind: Literal["free", "held", "choice"]
    """free: any text up to a marker, at which the grammar begins, or for good. held: the grammar
    says it all. choice: what begins with `beginnings`, or text; without a grammar, any."""
    grammar: LLMatcher | None = None
    """Compiled, at its beginning; copied, never advanced. None (free): the marker ends it."""
    then: int = END
    """Index of the phase after the last thing that the grammar allows."""
    markers: tuple[bytes, ...] = ()
    """free: what ends it, if anything."""
    beginnings: tuple[bytes, ...] = ()
    """choice: what does not begin so is text."""
    otherwise: int = END
    """choice: index of the phase of that text."""
    thinking_opening: bytes = b""
    """If the answer begins with this, thinking follows."""
    thinking: int = END
    """Index of its phase."""
    thinks: bool = False
    """free: it is thinking, up to its marker."""
    must_speak: bool = False
    """choice: the answer cannot end in it; it lasts until something but white space was said."""

    def __post_init__(self) -> None:
        if self.kind == "free" and (self.thinks or self.grammar is not None) and not self.markers:
            raise ValueError("a marker begins what follows a free phase")
        if self.kind != "free" and (self.markers or self.thinks):
            raise ValueError("only a free phase ends at a marker")
        if (self.kind == "choice") != bool(self.beginnings or self.must_speak):
            raise ValueError("a choice is between beginnings, or between something and nothing")


class Constraint(msgspec.Struct, frozen=True):
    """May hold any number of answers at a time."""

    phases: tuple[Phase, ...]
    vocabulary: GrammarVocabulary
    begins_slowly: bool = False
    """Its first mask takes longer than SLOW_SECONDS."""
    closing_tokens: tuple[int, ...] = ()
    """Say the end of thinking; none if it has no phase that thinks."""
    relaxed: tuple[Relaxed, ...] = ()
    replacement: Callable[[Constraint, bool], Constraint | None] | None = None
    """Makes a constraint with the same phases in place of this one, whose grammar has reached the
    library's limits; if the flag is set, without what a new grammar cannot enforce either. None:
    the client allows no less."""
    relaxed_later: list[Relaxed] = []
    """Found while this constraint held an answer."""

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError("a constraint has phases")
        if any(phase.thinks for phase in self.phases) != bool(self.closing_tokens):
            raise ValueError("what thinks can be told to end it")

    def triggers(self, phase: Phase) -> NDArray[np.uint32]:
        """(words) the tokens that end the free part of a phase, and in thinking the ends of a turn,
        which thereby are none (core/ring/ring.h)."""
        words = self.vocabulary.triggers(phase.markers)
        return words | self.vocabulary.stop_words if phase.thinks else words

    @property
    def needs_triggers(self) -> bool:
        """Whether a request takes a second mask slot."""
        return any(phase.kind == "free" for phase in self.phases)
