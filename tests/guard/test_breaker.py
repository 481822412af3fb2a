"""The breaker against an engine of which everything is known: it takes prompts in turn, so many
tokens a second, and beside them nothing."""

from collections import Counter, deque
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from harness import Served, body, serve
from sublimate.config import EdgeSettings
from sublimate.guard.breaker import (
    FEW,
    REQUEST_TOKENS,
    RETRY_SECONDS_MAX,
    RETRY_SPREAD_SECONDS,
    SATURATING_MAX,
    SATURATING_MIN,
    TARGET_SECONDS_MIN,
    Breaker,
    Prices,
    Shed,
)

PROMPT_TOKENS = 984
"""A thousand with what every request costs: a second on the engine below."""
PRICES = Prices(step_ps=0, decode_row_ps=0, prompt_row_ps=1_000_000_000)
TURN_SECONDS = 0.05


class Engine:
    """`rate` tokens a second, in the order of their coming."""

    def __init__(self, rate: float = 1000.0) -> None:
        self.breaker = Breaker(PRICES)
        self.rate = rate
        self.now = 0.0
        self.waits: dict[int, float] = {}
        self.refused = 0
        self._queue: deque[tuple[int, float, float]] = deque()
        """(key, tokens left, since when)"""
        self._keys = 0

    def ask(self, tenant: str = "a", target: float = 0.0, tokens: int = PROMPT_TOKENS) -> int:
        """Raises Shed."""
        if not self.breaker.fits(tenant, tokens, target, self.now):
            self.refused += 1
            raise self.breaker.shed(tokens, target, self.now)
        self._keys += 1
        self.breaker.taken(self._keys, tenant, tokens, self.now)
        self._queue.append((self._keys, float(tokens + REQUEST_TOKENS), self.now))
        return self._keys

    def turn(self, seconds: float = TURN_SECONDS) -> None:
        self.now += seconds
        budget = self.rate * seconds
        while self._queue and budget > 0:
            key, left, since = self._queue.popleft()
            spent = min(left, budget)
            budget -= spent
            if left > spent:
                self._queue.appendleft((key, left - spent, since))
                continue
            self.breaker.first_token(key, self.now)
            self.breaker.ended(64)
            self.waits[key] = self.now - since

    def under(self, requests_per_second: float, seconds: float, target: float = 0.0) -> None:
        """Offered, refused or not."""
        owed = 0.0
        end = self.now + seconds
        while self.now < end:
            owed += requests_per_second * TURN_SECONDS
            while owed >= 1:
                owed -= 1
                try:
                    self.ask(target=target)
                except Shed:
                    continue
            self.turn()


def test_ten_times_too_many_wait_no_longer_than_the_target() -> None:
    engine = Engine()
    engine.under(requests_per_second=10.0, seconds=120.0, target=12.0)
    waits = sorted(engine.waits.values())
    assert waits[-1] <= 12.0 + 2 * TURN_SECONDS
    assert len(waits) >= 0.97 * 120, "and the engine never had to wait for them"
    assert engine.refused == pytest.approx(10 * 120 - len(waits) - 12, abs=2)


def test_the_estimate_follows_an_engine_that_is_slower_than_its_prices() -> None:
    engine = Engine(rate=400.0)
    engine.under(requests_per_second=10.0, seconds=120.0, target=25.0)
    late = [wait for key, wait in engine.waits.items() if key > 30]
    assert max(late) <= 1.1 * 25.0 and min(late) > 0.8 * 25.0
    assert engine.breaker.rate == pytest.approx(400.0, rel=0.1)
    faster = Engine(rate=3000.0)
    faster.under(requests_per_second=10.0, seconds=60.0, target=10.0)
    assert faster.breaker.rate == pytest.approx(3000.0, rel=0.1)
    assert faster.refused < 450, "a faster one takes three times as much"


