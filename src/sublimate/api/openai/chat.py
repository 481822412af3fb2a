"""The body of POST /v1/chat/completions as a Generation.

defines: ChatRequest, ChatGeneration, read_chat
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ...edge.errors import field_error, unknown_value
from ...edge.exchange import Exchange
from ...edge.generate import choose_profile
from ...edge.generation import Generation
from ...model.tool_formats import canonical_json
from ...model.turns import Role
from ..conversation import (
    Conversation,
    switched_thinking,
    template_variables,
    thinking_budget,
)
from ..decode import decode_body
from .request import (
    JsonSchema,
    Part,
    StopFields,
    answer_schema,
    check_choices,
    check_not_offered,
    checked_sampling,
    logprobs_of,
    read_choice,
    result_text,
    with_choices,
)
from .scores import Vocabulary
from .tools import Offered, ToolParam, read_tools

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

SPOKEN: dict[str, Role] = {"system": "system", "developer": "system", "user": "user"}


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str = ""


class CalledTool(msgspec.Struct):
    name: str
    input: str = ""


class Call(msgspec.Struct):
    id: str
    type: str = "function"
    function: CalledFunction | None = None
    custom: CalledTool | None = None


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    audio: Any = None


class ResponseFormat(msgspec.Struct):
    type: str
    json_schema: JsonSchema | None = None


class ChatRequest(StopFields, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    tools: list[ToolParam] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    modalities: list[str] | None = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    web_search_options: Any = None


DECODER = msgspec.json.Decoder(ChatRequest)


class ChatGeneration(Generation, frozen=True, kw_only=True):
    """With what only this API asks for."""

    include_usage: bool = False
    offered: dict[str, Offered]
    """The tools, by the names that the model knows."""
    vocabulary: Vocabulary = ()
    """Of the log-probabilities, if they are asked for."""


def read_chat(server: EdgeServer, exchange: Exchange, body: bytes) -> ChatGeneration:
    """Raises ApiError."""
    request = decode_body(DECODER, body)
    profile = choose_profile(request.execution_profile, server.settings, exchange.request)
    served = server.models.resolve(request.model)
    check_not_offered(request, "functions", "function_call", "audio")
    count = check_choices(request.n)
    if set(request.modalities or ()) - {"text"}:
        raise field_error("modalities", "this server answers with text")
    logprobs = logprobs_of(request.logprobs, request.top_logprobs)
    limit = ("max_tokens", request.max_tokens)
    if request.max_completion_tokens is not None:
        limit = ("max_completion_tokens", request.max_completion_tokens)
    sampling = checked_sampling(served, request, limit, request.stop, logprobs)
    params = [(f"tools.{index}", param) for index, param in enumerate(request.tools or [])]
    tools = read_tools(params, server.limits.tools_max, nested=True)
    choice = read_choice(request.tool_choice, tools)
    left_out = [] if request.web_search_options is None else ["web_search_options"]
    notes = server.settings.tool_result_images == "note"
    given, effort = request.chat_template_kwargs, request.reasoning_effort
    thinking = thinking_budget("reasoning_effort", effort, sampling.max_tokens)
    generation = ChatGeneration(
        model_name=served.name,
        turns=read_messages(request.messages, server.limits.messages_max, image_notes=notes),
        sampling=sampling,
        profile=profile,
        stream=bool(request.stream),
        tools=tools.tools,
        offered=tools.offered,
        left_out=(*tools.left_out, *left_out),
        schema_paths=tools.schema_paths,
        made_schemas=tools.made_schemas,
        tool_choice=choice.choice,
        chosen_tool=choice.name,
        withdrawn_tools=choice.withdrawn,
        parallel_tools=request.parallel_tool_calls is not False,
        answer_schema=_answer_schema(request.response_format),
        answer_strict=_is_strict(request.response_format),
        answer_path="response_format.json_schema.schema",
        thinking=switched_thinking(given, thinking, sampling.max_tokens),
        template_variables=template_variables(given),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        vocabulary=served.text.tokenizer.token_bytes if logprobs >= 0 else (),
    )
    return with_choices([generation], count)


def _answer_schema(format: ResponseFormat | None) -> dict[str, Any] | None:
    if format is None:
        return None
    path = "response_format"
    if format.type == "json_schema":
        path += ".json_schema"
    return answer_schema(path, format.type, format.json_schema)


def _is_strict(format: ResponseFormat | None) -> bool:
    return bool(format and format.json_schema and format.json_schema.strict)


def read_messages(
    messages: list[ChatMessage], messages_max: int, *, image_notes: bool
) -> tuple[Any, ...]:
    """Turns. image_notes: an image in a result becomes a note. Raises ApiError."""
    if len(messages) > messages_max:
        raise field_error("messages", f"at most {messages_max} are taken")
    conversation = Conversation()
    for index, message in enumerate(messages):
        path = f"messages.{index}"
        notes = image_notes and message.role == "tool"
        text, is_error = result_text(f"{path}.content", message.content, notes=notes)
        if role := SPOKEN.get(message.role):
            conversation.say(role, text)
        elif message.role == "assistant":
            _read_answer(conversation, path, message, text)
        elif message.role == "tool":
            if message.tool_call_id is None:
                raise field_error(f"{path}.tool_call_id", "field required")
            conversation.result(
                f"{path}.tool_call_id", message.tool_call_id, text, is_error=is_error
            )
        else:
            raise unknown_value(f"{path}.role", message.role, (*SPOKEN, "assistant", "tool"))
    turns = conversation.turns()
    if not turns:
        raise field_error("messages", "at least one message with content is required")
    return turns


def _read_answer(conversation: Conversation, path: str, message: ChatMessage, text: str) -> None:
    if message.function_call is not None:
        raise field_error(f"{path}.function_call", "not offered by this server; use tool_calls")
    if message.audio is not None:
        raise field_error(f"{path}.audio", "this server cannot hear audio")
    conversation.think(message.reasoning_content or message.reasoning or "")
    conversation.say("assistant", text or message.refusal or "")
    for index, call in enumerate(message.tool_calls or []):
        at = f"{path}.tool_calls.{index}"
        if call.type not in ("function", "custom"):
            raise unknown_value(f"{at}.type", call.type, ("function", "custom"))
        if call.type == "custom" and call.custom is not None:
            arguments = canonical_json({"input": call.custom.input})
            conversation.call(at, call.id, call.custom.name, arguments, inside="custom")
        elif call.type == "function" and call.function is not None:
            function = call.function
            conversation.call(at, call.id, function.name, function.arguments, inside="function")
        else:
            raise field_error(f"{at}.{call.type}", "field required")
