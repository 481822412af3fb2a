"""The story of one request, whatever surface it came through:

    read -> render -> tokenise -> (wait for its turn) -> submit -> stream

defines: NeedsThreadError, generate, prepared, choose_profile, prepare, check_length, counted
"""

from __future__ import annotations

import asyncio
import re
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from .._core import POLICY, BlockFormat
from ..config import PROFILES, EdgeSettings, Profile
from ..model.template import Rendered, TemplateLimitError
from ..model.tokenizer import Tokenizer
from ..model.turns import Text, ToolResult, Turn, is_continued
from ..policy.decision import Border, Decision, Hardware, decide
from ..policy.decision import Request as PolicyRequest
from . import limits
from .blocks import block_format
from .constraints import constrained, left_out_header, relaxed_header, wanted_of
from .engine import EngineLink, Submission
from .errors import ApiError, field_error
from .exchange import Exchange, Header, Request, new_identifier
from .generation import Generation, Prompt, Surface, thinking_limit
from .json_bounds import checked_json
from .memory import trimmed
from .observe.metrics import PARTS_PER_MILLION
from .observe.timing import Timing
from .relay import ElsewhereError
from .served import NotLoadedError, Served
from .textmodel import TextModel

if TYPE_CHECKING:
    from .app import EdgeServer
    from .stream import Answer

CHARSET = re.compile(r';\s*charset\s*=\s*"?([^";\s]+)', re.IGNORECASE)
TEXTS = (Text, ToolResult)
SAMPLE_CHARACTERS = 1 << 16
"""Of a prompt that cannot fit, whose tokens are estimated from its beginning."""


class NeedsThreadError(Exception):
    """Raised by a reader on the event loop's thread if it has to wait for a disk: it is called
    again on a worker thread."""


def generate(server: EdgeServer, exchange: Exchange, surface: Surface) -> Awaitable[None] | None:
    """Answer a request, streamed or whole. Raises ApiError."""
    timing = exchange.timing = Timing(exchange.started_seconds)
    if server.relief is not None:
        server.relief.check(exchange)
    server.refuse_unread()
    _refuse_in_overload(server, exchange)
    return prepared(
        server,
        exchange,
        lambda body: surface.read(server, exchange, body),
        lambda prompt: _submit_all(server, exchange, surface, prompt, timing),
        constrains=True,
    )


def _submit_all(
    server: EdgeServer, exchange: Exchange, surface: Surface, prompt: Prompt, timing: Timing
) -> Awaitable[None] | None:
    """Submit each answer of a request as a request of its own. If one fails, all of them fail.
    Raises as `_submit`."""
    if not prompt.others or surface.split is None:
        return _submit(server, exchange, surface, prompt, timing)
    prompts = (prompt, *prompt.others)
    waiting: list[tuple[Exchange, Awaitable[None]]] = []
    for one, part in zip(prompts, surface.split(exchange, prompts), strict=True):
        if exchange.answered:
            break
        part.timing = Timing(exchange.started_seconds)
        try:
            turn = _submit(server, part, surface, one, part.timing)
        except ApiError as error:
            part.fail(error)
            break
        if turn is not None:
            waiting.append((part, turn))
    return _each_in_turn(waiting) if waiting else None


async def _each_in_turn(waiting: Sequence[tuple[Exchange, Awaitable[None]]]) -> None:
    async def wait(part: Exchange, turn: Awaitable[None]) -> None:
        try:
            await turn
        except ApiError as error:
            part.fail(error)
        except NotLoadedError:
            part.fail(ApiError("engine_unavailable"))

    await asyncio.gather(*(wait(part, turn) for part, turn in waiting))


def _refuse_in_overload(server: EdgeServer, exchange: Exchange) -> None:
    """Raises ApiError (529) before the body is read, where no engine would take the request."""
    exchange.body_bytes = len(exchange.request.body)
    if len(server.models.all) > 1:
        return  # the body says which model's engines it is for
    tenant = server.access.tenant(exchange.tenant_key)
    target = server.settings.first_token_target
    server.models.main.engines.refuse_unread(tenant, exchange.body_bytes, target)