def test_without_a_target_it_is_what_saturates() -> None:
    prices = Prices(step_ps=2_500_000_000, decode_row_ps=630_000_000, prompt_row_ps=500_000_000)
    assert prices.saturating(146, 64) == SATURATING_MIN
    assert prices.saturating(2000, 64) == SATURATING_MIN, "a long prompt fills an engine alone"
    assert prices.saturating(1, 64) == 35
    breaker = Breaker(msgspec.structs.replace(prices, step_ps=6_000_000_000))
    for _ in range(400):
        breaker.ended(6000)
    taken = 0
    while breaker.fits("a", 3024, 0.0, 1.0):
        breaker.taken(taken, "a", 3024, 1.0)
        taken += 1
    assert breaker.saturating > SATURATING_MIN and taken == breaker.saturating // 4
    assert breaker.target_seconds == pytest.approx(breaker.saturating / 4 * 3040 / 2000)
    short = Breaker(prices)
    short.taken(1, "a", 14, 1.0)
    assert short.target_seconds == TARGET_SECONDS_MIN


def test_in_an_overload_the_engine_is_full_and_little_waits() -> None:
    breaker = Breaker(Prices(prompt_row_ps=1_000_000_000))  # a thousand tokens a second
    fits = breaker.fits_in_overload
    for key in range(7):
        breaker.taken(key, "a", 64, 1.0)
    assert fits("a", 5000, FEW, 1.0), "a few may wait, however long the next is itself"
    breaker.taken(7, "a", 64, 1.0)
    assert not fits("a", 1, FEW, 1.0) and fits("a", 1, FEW - 1, 1.0)
    assert fits("b", 64, FEW, 1.0), "another's share"
    assert not fits("b", 3000, FEW, 1.0) and not fits("b", 64, SATURATING_MAX * 3 // 4, 1.0)
    for key in range(8):
        breaker.first_token(key, 2.0)
    assert breaker.reserved_tokens == 0 and breaker.saturating == SATURATING_MIN
    most = SATURATING_MIN * 3 // 2
    assert fits("a", 109, most - 1, 2.0)
    assert not fits("a", 109, most, 2.0), "with more it would gain nothing"
    for key in range(10, 20):
        breaker.taken(key, "a", 1, 2.0)
    assert fits("a", 5000, FEW, 2.0), "more than a few, of little work"
    for wrong in ((0, 1), (1, -1)):
        with pytest.raises(ValueError):
            fits("a", *wrong, 2.0)


def test_a_person_with_a_few_requests_never_meets_it() -> None:
    engine = Engine(rate=10.0)
    for _ in range(3):
        keys = [engine.ask(target=0.001) for _ in range(FEW)]
        with pytest.raises(Shed):
            engine.ask(target=0.001)
        for _ in range(100_000):
            engine.turn()
            if keys[-1] in engine.waits:
                break
        assert keys[-1] in engine.waits


def test_retry_after_is_when_the_backlog_has_gone() -> None:
    engine = Engine()
    for _ in range(20):
        engine.ask(target=20.5)
    told: list[int] = []
    for _ in range(100):
        with pytest.raises(Shed) as shed:
            engine.ask(target=20.5)
        told.append(shed.value.retry_seconds)
    assert told[0] == 2 and told[1] == 3, "each comes back in its own turn"
    foreseen = [seconds for seconds in told if seconds < RETRY_SECONDS_MAX]
    assert foreseen == told[: len(foreseen)] == sorted(foreseen) and len(foreseen) > 20
    for _ in range(round(40 / TURN_SECONDS)):
        engine.turn()
    for _ in range(20):
        engine.ask(target=20.5)
    with pytest.raises(Shed) as later:
        engine.ask(target=20.5)
    assert later.value.retry_seconds <= 3, "what was promised is past"


def test_who_is_beyond_what_is_foreseen_does_not_come_back_at_once() -> None:
    def flood() -> list[int]:
        engine = Engine()
        for _ in range(20):
            engine.ask(target=20.5)
        told: list[int] = []
        for _ in range(1000):
            with pytest.raises(Shed) as shed:
                engine.ask(target=20.5)
            told.append(shed.value.retry_seconds)
        return told

    told = flood()
    late = Counter(seconds for seconds in told if seconds >= RETRY_SECONDS_MAX)
    expected = late.total() / (RETRY_SPREAD_SECONDS + 1)
    assert len(late) == RETRY_SPREAD_SECONDS + 1, "every second of it, and none earlier or later"
    assert all(abs(count - expected) < 3 for count in late.values()), "evenly"
    assert max(late) == RETRY_SECONDS_MAX + RETRY_SPREAD_SECONDS <= 60
    assert told == flood(), "the same for the same requests"


def test_the_one_that_floods_is_refused_and_the_others_are_not() -> None:
    engine = Engine()
    for _ in range(24):
        engine.ask("flood", target=24.0)
    with pytest.raises(Shed):
        engine.ask("flood", target=24.0)
    for _ in range(8):
        engine.ask("b", target=24.0)
    for _ in range(8):
        engine.ask("c", target=24.0)
    for tenant in ("flood", "b"):
        with pytest.raises(Shed):
            engine.ask(tenant, target=24.0)
    assert engine.breaker.wait_seconds() < 2 * 24.0 + 1, "shares bound all of it"


def test_what_a_cache_has_is_no_work_and_what_is_gone_is_none_either() -> None:
    breaker = Breaker(PRICES)
    breaker.taken(1, "a", 1000, 0.0)
    assert breaker.reserved_tokens == 1000 + REQUEST_TOKENS
    breaker.begun(1, 960)
    assert breaker.reserved_tokens == 40 + REQUEST_TOKENS
    breaker.taken(2, "a", 100, 0.0)
    breaker.gone(2, 0.5)
    breaker.gone(2, 0.5)
    breaker.first_token(1, 1.0)
    assert breaker.reserved_tokens == 0
    assert breaker.rate == pytest.approx(1000.0), "so few tell nothing of the engine"


def test_prices_are_those_that_an_engine_tells() -> None:
    assert Prices.of({}) == Prices()
    told = {"step_ps": 1, "decode_row_ps": 2, "prompt_row_ps": 3, "prompt_position_ps": 4}
    assert Prices.of({"step_cost": told}) == Prices(step_ps=1, decode_row_ps=2, prompt_row_ps=3)


# ---- served --------------------------------------------------------------------------------------
def metrics(served: Served) -> dict[str, float]:
    found = {}
    for line in served.client.get("/metrics").text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name.partition("{")[0]] = float(value)
    return found


