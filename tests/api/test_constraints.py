"""What binds an answer is enforced, relaxed and said, or refused by name: on every surface."""

import json
import logging
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from llguidance import LLParserLimits

from harness import Served, serve, wait_until

CALL = '<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>'
X = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
USER = [{"role": "user", "content": "zq"}]
FUNCTION = {"type": "function", "function": {"name": "a", "parameters": X}}
OTHER = {"type": "function", "function": {"name": "b", "parameters": X}}
ANSWERS: dict[str, str | bytes] = {
    "zq calls": "\n".join([CALL] * 3),
    "zq json": '{"x": 5}',
    "zq": "hello",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve(answers=ANSWERS) as served:
        yield served
        wait_until(served.idle)
        assert served.engine.audit() == ""


def chat(served: Served, **fields: Any) -> Any:
    asked = {"model": "tiny", "messages": USER, "max_tokens": 400, **fields}
    return served.client.post("/v1/chat/completions", json=asked)


def as_format(path: str, schema: dict[str, Any], *, strict: bool = False) -> dict[str, Any]:
    """The fields of a body that hold its answer to a schema."""
    named = {"name": "n", "schema": schema, "strict": strict}
    if path == "/v1/messages":
        return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    if path == "/v1/chat/completions":
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    if path == "/v1/responses":
        return {"text": {"format": {"type": "json_schema", **named}}}
    return {"format": schema}


def of_messages(path: str, messages: list[dict[str, Any]], tokens: int = 400) -> dict[str, Any]:
    """A body that is a conversation, not streamed."""
    if path == "/v1/responses":
        return {"model": "tiny", "input": messages, "max_output_tokens": tokens}
    if path == "/api/chat":
        options = {"num_predict": tokens}
        return {"model": "tiny", "messages": messages, "stream": False, "options": options}
    return {"model": "tiny", "messages": messages, "max_tokens": tokens}


# ---- formats of answers that were begun --------------------------------------------------------
FORMATS = {
    "/v1/messages": "output_config.format",
    "/v1/chat/completions": "response_format",
    "/v1/responses": "text.format",
    "/api/chat": "format",
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [pytest.param(path, id=f"F35 {path}") for path in FORMATS])
def test_an_answer_that_was_begun_has_no_format(server: Served, path: str, stream: bool) -> None:
    begun = [*USER, {"role": "assistant", "content": "{"}]
    whole = {**of_messages(path, begun), **as_format(path, X, strict=True), "stream": stream}
    reply = server.client.post(path, json=whole)
    assert reply.status_code == 400, reply.text
    assert f"{FORMATS[path]}: cannot be combined with a last assistant message" in reply.text


def test_f35_json_mode_is_a_format(server: Served) -> None:
    begun = [*USER, {"role": "assistant", "content": "{"}]
    reply = chat(server, messages=begun, response_format={"type": "json_object"})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "response_format"
    asked = {**of_messages("/api/chat", begun), "format": "json"}
    assert server.client.post("/api/chat", json=asked).status_code == 400
    for shape in ({"type": "text"}, None):
        assert chat(server, messages=begun, response_format=shape).status_code == 200


# ---- fields that bind an answer ----------------------------------------------------------------
BINDING: dict[str, Any] = {
    "min_tokens": 5,
    "json_schema": X,
    "regex": "a+",
    "ebnf": "root ::= 'a'",
    "structural_tag": {"a": 1},
    "grammar": "root ::= 'a'",
    "include_stop_str_in_output": True,
}
ON_V1 = ("/v1/messages", "/v1/chat/completions", "/v1/completions", "/v1/responses")


@pytest.mark.parametrize("path", ON_V1)
@pytest.mark.parametrize("name", BINDING)
def test_f39_what_binds_an_answer_is_refused_by_name(server: Served, path: str, name: str) -> None:
    body = of_messages(path, USER) if path != "/v1/completions" else {"prompt": "a"}
    body["model"] = "tiny"
    reply = server.client.post(path, json={**body, name: BINDING[name]})
    assert reply.status_code == 400 and f"{name}: not offered" in reply.text
    neutral = server.client.post(path, json={**body, name: None})
    assert neutral.status_code == 200, neutral.text


def test_f39_what_belongs_to_another_surface_is_refused_by_name(server: Served) -> None:
    shape = {"type": "json_object"}
    for path, name, value in (
        ("/v1/messages", "response_format", shape),
        ("/v1/messages", "stop", ["a"]),
        ("/v1/responses", "response_format", shape),
        ("/v1/responses", "stop", ["a"]),
        ("/api/chat", "response_format", shape),
        ("/api/chat", "tool_choice", "required"),
        ("/api/chat", "stop", ["a"]),
        ("/api/chat", "min_tokens", 3),
    ):
        reply = server.client.post(path, json={**of_messages(path, USER), name: value})
        assert reply.status_code == 400 and f"{name}: not offered" in reply.text, (path, name)


def test_f39_stop_tokens_and_an_answer_without_an_end_are_served(server: Served) -> None:
    said = chat(server, stop_token_ids=[3 + ord("l")]).json()["choices"][0]
    assert said["finish_reason"] == "stop" and said["message"]["content"] == "he"
    endless = chat(server, ignore_eos=True, max_tokens=20).json()
    assert endless["choices"][0]["finish_reason"] == "length"
    assert endless["usage"]["completion_tokens"] == 20
    for fields in (
        {"response_format": {"type": "json_object"}},
        {"tools": [FUNCTION], "tool_choice": "required"},
    ):
        reply = chat(server, ignore_eos=True, **fields)
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "ignore_eos"


# ---- calls -------------------------------------------------------------------------------------
def names_of_calls(reply: Any) -> list[str]:
    assert reply.status_code == 200, reply.text
    calls = reply.json()["choices"][0]["message"].get("tool_calls") or []
    for call in calls:
        jsonschema.validate(json.loads(call["function"]["arguments"]), X)
    return [call["function"]["name"] for call in calls]


def test_f26_a_named_function_is_called_once(server: Served) -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "zq calls"}]}
    asked["tools"] = [FUNCTION, OTHER]
    named = {"type": "function", "function": {"name": "a"}}
    for seed in range(4):
        assert names_of_calls(chat(server, **asked, tool_choice=named, seed=seed)) == ["a"]
    assert names_of_calls(chat(server, **asked, tool_choice="required")) == ["a"] * 3
    one = chat(server, **asked, tool_choice="required", parallel_tool_calls=False)
    assert names_of_calls(one) == ["a"]
    allowed = {"mode": "required", "tools": [named]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    assert names_of_calls(chat(server, **asked, tool_choice=choice)) == ["a"] * 3


def test_f26_on_the_messages_api(server: Served) -> None:
    tools = [{"name": name, "input_schema": X} for name in "ab"]
    for choice, count in (
        ({"type": "tool", "name": "a"}, 1),
        ({"type": "any"}, 3),
        ({"type": "any", "disable_parallel_tool_use": True}, 1),
    ):
        message = server.message("zq calls", tools=tools, tool_choice=choice, max_tokens=400).json()
        kinds = [block["type"] for block in message["content"]]
        assert kinds == ["tool_use"] * count and message["stop_reason"] == "tool_use"


@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 30])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "a"}}])
def test_f41_a_forced_call_that_is_cut_says_nothing(
    server: Served, tokens: int, choice: Any
) -> None:
    made = chat(server, tools=[FUNCTION], tool_choice=choice, max_tokens=tokens).json()
    (answer,) = made["choices"]
    assert not answer["message"]["content"] and answer["finish_reason"] == "length"
    streamed = chat(server, tools=[FUNCTION], tool_choice=choice, max_tokens=tokens, stream=True)
    assert "<" not in streamed.text and "tool_call>" not in streamed.text


