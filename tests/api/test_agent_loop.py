"""Ten turns of an agent, as real clients send them: nearly all of each prompt comes from the cache,
counts agree, and what a client is told of the cache is true."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from grammar import check_stream, prompt_tokens
from harness import Served, body, serve
from test_turns import HERMES
from tiny_model import TINY_TEMPLATE, ids, tiny_model

TURNS = 10
SHARE = 0.95
WORDS = "the file of a test that reads its own list and says where it was made".split()


def prose(seed: int, words: int) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words))


TOOLS = [
    {
        "name": name,
        "description": prose(number, 60),
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    for number, name in enumerate(("Read", "Write", "Search"))
]
SYSTEM = [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1"},
    {"type": "text", "text": prose(9, 1000), "cache_control": {"type": "ephemeral"}},
]


def call_text(turn: int) -> str:
    call = f'{{"name": "Read", "arguments": {{"path": "/tmp/{turn}"}}}}'
    return f"I read number {turn}.\n<tool_call>\n{call}\n</tool_call>"


def script() -> list[tuple[list[int], list[int]]]:
    """The latest turn's question decides."""
    turns = reversed(range(TURNS))
    return [(ids(f"result {turn}."), ids(call_text(turn + 1))) for turn in turns] + [
        (ids("begin"), ids(call_text(0)))
    ]


