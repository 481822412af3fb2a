"""Slow twin of BlockSplitter (core/text/blocks.h): whole texts, searched and parsed each time anew.

defines: Format, Block, split, fold, check_pieces
"""

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

    def native(self, marker_tokens: Sequence[tuple[int, str]] = ()) -> _core.BlockFormat:
        return _core.BlockFormat(
            tool_names=list(self.tool_names), openings=list(self.openings), closing=self.closing,
            name_end=self.name_end, id_opening=self.id_opening, name_key=self.name_key,
            arguments_key=self.arguments_key, bare=self.bare, eager=self.eager,
            thinking_opening=self.thinking_opening, thinking_closing=self.thinking_closing,
            omit_thinking=self.omit_thinking, begins_in=self.begins_in,
            marker_tokens=marker_tokens,
        )  # fmt: skip


@dataclass
class Block:
    kind: str
    text: str
    """Of a tool_use its arguments."""
    name: str = ""
    ended: bool = False


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
        if end == at or not NUMBER.fullmatch(self.text, at, end):
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
        self.mark(at)
        at = self.white(at)
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
        self.at = end + len(closing) if end >= 0 else len(text)
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
                self.at = at
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
        self.at = end
        self.fresh = self.after_marker = True

    def closing(self, at: int) -> int:
        """What may follow a call."""
        marker = self.form.closing
        if not marker:
            return at
        while at < len(self.text) and self.text[at] in WHITE:
            at += 1
        if self.text.startswith(marker, at):
            self.at = at + len(marker)
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
        self.blocks.append(Block("tool_use", arguments, call.name, ended=True))
        self.at = place
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
            assert is_open and not identifier
            blocks[-1].ended = True
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
