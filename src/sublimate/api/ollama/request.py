"""Bodies of POST /api/chat and /api/generate as Generations.

The server's own matters (num_ctx, num_gpu, num_thread, keep_alive and the like) are ignored: what
is served is what /api/ps says. Options that would change the answer and are not offered are a 400.

defines: ChatRequest, GenerateRequest, OllamaGeneration, read_chat, read_generate
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ...edge.errors import field_error
from ...edge.exchange import Exchange
from ...edge.generate import choose_profile
from ...edge.generation import Generation
from ...edge.limits import TEMPERATURE_MAX
from ...edge.sampling import Sampling, SamplingFields, token_limit
from ...model.turns import BLOCK_SEPARATOR, Role, Turn
from ..conversation import (
    IMAGE_NOTE,
    Conversation,
    check_tools,
    checked,
    make_tool,
    schema_paths,
    thinking_budget,
)
from ..decode import check_absent, decode_body
from ..openai.request import ANY_OBJECT, logprobs_of
from ..openai.scores import Vocabulary
from ..openai.tools import Inner

if TYPE_CHECKING:
    from ...edge.app import EdgeServer
    from ...edge.served import Served

SPOKEN: dict[str, Role] = {"system": "system", "user": "user"}
DEFAULT_THINK = "high"
NEUTRAL = {"mirostat": 0, "tfs_z": 1, "typical_p": 1}
"""Options that are not offered, and what they are when they are off."""


class Options(msgspec.Struct):
    num_predict: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    mirostat: float | None = None
    tfs_z: float | None = None
    typical_p: float | None = None


class SharedFields(msgspec.Struct, kw_only=True):
    model: str
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    # Extension of this server.
    execution_profile: str | None = None
    # Fields of other APIs that would bind the answer.
    tool_choice: Any = None
    response_format: Any = None
    json_schema: Any = None
    grammar: Any = None
    stop: Any = None
    min_tokens: Any = None


class CalledFunction(msgspec.Struct):
    name: str
    arguments: Any = None


class Call(msgspec.Struct):
    function: CalledFunction
    id: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[Call] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ToolParam(msgspec.Struct):
    function: Inner
    type: str = "function"


class ChatRequest(SharedFields, kw_only=True):
    messages: list[Message]
    tools: list[ToolParam] | None = None


class GenerateRequest(SharedFields, kw_only=True):
    prompt: str
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[Any] | None = None


NOT_OFFERED = ("tool_choice", "response_format", "json_schema", "grammar", "stop", "min_tokens")
ENCODE = msgspec.json.Encoder().encode
CHAT_DECODER = msgspec.json.Decoder(ChatRequest)
GENERATE_DECODER = msgspec.json.Decoder(GenerateRequest)


class OllamaGeneration(Generation, frozen=True, kw_only=True):
    """With what only this API asks for."""

    requested_name: str
    """As the client called the model."""
    vocabulary: Vocabulary = ()
    """Of the log-probabilities, if they are asked for."""


def read_chat(server: EdgeServer, exchange: Exchange, body: bytes) -> OllamaGeneration:
    """Raises ApiError."""
    request = decode_body(CHAT_DECODER, body)
    tools = [
        make_tool(
            f"tools.{index}.function",
            param.function.name,
            param.function.description,
            param.function.parameters,
            bool(param.function.strict),
        )
        for index, param in enumerate(request.tools or [])
    ]
    check_tools(tools, server.limits.tools_max)
    notes = server.settings.tool_result_images == "note"
    turns = read_messages(request.messages, server.limits.messages_max, image_notes=notes)
    paths = schema_paths(tools, "function.parameters")
    return _generation(
        server, exchange, request, turns=turns, tools=tuple(tools), schema_paths=paths
    )


def read_generate(server: EdgeServer, exchange: Exchange, body: bytes) -> OllamaGeneration:
    """Raises ApiError."""
    request = decode_body(GENERATE_DECODER, body)
    for name in ("suffix", "template", "context"):
        if getattr(request, name):
            raise field_error(name, "not offered by this server")
    _check_images("images", request.images)
    if not request.prompt:
        raise field_error("prompt", "must not be empty")
    if request.raw:
        return _generation(server, exchange, request, turns=(), raw_prompt=request.prompt)
    conversation = Conversation()
    conversation.say("system", request.system or "")
    conversation.say("user", request.prompt)
    return _generation(server, exchange, request, turns=conversation.turns())


def _generation(
    server: EdgeServer, exchange: Exchange, request: SharedFields, **parts: Any
) -> OllamaGeneration:
    check_absent(request, NOT_OFFERED)
    served = server.models.resolve(request.model)
    logprobs = logprobs_of(request.logprobs, request.top_logprobs)
    sampling = _sampling(served, request.options or Options(), logprobs)
    effort = request.think
    if isinstance(effort, bool):
        effort = DEFAULT_THINK if effort else None
    return OllamaGeneration(
        model_name=served.name,
        requested_name=request.model,
        sampling=sampling,
        profile=choose_profile(request.execution_profile, server.settings, exchange.request),
        stream=request.stream is not False,
        answer_schema=_answer_schema(request.format),
        answer_path="format",
        thinking=thinking_budget("think", effort, sampling.max_tokens),
        vocabulary=served.text.tokenizer.token_bytes if logprobs >= 0 else (),
        **parts,
    )


def _answer_schema(format: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if isinstance(format, dict):
        return format
    if format not in (None, "", "json"):
        raise field_error("format", "expected json or a JSON schema")
    return ANY_OBJECT if format else None


# ---- sampling ------------------------------------------------------------------------------------
def _sampling(served: Served, options: Options, logprobs: int) -> Sampling:
    for name, off in NEUTRAL.items():
        if getattr(options, name) not in (None, off):
            raise field_error(f"options.{name}", "not offered by this server")
    limit, temperature = options.num_predict, options.temperature
    fields = SamplingFields(
        max_tokens=token_limit(None if limit is not None and limit < 0 else limit),
        stop_sequences=[options.stop] if isinstance(options.stop, str) else options.stop,
        # Ollama has no upper bound; above this one the choice is close to uniform anyway.
        temperature=None if temperature is None else min(temperature, TEMPERATURE_MAX),
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        seed=options.seed,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
    )
    renamed = {
        "max_tokens": "num_predict",
        "stop_sequences": "stop",
        "repetition_penalty": "repeat_penalty",
    }
    ours = SamplingFields.__struct_fields__
    names = {name: f"options.{renamed.get(name, name)}" for name in ours}
    sampling = checked(lambda: served.checked_sampling(fields), names)
    return msgspec.structs.replace(sampling, logprobs=logprobs) if logprobs >= 0 else sampling


# ---- messages ------------------------------------------------------------------------------------
def read_messages(
    messages: list[Message], messages_max: int, *, image_notes: bool
) -> tuple[Turn, ...]:
    """Turns. image_notes: images of a result become a note. Raises ApiError."""
    if len(messages) > messages_max:
        raise field_error("messages", f"at most {messages_max} are taken")
    conversation = Conversation()
    names: dict[str, str] = {}
    """Id of a call -> its tool."""
    for index, message in enumerate(messages):
        path = f"messages.{index}"
        text, misses_images = message.content or "", False
        if message.role == "tool" and image_notes and message.images:
            notes = [IMAGE_NOTE] * len(message.images)
            text, misses_images = BLOCK_SEPARATOR.join(filter(None, [text, *notes])), True
        else:
            _check_images(f"{path}.images", message.images)
        if role := SPOKEN.get(message.role):
            conversation.say(role, text)
        elif message.role == "assistant":
            conversation.think(message.thinking or "")
            conversation.say("assistant", text)
            for place, call in enumerate(message.tool_calls or []):
                # Most clients send no ids, and results in the order of the calls.
                identifier = call.id or f"{index}.{place}"
                names[identifier] = call.function.name
                at = f"{path}.tool_calls.{place}.function"
                given: Any = call.function.arguments or {}
                arguments = given if isinstance(given, str) else ENCODE(given).decode()
                conversation.call(at, identifier, call.function.name, arguments)
        elif message.role == "tool":
            identifier = _answered(message, conversation.open_calls(), names)
            conversation.result(path, identifier, text, is_error=misses_images)
        else:
            raise field_error(f"{path}.role", "expected system, user, assistant or tool")
    turns = conversation.turns()
    if not turns:
        raise field_error("messages", "at least one message with content is required")
    return turns


def _answered(message: Message, open_calls: list[str], names: dict[str, str]) -> str:
    """Id of the call that a result belongs to; "" if none waits."""
    if message.tool_call_id in open_calls:
        return message.tool_call_id or ""
    of_tool = [call for call in open_calls if names[call] == message.tool_name]
    return (of_tool or open_calls or [""])[0]


def _check_images(path: str, images: list[Any] | None) -> None:
    if images:
        raise field_error(path, "this server cannot read images")
