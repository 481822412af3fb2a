"""Another server answers what no engine here can take: overflow, or all while the engine is down.

What a client gets is that server's answer as it comes, event by event, with x-compute-path:
fallback. If the other server fails as well before a byte was sent, the client gets the error that
it would have had without it; later, an error event. Both servers have a circuit: one that failed
is asked again by a single request, and in full when that one is answered.

defines: Fallback
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ..edge import limits
from ..edge.coding import FRAMES_TYPE, accepts_frames
from ..edge.errors import ApiError
from ..edge.exchange import EVENT_STREAM, Exchange, new_identifier
from ..edge.json_bounds import checked_json
from ..edge.relief import REASONS
from ..families import new_counter, new_gauge
from ..guard.chat_form import (
    ChatEvents,
    UnmappableError,
    chat_request,
    message_of_chat,
    tokens_of,
)
from ..guard.circuit import CIRCUIT_STATES, Circuit
from ..guard.message_form import OddFormError, fitted_message
from ..guard.upstream import CHAT, MESSAGES, Reply, Upstream, UpstreamError
from .messages.framed import FRAMES_SHAPE, Framer, data_of

if TYPE_CHECKING:
    from ..edge.app import EdgeServer
    from ..edge.stream import Answer

LOG = logging.getLogger("sublimate.guard")
Json = dict[str, Any]
HOP = "x-sublimate-fallback"
"""A request that came from a fallback is sent to none: two servers may name each other."""
COMPUTE_PATH = ("x-compute-path", "fallback")
OK = 200
REFUSALS = frozenset((400, 404, 405, 413, 415, 422))
"""Statuses by which it says that the request is not for it; any other: that it is not well."""
UNTOLD = frozenset(("client_gone", "unmappable", "inexpressible"))
"""Ends that say nothing of how the other server is."""
ENGINE_IS_DOWN = frozenset(("engine_unavailable", "hardware"))
VERSION = "2023-06-01"
EVENT_END = b"\n\n"
EVENT_BYTES_MAX = 4 << 20
DONE = b"[DONE]"


class _RefusedError(Exception):
    """The other server does not take this request."""


class Fallback:
    """Of one edge; a Part of its server, and its Relief."""

    def __init__(self, server: EdgeServer) -> None:
        """Raises ConfigError for a URL that is none."""
        settings = server.settings
        self._server = server
        self._upstream = Upstream(settings.fallback)
        self._key = settings.fallback_key
        self._model = settings.fallback_model
        self._speaks_chat = self._upstream.address.speaks_chat
        self.circuit = Circuit()
        self.engine_circuit = Circuit(failures_max=1)
        self._probe: Answer | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._ends: Counter[str] = Counter()
        server.metrics.parts.append(self.families)

    # ---- Relief --------------------------------------------------------------------------------
    def check(self, exchange: Exchange) -> None:
        now = time.monotonic()
        if not self.engine_circuit.would_let(now) and self._may_go(exchange, now):
            raise ApiError("engine_unavailable").after(limits.ENGINE_LOST_RETRY_SECONDS)

    def is_open(self, exchange: Exchange) -> bool:
        return self._may_go(exchange, time.monotonic())

    def weigh(self, exchange: Exchange) -> None:
        self.check(exchange)  # another one may have begun to try it since
        decision = exchange.decision
        if decision is not None and decision.target == "server":
            error = ApiError("overloaded").after(limits.OVERLOAD_RETRY_SECONDS)
            error.shed_reason = decision.reason
            raise error

    def begun(self, answer: Answer) -> None:
        # Only now, as it will end in any case: what is refused before would owe its word for ever.
        is_closed = self.engine_circuit.state == "closed"
        if not is_closed and self.engine_circuit.let(time.monotonic()):
            self._probe = answer

    def ended(self, answer: Answer) -> None:
        is_probe = answer is self._probe
        if is_probe:
            self._probe = None
        if not answer.is_broken:
            self.engine_circuit.succeeded()
        elif answer.stop_reason == "engine_lost" and not self._server.models.links:
            # While another engine is left the requests are its own; a single answer that failed
            # says nothing of those of others.
            self.engine_circuit.failed(time.monotonic())
        elif is_probe and answer.stop_reason == "failed":
            self.engine_circuit.failed(time.monotonic())
        elif is_probe:
            self.engine_circuit.gave_up(time.monotonic())

    def takes(self, exchange: Exchange, error: ApiError) -> bool:
        reason = error.shed_reason or REASONS.get(error.code)
        if reason is None:
            return False
        now = time.monotonic()
        is_down = reason in ENGINE_IS_DOWN and self._server.models.are_tripped
        if is_down and self.engine_circuit.state == "closed":
            self.engine_circuit.trip(now)
        if not self._may_go(exchange, now):
            return False
        try:
            if exchange.lease is None:
                self._server.admit(exchange, 0)
        except ApiError as too_much:
            exchange.fail(too_much)
            return True
        if not self.circuit.let(now):
            return False
        is_probe = self.circuit.state == "half_open"
        exchange.fallback_ns = time.monotonic_ns()
        self._server.metrics.fallbacks[reason, "server"] += 1
        self._open.add(self._server.spawn(exchange, self._answer(exchange, error, is_probe)))
        return True

    def _may_go(self, exchange: Exchange, now: float) -> bool:
        """It is of a kind that the other server can answer, which is not known to be down."""
        path = exchange.request.path
        is_known = path == MESSAGES or (path == CHAT and self._speaks_chat)
        is_first = HOP.encode() not in exchange.request.fields and not exchange.batch
        return is_known and is_first and self.circuit.would_let(now)

    # ---- Part ----------------------------------------------------------------------------------
    def drain(self) -> None:
        """What is under way goes on."""

    def close(self) -> None:
        for task in self._open:
            task.cancel()

    # ---- one request ---------------------------------------------------------------------------
    async def _answer(self, exchange: Exchange, error: ApiError, is_probe: bool) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        gone = exchange.on_gone

        def left() -> None:
            task.cancel()
            if gone is not None:
                gone()

        exchange.on_gone = left
        end = "client_gone"
        try:
            end = await self._ask(exchange, error)
        finally:
            self._open.discard(task)
            self._ends[end] += 1
            if is_probe and end in UNTOLD:  # of others it is not expected to say anything
                self.circuit.gave_up(time.monotonic())
            if end != "ok" and exchange.lease is not None:
                exchange.lease.cancel()

    async def _ask(self, exchange: Exchange, error: ApiError) -> str:
        """How it ended."""
        if exchange.gone:
            return "client_gone"
        try:
            asked, sent = self._asked(exchange)
        except (ApiError, UnmappableError, msgspec.MsgspecError):
            # No fault of the other server's: it has not been asked.
            exchange.fail(error)
            return "unmappable"
        try:
            await self._pass_on(exchange, asked, sent)
        except _RefusedError:
            self.circuit.succeeded()
            exchange.fail(ApiError("fallback_refused"))
            return "refused"
        except OddFormError as odd:
            # It is there and answers: that others get nothing because of this would help nobody.
            LOG.warning("%s: the fallback's answer: %s", exchange.request_id, odd)
            self._lose(exchange, error)
            return "inexpressible"
        except Exception as failure:
            # Of any kind: a form that nobody has foreseen is a failure of the server that sent it.
            is_known = isinstance(failure, (UpstreamError, msgspec.MsgspecError, ValueError))
            told = failure if is_known else "its answer has an odd form"
            LOG.warning(
                "%s: the fallback failed: %s", exchange.request_id, told, exc_info=not is_known
            )
            self.circuit.failed(time.monotonic())
            self._lose(exchange, error)
            return "failed"
        self.circuit.succeeded()
        return "ok"

    def _lose(self, exchange: Exchange, error: ApiError) -> None:
        """`error`: that it would have had without a fallback."""
        if exchange.streaming:
            error = ApiError("fallback_lost").after(limits.ENGINE_LOST_RETRY_SECONDS)
        exchange.fail(error)

    def _asked(self, exchange: Exchange) -> tuple[Json, bytes]:
        """What the client asked, and the body that the other server gets. Raises ApiError,
        UnmappableError, MsgspecError."""
        asked = msgspec.json.decode(checked_json(exchange.request.body), type=Json)
        if exchange.streams is not None:
            asked["stream"] = exchange.streams
        model = self._model or str(asked.get("model", ""))
        sent = chat_request(asked, model) if self._maps(exchange) else {**asked, "model": model}
        exchange.request.body = b""
        return asked, msgspec.json.encode(sent)

    def _maps(self, exchange: Exchange) -> bool:
        return self._speaks_chat and exchange.request.path == MESSAGES

    async def _pass_on(self, exchange: Exchange, asked: Json, sent: bytes) -> None:
        model = str(asked.get("model", ""))
        chat = ChatEvents(_identifier(), model) if self._maps(exchange) else None
        async with self._upstream.post(self._fields(exchange), sent) as reply:
            if reply.status in REFUSALS:
                raise _RefusedError
            if reply.status != OK:
                raise UpstreamError(f"it answered {reply.status}")
            if asked.get("stream"):
                await self._stream(exchange, reply, chat, model)
            else:
                await self._whole(exchange, reply, model)

    def _fields(self, exchange: Exchange) -> dict[str, str]:
        fields = {"content-type": "application/json", HOP: "1", "accept-encoding": "identity"}
        if self._speaks_chat:
            if self._key:
                fields["authorization"] = f"Bearer {self._key}"
            return fields
        fields["anthropic-version"] = exchange.request.field(b"anthropic-version") or VERSION
        if beta := exchange.request.field(b"anthropic-beta"):
            fields["anthropic-beta"] = beta
        if self._key:
            fields["x-api-key"] = self._key
        return fields

    async def _whole(self, exchange: Exchange, reply: Reply, model: str) -> None:
        body = await reply.whole()
        answer = msgspec.json.decode(body, type=Json)
        if _breaks_off(answer):
            raise UpstreamError("its answer is an error")
        if self._maps(exchange):
            try:
                answer = message_of_chat(answer, _identifier(), model)
            except UnmappableError:
                raise UpstreamError("its answer is no chat completion") from None
            body = msgspec.json.encode(answer)
        if exchange.is_of_call:
            body = _message(answer, model)
        self._settle(exchange, answer.get("usage"))
        exchange.send_json(OK, body, [COMPUTE_PATH])

    async def _stream(
        self, exchange: Exchange, reply: Reply, chat: ChatEvents | None, model: str
    ) -> None:
        is_framed = exchange.request.path == MESSAGES
        is_framed = is_framed and accepts_frames(exchange.request.field(b"accept"))
        if is_framed:
            exchange.error_shape = FRAMES_SHAPE
        usage: Json = {}
        framer = Framer(model)
        async for block, events in _until_end(_blocks(reply), chat):
            for event in events:
                _count(usage, event)
            if is_framed:
                shown = b"".join(map(framer.frame, events))
            else:
                shown = block + EVENT_END if chat is None else b"".join(map(_sse, events))
            if not shown:
                continue
            if exchange.streaming:
                exchange.write(exchange.framed(shown))
            else:
                kind = FRAMES_TYPE if is_framed else EVENT_STREAM
                exchange.start_stream([COMPUTE_PATH], exchange.framed(shown), kind)
        if not exchange.streaming:
            raise UpstreamError("its stream is empty")
        self._settle(exchange, usage)
        exchange.finish()

    def _settle(self, exchange: Exchange, usage: Any) -> None:
        """Charge the owner for what the other server has counted."""
        if exchange.lease is None:
            return
        counted: Json = cast(Json, usage) if isinstance(usage, dict) else {}
        prompt = tokens_of(counted.get("input_tokens") or counted.get("prompt_tokens"))
        output = tokens_of(counted.get("output_tokens") or counted.get("completion_tokens"))
        exchange.lease.settle(exchange.lease.prompt_tokens - prompt, output)

    # ---- figures -------------------------------------------------------------------------------
    @property
    def under_way(self) -> int:
        """Requests with a connection to the other server."""
        return len(self._open)

    def families(self, labels: dict[str, str]) -> Iterator[Any]:
        """Metrics."""
        name, text = "sublimate_fallback_requests", "Requests that the fallback has now."
        now = new_gauge(name, text, labels=labels)
        now.add_metric(list(labels.values()), self.under_way)
        yield now
        text = "Requests that were given to the fallback, by how they ended."
        ends = new_counter("sublimate_fallback_ends", text, labels=[*labels, "end"])
        for end, count in sorted(self._ends.items()):
            ends.add_metric([*labels.values(), end], count)
        yield ends
        text = "1 for the state of the circuit to the engine and to the fallback."
        states = new_gauge("sublimate_circuit_state", text, labels=[*labels, "to", "state"])
        for to, circuit in (("engine", self.engine_circuit), ("fallback", self.circuit)):
            for state in CIRCUIT_STATES:
                value = float(circuit.state == state)
                states.add_metric([*labels.values(), to, state], value)
        yield states


# ---- events --------------------------------------------------------------------------------------
async def _blocks(reply: Reply) -> AsyncIterator[bytes]:
    """Of server-sent events, each without its empty line. Raises UpstreamError."""
    left = bytearray()
    async for piece in reply.pieces():
        looked = max(0, len(left) - len(EVENT_END) + 1)  # an end cannot begin earlier
        left += piece.replace(b"\r", b"")
        begin = 0
        while (end := left.find(EVENT_END, max(begin, looked))) >= 0:
            yield bytes(left[begin:end])
            begin = end + len(EVENT_END)
        del left[:begin]
        if len(left) > EVENT_BYTES_MAX:
            raise UpstreamError("an event of its stream has no end")
    if left.strip():
        raise UpstreamError("its stream ended within an event")


async def _until_end(
    blocks: AsyncIterator[bytes], chat: ChatEvents | None
) -> AsyncIterator[tuple[bytes, list[Json]]]:
    """Each block with its events, up to the one that says that the answer is whole: a connection
    that merely ends may have lost the rest. Raises UpstreamError."""
    has_finished = False
    async for block in blocks:
        told, is_done = _events(block), data_of(block) == DONE
        if any(map(_breaks_off, told)):
            raise UpstreamError("it broke its stream off")
        events = told if chat is None else _chat_events(chat, told, is_done)
        yield block, events
        if is_done or any(event.get("type") == "message_stop" for event in events):
            return
        has_finished |= chat is None and any(map(_finishes, events))
    if chat is not None and chat.has_finished:
        yield b"", chat.end()
    elif not has_finished:
        raise UpstreamError("its stream has no end")


def _finishes(chunk: Json) -> bool:
    """Of a chat completion: it tells why the answer ends."""
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        return False
    told = [cast(Json, one) for one in cast(list[Any], choices) if isinstance(one, dict)]
    return any(one.get("finish_reason") for one in told)


def _events(block: bytes) -> list[Json]:
    """One or none: comments have no data."""
    data = data_of(block)
    return [msgspec.json.decode(data, type=Json)] if data and data != DONE else []


def _breaks_off(event: Json) -> bool:
    """It says that the answer ends here and is not whole."""
    return event.get("type") == "error" or isinstance(event.get("error"), (dict, str))


def _chat_events(chat: ChatEvents, chunks: list[Json], is_done: bool) -> list[Json]:
    """Of a message, made of one block of a chat completion's stream. Raises UpstreamError."""
    try:
        if is_done:
            return chat.end()
        return [event for chunk in chunks for event in chat.chunk(chunk)]
    except UnmappableError:
        raise UpstreamError("its chunks are none of a chat completion") from None


def _sse(event: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))


def _message(answer: Json, model: str) -> bytes:
    """JSON of a message that gRPC has a place for. Raises OddFormError."""
    from ..wire.frames import InexpressibleError, message_of

    shown = fitted_message(answer, _identifier(), model)
    try:
        message_of(shown)  # what is found here is told as an error and not in the call's middle
    except InexpressibleError as error:
        raise OddFormError(str(error)) from None
    return msgspec.json.encode(shown)


def _count(usage: Json, event: Json) -> None:
    message = event.get("message")
    told = cast(Json, message).get("usage") if isinstance(message, dict) else None
    told = told or event.get("usage")
    counts = cast(Json, told) if isinstance(told, dict) else {}
    usage |= {name: count for name, count in counts.items() if count is not None}


def _identifier() -> str:
    return new_identifier("msg")
