"""The grammar that the answer of a prepared generation is held to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

import msgspec

from ..grammar.compiler import StrictSchemaError, Wanted
from ..grammar.schema import MalformedSchemaError, Relaxation
from ..model.turns import is_continued
from .errors import ApiError, field_error
from .generation import Generation, Prompt
from .textmodel import TextModel

PLACES_TOLD_MAX = 8
PLACE_CHARACTERS_MAX = 200
PLACE_SAFE = "/$@:()[]"


def wanted_of(prompt: Prompt, model: TextModel) -> Wanted:
    """What the request asks of its answer. A named tool is called once. A model that cannot be told
    not to think may think unasked."""
    generation = prompt.generation
    continued = is_continued(generation.turns)
    choice = generation.tool_choice
    tools = generation.callable_tools if choice != "none" else ()
    if choice == "tool":
        tools = tuple(tool for tool in tools if tool.name == generation.chosen_tool)
    thinking = model.template.thinking_format
    unasked = thinking is not None and not thinking.switch and not generation.raw_prompt
    return Wanted(
        tools=tools,
        must_call=choice in ("any", "tool"),
        parallel=generation.parallel_tools and choice != "tool",
        answer_schema=generation.answer_schema,
        answer_strict=generation.answer_strict,
        may_think=(generation.thinking is not None or unasked) and not continued,
        begins_in_thinking=prompt.begins_in_thinking,
    )


def constrained(prompt: Prompt, model: TextModel) -> Prompt:
    """With its constraint, compiled if it is new. Raises ApiError."""
    _check(prompt.generation)
    try:
        constraint = model.grammars.constraint(wanted_of(prompt, model))
    except StrictSchemaError as error:
        raise ApiError(
            "strict_schema", path=_path(prompt.generation, error.tool, error.relaxation)
        ) from None
    except MalformedSchemaError as error:
        path = prompt.generation.answer_path
        path = f"{path}.{error.place}" if error.place else path
        raise ApiError("field", path=path, reason=error.reason) from None
    return msgspec.structs.replace(prompt, constraint=constraint) if constraint else prompt


def _check(generation: Generation) -> None:
    """Raises ApiError for what contradicts a constraint."""
    path = generation.answer_path.removesuffix(".schema").removesuffix(".json_schema")
    if generation.answer_schema is not None and is_continued(generation.turns):
        reason = "cannot be combined with a last assistant message; leave one of them out"
        raise field_error(path, reason)
    is_held = generation.answer_schema is not None or generation.tool_choice in ("any", "tool")
    if generation.sampling.ignore_eos and is_held:
        raise field_error("ignore_eos", "not with a format or a forced call: leave one of them out")


def relaxed_header(prompt: Prompt) -> Iterator[tuple[str, str]]:
    """Tells the places of the schemas that the answer is not held to, if there are such."""
    constraint = prompt.constraint
    relaxed = (*constraint.relaxed, *constraint.relaxed_later) if constraint else ()
    if not relaxed:
        return
    places = [_path(prompt.generation, tool, place) for tool, place in relaxed[:PLACES_TOLD_MAX]]
    yield "x-schema-relaxed", _listed(places, len(relaxed))


def left_out_header(generation: Generation) -> Iterator[tuple[str, str]]:
    """Reports the parts of the request that this server does not offer, if there are any."""
    if places := generation.left_out:
        yield "x-left-out", _listed(places[:PLACES_TOLD_MAX], len(places))


def _listed(places: Sequence[str], count: int) -> str:
    """The value of a header that shows the first of `count` places."""
    shown = [quote(place[:PLACE_CHARACTERS_MAX], safe=PLACE_SAFE) for place in places]
    if (more := count - len(shown)) > 0:
        shown.append(f"and {more} more")
    return ", ".join(shown)


def _path(generation: Generation, tool: str, relaxation: Relaxation) -> str:
    if not tool:
        return f"{generation.answer_path}.{relaxation.place}"
    path = generation.schema_paths.get(tool, f"tools.{tool}")
    if tool in generation.made_schemas:
        return path
    return f"{path}.{relaxation.place}"
