"""POST /v1/messages and /v1/messages/count_tokens: the story of one request.

    parse -> render -> tokenise -> submit -> stream

defines: create_message, count_tokens, choose_profile
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from ... import _core
from ...config import PROFILES, EdgeSettings, Profile
from ...edge import limits
from ...edge.engine import EngineLink, Submission
from ...edge.errors import ApiError, field_error
from ...edge.exchange import Exchange, Header, new_identifier
from ...edge.metrics import PARTS_PER_MILLION
from ...edge.sampling import Sampling, check_sampling
from ...edge.stream import Answer, CollectedAnswer, StreamedAnswer
from ...edge.timing import Timing
from .prepare import Prompt, prepare
from .schema import MessagesRequest

if TYPE_CHECKING:
    from ...edge.app import EdgeServer


def create_message(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """Answer with a message, streamed or whole. Raises ApiError."""
    timing = Timing(exchange.started_seconds)
    engine = server.engine_or_refuse()
    return prepared(
        server,
        exchange,
        engine.context_tokens,
        lambda prompt: submit(server, exchange, prompt, timing),
    )


def submit(server: EdgeServer, exchange: Exchange, prompt: Prompt, timing: Timing) -> None:
    """Hand a prepared request to the engine. Raises ApiError."""
    timing.prepared(*prompt.ends_ns)
    profile = choose_profile(prompt.request, server.settings)
    sampling = checked_sampling(server, prompt.request)
    engine = server.engine_or_refuse()  # it may have gone while a worker thread prepared
    answer = new_answer(server, engine, exchange, prompt, timing)
    submission = Submission(
        ids=prompt.ids,
        sampling=sampling,
        token_budget=min(sampling.max_tokens, engine.context_tokens - len(prompt.ids)),
        stop_tokens=(*server.model.tokenizer.stop_tokens, *sampling.stop_token_ids),
        profile=profile,
        tenant=server.access.tenant(exchange.tenant_key),
        format=answer.format,
        message_id=answer.message_id,
        model_name=answer.model_name,
        chunked=exchange.chunked,
    )
    if exchange.gone:
        return
    server.admit(exchange, len(prompt.ids))
    ticket = engine.submit(submission, answer, server.settings.queue_max)
    server.answer_begun(answer)
    answer.begin(engine, ticket)


def count_tokens(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """The prompt tokens of a request: same renderer and tokenizer, no engine. Raises ApiError."""
    context = _core.LIMITS["CONTEXT_TOKENS_MAX"] * limits.KIB  # counting has no context limit
    return prepared(server, exchange, context, lambda prompt: send_count(exchange, prompt))


def send_count(exchange: Exchange, prompt: Prompt) -> None:
    result: dict[str, Any] = {"input_tokens": len(prompt.ids)}
    if prompt.request.context_management is not None:
        result["context_management"] = {"original_input_tokens": len(prompt.ids)}
    exchange.send_json(200, msgspec.json.encode(result))


def prepared(
    server: EdgeServer, exchange: Exchange, context_tokens: int, then: Callable[[Prompt], None]
) -> Awaitable[None] | None:
    """Body to token ids, and on with them: at once, or for a long body on a worker thread, so that
    no stream waits for it. Raises ApiError."""
    request = exchange.request
    charset = request.field(b"content-type").lower().partition("charset=")[2].strip(' "')
    if charset not in ("", "utf-8", "utf8"):
        raise ApiError("charset")
    body, request.body = request.body, b""
    messages_max, owner = server.limits.messages_max, exchange.tenant_key

    def work() -> Prompt:
        return prepare(
            body,
            server.model,
            messages_max=messages_max,
            context_tokens=context_tokens,
            owner=owner,
        )

    async def elsewhere() -> None:
        then(await server.loop.run_in_executor(server.workers, work))

    if len(body) >= limits.OFFLOAD_BYTES_MIN:
        return elsewhere()
    then(work())
    return None


def checked_sampling(server: EdgeServer, request: MessagesRequest) -> Sampling:
    """Raises ApiError that names the field."""
    own_stops = len(server.model.tokenizer.stop_tokens)
    return check_sampling(
        request,
        vocabulary=len(server.model.tokenizer),
        stop_ids_max=_core.LIMITS["STOP_TOKENS_MAX"] - own_stops,
        bias_max=_core.LIMITS["LOGIT_BIAS_MAX"],
    )


def choose_profile(request: MessagesRequest, settings: EdgeSettings) -> Profile:
    """The execution profile by request, pin and contract. Raises ApiError."""
    named = request.execution_profile
    pinned = settings.execution_profile
    if named is not None and named not in PROFILES:
        raise field_error("execution_profile", f"expected one of {', '.join(PROFILES)}")
    if pinned:
        if named not in (None, pinned):
            raise ApiError("profile_pinned", pinned=pinned, named=named)
        return pinned
    if named is None and settings.profile_contract == "strict":
        raise ApiError("profile_missing")
    return named or settings.profile


def new_answer(
    server: EdgeServer, engine: EngineLink, exchange: Exchange, prompt: Prompt, timing: Timing
) -> Answer:
    kind = StreamedAnswer if prompt.request.stream else CollectedAnswer
    return kind(
        exchange,
        server.metrics,
        timing,
        message_id=new_identifier("msg"),
        model_name=prompt.model_name,
        prompt_tokens=len(prompt.ids),
        ping_seconds=server.limits.ping_seconds,
        headers=lambda: engine_headers(engine),
        on_end=server.answer_ended,
    )


def engine_headers(engine: EngineLink) -> list[Header]:
    """What the engine that runs the request reports; a header without a source is left out."""
    headers: list[Header] = []
    path = engine.info.get("compute_path")
    if isinstance(path, str) and path:
        headers.append(("x-compute-path", path))
    if engine.info.get("resident_loop") is True:
        headers.append(("x-layer-zero", "true"))
    busy = engine.stats()["utilization_ppm"]
    if busy:
        headers.append(("x-engine-utilization", f"{busy / PARTS_PER_MILLION:.3f}"))
    return headers
