"""From a body of the Messages API to a Generation.

defines: MessagesGeneration, read_message, read_count
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ...config import Profile
from ...edge.errors import ApiError, field_error
from ...edge.exchange import Exchange
from ...edge.generate import choose_profile, counted
from ...edge.generation import Generation, ThinkingBudget
from ...edge.sampling import UNLIMITED, Sampling, SamplingFields
from ...model.template import TemplateLimitError
from ...model.turns import Turn
from ..conversation import EFFORTS, switched_thinking, template_variables, within_answer
from ..files.handlers import FileTexts
from .edits import AppliedEdit, apply_edits
from .fingerprints import Fingerprint, Fingerprints, MissReason, fingerprint
from .normalise import Policy, normalise
from .schema import MessagesRequest, ThinkingParam, check_offered, decode_request
from .tools import read_tools

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

THINKING_TOKENS_MIN = 1024
"""Least budget that the API takes."""
FIRST_VERSION = "2023-06-01"
WINDOW_BETA = "model-context-window-exceeded-2025-08-26"
DEFAULT_EFFORT = "high"


class MessagesGeneration(Generation, frozen=True, kw_only=True):
    """With what only this API asks for."""

    original_tokens: int | None = None
    """Of the prompt before the edits of its context; None: the request names none."""
    applied_edits: tuple[AppliedEdit, ...] = ()
    fingerprint: Fingerprint | None = None
    """Of the prompt, if the request asks for diagnostics."""
    previous_message_id: str | None = None
    miss_reason: MissReason = ""
    """What of the prompt is not as it was for the previous message."""
    previous_tokens: int = 0
    names_window: bool = False
    """An answer that the context's end cut short says so; else it says max_tokens."""


def read_message(server: EdgeServer, exchange: Exchange, body: bytes) -> Generation:
    """Of POST /v1/messages. Raises ApiError."""
    request = decode_request(body)
    if not request.messages:
        raise field_error("messages", "at least one message is required")
    profile = choose_profile(request.execution_profile, server.settings, exchange.request)
    owner = exchange.tenant_key
    generation = _generation(server, request, request, profile, owner)
    changes: dict[str, Any] = {"names_window": _names_window(server, exchange)}
    if exchange.streams is not None:
        changes["stream"] = exchange.streams
    if request.diagnostics is not None:
        # Here and not when the answer begins: long bodies are read on worker threads.
        changes["fingerprint"] = fingerprint(generation)
    if previous := generation.previous_message_id:
        found = server.part(Fingerprints).compare(owner, previous, generation)
        changes["miss_reason"], changes["previous_tokens"] = found
    return msgspec.structs.replace(generation, **changes)


def _names_window(server: EdgeServer, exchange: Exchange) -> bool:
    """Clients of the first version repeat the request when they read of the window, unless they
    name the beta that brought this stop reason."""
    request = exchange.request
    betas = {name.strip() for name in request.field(b"anthropic-beta").split(",")}
    is_known = request.field(b"anthropic-version") > FIRST_VERSION or WINDOW_BETA in betas
    return server.settings.context_stop_reason == "auto" and is_known


def read_count(server: EdgeServer, body: bytes, owner: bytes) -> Generation:
    """Of POST /v1/messages/count_tokens, whose body says nothing of sampling. Raises ApiError."""
    unlimited = SamplingFields(max_tokens=UNLIMITED)
    return _generation(server, decode_request(body), unlimited, server.settings.profile, owner)


