"""How a model writes tool calls: one small class per family, chosen at load from the template.

A format is plain data and pure functions. Three readers use it: the template's renderer (where the
template does not know tools, their description and the calls of earlier turns are text), the
grammar (which text a call has around its arguments) and the text path (which text begins a call).
They agree because all take it from here: `calls_text` is what the grammar allows, what the text
path takes apart, and what a later turn shows the model again. (Mistral's templates up to v11 write
an id into each call, which the model does not: there a turn's prefix ends behind its arguments.)

A further family is one subclass in FORMATS. It has to write arguments as a JSON object; a model
whose template does not (FunctionGemma, Qwen3-Coder) gets the generic format. Whatever the format,
an answer that ends with a call in another known spelling is read too: core/text/call_reader.h.
Sources: the chat templates of Qwen2.5 and Qwen3, Hermes 3, Llama 3.1 to 3.3, Mistral v3 to v13
(mistral-common), and Gemma's function calling guide.

defines: TOOL_NAME, Tool, ToolCall, ToolResult, canonical_json, ToolFormat, Hermes, Llama3,
         MistralArray, MistralNamed, Gemma, FORMATS, LENIENT_MARKERS, choose_tool_format,
         marker_tokens, string_parameters
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from ..errors import ModelError

TOOL_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
Shape = Literal["object", "array", "named"]


class Tool(msgspec.Struct, frozen=True):
    """A tool that the model may call."""

    name: str
    description: str = ""
    schema: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})
    """JSON Schema of the arguments, an object."""
    strict: bool = False
    """A schema that cannot be enforced whole is the client's error, not relaxed."""

    def __post_init__(self) -> None:
        # Names stand in JSON, between markers and in grammars as they are, without any escape.
        if not TOOL_NAME.fullmatch(self.name):
            raise ValueError("a tool's name is 1 to 128 letters, digits, '_', '-' or '.'")

    @property
    def declaration(self) -> dict[str, Any]:
        """As templates and models know it."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model made."""

    id: str
    name: str
    arguments: str
    """An object as canonical_json writes it."""

    def __post_init__(self) -> None:
        if not (self.arguments.startswith("{") and self.arguments.endswith("}")):
            raise ValueError("the arguments of a call are a JSON object")


class ToolResult(msgspec.Struct, frozen=True):
    """What the client answers to a call."""

    call_id: str
    text: str
    is_error: bool = False


def canonical_json(value: Any) -> str:
    """The one spelling of a value: as json.dumps(value, ensure_ascii=False) separates, one line.

    Templates' `tojson`, the calls of earlier turns and the grammar all write JSON so.
    """
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


