"""The model's chat template: conversation to prompt text, in a sandbox with a step budget.

Content is escaped before it is rendered: a character that occurs nowhere in the conversation is put
inside everything that reads like a control token. The template's own control tokens stay whole, so
the tokenizer can tell the two apart; it drops the character again. A template never sees other
changes of the content, so what it does with it (trim, split) still holds.

What a template does with system turns that are not the first, with tools, with calls, and with a
conversation that an assistant opens, is found out once, when the model is loaded; what it does not
show, forms.py writes as text.

defines: Rendered, TemplateReport, TemplateLimitError, ChatTemplate, template_from_metadata
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
from .escape import Escape
from .forms import Form, all_texts, as_text, escaped_tools, escaped_turns, messages_of
from .named_templates import template_source
from .template_language import FILTERS, FUNCTIONS, SizeError, translated
from .thinking import choose_thinking_format
from .tokenizer import Tokenizer
from .tool_formats import Tool, ToolCall, ToolResult, choose_tool_format
from .turns import Turn, fold_system_turns, is_continued, said, user_first

LOG = logging.getLogger("sublimate.template")

FUEL_MAX = 3_000_000
"""Steps of one rendering, where 16 bytes of joined text count as one: a fraction of a second, and
enough for 50,000 turns of a usual template or the largest body."""
OUTPUT_CHARACTERS_MAX = 1 << 26
"""Twice the largest request body."""
SOURCE_CHARACTERS_MAX = 1 << 20
REASON_CHARACTERS_MAX = 200
"""Longest reason for a refused template."""

ENDLESS = "The chat template of the model takes too many steps, or writes too much, for any prompt."

NO_VARIABLES: Mapping[str, Any] = {}

# Unicode noncharacters, then private use: texts hardly ever hold the first.
MARKERS = (*map(chr, range(0xFDD0, 0xFDF0)), *map(chr, range(0xE000, 0xF900)))

PROBE_USER, PROBE_SYSTEM, PROBE_ANSWER = "probeuserone", "probesystemtwo", "probeanswerthree"
PROBE_TOOL = Tool("probe_tool", "probedescription", {"type": "object", "properties": {}})
PROBE_CALL = ToolCall("0", PROBE_TOOL.name, '{"probekey": "probevalue"}')
PROBE_RESULT, PROBE_TEXT = "proberesultfour", "probetextfive"


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
    tools: Literal["template", "text"]
    """Who tells the model its tools and shows it calls and results: the template, or the tool
    format as text."""
    calls: Literal["template", "text"]
    """Who writes calls of earlier turns; text only if that gives what the template would write."""
    tool_format: str
    replaced: str = ""
    """Why the template cannot render a plain conversation, so that the built-in one always serves;
    empty if it can."""

    def __str__(self) -> str:
        origin = self.origin if self.origin == "model" else "none in the model's file, built-in"
        if self.replaced:
            origin = f"the model's, replaced by the built-in one ({self.replaced})"
        return (
            f"{origin} {self.digest[:12]}, system turns {self.system_turns}, "
            f"tools by {self.tools} ({self.tool_format})"
        )


class TemplateLimitError(Exception):
    """The conversation needs more steps or text than one rendering may have."""


class _RefusedError(Exception):
    """The template raised, or did not show what it was given. Its text is for operators alone."""


def _for_templates(function: Callable[..., Any]) -> Callable[..., Any]:
    """A template that calls it otherwise than it can be called has refused, as one that raises:
    minijinja hands on whatever is raised."""

    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except SizeError:
            raise TemplateLimitError from None
        except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            raise _RefusedError(f"{function.__name__}: {error}") from None

    return call


def _raise_exception(message: object) -> None:
    raise _RefusedError(f"it raised {str(message)[:REASON_CHARACTERS_MAX]!r}")


def _strftime_now(layout: str) -> str:
    return time.strftime(layout)


CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PLAIN = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


PLAIN_ENDS = ("\n\nuser:", "\n\nassistant:")
"""A model without control tokens has no other way to end its turn than to begin the next."""


class ChatTemplate:
    """One model's template. `render` may be called from several threads."""

    def __init__(
        self,
        source: str,
        special: Iterable[str],
        *,
        bos_token: str = "",
        eos_token: str = "",
        tool_format: str = "",
    ) -> None:
        """`tool_format` names one of FORMATS; empty: the template tells. Raises ModelError."""
        if len(source) > SOURCE_CHARACTERS_MAX:
            raise ModelError("The chat template of the model is too long.")
        self._special = tuple(text for text in special if len(text) > 1)
        self._constants = {"bos_token": bos_token, "eos_token": eos_token}
        chatml = {"<|im_start|>", "<|im_end|>"} <= set(self._special)
        self._fallback_source = CHATML if chatml else PLAIN
        self._source = source or self._fallback_source
        self.turn_ends = PLAIN_ENDS if self._source == PLAIN else ()
        """What ends a turn, where the template marks turns by plain words."""
        self._environment = _environment(self._source, self._fallback_source)
        self._escape = Escape(self._special)
        self.tool_format = choose_tool_format(source, self._special, tool_format)
        self.thinking_format = choose_thinking_format(source, self._special)
        self._forms = Form(self.tool_format, self.thinking_format, "reasoning_content" in source)
        self.report = self._probe(bool(source))
        self.fallbacks = 0
        """Conversations that the template refused in every form; the built-in one served them."""

    # ---- one conversation ----------------------------------------------------------------------
    def render(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool] = (),
        *,
        thinking: bool = False,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> Rendered:
        """Prompt of a conversation, ready for the answer; a last assistant turn is continued.

        thinking: on, for models that can switch. variables: what else the template may read, as
        decoded from JSON. Raises TemplateLimitError; nothing else for any sequence of turns.
        """
        given = msgspec.json.encode(variables)
        marker, end = self._markers(turns, tools, given.decode())
        more = self._escape.json(given, marker)
        turns = escaped_turns(turns, self._escape, marker, self._forms)
        tools = escaped_tools(tools, self._escape, marker)
        in_text = self.report.tools == "text"
        shown_tools = () if in_text else tools
        attempts: tuple[Callable[[], str], ...] = (
            lambda: self._run("chat", self._shape(turns, tools), shown_tools, end, thinking, more),
            lambda: self._run("chat", self._strict(turns, tools), (), end, thinking, more),
        )
        reason = ""
        for attempt in attempts:
            try:
                return Rendered(attempt(), marker)
            except _RefusedError as error:
                reason = reason or str(error)
        if not self.fallbacks:
            LOG.warning("the built-in chat template serves a conversation instead: %s", reason)
        self.fallbacks += 1
        plain = as_text(turns, tools, self._forms)
        return Rendered(self._run("fallback", plain, (), end, thinking), marker)

    def _markers(self, turns: Sequence[Turn], tools: Sequence[Tool], more: str) -> tuple[str, str]:
        """Two characters that occur in no text of this conversation, nor in `more`."""
        texts = [self._source, more, *all_texts(turns, tools)]
        free: list[str] = []
        for candidate in MARKERS:
            if all(candidate not in text for text in texts):
                free.append(candidate)
                if len(free) == 2:
                    return free[0], free[1]
        raise TemplateLimitError

    def _run(
        self,
        name: str,
        turns: Sequence[Turn],
        tools: Sequence[Tool],
        end: str,
        thinking: bool,
        more: Mapping[str, Any] = NO_VARIABLES,
    ) -> str:
        """The prompt of escaped turns in a form that the template is thought to take."""
        continued = is_continued(turns)
        messages = messages_of(turns, self._forms)
        if continued:
            messages[-1]["content"] += end
        switch = self.thinking_format.variables(thinking) if self.thinking_format else {}
        try:
            text = self._environment.render_template(
                name,
                messages=messages,
                add_generation_prompt=not continued,
                tools=[tool.declaration for tool in tools] or None,
                documents=None,
                **{**more, **switch, **self._constants},
            )
        except _RefusedError:
            raise
        except minijinja.TemplateError as error:
            if error.kind == "OutOfFuel":
                raise TemplateLimitError from None
            reason = str(error).partition(" (in chat")[0]
            raise _RefusedError(reason[:REASON_CHARACTERS_MAX]) from None
        if len(text) > OUTPUT_CHARACTERS_MAX:
            raise TemplateLimitError
        if not continued:
            return text
        shown, found, _ = text.rpartition(end)
        if not found:
            raise _RefusedError("it does not show the end of an answer that was begun")
        return shown

    # ---- forms of a conversation ---------------------------------------------------------------
    def _shape(self, turns: Sequence[Turn], tools: Sequence[Tool]) -> Sequence[Turn]:
        """The form that the probe found this template to take."""
        shaped = turns
        if self.report.tools == "text":
            shaped = as_text(shaped, tools, self._forms)
        if self.report.system_turns == "folded" or not self.report.system_first:
            shaped = fold_system_turns(shaped, keep_first=self.report.system_first)
        if not self.report.assistant_first:
            shaped = user_first(shaped)
        return shaped

    def _strict(self, turns: Sequence[Turn], tools: Sequence[Tool]) -> Sequence[Turn]:
        """The form that every template takes: user and assistant in turn, user first."""
        return user_first(fold_system_turns(as_text(turns, tools, self._forms), keep_first=False))

    # ---- at load -------------------------------------------------------------------------------
    def _probe(self, from_model: bool) -> TemplateReport:
        user, system = said("user", PROBE_USER), said("system", PROBE_SYSTEM)
        answer = said("assistant", PROBE_ANSWER)
        replaced = ""
        try:
            self._run("chat", [user], (), MARKERS[1], thinking=False)
        except TemplateLimitError:
            raise ModelError(ENDLESS) from None
        except _RefusedError as error:
            replaced = str(error)
            LOG.warning("the built-in chat template serves instead of the model's: %s", replaced)
        by_template = self.tool_format.template_knows and self._shows_tools()
        calls_in_text = by_template and self._writes_calls_alike()
        self._forms.calls_in_text = calls_in_text or not by_template
        first = self._shows_in_order([system, user])
        return TemplateReport(
            digest=hashlib.sha256(self._source.encode()).hexdigest(),
            origin="model" if from_model else "built-in",
            system_first=first is not None,
            system_turns="in-place" if self._takes_system_turns() else "folded",
            assistant_first=self._shows_in_order([answer, user]) is not None,
            tools="template" if by_template else "text",
            calls="text" if self._forms.calls_in_text else "template",
            tool_format=self.tool_format.name,
            replaced=replaced,
        )

    def _takes_system_turns(self) -> bool:
        """Whether a later system turn is a marked segment that leaves what precedes it alone."""
        user, system = said("user", PROBE_USER), said("system", PROBE_SYSTEM)
        text = self._shows_in_order([user, system, said("user", PROBE_ANSWER)])
        before = self._shows_in_order([user])
        others = ([user, system], [user, system, said("assistant", PROBE_ANSWER)])
        if text is None or before is None or None in map(self._shows_in_order, others):
            return False
        between = text[text.index(PROBE_USER) : text.index(PROBE_SYSTEM)]
        marked = any(special in between for special in self._special)
        return marked and text.startswith(before[: before.index(PROBE_USER) + len(PROBE_USER)])

    def _shows_tools(self) -> bool:
        """Whether the template tells tools, and shows a call and its result in their places."""
        conversation = _tool_conversation()
        self._forms.calls_in_text = False
        told = self._attempt(conversation[:1], [PROBE_TOOL])
        shown = self._attempt(conversation, [PROBE_TOOL])
        if told is None or shown is None or PROBE_TOOL.description not in told:
            return False
        texts = (PROBE_USER, PROBE_CALL.name, "probevalue", PROBE_RESULT, PROBE_SYSTEM)
        # The description may name the tool, and stand before or behind the user's turn.
        place = -1
        for text in texts:
            place = shown.find(text, place + 1)
            if place < 0:
                return False
        return True

    def _writes_calls_alike(self) -> bool:
        """Whether calls inside the text of a turn give the prompt that the template's own calls
        give, or show the text beside calls where those do not. Then how the model wrote a call can
        be shown to it again, letter for letter."""
        conversation = _tool_conversation()
        self._forms.calls_in_text = False
        own = self._attempt(conversation, [PROBE_TOOL]) or ""
        self._forms.calls_in_text = True
        in_text = self._attempt(conversation, [PROBE_TOOL])
        return in_text is not None and (own == in_text or PROBE_TEXT not in own)

    def _attempt(self, turns: Sequence[Turn], tools: Sequence[Tool] = ()) -> str | None:
        try:
            return self._run("chat", turns, tools, MARKERS[1], thinking=False)
        except (_RefusedError, TemplateLimitError):
            return None

    def _shows_in_order(self, turns: Sequence[Turn]) -> str | None:
        """The rendering, if the template takes the turns and shows all of them in order."""
        text = self._attempt(turns)
        if text is None:
            return None
        places = [text.find(turn.text) for turn in turns]
        return text if places == sorted(places) and places[0] >= 0 else None


