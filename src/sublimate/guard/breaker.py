"""Refuses what would wait too long, before waiting has become long for everybody.

A request that is taken reserves the work until its first token: the tokens of its prompt that no
cache has. What is reserved, over the rate at which first tokens have come lately, is how long the
next one would wait. Beyond a target it is refused at once, and told when to come back. The rate
begins with the loop's own prices (core/loop/cost.h), measured at the warm-up; while requests queue
up it is observed, so that it holds whatever else the engine and the machine do.

Without a target of the operator's it is relative: a part of what the requests that just saturate
the engine need together. A few requests are never refused: a person alone with the server does not
meet the breaker. Nor, without a target, does a crowd that is no overload (anteroom.py). In an
overload only so many are taken as keep the engine full, the few included.

With several tenants the ones that have reserved the most are refused first: what is within a
tenant's equal share of the target (in an overload: of what waits) is taken, whatever the others
have.

defines: Prices, Shed, Breaker
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any

import msgspec

PS_PER_SECOND = 1e12
SATURATED_SHARE = 9.0
"""An engine is saturated when a request's own work is so many times its share of what every step
costs: with more requests it would gain a tenth at most."""
SATURATING_MIN, SATURATING_MAX = 32, 128
"""At least a batch that an engine on a CPU computes well; at most as many as run at once
(SEQUENCES_MAX)."""
FEW = 8
"""Requests of one person, who may have them whatever the target."""
TARGET_SECONDS_MIN = 0.5
"""Whoever waits less is handed over, where no target is set."""
TARGET_PART = 1 / 4
"""Of what so many requests need together as saturate the engine. What waits beyond it gains nothing
there: the engine has always something to begin with."""
REQUEST_TOKENS = 16
"""Work of a request whose prompt the cache has: its share of a step."""
OUTPUT_TOKENS = 128
"""Of an answer, before any has ended."""
OVERLOAD_SECONDS = 0.15
"""Of work that may wait in an overload, or a few requests, if that is more. Somebody always comes
next, so that what is beyond it would only wait."""
OVERLOAD_SHARED_SECONDS = 2.5
"""With what is within other tenants' shares."""
OVERLOAD_RUNNING = 1.5
"""Of those that saturate: the last tenth."""
SETTLE_SECONDS = 2.0
"""Of queueing, in which the rate follows what is observed."""
LEARNING_REQUESTS = 4
"""Fewer that queue do not fill the engine, so they say nothing of its rate."""
MEAN_PART = 1 / 32
RETRY_SECONDS_MAX = 30
"""For longer nobody's turn is foreseen."""
RETRY_SPREAD_SECONDS = 30
"""Whose turn is later comes back within so many seconds more, not all at once. Together no more
than a minute, as SDKs pass over what is longer."""
GOLDEN_PART = (math.sqrt(5) - 1) / 2
"""Its multiples lie evenly between whole numbers, however many there are."""


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """What the loop's steps cost (core/loop/cost.h), as far as it matters here. 0: not known, so
    that nothing is refused until it was observed."""

    step_ps: int = 0
    decode_row_ps: int = 0
    prompt_row_ps: int = 0

    def __post_init__(self) -> None:
        if min(self.step_ps, self.decode_row_ps, self.prompt_row_ps) < 0:
            raise ValueError("nothing costs less than nothing")

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Prices:
        """As an engine told them when it was ready (`step_cost`)."""
        return msgspec.convert(info.get("step_cost", {}), cls)

    def saturating(self, prompt_tokens: float, output_tokens: float) -> int:
        """Requests at once that saturate the engine, if all are of this size."""
        own_ps = prompt_tokens * self.prompt_row_ps + output_tokens * self.decode_row_ps
        shared_ps = output_tokens * self.step_ps
        least = SATURATED_SHARE * shared_ps / max(1.0, own_ps)
        return max(SATURATING_MIN, min(SATURATING_MAX, round(least)))

    @property
    def tokens_per_second(self) -> float:
        """Of prompts, with nothing beside them."""
        return PS_PER_SECOND / max(1, self.prompt_row_ps)


class Shed(Exception):  # noqa: N818 - it is an outcome, not an error of anybody
    """The request is not taken."""

    def __init__(self, wait_seconds: float, retry_seconds: int) -> None:
        super().__init__(f"{wait_seconds:.1f} s until its first token")
        self.retry_seconds = retry_seconds


