"""A request's system prompt and messages as turns: one form for everything that means the same.

String content, one text block and the same block with cache_control give the same turns. What
varies without meaning anything (the billing line that a client puts first) is dropped, so that
conversations keep their common prefix.

defines: BILLING_PREFIX, normalise
"""

from __future__ import annotations

from ...edge.errors import ApiError, field_error
from ...model.turns import BLOCK_SEPARATOR, Role, Turn, append_turn, said
from .schema import Block, MessagesRequest

BILLING_PREFIX = "x-anthropic-billing-header:"
ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}

# Blocks that the API knows and this server cannot serve yet.
UNSERVED = {
    "image": "this server cannot read images yet",
    "document": "this server cannot read documents yet",
    "container_upload": "this server cannot read uploads yet",
    "search_result": "this server cannot read search results yet",
    "tool_use": "this server cannot call tools yet",
    "tool_result": "this server cannot call tools yet",
    "tool_reference": "this server cannot call tools yet",
    "tool_addition": "this server cannot call tools yet",
    "tool_removal": "this server cannot call tools yet",
    "server_tool_use": "this server cannot call tools yet",
    "mcp_tool_use": "this server cannot call tools yet",
    "mcp_tool_result": "this server cannot call tools yet",
    "web_search_tool_result": "this server cannot call tools yet",
    "web_fetch_tool_result": "this server cannot call tools yet",
    "code_execution_tool_result": "this server cannot call tools yet",
    "bash_code_execution_tool_result": "this server cannot call tools yet",
    "text_editor_code_execution_tool_result": "this server cannot call tools yet",
    "tool_search_tool_result": "this server cannot call tools yet",
    "compaction": "this server cannot compact conversations yet",
}
THINKING = ("thinking", "redacted_thinking")


def normalise(request: MessagesRequest, *, messages_max: int) -> list[Turn]:
    """Turns in order, neighbours merged; a last assistant turn is to be continued.

    Raises ApiError.
    """
    messages = request.messages
    if not messages:
        raise field_error("messages", "at least one message is required")
    if len(messages) > messages_max:
        raise field_error("messages", f"at most {messages_max} are taken")
    turns: list[Turn] = []
    if system := _system_text(request):
        turns.append(said("system", system))
    for index, message in enumerate(messages):
        path = f"messages.{index}"
        role = ROLES.get(message.role)
        if role is None:
            raise field_error(f"{path}.role", "expected user, assistant or system")
        text = _text(message.content, f"{path}.content", role)
        if not text:
            if role == "assistant" and index == len(messages) - 1:
                continue  # nothing to continue: the answer begins anew
            raise field_error(f"{path}.content", "must not be empty")
        append_turn(turns, said(role, text))
    if not turns:
        raise field_error("messages", "at least one message with content is required")
    return turns


def _system_text(request: MessagesRequest) -> str:
    system = request.system
    if system is None or isinstance(system, str):
        return system or ""
    blocks = system
    if blocks and (blocks[0].text or "").startswith(BILLING_PREFIX):
        blocks = blocks[1:]
    skipped = len(system) - len(blocks)
    texts: list[str] = []
    for index, block in enumerate(blocks):
        if block.type != "text":
            raise _refused_block(block, f"system.{index + skipped}")
        texts.append(_block_text(block, f"system.{index + skipped}"))
    return BLOCK_SEPARATOR.join(filter(None, texts))


def _text(content: str | list[Block], path: str, role: Role) -> str:
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for index, block in enumerate(content):
        if block.type == "text":
            texts.append(_block_text(block, f"{path}.{index}"))
        elif block.type in THINKING and role == "assistant":
            continue  # of another model or an earlier turn: no part of the prompt
        else:
            raise _refused_block(block, f"{path}.{index}")
    return BLOCK_SEPARATOR.join(filter(None, texts))


def _block_text(block: Block, path: str) -> str:
    if block.text is None:
        raise field_error(f"{path}.text", "field required")
    return block.text


def _refused_block(block: Block, path: str) -> ApiError:
    if reason := UNSERVED.get(block.type):
        return field_error(path, reason)
    if block.type in THINKING:
        return field_error(path, "thinking belongs to assistant messages")
    return field_error(f"{path}.type", "unknown block type")
