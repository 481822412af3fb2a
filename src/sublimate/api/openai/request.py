"""What the bodies of the OpenAI APIs share.

defines: SharedFields, StreamOptions, StopFields, check_not_offered, check_one, checked_sampling,
         Part, content_text, JsonSchema, answer_schema, Function, chosen_tool
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ...edge.errors import field_error
from ...edge.generation import UNLIMITED, ToolChoice
from ...edge.sampling import Sampling
from ...model.tool_formats import Tool
from ...model.turns import BLOCK_SEPARATOR
from ..conversation import checked
from ..decode import OTHERS_NOT_OFFERED, OtherFields, check_absent

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

ANY_OBJECT: dict[str, Any] = {"type": "object"}
CHOICES: dict[str, ToolChoice] = {"none": "none", "auto": "auto", "required": "any"}


class SharedFields(OtherFields, kw_only=True):
    """Of a request for an answer."""

    model: str
    stream: bool | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class StopFields(SharedFields, kw_only=True):
    """Of both kinds of completions."""

    stop: str | list[str] | None = None
    n: int | None = None
    stream_options: StreamOptions | None = None


def check_not_offered(request: SharedFields, *more: str) -> None:
    """Raises ApiError for the first field that asks for something this server cannot do."""
    check_absent(request, (*OTHERS_NOT_OFFERED, *more))


def check_one(name: str, value: int | None) -> None:
    if value not in (None, 1):
        raise field_error(name, "this server gives one answer per request")


def checked_sampling(
    server: EdgeServer,
    request: SharedFields,
    max_tokens: tuple[str, int | None],
    stop: str | list[str] | None = None,
    logprobs: int = -1,
) -> Sampling:
    """Under the names that the client gave. Raises ApiError."""
    name, limit = max_tokens
    request.max_tokens = UNLIMITED if limit is None else limit
    request.stop_sequences = [stop] if isinstance(stop, str) else stop
    names = {"max_tokens": name, "stop_sequences": "stop"}
    sampling = checked(lambda: server.checked_sampling(request), names)
    return msgspec.structs.replace(sampling, logprobs=logprobs) if logprobs >= 0 else sampling


# ---- content -------------------------------------------------------------------------------------
class Part(msgspec.Struct):
    """Of a message, as far as text needs it."""

    type: str
    text: str | None = None
    refusal: str | None = None


TEXT_PARTS = ("text", "input_text", "output_text", "reasoning_text", "summary_text")
UNSERVED = {
    "image_url": "this server cannot read images",
    "input_image": "this server cannot read images",
    "input_audio": "this server cannot hear audio",
    "file": "this server cannot read files here",
    "input_file": "this server cannot read files here",
}


def content_text(path: str, content: str | list[Part] | None) -> str:
    """Raises ApiError."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for index, part in enumerate(content):
        if reason := UNSERVED.get(part.type):
            raise field_error(f"{path}.{index}", reason)
        if part.type == "refusal":
            texts.append(part.refusal or "")
        elif part.type not in TEXT_PARTS:
            raise field_error(f"{path}.{index}.type", "unknown type of content")
        elif part.text is None:
            raise field_error(f"{path}.{index}.text", "field required")
        else:
            texts.append(part.text)
    return BLOCK_SEPARATOR.join(filter(None, texts))


# ---- formats and tools ---------------------------------------------------------------------------
class JsonSchema(msgspec.Struct):
    """response_format.json_schema, and text.format of the type json_schema."""

    schema: dict[str, Any] | None = None


def answer_schema(path: str, kind: str, schema: JsonSchema | None) -> dict[str, Any] | None:
    """Of a format by its type. Raises ApiError."""
    if kind == "text":
        return None
    if kind == "json_object":
        return ANY_OBJECT
    if kind != "json_schema":
        raise field_error(f"{path}.type", "expected text, json_object or json_schema")
    if schema is None or schema.schema is None:
        raise field_error(f"{path}.schema", "field required")
    return schema.schema


class Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None


def chosen_tool(
    choice: str | dict[str, Any] | None, name: Any, tools: list[Tool]
) -> tuple[ToolChoice, str]:
    """tool_choice of a generation and its name. `name`: of a choice that is an object. Raises
    ApiError."""
    if choice is None:
        return "auto", ""
    if isinstance(choice, str):
        known = CHOICES.get(choice)
        if known is None:
            raise field_error("tool_choice", "expected none, auto, required or a function")
        if known == "any" and not tools:
            raise field_error("tool_choice", "there are no tools to choose from")
        return known, ""
    if choice.get("type") != "function":
        raise field_error("tool_choice.type", "the choice of a function is the only one offered")
    if not isinstance(name, str) or name not in {tool.name for tool in tools}:
        raise field_error("tool_choice", "no tool of this request has this name")
    return "tool", name
