"""The model's chat template: conversation to prompt text, in a sandbox with a step budget.

Content is escaped before it is rendered: a character that occurs nowhere in the conversation is put
inside everything that reads like a control token. The template's own control tokens stay whole, so
the tokenizer can tell the two apart; it drops the character again. A template never sees other
changes of the content, so what it does with it (trim, split) still holds.

What a template does with system turns that are not the first, and with a conversation that an
assistant opens, is found out once, when the model is loaded.

defines: Turn, Rendered, TemplateReport, TemplateLimitError, ChatTemplate,
template_from_metadata
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import minijinja
import msgspec

from ..errors import ModelError
from .tokenizer import Tokenizer

LOG = logging.getLogger("sublimate.template")

FUEL_MAX = 3_000_000
"""Steps of one rendering, where 16 bytes of joined text count as one: a fraction of a second, and
enough for 50,000 turns of a usual template or the largest body."""
OUTPUT_CHARACTERS_MAX = 1 << 26
"""Twice the largest request body."""
SOURCE_CHARACTERS_MAX = 1 << 20

# Unicode noncharacters, then private use: texts hardly ever hold the first.
MARKERS = (*map(chr, range(0xFDD0, 0xFDF0)), *map(chr, range(0xE000, 0xF900)))

PROBE_USER, PROBE_SYSTEM, PROBE_ANSWER = "probeuserone", "probesystemtwo", "probeanswerthree"
LEADING_USER_TEXT = "(The conversation continues.)"
TURN_SEPARATOR = "\n\n"

Role = Literal["system", "user", "assistant"]


class Turn(msgspec.Struct, frozen=True):
    """One turn after normalisation; neighbours have different roles."""

    role: Role
    text: str


class Rendered(msgspec.Struct, frozen=True):
    """Prompt text. `marker` is in it wherever content read like a control token."""

    text: str
    marker: str

    @property
    def plain(self) -> str:
        """As a person, or another implementation, would see it."""
        return self.text.replace(self.marker, "")


class TemplateReport(msgspec.Struct, frozen=True):
    """What the probe at load found; shown at start-up and in /v1/models."""

    digest: str
    origin: Literal["model", "built-in"]
    system_first: bool
    """The template takes a system turn at the beginning."""
    system_turns: Literal["in-place", "folded"]
    """System turns further on: a segment of their own, or part of the adjacent user turn."""
    assistant_first: bool

    def __str__(self) -> str:
        return f"{self.origin} {self.digest[:12]}, system turns {self.system_turns}"


class TemplateLimitError(Exception):
    """The conversation needs more steps or text than one rendering may have."""


class _RefusedError(Exception):
    """The template raised, or did not show what it was given."""


def _raise_exception(message: object) -> None:
    del message  # of the template; nobody sees it
    raise _RefusedError


def _strftime_now(layout: str) -> str:
    return time.strftime(layout)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """As json.dumps(value, ensure_ascii=False, indent=indent) writes it."""
    return msgspec.json.format(msgspec.json.encode(value), indent=indent or 0).decode()


CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PLAIN = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


class ChatTemplate:
    """One model's template. `render` may be called from several threads."""

    def __init__(
        self, source: str, special: Iterable[str], *, bos_token: str = "", eos_token: str = ""
    ) -> None:
        if len(source) > SOURCE_CHARACTERS_MAX:
            raise ModelError("The chat template of the model is too long.")
        self._special = tuple(text for text in special if len(text) > 1)
        self._constants = {"bos_token": bos_token, "eos_token": eos_token}
        chatml = {"<|im_start|>", "<|im_end|>"} <= set(self._special)
        self._fallback_source = CHATML if chatml else PLAIN
        self._source = source or self._fallback_source
        self._environment = _environment(self._source, self._fallback_source)
        self._escape_pattern = _alternatives(self._special)
        self._openings = {text[:length] for text in self._special for length in range(1, len(text))}
        self._opening_characters_max = max(map(len, self._openings), default=0)
        self._first_characters = {text[0] for text in self._special}
        self.report = self._probe(bool(source))
        self.fallbacks = 0
        """Conversations that the template refused in every form; the built-in one served them."""

    # ---- one conversation ----------------------------------------------------------------------
    def render(self, turns: Sequence[Turn]) -> Rendered:
        """Prompt of a conversation, ready for the answer; a last assistant turn is continued.

        Raises TemplateLimitError; nothing else for any sequence of turns.
        """
        marker, end = self._markers(turns)
        shaped = self._shape(turns)
        attempts: tuple[Callable[[], str], ...] = (
            lambda: self._run("chat", shaped, marker, end),
            lambda: self._run("chat", self._strict(turns), marker, end),
        )
        for attempt in attempts:
            try:
                return Rendered(attempt(), marker)
            except _RefusedError:
                continue
        if not self.fallbacks:
            LOG.warning("the chat template refuses conversations; the built-in one serves them")
        self.fallbacks += 1
        return Rendered(self._run("fallback", turns, marker, end), marker)

    def _markers(self, turns: Sequence[Turn]) -> tuple[str, str]:
        """Two characters that occur in no text of this conversation."""
        free: list[str] = []
        for candidate in MARKERS:
            if candidate not in self._source and all(candidate not in t.text for t in turns):
                free.append(candidate)
                if len(free) == 2:
                    return free[0], free[1]
        raise TemplateLimitError

    def _run(self, name: str, turns: Sequence[Turn], marker: str, end: str) -> str:
        continued = bool(turns) and turns[-1].role == "assistant"
        messages = [
            {"role": turn.role, "content": self._escape(turn.text, marker)} for turn in turns
        ]
        if continued:
            messages[-1]["content"] += end
        try:
            text = self._environment.render_template(
                name,
                messages=messages,
                add_generation_prompt=not continued,
                tools=None,
                documents=None,
                **self._constants,
            )
        except _RefusedError:
            raise
        except minijinja.TemplateError as error:
            if error.kind == "OutOfFuel":
                raise TemplateLimitError from None
            raise _RefusedError from None
        if len(text) > OUTPUT_CHARACTERS_MAX:
            raise TemplateLimitError
        if not continued:
            return text
        shown, found, _ = text.rpartition(end)
        if not found:
            raise _RefusedError
        return shown

    def _escape(self, text: str, marker: str) -> str:
        """The text with `marker` inside each control token, whole or begun at its end."""
        if self._escape_pattern is None or not any(c in text for c in self._first_characters):
            return text
        while self._escape_pattern.search(text):
            text = self._escape_pattern.sub(lambda m: m[0][0] + marker + m[0][1:], text)
        longest = min(self._opening_characters_max, len(text))
        places = [n for n in range(longest, 0, -1) if text[-n:] in self._openings]
        for n in places:
            at = len(text) - n + 1
            text = text[:at] + marker + text[at:]
        return text

    # ---- forms of a conversation ---------------------------------------------------------------
    def _shape(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """The form that the probe found this template to take."""
        shaped = turns
        if self.report.system_turns == "folded" or not self.report.system_first:
            shaped = fold_system_turns(turns, keep_first=self.report.system_first)
        if not self.report.assistant_first:
            shaped = _user_first(shaped)
        return shaped

    def _strict(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """The form that every template takes: user and assistant in turn, user first."""
        return _user_first(fold_system_turns(turns, keep_first=False))

    # ---- at load -------------------------------------------------------------------------------
    def _probe(self, from_model: bool) -> TemplateReport:
        user, system = Turn("user", PROBE_USER), Turn("system", PROBE_SYSTEM)
        answer = Turn("assistant", PROBE_ANSWER)
        first = self._shows_in_order([system, user])
        return TemplateReport(
            digest=hashlib.sha256(self._source.encode()).hexdigest(),
            origin="model" if from_model else "built-in",
            system_first=first is not None,
            system_turns="in-place" if self._takes_system_turns() else "folded",
            assistant_first=self._shows_in_order([answer, user]) is not None,
        )

    def _takes_system_turns(self) -> bool:
        """Whether a later system turn is a marked segment that leaves what precedes it alone."""
        user, system = Turn("user", PROBE_USER), Turn("system", PROBE_SYSTEM)
        text = self._shows_in_order([user, system, Turn("user", PROBE_ANSWER)])
        before = self._shows_in_order([user])
        others = ([user, system], [user, system, Turn("assistant", PROBE_ANSWER)])
        if text is None or before is None or None in map(self._shows_in_order, others):
            return False
        between = text[text.index(PROBE_USER) : text.index(PROBE_SYSTEM)]
        marked = any(special in between for special in self._special)
        return marked and text.startswith(before[: before.index(PROBE_USER) + len(PROBE_USER)])

    def _shows_in_order(self, turns: Sequence[Turn]) -> str | None:
        """The rendering, if the template takes the turns and shows all of them in order."""
        try:
            text = self._run("chat", turns, *MARKERS[:2])
        except (_RefusedError, TemplateLimitError):
            return None
        places = [text.find(turn.text) for turn in turns]
        return text if places == sorted(places) and places[0] >= 0 else None


def _alternatives(texts: Sequence[str]) -> re.Pattern[str] | None:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if texts else None


def _environment(source: str, fallback: str) -> minijinja.Environment:
    # transformers marks what the assistant wrote for training; it renders as its content.
    source = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", source)
    environment = minijinja.Environment(
        templates={"chat": source, "fallback": fallback},
        filters={"tojson": _to_json},
        globals={"raise_exception": _raise_exception, "strftime_now": _strftime_now},
        fuel=FUEL_MAX,
        undefined_behavior="chainable",
        trim_blocks=True,
        lstrip_blocks=True,
        debug=False,
    )
    for name in ("chat", "fallback"):
        try:
            environment.render_template(name, messages=cast(list[Any], []))
        except minijinja.TemplateError as error:
            if error.kind == "SyntaxError":
                raise ModelError("The chat template of the model cannot be read.") from None
        except _RefusedError:
            pass  # an empty conversation is nothing to a template
    return environment


def template_from_metadata(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate:
    """Of a GGUF file, or the built-in one. Raises ModelError."""
    source = metadata.get("tokenizer.chat_template", "")
    if not isinstance(source, str):
        raise ModelError("The model file is damaged: its chat template is not text.")
    return ChatTemplate(
        source,
        tokenizer.special,
        bos_token=tokenizer.special_text(tokenizer.bos_id),
        eos_token=tokenizer.special_text(tokenizer.eos_id),
    )


def fold_system_turns(turns: Sequence[Turn], *, keep_first: bool) -> list[Turn]:
    """Each system turn becomes part of the user turn before it, else of the one after it.

    What precedes a folded turn is unchanged by what follows it, so prefixes stay prefixes.
    """
    folded: list[Turn] = []
    for index, turn in enumerate(turns):
        kept = turn.role == "system" and index == 0 and keep_first
        role: Role = "user" if turn.role == "system" and not kept else turn.role
        if folded and folded[-1].role == role:
            joined = folded[-1].text + TURN_SEPARATOR + turn.text
            folded[-1] = Turn(role, joined)
        else:
            folded.append(Turn(role, turn.text))
    return folded


def _user_first(turns: Sequence[Turn]) -> list[Turn]:
    opening = 1 if turns and turns[0].role == "system" else 0
    shaped = list(turns)
    if len(shaped) > opening and shaped[opening].role == "assistant":
        shaped.insert(opening, Turn("user", LEADING_USER_TEXT))
    return shaped
