"""Slow twin of BlockSplitter (core/text/blocks.h): whole texts, searched and parsed each time anew.

defines: Format, Block, Lenient, split, check_pieces
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sublimate import _core

WHITE = " \n\t\r"
DEPTH_MAX = _core.LIMITS["CALL_DEPTH_MAX"]
NAME_MAX = _core.LIMITS["TOOL_NAME_BYTES_MAX"]
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
NUMBER_SO_FAR = re.compile(r"-?((0|[1-9][0-9]*)((\.[0-9]*)?((?<=[0-9])[eE][+-]?[0-9]*)?)?)?")
NAME_RUN = re.compile(r"[A-Za-z0-9_.-]*")
ID_RUN = re.compile(r"[A-Za-z0-9]*")
WHOLE_ID = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True)
class Format:
    """The fields of BlockFormat."""

    tool_names: Sequence[str] = ()
    openings: Sequence[str] = ()
    closing: str = ""
    name_end: str = ""
    id_opening: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    bare: bool = False
    eager: bool = False
    thinking_opening: str = ""
    thinking_closing: str = ""
    omit_thinking: bool = False
    begins_in: str = ""
    lenient: bool = False
    several: bool = True
    lenient_markers: Sequence[tuple[str, str]] = ()
    string_parameters: Sequence[tuple[str, str]] = ()

    def native(self, marker_tokens: Sequence[tuple[int, str]] = ()) -> _core.BlockFormat:
        return _core.BlockFormat(
            tool_names=list(self.tool_names), openings=list(self.openings), closing=self.closing,
            name_end=self.name_end, id_opening=self.id_opening, name_key=self.name_key,
            arguments_key=self.arguments_key, bare=self.bare, eager=self.eager,
            thinking_opening=self.thinking_opening, thinking_closing=self.thinking_closing,
            omit_thinking=self.omit_thinking, begins_in=self.begins_in,
            marker_tokens=marker_tokens, lenient=self.lenient, several=self.several,
            lenient_markers=self.lenient_markers, string_parameters=self.string_parameters,
        )  # fmt: skip


@dataclass
class Block:
    kind: str
    text: str
    """Of a tool_use its arguments."""
    name: str = ""
    ended: bool = False
    cut: bool = False
    """A call whose arguments were closed for the model."""


# ---- JSON ---------------------------------------------------------------------------------------


class BadError(Exception):
    """The text at `at` begins nothing valid."""

    def __init__(self, at: int) -> None:
        self.at = at


class CutError(Exception):
    """The text ends too early to tell."""


class Json:
    """Recursive descent over text[at:], which begins an object. `safe`: where it could be closed,
    and with what."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.stack: list[str] = []
        self.safe = (0, "")

    def peek(self, at: int) -> str:
        if at >= len(self.text):
            raise CutError
        return self.text[at]

    def white(self, at: int) -> int:
        while at < len(self.text) and self.text[at] in WHITE:
            at += 1
        return at

    def mark(self, at: int, inside: str = "") -> None:
        self.safe = (at, inside + "".join(reversed(self.stack)))

    def expect(self, at: int, wanted: str) -> int:
        at = self.white(at)
        if self.peek(at) != wanted:
            raise BadError(at)
        return at + 1

    def string(self, at: int, is_value: bool) -> int:
        """at: behind the quote. Returns the end, its quote included."""
        half = False
        while True:
            if is_value and not half:
                self.mark(at, '"')
            character = self.peek(at)
            if character == "\\":
                escape = self.peek(at + 1)
                if escape == "u":
                    for i in range(at + 2, at + 6):
                        if self.peek(i) not in "0123456789abcdefABCDEF":
                            raise BadError(i)
                    unit = int(self.text[at + 2 : at + 6], 16)
                    if (0xDC00 <= unit < 0xE000) != half:
                        raise BadError(at + 5)
                    half = 0xD800 <= unit < 0xDC00
                    at += 6
                    continue
                if half or escape not in '"\\/bfnrt':
                    raise BadError(at + 1)
                at += 2
                continue
            if half or character < " ":
                raise BadError(at)
            at += 1
            if character == '"':
                return at

    def number(self, at: int) -> int:
        end = at
        while end < len(self.text) and NUMBER_SO_FAR.fullmatch(self.text, at, end + 1):
            end += 1
        self.peek(end)
        # No digit follows a leading zero.
        if not NUMBER.fullmatch(self.text, at, end) or self.text[end] in "0123456789":
            raise BadError(end)
        return end

    def value(self, at: int) -> int:
        at = self.white(at)
        first = self.peek(at)
        if first in "{[":
            return self.container(at)
        if first == '"':
            end = self.string(at + 1, is_value=True)
        elif first in "tfn":
            word = {"t": "true", "f": "false", "n": "null"}[first]
            for i, letter in enumerate(word):
                if self.peek(at + i) != letter:
                    raise BadError(at + i)
            end = at + len(word)
        else:
            end = self.number(at)
        self.mark(end)
        return end

    def container(self, at: int) -> int:
        if len(self.stack) == DEPTH_MAX:
            raise BadError(at)
        is_object = self.text[at] == "{"
        shut = "}" if is_object else "]"
        self.stack.append(shut)
        at += 1
        at = self.white(at)
        self.mark(at)
        if self.peek(at) != shut:
            while True:
                if is_object:
                    at = self.expect(at, '"')
                    key = at
                    at = self.string(at, is_value=False)
                    at = self.member(self.text[key : at - 1], at)
                else:
                    at = self.value(at)
                at = self.white(at)
                self.mark(at)
                if self.peek(at) == shut:
                    break
                at = self.expect(at, ",")
        self.stack.pop()
        self.mark(at + 1)
        return at + 1

    def member(self, key: str, at: int) -> int:
        return self.value(self.expect(at, ":"))


