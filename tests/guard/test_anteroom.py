"""A crowd waits and is served; an overload is refused, and those that wait with it."""

import socket
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import Served, body, http_post, read_reply, serve, wait_until
from sublimate import _core
from sublimate.config import EdgeSettings
from sublimate.guard.anteroom import CROWD_MAX, REFUSED_SECONDS, Anteroom
from sublimate.guard.breaker import (
    RETRY_SECONDS_MAX,
    RETRY_SPREAD_SECONDS,
    TARGET_SECONDS_MIN,
    Breaker,
    Prices,
    Shed,
)

PRICES = Prices(prompt_row_ps=10_000_000_000)
"""A hundred tokens of prompts a second."""
PROMPT_TOKENS = 34
"""Half a second with what every request costs."""
ANSWER_SECONDS = 2.0
TURN_SECONDS = 0.01


class Server:
    """An engine of `PRICES` with an anteroom. An answer takes some time beyond its first token."""

    def __init__(self) -> None:
        self.breaker = Breaker(PRICES)
        self.anteroom: Anteroom[int] = Anteroom(self.breaker)
        self.now = 0.0
        self.waits: dict[int, float] = {}
        self.refused_after: list[float] = []
        self._came: dict[int, float] = {}
        self._queue: list[int] = []
        self._ends: list[float] = []
        self._budget = 0.0

    @property
    def in_flight(self) -> int:
        return len(self._queue) + len(self._ends)

    def ask(self, target: float = 0.0, tenant: str = "a") -> None:
        key = len(self._came)
        self._came[key] = self.now
        try:
            goes = self.anteroom.ask(key, tenant, PROMPT_TOKENS, target, self.now, self.in_flight)
        except Shed as shed:
            assert 1 <= shed.retry_seconds <= RETRY_SECONDS_MAX + RETRY_SPREAD_SECONDS
            self.refused_after.append(0.0)
            return
        if goes:
            self._hand_over(key, tenant)

    def turn(self) -> None:
        self.now += TURN_SECONDS
        self._ends = [end for end in self._ends if end > self.now]
        self._budget = self._budget + TURN_SECONDS * 100.0 if self._queue else 0.0
        while self._queue and self._budget >= PROMPT_TOKENS + 16:
            self._budget -= PROMPT_TOKENS + 16
            key = self._queue.pop(0)
            self.breaker.first_token(key, self.now)
            self.waits[key] = self.now - self._came[key]
            self._ends.append(self.now + ANSWER_SECONDS)
        while True:
            key, refused = self.anteroom.call(self.now, self.in_flight)
            self.refused_after += [self.now - self._came[one] for one, _ in refused]
            if key is None:
                return
            self._hand_over(key, "a")

    def under(self, requests_per_second: float, seconds: float) -> None:
        end, owed = self.now + seconds, 0.0
        while self.now < end:
            owed += requests_per_second * TURN_SECONDS
            while owed >= 1:
                owed -= 1
                self.ask()
            self.turn()

    def _hand_over(self, key: int, tenant: str) -> None:
        self.breaker.taken(key, tenant, PROMPT_TOKENS, self.now)
        self._queue.append(key)


def test_a_crowd_is_as_many_as_can_run() -> None:
    assert CROWD_MAX == _core.LIMITS["SEQUENCES_MAX"]


def test_a_crowd_waits_as_long_as_it_takes() -> None:
    server = Server()
    for _ in range(CROWD_MAX):
        server.ask()
    assert server.in_flight < CROWD_MAX / 2, "what would wait too long costs the engine nothing"
    while len(server.waits) < CROWD_MAX:
        server.turn()
    assert not server.refused_after
    waits = list(server.waits.values())
    assert waits == sorted(waits), "in the order of their coming"
    assert waits[-1] == pytest.approx(CROWD_MAX * 0.5, abs=1.0), "and the engine was never idle"


def test_in_an_overload_nobody_waits_longer_than_the_target() -> None:
    server = Server()
    # Saturated as its rate allows: 2 a second. Ten times as many come.
    server.under(20.0, 60.0)
    target = server.breaker.target_seconds
    late = [wait for key, wait in server.waits.items() if key > CROWD_MAX]
    assert len(late) > 60 and max(late) <= target + 1.0
    most = target + CROWD_MAX / 20
    assert max(server.waits.values()) <= most, "also of those that were let in before it was one"
    assert len(server.waits) >= 0.97 * 2 * 60, "the engine had always something to do"
    assert max(server.refused_after) < CROWD_MAX / 20 + 1.0, "nor do the refused wait for long"
    assert len(server.anteroom) == 0 and server.anteroom.is_overload


