"""Turns of an agent with the default model, whose own answers come back to it: nearly all of
each prompt is read from the cache, whatever else is asked between two turns."""

import os
import random
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from servers import Server

from sublimate import _core

TURNS = 10 if os.environ.get("SUBLIMATE_TEST_LONG") == "1" else 6
SHARE = 0.95
PROMPT_TOKENS_MIN = 2000
PAGE_TOKENS = _core.LIMITS["PAGE_TOKENS"]
WORDS = "the file of a test that reads its own list and says where it was made".split()
CHOICES = ({"type": "tool", "name": "Read"}, {"type": "any"}, {"type": "auto"})


def prose(seed: int, words: int) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words))


def tool(name: str, seed: int, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": prose(seed, 60), "input_schema": schema}


TOOLS = [
    tool("Read", 1, path={"type": "string", "maxLength": 40}, limit={"type": "integer"}),
    tool("Search", 2, pattern={"type": "string", "maxLength": 30}, whole={"type": "boolean"}),
]
SYSTEM = [
    {"type": "text", "text": "x-anthropic-billing-header: cch=1"},
    {"type": "text", "text": prose(9, 2400), "cache_control": {"type": "ephemeral"}},
]
SIDE = {"model": "default", "max_tokens": 4}


@pytest.fixture(scope="module")
def client() -> Iterator[anthropic.Anthropic]:
    command = ["-m", "sublimate", "serve", "--port", "0", "--json", "--log-level", "error"]
    with Server([*command, "--kv-memory", "512MiB"]) as running:
        url = running.event("ready", 60)["url"]
        with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60) as made:
            yield made


def answer_of(client: anthropic.Anthropic, stream: bool, fields: dict[str, Any]) -> Any:
    if not stream:
        return client.messages.create(**fields)
    with client.messages.stream(**fields) as events:
        return events.get_final_message()


def prompt_tokens(usage: Any) -> int:
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def follow_up(turn: int, answer: Any) -> list[dict[str, Any]]:
    """What a client adds: the answer as it parsed it, results of its calls, now and then more."""
    content = [block.model_dump(exclude_none=True) for block in answer.content]
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": f"Result {turn}."}
        for block in content
        if block["type"] == "tool_use"
    ]
    added = [{"role": "assistant", "content": content}] if content else []
    added.append({"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]})
    return added + ([{"role": "system", "content": "Agents: none."}] if turn % 3 == 1 else [])


def interrupt(client: anthropic.Anthropic, turn: int) -> None:
    """Requests of the same client that are none of the conversation: a title, another agent."""
    asked = [{"role": "user", "content": prose(turn, 30)}]
    client.messages.create(**SIDE, system="Write a title.", messages=asked)
    branch = client.messages.create(**SIDE, system=SYSTEM, tools=TOOLS, messages=asked)
    shared = branch.usage.cache_read_input_tokens
    assert shared >= 0.9 * prompt_tokens(branch.usage), "the beginning is that of the agent"


def test_a_real_agents_turns_read_95_percent_from_the_cache(client: anthropic.Anthropic) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Begin with the list."}]
    before, calls = 0, 0
    for turn in range(TURNS):
        told = {"model": "default", "system": SYSTEM, "tools": TOOLS, "messages": messages}
        counted = client.messages.count_tokens(**told).input_tokens
        asked = {**told, "max_tokens": 60, "tool_choice": CHOICES[turn % 3]}
        answer = answer_of(client, turn % 2 == 1, {**asked, "extra_body": {"seed": turn}})
        total, read = prompt_tokens(answer.usage), answer.usage.cache_read_input_tokens
        assert total == counted >= PROMPT_TOKENS_MIN
        if turn:
            assert read >= SHARE * total, (turn, read, total)
            assert read >= before - PAGE_TOKENS, "all of the prompt before it"
        calls += sum(block.type == "tool_use" for block in answer.content)
        before = total
        messages = messages + follow_up(turn, answer)
        interrupt(client, turn)
    assert calls >= TURNS // 2, "what was read again holds calls of the model's own"
