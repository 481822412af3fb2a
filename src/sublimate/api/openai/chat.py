"""The body of POST /v1/chat/completions as a Generation.

defines: ChatRequest, ChatGeneration, read_chat
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ...edge.errors import field_error
from ...edge.exchange import Exchange
from ...edge.generate import choose_profile
from ...edge.generation import Generation
from ...model.tool_formats import Tool
from ...model.turns import Role
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
    Function,
    JsonSchema,
    Part,
    StopFields,
    answer_schema,
    check_not_offered,
    check_one,
    checked_sampling,
    content_text,
    logprobs_of,
    read_choice,
)
from .scores import Vocabulary

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

SPOKEN: dict[str, Role] = {"system": "system", "developer": "system", "user": "user"}


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str = ""


class Call(msgspec.Struct):
    id: str
    function: CalledFunction
    type: str = "function"


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


class ToolParam(msgspec.Struct):
    type: str = "function"
    function: Function | None = None


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
    vocabulary: Vocabulary = ()
    """Of the log-probabilities, if they are asked for."""


def read_chat(server: EdgeServer, exchange: Exchange, body: bytes) -> ChatGeneration:
    """Raises ApiError."""
    request = decode_body(DECODER, body)
    profile = choose_profile(request.execution_profile, server.settings, exchange.request)
    served = server.models.resolve(request.model)
    check_not_offered(request, "functions", "function_call", "audio", "web_search_options")
    check_one("n", request.n)
    if set(request.modalities or ()) - {"text"}:
        raise field_error("modalities", "this server answers with text")
    logprobs = logprobs_of(request.logprobs, request.top_logprobs)
    limit = ("max_tokens", request.max_tokens)
    if request.max_completion_tokens is not None:
        limit = ("max_completion_tokens", request.max_completion_tokens)
    sampling = checked_sampling(served, request, limit, request.stop, logprobs)
    tools = read_tools(request.tools or [], server.limits.tools_max)
    choice = read_choice(request.tool_choice, tools)
    given, effort = request.chat_template_kwargs, request.reasoning_effort
    thinking = thinking_budget("reasoning_effort", effort, sampling.max_tokens)
    return ChatGeneration(
        model_name=served.name,
        turns=read_messages(request.messages, server.limits.messages_max),
        sampling=sampling,
        profile=profile,
        stream=bool(request.stream),
        tools=tuple(tools),
        schema_paths=schema_paths(tools, "function.parameters"),
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


def read_tools(params: list[ToolParam], tools_max: int) -> list[Tool]:
    """Raises ApiError."""
    tools: list[Tool] = []
    for index, param in enumerate(params):
        path = f"tools.{index}"
        if param.type != "function":
            raise field_error(f"{path}.type", "a function is the only kind of tool offered")
        function = param.function
        if function is None:
            raise field_error(f"{path}.function", "field required")
        schema, strict = function.parameters, bool(function.strict)
        path += ".function"
        tools.append(make_tool(path, function.name, function.description, schema, strict))
    check_tools(tools, tools_max)
    return tools


def _answer_schema(format: ResponseFormat | None) -> dict[str, Any] | None:
    if format is None:
        return None
    path = "response_format"
    if format.type == "json_schema":
        path += ".json_schema"
    return answer_schema(path, format.type, format.json_schema)


def _is_strict(format: ResponseFormat | None) -> bool:
    return bool(format and format.json_schema and format.json_schema.strict)


def read_messages(messages: list[ChatMessage], messages_max: int) -> tuple[Any, ...]:
    """Turns. Raises ApiError."""
    if len(messages) > messages_max:
        raise field_error("messages", f"at most {messages_max} are taken")
    conversation = Conversation()
    for index, message in enumerate(messages):
        path = f"messages.{index}"
        text = content_text(f"{path}.content", message.content)
        if role := SPOKEN.get(message.role):
            conversation.say(role, text)
        elif message.role == "assistant":
            _read_answer(conversation, path, message, text)
        elif message.role == "tool":
            if message.tool_call_id is None:
                raise field_error(f"{path}.tool_call_id", "field required")
            conversation.result(f"{path}.tool_call_id", message.tool_call_id, text)
        else:
            reason = "expected system, developer, user, assistant or tool"
            raise field_error(f"{path}.role", reason)
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
        if call.type != "function":
            raise field_error(f"{at}.type", "a function is the only kind of call offered")
        conversation.call(at, call.id, call.function.name, call.function.arguments)