class Call(Json):
    """The object of a call, or of its arguments alone. What is known of it survives an error."""

    def __init__(self, text: str, form: Format, name: str = "") -> None:
        super().__init__(text)
        self.form = form
        self.name = name
        self.arguments: tuple[int, int] | None = None
        self.opened = -1
        """Where the arguments begin that an eager format has shown."""
        self.is_alone = False

    def member(self, key: str, at: int) -> int:
        if len(self.stack) > 1 or self.is_alone:
            return super().member(key, at)
        form = self.form
        is_name, is_arguments = key == form.name_key, key == form.arguments_key
        if not (is_name or is_arguments or self.name or key in ("type", "id")):
            raise BadError(at - 1)
        at = self.white(self.expect(at, ":"))
        first = self.peek(at)
        if is_name:
            if first != '"' or self.name:
                raise BadError(at)
            end = self.value(at)
            if self.text[at + 1 : end - 1] not in form.tool_names:
                raise BadError(end - 1)
            self.name = self.text[at + 1 : end - 1]
            return end
        if is_arguments:
            if first != "{" or self.arguments is not None:
                raise BadError(at)
            if form.eager and self.name:
                self.opened = at
            end = self.value(at)
            self.arguments = (at, end)
            return end
        return self.value(at)

    def whole(self, at: int) -> int:
        end = self.container(at)
        if not self.name or self.arguments is None:
            raise BadError(end - 1)
        return end

    def alone(self, at: int) -> int:
        """The arguments without an object around them."""
        self.is_alone = True
        if self.form.eager:
            self.opened = at
        end = self.container(at)
        self.arguments = (at, end)
        return end


# ---- calls in other spellings -------------------------------------------------------------------

HELD_MAX = _core.LIMITS["LENIENT_CALLS_BYTES_MAX"]
TAG_STYLES = (
    ("<function=", ">", "</function>", "<parameter=", ">", "</parameter>"),
    ('<function name="', '">', "</function>", '<param name="', '">', "</param>"),
    ('<invoke name="', '">', "</invoke>", '<parameter name="', '">', "</parameter>"),
)
WORDS = {"true": "true", "false": "false", "null": "null",
         "True": "true", "False": "false", "None": "null"}  # fmt: skip
WORD_RUN = re.compile(r"[A-Za-z0-9_]*")
QUOTES = ('<|"|>', "<escape>")