# ---- conversations that went wrong -------------------------------------------------------------
@pytest.mark.parametrize("arguments", ["{x: 1", "", "null", "[1]", '"text"', "{}\n{}", "\\"])
def test_f40_arguments_that_are_no_object_stop_no_session(
    server: Served, arguments: str, caplog: pytest.LogCaptureFixture
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "a", "arguments": arguments}}
    turns: list[dict[str, Any]] = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "failed"},
        *USER,
    ]
    with caplog.at_level(logging.INFO, "sublimate.edge"):
        assert chat(server, messages=turns, tools=[FUNCTION]).status_code == 200
    told = [one for one in caplog.messages if "tool_calls.0" in one and "arguments" in one]
    assert len(told) == (arguments != "")
    items: list[dict[str, Any]] = [
        *USER,
        {"type": "function_call", "call_id": "c", "name": "a", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c", "output": "failed"},
        *USER,
    ]
    assert server.client.post("/v1/responses", json={"model": "tiny", "input": items}).is_success
    call = {"function": {"name": "a", "arguments": arguments}}
    turns[1:3] = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "x"}]
    assert server.client.post("/api/chat", json=of_messages("/api/chat", turns)).is_success


def test_f40_a_call_without_a_result_stops_no_session(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in "ab"
    ]
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    result = {"role": "tool", "tool_call_id": "b", "content": "yes"}
    with caplog.at_level(logging.INFO, "sublimate.edge"):
        for turns in ([said], [said, result], [said, result, said]):
            messages = [*USER, *turns, *USER]
            assert chat(server, messages=messages, tools=[FUNCTION]).status_code == 200
    assert any("messages.1.tool_calls.0 has no result" in one for one in caplog.messages)
    at_the_end = chat(server, messages=[*USER, said, result], tools=[FUNCTION])
    assert at_the_end.status_code == 400
    assert at_the_end.json()["error"]["param"] == "messages.1.tool_calls.0"


