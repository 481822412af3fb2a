"""Ollama's own Python client against this server, unchanged, and the lines of its API."""

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import ollama
import pytest

from harness import ANSWERS, Served, serve, wait_until
from sublimate.model.template import ChatTemplate
from test_openai import CALL, SAID
from tiny_model import tiny_metadata, tiny_model

USER = [{"role": "user", "content": "say hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "d",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    info = {"parameters": 134_515_008}
    with serve(answers=SAID, step_delay_us=300, info=info) as served:
        yield served
        wait_until(served.idle)
        assert served.engine.audit() == ""


@pytest.fixture
def client(server: Served) -> Iterator[ollama.Client]:
    with connected(server) as made:
        yield made


def connected(server: Served) -> contextlib.closing[ollama.Client]:
    return contextlib.closing(ollama.Client(host=server.url))


def lines(server: Served, path: str, **body: Any) -> list[dict[str, Any]]:
    reply = server.client.post(path, json={"model": "tiny", **body})
    assert reply.headers["content-type"] == "application/x-ndjson", reply.text
    return [msgspec.json.decode(line) for line in reply.content.splitlines()]


# ---- answers -------------------------------------------------------------------------------------
def test_chat(client: ollama.Client) -> None:
    made = client.chat(model="tiny:latest", messages=USER)
    assert made.message.content == "Hello there!" and made.done and made.done_reason == "stop"
    assert made.model == "tiny:latest" and made.eval_count == 13 and made.prompt_eval_count > 20
    assert 0 < made.eval_duration < made.total_duration


def test_chat_stream(client: ollama.Client) -> None:
    parts = list(client.chat(model="tiny", messages=USER, stream=True))
    assert "".join(part.message.content for part in parts) == "Hello there!"
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == 13 and parts[0].eval_count is None


def test_a_stream_is_the_default_and_each_line_is_an_object(server: Served) -> None:
    shown = lines(server, "/api/chat", messages=USER)
    assert len(shown) > 2 and shown[-1]["done"]
    assert all(line["message"]["role"] == "assistant" for line in shown)
    shown = lines(server, "/api/generate", prompt="say hello")
    assert "".join(line["response"] for line in shown) == "Hello there!"


def test_generate_with_and_without_a_template(client: ollama.Client) -> None:
    made = client.generate(model="tiny", prompt="say hello", system="Be kind")
    assert made.response == "Hello there!"
    raw = client.generate(model="tiny", prompt="say hello", raw=True)
    assert raw.response == "Hello there!" and raw.prompt_eval_count == len("say hello")


@pytest.mark.parametrize("text", ["call it", "call twice"])
def test_tools_streamed_and_whole(client: ollama.Client, text: str) -> None:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": text}], "tools": [TOOL]}
    whole = client.chat(**asked).message
    assert [call.function.name for call in whole.tool_calls] == ["weather"] * len(whole.tool_calls)
    assert len(whole.tool_calls) == (2 if text == "call twice" else 1)
    assert whole.tool_calls[0].function.arguments == {"city": "Bern", "days": [1, 2]}
    parts = list(client.chat(**asked, stream=True))
    assert "".join(part.message.content for part in parts) == whole.content
    calls = [call for part in parts for call in part.message.tool_calls or []]
    assert calls == list(whole.tool_calls)
    results = [
        {"role": "tool", "tool_name": "weather", "content": f"sunny {number}"}
        for number in range(len(calls))
    ]
    turns = [*asked["messages"], whole, *results]
    second = client.chat(model="tiny", messages=turns, tools=[TOOL])
    assert second.done_reason == "stop" and second.prompt_eval_count > parts[-1].prompt_eval_count


def test_a_format_is_taken(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    for shape in ("json", schema):
        asked = [{"role": "user", "content": "as json"}]
        made = client.chat(model="tiny", messages=asked, format=shape)
        assert msgspec.json.decode(made.message.content) == {"city": "Bern"}


def test_thinking_is_apart() -> None:
    metadata = tiny_metadata()
    source = metadata["tokenizer.chat_template"] + "{# <think> #}"
    model = tiny_model(chat_template=source)
    assert isinstance(model.template, ChatTemplate) and model.template.thinking_format is not None
    answers = {"think first": "<think>\nhm\n</think>\n\nYes."}
    with serve(model=model, answers=answers) as served, connected(served) as client:
        asked = [{"role": "user", "content": "think first"}]
        whole = client.chat(model="tiny", messages=asked, think=True).message
        assert whole.thinking.strip() == "hm" and whole.content.strip() == "Yes."
        parts = list(client.chat(model="tiny", messages=asked, think=True, stream=True))
        assert "".join(part.message.thinking or "" for part in parts) == whole.thinking
        assert "".join(part.message.content for part in parts) == whole.content
        body = {"model": "tiny", "messages": asked}
        chat = served.client.post("/v1/chat/completions", json=body).json()
        message = chat["choices"][0]["message"]
        assert message["reasoning_content"] == whole.thinking
        assert message["content"] == whole.content
        assert chat["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
        assert "thinking" in client.show("tiny").capabilities


def test_options_and_logprobs(client: ollama.Client) -> None:
    options = {"num_predict": 5, "temperature": 0, "num_ctx": 99999, "seed": 1}
    asked = {"model": "tiny", "messages": USER, "options": options}
    made = client.chat(**asked, logprobs=True, top_logprobs=2)
    assert made.message.content == "Hello" and made.done_reason == "length"
    assert [score.token for score in made.logprobs] == list("Hello")
    assert all(len(score.top_logprobs) == 2 for score in made.logprobs)
    parts = list(client.chat(**asked, logprobs=True, top_logprobs=2, stream=True))
    assert [score for part in parts for score in part.logprobs or []] == list(made.logprobs)
    stopped = client.generate(model="tiny", prompt="say stop", options={"stop": ["STOP"]})
    assert stopped.response == "A B "


def test_a_model_is_loaded_and_never_unloaded(client: ollama.Client, server: Served) -> None:
    assert client.chat(model="tiny").done_reason == "load"
    assert client.generate(model="tiny", keep_alive=0).done_reason == "unload"
    with pytest.raises(ollama.ResponseError):
        client.generate(model="other")
    reply = server.client.post(
        "/api/generate", json={"model": "tiny", "prompt": "", "pad": "a" * 600}
    )
    assert reply.status_code == 400 and reply.json() == {"error": "prompt: must not be empty"}


# ---- what is served ------------------------------------------------------------------------------
def test_models(client: ollama.Client, server: Served) -> None:
    (model,) = client.list().models
    assert model.model == "tiny:latest" and model.details.parameter_size == "134.52M"
    (running,) = client.ps().models
    assert running.context_length == server.info["context_length"]
    assert running.digest == model.digest and len(model.digest) == 64
    shown = client.show("tiny:latest")
    assert shown.capabilities == ["completion", "tools"]
    assert shown.modelinfo["general.parameter_count"] == 134_515_008
    assert set(server.client.get("/api/version").json()) == {"version", "sublimate"}


# ---- errors --------------------------------------------------------------------------------------
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("options.temperature", {"options": {"temperature": -1}}),
    ("options.num_predict", {"options": {"num_predict": "many"}}),
    ("options.stop.0", {"options": {"stop": "x" * 1025}}),
    ("options.mirostat", {"options": {"mirostat": 2}}),
    ("options.repeat_penalty", {"options": {"repeat_penalty": -1}}),
    ("format", {"format": "yaml"}),
    ("think", {"think": "hard"}),
    ("messages.0.images", {"messages": [{"role": "user", "content": "a", "images": ["AA=="]}]}),
    ("messages.0.role", {"messages": [{"role": "developer", "content": "a"}]}),
    ("messages.0", {"messages": [{"role": "tool", "content": "a"}]}),
    ("messages.1.tool_calls.0.function",
     {"messages": [*USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]}),
    ("tools.0.function.name", {"tools": [{"function": {"name": "a b"}}]}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields"), REFUSED)
def test_what_cannot_be_served_is_named(server: Served, path: str, fields: dict[str, Any]) -> None:
    reply = server.client.post("/api/chat", json={"model": "tiny", "messages": USER, **fields})
    assert reply.status_code == 400 and set(reply.json()) == {"error"}
    assert reply.json()["error"].startswith(f"{path}: ")


@pytest.mark.parametrize("name", ["suffix", "template", "context", "images"])
def test_what_generate_refuses(server: Served, name: str) -> None:
    value: Any = [1] if name in ("context", "images") else "a"
    reply = server.client.post("/api/generate", json={"model": "tiny", "prompt": "a", name: value})
    assert reply.status_code == 400 and reply.json()["error"].startswith(f"{name}: ")


def test_errors(client: ollama.Client, server: Served) -> None:
    with pytest.raises(ollama.ResponseError) as missing:
        client.chat(model="other", messages=USER)
    assert missing.value.status_code == 404 and missing.value.error.startswith(
        "model: other is not"
    )
    with serve(step_delay_us=5000) as served, connected(served) as other:
        with pytest.raises(ollama.ResponseError):
            for _ in other.generate(model="tiny", prompt="count", stream=True):
                served.call(served.server.engine_lost)
        with pytest.raises(ollama.ResponseError) as gone:
            other.chat(model="tiny", messages=USER)
        assert gone.value.status_code == 503 and other.ps().models == []


def test_the_answers_of_the_scripts_are_what_is_said(client: ollama.Client) -> None:
    made = client.chat(model="tiny", messages=[{"role": "user", "content": "call it"}])
    assert made.message.content == "Let me see.\n" + CALL, "without tools a call is text"
    utf8 = client.chat(model="tiny", messages=[{"role": "user", "content": "say utf8"}])
    assert utf8.message.content == ANSWERS["say utf8"]


def test_f32_a_served_model_is_pulled_already(client: ollama.Client) -> None:
    for name in ("tiny", "Tiny:latest"):
        assert client.pull(name).status == "success"
        assert [part.status for part in client.pull(name, stream=True)][-1] == "success"
    with pytest.raises(ollama.ResponseError, match=r"other is not served here.*sublimate pull"):
        client.pull("other")


def test_f32_models_are_not_changed_through_the_api(client: ollama.Client, server: Served) -> None:
    for change in (
        lambda: client.create("new", from_="tiny"),
        lambda: client.copy("tiny", "new"),
        lambda: client.push("tiny"),
        lambda: client.delete("tiny"),
    ):
        with pytest.raises(ollama.ResponseError, match="does not change its models") as refused:
            change()
        assert refused.value.status_code == 404
    assert server.client.head("/api/blobs/sha256:00").status_code == 404
