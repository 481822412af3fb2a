"""Keeps the token masks of constrained requests: as soon as a token is known, the mask of the next.

The loop samples a constrained row only with its mask, so for each such request there is at most one
mask in the making. A short one is made at once; one that takes longer, on a thread, so that no
stream waits for it. Slots for masks are few: requests that find none wait in their order, before
the loop knows of them.

defines: MaskKeeper, yield_to_others
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from .. import _core
from ..grammar.constraint import Constraint
from ..grammar.matcher import Matcher
from .record import set_mask_slots

LOG = logging.getLogger("sublimate.edge")

THREADS_MAX = 2
NICENESS = 5
NONE = -1


def yield_to_others() -> None:
    """Of this thread: where cores are short, the steps beside its work get most of them."""
    thread = threading.get_native_id()
    niceness = os.getpriority(os.PRIO_PROCESS, thread)
    os.setpriority(os.PRIO_PROCESS, thread, niceness + NICENESS)  # the kernel caps it at 19


class _Held(msgspec.Struct, kw_only=True):
    """A constrained request, from its submission to its end."""

    key: int
    slot: int
    generation: int
    view: memoryview
    send: Callable[[], None]
    matcher: Matcher
    slots_needed: int
    mask_slot: int = NONE
    trigger_slot: int = NONE
    words: Any = None
    """(words) ring memory of the mask, as the triggers'."""
    triggers: Any = None
    index: int = 0
    """Of the token whose mask comes next."""
    is_busy: bool = False
    """A thread writes into its slot."""
    is_over: bool = False


def _nobody_is_told(key: int, reason: str) -> None:
    pass


def _fill(matcher: Matcher, words: Any) -> None:
    """On a thread, where a grammar may be compiled anew."""
    matcher.fill(words)
    if matcher.is_stale:
        matcher.fill(words)


def _nothing() -> None:
    pass


