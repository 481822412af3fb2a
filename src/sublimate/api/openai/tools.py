"""Tools of the OpenAI APIs as functions that the model calls, and its calls in the client's form.

A model calls functions, with JSON arguments. What a client offers in another form (custom tools
with free text, tools in a namespace, the shell and patch tools that run on its side) becomes a
function here, and a call of it becomes the item that the client waits for. Tools that the server
would have to run are left out, and the answer says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec

from ...edge.errors import field_error, unknown_value
from ...model.tool_formats import TOOL_NAME, Tool, canonical_json
from ..conversation import check_tools, make_tool

Json = dict[str, Any]
NAME_CHARACTERS_MAX = 128
NAMESPACE_SEPARATOR = "."
HOSTED_TOOLS = (
    *("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "computer"),
    *("tool_search", "programmatic_tool_calling"),
)
"""Beginnings of the types that the server would have to run, or whose images it cannot read."""
HOSTED_ITEMS = (
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
    *("tool_search_call", "tool_search_output", "mcp_list_tools", "mcp_call"),
    *("mcp_approval_request", "mcp_approval_response", "program", "program_output"),
)
"""Items of such tools. Their results are in the messages that follow."""


class Inner(msgspec.Struct, omit_defaults=True):
    """A function or a custom tool, as chat completions nest them."""

    name: str
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None
    format: Json | None = None


class ToolParam(msgspec.Struct, omit_defaults=True):
    """An entry of `tools`."""

    type: str = "function"
    name: str | None = None
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None
    format: Json | None = None
    environment: Json | None = None
    tools: list[ToolParam] | None = None
    function: Inner | None = None
    custom: Inner | None = None


class Offered(msgspec.Struct, frozen=True):
    """A tool that the model may call."""

    tool: Tool
    type: str
    """What the client calls this kind of tool."""
    name: str
    """The client's name for it, without the namespace."""
    namespace: str
    schema_path: str
    """The field that holds the schema, or the one that this server makes a schema of."""

    @property
    def has_schema(self) -> bool:
        """The schema is the client's own, so that errors can name a place in it."""
        return self.type == "function"


class ToolSet(msgspec.Struct):
    """Tools of one request."""

    offered: dict[str, Offered] = {}
    """Key: the name that the model knows."""
    left_out: list[str] = []
    """Place and type of each that is not offered."""
    left_out_types: set[str] = set()

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(each.tool for each in self.offered.values())

    @property
    def schema_paths(self) -> dict[str, str]:
        return {name: each.schema_path for name, each in self.offered.items()}

    @property
    def made_schemas(self) -> frozenset[str]:
        return frozenset(name for name, each in self.offered.items() if not each.has_schema)

    @property
    def names(self) -> dict[str, str]:
        """What a choice of tools may call each -> the name that the model knows. A name that two
        namespaces have chooses neither without its namespace."""
        shared = Counter(each.name for each in self.offered.values())
        plain = {each.name: name for name, each in self.offered.items() if shared[each.name] == 1}
        return plain | {name: name for name in self.offered}

    def leaves_out(self, kind: str) -> bool:
        """Whether tools of this type are not offered, so that a choice may name them in vain."""
        if kind in self.left_out_types:
            return all(each.type != kind for each in self.offered.values())
        return not is_offered(ToolParam(kind))


# ---- reading -------------------------------------------------------------------------------------
def read_tools(
    params: Iterable[tuple[str, ToolParam]], tools_max: int, *, nested: bool = False
) -> ToolSet:
    """Read (path, entry) pairs. nested: in the shape of chat completions. Raises ApiError."""
    found: list[Offered] = []
    paths: list[str] = []
    tools = ToolSet()
    for path, param, namespace in _without_namespaces(params, nested):
        kind = param.type
        if not is_offered(param):
            tools.left_out.append(f"{path}:{kind}")
            tools.left_out_types.add(kind)
            continue
        paths.append(path)
        if kind in CLIENT_TOOLS and not nested:
            found.append(Offered(CLIENT_TOOLS[kind], kind, kind, "", f"{path}.type"))
        elif kind in ("function", "custom"):
            found.append(_function(path, param, namespace, nested))
        else:
            raise unknown_value(f"{path}.type", kind, CHAT_KINDS if nested else KINDS)
    check_tools([each.tool for each in found], tools_max, paths)
    tools.offered = {each.tool.name: each for each in found}
    return tools


