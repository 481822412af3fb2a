"""A conversation in one form, whatever API it came through.

defines: Text, Thinking, ToolList, Block, Role, Turn, said, TURN_SEPARATOR,
         BLOCK_SEPARATOR, merged, stable, fold_system_turns, user_first, is_continued
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from operator import is_
from typing import Literal

import msgspec

from .tool_formats import Tool, ToolCall, ToolResult

TURN_SEPARATOR = "\n\n"
BLOCK_SEPARATOR = "\n"
LEADING_USER_TEXT = "(The conversation continues.)"

Role = Literal["system", "user", "assistant", "tool"]


class Text(msgspec.Struct, frozen=True):
    """What somebody said."""

    text: str


class Thinking(msgspec.Struct, frozen=True):
    """What the model thought before it said something."""

    text: str


class ToolList(msgspec.Struct, frozen=True):
    """Tools that the model hears of here, in the middle of a conversation. Behind a result: as a
    part of it."""

    tools: tuple[Tool, ...]

    def __post_init__(self) -> None:
        if not self.tools:
            raise ValueError("a list of no tools tells nothing")


Block = Text | Thinking | ToolCall | ToolResult | ToolList
HOLDS: dict[Role, tuple[type, ...]] = {
    "system": (Text, ToolList),
    "user": (Text, ToolList),
    "assistant": (Text, Thinking, ToolCall),
    "tool": (ToolResult, ToolList),
}


class Turn(msgspec.Struct, frozen=True):
    """One turn, with blocks as HOLDS says. After normalisation neighbours have different roles and
    no text is empty; a tool turn has all results of the calls before it, in the order of the calls.
    """

    role: Role
    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        if not self.blocks:
            raise ValueError("a turn without blocks is none")
        if not all(isinstance(block, HOLDS[self.role]) for block in self.blocks):
            raise ValueError(f"no block of a turn of the role {self.role}")
        if self.role == "tool" and not isinstance(self.blocks[0], ToolResult):
            raise ValueError("a tool turn begins with a result")

    @property
    def text(self) -> str:
        """What was said, and nothing else."""
        return BLOCK_SEPARATOR.join(b.text for b in self.blocks if isinstance(b, Text))

    @property
    def calls(self) -> list[ToolCall]:
        return [block for block in self.blocks if isinstance(block, ToolCall)]


def said(role: Role, text: str) -> Turn:
    """A turn of text alone."""
    return Turn(role, (Text(text),))


ATTRIBUTION = re.compile(r"^[ \t]*x-anthropic-billing-header:.*\n?", re.I | re.M)
"""A line for billing that some clients put into their system prompt. A model does not need it, and
its hash changes from run to run."""
COUNTDOWN = re.compile(
    r"^[ \t]*(?:"
    r"<(?P<tag>total_tokens|system_warning|budget:token_budget)>"
    r"[^<\n]{0,100}\d[^<\n]{0,100}</(?P=tag)>"
    r"|(?:token usage|context (?:left|remaining|usage)|tokens? (?:left|remaining|used))\b"
    r"[^\n]{0,100}\d[^\n]{0,100}"
    r"|\d[\d,._]{0,20} tokens (?:left|remaining)\.?"
    r")[ \t]*\r?$\n?",
    re.I | re.M,
)
"""A line that counts what is left of the context, and so changes with every request."""

STABLE_CHARACTERS_MAX = 1 << 20
"""A longer text keeps such lines: to look for them would hold the interpreter's lock for long."""


def stable(turns: Iterable[Turn]) -> list[Turn]:
    """Merged turns whose beginning does not change from one request to the next.

    Lines of attribution are dropped from all system turns. Lines of the first system turn that
    count down become a system turn at the end, before an answer that was begun.
    """
    whole = merged(turns)
    settled = list(filter(None, (_without(turn, ATTRIBUTION)[0] for turn in whole)))
    if settled and settled[0].role == "system":
        first, lines = _without(settled[0], COUNTDOWN)
        if lines and len(settled) > 1:
            end = -1 if is_continued(settled) else len(settled)
            settled.insert(end, said("system", BLOCK_SEPARATOR.join(lines)))
            settled[:1] = [first] if first else []
    if len(settled) == len(whole) and all(map(is_, settled, whole)):
        return whole
    return merged(settled)  # what was dropped or moved has left neighbours of one role


def _without(turn: Turn, line: re.Pattern[str]) -> tuple[Turn | None, list[str]]:
    """A system turn without the lines that match, and these; None: nothing is left of it."""
    lines: list[str] = []
    if turn.role != "system":
        return turn, lines
    blocks: list[Block] = []
    for block in turn.blocks:
        text = block.text if isinstance(block, Text) else ""
        if len(text) <= STABLE_CHARACTERS_MAX and line.search(text):
            lines += [match[0].strip() for match in line.finditer(text)]
            block = Text(line.sub("", text).strip("\r\n"))
            if not block.text:
                continue
        blocks.append(block)
    if not lines:
        return turn, lines
    return (Turn(turn.role, tuple(blocks)) if blocks else None), lines


def merged(turns: Iterable[Turn]) -> list[Turn]:
    """Neighbours of one role are one turn, as if a blank line stood between them. In one pass, so
    that a client's ten thousand turns of one role cost no more than their length."""
    whole: list[Turn] = []
    for _, group in itertools.groupby(turns, lambda turn: turn.role):
        first, *others = group
        blocks = tuple(_joined([first, *others])) if others else first.blocks
        whole.append(Turn(first.role, blocks))
    return whole


def _joined(turns: Sequence[Turn]) -> Iterator[Block]:
    """Their blocks; where one turn ends with text and the next begins with it, one block."""
    open_texts: list[str] = []
    for turn in turns:
        for place, block in enumerate(turn.blocks):
            if isinstance(block, Text) and place == 0 and open_texts:
                open_texts.append(block.text)
                continue
            if open_texts:
                yield Text(TURN_SEPARATOR.join(open_texts))
            open_texts = [block.text] if isinstance(block, Text) else []
            if not open_texts:
                yield block
    if open_texts:
        yield Text(TURN_SEPARATOR.join(open_texts))


def fold_system_turns(turns: Sequence[Turn], *, keep_first: bool) -> list[Turn]:
    """Each system turn becomes part of the user turn before it, else of the one after it.

    What precedes a folded turn is unchanged by what follows it, so prefixes stay prefixes.
    """
    return merged(
        turn if turn.role != "system" or (index == 0 and keep_first) else Turn("user", turn.blocks)
        for index, turn in enumerate(turns)
    )


def user_first(turns: Sequence[Turn]) -> list[Turn]:
    """With a word of the user where an assistant would open the conversation."""
    opening = 1 if turns and turns[0].role == "system" else 0
    shaped = list(turns)
    if len(shaped) > opening and shaped[opening].role == "assistant":
        shaped.insert(opening, said("user", LEADING_USER_TEXT))
    return shaped


def is_continued(turns: Sequence[Turn]) -> bool:
    """The answer goes on where a last assistant turn ends."""
    return bool(turns) and turns[-1].role == "assistant"
