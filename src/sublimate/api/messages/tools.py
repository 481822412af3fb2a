"""The tools of a request, with the schemas of those that the API defines and clients run.

defines: ToolParam, ToolSet, read_tools, read_tool, CLIENT_TOOLS
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...edge.errors import ApiError, field_error, unknown_value
from ...model.tool_formats import TOOL_NAME, Tool


class ToolParam(msgspec.Struct):
    """An entry of `tools`. What else one may hold (cache_control, input_examples,
    allowed_callers, eager_input_streaming) says nothing to a model."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ToolSet(msgspec.Struct):
    """By name, in order."""

    told: dict[str, Tool]
    """From the beginning."""
    deferred: dict[str, Tool]
    """Not before something names them."""
    left_out: list[str] = []
    """Place and type of each that this server does not offer."""
    schema_paths: dict[str, str] = {}
    """Where the schema of each stands in the body."""

    def find(self, name: str) -> Tool | None:
        return self.told.get(name) or self.deferred.get(name)


def read_tools(params: Sequence[ToolParam], *, tools_max: int) -> ToolSet:
    """Raises ApiError."""
    if len(params) > tools_max:
        raise field_error("tools", f"at most {tools_max} are taken")
    tools = ToolSet({}, {})
    for index, param in enumerate(params):
        if (kind := param.type or "").startswith(NOT_OFFERED):
            tools.left_out.append(f"tools.{index}:{kind}")
            continue
        tool = read_tool(param, f"tools.{index}")
        if tools.find(tool.name) is not None:
            raise ApiError("tool_name_conflict", path=f"tools.{index}.name", name=tool.name)
        (tools.deferred if param.defer_loading else tools.told)[tool.name] = tool
        tools.schema_paths[tool.name] = f"tools.{index}.input_schema"
    return tools


def read_tool(param: ToolParam, path: str) -> Tool:
    """Raises ApiError that names the field."""
    kind = param.type or "custom"
    if kind != "custom":
        known = CLIENT_TOOLS.get(kind)
        if known is None:
            hint = OTHER_SHAPE if kind == "function" else ""
            raise unknown_value(f"{path}.type", kind, ("custom", *CLIENT_TOOLS), hint)
        return Tool(known.name, known.description, known.schema, bool(param.strict))
    if param.name is None:
        raise field_error(f"{path}.name", "field required")
    if not TOOL_NAME.fullmatch(param.name):
        raise field_error(f"{path}.name", "expected 1 to 128 letters, digits, '_', '-' or '.'")
    if param.input_schema is None:
        raise field_error(f"{path}.input_schema", "field required")
    schema = {"type": "object", **param.input_schema}
    if schema["type"] != "object":
        raise field_error(f"{path}.input_schema.type", "expected object")
    return Tool(param.name, param.description or "", schema, bool(param.strict))


NOT_OFFERED = (
    *("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset"),
    *("advisor_", "computer_", "browser_"),
)
"""Beginnings of the types that the server would have to run, or whose images it cannot read."""
OTHER_SHAPE = (
    ". This is a tool as OpenAI's API has it: here `name`, `description` and `input_schema` stand"
    " in the tool itself"
)


# ---- tools without a schema of their own ---------------------------------------------------------
def _object(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


LINES = {
    "type": "array",
    "items": {"type": "integer"},
    "minItems": 2,
    "maxItems": 2,
    "description": "view: first and last line to show, from 1; a last line of -1 is the end.",
}
INSERT_LINE = {
    "type": "integer",
    "minimum": 0,
    "description": "insert: the line after which to insert; 0 is the beginning.",
}
EDITS = {
    "file_text": _text("create: the whole text of the new file."),
    "old_str": _text("str_replace: the text to replace; it must occur exactly once."),
    "new_str": _text("str_replace: the text to put in its place."),
    "insert_line": INSERT_LINE,
    "insert_text": _text("insert: the text to insert."),
    "view_range": LINES,
}


def _editor(name: str, *more_commands: str) -> Tool:
    commands = ["view", "create", "str_replace", "insert", *more_commands]
    schema = _object(
        ("command", "path"),
        command={"type": "string", "enum": commands},
        path=_text("Absolute path of the file, or of a folder to view."),
        **EDITS,
    )
    return Tool(name, "Views, creates and edits text files.", schema)


BASH = Tool(
    "bash",
    "Runs commands in a bash session that keeps its state between calls.",
    {
        "type": "object",
        "properties": {
            "command": _text("The command to run. Needed unless restart is true."),
            "restart": {"type": "boolean", "description": "Start the session anew."},
        },
    },
)
MEMORY = Tool(
    "memory",
    "Reads and writes files below /memories, which outlive this conversation. View the folder"
    " before a task, and keep there what later work will need.",
    _object(
        ("command",),
        command={
            "type": "string",
            "enum": ["view", "create", "str_replace", "insert", "delete", "rename"],
        },
        path=_text("Path of the file or folder, for all commands but rename."),
        old_path=_text("rename: the present path."),
        new_path=_text("rename: the new path."),
        **EDITS,
    ),
)
CLIENT_TOOLS: dict[str, Tool] = {
    "bash_20250124": BASH,
    "text_editor_20250124": _editor("str_replace_editor", "undo_edit"),
    "text_editor_20250429": _editor("str_replace_based_edit_tool"),
    "text_editor_20250728": _editor("str_replace_based_edit_tool"),
    "memory_20250818": MEMORY,
}