def _without_namespaces(
    params: Iterable[tuple[str, ToolParam]], nested: bool
) -> Iterator[tuple[str, ToolParam, str]]:
    """(Path, entry, namespace): those in a namespace in its place. Raises ApiError."""
    for path, param in params:
        if param.type != "namespace" or nested:
            yield path, param, ""
        elif param.name is None:
            raise field_error(f"{path}.name", "field required")
        elif param.name and not TOOL_NAME.fullmatch(param.name[-NAME_CHARACTERS_MAX:]):
            raise field_error(f"{path}.name", "expected letters, digits, '_', '-' or '.'")
        else:
            for index, inner in enumerate(param.tools or []):
                yield f"{path}.tools.{index}", inner, param.name


def is_offered(param: ToolParam) -> bool:
    """Whether the server need not run it."""
    if param.type == "shell" and param.environment is not None:
        return param.environment.get("type") == "local"
    return not param.type.startswith(HOSTED_TOOLS)


def _function(path: str, param: ToolParam, namespace: str, nested: bool) -> Offered:
    kind = param.type
    given: ToolParam | Inner = param
    if nested:
        path = f"{path}.{kind}"
        nested_tool = param.custom if kind == "custom" else param.function
        if nested_tool is None:
            raise field_error(path, "field required")
        given = nested_tool
    if given.name is None:
        raise field_error(f"{path}.name", "field required")
    name = flat_name(namespace, given.name)
    if kind == "custom":
        format = given.format or {}
        description, schema = _free_text(path, given.description or "", format)
        tool = make_tool(path, name, description, schema, strict=False)
        inner = ".grammar" if "grammar" in format else ""
        place = f"{path}.format{inner}.definition"
        return Offered(tool, kind, given.name, namespace, place)
    tool = make_tool(path, name, given.description, given.parameters, bool(given.strict))
    return Offered(tool, kind, given.name, namespace, f"{path}.parameters")


def flat_name(namespace: str | None, name: str) -> str:
    """The name by which the model knows a tool."""
    joined = f"{namespace}{NAMESPACE_SEPARATOR}{name}" if namespace else name
    return joined[-NAME_CHARACTERS_MAX:] if namespace else joined


def _free_text(path: str, description: str, format: Json) -> tuple[str, Json]:
    """(Description, schema) of a function that takes the text of a custom tool. Raises ApiError."""
    text: Json = {"type": "string"}
    grammar = format.get("grammar", format)
    if not isinstance(grammar, dict):
        raise field_error(f"{path}.format.grammar", "expected an object")
    grammar = cast(Json, grammar)
    definition = grammar.get("definition")
    if isinstance(definition, str) and grammar.get("syntax") == "regex":
        text["pattern"] = f"^(?:{definition})$"  # a grammar is of all the text, a pattern of a part
    elif isinstance(definition, str):
        description += f"\nThe input has to match this grammar:\n{definition}"
    return description, _object(("input",), input=text)


def _object(required: Sequence[str], **properties: Any) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}
COUNT = {"type": "integer", "minimum": 0}
CLIENT_TOOLS = {
    "local_shell": Tool(
        "local_shell",
        "Runs a command on the user's machine.",
        _object(("command",), command=TEXTS, working_directory=TEXT, timeout_ms=COUNT),
    ),
    "shell": Tool(
        "shell",
        "Runs commands in a shell on the user's machine.",
        _object(("commands",), commands=TEXTS, timeout_ms=COUNT, max_output_length=COUNT),
    ),
    "apply_patch": Tool(
        "apply_patch",
        "Creates, updates or deletes a file. `diff` is a patch in the V4A format; it is not needed"
        " to delete a file.",
        _object(
            ("type", "path"),
            type={"enum": ["create_file", "update_file", "delete_file"]},
            path=TEXT,
            diff=TEXT,
        ),
    ),
}
"""Tools without a schema of their own, which the client runs."""
CHAT_KINDS = ("function", "custom")
KINDS = (*CHAT_KINDS, "namespace", *CLIENT_TOOLS)


