"""The body of POST /v1/messages and /v1/messages/count_tokens as typed structs.

Unknown fields have no effect. A field that the API knows and this server cannot serve is a 400 that
names it (`check_offered`); so is a value outside its range (edge/sampling.py). Decoding is strict:
no number from text, no float for an integer. Of a name that appears twice in one object the last
value counts; there is one reader, so nobody can see another.

defines: Block, Message, MessagesRequest, decode_request, decode_body, check_offered
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from ...edge.errors import ApiError, field_error
from ...edge.sampling import SamplingFields


class Block(msgspec.Struct):
    """A content block, as far as text needs it."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | list[Block]


class Typed(msgspec.Struct):
    """Any object of which only its type matters here."""

    type: str


class OutputConfig(msgspec.Struct):
    effort: str | None = None
    format: Any = None


class ContextManagement(msgspec.Struct):
    edits: list[Typed] | None = None


class MessagesRequest(SamplingFields, kw_only=True):
    """Every field that this server reads. Any: it only matters whether it is there."""

    model: str
    messages: list[Message]
    system: str | list[Block] | None = None
    stream: bool | None = None
    tools: list[Any] | None = None
    tool_choice: Typed | None = None
    thinking: Typed | None = None
    output_config: OutputConfig | None = None
    output_format: Any = None
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
    *("grammar", "output_format"),
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
_EXPECTED = re.compile(r"Expected `([a-z |]+)`, got `([a-z]+)`")
_PLACE = re.compile(r" - at `\$([A-Za-z0-9_.\[\]]*)`$")
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
    if request.tools:
        raise field_error("tools", "this server cannot call tools yet")
    if request.mcp_servers:
        raise field_error("mcp_servers", "this server cannot call tools yet")
    if request.tool_choice is not None:
        _check_tool_choice(request.tool_choice.type)
    if request.thinking is not None:
        _check_thinking(request.thinking.type)
    if request.output_config is not None:
        _check_output_config(request.output_config)
    if request.context_management is not None:
        _check_context_management(request.context_management)
    if request.service_tier not in (None, "auto", "standard_only"):
        raise field_error("service_tier", "expected auto or standard_only")
    if request.speed not in (None, "standard"):
        raise field_error("speed", "this server has the speed standard only")


def _check_tool_choice(kind: str) -> None:
    if kind in ("any", "tool"):
        raise field_error("tool_choice", "there are no tools to choose from")
    if kind not in ("auto", "none"):
        raise field_error("tool_choice.type", "expected auto, any, tool or none")


def _check_thinking(kind: str) -> None:
    if kind in ("enabled", "between_tools"):
        raise field_error("thinking.type", "this server cannot show thinking yet")
    if kind not in ("disabled", "adaptive"):
        raise field_error("thinking.type", "expected enabled, adaptive or disabled")


def _check_output_config(config: OutputConfig) -> None:
    if config.format is not None:
        raise field_error("output_config.format", "this server cannot follow a format yet")
    if config.effort not in (None, "low", "medium", "high", "xhigh", "max"):
        raise field_error("output_config.effort", "expected low, medium, high, xhigh or max")


def _check_context_management(management: ContextManagement) -> None:
    for index, edit in enumerate(management.edits or []):
        # Clearing finds nothing to clear in a conversation of text.
        if edit.type not in ("clear_tool_uses_20250919", "clear_thinking_20251015"):
            path = f"context_management.edits.{index}.type"
            raise field_error(path, "this server cannot make this edit")
