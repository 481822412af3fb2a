"""Messages of the surfaces as turns, and the sampling fields that they call by names of their own.

What the Messages API and another surface say of the same conversation gives the same turns, so the
prompt, its tokens and what the prefix cache knows of it are the same.

defines: Conversation, make_tool, check_tools, schema_paths, checked, renamed, thinking_budget,
         within_answer, EFFORTS
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from ..edge.errors import ApiError, field_error
from ..edge.generation import ThinkingBudget, answer_reserve
from ..edge.json_bounds import decodable
from ..edge.sampling import UNLIMITED
from ..model.tool_formats import TOOL_NAME, Tool, ToolCall, ToolResult, canonical_json
from ..model.turns import Block, Role, Text, Thinking, Turn, stable

Value = TypeVar("Value")
IMAGE_NOTE = "(There was an image here. This model cannot see images.)"
"""Stands for an image in a tool's result, where the server is set to put one there."""


LOG = logging.getLogger("sublimate.edge")

NO_RESULT = "(The result of this call is not part of the conversation.)"
TEXT_KEY = "arguments"
"""Holds the arguments of an earlier call that are not an object."""


class Conversation:
    """Takes messages in order. Every method raises ApiError that names `path`."""

    def __init__(self, turns: Sequence[Turn] = ()) -> None:
        self._turns = list(turns)
        """Whole ones, not merged yet; after them calls that wait for their results."""
        self._calls: dict[str, str] = {}
        """Id of a call -> path of it."""
        if self._turns and self._turns[-1].role == "assistant":
            calls = self._turns[-1].calls
            self._calls = {call.id: "previous_response_id" for call in calls}
        self._results: dict[str, ToolResult] = {}

    def extend(self, turns: Iterable[Turn]) -> None:
        """By whole turns."""
        self._turns += turns

    def say(self, role: Role, text: str) -> None:
        """An empty text is nothing said."""
        if text:
            self._add(role, Text(text))

    def think(self, text: str) -> None:
        if text:
            self._add("assistant", Thinking(text))

    def call(
        self, path: str, identifier: str, name: str, arguments: str, *, inside: str = ""
    ) -> None:
        """arguments: a JSON object as text, however spaced; other text is kept as it is.
        `inside`: where the call has it and the name."""
        whole, path = path, f"{path}.{inside}" if inside else path
        if not TOOL_NAME.fullmatch(name):
            raise field_error(f"{path}.name", "expected 1 to 128 letters, digits, '_', '-' or '.'")
        given = _arguments(arguments)
        if not isinstance(given, dict):
            # The model wrote it, and the conversation must be able to go on.
            LOG.info("%s.arguments is not a JSON object: the model reads it as text", path)
            given = {TEXT_KEY: arguments}
        if self._results:
            self._settle()
        if identifier in self._calls:
            raise field_error(f"{whole}.id", "two calls have this id; give each its own")
        self._add("assistant", ToolCall(identifier, name, canonical_json(given)))
        self._calls[identifier] = whole

    def result(self, path: str, identifier: str, text: str, *, is_error: bool = False) -> None:
        """Of a call since the last turn of others; in any order."""
        if identifier not in self._calls or identifier in self._results:
            raise field_error(path, "no call before it waits for this result")
        self._results[identifier] = ToolResult(identifier, text, is_error)

    def open_calls(self) -> list[str]:
        """Ids of calls without a result, in order."""
        return [identifier for identifier in self._calls if identifier not in self._results]

    def turns(self) -> tuple[Turn, ...]:
        """The turns of the whole conversation. Raises ApiError if the last calls have no results:
        the client has forgotten them."""
        for identifier in self.open_calls():
            raise field_error(self._calls[identifier], "this call has no result; send it")
        self._settle()
        return tuple(stable(self._turns))

    def _add(self, role: Role, block: Block) -> None:
        if self._calls and (role != "assistant" or self._results):
            self._settle()
        self._turns.append(Turn(role, (block,)))

    def _settle(self) -> None:
        """The results of the last calls, in the order of the calls."""
        for identifier, path in self._calls.items():
            if identifier not in self._results:
                # A 400 here would refuse every later request of the conversation.
                LOG.info("%s has no result: the model reads that its result is missing", path)
                self._results[identifier] = ToolResult(identifier, NO_RESULT)
        if self._calls:
            results = tuple(self._results[identifier] for identifier in self._calls)
            self._turns.append(Turn("tool", results))
        self._calls, self._results = {}, {}


def _arguments(text: str) -> Any:
    """What the arguments of an earlier call say; their text if that is not JSON."""
    try:
        return msgspec.json.decode(decodable((text or "{}").encode()))
    except (msgspec.DecodeError, RecursionError):
        return text