def _tool_conversation() -> list[Turn]:
    result = ToolResult(PROBE_CALL.id, PROBE_RESULT)
    return [
        said("user", PROBE_USER),
        Turn("assistant", (*said("assistant", PROBE_TEXT).blocks, PROBE_CALL)),
        Turn("tool", (result,)),
        said("assistant", PROBE_ANSWER),
        said("user", PROBE_SYSTEM),
    ]


def _environment(source: str, fallback: str) -> minijinja.Environment:
    # transformers marks what the assistant wrote for training; it renders as its content.
    source = translated(re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", source))
    environment = minijinja.Environment(
        templates={"chat": source, "fallback": fallback},
        filters={name: _for_templates(each) for name, each in FILTERS.items()},
        globals={
            "raise_exception": _for_templates(_raise_exception),
            "strftime_now": _for_templates(_strftime_now),
            **{name: _for_templates(each) for name, each in FUNCTIONS.items()},
        },
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
            if error.kind == "OutOfFuel":
                raise ModelError(ENDLESS) from None
        except TemplateLimitError:
            raise ModelError(ENDLESS) from None
        except _RefusedError:
            pass  # an empty conversation is nothing to a template
    return environment


def template_from_metadata(
    metadata: Mapping[str, Any], tokenizer: Tokenizer, tool_format: str = ""
) -> ChatTemplate:
    """Of a GGUF file, or the built-in one. Raises ModelError."""
    return ChatTemplate(
        template_source(metadata),
        tokenizer.special,
        bos_token=tokenizer.special_text(tokenizer.bos_id),
        eos_token=tokenizer.special_text(tokenizer.eos_id),
        tool_format=tool_format,
    )
