"""The edge's side of one engine: slots, submission, the token bell, events to their answers.

The bell is an eventfd in the event loop. The engine rings it only while this side has said that it
sleeps, so every return to the loop is preceded by sleep_prepare, and what came in between is
polled first. Frames of a running stream do not pass through here: the core writes them to the
stream's socket within the poll, and only what a listener must know becomes an event.

defines: Listener, Ticket, EngineLink
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from array import array
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from .. import _core
from ..config import STALLED_SECONDS, Profile
from ..grammar.constraint import Constraint
from ..policy.decision import Hardware, Headroom, Request, decide
from . import limits
from .errors import ApiError
from .masks import MaskKeeper
from .observe.timing import NS_PER_SECOND
from .observe.trace import EngineTrace
from .record import Tenant, request_words, write_record
from .reservations import Reservations
from .sampling import Sampling

LOG = logging.getLogger("sublimate.edge")

POLL_ROUNDS_MAX = 4
"""Polls in a row before other work of the event loop gets its turn."""
STEP_AGE_TRIP_NS = round(STALLED_SECONDS * NS_PER_SECOND)
"""Work is there and no step has ended for so long: not healthy."""


class Listener(Protocol):
    """Who awaits the events of one request."""

    def on_event(self, event: _core.StreamEvent, now_seconds: float) -> None: ...

    def engine_lost(self) -> None: ...

    def broken(self, reason: str = "internal") -> None:
        """Ends the request with this entry of the error table: one of the others raised, a bug of
        ours, or its constraint cannot hold it any more."""
        ...


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """All that one request tells the engine and the text path."""

    ids: array[int]
    sampling: Sampling
    token_budget: int
    stop_tokens: tuple[int, ...]
    profile: Profile
    tenant: Tenant
    format: str
    message_id: str
    model_name: str
    chunked: bool = False
    blocks: _core.BlockFormat | None = None
    """How the answer falls into blocks (blocks.py); None: it is one text."""
    turn_ends: tuple[str, ...] = ()
    """Strings with which the template would begin the next turn."""
    drops_space: bool = False
    """The template ends in the middle of a line, so that the answer begins with a space."""
    constraint: Constraint | None = None
    """What the answer is held to."""
    adapter: int = 0
    """By its place among those of the model, from 1; 0: none."""
    thinking_tokens: int = 0
    """Of the constrained answer, after which its thinking has ended; 0: it ends by itself."""

    def __post_init__(self) -> None:
        if self.token_budget < 0:
            raise ValueError("the prompt has left no room")


class Ticket(msgspec.Struct, frozen=True):
    """Names a submitted request; for cancel."""

    slot: int
    generation: int


class EngineLink:
    """One engine's region, from EngineUp until it is lost. On the event loop's thread only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        region: _core.Region,
        vocabulary: _core.Vocabulary,
        info: dict[str, Any],
        on_broken: Callable[[], None],
        gaps: _core.Histogram | None = None,
        signature_key: bytes = b"",
    ) -> None:
        self.info = info
        self.number = self.worker = 0
        """Of the engine, and of the worker that it is part of."""
        self.prefixes: _core.PrefixTable | None = None
        """What the engine has cached, and how busy it is."""
        self._loop = loop
        self._region = region
        self._client = _core.EdgeClient(region, vocabulary, gaps, signature_key)
        self._on_broken = on_broken
        self._masks = MaskKeeper(loop, self._client, self._hand_over_failed, on_broken)
        self.reservations = Reservations(loop, self._client, info)
        """What waits for its first token."""
        self.trace = EngineTrace(region, info)
        """What its loop tells while somebody follows."""
        self._listeners: dict[int, Listener] = {}
        self._next_key = 1
        self._begun_ns = 0
        """When the engine, with nothing to do, was given something."""
        self._bell: int = region.fds[2]
        self._open = True
        self.page_tokens = _core.LIMITS["PAGE_TOKENS"]
        pages = int(info.get("kv_pages", 0)) * self.page_tokens
        context = int(info["context_length"])
        self.context_tokens = min(context, pages) if pages else context
        """Prompt and answer of one request: also what fits into an empty pool of pages."""
        loop.add_reader(self._bell, self._on_bell)
        # Not from here: whoever is told that it broke must know it first.
        loop.call_soon(self._pump)

    # ---- requests ------------------------------------------------------------------------------
    def submit(self, request: Submission, listener: Listener, queue_max: int) -> Ticket:
        """Hand a request to the loop, when it is its turn (`reservations.turn`). Raises ApiError:
        529 if there is no room for it, 503 if the engine broke the ring, which ends this link."""
        self._check_room(request, queue_max)
        try:
            return self._submit(request, listener)
        except _core.CoreError:
            LOG.exception("the engine broke the ring protocol")
            self._on_broken()
            raise _unavailable() from None

    def _submit(self, request: Submission, listener: Listener) -> Ticket:
        words = request_words(len(request.ids), request.sampling)
        lease = self._client.acquire(words)
        if lease is None:
            raise ApiError("overloaded").after(limits.OVERLOAD_RETRY_SECONDS)
        slot, generation, view = lease
        key = self._next_key
        self._next_key += 1
        if self._client.in_flight == 0:
            self._begun_ns = time.monotonic_ns()
        try:
            write_record(
                view,
                request.ids,
                request.sampling,
                token_budget=request.token_budget,
                stop_tokens=request.stop_tokens,
                profile=request.profile,
                tenant=request.tenant,
                adapter=request.adapter,
            )

            def send() -> None:
                self._client.submit(
                    slot,
                    generation,
                    key,
                    format=request.format,
                    stop_strings=request.sampling.stop_sequences,
                    turn_ends=request.turn_ends,
                    drops_space=request.drops_space,
                    message_id=request.message_id,
                    model=request.model_name,
                    input_tokens=len(request.ids),
                    chunked=request.chunked,
                    blocks=request.blocks,
                )

            if request.constraint is None:
                send()
            else:
                self._masks.begin(
                    key, slot, generation, view, request.constraint, send, request.thinking_tokens
                )
        except BaseException:
            # Either the loop owns the slot or nobody does.
            with contextlib.suppress(ValueError, _core.CoreError):
                self._client.discard(slot, generation)
            raise
        self._listeners[key] = listener
        ticket = Ticket(slot, generation)
        self.reservations.taken(key, ticket, request)
        return ticket

    def _check_room(self, request: Submission, queue_max: int) -> None:
        stats = self._region.stats()
        running_max = _core.LIMITS["SEQUENCES_MAX"]
        if (
            self._client.in_flight + self._masks.waiting < running_max + queue_max
            and self._waiting(stats) < queue_max
        ):
            return
        decision = decide(
            Request(prompt_tokens=len(request.ids), output_tokens_max=request.token_budget),
            Hardware(role="engine"),
            self.headroom(stats, queue_is_open=False),
        )
        error = ApiError("overloaded").after(limits.OVERLOAD_RETRY_SECONDS)
        if decision.target == "refuse":
            error.shed_reason = decision.reason
        raise error

    def _waiting(self, stats: dict[str, int]) -> int:
        """Requests that wait in the engine, whichever edge has sent them."""
        everybodys = 0 if self.prefixes is None else self.prefixes.load()["waiting"]
        return max(stats["waiting"], everybodys)

    def headroom(self, stats: dict[str, int], *, queue_is_open: bool = True) -> Headroom:
        """What a new request can have, of the engine's figures."""
        free = stats["pages_free"] + stats["pages_cached"] - stats["pages_reserved"]
        return Headroom(
            kv_tokens_total=stats["pages_total"] * self.page_tokens,
            kv_tokens_free=max(0, free) * self.page_tokens,
            utilization_ppm=stats["utilization_ppm"],
            queue_is_open=queue_is_open,
        )

    def cancel(self, ticket: Ticket) -> None:
        """Seen by the loop at its next step. The listener still gets its last event, unless the
        loop has not heard of the request yet: then it gets none."""
        if not self._open:
            return
        if key := self._masks.discard(ticket.slot, ticket.generation):
            self._listeners.pop(key, None)
            self.reservations.gone(key)
        else:
            self._client.cancel(ticket.slot, ticket.generation)

    def lend_socket(self, ticket: Ticket, descriptor: int) -> None:
        """From now on the client writes the stream's frames itself; see EdgeClient.lend."""
        if self._open:
            self._client.lend(ticket.slot, ticket.generation, descriptor)

    def unlend_socket(self, ticket: Ticket) -> None:
        self._client.unlend(ticket.slot, ticket.generation)

    def progress(self, ticket: Ticket) -> tuple[int, float]:
        """(output tokens, seconds on the monotonic clock of the last write to a lent socket) of a
        running request."""
        output_tokens, sent_ns = self._client.progress(ticket.slot, ticket.generation)
        return output_tokens, sent_ns / NS_PER_SECOND

    @property
    def in_flight(self) -> int:
        return self._client.in_flight

    @property
    def is_busy(self) -> bool:
        """A request is not at its end, or has not begun."""
        return self._open and bool(self._listeners or self._client.slots_in_use)

    @property
    def slots_in_use(self) -> int:
        """Slots of ring memory that requests hold; 0 at rest."""
        return self._client.slots_in_use

    @property
    def text_seconds(self) -> float:
        """Native time between the loop's records and ready frames, since the engine came up."""
        return self._client.text_ns / NS_PER_SECOND

    @property
    def text_tokens(self) -> int:
        """Tokens in that time."""
        return self._client.text_tokens

    @property
    def masks(self) -> MaskKeeper:
        """Of the constrained requests."""
        return self._masks

    def _hand_over_failed(self, key: int, reason: str = "internal") -> None:
        listener = self._listeners.pop(key, None)
        self.reservations.gone(key)
        if listener is not None:
            _guarded(listener, lambda: listener.broken(reason))

    # ---- events --------------------------------------------------------------------------------
    def _on_bell(self) -> None:
        self._client.clear_bell()
        self._pump()

    def _pump(self) -> None:
        """Deliver everything that is there, then announce sleep."""
        if not self._open:
            return
        try:
            for _ in range(POLL_ROUNDS_MAX):
                self._deliver(self._client.poll())
                if not self._open or self._client.sleep_prepare():
                    return
        except _core.CoreError:
            LOG.exception("the engine broke the ring protocol")
            self._on_broken()
            return
        except Exception:
            # A bug here. Some events were lost with it, and nobody would read the ring on: all that
            # is in flight gets its error, and the loop a fresh region.
            LOG.exception("events could not be delivered")
            self._on_broken()
            return
        self._loop.call_soon(self._pump)

    def _deliver(self, events: list[_core.StreamEvent]) -> None:
        if not events:
            return
        now = time.monotonic()
        for event in events:
            listener = self._listeners.get(event.key)
            self.reservations.follow(event, now)
            if event.finished:
                self._listeners.pop(event.key, None)
                self._masks.end(event.key)
            elif event.token_ids and not self._masked(event):
                self._hand_over_failed(event.key)
                continue
            if listener is not None:
                _guarded(listener, lambda to=listener, of=event: to.on_event(of, now))

    def _masked(self, event: _core.StreamEvent) -> bool:
        """Whether the masks of a request could follow its tokens; if not, it alone fails, and the
        other events of the poll are delivered all the same."""
        try:
            self._masks.advance(event.key, event.token_ids, event.output_tokens)
        except _core.CoreError:
            raise
        except Exception:
            LOG.exception("a mask could not be made")
            return False
        return True

    # ---- state ---------------------------------------------------------------------------------
    def stats(self) -> dict[str, int]:
        """The loop's counters (StatsPage in core/ring/ring.h)."""
        return self._region.stats()

    def is_healthy(self) -> bool:
        """No work waits, or the engine has done something not long ago.

        What the loop wrote last says nothing if the loop stands still: that it owes something is
        known here, by what is in flight. An idle loop sleeps, so its silence counts from the
        submission that should have woken it.
        """
        stats = self._region.stats()
        now_ns = time.monotonic_ns()
        last_step_ns = stats["last_step_ns"]
        if self._client.in_flight:
            alive_ns = max(self._begun_ns, self._client.heard_ns, stats["engine_heartbeat_ns"])
            if now_ns - alive_ns > STEP_AGE_TRIP_NS:
                return False
            # The first step after a rest is not as old as the one before the rest.
            last_step_ns = max(last_step_ns, self._begun_ns, self._client.heard_ns)
        if stats["running"] == 0 and stats["waiting"] == 0:
            return True
        if stats["oldest_waiting_ns"] > STEP_AGE_TRIP_NS and stats["running"] == 0:
            return False
        return last_step_ns == 0 or now_ns - last_step_ns < STEP_AGE_TRIP_NS

    def close(self) -> None:
        """Forget the region; every listener is told that the engine is lost."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._bell)
        self._masks.close()
        self.reservations.close()
        # It is in a cycle with it, and would keep the region's memory and descriptors for as long
        # as nobody collects those.
        self._on_broken = _nothing
        listeners = list(self._listeners.values())
        self._listeners.clear()
        for listener in listeners:
            _guarded(listener, listener.engine_lost)


def _nothing() -> None:
    pass


def _unavailable() -> ApiError:
    return ApiError("engine_unavailable").after(limits.ENGINE_LOST_RETRY_SECONDS)


def _guarded(listener: Listener, action: Callable[[], None]) -> None:
    """What one listener raises ends its own request and leaves the others alone."""
    try:
        action()
    except Exception:
        LOG.exception("an answer failed")
        try:
            listener.broken()
        except Exception:
            LOG.exception("an answer could not be ended")
