"""The validator: answers that left the direct path pause traffic until a probe passes, and a
webhook hears of it; and `sublimate guard check`, which looks from outside."""

import asyncio
import contextlib
import http.server
import threading
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import msgspec
import pytest
from typer.testing import CliRunner

from sublimate import _core
from sublimate.cli.main import app
from sublimate.client import TrafficPausedError, alerts, http_client, validator
from sublimate.client.validation import Expected, Miss, misses_of, utilization_of
from sublimate.errors import ConfigError

URL = "http://server.example/v1/messages"
DIRECT = {
    "x-layer": "1.0",
    "x-compute-path": "direct-kernel",
    "x-layer-config": _core.POLICY_DIGEST,
    "x-engine-utilization": "0.500",
    "request-id": "req_1",
}
FALLBACK = {**DIRECT, "x-compute-path": "fallback"}
RUNNER = CliRunner()


class Clock:
    """Seconds that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Fake:
    """A server that answers with the headers that it was given last."""

    def __init__(self) -> None:
        self.headers, self.status = dict(DIRECT), 200
        self.asked = 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        return httpx.Response(self.status, headers=self.headers, json={}, request=request)


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def client_of(fake: Fake, guard: Any) -> httpx.Client:
    hooks = guard.event_hooks()
    return httpx.Client(transport=httpx.MockTransport(fake.answer), event_hooks=hooks)


# ---- one answer ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({}, ""),
        ({"x-compute-path": "compiled-graph"}, ""),
        ({"x-engine-utilization": "0.95"}, ""),
        ({"x-engine-utilization": "", "x-layer": "2"}, ""),
        ({"x-layer": ""}, "layer"),
        ({"x-compute-path": "fallback"}, "path"),
        ({"x-compute-path": ""}, "path"),
        ({"x-layer-config": "0" * 64}, "policy"),
        ({"x-engine-utilization": "0.96"}, "utilization"),
        ({"x-engine-utilization": "0.01"}, "utilization"),
        ({"x-gpu-utilization": "0.01"}, "utilization"),
        ({"x-gpu-utilization": "99%"}, "utilization"),
        ({"x-gpu-utilization": "90%", "x-engine-utilization": "0.99"}, ""),
    ],
)
def test_what_a_head_says_wrongly(change: dict[str, str], what: str) -> None:
    expected = Expected(policy_digest=_core.POLICY_DIGEST, utilization=(0.1, 0.95))
    found = misses_of(httpx.Headers({**DIRECT, **change}), expected)
    assert [miss.what for miss in found] == ([what] if what else [])


def test_a_share_is_read_in_either_form_or_not_at_all() -> None:
    for text, share in (("0.5", 0.5), ("50%", 0.5), ("1", 1.0), ("nan", None), ("-1", None)):
        assert utilization_of({"x-gpu-utilization": text}) == share


def test_what_no_answer_could_satisfy_is_refused() -> None:
    for wrong, named in (
        ({"utilization": (0.9, 0.1)}, "utilization"),
        ({"utilization": (0.0, 90.0)}, "utilization"),
        ({"compute_paths": ()}, "compute_paths"),
        ({"compute_paths": ("fallback",)}, "compute_paths"),
        ({"misses_max": 0}, "misses_max"),
        ({"probe_seconds": 0.0}, "probe_seconds"),
        ({"webhook": "alerts.example"}, "webhook"),
        ({"webhook_headers": {"x-token": "a\nb"}}, "webhook_headers"),
        ({"paths": ["v1/messages"]}, "paths"),
    ):
        with pytest.raises(ConfigError, match=named):
            validator(**wrong)


# ---- pause and probe -----------------------------------------------------------------------------
def test_five_in_a_row_pause_until_a_probe_passes(fake: Fake, clock: Clock) -> None:
    guard = validator(clock=clock)
    with client_of(fake, guard) as client:
        fake.headers = FALLBACK
        for _ in range(4):
            client.post(URL)
        fake.headers = DIRECT
        client.post(URL)  # not in a row
        fake.headers = FALLBACK
        for _ in range(5):
            client.post(URL)
        assert guard.report().is_paused and guard.report().in_a_row == 5
        with pytest.raises(TrafficPausedError, match="X-Compute-Path is fallback") as caught:
            client.post(URL + "?beta=true")
        assert caught.value.misses == (Miss("path", "X-Compute-Path is fallback"),)
        assert caught.value.retry_seconds == 10.0 and fake.asked == 10
        assert client.get("http://server.example/v1/models").status_code == 200, "none of a model"
        clock.now += 10.0
        client.post(URL)  # the probe, which misses
        with pytest.raises(TrafficPausedError):
            client.post(URL)
        fake.headers, fake.status = DIRECT, 529
        clock.now += 10.0
        client.post(URL)  # the probe, which says nothing of a path
        with pytest.raises(TrafficPausedError):
            client.post(URL)
        fake.status = 200
        clock.now += 10.0
        client.post(URL)
        client.post(URL)
    told = guard.report()
    assert not told.is_paused and told.pauses == 1 and told.refused == 3 and told.in_a_row == 0
    assert told.misses == {"path": 10} and told.missed == 10 and told.checked == 13


def test_answers_that_were_under_way_do_not_end_a_pause(fake: Fake, clock: Clock) -> None:
    guard = validator(clock=clock, misses_max=1)
    sent = httpx.Request("POST", URL)
    guard.before(sent)
    with client_of(fake, guard) as client:
        fake.headers = FALLBACK
        client.post(URL)
        guard.after(httpx.Response(200, headers=DIRECT, request=sent))
        with pytest.raises(TrafficPausedError):
            client.post(URL)


def test_errors_are_no_misses_and_it_may_only_tell(fake: Fake) -> None:
    guard = validator(misses_max=2, pauses=False)
    with client_of(fake, guard) as client:
        fake.headers, fake.status = {}, 503
        client.post(URL)
        assert guard.report().checked == 0
        fake.status = 200
        for _ in range(4):
            client.post(URL)
        assert guard.report().missed == 4 and not guard.report().is_paused
        assert guard.report().pauses == 1, "told once"
        fake.headers = DIRECT
        client.post(URL)
        assert guard.report().in_a_row == 0


async def test_an_async_client_takes_it_too(fake: Fake) -> None:
    guard = validator(misses_max=2)
    hooks = guard.async_event_hooks()
    transport = httpx.MockTransport(fake.answer)
    async with httpx.AsyncClient(transport=transport, event_hooks=hooks) as client:
        fake.headers = FALLBACK
        await asyncio.gather(*(client.post(URL) for _ in range(2)))
        with pytest.raises(TrafficPausedError):
            await client.post(URL)
    assert guard.report().missed == 2


# ---- over sockets --------------------------------------------------------------------------------
class Handler(http.server.BaseHTTPRequestHandler):
    """Answers each POST as it is told, and keeps what it was sent."""

    seen: list[Any]
    told: dict[str, Any]

    def do_POST(self) -> None:
        self.seen.append(msgspec.json.decode(self.rfile.read(int(self.headers["content-length"]))))
        body = msgspec.json.encode(self.told.get("body", {}))
        self.send_response(self.told["status"])
        for name, value in self.told["headers"].items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@contextlib.contextmanager
def server(
    status: int = 200, headers: dict[str, str] | None = None
) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Its URL, what it was sent, and what it answers."""
    seen: list[Any] = []
    told: dict[str, Any] = {"status": status, "headers": headers or {}}
    kind = type("Own", (Handler,), {"seen": seen, "told": told})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as made:
        running = threading.Thread(target=made.serve_forever, args=(0.02,))
        running.start()
        try:
            yield f"http://127.0.0.1:{made.server_port}", seen, told
        finally:
            made.shutdown()
            running.join()