def conversation() -> Iterator[dict[str, Any]]:
    """Requests of one agent; the caller sends back the answer to each."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "begin " + prose(5, 120)}]},
        {"role": "system", "content": [{"type": "text", "text": "Agents: none."}]},
    ]
    for turn in itertools.count():
        answer = yield {
            **body(messages=list(messages), system=SYSTEM, tools=TOOLS, max_tokens=400),
            "stream": turn % 2 == 0,
        }
        messages[1] = {"role": "system", "content": "Agents: none."}  # now as a string
        content = answer["content"]
        call = next(block for block in content if block["type"] == "tool_use")
        text = [{"type": "text", "text": f"result {turn}. " + prose(turn, 4)}]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": text}
        note = {"type": "text", "text": "note"}
        messages += [
            {"role": "assistant", "content": content},
            {"role": "user", "content": [note, result] if turn % 3 else [result]},
        ]


def message_of(served: Served, request: dict[str, Any]) -> dict[str, Any]:
    reply = served.client.post("/v1/messages?beta=true", json=request)
    assert reply.status_code == 200, reply.text
    return check_stream(reply.content).message if request["stream"] else reply.json()


@pytest.mark.parametrize("template", [TINY_TEMPLATE, HERMES], ids=("text", "template"))
def test_each_turn_of_an_agent_reads_the_one_before_from_the_cache(template: str) -> None:
    model = tiny_model(chat_template=template)
    with serve(model=model, answers={}, extra_script=script(), context_tokens=32_768) as served:
        agent = conversation()
        request, before, previous = next(agent), 0, None
        for turn in range(TURNS):
            request["diagnostics"] = {"previous_message_id": previous}
            counted = served.client.post("/v1/messages/count_tokens", json=request).json()
            answer = message_of(served, request)
            total, read = prompt_tokens(answer), answer["usage"]["cache_read_input_tokens"]
            assert total == counted["input_tokens"] > 2000
            if turn:
                assert read >= SHARE * before and read >= SHARE * total, (turn, read, total)
            assert answer["stop_reason"] == "tool_use" and not answer["diagnostics"]
            side = body("title " + prose(turn, 30), stream=False, max_tokens=4)
            assert message_of(served, side)["usage"]["output_tokens"] > 0
            before, previous = total, answer["id"]
            request = agent.send(answer)


def changed(request: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**msgspec.json.decode(msgspec.json.encode(request)), **fields}


def test_a_client_is_told_where_its_prompt_left_the_cached_one() -> None:
    with serve(answers={}, extra_script=script(), context_tokens=32_768) as served:
        agent = conversation()
        first = {**next(agent), "diagnostics": {"previous_message_id": None}}
        answer = message_of(served, first)
        assert answer["diagnostics"] is None
        request = {**agent.send(answer), "diagnostics": {"previous_message_id": answer["id"]}}
        edited = changed(request)
        edited["messages"][0]["content"][0]["text"] = "begin otherwise"
        found = {
            "messages_changed": edited,
            "system_changed": changed(request, system="S"),
            "tools_changed": changed(request, tools=TOOLS[:2]),
            "previous_message_not_found": changed(
                request, diagnostics={"previous_message_id": "msg_0"}
            ),
        }
        for kind, each in found.items():
            for stream in (False, True):
                reason = message_of(served, {**each, "stream": stream})["diagnostics"]
                assert reason["cache_miss_reason"]["type"] == kind
                missed = reason["cache_miss_reason"].get("cache_missed_input_tokens", 1)
                assert missed > 0
        assert message_of(served, request)["diagnostics"] is None


def test_pages_that_others_have_taken_are_unavailable() -> None:
    with serve(answers={}, extra_script=script(), context_tokens=8192, pages=300) as served:
        agent = conversation()
        first = {**next(agent), "diagnostics": {"previous_message_id": None}, "max_tokens": 200}
        answer = message_of(served, first)
        for seed in range(3):
            message_of(served, body(prose(seed, 1500), stream=False, max_tokens=4))
        request = {**agent.send(answer), "diagnostics": {"previous_message_id": answer["id"]}}
        reason = message_of(served, {**request, "max_tokens": 200})["diagnostics"]
        assert reason == {"cache_miss_reason": {"type": "unavailable"}}


EXCEEDED = "model_context_window_exceeded"
WINDOW_BETA = "model-context-window-exceeded-2025-08-26"


@pytest.mark.parametrize(
    ("version", "betas", "reason"),
    [
        ("2026-10-21", "", EXCEEDED),
        ("2023-06-01", "", "max_tokens"),
        ("", "", "max_tokens"),
        pytest.param("2023-06-01", WINDOW_BETA, EXCEEDED, id="F45 beta"),
        pytest.param("2023-06-01", f"a-new-beta, {WINDOW_BETA}", EXCEEDED, id="F45 two betas"),
        pytest.param("2023-06-01", "a-new-beta", "max_tokens", id="F45 unknown beta"),
    ],
)
def test_the_end_of_the_context_is_named_to_clients_that_know_it(
    version: str, betas: str, reason: str
) -> None:
    with serve(context_tokens=256) as served:
        headers = {"anthropic-version": version, "anthropic-beta": betas}
        headers = {name: value for name, value in headers.items() if value}
        for stream in (False, True):
            request = body("count", max_tokens=4000, stream=stream)
            reply = served.client.post("/v1/messages", json=request, headers=headers)
            message = check_stream(reply.content).message if stream else reply.json()
            assert message["stop_reason"] == reason
        own = served.client.post("/v1/messages", json=body("count", max_tokens=5), headers=headers)
        assert own.json()["stop_reason"] == "max_tokens"


def test_edits_are_made_and_reported() -> None:
    with serve(answers={}, extra_script=script(), context_tokens=32_768) as served:
        agent = conversation()
        request = next(agent)
        for _ in range(4):
            request = agent.send(message_of(served, request))
        edit = {
            "type": "clear_tool_uses_20250919",
            "trigger": {"type": "tool_uses", "value": 2},
            "keep": {"type": "tool_uses", "value": 1},
        }
        request = {**request, "context_management": {"edits": [edit]}}
        counted = served.client.post("/v1/messages/count_tokens", json=request).json()
        whole, streamed = (message_of(served, {**request, "stream": s}) for s in (False, True))
        assert prompt_tokens(whole) == prompt_tokens(streamed) == counted["input_tokens"]
        assert whole["context_management"] == streamed["context_management"]
        (applied,) = whole["context_management"]["applied_edits"]
        assert applied["cleared_tool_uses"] == 3
        assert counted["context_management"]["original_input_tokens"] == (
            counted["input_tokens"] + applied["cleared_input_tokens"]
        )