def _submit(
    server: EdgeServer, exchange: Exchange, surface: Surface, prompt: Prompt, timing: Timing
) -> Awaitable[None] | None:
    """Hand a prepared request to an engine when it is its turn. Raises ApiError; NotLoadedError if
    its model has left, or is another file by now."""
    served = server.models.of(prompt.generation.model_name)
    timing.prepared(*prompt.ends_ns)
    _check_there(server, served, prompt)
    if exchange.gone:
        return None
    engine, turn = _enter(server, served, exchange, prompt)
    if turn is None:
        _hand_over(server, served, engine, exchange, surface, prompt, timing)
        return None

    async def later() -> None:
        chosen, until = engine, turn
        while until is not None:
            await until
            if exchange.gone:
                if exchange.lease is not None:
                    exchange.lease.cancel()
                return
            if chosen in served.engines.links:
                break
            _check_there(server, served, prompt)
            chosen, until = _enter(server, served, exchange, prompt)
        _hand_over(server, served, chosen, exchange, surface, prompt, timing)

    return later()


def _check_there(server: EdgeServer, served: Served, prompt: Prompt) -> None:
    """It may have gone while a worker thread prepared or while others went first, or have come back
    as another file. Raises ApiError, NotLoadedError."""
    server.engine_or_refuse(served)
    if served.text_version != prompt.text_version:
        raise NotLoadedError(served, needs_engine=True)


def _enter(
    server: EdgeServer, served: Served, exchange: Exchange, prompt: Prompt
) -> tuple[EngineLink, Awaitable[None] | None]:
    """(The engine for a request, when it may be handed over to it). Raises ApiError."""
    tokens = len(prompt.ids)
    tenant = server.access.tenant(exchange.tenant_key)
    engine = served.engines.choose(prompt.ids, tenant, server.settings.queue_max, served.adapter)
    exchange.decision = _decided(server, served, engine, exchange, prompt)
    if server.relief is not None:
        server.relief.weigh(exchange)
    if exchange.lease is None:
        server.admit(exchange, tokens)
    target = server.settings.first_token_target
    turn = engine.reservations.turn(
        tenant, tokens, exchange.body_bytes, target, lambda: exchange.gone
    )
    return engine, turn


def _decided(
    server: EdgeServer, served: Served, engine: EngineLink, exchange: Exchange, prompt: Prompt
) -> Decision:
    """What the policy says of a request, from all that is known of it and of its engine."""
    generation, turns = prompt.generation, prompt.generation.turns
    messages, paragraphs = list[int](), list[int]()
    if len(prompt.ids) > SHARD_TOKENS:
        messages, paragraphs = served.text.borders.find(prompt.ids)
    asked = PolicyRequest(
        prompt_tokens=len(prompt.ids),
        output_tokens_max=max(0, _room(engine, prompt)),
        system_characters=len(turns[0].text) if turns and turns[0].role == "system" else 0,
        borders=(
            *(Border(place, "message") for place in messages),
            *(Border(place, "paragraph") for place in paragraphs),
        ),
        profile=generation.profile,
        streamed=generation.stream,
    )
    headroom = engine.headroom(engine.stats())
    if server.relief is not None and server.relief.is_open(exchange):
        headroom = msgspec.structs.replace(headroom, has_fallback_server=True)
    return decide(asked, Hardware(role="engine"), headroom)


def _room(engine: EngineLink, prompt: Prompt) -> int:
    """For the answer, in tokens."""
    asked = prompt.generation.sampling.max_tokens
    return min(asked, engine.context_tokens - len(prompt.ids))


def _hand_over(
    server: EdgeServer,
    served: Served,
    engine: EngineLink,
    exchange: Exchange,
    surface: Surface,
    prompt: Prompt,
    timing: Timing,
) -> None:
    """Raises ApiError."""
    answer = _new_answer(server, served, engine, exchange, surface, prompt, timing)
    blocks = _blocks(served.text, prompt)
    answer.has_blocks = blocks is not None
    sampling = prompt.generation.sampling
    room = _room(engine, prompt)
    submission = Submission(
        ids=prompt.ids,
        sampling=sampling,
        token_budget=room,
        stop_tokens=(*served.text.tokenizer.stop_tokens, *sampling.stop_token_ids),
        profile=prompt.generation.profile,
        tenant=server.access.tenant(exchange.tenant_key),
        format=answer.format,
        message_id=answer.message_id,
        model_name=prompt.generation.model_name,
        chunked=exchange.chunked,
        blocks=blocks,
        turn_ends=() if prompt.generation.raw_prompt else served.text.template.turn_ends,
        drops_space=_drops_space(served.text, prompt),
        constraint=prompt.constraint,
        adapter=served.adapter,
        thinking_tokens=thinking_limit(prompt.generation.thinking, room),
    )
    ticket = engine.submit(submission, answer, server.settings.queue_max)
    exchange.request.body = b""
    key = exchange.wire.connection_key
    answer.use = server.kernel.begin(
        key, server.models.owner_of(served, exchange.tenant_key), prompt.ids, worker=engine.worker
    )
    server.stories.submitted(answer, engine.trace, ticket, submission)
    server.answer_begun(answer)
    if server.relief is not None:
        server.relief.begun(answer)
    if surface.begun is not None:
        surface.begun(server, answer)
    answer.begin(engine, ticket)


