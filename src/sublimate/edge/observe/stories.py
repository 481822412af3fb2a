"""What became of the last requests, for whoever debugs one of them afterwards or follows all.

Always: one Story per request, of numbers and names, made when it is submitted or, if it never is,
when it ends; the last ones are kept. While somebody follows (or always, with --trace) the loop
writes what it decides into the trace ring; it is read ten times a second, and each record goes to
its request's story and to the followers. All of it within a bound of bytes, and no text of anybody.

defines: Story, Stages, Follower, Stories
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

import msgspec

from ..._core import LIMITS
from ...policy.decision import Decision
from .. import limits
from ..quota import NOBODY
from .timing import NS_PER_SECOND, STAGES, Timing
from .trace import PART, READ_MAX, RECORD_BYTES, STEP, EngineTrace, head_of, is_record

if TYPE_CHECKING:
    from ..engine import Submission, Ticket
    from ..exchange import Exchange
    from ..stream import Answer

PATH_CHARACTERS_MAX = 200
UNTIL_ENDED = "settle"
"""The last stage: what was written is counted and logged."""
READ_ROUNDS_MAX = 1 + LIMITS["TRACE_RECORDS"] // READ_MAX
"""Reads in a row: a ring that is written faster than that is an engine that broke."""
FALLBACK = "fallback"
"""The stage in which another server answers."""
UNPREPARED = "handle"
"""The only stage of a request that asks the engine for nothing."""
Stages = list[tuple[str, int, int]]
"""Name, begin and end in nanoseconds of the monotonic clock; each begins where the last ended."""


class Story(msgspec.Struct, kw_only=True, eq=False):
    """One request. Times are nanoseconds of the monotonic clock, 0: not (yet)."""

    request_id: str
    method: str
    path: str
    protocol: str
    owner: bytes
    began_ns: int
    ended_ns: int = 0
    status: int = 0
    end: str = ""
    """Why: the stop reason, or the code of the error."""
    timing: Timing | None = None
    model: str = ""
    profile: str = ""
    stream: bool = False
    constrained: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    expected_tokens: int = 0
    """Of the prompt, computed before as the kernel remembers it (kernel/connections.py)."""
    output_tokens: int = 0
    token_budget: int = 0
    bucket_rows: int = 0
    admission_seen_ns: int = 0
    """The edge knew of it."""
    slot: int = -1
    """-1: it was never submitted."""
    generation: int = 0
    decision: Decision | None = None
    """The policy's decision, made when the prompt is known."""
    fallback_ns: int = 0
    """When it was given to the fallback."""
    engine: EngineTrace | None = None
    """Whose loop it was given to."""
    answer: Answer | None = None
    """While it runs."""
    records: bytearray = msgspec.field(default_factory=bytearray)
    """What was traced of it: each part of a step behind its step."""
    missed: int = 0
    """Records of the ring that were overwritten while it ran."""
    left_out: int = 0
    """Records of it that there was no room for."""

    def refresh(self) -> None:
        """As far as it has got."""
        answer = self.answer
        if answer is None:
            return
        self.status = answer.exchange.status
        self.cached_tokens = answer.cached_tokens
        self.expected_tokens = answer.use.expected if answer.use is not None else 0
        self.output_tokens = answer.progress()
        self.bucket_rows = answer.bucket_rows
        self.admission_seen_ns = int(answer.admitted_seconds * NS_PER_SECOND)

    def stages(self, now_ns: int) -> Stages:
        """From its head to its end, or to now; they add up to the whole. One that did not go all
        the way ends in the stage that it had come to."""
        end_ns = self.ended_ns or now_ns
        ends = self.timing.ends_ns() if self.timing is not None else []
        begins = [self.began_ns, *ends]
        names = (*STAGES, UNTIL_ENDED) if ends else (UNPREPARED,)
        if self.fallback_ns:
            # What the fallback does takes the place of the stages that it was not handed over for.
            ends = [*(end for end in ends if end < self.fallback_ns), self.fallback_ns]
            begins = [self.began_ns, *ends]
            names = (*names[: len(ends)], FALLBACK)
        return [
            (name, begin, end)
            for name, begin, end in zip(names, begins, [*ends, end_ns], strict=False)
        ]


