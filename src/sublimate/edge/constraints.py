"""From a prepared generation to what its answer is held to.

defines: wanted_of, constrained
"""

from __future__ import annotations

import msgspec

from ..grammar.compiler import StrictSchemaError, Wanted
from ..grammar.schema import MalformedSchemaError
from ..model.turns import is_continued
from .errors import ApiError
from .generation import Generation, Prompt
from .textmodel import TextModel


def wanted_of(prompt: Prompt, model: TextModel) -> Wanted:
    """What the request asks of its answer. A continued turn goes on with whatever stands there, so
    no document begins in it. A model that cannot be told not to think may think unasked."""
    generation = prompt.generation
    continued = is_continued(generation.turns)
    tools = generation.callable_tools if generation.tool_choice != "none" else ()
    if generation.tool_choice == "tool":
        tools = tuple(tool for tool in tools if tool.name == generation.chosen_tool)
    thinking = model.template.thinking_format
    unasked = thinking is not None and not thinking.switch and not generation.raw_prompt
    return Wanted(
        tools=tools,
        must_call=generation.tool_choice in ("any", "tool"),
        parallel=generation.parallel_tools,
        answer_schema=None if continued else generation.answer_schema,
        answer_strict=generation.answer_strict,
        may_think=(generation.thinking is not None or unasked) and not continued,
        begins_in_thinking=prompt.begins_in_thinking,
    )


def constrained(prompt: Prompt, model: TextModel) -> Prompt:
    """With its constraint, compiled if it is new. Raises ApiError."""
    try:
        constraint = model.grammars.constraint(wanted_of(prompt, model))
    except StrictSchemaError as error:
        raise ApiError("strict_schema", path=_path(prompt.generation, error)) from None
    except MalformedSchemaError as error:
        path = prompt.generation.answer_path
        path = f"{path}.{error.place}" if error.place else path
        raise ApiError("field", path=path, reason=error.reason) from None
    return msgspec.structs.replace(prompt, constraint=constraint) if constraint else prompt


def _path(generation: Generation, error: StrictSchemaError) -> str:
    if not error.tool:
        return f"{generation.answer_path}.{error.relaxation.place}"
    path = generation.schema_paths.get(error.tool, f"tools.{error.tool}")
    return f"{path}.{error.relaxation.place}"