class _Reservation(msgspec.Struct):
    tenant: Hashable
    tokens: int


class Breaker:
    """Of one engine, by the requests of one edge. Takes time as an argument."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._done_tokens = prices.tokens_per_second * SETTLE_SECONDS
        self._done_seconds = SETTLE_SECONDS
        self._since_seconds = 0.0
        """Since the last first token."""
        self._was_full = False
        """Enough have queued since then."""
        self._weight = 1.0
        """Of what was done in the time before that."""
        self._mean_tokens = 0.0
        self._mean_output_tokens = float(OUTPUT_TOKENS)
        self._reserved: dict[int, _Reservation] = {}
        """Without their first token, in the order of their coming."""
        self._reserved_tokens = 0
        self._by_tenant: Counter[Hashable] = Counter()
        self._at_seconds = 0.0
        self._promised_seconds = 0.0
        """Until when the refused so far will have had their turn."""
        self.sheds = 0

    # ---- what is decided -----------------------------------------------------------------------
    def fits(
        self, tenant: Hashable, prompt_tokens: int, target_seconds: float, now_seconds: float
    ) -> bool:
        """Whether a request would have its first token in time, or is one of the few.
        target_seconds: 0 is relative to the time at saturation."""
        if prompt_tokens < 1 or target_seconds < 0:
            raise ValueError("a prompt has tokens, and no target lies in the past")
        self._pass_time(now_seconds)
        tokens = prompt_tokens + REQUEST_TOKENS
        limit_seconds = target_seconds or self.target_seconds
        if len(self._reserved) < FEW or self.wait_seconds(tokens) <= limit_seconds:
            return True
        mine = self._by_tenant[tenant] + tokens
        tenants = len(self._by_tenant.keys() | {tenant})
        return tenants > 1 and mine / self.rate <= limit_seconds / tenants

    def fits_in_overload(
        self, tenant: Hashable, prompt_tokens: int, in_flight: int, now_seconds: float
    ) -> bool:
        """The same while far more come than can be served: the engine is kept full, and a short
        queue before it. in_flight: requests that it has, with their first token or without."""
        if prompt_tokens < 1 or in_flight < 0:
            raise ValueError("a prompt has tokens, and no engine has fewer requests than none")
        self._pass_time(now_seconds)
        if in_flight < FEW:
            return True
        is_short = self._reserved_tokens / self.rate <= OVERLOAD_SECONDS
        most = OVERLOAD_RUNNING * self.saturating
        if in_flight < most and (is_short or len(self._reserved) < FEW):
            return True
        # What others have may grow to what the first of them has, never beyond it.
        tokens = prompt_tokens + REQUEST_TOKENS
        mine = self._by_tenant[tenant] + tokens
        tenants = len(self._by_tenant.keys() | {tenant})
        return (
            tenants > 1
            and mine <= (self._reserved_tokens + tokens) / tenants
            and self.wait_seconds(tokens) <= max(OVERLOAD_SHARED_SECONDS, self.target_seconds)
            and in_flight < 3 / 4 * SATURATING_MAX
        )

    def shed(self, prompt_tokens: int, target_seconds: float, now_seconds: float) -> Shed:
        """Of one that does not fit and will not wait: with its own turn to come back at."""
        self._pass_time(now_seconds)
        tokens = prompt_tokens + REQUEST_TOKENS
        wait_seconds = self.wait_seconds(tokens)
        self.sheds += 1
        promised = max(now_seconds, self._promised_seconds) + tokens / self.rate
        self._promised_seconds = min(promised, now_seconds + RETRY_SECONDS_MAX)
        limit_seconds = target_seconds or self.target_seconds
        away_seconds = wait_seconds - limit_seconds + self._promised_seconds - now_seconds
        return Shed(wait_seconds, self._retry_seconds(away_seconds))

    def _retry_seconds(self, away_seconds: float) -> int:
        """When it should come back, never before its turn as far as that is foreseen."""
        if away_seconds < RETRY_SECONDS_MAX:
            return max(1, math.ceil(away_seconds))
        part = self.sheds * GOLDEN_PART % 1
        return RETRY_SECONDS_MAX + int(part * (RETRY_SPREAD_SECONDS + 1))

    # ---- figures -------------------------------------------------------------------------------
    @property
    def rate(self) -> float:
        """Tokens of prompts a second until first tokens, lately. Never 0."""
        # What is under way is not done yet, so time that a request takes is none without work.
        done_tokens = self._done_tokens + self._mean_tokens
        slower = done_tokens / (self._done_seconds + self._since_seconds)
        return max(min(self._done_tokens / self._done_seconds, slower), 1e-3)

    def wait_seconds(self, tokens: int = REQUEST_TOKENS) -> float:
        """Until the first token of a request of so much work that came now."""
        return (self._reserved_tokens + tokens) / self.rate

    @property
    def saturating(self) -> int:
        """Requests that saturate the engine, of the size that they have lately."""
        return self._prices.saturating(self._mean_tokens, self._mean_output_tokens)

    @property
    def target_seconds(self) -> float:
        """The relative one."""
        # At the rate by the prices: an engine that others slow down takes less, not longer.
        rate = max(self.rate, self._prices.tokens_per_second)
        work_seconds = self.saturating * self._mean_tokens / rate
        return max(TARGET_SECONDS_MIN, TARGET_PART * work_seconds)

    @property
    def reserved_tokens(self) -> int:
        """Work of the requests that wait for their first token."""
        return self._reserved_tokens

    # ---- what happens --------------------------------------------------------------------------
    def taken(self, key: int, tenant: Hashable, prompt_tokens: int, now_seconds: float) -> None:
        """It was handed to the loop."""
        if key in self._reserved:
            raise ValueError("a request is taken once")
        self._pass_time(now_seconds)
        tokens = prompt_tokens + REQUEST_TOKENS
        self._reserved[key] = _Reservation(tenant, tokens)
        self._reserved_tokens += tokens
        self._by_tenant[tenant] += tokens
        part = MEAN_PART if self._mean_tokens else 1.0
        self._mean_tokens += (tokens - self._mean_tokens) * part

    def begun(self, key: int, cached_tokens: int) -> None:
        """The loop has admitted it, and found so much of it in its cache."""
        one = self._reserved[key]
        spared = min(cached_tokens, one.tokens - REQUEST_TOKENS)
        one.tokens -= spared
        self._release(one.tenant, spared)

    def first_token(self, key: int, now_seconds: float) -> None:
        """It has what it waited for."""
        self._pass_time(now_seconds)
        one = self._reserved.pop(key)
        self._release(one.tenant, one.tokens)
        if self._was_full:
            self._learn(one.tokens)
        self._since_seconds = 0.0
        self._was_full = len(self._reserved) >= LEARNING_REQUESTS

    def ended(self, output_tokens: int) -> None:
        """An answer is complete."""
        self._mean_output_tokens += (output_tokens - self._mean_output_tokens) * MEAN_PART

    def gone(self, key: int, now_seconds: float) -> None:
        """It ended without one, or was never there. Idempotent."""
        if key in self._reserved:
            self._pass_time(now_seconds)
            one = self._reserved.pop(key)
            self._release(one.tenant, one.tokens)
            self._was_full &= len(self._reserved) >= LEARNING_REQUESTS

    def _release(self, tenant: Hashable, tokens: int) -> None:
        if tokens > self._reserved_tokens:
            raise RuntimeError("more was released than was reserved")
        self._reserved_tokens -= tokens
        self._by_tenant[tenant] -= tokens
        if self._by_tenant[tenant] <= 0:
            del self._by_tenant[tenant]

    def _pass_time(self, now_seconds: float) -> None:
        # Who tells of several events at once may tell of one with the time of an earlier look.
        passed = max(0.0, now_seconds - self._at_seconds)
        self._at_seconds += passed
        if passed > 0 and self._was_full:
            self._since_seconds += passed

    def _learn(self, tokens: int) -> None:
        """They were done in the time since the last ones, evenly; older work fades."""
        took = self._since_seconds
        if took > 0:
            left = math.exp(-took / SETTLE_SECONDS)
            self._done_tokens *= left
            self._done_seconds = self._done_seconds * left + SETTLE_SECONDS * (1 - left)
            self._weight = SETTLE_SECONDS * (1 - left) / took
        self._done_tokens += tokens * self._weight
