"""A request's system prompt and messages as turns: one form for everything that means the same.

String content, one text block and the same block with cache_control give the same turns. What
varies without meaning anything (lines of attribution, empty text blocks, the place of results
within their message) is brought into one form, so that conversations keep their
common prefix. Results stand behind their calls, in the order of these.

defines: Policy, Conversation, normalise
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...edge.errors import ApiError, field_error
from ...model.tool_formats import TOOL_NAME, ToolCall, ToolResult, canonical_json
from ...model.turns import (
    BLOCK_SEPARATOR,
    Block,
    Role,
    Text,
    Thinking,
    ToolList,
    Turn,
    stable,
)
from ..conversation import IMAGE_NOTE, NO_RESULT
from .content import (
    Base64Source,
    ContentSource,
    DefinedTool,
    DocumentBlock,
    FileSource,
    ImageBlock,
    InputBlock,
    McpToolUseBlock,
    RedactedThinkingBlock,
    ResultBlock,
    SearchResultBlock,
    ServerResult,
    ServerToolUseBlock,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ToolAdditionBlock,
    ToolReferenceBlock,
    ToolRemovalBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)
from .schema import Message, MessagesRequest
from .tools import ToolParam, ToolSet, read_tool

REMOVED = "The tool {name} can no longer be called."


def _no_files(identifier: str, path: str) -> str:
    """Where there are none to name."""
    del identifier
    raise field_error(path, "there are no files here")


class Policy(msgspec.Struct, frozen=True):
    """What a server decides for all its conversations."""

    model_name: str
    messages_max: int
    image_notes: bool = False
    """An image in a result becomes a note to the model, in place of a 400."""
    file_text: Callable[[str, str], str] = _no_files
    """(id, path of the field) -> text of an uploaded file. Raises ApiError."""


class Conversation(msgspec.Struct):
    """What normalisation makes of a request."""

    turns: list[Turn]
    withdrawn: frozenset[str]
    """Names of tools that were removed on the way."""


def normalise(request: MessagesRequest, tools: ToolSet, policy: Policy) -> Conversation:
    """Turns in order, neighbours merged; a last assistant turn is to be continued.

    Raises ApiError.
    """
    messages = request.messages
    if not messages and not request.tools:
        raise field_error("messages", "at least one message is required")
    if len(messages) > policy.messages_max:
        raise field_error("messages", f"at most {policy.messages_max} are taken")
    reader = _Reader(tools, policy)
    reader.opening(request.system)
    for index, message in enumerate(messages):
        reader.message(message, index, is_last=index == len(messages) - 1)
    reader.settle()
    turns = stable(reader.turns)
    if messages and not turns:
        raise field_error("messages", "at least one message with content is required")
    return Conversation(turns, frozenset(reader.withdrawn))


class _Calls(msgspec.Struct):
    """Calls of one assistant turn, and what came of them."""

    path: str
    place: int
    """Of the turn."""
    ids: dict[str, None]
    """In order."""
    results: dict[str, tuple[Block, ...]] = {}


class _Reader:
    """Walks through a request once."""

    def __init__(self, tools: ToolSet, policy: Policy) -> None:
        self.turns: list[Turn] = []
        """Neighbours are not merged yet."""
        self.withdrawn: set[str] = set()
        self._tools = tools
        self._policy = policy
        self._calls: _Calls | None = None
        """Whose results may still come."""

    # ---- turns ---------------------------------------------------------------------------------
    def opening(self, system: str | list[TextBlock] | None) -> None:
        if isinstance(system, str):
            self._add("system", [Text(system)])
            return
        self._add("system", [Text(block.text) for block in system or []])

    def message(self, message: Message, index: int, *, is_last: bool) -> None:
        path = f"messages.{index}"
        self._filled = False
        content = message.content
        blocks: Sequence[InputBlock] = [TextBlock(content)] if isinstance(content, str) else content
        if message.role == "assistant":
            self.settle()
            self._assistant(blocks, path)
        else:
            self._told(message.role, blocks, path)
        if self._filled or (is_last and message.role == "assistant"):
            return  # nothing to continue: the answer begins anew
        raise field_error(f"{path}.content", "must not be empty")

    def _add(self, role: Role, blocks: list[Block]) -> None:
        if told := _joined_texts(blocks):
            self.turns.append(Turn(role, tuple(told)))
            self._filled = True

    def _told(self, role: Role, blocks: Sequence[InputBlock], path: str) -> None:
        """A message of the user, or a system turn on the way."""
        said: list[Block] = []
        for number, block in enumerate(blocks):
            place = f"{path}.content.{number}"
            match block:
                case TextBlock(text=text):
                    said.append(Text(text))
                case DocumentBlock():
                    said.append(Text(self._document(block, place)))
                case SearchResultBlock():
                    said.append(Text(_search_result(block)))
                case ToolResultBlock() if role == "user":
                    self._result(block, place)
                    self._filled = True
                case ToolAdditionBlock() if role == "system":
                    said.append(self._addition(block, place))
                case ToolRemovalBlock() if role == "system":
                    said.append(self._removal(block, place))
                case _:
                    raise self._refused(block, role, place)
        self._add(role, said)

    def _assistant(self, blocks: Sequence[InputBlock], path: str) -> None:
        said: list[Block] = []
        for number, block in enumerate(blocks):
            place = f"{path}.content.{number}"
            match block:
                case TextBlock(text=text):
                    said.append(Text(text))
                case DocumentBlock():
                    said.append(Text(self._document(block, place)))
                case ThinkingBlock(thinking=thinking):
                    said += [Thinking(thinking)] if thinking else []
                    self._filled = True
                case RedactedThinkingBlock():
                    self._filled = True  # nobody here can read it
                case ToolUseBlock() | ServerToolUseBlock() | McpToolUseBlock():
                    said.append(_call(block, place))
                case ServerResult(tool_use_id=call_id, content=content):
                    # It came while the turn went on: the turn ends here and begins again.
                    self._end_assistant(said, path)
                    said = []
                    result = ToolResult(call_id, _json_text(content))
                    self._keep_result(call_id, (result,), f"{place}.tool_use_id")
                case _:
                    raise self._refused(block, "assistant", place)
        self._end_assistant(said, path)
        unanswered = {b.id for b in blocks if isinstance(b, ServerToolUseBlock | McpToolUseBlock)}
        if self._calls is not None:
            for call_id in unanswered & self._calls.ids.keys() - self._calls.results.keys():
                self._calls.results[call_id] = (ToolResult(call_id, NO_RESULT),)

    def _end_assistant(self, said: list[Block], path: str) -> None:
        if not said:
            return
        if self._calls is not None and self._calls.results:
            self.settle()
        self._add("assistant", said)
        ids = self._ids(said, path)
        if ids:
            known = self._calls.ids if self._calls is not None else {}
            self._calls = _Calls(path, len(self.turns) - 1, known | ids)

    def _ids(self, said: list[Block], path: str) -> dict[str, None]:
        """The ids of the calls, in order. Raises ApiError."""
        known = self._calls.ids if self._calls is not None else {}
        ids: dict[str, None] = {}
        for block in said:
            if not isinstance(block, ToolCall):
                continue
            if block.id in ids or block.id in known:
                shown = block.id[:MISSING_CHARACTERS_MAX]
                raise field_error(path, f"two `tool_use` blocks have the id {shown}")
            ids[block.id] = None
        return ids

    # ---- calls and results ---------------------------------------------------------------------
    def settle(self) -> None:
        """All results of the calls are there: they become the turn behind these. Raises ApiError
        if one is missing."""
        calls, self._calls = self._calls, None
        if calls is None:
            return
        missing = [call_id for call_id in calls.ids if call_id not in calls.results]
        if missing:
            reason = "`tool_use` without a `tool_result` in the next message: "
            raise field_error(calls.path, reason + ", ".join(missing)[:MISSING_CHARACTERS_MAX])
        results = [block for call_id in calls.ids for block in calls.results[call_id]]
        self.turns.insert(calls.place + 1, Turn("tool", tuple(results)))

    def _result(self, block: ToolResultBlock, path: str) -> None:
        content = block.content
        if isinstance(content, str) or content is None:
            blocks: list[ResultBlock] = [TextBlock(content or "")]
        else:
            blocks = content
        texts: list[str] = []
        tools: list[ToolList] = []
        is_error = bool(block.is_error)
        for number, part in enumerate(blocks):
            place = f"{path}.content.{number}"
            match part:
                case TextBlock(text=text):
                    texts.append(text)
                case DocumentBlock():
                    texts.append(self._document(part, place))
                case SearchResultBlock():
                    texts.append(_search_result(part))
                case ToolReferenceBlock(tool_name=name):
                    tools.append(self._reference(name, f"{place}.tool_name"))
                case ImageBlock() if self._policy.image_notes:
                    texts.append(IMAGE_NOTE)
                    is_error = True
                case _:
                    raise self._refused(part, "user", place)
        text = BLOCK_SEPARATOR.join(filter(None, texts))
        result = ToolResult(block.tool_use_id, text, is_error)
        self._keep_result(block.tool_use_id, (result, *tools), f"{path}.tool_use_id")

    def _keep_result(self, call_id: str, blocks: tuple[Block, ...], path: str) -> None:
        if self._calls is None or call_id not in self._calls.ids:
            raise field_error(path, "no `tool_use` of the message before it has this id")
        if call_id in self._calls.results:
            raise field_error(path, "this `tool_use` has a result already")
        self._calls.results[call_id] = blocks

    def _reference(self, name: str, path: str) -> ToolList:
        tool = self._tools.find(name)
        if tool is None:
            raise field_error(path, "no tool of this request has this name")
        return ToolList((tool,))

    def _addition(self, block: ToolAdditionBlock, path: str) -> ToolList:
        if isinstance(block.tool, DefinedTool):
            try:
                param = msgspec.json.decode(block.tool.definition, type=ToolParam)
            except msgspec.ValidationError:
                raise field_error(
                    f"{path}.tool.definition", "not the definition of a tool"
                ) from None
            tool = read_tool(param, f"{path}.tool.definition")
            self._tools.schema_paths[tool.name] = f"{path}.tool.definition.input_schema"
            told = ToolList((tool,))
        else:
            told = self._reference(block.tool.name, f"{path}.tool.name")
        self.withdrawn -= {tool.name for tool in told.tools}
        return told

    def _removal(self, block: ToolRemovalBlock, path: str) -> Text:
        name = block.tool.name
        if not TOOL_NAME.fullmatch(name):
            raise field_error(f"{path}.tool.name", "no tool has this name")
        self.withdrawn.add(name)
        return Text(REMOVED.format(name=name))

    # ---- contents ------------------------------------------------------------------------------
    def _document(self, block: DocumentBlock, path: str) -> str:
        match block.source:
            case TextSource(data=text):
                pass
            case ContentSource(content=str() as text):
                pass
            case ContentSource(content=parts):
                for number, part in enumerate(parts):
                    if isinstance(part, ImageBlock):
                        raise self._refused(part, "user", f"{path}.source.content.{number}")
                texts = [part.text for part in parts if isinstance(part, TextBlock)]
                text = BLOCK_SEPARATOR.join(filter(None, texts))
            case Base64Source():
                raise field_error(f"{path}.source.type", "this server reads documents as text only")
            case UrlSource():
                raise field_error(f"{path}.source.type", "this server fetches no URLs")
            case FileSource(file_id=file_id):
                text = self._policy.file_text(file_id, f"{path}.source.file_id")
        if not text:
            raise field_error(f"{path}.source", "must not be empty")
        head = [f"Document: {block.title}"] if block.title else ["Document:"]
        return BLOCK_SEPARATOR.join([*head, *filter(None, [block.context]), text])

    def _refused(self, block: Any, role: Role, path: str) -> ApiError:
        kind: str = block.__struct_config__.tag
        if kind == "image":
            return field_error(
                path, f"model {self._policy.model_name} does not support image input"
            )
        if kind in ASSISTANT_ONLY:
            return field_error(path, "belongs to assistant messages")
        if kind in UNSERVED:
            return field_error(path, UNSERVED[kind])
        return field_error(path, f"a block of this type is not taken in a message of the {role}")


MISSING_CHARACTERS_MAX = 200
"""Of ids that an error repeats."""
ASSISTANT_ONLY = ("thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use")
UNSERVED = {
    "container_upload": "this server has no containers",
    "compaction": "this server cannot compact conversations",
    "browser_state": "this server cannot see a browser",
}


def _joined_texts(blocks: list[Block]) -> list[Block]:
    """Without empty texts; neighbouring ones are one."""
    told = (block for block in blocks if not isinstance(block, Text) or block.text)
    joined: list[Block] = []
    for is_text, group in itertools.groupby(told, lambda block: isinstance(block, Text)):
        if is_text:
            texts = (block.text for block in group if isinstance(block, Text))
            joined.append(Text(BLOCK_SEPARATOR.join(texts)))
        else:
            joined += group
    return joined


def _call(block: ToolUseBlock | ServerToolUseBlock | McpToolUseBlock, path: str) -> ToolCall:
    if not TOOL_NAME.fullmatch(block.name):
        raise field_error(f"{path}.name", "expected 1 to 128 letters, digits, '_', '-' or '.'")
    return ToolCall(block.id, block.name, canonical_json(block.input))


def _search_result(block: SearchResultBlock) -> str:
    texts = [part.text for part in block.content]
    return BLOCK_SEPARATOR.join(filter(None, [block.title, block.source, *texts]))


def _json_text(content: Any) -> str:
    return content if isinstance(content, str) else canonical_json(content)
