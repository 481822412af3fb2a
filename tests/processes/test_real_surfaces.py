"""Every surface with the default model: one text for one seed, calls and schemas that hold, and the
story of a request."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import openai
import pytest
from servers import Server, wait_until

pytestmark = pytest.mark.alone

TOKENS = 24
ASKED = [{"role": "user", "content": "Name three rivers of Europe."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}, "count": {"type": "integer"}},
    "required": ["city", "count"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = ["-m", "sublimate", "serve", "--port", "0", "--json", "--log-level", "error"]
    with Server([*command, "--trace", "--kv-memory", "512MiB"]) as running:
        yield running.event("ready", 90)["url"]


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


def post(url: str, path: str, body: dict[str, Any]) -> Any:
    reply = httpx.post(url + path, json={"model": "default", **body}, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize("chosen", [{"temperature": 0}, {"temperature": 0.9, "seed": 11}])
def test_one_seed_says_one_text(url: str, chosen: dict[str, Any]) -> None:
    asked = {"messages": ASKED, **chosen}
    texts = [
        post(url, "/v1/messages", {**asked, "max_tokens": TOKENS})["content"][0]["text"],
        post(url, "/v1/chat/completions", {**asked, "max_tokens": TOKENS})["choices"][0]["message"][
            "content"
        ],
        post(
            url,
            "/v1/responses",
            {"input": ASKED, "max_output_tokens": TOKENS, "store": False, **chosen},
        )["output"][0]["content"][0]["text"],
        post(
            url,
            "/api/chat",
            {"messages": ASKED, "stream": False, "options": {"num_predict": TOKENS, **chosen}},
        )["message"]["content"],
        post(
            url,
            "/api/generate",
            {
                "prompt": ASKED[0]["content"],
                "stream": False,
                "options": {"num_predict": TOKENS, **chosen},
            },
        )["response"],
    ]
    assert texts[0] and len(set(texts)) == 1


def test_a_completion_goes_on_from_its_prompt(url: str) -> None:
    """The template written by hand: the same prompt, the same text."""
    shown = post(
        url, "/v1/chat/completions", {"messages": ASKED, "temperature": 0, "max_tokens": 8}
    )
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    prompt = (
        f"<|im_start|>system\n{system}<|im_end|>\n"
        f"<|im_start|>user\n{ASKED[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
    )
    made = post(url, "/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 8})
    assert made["usage"]["prompt_tokens"] == shown["usage"]["prompt_tokens"]
    assert made["choices"][0]["text"] == shown["choices"][0]["message"]["content"]


def test_a_schema_holds(client: openai.OpenAI, url: str) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    made = client.chat.completions.create(
        model="default", messages=ASKED, response_format=format, max_tokens=60, seed=3
    )
    shown = client.responses.create(
        model="default",
        input="Name a city.",
        max_output_tokens=60,
        text={"format": {"type": "json_schema", "name": "place", "schema": SCHEMA}},
    )
    body = {"messages": ASKED, "stream": False, "format": SCHEMA, "options": {"num_predict": 60}}
    texts = [made.choices[0].message.content, shown.output_text]
    texts.append(post(url, "/api/chat", body)["message"]["content"])
    for text in texts:
        place = msgspec.json.decode(text)
        assert place["city"] in ("Bern", "Rome") and type(place["count"]) is int


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "visit"}}]
)
def test_a_call_that_is_asked_for_is_made(client: openai.OpenAI, choice: Any) -> None:
    tool = {"type": "function", "function": {"name": "visit", "parameters": SCHEMA}}
    with client.chat.completions.stream(
        model="default",
        messages=ASKED,
        tools=[tool],
        tool_choice=choice,
        parallel_tool_calls=False,
        max_tokens=80,
    ) as stream:
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "visit"
    assert msgspec.json.decode(call.function.arguments)["city"] in ("Bern", "Rome")


@pytest.mark.parametrize("stream", [False, True])
def test_the_stages_of_a_real_answer_are_its_end_to_end_time(url: str, stream: bool) -> None:
    """The ledger of a loaded model's request, with the loop's own account inside it."""
    body: dict[str, Any] = {
        "model": "default",
        "messages": ASKED,
        "max_tokens": TOKENS,
        "temperature": 0,
    }
    body["stream"] = stream
    begin = time.monotonic()
    reply = httpx.post(f"{url}/v1/messages", json=body, timeout=60)
    seen_ms = (time.monotonic() - begin) * 1000
    path = f"{url}/v1/debug/requests/{reply.headers['request-id']}"
    wait_until(lambda: httpx.get(path).json().get("state") == "ended")
    told = httpx.get(path).json()
    total = sum(stage["ms"] for stage in told["stages"])
    assert total == pytest.approx(told["end_to_end_ms"], rel=0.02)
    assert 0 < told["end_to_end_ms"] <= seen_ms + 1
    kernels = {event["kernels"] for event in told["events"] if event["what"] == "step"}
    assert kernels and all(name.endswith(" threads") for name in kernels)
    steps = [event for event in told["events"] if event["what"] == "step"]
    stages = {stage["name"]: stage["ms"] for stage in told["stages"]}
    in_loop_ms = stages["admit"] + stages["first_token"] + stages["generate"]
    took_ms = sum(step["took_ns"] for step in steps) / 1e6
    assert 0 < took_ms <= in_loop_ms + 0.01
    assert sum(e["tokens"] for e in told["events"] if e["what"] == "part") >= TOKENS // 2
