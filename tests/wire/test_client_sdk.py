"""The official SDK over each carrier, sync and async, and that the server saw what the client says.
What the SDK gets is compared with what it gets over plain HTTP."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import anthropic
import msgspec
import pytest

from harness import Served, serve, wait_until
from sublimate.cli.certificate import own_certificate
from sublimate.client import async_http_client, http_client, validator
from sublimate.client.choice import Carrier
from sublimate.config import EdgeSettings

SERVED: tuple[Carrier, ...] = ("http/1.1", "frames", "grpc-h2", "grpc-h3", "h3")
USER = {"role": "user", "content": "say hello"}
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 64, "messages": [USER]}
WEATHER = {
    "name": "get_weather",
    "description": "d",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
KEY = "sk-test"
# What differs between two answers however they came.
OF_ONE_ANSWER = (
    "date",
    "request-id",
    "x-engine-utilization",
    "x-kv-headroom",
    "vary",
    "connection",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    certificate, key = own_certificate(tmp_path_factory.mktemp("tls"))
    settings = EdgeSettings(api_keys=(KEY,), tls_certificate=str(certificate), tls_key=str(key))
    answers = {
        "the weather": "I look.\n" + CALL,
        "say hello": "Hello there!",
        "count": "".join(f"{number} " for number in range(1000)),
    }
    options: dict[str, Any] = {"info": {"compute_path": "direct-kernel"}, "grpc": True}
    with serve(
        settings=settings, answers=answers, step_delay_us=300, http3=True, **options
    ) as served:
        yield served
        wait_until(served.idle)


@pytest.fixture(params=SERVED)
def carrier(request: pytest.FixtureRequest) -> Carrier:
    return request.param


@pytest.fixture
def client(server: Served, carrier: Carrier) -> Iterator[anthropic.Anthropic]:
    with made(server, carrier) as one:
        yield one


@contextlib.contextmanager
def made(server: Served, carrier: Carrier, **options: Any) -> Iterator[anthropic.Anthropic]:
    chosen = {"api_key": KEY, "max_retries": 0, **options}
    http = http_client(carriers=(carrier,))
    with anthropic.Anthropic(base_url=server.url, http_client=http, **chosen) as one:
        yield one


GRPC = {"gRPC over HTTP/2": "grpc-h2", "gRPC over HTTP/3": "grpc-h3"}


def seen(server: Served) -> Counter[str]:
    """By the server: what its answers went over."""
    metrics = server.server.metrics
    calls: Counter[str] = Counter()
    for (transport, _), count in metrics.calls.items():
        calls[GRPC[transport]] += count
    over_quic = metrics.protocols["HTTP/3"]
    return calls + Counter({"frames": metrics.streams["application/octet-stream"], "h3": over_quic})


@contextlib.contextmanager
def over(server: Served, carrier: Carrier, count: int, *, framed: int) -> Iterator[None]:
    """So many answers go over this carrier, framed of them as frames."""
    before = seen(server)
    yield
    expected = Counter({"frames": framed if carrier != "http/1.1" else 0})
    if carrier not in ("http/1.1", "frames"):
        expected[carrier] = count
    expected = +expected
    wait_until(lambda: seen(server) - before >= expected)
    wait_until(server.idle)
    assert seen(server) - before == expected


def without(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in OF_ONE_ANSWER}


def shape(body: str) -> list[str]:
    """Of a stream: its events with equal neighbours as one, since tokens may come together. Of
    JSON: its members."""
    if not body.startswith("event: "):
        return list(msgspec.json.decode(body))
    events = [part.partition("\n") for part in body.split("\n\n") if part]
    data = [msgspec.json.decode(rest.removeprefix("data: ")) for _, _, rest in events]
    assert [kind for kind, _, _ in events] == [f"event: {one['type']}" for one in data]
    named = [f"{one['type']} {sorted(one)}" for one in data]
    return [one for one, _ in itertools.groupby(named)]


def test_a_message(server: Served, client: anthropic.Anthropic, carrier: Carrier) -> None:
    with over(server, carrier, 1, framed=0):
        message = client.messages.create(**ASKED)
    assert message.content[0].text == "Hello there!" and message.stop_reason == "end_turn"
    assert message.usage.output_tokens == 13 and message._request_id.startswith("req_")


def test_the_validator_sees_the_direct_path(server: Served, carrier: Carrier) -> None:
    guard = validator()
    http = http_client(carriers=(carrier,), event_hooks=guard.event_hooks())
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, http_client=http) as client:
        client.messages.create(**ASKED)
        assert list(client.messages.create(**ASKED, stream=True))
        client.models.list()
    told = guard.report()
    assert told.checked == 2 and told.missed == 0, told


def test_debug_tells_the_id_that_the_server_knows_it_by(
    client: anthropic.Anthropic,
    carrier: Carrier,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SUBLIMATE_DEBUG", "1")
    message = client.messages.create(**ASKED)
    name = "http/1.1" if carrier == "frames" else carrier  # a whole answer has no frames
    assert f"200 over {name}: {message._request_id}\n" in capsys.readouterr().err


def test_a_stream(server: Served, client: anthropic.Anthropic, carrier: Carrier) -> None:
    with over(server, carrier, 2, framed=2):
        with client.messages.stream(**ASKED) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        events = [event.type for event in client.messages.create(**ASKED, stream=True)]
    assert text == "Hello there!" == final.content[0].text and final.stop_reason == "end_turn"
    assert events[0] == "message_start" and events[-1] == "message_stop"


def test_headers_and_events_are_those_of_plain_http(
    server: Served, client: anthropic.Anthropic, carrier: Carrier
) -> None:
    def read(one: anthropic.Anthropic, stream: bool) -> tuple[dict[str, str], str]:
        with one.messages.with_streaming_response.create(**ASKED, stream=stream) as response:
            assert response.headers["request-id"] == response.request_id
            return without(response.headers), response.read().decode()

    with made(server, "http/1.1") as plain:
        for stream in (True, False):
            headers, body = read(client, stream)
            expected, expected_body = read(plain, stream)
            for name in ("transfer-encoding", "x-accel-buffering"):  # not of every carrier
                expected.pop(name, None)
                headers.pop(name, None)
            assert headers == expected
            assert shape(body) == shape(expected_body)


def test_a_tool(server: Served, client: anthropic.Anthropic, carrier: Carrier) -> None:
    asked = {**ASKED, "max_tokens": 300, "tools": [WEATHER]}
    asked["messages"] = [{"role": "user", "content": "the weather"}]
    with over(server, carrier, 2, framed=1):
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            streamed = stream.get_final_message()
    assert whole.content[1].input == {"city": "Paris"} == streamed.content[1].input
    assert pieces and whole.stop_reason == "tool_use" == streamed.stop_reason


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="tiny", messages=[USER])
    usage = client.messages.create(**ASKED).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("change", "kind", "status"),
    [
        ({"max_tokens": -1}, anthropic.BadRequestError, 400),
        ({"model": "other"}, anthropic.NotFoundError, 404),
        ({"api_key": "sk-wrong"}, anthropic.AuthenticationError, 401),
    ],
    ids=["field", "model", "key"],
)
def test_an_error_is_the_one_of_plain_http(
    server: Served,
    carrier: Carrier,
    change: dict[str, Any],
    kind: type[anthropic.APIStatusError],
    status: int,
    stream: bool,
) -> None:
    def failed(carrier: Carrier) -> anthropic.APIStatusError:
        asked = {**ASKED, **change, "stream": stream}
        key = asked.pop("api_key", KEY)
        with made(server, carrier, api_key=key) as one, pytest.raises(kind) as caught:
            one.messages.create(**asked)
        return caught.value

    error, plain = failed(carrier), failed("http/1.1")
    assert error.status_code == status and error.request_id
    body, expected = dict(error.body), dict(plain.body)  # type: ignore[call-overload]
    assert body.pop("request_id") == error.request_id and expected.pop("request_id")
    assert body == expected
    headers, others = without(error.response.headers), without(plain.response.headers)
    headers.pop("content-length", None), others.pop("content-length")
    assert headers == others


def test_a_stream_that_is_left_frees_its_slot_at_once(
    server: Served, client: anthropic.Anthropic
) -> None:
    asked = {**ASKED, "max_tokens": 3000, "messages": [{"role": "user", "content": "count"}]}
    finished = server.stats()["cancelled_decode"]
    stream = client.messages.create(**asked, stream=True)
    for event in stream:
        if event.type == "content_block_delta":
            break
    stream.close()
    wait_until(server.idle)
    assert server.stats()["cancelled_decode"] == finished + 1


def test_batches_and_models(client: anthropic.Anthropic) -> None:
    request: Any = {"custom_id": "one", "params": ASKED}
    batch = client.messages.batches.create(requests=[request])
    wait_until(lambda: client.messages.batches.retrieve(batch.id).processing_status == "ended")
    (result,) = client.messages.batches.results(batch.id)
    assert result.custom_id == "one" and result.result.type == "succeeded"
    assert "tiny" in [model.id for model in client.models.list()]
    assert client.models.retrieve("tiny").id == "tiny"


def test_a_file_is_uploaded_and_read(client: anthropic.Anthropic) -> None:
    made = client.beta.files.upload(file=("a.txt", b"say hello", "text/plain"))
    assert made.filename == "a.txt" and made.size_bytes == 9
    client.beta.files.delete(made.id)


async def test_async(server: Served, carrier: Carrier) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=server.url, api_key=KEY, http_client=async_http_client(carriers=(carrier,))
    ) as client:
        with over(server, carrier, 24, framed=16):

            async def ask() -> None:
                message = await client.messages.create(**ASKED)
                assert message.content[0].text == "Hello there!"
                async with client.messages.stream(**ASKED) as stream:
                    assert "".join([text async for text in stream.text_stream]) == "Hello there!"
                events = await client.messages.create(**ASKED, stream=True)
                assert [event.type async for event in events][-1] == "message_stop"

            await asyncio.gather(*(ask() for _ in range(8)))
            await asyncio.sleep(0)


async def test_an_async_task_that_is_cancelled_frees_its_slot(
    server: Served, carrier: Carrier
) -> None:
    asked = {**ASKED, "max_tokens": 3000, "messages": [{"role": "user", "content": "count"}]}
    async with anthropic.AsyncAnthropic(
        base_url=server.url, api_key=KEY, http_client=async_http_client(carriers=(carrier,))
    ) as client:
        begun = asyncio.Event()

        async def read() -> None:
            async with client.messages.stream(**asked) as stream:
                async for _ in stream.text_stream:
                    begun.set()

        reading = asyncio.create_task(read())
        await begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await asyncio.to_thread(wait_until, server.idle)


def test_one_client_serves_many_threads(client: anthropic.Anthropic) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def ask(_: int) -> str:
        with client.messages.stream(**ASKED) as stream:
            return "".join(stream.text_stream)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(16))) == {"Hello there!"}
