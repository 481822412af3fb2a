"""Several answers to one request: lists of prompts, and n above 1."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from harness import Served, serve, wait_until
from sublimate.config import EdgeSettings
from tiny_model import ids

PROMPTS = ["say hello", "say stop", "say utf8"]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve(settings=EdgeSettings(), step_delay_us=300) as served:
        yield served
        wait_until(served.idle)
        assert served.engine.audit() == ""


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def alone(client: openai.OpenAI, prompt: Any, **fields: Any) -> Any:
    return client.completions.create(model="tiny", prompt=prompt, **fields)


@pytest.mark.parametrize("kind", ["text", "ids"])
@pytest.mark.parametrize("count", [1, 2])
def test_f23_each_prompt_has_its_choices(client: openai.OpenAI, kind: str, count: int) -> None:
    prompts: list[Any] = [ids(p) for p in PROMPTS] if kind == "ids" else PROMPTS
    fields: dict[str, Any] = {"max_tokens": 30, "n": count, "echo": kind == "text"}
    together = client.completions.create(model="tiny", prompt=prompts, **fields)
    assert [choice.index for choice in together.choices] == list(range(len(prompts) * count))
    single = [alone(client, prompt, **{**fields, "n": 1}) for prompt in prompts]
    wanted = [answer.choices[0] for answer in single for _ in range(count)]
    assert [c.text for c in together.choices] == [c.text for c in wanted]
    assert [c.finish_reason for c in together.choices] == [c.finish_reason for c in wanted]
    usage, parts = together.usage, [answer.usage for answer in single]
    assert usage is not None
    assert usage.prompt_tokens == sum(part.prompt_tokens for part in parts)
    assert usage.completion_tokens == count * sum(part.completion_tokens for part in parts)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    texts = [""] * len(together.choices)
    heads: set[tuple[str, int]] = set()
    last: Any = None
    stream = client.completions.create(
        model="tiny", prompt=prompts, **fields, stream=True, stream_options={"include_usage": True}
    )
    for last in stream:
        heads.add((last.id, last.created))
        for choice in last.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in together.choices] and len(heads) == 1
    assert last.usage.completion_tokens == usage.completion_tokens
    assert last.usage.prompt_tokens == usage.prompt_tokens


def test_f23_a_chat_has_n_choices(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "say hello"}],
        "n": 3,
        "logprobs": True,
    }
    whole = client.chat.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert {choice.message.content for choice in whole.choices} == {"Hello there!"}
    texts, ends = ["", "", ""], [0, 0, 0]
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] += choice.finish_reason is not None
    assert texts == ["Hello there!"] * 3 and ends == [1, 1, 1]
    once = client.chat.completions.create(**{**asked, "n": 1}).usage
    assert once is not None and whole.usage is not None
    assert whole.usage.prompt_tokens == once.prompt_tokens
    assert whole.usage.completion_tokens == 3 * once.completion_tokens


def test_f23_a_format_holds_for_every_choice(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    format: Any = {"name": "a", "schema": schema, "strict": True}
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "say hello"}],
        n=2,
        response_format={"type": "json_schema", "json_schema": format},
    )
    assert all('"a"' in (choice.message.content or "") for choice in answer.choices)


def test_f23_leaving_ends_every_choice(client: openai.OpenAI, server: Served) -> None:
    stream = client.completions.create(
        model="tiny", prompt=["count", "count"], max_tokens=2000, stream=True, n=2
    )
    next(iter(stream))
    wait_until(lambda: server.region.stats()["running"] > 1)
    stream.close()
    wait_until(server.idle)


def test_f23_one_prompt_that_is_wrong_refuses_all(client: openai.OpenAI, server: Served) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        alone(client, ["say hello", "a " * 9000])
    assert refused.value.param == "prompt" and refused.value.code == "context_length_exceeded"
    wait_until(server.idle)


@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_is_found_by_the_id_of_its_request(server: Served, stream: bool) -> None:
    asked = {"model": "tiny", "n": 3, "stream": stream, "max_tokens": 9}
    asked["messages"] = [{"role": "user", "content": "say hello"}]
    reply = server.client.post("/v1/chat/completions", json=asked)
    first = reply.headers["request-id"]

    def told(identifier: str) -> dict[str, Any]:
        answer = server.client.get(f"/v1/debug/requests/{identifier}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    wait_until(lambda: len(told(first)["choices"]) == 2)
    assert sorted(told(first)["choices"]) == [f"{first}.1", f"{first}.2"]
    for identifier in (first, f"{first}.1", f"{first}.2"):
        wait_until(lambda identifier=identifier: told(identifier)["state"] == "ended")
        answer = told(identifier)
        assert answer["id"] == identifier and answer["answer"]["output_tokens"] > 0
