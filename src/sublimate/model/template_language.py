"""What chat templates use of Jinja2 and Python that minijinja lacks: methods of strings and lists,
filters with all their arguments, `%`, and `tojson` as transformers defines it.

minijinja takes filters and functions, but no methods, so `translated` turns calls of the methods
below into calls of a function.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from json import dumps
from typing import Any, cast

INDENT_MAX = 8
"""Largest `indent` of JSON, in spaces for each level."""
WIDTH_MAX = 1 << 16
"""Characters to which a template may pad a text."""
FUNCTION = "sublimate_call"
PERCENT = "sublimate_percent"


class LanguageError(ValueError):
    """A template used a method or filter otherwise than Python or Jinja2 allow."""


class SizeError(Exception):
    """A template asked for more spaces than one may have."""


# ---- methods -------------------------------------------------------------------------------------
TEXT_METHODS = frozenset(
    """removeprefix removesuffix index rindex rsplit partition rpartition zfill ljust rjust center
    swapcase casefold expandtabs isidentifier istitle isprintable""".split()
)
LIST_METHODS = frozenset(("index", "count"))
PADDED = frozenset(("zfill", "ljust", "rjust", "center", "expandtabs"))
# `count` of texts and lists is minijinja's own; `index` is neither's.
TRANSLATED = TEXT_METHODS | {"index"}

CLOSERS = {"{{": "}}", "{%": "%}", "{#": "#}"}
OPENER = re.compile(r"\{[{%#]")
RAW = re.compile(r"[-+]?\s*raw\s*[-+]?")
END_OF_RAW = re.compile(r"\{%[-+]?\s*endraw\s*[-+]?%\}")
TAG_CHARACTERS_MAX = 1 << 15
"""Longer ones are left as they are, so that a template costs what its length says."""
TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\d+(?:\.\d+)?|\w+|\s+|.""",
    re.DOTALL,
)
OPENERS = {")": "(", "]": "[", "}": "{"}
WORDS = frozenset("and or not in is if else for set elif do return".split())


def translated(source: str) -> str:
    """The source with calls of TRANSLATED methods, and `%` behind a quoted text, as calls of
    FUNCTION and PERCENT."""
    pieces: list[str] = []
    place = 0
    while opener := OPENER.search(source, place):
        end = source.find(CLOSERS[opener[0]], opener.end())
        if end < 0:
            break
        inner = source[opener.end() : end]
        if opener[0] == "{%" and RAW.fullmatch(inner):
            closer = END_OF_RAW.search(source, end)
            end = closer.start() if closer is not None else len(source)
        elif opener[0] != "{#" and ("." in inner or "%" in inner):
            pieces += [source[place : opener.end()], _translated_tag(inner)]
            place = end
        pieces.append(source[place : end + 2])
        place = end + 2
    pieces.append(source[place:])
    return "".join(pieces)


def _translated_tag(inner: str) -> str:
    if len(inner) > TAG_CHARACTERS_MAX:
        return inner
    tokens = TOKEN.findall(inner)
    for at in range(len(tokens) - 1, -1, -1):
        if tokens[at] in TRANSLATED and tokens[at + 1 : at + 2] == ["("]:
            _rewrite_method(tokens, at)
        elif tokens[at] == "%":
            _rewrite_percent(tokens, at)
    return "".join(tokens)


def _rewrite_method(tokens: list[str], at: int) -> None:
    """`EXPRESSION.name(` becomes `FUNCTION(EXPRESSION, "name", `: same number of tokens."""
    if at < 2 or tokens[at - 1] != ".":
        return
    start = _start_of(tokens, at - 2)
    is_empty = "".join(tokens[at + 2 : at + 3]) == ")"
    tokens[start] = f"{FUNCTION}({tokens[start]}"
    tokens[at - 1], tokens[at] = ", ", f'"{tokens[at]}"'
    tokens[at + 1] = "" if is_empty else ", "


def _rewrite_percent(tokens: list[str], at: int) -> None:
    """`"text" % value` becomes `PERCENT("text", value)`; of numbers it is left alone."""
    before, after = at - 1, at + 1
    while before >= 0 and tokens[before].isspace():
        before -= 1
    while after < len(tokens) and tokens[after].isspace():
        after += 1
    if before < 0 or tokens[before][0] not in "'\"" or after >= len(tokens):
        return
    end = _end_of(tokens, after)
    tokens[before] = f"{PERCENT}({tokens[before]}"
    tokens[at] = ","
    tokens[end] += ")"