def test_a_server_refuses_at_once_and_says_when_to_come_back() -> None:
    from concurrent.futures import ThreadPoolExecutor

    cost = {"step_ps": 0, "decode_row_ps": 0, "prompt_row_ps": 3_000_000_000}
    settings = EdgeSettings(first_token_target=0.6)
    with (
        serve(
            settings=settings, prefill_delay_us_per_token=3000, info={"step_cost": cost}
        ) as served,
        ThreadPoolExecutor(40) as pool,
    ):
        fields = [dict(stream=number % 2 == 0, max_tokens=8) for number in range(40)]
        asked = [
            pool.submit(served.client.post, "/v1/messages", json=body(f"{n} count", **more))
            for n, more in enumerate(fields)
        ]
        replies = [one.result() for one in asked]
        taken = [reply for reply in replies if reply.status_code == 200]
        refused = [reply for reply in replies if reply.status_code == 529]
        assert len(taken) >= FEW and len(taken) + len(refused) == 40 and refused
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
        assert all(reply.json()["error"]["type"] == "overloaded_error" for reply in refused)
        found = metrics(served)
        assert found["sublimate_breaker_sheds_total"] == len(refused)
        assert found["sublimate_prompt_tokens_reserved"] == 0, "what ended holds nothing"
        assert served.message().status_code == 200


def test_the_queue_is_full_of_what_any_edge_has_sent() -> None:
    settings = EdgeSettings(queue_max=7)
    with serve(settings=settings) as served:
        engine: Any = served.server.engine
        for waiting, status in ((6, 200), (7, 529), (0, 200)):
            engine.prefixes = SimpleNamespace(load=lambda told=waiting: {"waiting": told})
            assert served.message().status_code == status


def test_an_event_may_be_told_with_the_time_of_an_earlier_look() -> None:
    """Of events that one look finds, another may have asked for the time in between."""
    breaker = Breaker(PRICES)
    for key in range(3):
        breaker.taken(key, "a", PROMPT_TOKENS, 1.0)
    breaker.gone(0, 2.5)
    breaker.first_token(1, 2.0)
    breaker.first_token(2, 3.0)
    assert breaker.reserved_tokens == 0