def wait_until(condition: Any) -> None:
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < 10, "it never held"
        time.sleep(0.005)


def test_the_webhook_hears_of_the_pause_and_of_its_end(fake: Fake, clock: Clock) -> None:
    with server() as (hook, seen, _):
        guard = validator(clock=clock, misses_max=2, webhook=hook, webhook_headers={"x-token": "t"})
        with client_of(fake, guard) as client:
            fake.headers = {"x-layer": "1"}
            for _ in range(2):
                client.post(URL + "?key=secret")
            wait_until(lambda: len(seen) == 1)
            fake.headers, clock.now = DIRECT, clock.now + 10
            client.post(URL)
            wait_until(lambda: guard.report().alerts_sent == 2)
        guard.close()
    paused, resumed = seen
    assert (paused["event"], resumed["event"]) == ("paused", "resumed")
    assert paused["url"] == URL, "without what may be secret"
    assert paused["misses_in_a_row"] == 2 and paused["layer"] == "1"
    assert [miss["what"] for miss in paused["misses"]] == ["path", "policy"]


def test_a_webhook_that_is_down_costs_no_request(
    fake: Fake, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried three times, then the alert is lost and counted."""
    monkeypatch.setattr(alerts, "WAIT_SECONDS", 0.02)
    with server(500) as (hook, seen, _):
        guard = validator(clock=clock, misses_max=1, webhook=hook)
        with client_of(fake, guard) as client:
            fake.headers = FALLBACK
            client.post(URL)
            wait_until(lambda: guard.report().alerts_lost == 1)
            assert len(seen) == alerts.TRIES and guard.report().alerts_sent == 0
    monkeypatch.setattr(alerts, "WAIT_SECONDS", 60.0)
    for number in range(alerts.UNDER_WAY_MAX + 2):  # nobody listens there any more
        fake.headers, clock.now = (DIRECT, FALLBACK)[number % 2], clock.now + 10
        with client_of(fake, guard) as client:
            client.post(URL)
    assert guard.report().alerts_lost == 1 + 2, "so many are under way at most"
    guard.close()
    assert guard.report().alerts_lost == 1 + alerts.UNDER_WAY_MAX + 2


def test_the_sdk_names_the_pause_as_the_cause() -> None:
    """Through our client, whose hooks are those of the library."""
    message = {"id": "m", "type": "message", "role": "assistant", "model": "x", "content": []}
    message |= {"stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 0}}
    with server(headers=FALLBACK | {"content-type": "application/json"}) as (url, _, told):
        told["body"] = message
        guard = validator(misses_max=1)
        http = http_client(event_hooks=guard.event_hooks())
        with anthropic.Anthropic(
            base_url=url, api_key="k", http_client=http, max_retries=0
        ) as client:
            asked: dict[str, Any] = {"model": "x", "max_tokens": 1, "messages": []}
            client.messages.create(**asked)
            with pytest.raises(anthropic.APIConnectionError) as caught:
                client.messages.create(**asked)
    assert isinstance(caught.value.__cause__, TrafficPausedError)


# ---- guard check ---------------------------------------------------------------------------------
def test_the_command_looks_at_some_answers() -> None:
    with server(headers=DIRECT) as (url, seen, told):
        done = RUNNER.invoke(app, ["guard", "check", url, "-n", "3"])
        assert done.exit_code == 0 and "3 of 3 answers took the direct path" in done.stdout
        assert len(seen) == 3 and seen[0]["max_tokens"] == 1
        narrow = ["guard", "check", url, "--json", "--utilization", "0.6:"]
        found = msgspec.json.decode(RUNNER.invoke(app, narrow).stdout)
        assert found["checked"] == found["missed"] == 5
        (miss,) = found["answers"][0]["misses"]
        assert miss == {"what": "utilization", "text": "utilisation 0.500 is outside 0.6 to 1"}
        told["headers"] = {**FALLBACK, "x-layer-config": "0" * 64}
        done = RUNNER.invoke(app, ["guard", "check", url, "-n", "1", "--any-policy"])
        assert done.exit_code == 1 and "fallback" in done.stdout and "policy is" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--utilization", "some"], 2, "two shares"),
        (["--utilization", "0.9:0.1"], 2, "no window"),
        ([], 6, "busy"),
    ],
)
def test_what_cannot_be_judged_is_told(arguments: list[str], code: int, said: str) -> None:
    with server(529) as (url, _, told):
        told["body"] = {"error": {"type": "overloaded_error", "message": "busy"}}
        done = RUNNER.invoke(app, ["guard", "check", url, *arguments])
    assert done.exit_code == code and said in done.stderr