# ---- calls ---------------------------------------------------------------------------------------
def call_members(offered: Offered | None, name: str) -> tuple[str, str, Json]:
    """(Prefix of its id, type, members) of the item of a call, without its arguments."""
    if offered is None:
        return "fc", "function_call", {"name": name, "arguments": ""}
    known: Json = {"name": offered.name}
    if offered.namespace:
        known["namespace"] = offered.namespace
    match offered.type:
        case "function":
            return "fc", "function_call", {**known, "arguments": ""}
        case "custom":
            return "ctc", "custom_tool_call", {**known, "input": ""}
        case "local_shell":
            return "lsh", "local_shell_call", {"action": {"type": "exec", "command": [], "env": {}}}
        case "shell":
            action: Json = {"commands": [], "timeout_ms": None, "max_output_length": None}
            return "sh", "shell_call", {"action": action, "environment": {"type": "local"}}
        case _:
            operation: Json = {"type": "update_file", "path": "", "diff": ""}
            return "apc", "apply_patch_call", {"operation": operation}


def fill_call(item: Json, arguments: str) -> None:
    """Put the arguments that the model wrote into the item; of a call that was cut, what there
    is."""
    given = _object_in(arguments)
    match item["type"]:
        case "function_call":
            item["arguments"] = arguments
        case "custom_tool_call":
            item["input"] = free_text(arguments)
        case "apply_patch_call":
            item["operation"] = {**item["operation"], **(given or {})}
        case _:
            item["action"] = {**item["action"], **(given or {})}


def free_text(arguments: str) -> str:
    """The input of a custom tool, in the arguments of its function."""
    given = (_object_in(arguments) or {}).get("input")
    return given if isinstance(given, str) else arguments


def _object_in(arguments: str) -> Json | None:
    try:
        given = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return None
    return cast(Json, given) if isinstance(given, dict) else None


class CallItem(msgspec.Struct):
    """The members of a call's item besides its type."""

    type: str
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Any = None
    input: str | None = None
    action: Any = None
    operation: Any = None


CALL_TYPES = (
    *("function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call"),
)
RESULT_TYPES = tuple(f"{name}_output" for name in CALL_TYPES)


def read_call(path: str, item: CallItem) -> tuple[str, str, str]:
    """(Id, name that the model knows, arguments as JSON) of a call. Raises ApiError."""
    identifier = item.call_id or item.id
    if identifier is None:
        raise field_error(f"{path}.call_id", "field required")
    native = item.type.removesuffix("_call")
    if native in CLIENT_TOOLS:
        given = item.operation if native == "apply_patch" else item.action
        if not isinstance(given, dict):
            place = "operation" if native == "apply_patch" else "action"
            raise field_error(f"{path}.{place}", "expected an object")
        return identifier, native, canonical_json(_without_empty(native, cast(Json, given)))
    if item.name is None:
        raise field_error(f"{path}.name", "field required")
    name = flat_name(item.namespace, item.name)
    if item.type == "custom_tool_call":
        return identifier, name, canonical_json({"input": item.input or ""})
    given = item.arguments
    return identifier, name, given if isinstance(given, str) else canonical_json(given or {})


def _without_empty(native: str, given: Json) -> Json:
    """What the model wrote, without what fill_call has added."""
    known = CLIENT_TOOLS[native].schema["properties"]
    return {name: value for name, value in given.items() if name in known and value is not None}


# ---- calls of chat completions -------------------------------------------------------------------
def chat_call(offered: Offered | None, name: str, arguments: str) -> Json:
    """Members of a call: its type, and under this its name and what it is called with."""
    if offered is not None and offered.type == "custom":
        return {"type": "custom", "custom": {"name": name, "input": free_text(arguments)}}
    return {"type": "function", "function": {"name": name, "arguments": arguments}}