def test_after_an_overload_a_crowd_may_wait_again() -> None:
    server = Server()
    server.under(20.0, 20.0)
    server.under(0.0, 3 * REFUSED_SECONDS)
    refused = len(server.refused_after)
    for _ in range(CROWD_MAX // 2):
        server.ask()
    while len(server.waits) + len(server.refused_after) < len(server._came):
        server.turn()
    assert len(server.refused_after) == refused and not server.anteroom.is_overload


def test_a_target_of_the_operator_is_kept_for_crowds_too() -> None:
    server = Server()
    for _ in range(CROWD_MAX):
        server.ask(target=10.0)
    assert len(server.anteroom) == 0
    assert len(server.refused_after) == CROWD_MAX - 20


def test_who_leaves_is_not_called() -> None:
    server = Server()
    for _ in range(60):
        server.ask()
    waiting = server.anteroom.guests()
    assert len(waiting) > 8
    server.anteroom.leave(waiting[0])
    server.anteroom.leave(waiting[0])
    assert server.anteroom.guests() == waiting[1:]
    assert server.anteroom.clear() == waiting[1:] and len(server.anteroom) == 0
    assert server.anteroom.call(1e6, 0) == (None, [])


# ---- served --------------------------------------------------------------------------------------
def read_metric(served: Served, name: str) -> float:
    for line in served.client.get("/metrics").text.splitlines():
        if line.startswith(name):
            return float(line.rpartition(" ")[2])
    return 0.0


def outside(served: Served) -> float:
    return read_metric(served, "sublimate_requests_outside")


def test_a_server_serves_a_crowd_that_its_engine_takes_in_turn() -> None:
    """44 prompts, of which the relative target has room for about 32."""
    cost = {"step_ps": 0, "decode_row_ps": 0, "prompt_row_ps": 1_000_000_000}
    with (
        serve(prefill_delay_us_per_token=1000, info={"step_cost": cost}) as served,
        ThreadPoolExecutor(44) as pool,
    ):
        words = "word " * 12
        asked = [
            pool.submit(
                served.client.post,
                "/v1/messages",
                json=body(f"{n} {words} count", stream=n % 2 == 0, max_tokens=4),
                timeout=30,
            )
            for n in range(44)
        ]
        waiting: list[float] = []
        while not all(one.done() for one in asked):
            waiting.append(outside(served))
        replies = [one.result() for one in asked]
        assert [reply.status_code for reply in replies] == [200] * 44
        tokens = replies[1].json()["usage"]["input_tokens"]
        assert 44 * tokens * 0.001 > TARGET_SECONDS_MIN, "not all of them fit at once"
        assert max(waiting) > 0 and outside(served) == 0
        assert served.message().status_code == 200


def test_who_waits_outside_is_lost_with_nobody_and_goes_with_its_client() -> None:
    """Some clients leave, then the engine; the others get the error of one that is not there."""
    cost = {"step_ps": 0, "decode_row_ps": 0, "prompt_row_ps": 1_000_000_000}
    with serve(prefill_delay_us_per_token=1000, info={"step_cost": cost}) as served:
        request = http_post(body("word " * 70 + "count", max_tokens=4), connection="close")
        clients = [served.connect() for _ in range(60)]
        for client in clients:
            client.sendall(request)
        wait_until(lambda: outside(served) >= 15)
        connections = served.server.metrics.connections
        for client in clients[-10:]:
            # A reset: after an end of file alone it takes a probe to know that a client has left.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        wait_until(lambda: served.server.metrics.connections <= connections - 10)
        assert outside(served) >= 5
        served.call(lambda: served.server.engine_lost())
        statuses = [read_reply(client).status for client in clients[:50]]
        assert 503 in statuses and set(statuses) <= {200, 500, 503}
        assert outside(served) == 0
        for client in clients:
            client.close()


def test_what_an_overload_refuses_is_not_read() -> None:
    """Its length says enough: a body that is no JSON is told to come back, and is wrong when there
    is room again. What is shorter than the room that is left is read."""
    cost = {"step_ps": 0, "decode_row_ps": 0, "prompt_row_ps": 1_000_000_000}
    settings = EdgeSettings(first_token_target=1.0)
    with serve(
        settings=settings, prefill_delay_us_per_token=1000, info={"step_cost": cost}
    ) as served:
        long = http_post(body("word " * 400 + "count", max_tokens=4), connection="close")
        clients = [served.connect() for _ in range(12)]
        for client in clients:
            client.sendall(long)
        wait_until(lambda: read_metric(served, "sublimate_breaker_sheds_total") >= 3)
        refused = served.client.post("/v1/messages", content=b"{" * 2000)
        assert refused.status_code == 529 and 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.json()["error"]["type"] == "overloaded_error"
        statuses = [read_reply(client).status for client in clients]
        assert statuses.count(200) >= 8 and set(statuses) == {200, 529}
        assert served.client.post("/v1/messages", content=b"{" * 2000).status_code == 400
        for client in clients:
            client.close()


def test_a_body_tells_by_what_others_were() -> None:
    """Tokens for each byte are learned: a body of the same length is more once others were."""
    with serve() as served:
        engine = served.server.models.main.engines.first
        assert engine is not None

        def expected() -> int:
            return served.call(lambda: engine.reservations.expected_tokens(1000))

        before = expected()
        for _ in range(40):
            served.message("a b c d e f g h i j k l m n o p q r s t u v w x y z " * 10)
        assert before == 125 and before < expected() <= 250
        for _ in range(10):
            served.call(lambda: engine.reservations.turn("a", 10**6, 1, 0.0, lambda: False))
        assert expected() <= 250, "what is named by an id has tokens and no bytes"
