"""The body of POST /v1/messages and /v1/messages/count_tokens as typed structs.

Unknown fields have no effect. A field that the API knows and this server cannot serve is a 400 that
names it (`check_offered`); so is a value outside its range (edge/sampling.py). Decoding is strict:
no number from text, no float for an integer. Of a name that appears twice in one object the last
value counts; there is one reader, so nobody can see another.

defines: Message, ToolChoiceParam, ThinkingParam, AnswerFormat, OutputConfig, Amount, ClearToolUses,
         ClearThinking, Compact, ContextManagement, MessagesRequest, decode_request, decode_body,
         check_offered
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from ...edge.errors import ApiError, field_error
from ...edge.sampling import SamplingFields
from .content import InputBlock, TextBlock
from .tools import ToolParam


class Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[InputBlock]


class ToolChoiceParam(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(msgspec.Struct):
    type: Literal["enabled", "adaptive", "disabled", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class AnswerFormat(msgspec.Struct):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: AnswerFormat | None = None


# ---- edits of the context ------------------------------------------------------------------------
class Amount(msgspec.Struct, frozen=True):
    type: Literal["input_tokens", "tool_uses", "thinking_turns", "all"]
    value: Annotated[int, msgspec.Meta(ge=0)] = 0


class ClearToolUses(msgspec.Struct, tag_field="type", tag="clear_tool_uses_20250919"):
    trigger: Amount = Amount("input_tokens", 100_000)
    keep: Amount = Amount("tool_uses", 3)
    clear_at_least: Amount | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None


class ClearThinking(msgspec.Struct, tag_field="type", tag="clear_thinking_20251015"):
    keep: Literal["all"] | Amount = Amount("thinking_turns", 1)


class Compact(msgspec.Struct, tag_field="type", tag="compact_20260112"): ...


class ContextManagement(msgspec.Struct):
    edits: list[ClearToolUses | ClearThinking | Compact] | None = None


class Diagnostics(msgspec.Struct):
    previous_message_id: str | None = None


class MessagesRequest(SamplingFields, kw_only=True):
    """Every field that this server reads. Any: it only matters whether it is there."""

    model: str
    messages: list[Message]
    system: str | list[TextBlock] | None = None
    stream: bool | None = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputConfig | None = None
    output_format: AnswerFormat | None = None
    diagnostics: Diagnostics | None = None
    context_management: ContextManagement | None = None
    mcp_servers: list[Any] | None = None
    container: Any = None
    service_tier: str | None = None
    speed: str | None = None
    compaction: Any = None
    fallbacks: Any = None
    thread: Any = None
    # Extensions, under the names that other local servers gave them.
    execution_profile: str | None = None
    # Fields of other servers that would change the answer or its cost, and are not offered.
    n: Any = None
    best_of: Any = None
    use_beam_search: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    prompt_logprobs: Any = None
    prompt_embeds: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    n_discard: Any = None
    n_keep: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    grammar: Any = None


NOT_OFFERED = (
    *("compaction", "fallbacks", "thread", "container", "use_beam_search", "logprobs"),
    *("top_logprobs", "prompt_logprobs", "prompt_embeds", "allowed_token_ids", "bad_words"),
    *("n_discard", "n_keep", "chat_template", "chat_template_kwargs", "response_format"),
    *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    "grammar",
)
Body = TypeVar("Body")
_DECODER = msgspec.json.Decoder(MessagesRequest)


def decode_request(body: bytes) -> MessagesRequest:
    """The body as a request. Raises ApiError."""
    return decode_body(_DECODER, body)


def decode_body(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """A body of any surface. Raises ApiError that names the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _refused_field(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ApiError("invalid_json") from None


# ---- decoder errors ------------------------------------------------------------------------------
# Of the decoder's text only what these patterns know is used: field names of our own structs,
# indices, and the names of JSON types.
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_EXPECTED = re.compile(r"Expected `([a-z |]+)`")
_PLACE = re.compile(r" - at `\$([A-Za-z0-9_.\[\]]*)`$")
KNOWN_VALUES = {
    "tool_choice.type": "expected auto, any, tool or none",
    "thinking.type": "expected enabled, adaptive, disabled or between_tools",
    "format.type": "expected json_schema",
    "source.type": "unknown source type",
    ".type": "unknown block type",
    "role": "expected user, assistant or system",
    "effort": "expected low, medium, high, xhigh or max",
    "display": "expected summarized or omitted",
}
_JSON_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def _refused_field(error: msgspec.ValidationError) -> ApiError:
    text = str(error)
    place = _PLACE.search(text)
    # A key of a free mapping is shown as [...]: it stands for nothing here.
    path = place.group(1).replace("[...]", "") if place else ""
    path = re.sub(r"\[(\d+)\]", r".\1", path).strip(".")
    if missing := _MISSING.match(text):
        return field_error(f"{path}.{missing.group(1)}".strip("."), "field required")
    if text.startswith(("Invalid value", "Invalid enum value")):
        names = [name for name in KNOWN_VALUES if path.endswith(name)]
        return field_error(path, KNOWN_VALUES[names[0]] if names else "unknown value")
    if expected := _EXPECTED.match(text):
        names = [_JSON_NAMES.get(name, "another type") for name in expected.group(1).split(" | ")]
        return field_error(path or "body", f"expected {' or '.join(names)}")
    return field_error(path or "body", "the value is out of range")


# ---- what is not offered -------------------------------------------------------------------------
def check_offered(request: MessagesRequest) -> None:
    """Raises ApiError for the first field that asks for something this server cannot do yet."""
    for name in NOT_OFFERED:
        if getattr(request, name) not in (None, False):
            raise field_error(name, "not offered by this server")
    for name in ("n", "best_of"):
        if getattr(request, name) not in (None, 1):
            raise field_error(name, "this server gives one answer per request")
    if request.mcp_servers:
        raise field_error("mcp_servers", "this server calls no other servers")
    for index, edit in enumerate((request.context_management or ContextManagement()).edits or []):
        if isinstance(edit, Compact):
            path = f"context_management.edits.{index}.type"
            raise field_error(path, "this server cannot compact conversations")
    if request.service_tier not in (None, "auto", "standard_only"):
        raise field_error("service_tier", "expected auto or standard_only")
    if request.speed not in (None, "standard"):
        raise field_error("speed", "this server has the speed standard only")