class ToolFormat:
    """The generic format, for models whose template knows no tools, and what families change.

    All calls of an answer are `before_calls`, then per call `call_head(name)`, its arguments and
    `call_tail`, with `between_calls` between two, then `after_calls`.
    """

    name = "generic"
    template_knows = False
    """Templates of the family render tools, calls and results; else they are text (below)."""
    shape: Shape = "object"
    """object: markers around one JSON object per call. array: one list of all calls. named: the
    name stands before its arguments, outside of JSON."""
    openings: tuple[str, ...] = ("<tool_call>",)
    """Each begins a call. The first is the one that is written, and the grammar's trigger."""
    closing = "</tool_call>"
    """Ends a call; empty if its JSON does. Read leniently: a call without it is a call."""
    bare = False
    """An answer may begin with the JSON itself, without any opening."""
    name_key = "name"
    arguments_key = "arguments"
    name_end = ""
    """named: stands between name and arguments."""
    id_opening = ""
    """named: begins a call id that may stand between name and name_end."""
    item_separator, key_separator = ", ", ": "
    """Of the JSON that is written; canonical_json has the same."""
    before_calls = after_calls = ""
    between_calls = "\n"
    text_separator = "\n"
    """Between the text of an answer and its first call."""
    parallel = True
    """The model was taught several calls in one answer."""

    def __init_subclass__(cls) -> None:
        if not cls.openings or any(text != text.strip() for text in (*cls.openings, cls.closing)):
            raise TypeError("a tool format has openings; white space belongs to no marker")
        if (cls.shape == "named") != bool(cls.name_end):
            raise TypeError("name_end is for names outside of JSON")

    def is_of(self, template: str, special: Collection[str]) -> bool:
        """Whether a model with this template and these control tokens is of the family."""
        del template, special
        return True

    # ---- what the model writes -----------------------------------------------------------------
    def call_head(self, name: str) -> str:
        """Text of a call up to its arguments."""
        return f"{self.openings[0]}\n{self._object_head(name)}"

    @property
    def call_tail(self) -> str:
        """Text of a call behind its arguments."""
        return f"}}\n{self.closing}"

    def _object_head(self, name: str) -> str:
        key, end = self.key_separator, self.item_separator
        return f'{{"{self.name_key}"{key}"{name}"{end}"{self.arguments_key}"{key}'

    def call_text(self, call: ToolCall) -> str:
        """A single call, as the model writes it."""
        return self.calls_text([call])

    def calls_text(self, calls: Sequence[ToolCall]) -> str:
        """All calls of one answer, at least one."""
        if not calls:
            raise ValueError("an answer without calls has no text of calls")
        texts = [self.call_head(call.name) + call.arguments + self.call_tail for call in calls]
        return self.before_calls + self.between_calls.join(texts) + self.after_calls

    # ---- what the model is told, where the template does not ----------------------------------
    def describe(self, tools: Sequence[Tool]) -> str:
        """For the system turn."""
        if not tools:
            raise ValueError("without tools there is nothing to describe")
        declared = "\n".join(canonical_json(tool.declaration["function"]) for tool in tools)
        example = self.calls_text([ToolCall("", "NAME", "{...}")])
        several = " Several calls may follow each other." if self.parallel else ""
        return (
            "# Tools\n\n"
            "These tools are yours to call. Each line is one of them: its name, what it does, and"
            f" the JSON schema of its arguments.\n<tools>\n{declared}\n</tools>\n\n"
            "When a tool helps, end your answer with a call in exactly this form, and wait for"
            f" its result.{several}\n{example}"
        )

    def result_content(self, result: ToolResult) -> str:
        """Text of a result for a template that takes turns of the role `tool`."""
        return f"Error: {result.text}" if result.is_error else result.text

    def result_text(self, result: ToolResult) -> str:
        """A result as part of the user turn that follows the calls."""
        return f"<tool_response>\n{self.result_content(result)}\n</tool_response>"

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be control tokens of their own."""
        texts = (*self.openings, self.closing, self.name_end, self.id_opening)
        return tuple(text for text in texts if text)


class Hermes(ToolFormat):
    """Hermes 2 Pro and later, Qwen2.5, Qwen3, and many fine-tunes."""

    name = "hermes"
    template_knows = True

    def is_of(self, template: str, special: Collection[str]) -> bool:
        return "<tool_call>" in template and not any(
            other in template for other in ("<function=", "<arg_key>")
        )


class Llama3(ToolFormat):
    """Llama 3.1 and later: the answer is one JSON object. Built-in tools and their Python syntax
    are not used."""

    name = "llama3"
    template_knows = True
    openings = ("<|python_tag|>",)
    closing = ""
    bare = True
    arguments_key = "parameters"
    parallel = False

    def is_of(self, template: str, special: Collection[str]) -> bool:
        del special
        return "<|start_header_id|>" in template and '"parameters"' in template

    def call_head(self, name: str) -> str:
        return self._object_head(name)

    @property
    def call_tail(self) -> str:
        return "}"


class MistralArray(ToolFormat):
    """Mistral's tokenizer versions 2 to 7: one list of calls."""

    name = "mistral"
    template_knows = True
    shape = "array"
    openings = ("[TOOL_CALLS]",)
    closing = ""
    before_calls, between_calls, after_calls = "[TOOL_CALLS][", ", ", "]"
    text_separator = ""

    def is_of(self, template: str, special: Collection[str]) -> bool:
        return "[TOOL_CALLS]" in template or (not template and "[TOOL_CALLS]" in special)

    def call_head(self, name: str) -> str:
        return self._object_head(name)

    @property
    def call_tail(self) -> str:
        return "}"


