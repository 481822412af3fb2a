"""The body of POST /v1/responses as a Generation.

defines: ResponsesRequest, ResponsesGeneration, read_response
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ...edge.errors import ApiError, field_error, unknown_value
from ...edge.exchange import Exchange
from ...edge.generate import choose_profile
from ...edge.generation import Generation
from ...edge.sampling import Sampling
from ...model.tool_formats import canonical_json
from ...model.turns import BLOCK_SEPARATOR, Role, Turn, said
from ..conversation import (
    Conversation,
    switched_thinking,
    template_variables,
    thinking_budget,
)
from ..decode import decode_body
from .input_items import KeptItems
from .request import (
    JsonSchema,
    Part,
    SharedFields,
    answer_schema,
    check_not_offered,
    checked_sampling,
    content_text,
    logprobs_of,
    read_choice,
    result_text,
)
from .response_store import ResponseStore, not_elsewhere
from .scores import Vocabulary
from .tools import (
    CALL_TYPES,
    HOSTED_ITEMS,
    RESULT_TYPES,
    CallItem,
    Offered,
    ToolParam,
    is_offered,
    read_call,
    read_tools,
)

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
REFERENCE = "item_reference"
ADDITIONAL_TOOLS = "additional_tools"
ITEM_TYPES = ("message", "reasoning", REFERENCE, ADDITIONAL_TOOLS, *CALL_TYPES, *RESULT_TYPES)
SCORES = "message.output_text.logprobs"
"""Of `include`: what this server can add. The others are of tools that it does not run."""


class Item(CallItem, kw_only=True):
    """Of the input. What it holds depends on its type."""

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    summary: list[Part] | None = None
    output: Any = None
    tools: list[ToolParam] | None = None


class TextFormat(msgspec.Struct):
    type: str = "text"
    name: str | None = None
    strict: bool | None = None
    schema: dict[str, Any] | None = None


class TextConfig(msgspec.Struct):
    format: TextFormat | None = None


class Reasoning(msgspec.Struct):
    effort: str | None = None


class ResponsesRequest(SharedFields, kw_only=True):
    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[ToolParam] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    # Fields of the other APIs.
    response_format: Any = None
    stop: Any = None


NOT_OFFERED = ("background", "conversation", "prompt", "response_format", "stop")
DECODER = msgspec.json.Decoder(ResponsesRequest)


class ResponsesGeneration(Generation, frozen=True, kw_only=True):
    """With what only this API asks for."""

    offered: dict[str, Offered]
    """The tools, by the names that the model knows."""
    shown: dict[str, Any]
    """Members of a response that repeat its request."""
    conversation: tuple[Turn, ...]
    """The turns without instructions: what a next response goes on from."""
    store: ResponseStore | None
    """Where the response is kept; None: nowhere."""
    vocabulary: Vocabulary = ()
    """Of the log-probabilities, if they are asked for."""


def read_response(server: EdgeServer, exchange: Exchange, body: bytes) -> ResponsesGeneration:
    """Raises ApiError."""
    request = decode_body(DECODER, body)
    profile = choose_profile(request.execution_profile, server.settings, exchange.request)
    served = server.models.resolve(request.model)
    check_not_offered(request, *NOT_OFFERED)
    if request.truncation not in (None, "auto", "disabled"):
        raise unknown_value("truncation", request.truncation, ("auto", "disabled"))
    wants_scores = SCORES in (request.include or [])
    if wants_scores and request.tools:
        raise field_error("include", "log-probabilities are of answers without tools here")
    logprobs = logprobs_of(wants_scores, request.top_logprobs or None)
    limit = ("max_output_tokens", request.max_output_tokens)
    sampling = checked_sampling(served, request, limit, logprobs=logprobs)
    items = request.input if isinstance(request.input, list) else []
    tools = read_tools(_tool_params(request, items), server.limits.tools_max)
    choice = read_choice(request.tool_choice, tools)
    store = server.part(ResponseStore)
    before: tuple[Turn, ...] = ()
    if request.previous_response_id:
        missing = "previous_response_not_found"
        not_elsewhere(server, exchange, request.previous_response_id, missing)
        kept = store.find_or_none(exchange.tenant_key, request.previous_response_id)
        if kept is None:
            raise ApiError(missing)
        before = kept.turns
    reader = _Reader(
        before, KeptItems(server, exchange), server.settings.tool_result_images == "note"
    )
    conversation = reader.read(request.input, server.limits.messages_max)
    left_out = [*tools.left_out, *reader.left_out]
    if request.context_management:
        left_out.append("context_management")
    told = (said("system", request.instructions),) if request.instructions else ()
    effort = request.reasoning.effort if request.reasoning else None
    thinking = thinking_budget("reasoning.effort", effort, sampling.max_tokens)
    given = request.chat_template_kwargs
    return ResponsesGeneration(
        model_name=served.name,
        turns=_joined(told, conversation),
        conversation=conversation,
        sampling=sampling,
        profile=profile,
        stream=bool(request.stream),
        tools=tools.tools,
        offered=tools.offered,
        left_out=tuple(left_out),
        schema_paths=tools.schema_paths,
        made_schemas=tools.made_schemas,
        tool_choice=choice.choice,
        chosen_tool=choice.name,
        withdrawn_tools=choice.withdrawn,
        parallel_tools=request.parallel_tool_calls is not False,
        answer_schema=_answer_schema(request.text),
        answer_strict=bool(request.text and request.text.format and request.text.format.strict),
        answer_path="text.format.schema",
        thinking=switched_thinking(given, thinking, sampling.max_tokens),
        template_variables=template_variables(given),
        shown=_shown(request, sampling),
        store=None if request.store is False else store,
        vocabulary=served.text.tokenizer.token_bytes if logprobs >= 0 else (),
    )


def _tool_params(request: ResponsesRequest, items: list[Item]) -> Iterator[tuple[str, ToolParam]]:
    """(Path, entry) of all tools, also of those that the input adds on the way."""
    for index, param in enumerate(request.tools or []):
        yield f"tools.{index}", param
    for place, item in enumerate(items):
        if item.type == ADDITIONAL_TOOLS:
            for index, param in enumerate(item.tools or []):
                yield f"input.{place}.tools.{index}", param


def _answer_schema(text: TextConfig | None) -> dict[str, Any] | None:
    if text is None or text.format is None:
        return None
    return answer_schema("text.format", text.format.type, JsonSchema(text.format.schema))


def _joined(told: tuple[Turn, ...], conversation: tuple[Turn, ...]) -> tuple[Turn, ...]:
    whole = Conversation(told)
    whole.extend(conversation)
    return whole.turns()


def _shown(request: ResponsesRequest, sampling: Sampling) -> dict[str, Any]:
    format = (request.text and request.text.format) or TextFormat()
    shown_format: dict[str, Any] = {"type": format.type}
    if format.type == "json_schema":
        shown_format |= {"name": format.name, "schema": format.schema, "strict": format.strict}
    return {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": request.reasoning and request.reasoning.effort, "summary": None},
        "store": request.store is not False,
        "temperature": sampling.temperature,
        "text": {"format": shown_format},
        "tool_choice": request.tool_choice or "auto",
        "tools": msgspec.to_builtins(list(filter(is_offered, request.tools or []))),
        "top_logprobs": request.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
    }


# ---- input ---------------------------------------------------------------------------------------
class _Reader:
    """Goes through the input once."""

    def __init__(self, before: tuple[Turn, ...], kept: KeptItems, image_notes: bool) -> None:
        self.left_out: list[str] = []
        self._before = before
        self._conversation = Conversation(before)
        self._kept = kept
        self._image_notes = image_notes

    def read(self, given: str | list[Item], items_max: int) -> tuple[Turn, ...]:
        """The conversation so far. Raises ApiError."""
        if isinstance(given, str):
            given = [Item(role="user", content=given)]
        if len(given) > items_max:
            raise field_error("input", f"at most {items_max} are taken")
        for index, item in enumerate(given):
            self._item(f"input.{index}", item)
        turns = self._conversation.turns()
        if turns == self._before:
            raise field_error("input", "at least one item with content is required")
        return turns

    def _item(self, path: str, item: Item) -> None:
        conversation = self._conversation
        if item.type == REFERENCE or (item.type == "message" and item.id and not item.role):
            if not item.id:
                raise field_error(f"{path}.id", "field required")
            item = msgspec.convert(self._kept.find(path, item.id), Item)
        if item.type == "message":
            role = ROLES.get(item.role or "")
            if role is None:
                raise unknown_value(f"{path}.role", item.role or "", ROLES)
            conversation.say(role, content_text(f"{path}.content", item.content))
        elif item.type in CALL_TYPES:
            conversation.call(path, *read_call(path, item))
        elif item.type in RESULT_TYPES:
            text, is_error = self._output(f"{path}.output", item.output)
            identifier = item.call_id or item.id or ""
            conversation.result(f"{path}.call_id", identifier, text, is_error=is_error)
        elif item.type == "reasoning":
            texts = [content_text(f"{path}.content", item.content)]
            texts += [content_text(f"{path}.summary", item.summary)] if not texts[0] else []
            conversation.think(BLOCK_SEPARATOR.join(filter(None, texts)))
        elif item.type in HOSTED_ITEMS:
            self.left_out.append(f"{path}:{item.type}")
        elif item.type != ADDITIONAL_TOOLS:
            raise unknown_value(f"{path}.type", item.type, ITEM_TYPES)

    def _output(self, path: str, output: Any) -> tuple[str, bool]:
        """(Text of a result, whether the model misses a part of it). What a shell returns is JSON
        of its own."""
        if output is None or isinstance(output, str):
            return output or "", False
        try:
            parts = msgspec.convert(output, list[Part])
        except msgspec.ValidationError:
            return canonical_json(output), False
        return result_text(path, parts, notes=self._image_notes)
