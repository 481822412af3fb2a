"""What the bodies of the OpenAI APIs share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from ... import _core
from ...edge.errors import field_error, unknown_value
from ...edge.generation import Generation, ToolChoice
from ...edge.limits import CHOICES_MAX
from ...edge.sampling import HIGHEST_SEED, Sampling, token_limit
from ...model.turns import BLOCK_SEPARATOR
from ..conversation import IMAGE_NOTE, checked
from ..decode import OTHERS_NOT_OFFERED, OtherFields, check_absent
from .tools import CLIENT_TOOLS, ToolSet, flat_name

if TYPE_CHECKING:
    from ...edge.served import Served

SomeGeneration = TypeVar("SomeGeneration", bound=Generation)
LOGPROBS_MAX = _core.LIMITS["LOGPROBS_MAX"]
ANY_OBJECT: dict[str, Any] = {"type": "object"}
MODES: dict[str, ToolChoice] = {"auto": "auto", "required": "any"}
CHOICES: dict[str, ToolChoice] = {"none": "none", **MODES}
CHOSEN = ("function", "custom", *CLIENT_TOOLS)
"""Types of a choice of one tool."""


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


def check_choices(value: int | None) -> int:
    """Answers to each prompt. Raises ApiError."""
    if value is not None and not 1 <= value <= CHOICES_MAX:
        raise field_error("n", f"expected an integer from 1 to {CHOICES_MAX}")
    return value or 1


def with_choices(prompts: Sequence[SomeGeneration], count: int) -> SomeGeneration:
    """`count` answers to each prompt. With a seed each has a seed of its own."""
    answers = [
        answer
        if number == 0
        else msgspec.structs.replace(answer, sampling=_reseeded(answer, number))
        for answer in prompts
        for number in range(count)
    ]
    first, *others = answers
    return msgspec.structs.replace(first, others=tuple(others)) if others else first


def _reseeded(answer: Generation, number: int) -> Sampling:
    seed = answer.sampling.seed
    if seed is None:
        return answer.sampling
    moved = seed + number if seed + number < HIGHEST_SEED else seed - number
    return msgspec.structs.replace(answer.sampling, seed=moved)


def checked_sampling(
    served: Served,
    request: SharedFields,
    max_tokens: tuple[str, int | None],
    stop: str | list[str] | None = None,
    logprobs: int = -1,
) -> Sampling:
    """Under the names that the client gave. Raises ApiError."""
    name, limit = max_tokens
    request.max_tokens = token_limit(limit)
    request.stop_sequences = [stop] if isinstance(stop, str) else stop
    names = {"max_tokens": name, "stop_sequences": "stop"}
    sampling = checked(lambda: served.checked_sampling(request), names)
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


def logprobs_of(wanted: bool | None, top: int | None) -> int:
    """Alternatives per token; -1: no log-probabilities. Raises ApiError."""
    if top is not None and not 0 <= top <= LOGPROBS_MAX:
        raise field_error("top_logprobs", f"expected an integer from 0 to {LOGPROBS_MAX}")
    if top is not None and not wanted:
        raise field_error("top_logprobs", "needs logprobs to be true")
    return (top or 0) if wanted else -1


IMAGES = ("image_url", "input_image")


def result_text(path: str, content: str | list[Part] | None, *, notes: bool) -> tuple[str, bool]:
    """(Text of a tool's result, whether the model misses a part of it). notes: an image becomes a
    note to the model. Raises ApiError."""
    if not notes or content is None or isinstance(content, str):
        return content_text(path, content), False
    seen = [Part("text", IMAGE_NOTE) if part.type in IMAGES else part for part in content]
    return content_text(path, seen), any(part.type in IMAGES for part in content)


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
            raise unknown_value(f"{path}.{index}.type", part.type, TEXT_PARTS)
        elif part.text is None:
            raise field_error(f"{path}.{index}.text", "field required")
        else:
            texts.append(part.text)
    return BLOCK_SEPARATOR.join(filter(None, texts))


# ---- formats and tools ---------------------------------------------------------------------------
class JsonSchema(msgspec.Struct):
    """response_format.json_schema, and text.format of the type json_schema."""

    schema: dict[str, Any] | None = None
    strict: bool | None = None


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


class Choice(msgspec.Struct, frozen=True):
    """tool_choice as a generation has it."""

    choice: ToolChoice = "auto"
    name: str = ""
    withdrawn: frozenset[str] = frozenset()
    """Names of tools that are told and may not be called."""


def read_choice(given: str | dict[str, Any] | None, tools: ToolSet) -> Choice:
    """Read `tool_choice`. Chat completions put the tool's name into an object of its own, and
    responses do not. Raises ApiError."""
    if given is None:
        return Choice()
    names = tools.names
    if isinstance(given, str):
        return _choice_of_mode("tool_choice", given, CHOICES, names)
    kind = given.get("type")
    if kind == "allowed_tools":
        return _allowed(given, tools, names)
    if kind not in CHOSEN:
        shown = kind if isinstance(kind, str) else ""
        raise unknown_value("tool_choice.type", shown, (*CHOSEN, "allowed_tools"))
    return Choice("tool", _chosen_name("tool_choice", given, names))


def _choice_of_mode(
    path: str, mode: Any, modes: Mapping[str, ToolChoice], callable_names: Collection[str]
) -> Choice:
    known = modes.get(mode) if isinstance(mode, str) else None
    if known is None:
        raise field_error(path, f"expected {', '.join(modes)}, or the choice of a tool")
    if known == "any" and not callable_names:
        raise field_error("tool_choice", "there are no tools to choose from")
    return Choice(known)


def _allowed(given: dict[str, Any], tools: ToolSet, names: Mapping[str, str]) -> Choice:
    """Some of the tools: all are told, so that the prompt's beginning stays as it is."""
    path = "tool_choice"
    if isinstance(inner := given.get("allowed_tools"), dict):
        path, given = f"{path}.allowed_tools", cast(dict[str, Any], inner)
    entries = given.get("tools")
    if not isinstance(entries, list) or not entries:
        raise field_error(f"{path}.tools", "expected a list of at least one function")
    allowed = {
        _chosen_name(f"{path}.tools.{index}", entry, names)
        for index, entry in enumerate(cast(list[Any], entries))
        if not tools.leaves_out(_type_of(entry))
    }
    mode = _choice_of_mode(f"{path}.mode", given.get("mode"), MODES, allowed)
    return msgspec.structs.replace(mode, withdrawn=frozenset(tools.offered) - allowed)


def _type_of(entry: Any) -> str:
    kind = cast(dict[str, Any], entry).get("type") if isinstance(entry, dict) else None
    return kind if isinstance(kind, str) else ""


def _chosen_name(path: str, entry: Any, names: Mapping[str, str]) -> str:
    given = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
    kind = given.get("type")
    inner = given.get(kind, given) if isinstance(kind, str) else given
    name = cast(dict[str, Any], inner).get("name") if isinstance(inner, dict) else None
    if kind in CLIENT_TOOLS:
        name = kind
    if isinstance(name, str) and isinstance(namespace := given.get("namespace"), str):
        name = flat_name(namespace, name)
    if not isinstance(name, str) or name not in names:
        raise field_error(
            path,
            "no tool of this request has this name"
            " (a name that is in several namespaces needs its namespace)",
        )
    return names[name]