# ---- tools ---------------------------------------------------------------------------------------
def make_tool(path: str, name: str, description: str | None, schema: Any, strict: bool) -> Tool:
    """Raises ApiError that names the field."""
    if not TOOL_NAME.fullmatch(name):
        raise field_error(f"{path}.name", "expected 1 to 128 letters, digits, '_', '-' or '.'")
    if schema is None:
        schema = {"type": "object", "properties": {}}
    if not isinstance(schema, dict):
        raise field_error(f"{path}.parameters", "expected an object")
    whole: dict[str, Any] = {"type": "object", **cast(dict[str, Any], schema)}
    if whole["type"] != "object":
        raise field_error(f"{path}.parameters.type", "expected object")
    return Tool(name, description or "", whole, strict)


def check_tools(tools: Sequence[Tool], tools_max: int, paths: Sequence[str] = ()) -> None:
    """paths: where each stands in the body, if not in `tools` one after the other. Raises
    ApiError."""
    if len(tools) > tools_max:
        raise field_error("tools", f"at most {tools_max} are taken")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in names:
            path = paths[index] if paths else f"tools.{index}"
            raise field_error(path, "two tools have the same name")
        names.add(tool.name)


def schema_paths(tools: Sequence[Tool], place: str) -> dict[str, str]:
    """By name: where the schema of each stands in a body whose entries of `tools` have it at
    `place`."""
    return {tool.name: f"tools.{index}.{place}" for index, tool in enumerate(tools)}


# ---- sampling ------------------------------------------------------------------------------------
def checked(check: Callable[[], Value], names: Mapping[str, str]) -> Value:
    """What `check` returns; what it refuses under one of our names has the client's name for it."""
    try:
        return check()
    except ApiError as error:
        raise renamed(error, names) from None


def renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    head, dot, rest = error.path.partition(".")
    if error.code != "field" or head not in names:
        return error
    reason = error.text.removeprefix(f"{error.path}: ")
    return field_error(names[head] + dot + rest, reason)


# ---- variables of the chat template --------------------------------------------------------------
VARIABLES_BYTES_MAX = 4096
TEMPLATE_OWN = frozenset(
    "messages tools documents add_generation_prompt continue_final_message bos_token eos_token "
    "raise_exception strftime_now".split()
)
"""Variables of a chat template that the server sets."""
THINKING_SWITCHES = ("enable_thinking", "thinking")


def template_variables(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """`chat_template_kwargs` without the switches of thinking. A variable that the model's
    template does not read has no effect. Raises ApiError."""
    path = "chat_template_kwargs"
    for name in given or ():
        if name in TEMPLATE_OWN:
            raise field_error(f"{path}.{name}", "the server sets this variable; leave it out")
    variables = {name: v for name, v in (given or {}).items() if name not in THINKING_SWITCHES}
    if len(msgspec.json.encode(variables)) > VARIABLES_BYTES_MAX:
        raise field_error(path, f"at most {VARIABLES_BYTES_MAX} bytes are taken")
    return variables


def switched_thinking(
    given: Mapping[str, Any] | None, thinking: ThinkingBudget | None, max_tokens: int
) -> ThinkingBudget | None:
    """The budget as `chat_template_kwargs` switches it, if it does. Raises ApiError."""
    for name in THINKING_SWITCHES:
        is_on = (given or {}).get(name)
        if is_on is None:
            continue
        if not isinstance(is_on, bool):
            raise field_error(f"chat_template_kwargs.{name}", "expected true or false")
        if not is_on:
            return None
        return thinking or within_answer(EFFORTS[SWITCHED_EFFORT], max_tokens)
    return thinking


# ---- thinking ------------------------------------------------------------------------------------
EFFORTS = {
    **{"minimal": 512, "low": 1024, "medium": 4096, "high": 16_384, "xhigh": 32_768},
    "max": UNLIMITED,
}
"""Tokens of thinking; "none" is off."""
SWITCHED_EFFORT = "high"
"""The budget of a request that only allows the model to think."""


def thinking_budget(path: str, effort: str | None, max_tokens: int) -> ThinkingBudget | None:
    """Off unless somebody asks for it. Raises ApiError."""
    if effort in (None, "none"):
        return None
    if effort not in EFFORTS:
        raise field_error(path, f"expected one of none, {', '.join(EFFORTS)}")
    return within_answer(EFFORTS[effort], max_tokens)


def within_answer(tokens: int, max_tokens: int, *, is_shown: bool = True) -> ThinkingBudget | None:
    """As much of `tokens` as leaves the answer its reserve; None: nothing is left to think with."""
    tokens = min(tokens, max_tokens - answer_reserve(max_tokens))
    return ThinkingBudget(tokens, is_shown) if tokens > 0 else None
