"""What one request is held to: a few phases, each of which a grammar or nothing governs.

An answer that may call a tool is one phase of free text, whose grammar begins where a marker may
begin; one that must call a tool is one phase that its grammar holds from the first token on; and
thinking is a free phase before either.

defines: Phase, Constraint, END, SLOW_SECONDS
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from .vocabulary import GrammarVocabulary

END = -1
"""As the next phase: the turn ends."""
SLOW_SECONDS = 0.0005
"""A mask that takes longer is no work for a thread that others wait for."""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of an answer."""

    kind: Literal["free", "held", "choice"]
    """free: any text up to a marker, at which the grammar begins. held: the grammar says it all.
    choice: the grammar allows what begins with `beginnings`, or text."""
    grammar: LLMatcher | None = None
    """Compiled, at its beginning; copied, never advanced. None (free): the marker ends it."""
    then: int = END
    """Index of the phase after the last thing that the grammar allows."""
    markers: tuple[bytes, ...] = ()
    """free: what ends it."""
    beginnings: tuple[bytes, ...] = ()
    """choice: what does not begin so is text."""
    otherwise: int = END
    """choice: index of the phase of that text."""
    thinking_opening: bytes = b""
    """If the answer begins with this, thinking follows."""
    thinking: int = END
    """Index of its phase."""

    def __post_init__(self) -> None:
        if (self.kind == "free") != bool(self.markers):
            raise ValueError("a free phase ends at a marker, and no other")
        if (self.kind == "choice") != bool(self.beginnings):
            raise ValueError("a choice is between beginnings")


class Constraint(msgspec.Struct, frozen=True):
    """May hold any number of answers at a time."""

    phases: tuple[Phase, ...]
    vocabulary: GrammarVocabulary
    begins_slowly: bool = False
    """Its first mask takes longer than SLOW_SECONDS."""

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError("a constraint has phases")

    def triggers(self, phase: Phase) -> NDArray[np.uint32]:
        """(words) the tokens that end the free part of a phase."""
        opening = (phase.thinking_opening,) if phase.thinking_opening else ()
        return self.vocabulary.triggers((*phase.markers, *opening))

    @property
    def needs_triggers(self) -> bool:
        """Whether a request takes a second mask slot."""
        return any(phase.kind == "free" for phase in self.phases)