def _start_of(tokens: list[str], at: int) -> int:
    """First token of the names, calls and subscripts that end at `at`."""
    while at > 0:
        if tokens[at] in OPENERS:
            at = _matching(tokens, at)
            is_attached = at > 0 and (tokens[at - 1][-1].isalnum() or tokens[at - 1] in ')]"_')
            if tokens[at] == "{" or not is_attached or tokens[at - 1] in WORDS:
                return at
            at -= 1
        elif tokens[at - 1] == ".":
            at -= 2
        else:
            return at
    return at


def _end_of(tokens: list[str], at: int) -> int:
    """Last token of the names, calls and subscripts that begin at `at`."""
    closers = {opener: closer for closer, opener in OPENERS.items()}
    while True:
        if tokens[at] in closers:
            depth, closer = 0, closers[tokens[at]]
            opener = tokens[at]
            while at < len(tokens) - 1:
                depth += (tokens[at] == opener) - (tokens[at] == closer)
                if not depth:
                    break
                at += 1
        following = tokens[at + 1] if at + 1 < len(tokens) else ""
        if following == "." and at + 2 < len(tokens):
            at += 2
        elif following in ("(", "["):
            at += 1
        else:
            return at


def _matching(tokens: list[str], at: int) -> int:
    closer, opener, depth = tokens[at], OPENERS[tokens[at]], 0
    while at > 0:
        depth += (tokens[at] == closer) - (tokens[at] == opener)
        if not depth:
            return at
        at -= 1
    return at


def call_method(value: Any, name: str, *arguments: Any, **named: Any) -> Any:
    """What Python's method of that name returns. Raises LanguageError, SizeError."""
    methods = {str: TEXT_METHODS, list: LIST_METHODS, tuple: LIST_METHODS}
    kind = cast("type[Any]", type(value))
    if name not in methods.get(kind, ()):
        raise LanguageError(f"{kind.__name__} has no method {name}")
    if name in PADDED and any(isinstance(a, int) and a > WIDTH_MAX for a in arguments):
        raise SizeError
    return getattr(value, name)(*arguments, **named)


def percent(text: str, value: Any) -> str:
    """`text % value` of Python, with widths that are bounded. Raises LanguageError, SizeError."""
    widths = re.findall(r"%[-+ #0]*(\d+|\*)|\.(\d+|\*)", text)
    if any(not w.isdigit() or int(w) > WIDTH_MAX for pair in widths for w in pair if w):
        raise SizeError
    values: Any = value
    if isinstance(value, list):
        values = tuple(cast("list[Any]", value))
    return text % values


# ---- filters -------------------------------------------------------------------------------------
def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers defines it: json.dumps with these arguments."""
    if indent is not None and indent > INDENT_MAX:
        raise SizeError  # a template of 30 letters could ask for gigabytes of spaces
    if separators is not None and sum(map(len, separators)) > INDENT_MAX:
        raise SizeError
    return dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=(separators[0], separators[1]) if separators is not None else None,
        sort_keys=sort_keys,
    )


def truncate(
    text: str, length: int = 255, killwords: bool = False, end: str = "...", leeway: int = 5
) -> str:
    """As the filter of Jinja2."""
    if len(text) <= length + leeway:
        return text
    cut = text[: max(length - len(end), 0)]
    return (cut if killwords else cut.rsplit(" ", 1)[0]) + end


def center(text: str, width: int = 80) -> str:
    return call_method(text, "center", width)


def wordwrap(
    text: str,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str = "\n",
    break_on_hyphens: bool = True,
) -> str:
    """As the filter of Jinja2."""
    lines = [
        wrapstring.join(
            textwrap.wrap(
                line,
                width=width,
                expand_tabs=False,
                replace_whitespace=False,
                break_long_words=break_long_words,
                break_on_hyphens=break_on_hyphens,
            )
        )
        for line in text.splitlines()
    ]
    return wrapstring.join(lines)


def wordcount(text: str) -> int:
    return len(re.findall(r"\w+", text))


def dictsort(
    value: Mapping[str, Any], case_sensitive: bool = False, by: str = "key", reverse: bool = False
) -> list[tuple[str, Any]]:
    """As the filter of Jinja2."""
    if by not in ("key", "value"):
        raise LanguageError("dictsort sorts by key or by value")

    def key(item: tuple[str, Any]) -> Any:
        part = item[by == "value"]
        return part.lower() if isinstance(part, str) and not case_sensitive else part

    return sorted(value.items(), key=key, reverse=reverse)


FILTERS: dict[str, Callable[..., Any]] = {
    "tojson": to_json,
    "truncate": truncate,
    "center": center,
    "wordwrap": wordwrap,
    "wordcount": wordcount,
    "dictsort": dictsort,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {FUNCTION: call_method, PERCENT: percent}
