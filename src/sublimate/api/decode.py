"""Bodies of every surface as typed structs, and the fields that none of them offers.

defines: decode_body, OtherFields, OTHERS_NOT_OFFERED, check_absent
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from ..edge.errors import ApiError, field_error
from ..edge.json_bounds import syntax_error
from ..edge.sampling import SamplingFields

Body = TypeVar("Body")


def decode_body(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """A body of any surface. Raises ApiError that names the field."""
    try:
        return _decoded(decoder, body)
    except msgspec.ValidationError as error:
        raise _refused_field(error) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise syntax_error(error, body) from None


def _decoded(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        if not _GOT_FLOAT.search(str(error)):
            raise
    # JavaScript and templates write 64.0: only the lax mode takes a whole float as an integer.
    return msgspec.json.decode(body, type=decoder.type, strict=False)


# ---- decoder errors ------------------------------------------------------------------------------
# Of the decoder's text only what these patterns know is used: field names of our own structs,
# indices, and the names of JSON types.
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_EXPECTED = re.compile(r"Expected `([a-z |]+)`")
_GOT_FLOAT = re.compile(r"Expected `int\b.*`, got `float`")
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
class OtherFields(SamplingFields, kw_only=True):
    """Of a request for an answer, whatever its API. Any: it only matters whether it is there."""

    execution_profile: str | None = None
    """An extension of this server."""
    chat_template_kwargs: dict[str, Any] | None = None
    """As vLLM and llama-server have it: see `template_variables` in api/conversation.py."""
    # Fields of other local servers that would change the answer.
    use_beam_search: Any = None
    prompt_logprobs: Any = None
    prompt_embeds: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    chat_template: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    grammar: Any = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None
    structural_tag: Any = None
    min_tokens: Any = None
    include_stop_str_in_output: Any = None


OTHERS_NOT_OFFERED = tuple(
    field.name
    for field in msgspec.structs.fields(OtherFields)
    if field.type is Any and field.name not in SamplingFields.__struct_fields__
)


NEUTRAL: tuple[Any, ...] = (None, False, "", [])
"""Values that ask for nothing; False equals 0."""


def check_absent(request: msgspec.Struct, names: Iterable[str]) -> None:
    """Raises ApiError for the first field that asks for something this server cannot do."""
    for name in names:
        if getattr(request, name) not in NEUTRAL:
            raise field_error(name, "not offered by this server")
