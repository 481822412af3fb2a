"""The body of POST /v1/responses as a Generation.

defines: ResponsesRequest, ResponsesGeneration, read_response
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ...edge.errors import field_error
from ...edge.exchange import Exchange
from ...edge.generate import choose_profile
from ...edge.generation import Generation
from ...edge.sampling import Sampling
from ...model.tool_formats import Tool
from ...model.turns import BLOCK_SEPARATOR, Role, Turn, said
from ..conversation import (
    Conversation,
    check_tools,
    make_tool,
    schema_paths,
    switched_thinking,
    template_variables,
    thinking_budget,
)
from ..decode import decode_body
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
)
from .response_store import ResponseStore, not_elsewhere
from .scores import Vocabulary

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
SCORES = "message.output_text.logprobs"
"""Of `include`: what this server can add. The others are of tools that it does not run."""


class Item(msgspec.Struct):
    """Of the input. What it holds depends on its type."""

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    summary: list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class ToolParam(msgspec.Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None


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
    metadata: dict[str, str] | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None


DECODER = msgspec.json.Decoder(ResponsesRequest)


class ResponsesGeneration(Generation, frozen=True, kw_only=True):
    """With what only this API asks for."""

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
    check_not_offered(request, "background", "conversation", "prompt", "context_management")
    if request.truncation not in (None, "disabled"):
        raise field_error("truncation", "this server never leaves out a part of a conversation")
    wants_scores = SCORES in (request.include or [])
    if wants_scores and request.tools:
        raise field_error("include", "log-probabilities are of answers without tools here")
    logprobs = logprobs_of(wants_scores, request.top_logprobs or None)
    limit = ("max_output_tokens", request.max_output_tokens)
    sampling = checked_sampling(served, request, limit, logprobs=logprobs)
    tools = read_tools(request.tools or [], server.limits.tools_max)
    choice = read_choice(request.tool_choice, tools)
    store = server.part(ResponseStore)
    before: tuple[Turn, ...] = ()
    if request.previous_response_id:
        not_elsewhere(server, exchange, request.previous_response_id)
        before = store.find(exchange.tenant_key, request.previous_response_id).turns
    conversation = read_input(request.input, before, server.limits.messages_max)
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
        tools=tuple(tools),
        schema_paths=schema_paths(tools, "parameters"),
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


def read_tools(params: list[ToolParam], tools_max: int) -> list[Tool]:
    """Raises ApiError."""
    tools: list[Tool] = []
    for index, param in enumerate(params):
        path = f"tools.{index}"
        if param.type != "function":
            raise field_error(f"{path}.type", "a function is the only kind of tool offered")
        if param.name is None:
            raise field_error(f"{path}.name", "field required")
        strict = bool(param.strict)
        tools.append(make_tool(path, param.name, param.description, param.parameters, strict))
    check_tools(tools, tools_max)
    return tools


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
        "tools": msgspec.to_builtins(request.tools or []),
        "top_logprobs": request.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
    }


# ---- input ---------------------------------------------------------------------------------------
def read_input(
    given: str | list[Item], before: tuple[Turn, ...], items_max: int
) -> tuple[Turn, ...]:
    """The conversation so far. Raises ApiError."""
    conversation = Conversation(before)
    if isinstance(given, str):
        given = [Item(role="user", content=given)]
    if len(given) > items_max:
        raise field_error("input", f"at most {items_max} are taken")
    for index, item in enumerate(given):
        _read_item(conversation, f"input.{index}", item)
    turns = conversation.turns()
    if turns == before:
        raise field_error("input", "at least one item with content is required")
    return turns


def _read_item(conversation: Conversation, path: str, item: Item) -> None:
    match item.type:
        case "message":
            role = ROLES.get(item.role or "")
            if role is None:
                raise field_error(f"{path}.role", "expected system, developer, user or assistant")
            conversation.say(role, content_text(f"{path}.content", item.content))
        case "function_call":
            for name in ("call_id", "name"):
                if getattr(item, name) is None:
                    raise field_error(f"{path}.{name}", "field required")
            arguments = item.arguments or ""
            conversation.call(path, item.call_id or "", item.name or "", arguments)
        case "function_call_output":
            text = content_text(f"{path}.output", item.output)
            conversation.result(f"{path}.call_id", item.call_id or "", text)
        case "reasoning":
            texts = [content_text(f"{path}.content", item.content)]
            texts += [content_text(f"{path}.summary", item.summary)] if not texts[0] else []
            conversation.think(BLOCK_SEPARATOR.join(filter(None, texts)))
        case _:
            raise field_error(f"{path}.type", "this server cannot read items of this type")
