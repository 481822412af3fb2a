"""Turns as the messages of a chat template, and as text where a template does not know them.

Everything here is deterministic in the turn and those before it: a longer conversation begins as
the shorter one did.

defines: Form, escaped_turns, escaped_tools, all_texts, as_text, messages_of
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from .escape import Escape
from .thinking import ThinkingFormat
from .tool_formats import Tool, ToolCall, ToolFormat, ToolResult, canonical_json
from .turns import (
    BLOCK_SEPARATOR,
    TURN_SEPARATOR,
    Block,
    Text,
    Thinking,
    ToolList,
    Turn,
    merged,
    said,
)

CALL_ID_DIGITS = 9
"""Of the ids that templates see: some insist on nine letters or digits."""


class Form(msgspec.Struct):
    """How this model's conversations are written."""

    tool_format: ToolFormat
    thinking_format: ThinkingFormat | None
    thinking_by_template: bool
    """Its template shows a message's reasoning_content."""
    calls_in_text: bool = True
    """Calls are part of a turn's text; otherwise the template writes them."""


# ---- escaping ------------------------------------------------------------------------------------
def all_texts(turns: Sequence[Turn], tools: Sequence[Tool]) -> Iterator[str]:
    """Everything that came from outside."""
    for turn in turns:
        for block in turn.blocks:
            match block:
                case Text(text=text) | Thinking(text=text) | ToolResult(text=text):
                    yield text
                case ToolCall():
                    yield block.name + block.arguments
                case ToolList():
                    yield from map(_tool_text, block.tools)
    yield from map(_tool_text, tools)


def _tool_text(tool: Tool) -> str:
    return msgspec.json.encode(tool).decode()


def escaped_turns(turns: Sequence[Turn], escape: Escape, marker: str, form: Form) -> list[Turn]:
    """The turns with no text that reads like a control token."""

    def escaped(block: Block) -> Block:
        match block:
            case Text(text=text):
                return Text(escape.text(text, marker))
            case Thinking(text=text):
                return Thinking(escape.text(text, marker))
            case ToolCall(id=id, name=name, arguments=arguments):
                if form.calls_in_text:
                    # As they are written, which may be as the model wrote them.
                    shown = escape.text(arguments, marker)
                else:
                    shown = canonical_json(escape.json(arguments.encode(), marker))
                return ToolCall(id, escape.text(name, marker), shown)
            case ToolResult(call_id=call_id, text=text, is_error=is_error):
                return ToolResult(call_id, escape.text(text, marker), is_error)
            case ToolList(tools=tools):
                return ToolList(tuple(escaped_tools(tools, escape, marker)))

    return [Turn(turn.role, tuple(map(escaped, turn.blocks))) for turn in turns]


def escaped_tools(tools: Iterable[Tool], escape: Escape, marker: str) -> list[Tool]:
    return [
        Tool(
            tool.name,  # of letters and digits
            escape.text(tool.description, marker),
            escape.json(msgspec.json.encode(tool.schema), marker),
            tool.strict,
        )
        for tool in tools
    ]


# ---- as text -------------------------------------------------------------------------------------
def as_text(turns: Sequence[Turn], tools: Sequence[Tool], form: Form) -> list[Turn]:
    """system, user and assistant turns of nothing but text: tools told in the first system turn,
    results in a user turn."""
    shown: list[Turn] = []
    for turn in turns:
        if turn.role == "assistant":
            shown.append(said("assistant", answer_text(turn, form, with_thinking=True)))
        elif turn.role == "tool":
            shown.append(said("user", _results_text(turn.blocks, form.tool_format)))
        else:
            shown.append(said(turn.role, told_text(turn.blocks, form.tool_format)))
    shown = merged(shown)
    if tools:
        told = form.tool_format.describe(tools)
        if shown and shown[0].role == "system":
            shown[0] = said("system", shown[0].text + TURN_SEPARATOR + told)
        else:
            shown.insert(0, said("system", told))
    return shown