class MistralNamed(ToolFormat):
    """Mistral's tokenizer versions 11 and later: name, then arguments, one opening per call."""

    name = "mistral-named"
    template_knows = True
    shape = "named"
    openings = ("[TOOL_CALLS]",)
    closing = ""
    name_end = "[ARGS]"
    id_opening = "[CALL_ID]"
    between_calls = text_separator = ""

    def is_of(self, template: str, special: Collection[str]) -> bool:
        known = template or special
        return "[TOOL_CALLS]" in known and self.name_end in known

    def call_head(self, name: str) -> str:
        return f"{self.openings[0]}{name}{self.name_end}"

    @property
    def call_tail(self) -> str:
        return ""


class Gemma(ToolFormat):
    """Gemma 2 and 3, which know no tools: JSON in a fence, or alone, as the guide asks for it."""

    name = "gemma"
    openings = ("```tool_code", "```json")
    closing = "```"
    bare = True
    arguments_key = "parameters"

    def is_of(self, template: str, special: Collection[str]) -> bool:
        return "<start_of_turn>" in (template or special)

    def result_text(self, result: ToolResult) -> str:
        return f"```tool_output\n{self.result_content(result)}\n```"


FORMATS: dict[str, ToolFormat] = {
    family.name: family
    for family in (MistralNamed(), MistralArray(), Hermes(), Llama3(), Gemma(), ToolFormat())
}
"""By name, in the order in which they are tried; the last takes every model."""


DEEPSEEK = "<\uff5ctool\u2581{}\u2581{}\uff5c>"
LENIENT_MARKERS: tuple[tuple[str, str], ...] = (
    ("```json", "```"),
    ("```python", "```"),
    ("```tool_code", "```"),
    ("```tool_call", "```"),
    ("```", "```"),
    ("<tool_call>", "</tool_call>"),
    ("<tools>", "</tools>"),  # Qwen2.5-Coder, at times
    ("<function_call>", "</function_call>"),
    ("<|python_tag|>", ""),
    ("[TOOL_CALLS]", ""),
    ("<|tool_call|>", "<|/tool_call|>"),  # Phi-4-mini
    ("<|tool_call_start|>", "<|tool_call_end|>"),  # LFM2
    ("<|tool_call>", "<tool_call|>"),  # Gemma 4
    ("<start_function_call>", "<end_function_call>"),  # FunctionGemma
    (
        "<\uff5ctool\u2581calls\u2581begin\uff5c>",
        "<\uff5ctool\u2581calls\u2581end\uff5c>",
    ),  # DeepSeek
    ("<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>"),
)
"""What stands around calls in other spellings, whatever the model's own format."""


def choose_tool_format(template: str, special: Collection[str], named: str = "") -> ToolFormat:
    """The format of a model, from its chat template and the texts of its control tokens.

    `named` overrides. Raises ModelError if no format has that name.
    """
    if named:
        if named not in FORMATS:
            known = ", ".join(FORMATS)
            raise ModelError(f"There is no tool format {named!r}. Known: {known}.")
        return FORMATS[named]
    return next(family for family in FORMATS.values() if family.is_of(template, special))


def marker_tokens(markers: Iterable[str], special: Mapping[str, int]) -> dict[int, str]:
    """Control token -> its text, for the markers that are one token of the model.

    `special` is Tokenizer.special. Such a token yields no text by itself; to whoever takes an
    answer apart it has to say its marker.
    """
    return {special[text]: text for text in markers if text in special}


def string_parameters(tools: Iterable[Tool]) -> list[tuple[str, str]]:
    """(tool, parameter) of those that are nothing but strings. In formats that write values without
    quotes, only the schema tells the string "2" from a number."""
    found: list[tuple[str, str]] = []
    for tool in tools:
        properties: Any = tool.schema.get("properties")
        for name, schema in _members(properties):
            found += [(tool.name, name) for key, value in _members(schema)
                      if (key, value) == ("type", "string")]  # fmt: skip
    return found


def _members(value: Any) -> Iterable[tuple[str, Any]]:
    return cast("dict[str, Any]", value).items() if isinstance(value, dict) else ()
