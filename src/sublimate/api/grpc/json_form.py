"""Protobuf messages of a request as JSON, by the rules that messages.proto states, whatever the
message.

    a field                      the member of its name
    a field x_json               member x, whose JSON text it holds
    a oneof of blocks            an object whose "type" is the name of what is set
    text beside blocks           member content
    a field that may be absent   is absent

defines: to_json, struct_to_json
"""

from __future__ import annotations

import math
from typing import Any, cast

import msgspec
from google.protobuf.json_format import MessageToDict, SerializeToJsonError

from ...edge.errors import field_error
from ...edge.json_bounds import decodable, syntax_cause

JSON_SUFFIX = "_json"
STRUCT = "google.protobuf.Struct"
TOOL_INPUT = "sublimate.v1.ToolUseBlock.input"
"""Text of JSON, too: a client's library would make another order of it, and other numbers."""
VARIANTS = {"sublimate.v1.InputBlock", "sublimate.v1.Source"}
"""Messages that are one oneof, and nothing beside it."""
EITHER_WAY = {"sublimate.v1.InputMessage", "sublimate.v1.ToolResultBlock"}
"""Messages whose content is text or blocks."""
LEFT_OUT = {
    "sublimate.v1.CreateMessageRequest.json_body",
    "sublimate.v1.CreateMessageRequest.extra_body",
}
EXACT_TO = 1 << 53
"""Above, a number of a Struct may not be the integer that was meant."""


def to_json(message: Any, path: str = "") -> dict[str, Any]:
    """A JSON object. Its depth is bounded by what the protobuf runtime parses. Raises ApiError
    that names the field by its place in JSON."""
    kind = message.DESCRIPTOR
    if kind.full_name in VARIANTS:
        return _variant(message, path)
    result: dict[str, Any] = {}
    for field in kind.fields:
        if field.full_name in LEFT_OUT:
            continue
        name: str = field.name.removesuffix(JSON_SUFFIX)
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.is_repeated and not value:
            continue
        place = f"{path}.{name}" if path else name
        if name == "text" and kind.full_name in EITHER_WAY:
            if message.content:
                raise field_error(place, "expected text or content, and not both")
            result["content"] = value
        elif name in result:
            raise field_error(place, "given twice, as a message and as JSON")
        elif name != field.name or field.full_name == TOOL_INPUT:
            result[name] = _raw(value or "{}", place)
        else:
            result[name] = _value(field, value, place)
    return result


def _variant(message: Any, path: str) -> Any:
    """A block of the kind that is set."""
    which = message.WhichOneof(message.DESCRIPTOR.oneofs[0].name)
    if which is None:
        raise field_error(f"{path}.type", "field required")
    inner = getattr(message, which)
    if which.endswith(JSON_SUFFIX):
        return _raw(inner, path)
    return {"type": which, **to_json(inner, path)}


def _value(field: Any, value: Any, path: str) -> Any:
    if field.message_type is None:
        return list(value) if field.is_repeated else _finite(value, path)
    if field.message_type.full_name == STRUCT:
        return struct_to_json(value, path)
    if field.is_repeated:
        return [to_json(item, f"{path}.{index}") for index, item in enumerate(value)]
    return to_json(value, path)


def _finite(value: Any, path: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise field_error(path, "expected a finite number")
    return value


def _raw(text: str, path: str) -> msgspec.Raw:
    """JSON text as it is. Raises ApiError."""
    value = decodable(text.encode())
    try:
        return msgspec.json.decode(value, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = f"expected the text of a JSON value: {syntax_cause(error, value)}"
        raise field_error(path, reason) from None


def struct_to_json(struct: Any, path: str) -> dict[str, Any]:
    """Members sorted, since a Struct has no order that two processes would agree on, and whole
    numbers as integers, since it has none. Raises ApiError."""
    try:
        told: dict[str, Any] = MessageToDict(struct)
    except (ValueError, SerializeToJsonError):
        raise field_error(path, "expected finite numbers") from None
    containers: list[dict[str, Any] | list[Any]] = [told]
    while containers:
        container = containers.pop()
        keys: Any = sorted(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            value: Any = container[key]
            if isinstance(container, dict):
                del container[key]  # so that it comes behind those before it
                container[key] = value
            if isinstance(value, dict | list):
                containers.append(cast(Any, value))
            elif isinstance(value, float) and value.is_integer() and abs(value) <= EXACT_TO:
                container[key] = int(value)
    return told