def _drops_space(model: TextModel, prompt: Prompt) -> bool:
    generation = prompt.generation
    begins = not generation.raw_prompt and not is_continued(generation.turns)
    return begins and bool(model.template.turn_ends)


def _blocks(model: TextModel, prompt: Prompt) -> BlockFormat | None:
    """How the answer falls into blocks; None: it is one text."""
    generation = prompt.generation
    if generation.raw_prompt:
        return None
    tools = () if generation.tool_choice == "none" else generation.callable_tools
    tool_format = model.template.tool_format
    begins_in = "text" if is_continued(generation.turns) else ""
    thinking = generation.thinking
    return block_format(
        tool_format,
        model.template.thinking_format,
        model.tokenizer.special,
        callable_tools=tools,
        eager=prompt.constraint is not None,
        lenient=generation.tool_choice == "auto" and generation.answer_schema is None,
        several=generation.parallel_tools and tool_format.parallel,
        begins_in="thinking" if prompt.begins_in_thinking else begins_in,
        omit_thinking=thinking is not None and not thinking.is_shown,
    )


def _new_answer(
    server: EdgeServer,
    served: Served,
    engine: EngineLink,
    exchange: Exchange,
    surface: Surface,
    prompt: Prompt,
    timing: Timing,
) -> Answer:
    kind = surface.streamed if prompt.generation.stream else surface.collected
    of_engine: list[Header] | None = None

    def headers() -> list[Header]:
        """The engine's are those of the first call; what is not enforced may be known later."""
        nonlocal of_engine
        of_engine = engine_headers(engine) if of_engine is None else of_engine
        left_out = left_out_header(prompt.generation)
        return [*of_engine, *relaxed_header(prompt), *left_out]

    return kind(
        exchange,
        served.metrics,
        timing,
        prompt,
        message_id=new_identifier(surface.identifier),
        ping_seconds=server.limits.ping_seconds,
        headers=headers,
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
    headroom = engine.headroom(engine.stats())
    if headroom.utilization_ppm:
        # The roofline is what could be measured at the start, which beside others is too little.
        share = min(1.0, headroom.utilization_ppm / PARTS_PER_MILLION)
        headers.append(("x-engine-utilization", f"{share:.3f}"))
    if headroom.kv_tokens_total:
        free, total = headroom.kv_tokens_free, headroom.kv_tokens_total
        headers.append(("x-kv-headroom", f"free={free}, total={total}"))
    return headers


PROFILE_HEADER = b"x-execution-profile"
SHARD_TOKENS = POLICY["max_tokens_per_shard"]


def choose_profile(
    named: str | None, settings: EdgeSettings, request: Request | None = None
) -> Profile:
    """The execution profile by the body's field, else the header of the request, then pin and
    contract. Raises ApiError."""
    pinned = settings.execution_profile
    if named is None and request is not None:
        named = request.field(PROFILE_HEADER) or None
    if named is not None and named not in PROFILES:
        raise field_error("execution_profile", f"expected one of {', '.join(PROFILES)}")
    if pinned:
        if named not in (None, pinned):
            raise ApiError("profile_pinned", pinned=pinned, named=named)
        return pinned
    if named is None and settings.profile_contract == "strict":
        raise ApiError("profile_missing")
    return named or settings.profile


# ---- body to token ids ---------------------------------------------------------------------------
def prepared(
    server: EdgeServer,
    exchange: Exchange,
    read: Callable[[bytes], Generation],
    then: Callable[[Prompt], Awaitable[None] | None],
    *,
    constrains: bool = False,
    is_counted: bool = False,
) -> Awaitable[None] | None:
    """Body to token ids, and on with them: at once, or for a long body on a worker thread, so that
    no stream waits for it. `constrains`: with the constraint of the answer, too; a new one is
    compiled on a worker thread. `is_counted`: see `prepare`; nor does a request that is to be
    submitted wait for it. Raises ApiError."""
    request = exchange.request
    _check_charset(request)
    body = request.body
    if server.relief is None or is_counted:
        request.body = b""  # else it may have to go elsewhere

    workers = server.aside if is_counted else server.workers

    def work() -> Prompt:
        try:
            generation = read(checked_json(body))
        except ElsewhereError:
            request.body = body  # it goes on from here
            raise
        return _prompt_of(server, generation, exchange.tenant_key, constrains, is_counted)

    def text_of(prompt: Prompt) -> TextModel:
        return server.models.of(prompt.generation.model_name).text

    def held(prompt: Prompt) -> Prompt:
        if not constrains:
            return prompt
        text = text_of(prompt)
        others = tuple(constrained(other, text) for other in prompt.others)
        return msgspec.structs.replace(constrained(prompt, text), others=others)

    async def elsewhere(make: Callable[[], Prompt], turn: Awaitable[None] | None = None) -> None:
        size = len(body)

        async def attempt() -> None:
            nonlocal make, turn
            if turn is None:
                now, make = make, lambda: held(work())
                turn = then(await server.loop.run_in_executor(workers, lambda: trimmed(now, size)))
            waiting, turn = turn, None
            if waiting is not None:
                await waiting

        await server.models.once_loaded(exchange, attempt, needs_engine=constrains)

    if len(body) >= limits.OFFLOAD_BYTES_MIN:
        return elsewhere(lambda: held(work()))
    try:
        prompt = work()
    except (NeedsThreadError, NotLoadedError):
        return elsewhere(lambda: held(work()))
    if constrains:
        text = text_of(prompt)
        if not text.grammars.is_ready(wanted_of(prompt, text)):
            return elsewhere(lambda: held(prompt))
    more = then(held(prompt))
    return None if more is None else elsewhere(lambda: held(work()), more)


def _prompt_of(
    server: EdgeServer, generation: Generation, owner: bytes, needs_engine: bool, is_counted: bool
) -> Prompt:
    """By its model as it is now. Raises ApiError, NotLoadedError."""
    served = server.models.of(generation.model_name)
    if needs_engine and not served.links:
        served.engine_or_refuse()
    version = served.text_version
    prompts: list[Prompt] = []
    for one in (generation, *generation.others):
        last = prompts[-1] if prompts else None
        if last is not None and _has_prompt_of(one, last.generation):
            prompts.append(msgspec.structs.replace(last, generation=one))
            continue
        prompt = prepare(
            one,
            served.text,
            context_tokens=served.prompt_tokens_max if is_counted else served.context_tokens,
            owner=owner,
            is_counted=is_counted,
        )
        prompts.append(msgspec.structs.replace(prompt, text_version=version))
    first, *others = prompts
    return msgspec.structs.replace(first, others=tuple(others)) if others else first


def _has_prompt_of(one: Generation, other: Generation) -> bool:
    return one.turns is other.turns and one.raw_prompt is other.raw_prompt


def _check_charset(request: Request) -> None:
    found = CHARSET.search(request.field(b"content-type"))
    if found is not None and found[1].lower() not in ("utf-8", "utf8"):
        raise ApiError("charset")


def prepare(
    generation: Generation,
    model: TextModel,
    *,
    context_tokens: int,
    owner: bytes = b"",
    is_counted: bool = False,
) -> Prompt:
    """Everything that can be done without the engine. `owner`: whose conversations this one may
    continue. `is_counted`: it will not be submitted, so that it need not fit into the context.
    Raises ApiError."""
    read_ns = time.monotonic_ns()
    if isinstance(generation.raw_prompt, tuple):
        if len(generation.raw_prompt) > context_tokens:
            raise _too_long(len(generation.raw_prompt), context_tokens)
        ids = array("i", generation.raw_prompt)
        return Prompt(generation, ids, (read_ns, read_ns, time.monotonic_ns()))
    _check_texts(generation, model, context_tokens, is_counted)
    rendered = _rendered(generation, model)
    rendered_ns = time.monotonic_ns()
    check_length(rendered, model.tokenizer, context_tokens, is_counted=is_counted)
    ids = model.conversations.encode(rendered, owner)
    if len(ids) > context_tokens and not is_counted:
        raise _too_long(len(ids), context_tokens)
    thinking_format = model.template.thinking_format
    begins_in_thinking = (
        thinking_format is not None
        and not generation.raw_prompt
        and not is_continued(generation.turns)
        and thinking_format.opened_by(rendered.text)
    )
    return Prompt(generation, ids, (read_ns, rendered_ns, time.monotonic_ns()), begins_in_thinking)


def _check_texts(
    generation: Generation, model: TextModel, context_tokens: int, is_counted: bool
) -> None:
    """Refuse texts that are far too long after rendering the part that might fit: rendering all of
    them would hold the interpreter's lock for long. Raises ApiError."""
    most = _bytes_max(model.tokenizer, context_tokens, is_counted)
    left = max(most, SAMPLE_CHARACTERS) + 1
    blocks = [
        (turn.role, block)
        for turn in generation.turns
        for block in turn.blocks
        if isinstance(block, TEXTS)
    ]
    if generation.raw_prompt or sum(len(block.text) for _, block in blocks) < left:
        return
    # Templates may leave out the thinking of earlier answers.
    texts = [block for role, block in blocks if role != "assistant" or "</" not in block.text]
    size = sum(len(block.text) for block in texts)
    if size < left:
        return
    shortened: dict[int, Text | ToolResult] = {}
    for block in texts:
        kept = block.text[: max(1, left)]
        left -= len(kept)
        shortened[id(block)] = msgspec.structs.replace(block, text=kept)
    turns = tuple(
        Turn(turn.role, tuple(shortened.get(id(block), block) for block in turn.blocks))
        for turn in generation.turns
    )
    rendered = _rendered(msgspec.structs.replace(generation, turns=turns), model)
    if len(rendered.text) > most:
        left_out = size - sum(len(block.text) for block in shortened.values())
        tokens = _estimate(rendered, model.tokenizer, left_out)
        raise _too_long(max(context_tokens + 1, tokens), context_tokens)
    # The template leaves these texts out: render the prompt as usual.


def _rendered(generation: Generation, model: TextModel) -> Rendered:
    if isinstance(generation.raw_prompt, str) and generation.raw_prompt:
        return Rendered(generation.raw_prompt, "")
    is_thinking = generation.thinking is not None and not is_continued(generation.turns)
    try:
        return model.template.render(
            generation.turns,
            generation.tools,
            thinking=is_thinking,
            variables=generation.template_variables,
        )
    except TemplateLimitError:
        raise ApiError("template_limit") from None


def check_length(
    rendered: Rendered, tokenizer: Tokenizer, context_tokens: int, *, is_counted: bool = False
) -> None:
    """Raises ApiError for what is too long to be tokenised: even made of the longest token alone
    it could not fit, so there is no need to know the exact number."""
    if _is_longer(rendered.text, tokenizer, context_tokens, is_counted):
        tokens = max(context_tokens + 1, _estimate(rendered, tokenizer))
        raise _too_long(tokens, context_tokens)


def counted(rendered: Rendered, model: TextModel, context_tokens: int, owner: bytes) -> int:
    """Tokens of a prompt that will not be submitted as it is; estimated beyond `check_length`."""
    if _is_longer(rendered.text, model.tokenizer, context_tokens, is_counted=True):
        return _estimate(rendered, model.tokenizer)
    return len(model.conversations.encode(rendered, owner))


def _is_longer(text: str, tokenizer: Tokenizer, context_tokens: int, is_counted: bool) -> bool:
    most = _bytes_max(tokenizer, context_tokens, is_counted)
    size = len(text)
    return size > most or (not text.isascii() and len(text.encode(errors="replace")) > most)


def _bytes_max(tokenizer: Tokenizer, context_tokens: int, is_counted: bool) -> int:
    """The longest prompt text, in bytes, that may fit into the context or is counted."""
    most = context_tokens * tokenizer.longest_token_bytes
    return max(most, limits.COUNT_BYTES_MIN) if is_counted else most


def _estimate(rendered: Rendered, tokenizer: Tokenizer, left_out: int = 0) -> int:
    """The beginning tells the rate. left_out: characters of the prompt that were not rendered."""
    sample = tokenizer.encode_rendered(rendered.text[:SAMPLE_CHARACTERS], rendered.marker)
    size = len(rendered.text)
    return len(sample) * (size + left_out) // min(SAMPLE_CHARACTERS, size)


def _too_long(tokens: int, maximum: int) -> ApiError:
    return ApiError("prompt_too_long", tokens=tokens, maximum=maximum)
