"""Named keys over the wire: limits, headers, tenants, and a reload that nobody notices."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import Served, body, http_post, serve, wait_until
from sublimate.config import EdgeSettings
from sublimate.edge.errors import ApiError
from sublimate.keys import KeyLimits, add_key, remove_key
from test_errors import check_error


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def settings(path: Path, *api_keys: str) -> EdgeSettings:
    return EdgeSettings(keys_file=str(path), api_keys=api_keys)


def ask(served: Served, key: str, content: str = "say hello", **fields: Any) -> Any:
    return served.client.post(
        "/v1/messages", json=body(content, **fields), headers={"x-api-key": key}
    )


@pytest.fixture
def limited(path: Path) -> Iterator[tuple[Served, str]]:
    key = add_key(path, "alice", KeyLimits(requests_per_minute=2, output_tokens_per_minute=5000))
    with serve(settings=settings(path)) as served:
        yield served, key


def test_a_limit_is_429_with_retry_after_and_headers(limited: tuple[Served, str]) -> None:
    served, key = limited
    first = ask(served, key)
    assert first.status_code == 200
    assert first.headers["anthropic-ratelimit-requests-limit"] == "2"
    assert first.headers["anthropic-ratelimit-requests-remaining"] == "1"
    assert first.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    assert first.headers["anthropic-ratelimit-output-tokens-limit"] == "5000"
    assert "anthropic-ratelimit-tokens-limit" not in first.headers
    assert ask(served, key, stream=True).status_code == 200
    refused = ask(served, key)
    check_error(refused, 429, "This key's limit of 2 requests per minute")
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert refused.headers["x-should-retry"] == "true"
    assert refused.headers["anthropic-ratelimit-requests-remaining"] == "0"
    counted = served.client.post(
        "/v1/messages/count_tokens", json=body(max_tokens=...), headers={"x-api-key": key}
    )
    assert counted.status_code == 200, "only what is generated is limited"


def test_a_request_that_is_refused_otherwise_costs_nothing(limited: tuple[Served, str]) -> None:
    served, key = limited
    for _ in range(3):
        assert ask(served, key, temperature=9).status_code == 400
    reply = ask(served, key)
    assert reply.headers["anthropic-ratelimit-requests-remaining"] == "1"


def fail_with(error: Exception) -> Callable[..., Any]:
    def fail(*given: Any, **named: Any) -> Any:
        raise error

    return fail


def wait_and_fail(*given: Any) -> Any:
    """A turn that never comes."""

    async def later() -> None:
        raise ApiError("overloaded").after(1)

    return later()


LINK = "sublimate.edge.engine.EngineLink"
TURN = "sublimate.edge.reservations.Reservations.turn"
FAILURES = {
    "refused at its turn": (TURN, fail_with(ApiError("overloaded").after(1)), 529),
    "refused while it waits": (TURN, wait_and_fail, 529),
    "refused at the submission": (f"{LINK}.submit", fail_with(ApiError("overloaded")), 529),
    "a bug before the submission": ("sublimate.edge.generate._blocks", fail_with(KeyError()), 500),
    "a bug in the submission": (f"{LINK}._submit", fail_with(ZeroDivisionError()), 500),
    "the engine breaks": (f"{LINK}._submit", fail_with(ApiError("engine_unavailable")), 503),
}


@pytest.mark.parametrize("stream", [False, True], ids=("whole", "stream"))
@pytest.mark.parametrize(("place", "failure", "status"), FAILURES.values(), ids=list(FAILURES))
def test_what_was_never_computed_costs_nothing(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    failure: Any,
    status: int,
    stream: bool,
) -> None:
    """Neither of the limits a minute, nor the place of a request that runs."""
    limits = KeyLimits(requests_per_minute=2, tokens_per_minute=2000, concurrency=1)
    key = add_key(path, "alice", limits)
    with serve(settings=settings(path)) as served:
        with monkeypatch.context() as patch:
            patch.setattr(place, failure)
            for _ in range(4):
                check_error(ask(served, key, stream=stream), status)
        reply = ask(served, key, stream=stream)
        assert reply.status_code == 200
        assert reply.headers["anthropic-ratelimit-requests-remaining"] == "1"
        assert int(reply.headers["anthropic-ratelimit-tokens-remaining"]) > 1700


def test_a_client_that_leaves_while_it_waits_for_its_turn_is_not_charged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[tuple[asyncio.Future[None], Callable[[], bool]]] = []

    def wait(reservations: Any, *given: Any) -> Any:
        turns.append((reservations._loop.create_future(), given[-1]))
        return turns[-1][0]

    key = add_key(path, "alice", KeyLimits(requests_per_minute=2, concurrency=1))
    with serve(settings=settings(path)) as served:
        with monkeypatch.context() as patch:
            patch.setattr(TURN, wait)
            for number in range(4):
                with served.connect() as sock:
                    sock.sendall(http_post(body(), x_api_key=key))
                    wait_until(lambda count=number + 1: len(turns) == count)
                turn, is_gone = turns[-1]
                wait_until(lambda gone=is_gone: served.call(gone))
                served.call(lambda turn=turn: turn.set_result(None))
                wait_until(lambda: not served.call(lambda: served.server.is_busy))
        reply = ask(served, key)
        assert reply.status_code == 200
        assert reply.headers["anthropic-ratelimit-requests-remaining"] == "1"
        assert served.stats()["accepted"] == 1


def test_a_client_that_leaves_the_engines_queue_is_not_charged(path: Path) -> None:
    """Nothing of its request was computed; one that was admitted is charged for its prompt."""
    keys = [add_key(path, name, KeyLimits(requests_per_minute=3)) for name in ("alice", "bob")]
    with serve(settings=settings(path), pages=16, context_tokens=512, step_delay_us=5000) as served:
        with served.connect() as running:
            running.sendall(http_post(body("count", max_tokens=400), x_api_key=keys[1]))
            wait_until(lambda: served.region.stats()["running"] == 1)
            for number in range(2):
                with served.connect() as sock:
                    sock.sendall(http_post(body("count", max_tokens=400), x_api_key=keys[0]))
                    wait_until(lambda: served.region.stats()["waiting"] == 1)
                cancelled = number + 1
                wait_until(lambda n=cancelled: served.region.stats()["cancelled_queue"] == n)
                wait_until(lambda: served.region.stats()["waiting"] == 0)
        wait_until(served.idle)
        remaining = "anthropic-ratelimit-requests-remaining"
        assert ask(served, keys[0]).headers[remaining] == "2"
        assert ask(served, keys[1]).headers[remaining] == "1"


def test_requests_at_once_and_a_client_that_leaves_frees_its_place(path: Path) -> None:
    key = add_key(path, "alice", KeyLimits(concurrency=1))
    with serve(settings=settings(path), step_delay_us=2000) as served:
        request = body("count", stream=True, max_tokens=4000)
        headers = {"x-api-key": key}
        with served.client.stream("POST", "/v1/messages", json=request, headers=headers) as reply:
            assert reply.status_code == 200
            refused = ask(served, key)
            check_error(refused, 429, "This key's limit of 1 requests at once")
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["x-should-retry"] == "true"
        wait_until(lambda: ask(served, key).status_code == 200)
        wait_until(served.idle)


def test_names_are_tenants_and_keys_of_the_settings_still_work(path: Path) -> None:
    keys = {name: add_key(path, name, KeyLimits()) for name in ("alice", "bob")}
    with serve(settings=settings(path, "plain")) as served:
        prompt = "a secret prefix " * 20
        reads = [
            ask(served, key, prompt).json()["usage"]["cache_read_input_tokens"]
            for key in (keys["alice"], keys["alice"], keys["bob"], "plain", "plain")
        ]
        assert reads[0] == reads[2] == reads[3] == 0 and min(reads[1], reads[4]) > 100
        # A new key of the same name reads what the old one wrote.
        remove_key(path, "alice")
        renewed = add_key(path, "alice", KeyLimits())
        served.call(served.server.reload)
        check_error(ask(served, keys["alice"], prompt), 401)
        usage = ask(served, renewed, prompt).json()["usage"]
        assert usage["cache_read_input_tokens"] > 100


def test_a_reload_drops_no_stream(path: Path) -> None:
    key = add_key(path, "alice", KeyLimits())
    with serve(settings=settings(path), step_delay_us=1000) as served:
        seen: list[bytes] = []

        def read() -> None:
            request = body("count", stream=True, max_tokens=300)
            headers = {"authorization": f"Bearer {key}"}
            with served.client.stream(
                "POST", "/v1/messages", json=request, headers=headers
            ) as reply:
                seen.extend(reply.iter_bytes())

        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: len(seen) > 2)
        remove_key(path, "alice")
        added = add_key(path, "carol", KeyLimits())
        served.call(served.server.reload)
        check_error(ask(served, key), 401)
        assert ask(served, added).status_code == 200
        reader.join()
        assert b"message_stop" in b"".join(seen)


def test_other_limits_hold_from_a_reload_on_and_what_was_used_stays_used(
    limited: tuple[Served, str], path: Path
) -> None:
    served, key = limited
    assert ask(served, key).headers["anthropic-ratelimit-requests-remaining"] == "1"
    text = path.read_text()
    for limit, remaining in ((9, "7"), (3, "0")):
        path.write_text(text.replace("requests_per_minute = 2", f"requests_per_minute = {limit}"))
        served.call(served.server.reload)
        reply = ask(served, key)
        assert reply.headers["anthropic-ratelimit-requests-limit"] == str(limit)
        assert reply.headers["anthropic-ratelimit-requests-remaining"] == remaining
    check_error(ask(served, key), 429)
    path.write_text(text.replace("requests_per_minute = 2", "concurrency = 1"))
    served.call(served.server.reload)
    assert ask(served, key).status_code == 200, "a limit that was taken away"


def test_a_file_that_breaks_changes_nothing(path: Path) -> None:
    key = add_key(path, "alice", KeyLimits())
    with serve(settings=settings(path)) as served:
        for breakage in (lambda: path.write_text("[keys"), path.unlink):
            breakage()
            served.call(served.server.reload)
            assert ask(served, key).status_code == 200
            check_error(ask(served, "other"), 401)


def test_a_file_without_keys_opens_nothing_and_one_that_appears_closes(path: Path) -> None:
    with serve(settings=settings(path)) as served:
        assert ask(served, "").status_code == 200, "no file, no key"
        key = add_key(path, "alice", KeyLimits())
        served.call(served.server.reload)
        check_error(ask(served, ""), 401)
        assert ask(served, key).status_code == 200
        remove_key(path, "alice")
        served.call(served.server.reload)
        check_error(ask(served, key), 401)
        check_error(ask(served, ""), 401)
