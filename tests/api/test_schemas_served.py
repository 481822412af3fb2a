"""No answer breaks its schema in silence: schemas as clients have them, on every surface, alone,
begun, behind thinking and as arguments of tools.

A model that says anything its masks allow answers. SUBLIMATE_TEST_LONG=1 tries every combination;
otherwise each schema is met in a few, and each combination of surface and kind many times.
"""

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

from harness import Served, serve, wait_until
from schemas import CORPUS
from tiny_model import TINY_TEMPLATE, tiny_model

IS_LONG = os.environ.get("SUBLIMATE_TEST_LONG") == "1"
PARTS = 8
SHARE = 13
"""Of the combinations, one of so many is tried, if it is not the long test."""
TOKENS = 1200 if IS_LONG else 500
SURFACES = ("/v1/messages", "/v1/chat/completions", "/v1/responses", "/api/chat", "/api/generate")
KINDS = ("plain", "begun", "thinking", "tools", "begun tools", "thinking tools")
THINKING = TINY_TEMPLATE.replace("assistant\n' }}", "assistant\n<think>\n' }}")
ENDLESS = re.compile(r"\d{60}|\s{40}")


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve(answers={}) as served:
        yield served
        wait_until(served.idle)
        assert served.engine.audit() == ""


@pytest.fixture(scope="module")
def thinker() -> Iterator[Served]:
    with serve(answers={}, model=tiny_model(chat_template=THINKING)) as served:
        yield served
        wait_until(served.idle)


def conversation(kind: str) -> list[dict[str, Any]]:
    asked = [{"role": "user", "content": "zq"}]
    begun = {"begun": "{", "begun tools": "Let me see."}.get(kind)
    return [*asked, {"role": "assistant", "content": begun}] if begun else asked


def body(path: str, kind: str, schema: dict[str, Any], seed: int) -> dict[str, Any]:
    """A request that is held to the schema."""
    asked: dict[str, Any] = {"model": "tiny", "stream": False}
    turns = conversation(kind)
    if path == "/api/generate":
        asked |= {"prompt": "zq", "raw": kind == "begun"}
    else:
        asked["input" if path == "/v1/responses" else "messages"] = turns
    if path.startswith("/api"):
        asked["options"] = {"num_predict": TOKENS, "seed": seed}
    else:
        limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        asked |= {limit: TOKENS, "seed": seed}
    if kind.startswith("thinking"):
        asked |= thinking(path)
    return asked | (as_tool if kind.endswith("tools") else as_format)(path, schema)


def as_tool(path: str, schema: dict[str, Any]) -> dict[str, Any]:
    if path == "/v1/messages":
        tool = {"name": "t", "input_schema": schema}
        return {"tools": [tool], "tool_choice": {"type": "any"}}
    function = {"name": "t", "parameters": schema}
    if path == "/v1/responses":
        return {"tools": [{"type": "function", **function}], "tool_choice": "required"}
    choice = {"tool_choice": "required"} if path.startswith("/v1") else {}
    return {"tools": [{"type": "function", "function": function}], **choice}


def thinking(path: str) -> dict[str, Any]:
    if path == "/v1/messages":
        return {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    if path == "/v1/responses":
        return {"reasoning": {"effort": "low"}}
    return {"think": True} if path.startswith("/api") else {"reasoning_effort": "low"}


def as_format(path: str, schema: dict[str, Any]) -> dict[str, Any]:
    if path == "/v1/messages":
        return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    if path == "/v1/responses":
        return {"text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}}
    if path.startswith("/api"):
        return {"format": schema}
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    return {"response_format": shape}


def exact(text: str) -> Any:
    """JSON whose numbers are as they are written: 0.07 is a multiple of 0.01."""
    return json.loads(text, parse_float=Decimal)


def answered(path: str, reply: dict[str, Any]) -> tuple[str, list[Any], bool]:
    """(Text, arguments of the calls, whether it was cut) of an answer."""
    if path == "/v1/messages":
        blocks = reply["content"]
        text = "".join(b["text"] for b in blocks if b["type"] == "text")
        calls = [b["input"] for b in blocks if b["type"] == "tool_use"]
        return text, calls, reply["stop_reason"] == "max_tokens"
    if path == "/v1/responses":
        items = reply["output"]
        texts = [p["text"] for i in items if i["type"] == "message" for p in i["content"]]
        calls = [exact(i["arguments"]) for i in items if i["type"] == "function_call"]
        return "".join(texts), calls, reply["status"] == "incomplete"
    if path == "/api/generate":
        return reply["response"], [], reply["done_reason"] == "length"
    if path == "/api/chat":
        message = reply["message"]
        calls = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
        return message["content"], calls, reply["done_reason"] == "length"
    (choice,) = reply["choices"]
    message = choice["message"]
    called = message.get("tool_calls") or ()
    calls = [exact(call["function"]["arguments"]) for call in called]
    return message["content"] or "", calls, choice["finish_reason"] == "length"


def outcome(path: str, kind: str, schema: dict[str, Any], reply: Any) -> str:
    """enforced, relaxed, refused or cut. Fails for an answer that breaks its schema in silence."""
    begun = kind == "begun" and path != "/api/generate"
    if reply.status_code == 400:
        assert begun and "a last assistant message" in reply.text, reply.text
        return "refused"
    assert reply.status_code == 200 and not begun, reply.text
    text, calls, is_cut = answered(path, exact(reply.text))
    assert not ENDLESS.search(f"{text}{calls}"), text
    if is_cut:
        return "cut"
    is_forced = kind.endswith("tools") and path.startswith("/v1")
    assert calls or not is_forced, text
    values = calls if kind.endswith("tools") else [exact(text)]
    if "x-schema-relaxed" in reply.headers:
        return "relaxed"
    for value in values:
        jsonschema.validate(value, exact(json.dumps(schema)))
    return "enforced" if values else "no call"


COMBINATIONS = [
    (name, path, kind)
    for index, name in enumerate(CORPUS)
    for number, (path, kind) in enumerate(itertools.product(SURFACES, KINDS))
    if path != "/api/generate" or not kind.endswith("tools")
    if IS_LONG or (index + number) % SHARE == 0
]


@pytest.mark.parametrize("part", range(PARTS))
def test_f36_no_answer_breaks_its_schema_in_silence(
    server: Served, thinker: Served, part: int, record_property: Any
) -> None:
    counts: Counter[str] = Counter()
    broken: list[str] = []
    for seed, (name, path, kind) in enumerate(COMBINATIONS[part::PARTS]):
        served = thinker if kind.startswith("thinking") else server
        reply = served.client.post(path, json=body(path, kind, CORPUS[name], seed))
        try:
            counts[outcome(path, kind, CORPUS[name], reply)] += 1
        except (AssertionError, ValueError, jsonschema.ValidationError) as error:
            counts["violations"] += 1
            broken.append(f"{name}, {path}, {kind}, {seed}: {str(error)[:300]}")
    record_property("outcomes", dict(counts))
    print(dict(counts))
    assert len(CORPUS) >= 300 and counts["enforced"] > 0
    assert not broken, "\n\n".join(broken)