class Lenient:
    """The grammar of core/text/call_reader.h, over the text from `at` on: `run` raises BadError,
    where it is none, or CutError, and then `is_whole` says whether it is calls if it ends here."""

    def __init__(self, text: str, at: int, form: Format, after_space: bool) -> None:
        self.text, self.at, self.form = text, at, form
        self.begin = -1 if after_space else at
        """Where nothing but a marker may stand."""
        self.calls: list[tuple[str, str]] = []
        self.is_whole = False
        self.depth = 0

    def peek(self) -> str:
        if self.at >= len(self.text):
            raise CutError
        return self.text[self.at]

    def bad(self) -> BadError:
        return BadError(self.at)

    def space(self) -> None:
        while self.peek() in WHITE:
            self.at += 1

    def choose(self, texts: Iterable[str]) -> str | None:
        rest = self.text[self.at :]
        if any(len(text) > len(rest) and text.startswith(rest) for text in texts):
            raise CutError
        found = max((text for text in texts if rest.startswith(text)), key=len, default=None)
        self.at += len(found or "")
        return found

    def need(self, *texts: str) -> str:
        found = self.choose(texts)
        if found is None:
            raise self.bad()
        return found

    def deeper(self, change: int) -> None:
        if change > 0 and self.depth == DEPTH_MAX:
            raise self.bad()
        self.depth += change

    def run(self) -> None:
        while True:
            self.is_whole = False
            self.item(is_marked=False)
            self.is_whole = True
            self.separator()

    def separator(self) -> None:
        self.space()
        if self.peek() in ",;":
            self.is_whole = False
            self.at += 1
            self.space()

    def item(self, is_marked: bool) -> None:
        pairs = dict(reversed(self.form.lenient_markers))
        styles = {style[0]: style for style in TAG_STYLES}
        opening = self.choose([*pairs, *styles])
        if opening in pairs:
            self.marked(pairs[opening])
        elif opening is not None:
            self.tagged(styles[opening])
        elif self.at == self.begin:
            raise self.bad()
        elif self.peek() == "{":
            self.object()
        elif self.peek() == "[":
            self.list()
        else:
            self.named(is_marked)

    def marked(self, closing: str) -> None:
        self.deeper(+1)
        while True:
            self.space()
            self.is_whole = False
            self.item(is_marked=True)
            if not closing:
                break
            self.is_whole = True
            self.space()
            if self.choose([closing]):
                break
            self.separator()
        self.deeper(-1)

    def object(self) -> None:
        call: dict[str, str] = {}
        self.members(call)
        if set(call) != {"name", "arguments"}:
            raise self.bad()
        self.calls.append((call["name"], call["arguments"]))

    def members(self, call: dict[str, str]) -> None:
        self.deeper(+1)
        is_inner = False
        byte = ","
        while byte == ",":
            self.at += 1
            self.space()
            keys = ("name", "arguments", "parameters", "type", "id", "function")
            key = self.need(*(f"{quote}{key}{quote}" for key in keys for quote in "\"'"))[1:-1]
            self.space()
            self.need(":")
            self.space()
            byte = self.peek()
            if key in ("arguments", "parameters"):
                if byte != "{" or "arguments" in call:
                    raise self.bad()
                call["arguments"] = self.literal(False)
            elif key == "function" and byte == "{":
                if "name" in call or is_inner:
                    raise self.bad()
                is_inner = True
                byte = ","
                continue
            elif byte not in ("'", '"'):
                raise self.bad()
            elif key in ("name", "function"):
                if "name" in call:
                    raise self.bad()
                self.at += 1
                call["name"] = self.name()
                self.need(byte)
            else:
                self.string()
            self.space()
            byte = self.peek()
            if byte == "}" and is_inner:
                is_inner = False
                self.at += 1
                self.space()
                byte = self.peek()
        if byte != "}":
            raise self.bad()
        self.at += 1
        self.deeper(-1)

    def list(self) -> None:
        byte = ","
        while byte == ",":
            self.at += 1
            self.space()
            if self.peek() == "{":
                self.object()
            else:
                self.named(is_marked=False)
            self.space()
            byte = self.peek()
        self.need("]")

    def named(self, is_marked: bool) -> None:
        is_dialect = is_marked and self.choose(["call:"]) is not None
        name = self.name()
        byte = self.peek()
        if is_dialect and byte == "{":
            arguments = self.literal(True)
        elif not is_dialect and byte == "(":
            arguments = self.keywords()
        elif is_marked and not is_dialect:
            if self.choose(["[CALL_ID]"]):
                begin = self.at
                while self.peek() in WHOLE_ID and self.at - begin < NAME_MAX:
                    self.at += 1
            self.need("[ARGS]", "<\uff5ctool\u2581sep\uff5c>")
            self.space()
            if self.peek() != "{":
                raise self.bad()
            arguments = self.literal(False)
        else:
            raise self.bad()
        self.calls.append((name, arguments))

    def keywords(self) -> str:
        self.at += 1
        self.space()
        members: list[str] = []
        while self.peek() != ")":
            key = self.word()
            self.space()
            self.need("=")
            self.space()
            members.append(f"{key}: {self.literal(False)}")
            self.space()
            if self.peek() == ")":
                break
            self.need(",")
            self.space()
        self.at += 1
        return "{" + ", ".join(members) + "}"

    def name(self) -> str:
        begin = self.at
        names = self.form.tool_names
        while self.peek() and any(n.startswith(self.text[begin : self.at + 1]) for n in names):
            self.at += 1
        if self.text[begin : self.at] not in names:
            raise self.bad()
        return self.text[begin : self.at]

    def tagged(self, style: tuple[str, ...]) -> None:
        _, name_end, closing, parameter, key_end, parameter_end = style
        name = self.name()
        self.need(name_end)
        self.space()
        arguments = self.literal(False) if self.peek() == "{" else ""
        members: list[str] = []
        while True:
            self.space()
            if self.need(closing, *([] if arguments else [parameter])) == closing:
                break
            key = self.word()
            self.need(key_end)
            text = self.enclosed(parameter_end)
            members.append(f"{key}: {self.typed(name, key[1:-1], text)}")
        self.calls.append((name, arguments or "{" + ", ".join(members) + "}"))

    def typed(self, name: str, key: str, text: str) -> str:
        text = text.removeprefix("\n").removesuffix("\n")
        reader = Json('{"":' + text + "}")
        is_value = (name, key) not in self.form.string_parameters
        try:
            end = reader.white(reader.value(reader.white(4))) if is_value else -1
        except (BadError, CutError):
            end = -1
        return text if end == len(reader.text) - 1 else written(text)

    def literal(self, has_bare_keys: bool) -> str:
        first = self.peek()
        if first in "{[":
            return self.container(has_bare_keys)
        if first in "\"'":
            return self.string()
        if first in "-0123456789":
            return self.number()
        if has_bare_keys and (quote := self.choose(QUOTES)):
            return written(self.enclosed(quote))
        return WORDS[self.need(*WORDS)]

    def container(self, has_bare_keys: bool) -> str:
        self.deeper(+1)
        is_object = self.peek() == "{"
        closer = "}" if is_object else "]"
        self.at += 1
        self.space()
        parts: list[str] = []
        while self.peek() != closer:
            key = ""
            if is_object:
                if has_bare_keys and WORD_RUN.fullmatch(self.peek()):
                    key = self.word()
                elif self.peek() in "\"'":
                    key = self.string()
                else:
                    raise self.bad()
                self.space()
                self.need(":")
                self.space()
                key += ": "
            parts.append(key + self.literal(has_bare_keys))
            self.space()
            if self.peek() == closer:
                break
            self.need(",")
            self.space()
            if self.peek() == closer:
                raise self.bad()
        self.at += 1
        self.deeper(-1)
        return ("{" if is_object else "[") + ", ".join(parts) + closer

    def word(self) -> str:
        match = WORD_RUN.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        self.peek()
        if not match[0]:
            raise self.bad()
        return f'"{match[0]}"'

    def string(self) -> str:
        quote = self.text[self.at]
        self.at += 1
        out = '"'
        while (byte := self.peek()) != quote:
            if byte < " ":
                raise self.bad()
            if byte == "\\":
                out += self.escape()
                continue
            out += '\\"' if byte == '"' else byte
            self.at += 1
        self.at += 1
        return out + '"'

    def escape(self) -> str:
        self.at += 1
        byte = self.peek()
        if byte == "u":
            unit = self.code_unit()
            if 0xDC00 <= unit < 0xE000:
                raise self.bad()
            out = f"\\u{self.text[self.at - 4 : self.at]}"
            if not 0xD800 <= unit < 0xDC00:
                return out
            self.need("\\")
            if self.peek() != "u" or not 0xDC00 <= self.code_unit() < 0xE000:
                raise self.bad()
            return out + f"\\u{self.text[self.at - 4 : self.at]}"
        if byte not in "\"\\/bfnrt'":
            raise self.bad()
        self.at += 1
        return "'" if byte == "'" else "\\" + byte

    def code_unit(self) -> int:
        self.at += 1
        for _ in range(4):
            if self.peek() not in "0123456789abcdefABCDEF":
                raise self.bad()
            self.at += 1
        return int(self.text[self.at - 4 : self.at], 16)

    def enclosed(self, closing: str) -> str:
        begin = self.at
        while not self.choose([closing]):
            self.at += 1
        return self.text[begin : self.at - len(closing)]

    def number(self) -> str:
        begin = self.at
        while self.peek() in "0123456789+-.eE":
            self.at += 1
        if not NUMBER.fullmatch(self.text, begin, self.at):
            raise self.bad()
        return self.text[begin : self.at]


