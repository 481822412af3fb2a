"""Idempotency keys over HTTP/3: a cancel ends the request at once, a lost connection does not; and
what our client makes of it, whose messages have keys there."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import pytest

from harness import Served, body, serve, wait_until
from http3_client import Answer, Client
from sublimate.client import http_client
from sublimate.config import EdgeSettings
from sublimate.edge import limits

ASKED: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "say hello"}],
}
COUNT = {"stream": True, "max_tokens": 3000}
CANCELLED = 0x10C
LONG_SECONDS = 60.0
"""Of grace: more than a test waits."""


@pytest.fixture(scope="module")
def slow(tls_settings: EdgeSettings) -> Iterator[Served]:
    with serve(settings=tls_settings, http3=True, step_delay_us=500) as running:
        yield running
        wait_until(running.idle)


def begun(slow: Served, pair: tuple[Path, Path], key: str) -> tuple[Client, int, Answer]:
    """A long stream, of which something has come."""
    client = Client(slow.server.ports["h3"], pair[0])
    data = msgspec.json.encode(body("count", **COUNT))
    stream_id = client.begin("POST", "/v1/messages", data, idempotency_key=key)
    answer = client.answers[stream_id]
    client.run(lambda: b"content_block_delta" in answer.body)
    return client, stream_id, answer


# ---- the server ----------------------------------------------------------------------------------
@pytest.mark.parametrize("resets", [False, True], ids=["stop", "stop and reset"])
def test_a_cancel_frees_the_slot_at_once(
    slow: Served, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, resets: bool
) -> None:
    monkeypatch.setattr(limits, "OUTCOME_GRACE_SECONDS", LONG_SECONDS)
    cancelled = slow.stats()["cancelled_decode"]
    client, stream_id, _ = begun(slow, pair, f"cancel {resets}")
    client.quic.stop_stream(stream_id, CANCELLED)
    if resets:
        client.quic.reset_stream(stream_id, CANCELLED)
    client.send()
    wait_until(slow.idle)
    assert slow.stats()["cancelled_decode"] == cancelled + 1
    again = client.ask("POST", "/v1/messages", body(), idempotency_key=f"cancel {resets}")
    assert again.status == 200, "the key is free again, for any request"
    client.close()


def test_one_that_cancels_takes_nothing_from_another(slow: Served, pair: tuple[Path, Path]) -> None:
    client, stream_id, _ = begun(slow, pair, "shared")
    other, _, answer = begun(slow, pair, "shared")
    client.quic.stop_stream(stream_id, CANCELLED)
    client.send()
    other.run(lambda: answer.is_over)
    assert answer.headers["idempotency-replayed"] == "true" and b"message_stop" in answer.body
    client.close()
    other.close()


def test_a_lost_connection_may_come_back(slow: Served, pair: tuple[Path, Path]) -> None:
    accepted = slow.stats()["accepted"]
    client, _, seen = begun(slow, pair, "lost")
    client.close()
    client, _, answer = begun(slow, pair, "lost")
    client.run(lambda: answer.is_over)
    assert answer.headers["idempotency-replayed"] == "true"
    assert answer.body.startswith(seen.body) and b"message_stop" in answer.body
    assert slow.stats()["accepted"] == accepted + 1
    client.close()


# ---- our client ----------------------------------------------------------------------------------
@pytest.fixture(params=["h3", "grpc-h3"])
def http(request: pytest.FixtureRequest) -> Iterator[Any]:
    with http_client(carriers=(request.param,)) as made:
        yield made


@pytest.fixture
def client(slow: Served, http: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=slow.url, api_key="k", http_client=http, max_retries=0)


def test_what_a_server_that_leaves_has_not_begun_goes_over_a_new_connection(
    slow: Served, client: anthropic.Anthropic
) -> None:
    """As while a server is reloaded: a stream goes on where it is, and requests come meanwhile."""

    def leaves() -> None:
        for connection in list(slow.server._connections):
            connection.go_away()

    long: Any = body("count", max_tokens=3000)
    with client.messages.stream(**long) as stream:
        next(iter(stream.text_stream))
        slow.call(leaves)
        for _ in range(3):
            assert client.messages.create(**ASKED).content
        assert client.messages.count_tokens(model="tiny", messages=ASKED["messages"])
        assert stream.get_final_message().usage.output_tokens == 3000


def leave(http: Any) -> None:
    """End its connections, once there is a ticket for the next."""
    core = http._transport._core
    (origin,) = core._origins.values()
    wait_until(lambda: bool(origin.tickets))
    for session in list(core.network._all):
        session.on_loop(session.leave)
    wait_until(lambda: not core.network._all)


def test_messages_go_with_the_first_packet(
    slow: Served, http: Any, client: anthropic.Anthropic
) -> None:
    def early() -> int:
        return slow.call(lambda: slow.server.metrics.handshakes["early"])

    client.messages.create(**ASKED)
    for stream in (False, True):
        leave(http)
        before, accepted = early(), slow.stats()["accepted"]
        if stream:
            with client.messages.stream(**ASKED) as events:
                text = "".join(events.text_stream)
        else:
            text = client.messages.create(**ASKED).content[0].text
        assert text == "Hello there!" and http.report().last.early_data
        assert early() == before + 1, "the server took it early"
        assert slow.stats()["accepted"] == accepted + 1


def test_a_reader_that_leaves_frees_its_slot_at_once(
    slow: Served, http: Any, client: anthropic.Anthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OUTCOME_GRACE_SECONDS", LONG_SECONDS)
    asked = {**ASKED, "max_tokens": 3000, "messages": [{"role": "user", "content": "count"}]}
    for end in ("the stream", "the client"):
        cancelled = slow.stats()["cancelled_decode"]
        stream = client.messages.create(**asked, stream=True)
        for event in stream:
            if event.type == "content_block_delta":
                break
        stream.close() if end == "the stream" else http.close()
        wait_until(slow.idle)
        assert slow.stats()["cancelled_decode"] == cancelled + 1


def test_a_lost_connection_is_no_matter_before_the_first_byte(
    slow: Served, http: Any, client: anthropic.Anthropic
) -> None:
    """The whole answer of many tokens is awaited when the connection goes: the next one gets it,
    and the engine has worked once."""
    client.messages.create(**ASKED)
    network = http._transport._core.network
    before = slow.stats()["accepted"]
    asked = {**ASKED, "max_tokens": 1000, "messages": [{"role": "user", "content": "count"}]}
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.messages.with_raw_response.create, **asked)
        wait_until(lambda: slow.stats()["accepted"] == before + 1)
        (session,) = network._all
        session.on_loop(lambda: session.end("The network is another."))
        reply = asking.result()
    assert reply.headers["idempotency-replayed"] == "true"
    assert reply.parse().usage.output_tokens == 1000
    assert slow.stats()["accepted"] == before + 1


def test_no_key_goes_over_http1(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[bytes, bytes]] = []
    enter = slow.server.handle
    monkeypatch.setattr(
        slow.server,
        "handle",
        lambda exchange: (seen.append(exchange.request.fields), enter(exchange))[1],
    )
    for carrier in ("http/1.1", "frames", "h3"):
        with http_client(carriers=(carrier,)) as http:
            one = anthropic.Anthropic(base_url=slow.url, api_key="k", http_client=http)
            list(one.messages.create(**ASKED, stream=True))
    asked = [fields for fields in seen if b"content-type" in fields]
    assert [b"idempotency-key" in fields for fields in asked] == [False, False, True]