# ---- grammars that break -----------------------------------------------------------------------
EXPLODING = "^(.*e.{40}){10}$"
SCHEMA = {**X, "properties": {"x": {"type": "string", "pattern": EXPLODING}}}


def test_f08_a_pattern_with_endless_states_is_said_and_no_error(server: Served) -> None:
    for tokens in (5, 100, 100, 100, 5):
        reply = server.client.post(
            "/v1/messages",
            json={**of_messages("/v1/messages", USER, tokens), **as_format("/v1/messages", SCHEMA)},
        )
        assert reply.status_code == 200, reply.text
        place = "output_config.format.schema.properties.x.pattern"
        assert reply.headers["x-schema-relaxed"] == place


def test_f08_a_grammar_that_breaks_in_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole answer says so; the next one has a grammar."""

    def unseen(pattern: str) -> bool:
        return not pattern

    def small() -> LLParserLimits:
        return LLParserLimits(max_lexer_states=1500, verbose_errors=False)

    monkeypatch.setattr("sublimate.grammar.schema.needs_many_states", unseen)
    monkeypatch.setattr("sublimate.grammar.compiler._limits", small)
    text = '{"x": "' + "".join(random.Random(3).choices("eab", k=3500))
    with serve(answers={"zq": text}) as served:
        body = {**of_messages("/v1/messages", USER, 3000), **as_format("/v1/messages", SCHEMA)}
        short = {**body, "max_tokens": 5}
        assert served.client.post("/v1/messages", json=short).status_code == 200
        for _ in range(2):
            reply = served.client.post("/v1/messages", json=body)
            assert reply.status_code == 200, reply.text
            assert "x-schema-relaxed" in reply.headers, reply.text
        assert served.client.post("/v1/messages", json=short).status_code == 200
        body["output_config"]["format"]["schema"] = X
        reply = served.client.post("/v1/messages", json=body)
        assert reply.status_code == 200 and "x-schema-relaxed" not in reply.headers