def told_text(blocks: Iterable[Block], tool_format: ToolFormat) -> str:
    """Of a system or user turn."""
    texts: list[str] = []
    for block in blocks:
        if isinstance(block, Text):
            texts.append(block.text)
        elif isinstance(block, ToolList):
            texts.append(tool_format.describe(block.tools))
    return BLOCK_SEPARATOR.join(texts)


def answer_text(turn: Turn, form: Form, *, with_thinking: bool) -> str:
    """Of an assistant turn: what was said, and calls where they were made."""
    text, tool_format = "", form.tool_format
    for is_call, group in itertools.groupby(turn.blocks, lambda b: isinstance(b, ToolCall)):
        blocks = list(group)
        if is_call:
            calls = [block for block in blocks if isinstance(block, ToolCall)]
            text += (tool_format.text_separator if text else "") + tool_format.calls_text(calls)
            continue
        for block in blocks:
            if isinstance(block, Text):
                text += (BLOCK_SEPARATOR if text else "") + block.text
            elif isinstance(block, Thinking) and with_thinking and form.thinking_format:
                text += form.thinking_format.text(block.text)
    return text


def _results_text(blocks: Sequence[Block], tool_format: ToolFormat) -> str:
    return BLOCK_SEPARATOR.join(map(tool_format.result_text, _results(blocks, tool_format)))


def _results(blocks: Sequence[Block], tool_format: ToolFormat) -> list[ToolResult]:
    """Results with the tools that they name told inside them."""
    results: list[ToolResult] = []
    for block in blocks:
        if isinstance(block, ToolResult):
            results.append(block)
        elif isinstance(block, ToolList) and results:
            last = results.pop()
            told = tool_format.describe(block.tools)
            text = f"{last.text}{BLOCK_SEPARATOR}{told}" if last.text else told
            results.append(ToolResult(last.call_id, text, last.is_error))
    return results


# ---- as messages ---------------------------------------------------------------------------------
def messages_of(turns: Sequence[Turn], form: Form) -> list[dict[str, Any]]:
    """What a chat template is given. Calls are numbered in their order: whatever ids a client
    uses, the prompt is the same."""
    messages: list[dict[str, Any]] = []
    numbers: dict[str, str] = {}
    names: dict[str, str] = {}
    for turn in turns:
        if turn.role == "assistant":
            for call in turn.calls:
                numbers[call.id] = str(len(numbers) + 1).zfill(CALL_ID_DIGITS)
                names[call.id] = call.name
            messages.append(_answer(turn, form, numbers))
        elif turn.role == "tool":
            for result in _results(turn.blocks, form.tool_format):
                messages.append(
                    {
                        "role": "tool",
                        "content": form.tool_format.result_content(result),
                        "tool_call_id": numbers.get(result.call_id, ""),
                        "name": names.get(result.call_id, ""),
                    }
                )
        else:
            text = told_text(turn.blocks, form.tool_format)
            messages.append({"role": turn.role, "content": text})
    return messages


def _answer(turn: Turn, form: Form, numbers: dict[str, str]) -> dict[str, Any]:
    by_template = form.thinking_by_template
    if form.calls_in_text:
        text = answer_text(turn, form, with_thinking=not by_template)
    else:
        others = tuple(block for block in turn.blocks if not isinstance(block, ToolCall))
        said_too = Turn(turn.role, others) if others else None  # often a turn is calls alone
        text = answer_text(said_too, form, with_thinking=not by_template) if said_too else ""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    thoughts = [block.text for block in turn.blocks if isinstance(block, Thinking)]
    if thoughts and by_template:
        message["reasoning_content"] = BLOCK_SEPARATOR.join(thoughts)
    if turn.calls and not form.calls_in_text:
        message["tool_calls"] = [
            {
                "id": numbers[call.id],
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": msgspec.json.decode(call.arguments),
                },
            }
            for call in turn.calls
        ]
    return message