def _generation(
    server: EdgeServer,
    request: MessagesRequest,
    fields: SamplingFields,
    profile: Profile,
    owner: bytes,
) -> MessagesGeneration:
    served = server.models.resolve(request.model)
    check_offered(request)
    sampling = served.checked_sampling(fields)
    tools = read_tools(request.tools or [], tools_max=server.limits.tools_max)
    policy = Policy(
        served.name,
        server.limits.messages_max,
        image_notes=server.settings.tool_result_images == "note",
        file_text=FileTexts(server, owner).text,
    )
    conversation = normalise(request, tools, policy)
    given = request.chat_template_kwargs
    thinking = _thinking(request, conversation.turns, sampling)
    thinking = switched_thinking(given, thinking, sampling.max_tokens)
    variables = template_variables(given)
    told = tuple(tools.told.values())
    choice = request.tool_choice
    original_tokens, applied = None, list[AppliedEdit]()
    if request.context_management is not None:

        def count(turns: Sequence[Turn]) -> int:
            try:
                rendered = served.text.template.render(
                    turns, told, thinking=thinking is not None, variables=variables
                )
            except TemplateLimitError:
                raise ApiError("template_limit") from None
            return counted(rendered, served.text, served.prompt_tokens_max, owner)

        edits = request.context_management.edits or []
        conversation.turns, applied, original_tokens = apply_edits(conversation.turns, edits, count)
    generation = MessagesGeneration(
        model_name=served.name,
        turns=tuple(conversation.turns),
        sampling=sampling,
        profile=profile,
        stream=bool(request.stream),
        tools=told,
        left_out=(*tools.left_out, *(["mcp_servers"] if request.mcp_servers else [])),
        withdrawn_tools=conversation.withdrawn,
        schema_paths=tools.schema_paths,
        parallel_tools=not (choice and choice.disable_parallel_tool_use),
        answer_schema=_answer_schema(request),
        answer_path=f"{_format_name(request)}.schema",
        thinking=thinking,
        template_variables=variables,
        original_tokens=original_tokens,
        applied_edits=tuple(applied),
        previous_message_id=request.diagnostics and request.diagnostics.previous_message_id,
    )
    return _with_choice(generation, request)


def _with_choice(generation: MessagesGeneration, request: MessagesRequest) -> MessagesGeneration:
    """The choice of tools is checked against those that the conversation has told of."""
    choice = request.tool_choice
    if choice is None or choice.type == "auto":
        return generation
    names = {tool.name for tool in generation.callable_tools}
    if choice.type == "any" and not names:
        raise field_error("tool_choice", "there are no tools to choose from")
    if choice.type == "tool":
        if choice.name is None:
            raise field_error("tool_choice.name", "field required")
        if choice.name not in names:
            raise field_error("tool_choice.name", "no tool of this request has this name")
        changes = {"tool_choice": "tool", "chosen_tool": choice.name}
        return msgspec.structs.replace(generation, **changes)
    return msgspec.structs.replace(generation, tool_choice=choice.type)


def _answer_schema(request: MessagesRequest) -> dict[str, Any] | None:
    config = request.output_config
    chosen = (config.format if config is not None else None) or request.output_format
    return chosen.schema if chosen is not None else None


def _format_name(request: MessagesRequest) -> str:
    config = request.output_config
    has_config = config is not None and config.format is not None
    return "output_format" if request.output_format and not has_config else "output_config.format"


def _thinking(
    request: MessagesRequest, turns: Sequence[Turn], sampling: Sampling
) -> ThinkingBudget | None:
    """On or off, and how much. The model decides whether there is anything to switch."""
    param = request.thinking or ThinkingParam("disabled")
    if param.type == "disabled" or (param.type == "between_tools" and not _is_between(turns)):
        return None
    effort = (request.output_config and request.output_config.effort) or DEFAULT_EFFORT
    budget = EFFORTS[effort]
    if param.type == "enabled":
        if param.budget_tokens is None:
            raise field_error("thinking.budget_tokens", "field required")
        if param.budget_tokens < THINKING_TOKENS_MIN:
            reason = f"expected an integer of at least {THINKING_TOKENS_MIN}"
            raise field_error("thinking.budget_tokens", reason)
        budget = param.budget_tokens
    return within_answer(budget, sampling.max_tokens, is_shown=param.display != "omitted")


def _is_between(turns: Sequence[Turn]) -> bool:
    return bool(turns) and turns[-1].role == "tool"
