"""Edits of a long conversation that a client leaves to the server.

They work on turns before these are rendered, so what they leave out costs nothing. Each edit is
whole turns of the past, and it moves forward only when a trigger is passed: between two of them the
prefix stays.

defines: AppliedEdit, apply_edits
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...model.tool_formats import ToolCall, ToolResult
from ...model.turns import Block, Thinking, Turn
from .schema import Amount, ClearThinking, ClearToolUses, Compact

CLEARED = "(Cleared.)"

AppliedEdit = dict[str, Any]
"""As the API reports it."""
Count = Callable[[Sequence[Turn]], int]


def apply_edits(
    turns: list[Turn], edits: Sequence[ClearToolUses | ClearThinking | Compact], count: Count
) -> tuple[list[Turn], list[AppliedEdit], int]:
    """(turns, what was done, prompt tokens before)."""
    original = tokens = count(turns)
    applied: list[AppliedEdit] = []
    for edit in edits:
        if isinstance(edit, ClearThinking):
            edited, cleared = _clear_thinking(turns, edit)
            what = {"type": "clear_thinking_20251015", "cleared_thinking_turns": cleared}
        elif isinstance(edit, ClearToolUses):
            edited, cleared = _clear_tool_uses(turns, edit, tokens)
            what = {"type": "clear_tool_uses_20250919", "cleared_tool_uses": cleared}
        else:
            raise TypeError("refused by check_offered")
        if not cleared:
            continue
        left = count(edited)
        least = edit.clear_at_least if isinstance(edit, ClearToolUses) else None
        if least is not None and tokens - left < least.value:
            continue
        applied.append({**what, "cleared_input_tokens": max(0, tokens - left)})
        turns, tokens = edited, left
    return turns, applied, original


def _clear_thinking(turns: list[Turn], edit: ClearThinking) -> tuple[list[Turn], int]:
    keep = edit.keep
    if not isinstance(keep, Amount) or keep.type == "all":
        return turns, 0
    thoughtful = [
        place
        for place, turn in enumerate(turns)
        if any(isinstance(block, Thinking) for block in turn.blocks)
    ]
    cleared = set(thoughtful[: max(0, len(thoughtful) - keep.value)])
    edited: list[Turn] = []
    for place, turn in enumerate(turns):
        left = tuple(block for block in turn.blocks if not isinstance(block, Thinking))
        # A turn of thinking alone stays one: its place tells user turns apart.
        edited.append(Turn(turn.role, left) if place in cleared and left else turn)
    return edited, len(cleared)


def _clear_tool_uses(turns: list[Turn], edit: ClearToolUses, tokens: int) -> tuple[list[Turn], int]:
    calls = [call for turn in turns for call in turn.calls]
    amount = len(calls) if edit.trigger.type == "tool_uses" else tokens
    if amount <= edit.trigger.value:
        return turns, 0
    excluded = set(edit.exclude_tools or [])
    old = calls[: max(0, len(calls) - edit.keep.value)]
    cleared = {call.id for call in old if call.name not in excluded}
    inputs = edit.clear_tool_inputs
    emptied = {
        call.id
        for call in old
        if call.id in cleared and (inputs is True or (inputs and call.name in inputs))
    }

    def shown(block: Block) -> Block:
        if isinstance(block, ToolResult) and block.call_id in cleared:
            return ToolResult(block.call_id, CLEARED)
        if isinstance(block, ToolCall) and block.id in emptied:
            return ToolCall(block.id, block.name, "{}")
        return block

    return [Turn(turn.role, tuple(map(shown, turn.blocks))) for turn in turns], len(cleared)
