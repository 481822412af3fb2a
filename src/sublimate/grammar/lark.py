"""Grammars as text, in the library's dialect of Lark: calls, documents, and what stands before.

defines: Arguments, document, forced_calls, call_in_text, bare_call_or_text, thinking_or,
         after_thinking, alone
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..model.tool_formats import ToolFormat

HEAD = "%llguidance {}\n"
TEXT = "TEXT: /(.|\\n)*/\n"
SPACE = "SPACE: /[ \\t\\r\\n]{0,16}/\n"

Arguments = Mapping[str, dict[str, Any]]
"""Name of a tool -> the schema of its arguments, enforceable."""


def document(schema: dict[str, Any], tools: ToolFormat, rule: str = "main") -> str:
    """One JSON document as canonical_json spaces it."""
    options = {
        "item_separator": tools.item_separator,
        "key_separator": tools.key_separator,
        "whitespace_flexible": False,
        "coerce_one_of": True,
    }
    return f"{rule}: %json {_json({**schema, 'x-guidance': options})}\n"


def forced_calls(tools: ToolFormat, arguments: Arguments, several: bool, rule: str) -> str:
    """An answer that is calls from its beginning."""
    heads = {name: tools.call_head(name) for name in arguments}
    return _calls(tools, arguments, heads, rule, tools.before_calls, several)


def call_in_text(tools: ToolFormat, arguments: Arguments, several: bool) -> str:
    """Text up to an opening, and what has to follow it. Formats with a list of calls have the whole
    list, the others one call."""
    first = tools.openings[0]
    before = tools.before_calls.removeprefix(first)
    heads = {name: tools.call_head(name) for name in arguments}
    if not tools.before_calls:
        heads = {name: head.removeprefix(first) for name, head in heads.items()}
    lines = [TEXT, _calls(tools, arguments, heads, "rest", before, several and bool(before))]
    options: list[str] = []
    for index, opening in enumerate(tools.openings):
        lines.append(f"opening_{index}[lazy]: TEXT {_json(opening)}\n")
        options.append(f"opening_{index} rest")
    return f"{HEAD}start: {' | '.join(options)}\n{''.join(lines)}"


def bare_call_or_text(tools: ToolFormat, arguments: Arguments) -> str:
    """The beginning of an answer of a family whose calls have no opening: a call, or text that
    does not begin like one."""
    openings = "".join(f"{_json(opening)} SPACE rest | " for opening in tools.openings)
    heads = {name: tools.call_head(name).removeprefix(tools.openings[0]).lstrip()
             for name in arguments}  # fmt: skip
    return (
        f"{HEAD}start: rest | {openings}OTHER\n{SPACE}"
        "OTHER: /[ \\t\\r\\n]*[^ \\t\\r\\n{](.|\\n)*/\n"
        + _calls(tools, arguments, heads, "rest", "", False)
    )


def thinking_or(opening: str, main: str) -> str:
    """The beginning of a thinking block, or the answer itself."""
    return f"{HEAD}start: SPACE {_json(opening)} | main\n{SPACE}{main}"


def after_thinking(closing: str, main: str) -> str:
    """The rest of a thinking block, then the answer itself."""
    return (
        f"{HEAD}start: closing SPACE main\n{TEXT}{SPACE}"
        f"closing[lazy]: TEXT {_json(closing)}\n{main}"
    )


def alone(main: str) -> str:
    """The answer itself."""
    return f"{HEAD}start: main\n{main}"


def _calls(
    tools: ToolFormat,
    arguments: Arguments,
    heads: Mapping[str, str],
    rule: str,
    before: str,
    several: bool,
) -> str:
    """A rule for calls, and those below it."""
    lines: list[str] = []
    names: list[str] = []
    for index, (name, schema) in enumerate(arguments.items()):
        names.append(f"{rule}_{index}")
        head, tail = (_literal(text) for text in (heads[name], tools.call_tail))
        lines.append(f"{rule}_{index}: {head} {rule}_arguments_{index} {tail}\n")
        lines.append(document(schema, tools, f"{rule}_arguments_{index}"))
    more = f" ({_literal(tools.between_calls)} {rule}_call)*" if several else ""
    before, after = _literal(before), _literal(tools.after_calls)
    return (
        f"{rule}: {before} {rule}_call{more} {after}\n{rule}_call: {' | '.join(names)}\n"
        + "".join(lines)
    )


def _literal(text: str) -> str:
    return _json(text) if text else ""


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
