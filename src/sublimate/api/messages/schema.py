"""The body of POST /v1/messages and /v1/messages/count_tokens as typed structs.

Unknown fields have no effect. A field that the API knows and this server cannot serve is a 400 that
names it (`check_offered`); so is a value outside its range (edge/sampling.py). Decoding is strict:
no number from text, no float for an integer. Of a name that appears twice in one object the last
value counts; there is one reader, so nobody can see another.

defines: Message, ToolChoiceParam, ThinkingParam, AnswerFormat, OutputConfig, Amount, ClearToolUses,
         ClearThinking, Compact, ContextManagement, MessagesRequest, decode_request, check_offered
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from ...edge.errors import ApiError, field_error
from ..decode import OTHERS_NOT_OFFERED, OtherFields, check_absent, decode_body
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


class MessagesRequest(OtherFields, kw_only=True):
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
    # Fields of other servers that would change the answer or its cost, and are not offered.
    n: Any = None
    best_of: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    n_discard: Any = None
    n_keep: Any = None
    response_format: Any = None
    stop: Any = None


NOT_OFFERED = (
    *OTHERS_NOT_OFFERED,
    *("compaction", "fallbacks", "container", "logprobs", "top_logprobs"),
    *("n_discard", "n_keep", "response_format", "stop"),
)
_DECODER = msgspec.json.Decoder(MessagesRequest)


def decode_request(body: bytes) -> MessagesRequest:
    """The body as a request. Raises ApiError."""
    return decode_body(_DECODER, body)


# ---- what is not offered -------------------------------------------------------------------------
def check_offered(request: MessagesRequest) -> None:
    """Raises ApiError for the first field that asks for something this server cannot do yet."""
    if request.thread is not None:
        raise ApiError("threads")  # by whose code an SDK goes on without them
    check_absent(request, NOT_OFFERED)
    for name in ("n", "best_of"):
        if getattr(request, name) not in (None, 1):
            raise field_error(name, "this server gives one answer per request")
    for index, edit in enumerate((request.context_management or ContextManagement()).edits or []):
        if isinstance(edit, Compact):
            path = f"context_management.edits.{index}.type"
            raise field_error(path, "this server cannot compact conversations")
    if request.service_tier not in (None, "auto", "standard_only"):
        raise field_error("service_tier", "expected auto or standard_only")
    if request.speed not in (None, "standard"):
        raise field_error("speed", "this server has the speed standard only")