def written(text: str) -> str:
    """As core/text/json.cpp writes a string."""
    return json.dumps(text, ensure_ascii=False)


# ---- blocks -------------------------------------------------------------------------------------


class Splitter:
    def __init__(self, text: str, form: Format, ended: bool, cut: bool) -> None:
        self.text, self.form, self.ended = text, form, ended
        self.holds = cut or not ended
        """The beginning of a marker at the end is not shown."""
        self.blocks: list[Block] = []
        self.at = 0
        """Everything before it is decided."""
        self.fresh = form.begins_in != "text"
        self.after_marker = False
        self.base = 0
        """Where the text behind the last marker begins."""
        self.is_continued = not self.fresh
        """What precedes the base is not known."""

    def skip_to(self, at: int) -> None:
        """What precedes was a marker, a call or thinking."""
        self.at = self.base = at
        self.is_continued = False

    def may_be_lenient(self, at: int) -> bool:
        """Calls in another spelling may begin here."""
        form = self.form
        if not form.lenient or not form.tool_names or self.text[at] in WHITE:
            return False
        before = "x" * self.is_continued + self.text[self.base : at]
        lines = before.split("\n")
        if sum(line.lstrip(WHITE).startswith("```") for line in lines) % 2:
            return False
        is_blank = not lines[-1].strip(WHITE)
        rest = self.text[at:]
        if rest[0] in "{[" and (not before or before[-1] in WHITE):
            return True
        openings = [o for o, _ in form.lenient_markers if o[0] != "`" or is_blank]
        openings += [style[0] for style in TAG_STYLES]
        if any(rest.startswith(text) or text.startswith(rest) for text in openings):
            return True
        return is_blank and any(name.startswith(rest[0]) for name in form.tool_names)

    def lenient(self, place: int) -> int:
        """Reads what may be calls in another spelling; as `calls`."""
        held = self.text[place:].encode()[:HELD_MAX].decode(errors="ignore")
        end = place + len(held)
        before = "x" * self.is_continued + self.text[self.base : place]
        after_space = not before or before[-1] in WHITE
        reader = Lenient(self.text[:end], place, self.form, after_space)
        try:
            reader.run()
        except BadError:
            end = max(reader.at, place + 1)
        except CutError:
            if end == len(self.text):
                if self.ended and reader.is_whole:
                    self.end_block()
                    calls = reader.calls if self.form.several else reader.calls[:1]
                    self.blocks += [Block("tool_use", a, n, ended=True) for n, a in calls]
                elif self.ended:
                    self.add_text(self.text[self.at :])
                self.at = end
                return -1
        self.show_until(end)
        return end

    def partial(self, marker: str, at: int) -> bool:
        """The text ends within a marker that begins at `at`."""
        return self.holds and marker.startswith(self.text[at:])

    def last(self, kind: str) -> Block | None:
        block = self.blocks[-1] if self.blocks else None
        return block if block and block.kind == kind and not block.ended else None

    def end_block(self) -> None:
        if self.blocks:
            self.blocks[-1].ended = True

    def add_text(self, text: str) -> None:
        block = self.last("text")
        if block is None:
            text = text.lstrip(WHITE) if self.after_marker or not text.strip(WHITE) else text
            if not text:
                return
            self.end_block()
            self.blocks.append(block := Block("text", ""))
            self.fresh = False
        block.text += text

    def show_until(self, end: int) -> None:
        """Text up to `end`, but for the white space at its end."""
        text = self.text[self.at : end].rstrip(WHITE)
        self.add_text(text)
        self.at += len(text)

    def find(self, look: int) -> tuple[int, str, str] | int:
        """(place, kind, marker) of the next marker; else where one may begin, or the end."""
        form = self.form
        while look < len(self.text) and self.text[look] in WHITE:
            look += 1
        tools = list(form.openings) if form.tool_names else []
        for at in range(look, len(self.text)):
            candidates = [("opening", text) for text in tools]
            if at == look and self.fresh:
                if form.tool_names and form.bare and self.text[at] == "{":
                    return at, "bare", ""
                if form.thinking_opening:
                    candidates.insert(0, ("thinking", form.thinking_opening))
            whole = [(k, m) for k, m in candidates if self.text.startswith(m, at)]
            if whole:
                kind, marker = min(whole, key=lambda pair: len(pair[1]))
                return at, kind, marker
            if any(self.partial(marker, at) for _, marker in candidates):
                return at
            if self.may_be_lenient(at):
                return at, "lenient", ""
        return len(self.text)

    def run(self) -> list[Block]:
        if self.form.begins_in == "thinking":
            self.thinking()
        look = self.at
        while self.at < len(self.text):
            found = self.find(look)
            if isinstance(found, int):
                self.show_until(found)
                if self.ended and found == len(self.text):
                    self.add_text(self.text[self.at :])
                break
            place, kind, marker = found
            self.show_until(place)
            if kind == "thinking":
                self.at = place + len(marker)
                self.thinking()
                look = self.at
                continue
            if kind == "lenient":
                look = self.lenient(place)
            else:
                look = self.calls(place + len(marker), kind == "bare")
            if look < 0:
                break
        if self.ended:
            self.end_block()
        return self.blocks

    def thinking(self) -> None:
        text, closing = self.text, self.form.thinking_closing
        at = self.at
        while at < len(text) and text[at] in WHITE:
            at += 1
        if self.partial(self.form.thinking_opening, at):
            self.at = len(text)
            return
        if text.startswith(self.form.thinking_opening, at):
            self.at = at + len(self.form.thinking_opening)
        end = text.find(closing, self.at)
        until = end if end >= 0 else len(text)
        if end < 0:
            starts = range(self.at, len(text))
            until = next((i for i in starts if self.partial(closing, i)), until)
        content = text[self.at : until].strip(WHITE)
        if content:
            self.end_block()
            self.blocks.append(Block("thinking", content, ended=end >= 0))
        if end >= 0:
            self.skip_to(end + len(closing))
        else:
            self.at = len(text)
        self.after_marker = self.after_marker or end >= 0

    def calls(self, at: int, is_bare: bool) -> int:
        """From behind an opening; where to go on looking, or -1 at the end of the text."""
        form = self.form
        in_list = False
        while True:
            call = Call(self.text, form)
            try:
                at = call.white(at)
                if call.peek(at) == "[" and not in_list and not form.name_end:
                    in_list = True
                    at = call.white(at + 1)
                if form.name_end:
                    at = self.header(call, at)
                    end = call.alone(at)
                else:
                    if call.peek(at) != "{":
                        raise BadError(at)
                    end = call.whole(at)
            except BadError as bad:
                return self.give_up(call, bad.at)
            except CutError:
                self.cut(call)
                return -1
            self.show_call(call, end)
            if not in_list:
                break
            at = call.white(end)
            comma = self.text[at : at + 1] == ","
            if comma or self.text[at : at + 1] == "]":
                at += 1
                self.skip_to(at)
            if at == len(self.text) and not comma and self.text[at - 1] != "]":
                self.at = at
                return -1
            if not comma:
                end = self.at
                break
        return self.closing(end) if not is_bare else end

    def header(self, call: Call, at: int) -> int:
        text, form = self.text, self.form
        match = NAME_RUN.match(text, at, at + NAME_MAX + 1)
        assert match is not None
        end = match.end()
        if end == len(text) and end - at <= NAME_MAX:
            raise CutError
        if text[at:end] not in form.tool_names:
            raise BadError(end)
        name = text[at:end]
        identified = bool(form.id_opening) and text.startswith(form.id_opening, end)
        maybe = bool(form.id_opening) and not identified and form.id_opening.startswith(text[end:])
        if identified:
            begin = end + len(form.id_opening)
            match = ID_RUN.match(text, begin, begin + NAME_MAX + 1)
            assert match is not None
            end = match.end()
            if end == len(text) and end - begin <= NAME_MAX:
                raise CutError
        if not text.startswith(form.name_end, end):
            if form.name_end.startswith(text[end:]) or maybe:
                raise CutError
            raise BadError(end)
        end = call.white(end + len(form.name_end))
        if call.peek(end) != "{":
            raise BadError(end)
        call.name = name
        return end

    def show_call(self, call: Call, end: int) -> None:
        assert call.arguments is not None
        self.end_block()
        begin, arguments_end = call.arguments
        arguments = self.text[begin:arguments_end]
        self.blocks.append(Block("tool_use", arguments, call.name, ended=True))
        self.skip_to(end)
        self.fresh = self.after_marker = True

    def closing(self, at: int) -> int:
        """What may follow a call."""
        marker = self.form.closing
        if not marker:
            return at
        while at < len(self.text) and self.text[at] in WHITE:
            at += 1
        if self.text.startswith(marker, at):
            self.skip_to(at + len(marker))
            return self.at
        if at < len(self.text) and marker.startswith(self.text[at:]):
            self.at = len(self.text)  # cut within it: nothing to show
            return self.at
        return at

    def shown_part(self, call: Call) -> bool:
        """An eager call that goes on no more; what can be closed of it is closed."""
        if call.opened < 0:
            return False
        if call.arguments is not None:
            self.show_call(call, call.arguments[1])
            return True
        place, closers = call.safe
        if not self.form.name_end:
            closers = closers[:-1]
        arguments = self.text[call.opened : place] + closers
        self.end_block()
        self.blocks.append(Block("tool_use", arguments, call.name, ended=True, cut=True))
        self.skip_to(place)
        self.fresh = self.after_marker = True
        return True

    def give_up(self, call: Call, at: int) -> int:
        self.shown_part(call)
        self.show_until(at)
        return at

    def cut(self, call: Call) -> None:
        if self.ended:
            if call.arguments is not None and call.name and call.opened < 0:
                self.show_call(call, len(self.text))
            elif not self.shown_part(call) and not self.form.eager:
                self.add_text(self.text[self.at :])
        elif call.opened >= 0:
            end = call.arguments[1] if call.arguments else call.safe[0]
            self.end_block()
            arguments = self.text[call.opened : end]
            whole = call.arguments is not None
            self.blocks.append(Block("tool_use", arguments, call.name, ended=whole))
        self.at = len(self.text)