class MaskKeeper:
    """Of one engine's region. On the event loop's thread, but for the making of long masks.

    `failed` is told the key of a request that could not be handed over later, or cannot be held to
    its grammar any more, and the name of its error; `broken`, that the engine broke the ring.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: _core.EdgeClient,
        failed: Callable[[int, str], None],
        broken: Callable[[], None],
    ) -> None:
        self.broken_answers = 0
        """Answers that their grammar could not hold to the end, and that ended with an error."""
        self._loop = loop
        self._client = client
        self._failed = failed
        self._broken = broken
        self._free_slots = list(range(_core.LIMITS["MASK_SLOTS"] - 1, -1, -1))
        self._held: dict[int, _Held] = {}
        self._waiting: deque[_Held] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._is_open = True

    @property
    def slots_in_use(self) -> int:
        return _core.LIMITS["MASK_SLOTS"] - len(self._free_slots)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot; the loop does not know them yet."""
        return len(self._waiting)

    def begin(
        self,
        key: int,
        slot: int,
        generation: int,
        view: memoryview,
        constraint: Constraint,
        send: Callable[[], None],
        thinking_tokens: int = 0,
    ) -> None:
        """Hand a request over by `send`, now or when there are slots. What `send` raises now is
        raised, and nothing is held. `thinking_tokens`: see Matcher."""
        held = _Held(
            key=key,
            slot=slot,
            generation=generation,
            view=view,
            send=send,
            matcher=Matcher(constraint, thinking_tokens),
            slots_needed=2 if constraint.needs_triggers else 1,
        )
        held.matcher.renews_at_once = False  # a thread does it instead
        if self._waiting or held.slots_needed > len(self._free_slots):
            self._waiting.append(held)
            return
        self._start(held)

    def discard(self, slot: int, generation: int) -> int:
        """Of a request that still waits: its key, and it is forgotten. 0: it does not wait."""
        for held in self._waiting:
            if (held.slot, held.generation) == (slot, generation):
                self._waiting.remove(held)
                self._client.discard(slot, generation)
                self._give_back(held)  # who stands behind it may need fewer slots
                return held.key
        return 0

    def advance(self, key: int, tokens: Sequence[int], output_tokens: int) -> None:
        """Tokens of a request, the last of which makes `output_tokens`."""
        held = self._held.get(key)
        if held is None or not tokens:
            return
        if held.is_busy:
            self._broken()  # a token came before its mask
            return
        held.index = output_tokens
        held.matcher.consume(tokens, output_tokens)
        self._publish(held)

    def end(self, key: int) -> None:
        """The request's last event came. Idempotent."""
        held = self._held.pop(key, None)
        if held is None:
            return
        held.is_over = True
        if not held.is_busy:
            self._give_back(held)

    def close(self) -> None:
        """The region is forgotten; what a thread still writes goes nowhere."""
        self._is_open = False
        self._held.clear()
        self._waiting.clear()
        # Both lead back to whoever holds this: a cycle that keeps the region.
        self._failed, self._broken = _nobody_is_told, _nothing
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # ---- slots ---------------------------------------------------------------------------------
    def _start(self, held: _Held) -> None:
        held.mask_slot = self._take()
        held.words = self._client.mask_words(held.mask_slot)
        if held.slots_needed > 1:
            held.trigger_slot = self._take()
            held.triggers = self._client.mask_words(held.trigger_slot)
        set_mask_slots(held.view, held.mask_slot, held.trigger_slot, held.matcher.free_end)
        try:
            held.send()
        except BaseException:
            self._give_back(held)
            raise
        self._held[held.key] = held
        self._publish(held)

    def _take(self) -> int:
        slot = self._free_slots.pop()
        self._client.clear_mask(slot)
        return slot

    def _give_back(self, held: _Held) -> None:
        self._free_slots += [slot for slot in (held.trigger_slot, held.mask_slot) if slot != NONE]
        held.mask_slot = held.trigger_slot = NONE
        while self._is_open and self._waiting:
            if self._waiting[0].slots_needed > len(self._free_slots):
                return
            self._start_late(self._waiting.popleft())

    def _start_late(self, held: _Held) -> None:
        try:
            self._start(held)
        except _core.CoreError:
            LOG.exception("the engine broke the ring protocol")
            self._broken()
        except Exception:
            LOG.exception("a request that had waited could not be handed over")
            self._client.discard(held.slot, held.generation)
            self._failed(held.key, "internal")

    # ---- masks ---------------------------------------------------------------------------------
    def _publish(self, held: _Held) -> None:
        """What the loop needs for the next token, made here or elsewhere."""
        matcher = held.matcher
        if matcher.broken:
            self._give_up(held)
        elif matcher.is_free:
            self._set_free(held, matcher)
        else:
            if not matcher.is_slow:
                matcher.fill(held.words)
                if not matcher.is_stale:
                    self._filled(held, matcher)
                    return
            held.is_busy = True
            threads = self._threads = self._threads or ThreadPoolExecutor(
                THREADS_MAX, "mask", yield_to_others
            )
            made = self._loop.run_in_executor(threads, _fill, matcher, held.words)
            made.add_done_callback(lambda done: self._made(held, done))

    def _made(self, held: _Held, done: asyncio.Future[None]) -> None:
        held.is_busy = False
        if not self._is_open or done.cancelled():
            return
        if held.is_over:
            self._give_back(held)
            return
        if error := done.exception():
            LOG.error("a mask could not be made", exc_info=error)
            held.matcher.abandon("its mask could not be made")
        self._filled(held, held.matcher)

    def _filled(self, held: _Held, matcher: Matcher) -> None:
        if matcher.broken:
            self._give_up(held)
        elif matcher.is_free:
            self._set_free(held, matcher)  # a new grammar had come to its end
        else:
            self._client.publish_mask(held.mask_slot, held.index)

    def _give_up(self, held: _Held) -> None:
        """Never an unconstrained rest: the loop gets no mask, and so samples nothing more of it.
        Its listener is told later, since it may be nobody's yet."""
        self.broken_answers += 1
        self._loop.call_soon(self._end_broken, held)

    def _end_broken(self, held: _Held) -> None:
        if self._is_open and not held.is_over:
            self._failed(held.key, "constraint_failed")
            self._client.cancel(held.slot, held.generation)

    def _set_free(self, held: _Held, matcher: Matcher) -> None:
        if held.triggers is not None:
            triggers = matcher.triggers
            held.triggers[: len(triggers)] = triggers
            held.triggers[len(triggers) :] = 0
        self._client.publish_free(held.mask_slot, held.index)
