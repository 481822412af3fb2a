"""OpenAI's own SDK against this server, unchanged: chat completions, completions, errors."""

from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pytest

from harness import ANSWERS, Served, serve, wait_until
from sublimate.config import EdgeSettings

CALL = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "days": [1, 2]}}\n</tool_call>'
)
USER = [{"role": "user", "content": "say hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "d",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SAID = {
    **ANSWERS,
    "call it": "Let me see.\n" + CALL,
    "call twice": CALL + "\n" + CALL,
    "as json": '{"city": "Bern"}',
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    settings = EdgeSettings(api_keys=("sk-test",))
    with serve(settings=settings, answers=SAID, step_delay_us=300) as served:
        yield served
        wait_until(served.idle)
        assert served.engine.audit() == ""


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    url = f"{server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="sk-test", max_retries=0) as made:
        yield made


def ask(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


# ---- chat ----------------------------------------------------------------------------------------
def test_chat(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(model="tiny", messages=USER)
    choice = made.choices[0]
    assert choice.message.content == "Hello there!" and choice.finish_reason == "stop"
    assert choice.message.tool_calls is None and made.object == "chat.completion"
    usage = made.usage
    assert usage.completion_tokens == 13
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert made._request_id.startswith("req_")


def test_chat_stream(client: openai.OpenAI) -> None:
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model="tiny", messages=USER, stream=True, stream_options=options
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    said = [c.choices[0].delta.content for c in chunks[1:-2]]
    assert "".join(said) == "Hello there!" and all(said)
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 13
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_chat_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="tiny", messages=ask("say utf8")) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == ANSWERS["say utf8"]


@pytest.mark.parametrize("text", ["call it", "call twice"])
def test_tools_streamed_and_whole(client: openai.OpenAI, text: str) -> None:
    whole = client.chat.completions.create(model="tiny", messages=ask(text), tools=[TOOL])
    message = whole.choices[0].message
    assert whole.choices[0].finish_reason == "tool_calls"
    assert len(message.tool_calls) == (2 if text == "call twice" else 1)
    assert message.content == ("Let me see." if text == "call it" else None)
    for call in message.tool_calls:
        assert call.function.name == "weather" and call.id.startswith("call_")
        assert msgspec.json.decode(call.function.arguments) == {"city": "Bern", "days": [1, 2]}
    with client.chat.completions.stream(model="tiny", messages=ask(text), tools=[TOOL]) as stream:
        folded = stream.get_final_completion().choices[0]
    assert folded.finish_reason == "tool_calls"
    assert (folded.message.content or None) == message.content
    names = [(call.function.name, call.function.arguments) for call in message.tool_calls]
    assert [
        (call.function.name, call.function.arguments) for call in folded.message.tool_calls
    ] == names


def test_a_turn_with_its_result(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model="tiny", messages=ask("call twice"), tools=[TOOL])
    message = first.choices[0].message
    calls = message.tool_calls
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in reversed(calls)
    ]
    turns = [*ask("call twice"), message.model_dump(exclude_none=True), *results]
    second = client.chat.completions.create(model="tiny", messages=turns, tools=[TOOL])
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
    assert second.usage.prompt_tokens_details.cached_tokens >= 0.6 * first.usage.prompt_tokens
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=turns[:-1], tools=[TOOL])
    assert refused.value.param == "messages.1.tool_calls.0"


def test_without_choice_no_call_is_read(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(
        model="tiny", messages=ask("call it"), tools=[TOOL], tool_choice="none"
    )
    assert made.choices[0].finish_reason == "stop" and CALL in made.choices[0].message.content


def test_a_schema_is_taken(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    for shape in (
        {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}},
        {"type": "json_object"},
    ):
        made = client.chat.completions.create(
            model="tiny", messages=ask("as json"), response_format=shape
        )
        assert msgspec.json.decode(made.choices[0].message.content) == {"city": "Bern"}


def test_stop_and_length(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(model="tiny", messages=ask("say stop"), stop="STOP")
    assert made.choices[0].message.content == "A B " and made.choices[0].finish_reason == "stop"
    for name in ("max_tokens", "max_completion_tokens"):
        made = client.chat.completions.create(model="tiny", messages=USER, **{name: 5})
        assert made.choices[0].message.content == "Hello"
        assert made.choices[0].finish_reason == "length"


def test_logprobs(client: openai.OpenAI) -> None:
    asked = {"model": "tiny", "messages": USER, "logprobs": True, "top_logprobs": 3}
    whole = client.chat.completions.create(**asked).choices[0]
    tokens = whole.logprobs.content
    assert "".join(token.token for token in tokens) == "Hello there!"
    assert all(len(token.top_logprobs) == 3 for token in tokens)
    assert all(token.top_logprobs[0].logprob == token.logprob <= 0 for token in tokens)
    assert tokens[0].bytes == [ord("H")]
    chunks = client.chat.completions.create(**asked, stream=True)
    streamed = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert streamed == tokens


# ---- completions ---------------------------------------------------------------------------------
def test_completion_of_text_and_of_ids(client: openai.OpenAI) -> None:
    text = "please say hello"
    made = client.completions.create(model="tiny", prompt=text, max_tokens=40)
    assert made.choices[0].text == "Hello there!" and made.choices[0].finish_reason == "stop"
    assert made.usage.prompt_tokens == len(text), "no template stands around it"
    numbers = [3 + byte for byte in text.encode()]
    for prompt in ([text], numbers, [numbers]):
        again = client.completions.create(model="tiny", prompt=prompt, max_tokens=40)
        assert again.choices[0].text == made.choices[0].text
        assert again.usage.prompt_tokens == len(text)
    assert client.completions.create(model="tiny", prompt="count").usage.completion_tokens == 16


def test_completion_reads_control_tokens(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(model="tiny", messages=USER)
    prompt = (
        "<|im_start|>system\nYou are a test<|im_end|>\n<|im_start|>user\nsay hello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    made = client.completions.create(model="tiny", prompt=prompt, max_tokens=40)
    assert made.usage.prompt_tokens == chat.usage.prompt_tokens
    assert made.choices[0].text == chat.choices[0].message.content


def test_completion_echo_and_stream(client: openai.OpenAI) -> None:
    asked = {"model": "tiny", "prompt": "say hello", "max_tokens": 40, "echo": True}
    whole = client.completions.create(**asked).choices[0].text
    assert whole == "say helloHello there!"
    stream = client.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole


def test_completion_logprobs(client: openai.OpenAI) -> None:
    asked = {"model": "tiny", "prompt": "say hello", "max_tokens": 5, "logprobs": 2}
    shown = client.completions.create(**asked).choices[0].logprobs
    assert shown.tokens == list("Hello") and shown.text_offset == [0, 1, 2, 3, 4]
    assert [max(best.values()) for best in shown.top_logprobs] == shown.token_logprobs
    chunks = [
        chunk.choices[0].logprobs for chunk in client.completions.create(**asked, stream=True)
    ]
    parts = [part for part in chunks if part is not None]
    assert [t for part in parts for t in part.tokens] == shown.tokens
    assert [t for part in parts for t in part.text_offset] == shown.text_offset


# ---- errors --------------------------------------------------------------------------------------
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("n", {"n": 0}),
    ("n", {"n": 129}),
    ("temperature", {"temperature": 3}),
    ("stop.1", {"stop": ["a", "x" * 1025]}),
    ("max_completion_tokens", {"max_completion_tokens": -5}),
    ("top_logprobs", {"top_logprobs": 3}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 99}),
    ("functions", {"functions": [{"name": "f"}]}),
    ("tools.0.type", {"tools": [{"type": "telepathy"}]}),
    ("tools.1", {"tools": [TOOL, TOOL]}),
    ("tool_choice", {"tool_choice": "required"}),
    (
        "tool_choice",
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
    ),
    (
        "tool_choice",
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": [1]}}},
    ),
    ("response_format.type", {"response_format": {"type": "yaml"}}),
    ("response_format.json_schema.schema", {"response_format": {"type": "json_schema"}}),
    ("reasoning_effort", {"reasoning_effort": "much"}),
    ("modalities", {"modalities": ["audio"]}),
    ("guided_json", {"guided_json": {}}),
    ("messages.0.content.0", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ("messages.0.role", {"messages": [{"role": "bot", "content": "a"}]}),
    (
        "messages.0.tool_call_id",
        {"messages": [{"role": "tool", "content": "a", "tool_call_id": "b"}]},
    ),
    ("messages", {"messages": []}),
    ("messages.0.role", {"messages": [{"content": "a"}]}),
]


@pytest.mark.parametrize(("param", "fields"), REFUSED)
def test_what_cannot_be_served_is_named(server: Served, param: str, fields: dict[str, Any]) -> None:
    body = {"model": "tiny", "messages": USER, **fields}
    headers = {"authorization": "Bearer sk-test"}
    reply = server.client.post("/v1/chat/completions", json=body, headers=headers)
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["type"] == "invalid_request_error"
    assert error["param"] == param and error["message"].startswith(f"{param}: ")
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("best_of", {"best_of": 2}),
        ("prompt_logprobs", {"extra_body": {"prompt_logprobs": 1}}),
        ("echo", {"echo": True, "logprobs": 1}),
        ("suffix", {"suffix": "b"}),
        ("prompt", {"prompt": []}),
        ("prompt.1", {"prompt": ["a", ""]}),
        ("prompt.1", {"prompt": ["a", 5]}),
        ("prompt", {"prompt": ["a"] * 65, "n": 2}),
        ("prompt.1", {"prompt": [3, 9999]}),
        ("logprobs", {"logprobs": 50}),
    ],
)
def test_what_a_completion_refuses(client: openai.OpenAI, param: str, fields: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**{"model": "tiny", "prompt": "a", **fields})
    assert refused.value.param == param


def test_errors_have_their_classes(client: openai.OpenAI, server: Served) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=USER)
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="tiny", messages=ask("x" * 9000))
    assert long.value.code == "context_length_exceeded"
    assert "prompt is too long: " in long.value.message
    with pytest.raises(openai.AuthenticationError) as stranger:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="no", max_retries=0) as other:
            other.chat.completions.create(model="tiny", messages=USER)
    assert stranger.value.code == "invalid_api_key"
    reply = server.client.post("/v1/chat/nothing", headers={"x-api-key": "sk-test"})
    assert reply.status_code == 404 and reply.json()["error"]["message"]


def test_an_error_in_the_stream_raises() -> None:
    with serve(step_delay_us=5000) as served:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client:
            with pytest.raises(openai.APIError):
                for _ in client.chat.completions.create(
                    model="tiny", messages=ask("count"), stream=True
                ):
                    served.call(served.server.engine_lost)
            with pytest.raises(openai.InternalServerError) as gone:
                client.chat.completions.create(model="tiny", messages=USER)
    assert gone.value.status_code == 503


def test_leaving_a_stream_cancels_it(client: openai.OpenAI, server: Served) -> None:
    cancelled = server.region.stats()["cancelled_decode"]
    with client.chat.completions.create(model="tiny", messages=ask("count"), stream=True) as stream:
        for _ in stream:
            break
    wait_until(server.idle)
    assert server.region.stats()["cancelled_decode"] == cancelled + 1


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "claude-tiny"]
    assert client.models.retrieve("tiny").owned_by == "sublimate"