def split(text: str, form: Format, ended: bool = True, cut: bool = False) -> list[Block]:
    """The blocks of an answer; ended false: what of them may be shown while more may come. cut: by
    the limit of tokens."""
    return Splitter(text, form, ended, cut).run()


# ---- pieces -------------------------------------------------------------------------------------


@dataclass
class Folded:
    blocks: list[Block] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    signatures: list[str] = field(default_factory=list)


def check_pieces(pieces: Iterable[tuple[str, str, str]], folded: Folded | None = None) -> Folded:
    """Folds pieces into blocks, and fails where they break the order that StreamPiece promises."""
    folded = folded or Folded()
    blocks = folded.blocks
    for kind, text, identifier in pieces:
        is_open = bool(blocks) and not blocks[-1].ended
        if kind == "stop":
            assert is_open and identifier in ("", "cut")
            blocks[-1].ended, blocks[-1].cut = True, identifier == "cut"
            if blocks[-1].kind == "thinking":
                folded.signatures.append(text)
            else:
                assert not text
            continue
        assert text, "no empty content"
        if kind == "tool_start":
            assert not is_open and identifier
            folded.ids.append(identifier)
            blocks.append(Block("tool_use", "", text))
            continue
        assert not identifier
        kind = "tool_use" if kind == "arguments" else kind
        if not is_open:
            assert kind != "tool_use"
            blocks.append(Block(kind, ""))
        assert blocks[-1].kind == kind
        blocks[-1].text += text
    return folded