class Follower(Protocol):
    """Who hears of all that happens to the requests of one owner."""

    owner: bytes

    def heard(self, story: Story | None, engine: EngineTrace, records: bytes) -> None:
        """Records of one request, or of the loop itself (None)."""
        ...

    def submitted(self, story: Story) -> None: ...

    def ended(self, story: Story) -> None: ...

    def missed(self, records: int) -> None:
        """So many were overwritten before they were read."""
        ...

    def flush(self) -> None:
        """Ten times a second: send what was heard."""
        ...

    def close(self) -> None:
        """The server ends."""
        ...


class Stories:
    """Of one server. On the event loop's thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, is_always_traced: bool) -> None:
        self._loop = loop
        self._is_always_traced = is_always_traced
        self._stories: dict[str, Story] = {}
        self._ended: deque[Story] = deque()
        self._tickets: dict[tuple[EngineTrace, int, int], Story] = {}
        """Of the engines that serve now."""
        self._engines: list[EngineTrace] = []
        self._followers: list[Follower] = []
        self._timer: asyncio.TimerHandle | None = None
        self.records_bytes = 0
        """Of all stories; see limits."""
        self._steps: dict[EngineTrace, bytes] = {}
        """The latest step of each loop; parts of it follow."""

    # ---- requests ------------------------------------------------------------------------------
    def submitted(
        self, answer: Answer, engine: EngineTrace, ticket: Ticket, submission: Submission
    ) -> None:
        """The loop of that engine has been given a request."""
        story = _begun(answer.exchange)
        if story.request_id in self._stories:
            raise RuntimeError("a request is submitted once")
        generation = answer.generation
        story.answer = answer
        story.model = generation.model_name
        story.profile = generation.profile
        story.stream = generation.stream
        story.constrained = submission.constraint is not None
        story.prompt_tokens = answer.prompt_tokens
        story.token_budget = submission.token_budget
        story.decision = answer.exchange.decision
        story.slot, story.generation = ticket.slot, ticket.generation
        story.engine = engine
        self._stories[story.request_id] = story
        self._tickets[engine, ticket.slot, ticket.generation] = story
        for follower in self._of(story):
            follower.submitted(story)

    def ended(self, exchange: Exchange, answer: Answer | None = None, end: str = "") -> None:
        """A request has been answered, or will never be."""
        story = self._stories.get(exchange.request_id)
        if story is None:
            story = self._stories[exchange.request_id] = _begun(exchange)
        elif story.ended_ns:
            return
        story.refresh()
        story.answer = None
        story.decision, story.fallback_ns = exchange.decision, exchange.fallback_ns
        if not story.prompt_tokens and story.decision is not None:
            story.prompt_tokens = story.decision.prompt_tokens
        story.ended_ns = time.monotonic_ns()
        story.status = exchange.status
        story.end = end or exchange.error_code
        if answer is not None:
            story.end = story.end or answer.stop_reason
        self._ended.append(story)
        if self._followers:
            self.collect()
            for follower in self._of(story):
                follower.ended(story)
        self._forget()

    def find(self, request_id: str, owner: bytes) -> Story | None:
        """With all that is known of it by now; None: no such request of theirs is kept."""
        story = self._stories.get(request_id)
        if story is None or story.owner != owner:
            return None
        self.collect()
        story.refresh()
        return story

    def choices_of(self, story: Story) -> list[str]:
        """Ids of the further answers to the same request (`n`, or several prompts)."""
        beginning = f"{story.request_id}."
        return [name for name in self._stories if name.startswith(beginning)]

    def latest(self, owner: bytes) -> list[Story]:
        """Theirs, the newest first."""
        theirs = [story for story in reversed(self._stories.values()) if story.owner == owner]
        for story in theirs:
            story.refresh()
        return theirs

    def _of(self, story: Story) -> list[Follower]:
        return [follower for follower in self._followers if follower.owner == story.owner]

    def _forget(self) -> None:
        """What is beyond the bounds: whole stories, and details of old ones."""
        while len(self._ended) > limits.STORIES_MAX:
            story = self._ended.popleft()
            del self._stories[story.request_id]
            if story.engine is not None:
                ticket = story.engine, story.slot, story.generation
                if self._tickets.get(ticket) is story:
                    del self._tickets[ticket]
            self.records_bytes -= len(story.records)
        for story in self._ended:
            if self.records_bytes <= limits.STORY_RECORDS_BYTES_MAX:
                break
            self.records_bytes -= len(story.records)
            story.left_out += len(story.records) // RECORD_BYTES
            story.records = bytearray()

    # ---- the engine ----------------------------------------------------------------------------
    def engine_up(self, engine: EngineTrace) -> None:
        self._engines.append(engine)
        self._watch()

    def engine_lost(self, engine: EngineTrace) -> None:
        """What it has told is kept."""
        self.collect()
        self._engines.remove(engine)
        self._tickets = {key: story for key, story in self._tickets.items() if key[0] is not engine}
        self._steps.pop(engine, None)
        engine.close()

    def collect(self) -> None:
        """Read what the loops have told since the last time."""
        for engine in self._engines:
            self._collect(engine)

    def _collect(self, engine: EngineTrace) -> None:
        for _ in range(READ_ROUNDS_MAX):
            missed, records = engine.read()
            if missed:
                self._missed(engine, missed)
            if not records:
                return
            for at in range(0, len(records), RECORD_BYTES):
                if is_record(records, at):
                    self._sort(engine, records, at)

    def _sort(self, engine: EngineTrace, records: bytes, at: int) -> None:
        kind, slot, generation = head_of(records, at)
        record = records[at : at + RECORD_BYTES]
        if slot < 0:
            if kind == STEP:
                self._steps[engine] = record
            for follower in self._followers:
                follower.heard(None, engine, record)
            return
        story = self._tickets.get((engine, slot, generation))
        if story is None:
            return
        for follower in self._of(story):
            follower.heard(story, engine, record)
        if len(story.records) >= limits.STORY_BYTES_MAX:
            story.left_out += 1
            return
        kept = self._steps.get(engine, b"") + record if kind == PART else record
        story.records += kept
        self.records_bytes += len(kept)

    def _missed(self, engine: EngineTrace, records: int) -> None:
        self._steps.pop(engine, None)
        for story in self._tickets.values():
            if story.engine is engine and not story.ended_ns:
                story.missed += records
        for follower in self._followers:
            follower.missed(records)

    # ---- followers -----------------------------------------------------------------------------
    @property
    def has_followers(self) -> bool:
        return bool(self._followers)

    def followers_max(self, owner: bytes) -> int:
        """0 while another of this owner may follow; else the bound that is reached."""
        of_owner = sum(follower.owner == owner for follower in self._followers)
        if owner != NOBODY.key and of_owner >= limits.FOLLOWERS_PER_KEY_MAX:
            return limits.FOLLOWERS_PER_KEY_MAX
        return limits.FOLLOWERS_MAX if len(self._followers) >= limits.FOLLOWERS_MAX else 0

    def follow(self, follower: Follower) -> None:
        """Tell it all from now on, until `leave`. Raises ValueError without room for it."""
        if self.followers_max(follower.owner):
            raise ValueError("too many followers")
        self.collect()
        self._followers.append(follower)
        self._watch()

    def leave(self, follower: Follower) -> None:
        """Idempotent."""
        if follower in self._followers:
            self._followers.remove(follower)
        if not self._followers and not self._is_always_traced:
            self.collect()
            for engine in self._engines:
                engine.follow(0)

    def _watch(self) -> None:
        """Keep the loop tracing, and read, as long as somebody wants that."""
        if not self._followers and not self._is_always_traced:
            return
        for engine in self._engines:
            engine.follow(limits.FOLLOW_SECONDS)
        if self._timer is None:
            self._timer = self._loop.call_later(limits.TRACE_READ_SECONDS, self._read)

    def _read(self) -> None:
        self._timer = None
        self.collect()
        self._forget()
        for follower in list(self._followers):
            follower.flush()
        self._watch()

    def close(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        followers, self._followers = self._followers, []
        for follower in followers:
            follower.close()


def _begun(exchange: Exchange) -> Story:
    request = exchange.request
    return Story(
        request_id=exchange.request_id,
        method=request.method,
        path=request.path[:PATH_CHARACTERS_MAX],
        protocol=exchange.wire.protocol,
        owner=exchange.tenant_key,
        began_ns=int(exchange.started_seconds * NS_PER_SECOND),
        timing=exchange.timing,
    )
