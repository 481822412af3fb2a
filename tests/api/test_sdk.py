"""The official SDK against this server, unchanged: sync, async, streaming, models, errors.

Written for both lines of the SDK: 0.x (x-api-key, version 2023-06-01) and 2.x (Bearer, version
2026-10-21); the last test runs this file again with a 0.x of its own.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import pytest

from harness import Served, serve, wait_until
from sublimate.config import EdgeSettings

USER = {"role": "user", "content": "say hello"}
FIRST_LINE = "anthropic<1"
INNER = "SUBLIMATE_TEST_INNER_RUN"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve(settings=EdgeSettings(api_keys=("sk-test",)), step_delay_us=300) as served:
        yield served
        assert served.idle()


@pytest.fixture
def client(server: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="sk-test", max_retries=0) as made:
        yield made


def test_the_right_line_is_under_test() -> None:
    assert (anthropic.__version__.split(".")[0] == "0") == (INNER in os.environ)


def test_create(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="tiny", max_tokens=64, messages=[USER])
    assert message.content[0].text == "Hello there!"
    assert message.stop_reason == "end_turn" and message.usage.output_tokens == 13
    assert message._request_id.startswith("req_")


def test_tool_runner(client: anthropic.Anthropic) -> None:
    """It asks for a thread first, where the SDK knows such, and goes on without."""

    @anthropic.beta_tool
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    runner = client.beta.messages.tool_runner(
        model="tiny", max_tokens=64, tools=[add], messages=[USER]
    )
    assert [message.stop_reason for message in runner] == ["end_turn"]


def test_stream_helper(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model="tiny", max_tokens=64, messages=[USER]) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "Hello there!" == final.content[0].text
    assert final.stop_reason == "end_turn" and final.usage.output_tokens == 13


def test_stream_events(client: anthropic.Anthropic) -> None:
    events = client.messages.create(model="tiny", max_tokens=64, messages=[USER], stream=True)
    types = [event.type for event in events]
    assert types[0] == "message_start" and types[-1] == "message_stop"
    assert "content_block_delta" in types


async def test_async_create_and_stream(server: Served) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="sk-test") as client:
        message = await client.messages.create(model="tiny", max_tokens=64, messages=[USER])
        assert message.content[0].text == "Hello there!"
        async with client.messages.stream(model="tiny", max_tokens=64, messages=[USER]) as stream:
            assert [text async for text in stream.text_stream]
            assert (await stream.get_final_message()).content[0].text == "Hello there!"


async def test_sixty_four_clients_at_once(server: Served) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="sk-test") as client:

        async def ask(number: int) -> str:
            content = [{"role": "user", "content": f"count {number}"}]
            async with client.messages.stream(
                model="tiny", max_tokens=64, messages=content
            ) as stream:
                return (await stream.get_final_message()).content[0].text

        answers = await asyncio.gather(*(ask(number) for number in range(64)))
    assert len(set(answers)) == 1 and len(answers[0]) == 64
    wait_until(server.idle)


def test_stop_sequences_and_system(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model="tiny",
        max_tokens=64,
        system=[{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": "say stop"}],
        stop_sequences=["STOP"],
    )
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == "STOP"


def test_count_tokens_equals_usage(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="tiny", messages=[USER], system="Sys")
    message = client.messages.create(model="tiny", max_tokens=4, messages=[USER], system="Sys")
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


WEATHER = {
    "name": "get_weather",
    "description": "d",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ASKING = {"role": "user", "content": "the weather"}


@pytest.fixture(scope="module")
def agent() -> Iterator[anthropic.Anthropic]:
    """A model that calls a tool and speaks of its result."""
    answers = {"it is 12C": "12 degrees.", "the weather": "I look.\n" + CALL, "think": "Yes."}
    with (
        serve(answers=answers, step_delay_us=100) as served,
        anthropic.Anthropic(base_url=served.url, api_key="any", max_retries=0) as made,
    ):
        yield made
        assert served.idle()


def test_a_tool_is_called_and_its_result_answered(agent: anthropic.Anthropic) -> None:
    asked = {"model": "tiny", "max_tokens": 300, "tools": [WEATHER]}
    message = agent.messages.create(messages=[ASKING], **asked)
    text, call = message.content
    assert text.text == "I look." and message.stop_reason == "tool_use"
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"})
    with agent.messages.stream(messages=[ASKING], **asked) as stream:
        pieces = [e.partial_json for e in stream if e.type == "input_json"]
        streamed = stream.get_final_message()
    assert pieces and streamed.content[1].input == call.input
    assert streamed.stop_reason == "tool_use" and streamed.content[0].text == "I look."
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "it is 12C"}
    turns = [
        ASKING,
        {"role": "assistant", "content": [part.to_dict() for part in message.content]},
        {"role": "user", "content": [result]},
    ]
    answer = agent.messages.create(messages=turns, **asked)
    assert answer.content[0].text == "12 degrees." and answer.stop_reason == "end_turn"
    assert answer.usage.cache_read_input_tokens > 0
    counted = agent.messages.count_tokens(model="tiny", messages=turns, tools=[WEATHER])
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_a_prefill_is_continued(agent: anthropic.Anthropic) -> None:
    turns = [{"role": "user", "content": "think"}, {"role": "assistant", "content": "My answer: "}]
    message = agent.messages.create(model="tiny", max_tokens=50, messages=turns)
    assert message.content[0].text == "Yes."


def test_thinking_is_asked_for(agent: anthropic.Anthropic) -> None:
    for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
        message = agent.messages.create(
            model="tiny",
            max_tokens=2000,
            messages=[{"role": "user", "content": "think"}],
            thinking=thinking,
        )
        assert message.content[-1].text == "Yes."


def test_models(client: anthropic.Anthropic) -> None:
    page = client.models.list()
    assert [model.id for model in page.data] == ["tiny", "claude-tiny"]
    assert client.models.retrieve("tiny").display_name == "Tiny Test"
    assert [model.id for model in client.models.list(limit=1)] == ["tiny", "claude-tiny"]


def test_errors_have_their_classes(client: anthropic.Anthropic, server: Served) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        client.messages.create(model="tiny", max_tokens=-1, messages=[USER])
    assert bad.value.body["error"]["message"].startswith("max_tokens: ")
    assert bad.value.request_id.startswith("req_")
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", max_tokens=1, messages=[USER])
    with pytest.raises(anthropic.AuthenticationError):
        with anthropic.Anthropic(base_url=server.url, api_key="no", max_retries=2) as stranger:
            stranger.messages.create(model="tiny", max_tokens=1, messages=[USER])


def test_leaving_a_stream_cancels_it(client: anthropic.Anthropic, server: Served) -> None:
    cancelled = server.region.stats()["cancelled_decode"]
    content = [{"role": "user", "content": "count"}]
    with client.messages.stream(model="tiny", max_tokens=3000, messages=content) as stream:
        for _ in stream.text_stream:
            break
    wait_until(server.idle)
    assert server.region.stats()["cancelled_decode"] == cancelled + 1


def test_an_error_in_the_stream_raises(server: Served) -> None:
    with serve(step_delay_us=5000) as served:
        with anthropic.Anthropic(base_url=served.url, api_key="x", max_retries=0) as client:
            content = [{"role": "user", "content": "count"}]
            with pytest.raises(anthropic.APIError):
                with client.messages.stream(
                    model="tiny", max_tokens=3000, messages=content
                ) as stream:
                    for _ in stream.text_stream:
                        served.call(served.server.engine_lost)


def test_overload_is_retried_by_the_sdk() -> None:
    """529 with retry-after, then served: the caller sees one answer."""
    settings = EdgeSettings(queue_max=1)
    with serve(settings=settings, pages=16, context_tokens=512, step_delay_us=2000) as served:
        with httpx.Client(base_url=served.url, timeout=20) as busy:
            request = {
                "model": "tiny",
                "max_tokens": 440,
                "stream": True,
                "messages": [{"role": "user", "content": "count"}],
            }
            with busy.stream("POST", "/v1/messages", json=request):
                with busy.stream("POST", "/v1/messages", json=request):
                    pass
                with anthropic.Anthropic(base_url=served.url, api_key="x") as client:
                    message = client.messages.create(model="tiny", max_tokens=8, messages=[USER])
                    assert message.content[0].text.startswith("Hello")


def install_first_line() -> Path:
    """The newest SDK of the 0.x line in a folder of its own, from the package index, once."""
    folder = Path(__file__).parents[2] / "build" / "anthropic-0"
    if not (folder / "anthropic").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--no-input", "--target", str(folder), FIRST_LINE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        if done.returncode != 0:
            pytest.skip("the package index is not reachable")
    return folder


@pytest.mark.skipif(INNER in os.environ, reason="this is the inner run")
def test_the_first_line_of_the_sdk() -> None:
    """The same file with the other SDK in front of the installed one."""
    folders = [str(install_first_line()), str(Path(__file__).parent), *sys.path]
    environment = {**os.environ, INNER: "1", "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and anthropic.__version__.split(".")[0] != "0"
