"""Content blocks of the Messages API as typed structs.

An unknown type of a block or a source is a 400 that names its path. What is known and cannot be
served has a struct too, so that normalise.py can say why.

defines: every block and source below; InputBlock, ResultBlock
"""

from __future__ import annotations

from typing import Any

import msgspec


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ImageBlock(msgspec.Struct, tag_field="type", tag="image"):
    source: Any = None


# ---- documents -----------------------------------------------------------------------------------
class TextSource(msgspec.Struct, tag_field="type", tag="text"):
    data: str


class ContentSource(msgspec.Struct, tag_field="type", tag="content"):
    content: str | list[TextBlock | ImageBlock]


class Base64Source(msgspec.Struct, tag_field="type", tag="base64"):
    data: str
    media_type: str = ""


class UrlSource(msgspec.Struct, tag_field="type", tag="url"):
    url: str


class FileSource(msgspec.Struct, tag_field="type", tag="file"):
    file_id: str


class DocumentBlock(msgspec.Struct, tag_field="type", tag="document"):
    source: TextSource | ContentSource | Base64Source | UrlSource | FileSource
    title: str | None = None
    context: str | None = None


class SearchResultBlock(msgspec.Struct, tag_field="type", tag="search_result"):
    source: str
    title: str
    content: list[TextBlock]


# ---- thinking ------------------------------------------------------------------------------------
class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(msgspec.Struct, tag_field="type", tag="redacted_thinking"):
    data: str = ""


# ---- calls and results ---------------------------------------------------------------------------
class ToolReferenceBlock(msgspec.Struct, tag_field="type", tag="tool_reference"):
    tool_name: str


class BrowserStateBlock(msgspec.Struct, tag_field="type", tag="browser_state"):
    """Of a toolset that needs pictures."""


ResultBlock = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolReferenceBlock
    | BrowserStateBlock
)


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(msgspec.Struct, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[ResultBlock] | None = None
    is_error: bool | None = None


class ServerToolUseBlock(msgspec.Struct, tag_field="type", tag="server_tool_use"):
    """A call that another server ran for itself."""

    id: str
    name: str
    input: dict[str, Any]


class McpToolUseBlock(msgspec.Struct, tag_field="type", tag="mcp_tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class ServerResult(msgspec.Struct, tag_field="type"):
    """What came of it. Kept as it is: JSON is text too."""

    tool_use_id: str
    content: Any = None


class WebSearchResult(ServerResult, tag="web_search_tool_result"): ...


class WebFetchResult(ServerResult, tag="web_fetch_tool_result"): ...


class CodeResult(ServerResult, tag="code_execution_tool_result"): ...


class BashCodeResult(ServerResult, tag="bash_code_execution_tool_result"): ...


class EditorCodeResult(ServerResult, tag="text_editor_code_execution_tool_result"): ...


class ToolSearchResult(ServerResult, tag="tool_search_tool_result"): ...


class McpResult(ServerResult, tag="mcp_tool_result"): ...


# ---- others --------------------------------------------------------------------------------------
class ContainerUploadBlock(msgspec.Struct, tag_field="type", tag="container_upload"): ...


class CompactionBlock(msgspec.Struct, tag_field="type", tag="compaction"): ...


class NamedTool(msgspec.Struct, tag_field="type", tag="tool_reference"):
    name: str


class DefinedTool(msgspec.Struct, tag_field="type", tag="tool_definition"):
    definition: msgspec.Raw
    """A ToolParam."""


class ToolAdditionBlock(msgspec.Struct, tag_field="type", tag="tool_addition"):
    tool: NamedTool | DefinedTool


class ToolRemovalBlock(msgspec.Struct, tag_field="type", tag="tool_removal"):
    tool: NamedTool


InputBlock = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ServerToolUseBlock
    | McpToolUseBlock
    | WebSearchResult
    | WebFetchResult
    | CodeResult
    | BashCodeResult
    | EditorCodeResult
    | ToolSearchResult
    | McpResult
    | ContainerUploadBlock
    | CompactionBlock
    | ToolAdditionBlock
    | ToolRemovalBlock
)
"""Of a message, whatever its role."""
