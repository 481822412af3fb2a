"""Where a crowd waits that is no overload.

As many requests at once as an engine has rows are what people do with it: a benchmark, an
evaluation, a page that asks for many things. The last of them waits longer than the breaker's
target, and is served all the same. More than that is an overload, in which the engine is kept full
and nobody waits for long: those that would are refused, the ones in here as well.

So only what is within the target is handed to the loop, as before. What comes beyond it waits here,
where it has cost nothing yet and can still be told to come back later.

defines: CROWD_MAX, Anteroom
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

from .breaker import Breaker, Shed

CROWD_MAX = 128
"""Requests at once that are no overload: as many as can run (SEQUENCES_MAX)."""
RELAXED_SHARE = 0.75
"""Of those, below which an overload has ended; between the two it is what it was."""
REFUSED_SECONDS = 5.0
"""A refused request counts as one that is there for about so long: it comes back."""

Guest = TypeVar("Guest")


class _Place(msgspec.Struct, Generic[Guest]):
    guest: Guest
    tenant: Hashable
    prompt_tokens: int


class Anteroom(Generic[Guest]):
    """Of one breaker. Takes time as an argument. `in_flight`: requests that the engine has, whether
    they wait for their first token or have had it."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._places: list[_Place[Guest]] = []
        """In the order of their coming."""
        self._refused = 0.0
        self._at_seconds = 0.0
        self._is_overload = False

    def __len__(self) -> int:
        return len(self._places)

    @property
    def is_overload(self) -> bool:
        """As of the last request that came or was called in."""
        return self._is_overload

    def refuses(
        self,
        tenant: Hashable,
        prompt_tokens: int,
        target_seconds: float,
        now_seconds: float,
        in_flight: int,
    ) -> bool:
        """Whether `ask` would raise Shed for a request of about so much."""
        self._weigh(now_seconds, in_flight, coming=1)
        if not target_seconds and not self._is_overload:
            return False
        return not self._may_go(tenant, prompt_tokens, target_seconds, now_seconds, in_flight)

    def ask(
        self,
        guest: Guest,
        tenant: Hashable,
        prompt_tokens: int,
        target_seconds: float,
        now_seconds: float,
        in_flight: int,
    ) -> bool:
        """Whether a request may go on at once; if not it waits here. Raises Shed, with a target of
        the operator's (not 0) for everything beyond it."""
        self._weigh(now_seconds, in_flight, coming=1)
        if self._may_go(tenant, prompt_tokens, target_seconds, now_seconds, in_flight):
            return True
        if target_seconds or self._is_overload:
            raise self.shed(prompt_tokens, target_seconds, now_seconds)
        self._places.append(_Place(guest, tenant, prompt_tokens))
        return False

    def call(
        self, now_seconds: float, in_flight: int
    ) -> tuple[Guest | None, list[tuple[Guest, Shed]]]:
        """(the next one, which may go on now; those that are refused). Again until there is none:
        each that goes on is work for the next."""
        self._weigh(now_seconds, in_flight)
        for index, place in enumerate(self._places):
            if self._may_go(place.tenant, place.prompt_tokens, 0.0, now_seconds, in_flight):
                del self._places[index]
                return place.guest, []
        if not self._is_overload:
            return None, []
        places, self._places = self._places, []
        return None, [
            (place.guest, self.shed(place.prompt_tokens, 0.0, now_seconds)) for place in places
        ]

    def leave(self, guest: Guest) -> None:
        """It waits no longer, or never did."""
        self._places = [place for place in self._places if place.guest is not guest]

    def guests(self) -> list[Guest]:
        """In the order of their coming."""
        return [place.guest for place in self._places]

    def clear(self) -> list[Guest]:
        """All of them leave."""
        guests, self._places = self.guests(), []
        return guests

    def refused(self) -> None:
        """Somebody, by this one or by another who would have had to agree."""
        self._refused += 1

    def shed(self, prompt_tokens: int, target_seconds: float, now_seconds: float) -> Shed:
        """Of one that is refused: it counts as one that will come back."""
        self.refused()
        return self._breaker.shed(prompt_tokens, target_seconds, now_seconds)

    def _may_go(
        self,
        tenant: Hashable,
        prompt_tokens: int,
        target_seconds: float,
        now_seconds: float,
        in_flight: int,
    ) -> bool:
        if self._is_overload and not target_seconds:
            return self._breaker.fits_in_overload(tenant, prompt_tokens, in_flight, now_seconds)
        return self._breaker.fits(tenant, prompt_tokens, target_seconds, now_seconds)

    def _weigh(self, now_seconds: float, in_flight: int, coming: int = 0) -> None:
        if in_flight < 0:
            raise ValueError("an engine has no fewer requests than none")
        passed = max(0.0, now_seconds - self._at_seconds)
        self._at_seconds += passed
        self._refused *= math.exp(-passed / REFUSED_SECONDS)
        demand = in_flight + len(self._places) + coming + self._refused
        self._is_overload = demand > CROWD_MAX * (RELAXED_SHARE if self._is_overload else 1.0)
