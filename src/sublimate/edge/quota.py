"""What a key may use: token buckets of requests and tokens a minute, and requests at once.

A bucket holds a minute's worth and refills evenly. A prompt is charged when it is submitted, its
answer when it ends, and what came from the cache is given back; so a bucket can be in debt, and
then nothing is begun until it is out of it.

defines: KINDS, FIELDS, Bucket, Lease, Quota, Owner, NOBODY
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from ..keys import KeyLimits
from .errors import ApiError
from .ledger import Entry, Ledger, OwnLedger

SECONDS_PER_MINUTE = 60
BUSY_RETRY_SECONDS = 1
GiveWay = Callable[[], None]
KINDS = ("requests", "tokens", "input-tokens", "output-tokens")
"""Of the headers anthropic-ratelimit-<kind>-..., in their order."""
FIELDS = ("limit", "remaining", "reset")


class Bucket:
    """`capacity` units a minute. Where other edges have it too, its ledger is locked meanwhile."""

    def __init__(
        self, capacity: int, now_seconds: float, ledger: Ledger | None = None, kind: int = 0
    ) -> None:
        self.capacity = capacity
        self._ledger = ledger or OwnLedger()
        self._kind = kind
        if not self._ledger.read(kind).capacity:
            self._write(float(capacity), now_seconds)
        else:
            self.resize(capacity, now_seconds)

    def _write(self, level: float, now_seconds: float) -> None:
        self._ledger.write(self._kind, Entry(level, now_seconds, float(self.capacity)))

    def level(self, now_seconds: float) -> float:
        """Units that are there; below 0 in debt."""
        level, seconds, capacity = self._ledger.read(self._kind)
        gained = (now_seconds - seconds) * capacity / SECONDS_PER_MINUTE
        # What was used counts, whatever limit the edge had that wrote it: in a reload there are
        # edges with the old one and with the new one.
        return min(capacity, level + max(0.0, gained)) + self.capacity - capacity

    def take(self, units: int, now_seconds: float) -> None:
        """A negative number gives back."""
        self._write(min(float(self.capacity), self.level(now_seconds) - units), now_seconds)

    def seconds_until(self, units: float, now_seconds: float) -> float:
        missing = units - self.level(now_seconds)
        return max(0.0, missing) * SECONDS_PER_MINUTE / self.capacity

    def resize(self, capacity: int, now_seconds: float) -> None:
        """Another limit: what was used stays used."""
        self.capacity = capacity
        self._write(self.level(now_seconds), now_seconds)


class Lease:
    """What one request has been charged. It ends once, by `settle` or `cancel`."""

    def __init__(self, quota: Quota, prompt_tokens: int, give_way: GiveWay | None = None) -> None:
        self._quota: Quota | None = quota
        self.prompt_tokens = prompt_tokens
        """That it was charged."""
        self.give_way = give_way
        """Ends the request for one that must not wait for it."""

    def settle(self, cached_tokens: int, output_tokens: int) -> None:
        """The request was computed."""
        quota, self._quota = self._quota, None
        if quota is not None:
            quota.release(self, 0, -cached_tokens, output_tokens)

    def cancel(self) -> None:
        """Nothing of the request was computed: all is given back."""
        quota, self._quota = self._quota, None
        if quota is not None:
            quota.release(self, -1, -self.prompt_tokens, 0)


class Quota:
    """The limits of one key and how much of them is used. On the event loop's thread only."""

    def __init__(
        self,
        limits: KeyLimits,
        clock_seconds: Callable[[], float] = time.monotonic,
        ledger: Ledger | None = None,
    ) -> None:
        self._clock = clock_seconds
        self._ledger = ledger or OwnLedger()
        self._buckets: dict[str, Bucket] = {}
        self._concurrency = 0
        self._yielding: list[Lease] = []
        """Of those that run, the ones that give way; the last began last."""
        self.set_limits(limits)

    def set_limits(self, limits: KeyLimits) -> None:
        """Also while requests run."""
        self._concurrency = limits.concurrency
        now = self._clock()
        with self._ledger.locked():
            for number, kind in enumerate(KINDS):
                capacity: int = getattr(limits, kind.replace("-", "_") + "_per_minute")
                bucket = self._buckets.get(kind)
                if not capacity:
                    self._buckets.pop(kind, None)
                elif bucket is None:
                    self._buckets[kind] = Bucket(capacity, now, self._ledger, number)
                else:
                    bucket.resize(capacity, now)
        self._buckets = {kind: self._buckets[kind] for kind in KINDS if kind in self._buckets}

    def places(self) -> int | None:
        """Requests that may begin beside those that run; None: any number."""
        if not self._concurrency:
            return None
        with self._ledger.locked():
            return max(0, self._concurrency - self._ledger.running())

    def spare_places(self) -> int | None:
        """The same for a request that gives way: it leaves one to the others if there are more."""
        places = self.places()
        return places if places is None or self._concurrency == 1 else max(0, places - 1)

    def admit(self, prompt_tokens: int, give_way: GiveWay | None = None) -> Lease:
        """Charge a request, or raise ApiError (429): of the limits that are reached, the one to
        wait for the longest. One with `give_way` holds its place until a request without needs it:
        then it is called, and all that the request was charged is given back."""
        with self._ledger.locked():
            return self._admit(prompt_tokens, give_way)

    def _admit(self, prompt_tokens: int, give_way: GiveWay | None) -> Lease:
        waits: list[tuple[int, ApiError]] = []
        can_make_place = bool(self._yielding) and give_way is None
        if self.places() == 0 and not can_make_place:
            error = ApiError("too_many_at_once", maximum=self._concurrency)
            waits.append((BUSY_RETRY_SECONDS, error))
        now = self._clock()
        need = {"requests": 1, "tokens": prompt_tokens, "input-tokens": prompt_tokens}
        for kind, bucket in self._buckets.items():
            # A prompt above a minute's worth waits for a full bucket, and then leaves a debt.
            units = min(need.get(kind, 1), bucket.capacity)
            if wait := bucket.seconds_until(units, now):
                seconds = math.ceil(wait)
                error = ApiError(
                    "rate_limited",
                    maximum=bucket.capacity,
                    what=kind.replace("-", " "),
                    seconds=seconds,
                )
                waits.append((seconds, error))
        if waits:
            seconds, error = max(waits, key=lambda wait: wait[0])
            raise error.after(seconds)
        if self.places() == 0:
            self._make_place()
        self._charge(1, prompt_tokens, 0, now)
        self._ledger.add_running(1)
        lease = Lease(self, prompt_tokens, give_way)
        if give_way is not None:
            self._yielding.append(lease)
        return lease

    def _make_place(self) -> None:
        lease = self._yielding[-1]  # it has the least to lose
        give_way = lease.give_way
        lease.cancel()
        if give_way is not None:
            give_way()

    def release(self, lease: Lease, requests: int, input_tokens: int, output_tokens: int) -> None:
        """From a lease: the last charge, which may be negative."""
        if lease in self._yielding:
            self._yielding.remove(lease)
        with self._ledger.locked():
            self._ledger.add_running(-1)
            self._charge(requests, input_tokens, output_tokens, self._clock())

    def _charge(self, requests: int, input_tokens: int, output_tokens: int, now: float) -> None:
        both = input_tokens + output_tokens
        for kind, units in zip(KINDS, (requests, both, input_tokens, output_tokens), strict=True):
            if bucket := self._buckets.get(kind):
                bucket.take(units, now)

    def headers(self) -> list[tuple[str, str]]:
        """limit, remaining and reset (when the bucket is full again) of what is limited."""
        with self._ledger.locked():
            return self._headers(self._clock(), time.time())

    def _headers(self, now: float, wall: float) -> list[tuple[str, str]]:
        headers: list[tuple[str, str]] = []
        for kind, bucket in self._buckets.items():
            full = wall + bucket.seconds_until(bucket.capacity, now)
            reset = datetime.fromtimestamp(math.ceil(full), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            prefix = f"anthropic-ratelimit-{kind}"
            headers += [
                (f"{prefix}-limit", str(bucket.capacity)),
                (f"{prefix}-remaining", str(max(0, math.floor(bucket.level(now))))),
                (f"{prefix}-reset", reset),
            ]
        return headers


class Owner(msgspec.Struct, frozen=True):
    """Whose request it is."""

    key: bytes = b""
    """Names the tenant; empty where no key is needed."""
    name: str = ""
    """For logs; empty for a key without one."""
    quota: Quota | None = None
    """None: no limits."""


NOBODY = Owner()
