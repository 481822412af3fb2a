"""One conversation over all surfaces: the same prompt, the same text, the same hits in the cache,
and each stream folds to the whole answer of its surface.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cases import request_of
from harness import Served, serve, wait_until
from sublimate.api.openai.chat_frames import call_id
from tiny_model import tiny_model

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "n": [1, 2]}}\n</tool_call>'
HUGE = '<tool_call>\n{"name": "weather", "arguments": {"n": 1e999}}\n</tool_call>'
OBJECT = '{"name": "weather", "arguments": {"city": "Bern", "n": [1, 2]}}'
# Neither is in the form that the model's template writes.
OTHER_CALLS = {
    "zq bare": f"So:\n{OBJECT}",
    "zq fence": f"So:\n```json\n{OBJECT}\n```\n",
    "zq python": 'So:\nweather(city="Bern", n=[1, 2])',
    "zq list": f"So:\n[TOOL_CALLS][{OBJECT}]",
}
ALIKE = {
    "zq word": f"So:\n```json\n{OBJECT}\n```\nis a call.",
    "zq other": "So:\n" + OBJECT.replace("weather", "wind"),
    "zq member": "So:\n" + OBJECT.replace("}}", '}, "result": 4}'),
}
ANSWERS: dict[str, str | bytes] = {
    "zq call": "So:\n" + CALL + "\n" + CALL,
    "zq huge": HUGE,
    **OTHER_CALLS,
    **ALIKE,
}
Turn = tuple[str, str]
"""(role, text)"""


@dataclass
class Said:
    """An answer, whatever surface it came through."""

    text: str
    calls: list[tuple[str, Any]]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    is_cut: bool


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve(answers=ANSWERS) as served:
        yield served
        wait_until(served.idle)
        assert served.engine.audit() == ""


SAID = {"messages": [{"role": "user", "content": "zq call"}]}
FRAMES = {"accept": "application/octet-stream"}


@pytest.mark.parametrize(
    ("path", "asked", "headers"),
    [
        ("/v1/messages", {**SAID, "max_tokens": 8}, {}),
        ("/v1/messages", {**SAID, "max_tokens": 8}, FRAMES),
        ("/v1/messages", {**SAID, "max_tokens": 8}, {"idempotency-key": "f17"}),
        ("/v1/chat/completions", SAID, {}),
        ("/v1/completions", {"prompt": "zq call", "max_tokens": 8}, {}),
        ("/v1/responses", {"input": "zq call"}, {}),
        ("/api/chat", SAID, {}),
        ("/api/generate", {"prompt": "zq call"}, {}),
    ],
)
def test_f17_streams_ask_proxies_not_to_hold_them(
    server: Served, path: str, asked: dict[str, Any], headers: dict[str, str]
) -> None:
    for _ in range(2):
        whole = {"model": "tiny", "stream": True, **asked}
        reply = server.client.post(path, json=whole, headers=headers)
        assert reply.status_code == 200 and reply.headers["x-accel-buffering"] == "no"
    whole = {"model": "tiny", **asked, "stream": False}
    assert "x-accel-buffering" not in server.client.post(path, json=whole).headers


@contextlib.contextmanager
def prompts_of(served: Served) -> Iterator[list[list[int]]]:
    """Token ids of what the engine is given meanwhile."""
    engine = served.server.engine
    assert engine is not None
    given_to: list[list[int]] = []
    submit = engine.submit

    def spied(request: Any, *more: Any) -> Any:
        given_to.append(request.ids.tolist())
        return submit(request, *more)

    engine.submit = spied
    try:
        yield given_to
    finally:
        del engine.submit


def events(reply: Any) -> list[dict[str, Any]]:
    data = [line[6:] for line in reply.text.split("\n") if line.startswith("data: ")]
    return [msgspec.json.decode(line) for line in data if line != "[DONE]"]


def messages(served: Served, turns: list[Turn], stream: bool, tools: bool, limit: int) -> Said:
    asked: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": limit,
        "seed": 7,
        "stream": stream,
        "messages": [{"role": role, "content": text} for role, text in turns],
    }
    if tools:
        asked["tools"] = [{"name": "weather", "description": "d", "input_schema": SCHEMA}]
    reply = served.client.post("/v1/messages", json=asked)
    assert reply.status_code == 200, reply.text
    if not stream:
        blocks, message = reply.json()["content"], reply.json()
        usage, reason = message["usage"], message["stop_reason"]
    else:
        blocks, usage, reason = [], {}, ""
        for event in events(reply):
            match event["type"]:
                case "message_start":
                    usage = event["message"]["usage"]
                case "content_block_start":
                    blocks.append({**event["content_block"], "json": ""})
                case "content_block_delta":
                    delta = event["delta"]
                    if "text" in delta:
                        blocks[-1]["text"] += delta["text"]
                    else:
                        blocks[-1]["json"] += delta["partial_json"]
                case "message_delta":
                    usage, reason = {**usage, **event["usage"]}, event["delta"]["stop_reason"]
        for block in blocks:
            if block["type"] == "tool_use":
                block["input"] = msgspec.json.decode(block["json"])
    return Said(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
        usage["input_tokens"] + usage["cache_read_input_tokens"],
        usage["cache_read_input_tokens"],
        usage["output_tokens"],
        reason == "max_tokens",
    )


def chat(served: Served, turns: list[Turn], stream: bool, tools: bool, limit: int) -> Said:
    asked: dict[str, Any] = {
        "model": "tiny",
        "max_completion_tokens": limit,
        "seed": 7,
        "stream": stream,
        "messages": [{"role": role, "content": text} for role, text in turns],
    }
    if tools:
        function = {"name": "weather", "description": "d", "parameters": SCHEMA}
        asked["tools"] = [{"type": "function", "function": function}]
    if stream:
        asked["stream_options"] = {"include_usage": True}
    reply = served.client.post("/v1/chat/completions", json=asked)
    assert reply.status_code == 200, reply.text
    text, calls = "", []
    if not stream:
        made = reply.json()
        choice, usage = made["choices"][0], made["usage"]
        text, finish = choice["message"]["content"] or "", choice["finish_reason"]
        calls = [call["function"] for call in choice["message"].get("tool_calls", [])]
    else:
        *chunks, last = events(reply)
        usage, finish = last["usage"], chunks[-1]["choices"][0]["finish_reason"]
        for chunk in chunks:
            delta = chunk["choices"][0]["delta"]
            text += delta.get("content", "")
            for call in delta.get("tool_calls", []):
                if call["index"] == len(calls):
                    calls.append(call["function"])
                else:
                    calls[call["index"]]["arguments"] += call["function"]["arguments"]
    return Said(
        text,
        [(call["name"], msgspec.json.decode(call["arguments"])) for call in calls],
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["completion_tokens"],
        finish == "length",
    )


def responses(served: Served, turns: list[Turn], stream: bool, tools: bool, limit: int) -> Said:
    asked: dict[str, Any] = {
        "model": "tiny",
        "max_output_tokens": limit,
        "seed": 7,
        "stream": stream,
        "store": False,
        "input": [{"role": role, "content": text} for role, text in turns],
    }
    if tools:
        tool = {"type": "function", "name": "weather", "description": "d", "parameters": SCHEMA}
        asked["tools"] = [tool]
    reply = served.client.post("/v1/responses", json=asked)
    assert reply.status_code == 200, reply.text
    made = events(reply)[-1]["response"] if stream else reply.json()
    items, usage = made["output"], made["usage"]
    text = "".join(item["content"][0]["text"] for item in items if item["type"] == "message")
    if stream:
        deltas = [e["delta"] for e in events(reply) if e["type"] == "response.output_text.delta"]
        assert "".join(deltas) == text
    calls = [item for item in items if item["type"] == "function_call"]
    return Said(
        text,
        [(call["name"], msgspec.json.decode(call["arguments"])) for call in calls],
        usage["input_tokens"],
        usage["input_tokens_details"]["cached_tokens"],
        usage["output_tokens"],
        made["status"] == "incomplete",
    )


def ollama(served: Served, turns: list[Turn], stream: bool, tools: bool, limit: int) -> Said:
    asked: dict[str, Any] = {
        "model": "tiny",
        "options": {"num_predict": limit, "seed": 7},
        "stream": stream,
        "messages": [{"role": role, "content": text} for role, text in turns],
    }
    if tools:
        function = {"name": "weather", "description": "d", "parameters": SCHEMA}
        asked["tools"] = [{"type": "function", "function": function}]
    reply = served.client.post("/api/chat", json=asked)
    assert reply.status_code == 200, reply.text
    lines = [msgspec.json.decode(line) for line in reply.content.splitlines()]
    calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
    return Said(
        "".join(line["message"]["content"] for line in lines),
        [(call["function"]["name"], call["function"]["arguments"]) for call in calls],
        lines[-1]["prompt_eval_count"],
        lines[-1]["prompt_cached_count"],
        lines[-1]["eval_count"],
        lines[-1]["done_reason"] == "length",
    )


Ask = Callable[[Served, list[Turn], bool, bool, int], Said]
SURFACES: dict[str, Ask] = {
    "messages": messages,
    "chat": chat,
    "responses": responses,
    "ollama": ollama,
}
# What has no script is echoed up to its first control token.
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20).filter(
    str.strip
)
ALTERNATING = st.lists(TEXTS, min_size=1, max_size=5).map(
    lambda texts: [(("user", "assistant")[n % 2], text) for n, text in enumerate(texts)]
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(turns=ALTERNATING, tools=st.booleans(), limit=st.integers(1, 60))
def test_every_surface_says_the_same_streamed_or_whole(
    server: Served, turns: list[Turn], tools: bool, limit: int
) -> None:
    first = None
    with prompts_of(server) as prompts:
        for name, ask in SURFACES.items():
            for stream in (False, True):
                said = ask(server, turns, stream, tools, limit)
                said.cached_tokens = 0  # the second of them finds what the first has left
                first = first or said
                assert said == first, name
    assert len(prompts) == 2 * len(SURFACES) and all(ids == prompts[0] for ids in prompts)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", SURFACES)
def test_calls_are_the_same(server: Served, name: str, stream: bool) -> None:
    said = SURFACES[name](server, [("user", "zq call")], stream, True, 400)
    assert said.text == "So:" and not said.is_cut
    assert said.calls == [("weather", {"city": "Bern", "n": [1, 2]})] * 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", SURFACES)
@pytest.mark.parametrize("answer", OTHER_CALLS)
def test_f62_a_call_in_another_form_is_a_call_on_every_surface(
    server: Served, answer: str, name: str, stream: bool
) -> None:
    said = SURFACES[name](server, [("user", answer)], stream, True, 400)
    assert said.text == "So:" and said.calls == [("weather", {"city": "Bern", "n": [1, 2]})]
    untold = SURFACES[name](server, [("user", answer)], stream, False, 400)
    assert untold.text == OTHER_CALLS[answer] and not untold.calls


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", SURFACES)
@pytest.mark.parametrize("answer", ALIKE)
def test_f62_text_like_a_call_stays_text_on_every_surface(
    server: Served, answer: str, name: str, stream: bool
) -> None:
    said = SURFACES[name](server, [("user", answer)], stream, True, 400)
    assert said.text == ALIKE[answer] and not said.calls


def attribution(run: int) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.{run}; cch=ab{run};"


def countdown(run: int) -> str:
    return f"<total_tokens>{99_000 - 777 * run} tokens left</total_tokens>"


LONG = "You keep the rules of the house. " * 20
VOLATILE: dict[str, Callable[[int], list[Turn]]] = {
    "first line": lambda run: [("system", f"{attribution(run)}\n{LONG}")],
    "crlf": lambda run: [("system", f"{attribution(run)}\r\n{LONG}")],
    "second turn": lambda run: [("system", "S"), ("system", attribution(run)), ("system", LONG)],
    "last line": lambda run: [("system", f"{LONG}\n{attribution(run)}")],
    "countdown": lambda run: [("system", f"S\n{countdown(run)}\n{LONG}")],
}


@pytest.mark.parametrize("name", SURFACES)
@pytest.mark.parametrize("place", [pytest.param(place, id=f"F44 {place}") for place in VOLATILE])
def test_what_changes_with_each_request_keeps_no_prefix_from_being_reused(
    server: Served, name: str, place: str
) -> None:
    def said(run: int) -> Said:
        system = [(role, text.replace("rules", f"{name} {place}")) for role, text in
                  VOLATILE[place](run)]  # fmt: skip
        return SURFACES[name](server, [*system, ("user", "hi")], False, False, 8)

    first, second = said(1), said(2)
    assert first.prompt_tokens == second.prompt_tokens
    assert second.cached_tokens > 0.8 * second.prompt_tokens


def test_f43_an_attribution_line_alone_is_dropped(server: Served) -> None:
    def tokens(text: str) -> int:
        asked = [("system", text), ("user", "hi")] if text else [("user", "hi")]
        return messages(server, asked, False, False, 4).prompt_tokens

    pirate = "You are a pirate."
    assert tokens(f"{attribution(1)}\n{pirate}") == tokens(pirate) > tokens("")
    assert tokens(attribution(1)) == tokens("")


def test_the_cache_is_the_same_for_every_surface_case_a12() -> None:
    """Each surface on a server of its own, and each behind another on one server."""
    first = request_of("A12", 0)["messages"]
    second = request_of("A12", 1)["messages"]
    both = [[(turn["role"], turn["content"]) for turn in turns] for turns in (first, second)]
    cached: dict[str, list[int]] = {}
    for name, ask in SURFACES.items():
        with serve(answers=ANSWERS) as own:
            said = [ask(own, turns, False, False, 8) for turns in both]
            cached[name] = [answer.cached_tokens for answer in said]
            for other in SURFACES.values():
                again = other(own, both[1], True, False, 8)
                assert again.cached_tokens >= said[1].cached_tokens > 0.9 * said[0].prompt_tokens
    assert len({tuple(counts) for counts in cached.values()}) == 1, cached


def test_ids_of_calls_have_one_origin() -> None:
    assert call_id("toolu_abc00") == "call_abc00"


def test_a_client_that_leaves_frees_its_request_on_every_path() -> None:
    paths = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "count"}]},
        "/v1/completions": {"prompt": "count", "max_tokens": 3000},
        "/v1/responses": {"input": "count"},
        "/api/chat": {"messages": [{"role": "user", "content": "count"}]},
        "/api/generate": {"prompt": "count"},
    }
    with serve(step_delay_us=2000) as served:
        for number, (path, asked) in enumerate(paths.items()):
            request = {"model": "tiny", "stream": True, **asked}
            with served.client.stream("POST", path, json=request) as reply:
                with contextlib.closing(reply.iter_raw()) as chunks:
                    next(chunks)
            wait_until(served.idle)
            stats = served.region.stats()
            assert stats["cancelled_decode"] + stats["cancelled_prefill"] == number + 1, path
        assert served.engine.audit() == ""


# ---- where the tools of a body stand -------------------------------------------------------------
ODD = {"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}
"""Nobody here can fetch what it says."""


def tools_for(path: str, make: Callable[[str, Any, bool], Any]) -> Any:
    """The body of a surface with two tools, of which the second is strict and odd."""
    messages = [{"role": "user", "content": "say hello"}]
    tools = [make("plain", SCHEMA, False), make("odd", ODD, True)]
    extra = {"input": "say hello"} if path == "/v1/responses" else {"messages": messages}
    return {"model": "tiny", "max_tokens": 9, "tools": tools, **extra}


def nested(name: str, schema: Any, strict: bool) -> Any:
    return {"type": "function", "function": flat(name, schema, strict)}


def flat(name: str, schema: Any, strict: bool) -> Any:
    return {"type": "function", "name": name, "parameters": schema, "strict": strict}


def deferred(name: str, schema: Any, strict: bool) -> Any:
    """The first one is not told before something names it: it counts all the same."""
    return {"name": name, "input_schema": schema, "strict": strict, "defer_loading": not strict}


@pytest.mark.parametrize(
    ("path", "make", "place"),
    [
        ("/v1/messages", deferred, "tools.1.input_schema.properties.a.$ref"),
        ("/v1/chat/completions", nested, "tools.1.function.parameters.properties.a.$ref"),
        ("/v1/responses", flat, "tools.1.parameters.properties.a.$ref"),
        ("/api/chat", nested, "tools.1.function.parameters.properties.a.$ref"),
    ],
)
def test_a_strict_schema_is_refused_by_its_place_in_the_body(
    server: Served, path: str, make: Callable[[str, Any, bool], Any], place: str
) -> None:
    reply = server.client.post(path, json=tools_for(path, make))
    assert reply.status_code == 400 and place + ": a strict" in reply.text, reply.text


ALLOWED = [{"type": "function", "name": "b"}]
MODE = {"mode": "required", "tools": ALLOWED}
NESTED = {"mode": "required", "tools": [{"type": "function", "function": {"name": "b"}}]}
CHOICES = [
    ("/v1/chat/completions", nested, {"type": "allowed_tools", "allowed_tools": NESTED}),
    ("/v1/responses", flat, {"type": "allowed_tools", **MODE}),
]


def called(answer: Any) -> list[str]:
    """Names of the functions that an answer calls."""
    if "output" in answer:
        return [item["name"] for item in answer["output"] if item["type"] == "function_call"]
    calls = answer["choices"][0]["message"]["tool_calls"]
    return [call["function"]["name"] for call in calls]


@pytest.mark.parametrize(("path", "make", "choice"), CHOICES, ids=["chat", "responses"])
def test_allowed_tools_are_the_only_ones_that_are_called(
    server: Served, path: str, make: Callable[[str, Any, bool], Any], choice: Any
) -> None:
    tools = [make(name, {**SCHEMA, "additionalProperties": False}, False) for name in "ab"]
    asked = {**tools_for(path, make), "max_tokens": 400, "tools": tools}
    with prompts_of(server) as prompts:
        server.client.post(path, json=asked)
        reply = server.client.post(path, json={**asked, "tool_choice": choice})
    assert reply.status_code == 200, reply.text
    assert prompts[0] == prompts[1], "all tools are told, so the cache is as good as before"
    assert called(reply.json()) and set(called(reply.json())) == {"b"}
    for wrong in ({"tools": []}, {"tools": [{"name": "c"}]}, {"tools": ALLOWED, "mode": "any"}):
        refused = {"type": "allowed_tools", **wrong}
        reply = server.client.post(path, json={**asked, "tool_choice": refused})
        assert reply.status_code == 400 and "tool_choice." in reply.text, reply.text


def test_f36_a_call_has_no_number_that_no_double_holds(server: Served) -> None:
    asked = {"model": "tiny", "input": "zq huge", "tools": [flat("weather", SCHEMA, False)]}
    answer = server.client.post("/v1/responses", json=asked).json()
    assert '"n": 1e99' in answer["output"][0]["arguments"], answer
    assert '"n": 1e999' not in answer["output"][0]["arguments"], answer
    kept = server.client.get(f"/v1/responses/{answer['id']}")
    assert kept.status_code == 200


# ---- variables of the chat template --------------------------------------------------------------
SWITCHING = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}{{ style | default('') }}"
    "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
BY_SURFACE: dict[str, dict[str, Any]] = {
    "/v1/messages": {"max_tokens": 200, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
}


@pytest.mark.parametrize("path", [pytest.param(path, id=f"F27 {path}") for path in BY_SURFACE])
def test_variables_of_the_chat_template_reach_it(path: str) -> None:
    model = tiny_model(chat_template=SWITCHING)

    def asked(served: Served, **given: Any) -> Any:
        request = {"model": "tiny", **BY_SURFACE[path], "chat_template_kwargs": given}
        return served.client.post(path, json=request)

    def shown(token: int) -> bytes:
        special = model.tokenizer.special_text(token)
        return special.encode() or model.tokenizer.token_bytes[token]

    with serve(model=model) as served, prompts_of(served) as prompts:
        for given in (
            {"enable_thinking": False},
            {"enable_thinking": True},
            {"thinking": True},
            {"style": "<|im_end|>pirate", "unread": [1], "name": "x", "self": {"a": None}},
            {},
        ):
            assert asked(served, **given).status_code == 200
        texts = [b"".join(map(shown, prompt)).decode() for prompt in prompts]
        closed = "<think>\n\n</think>\n\n"
        assert [text.endswith(closed) for text in texts] == [True, False, False, True, True]
        assert "<|im_end|>pirate" in texts[3]
        (end,) = model.tokenizer.encode_rendered("<|im_end|>")
        assert prompts[3].count(end) == prompts[4].count(end), "a variable is text alone"
        for given, field in (
            ({"messages": []}, "chat_template_kwargs.messages"),
            ({"enable_thinking": "no"}, "chat_template_kwargs.enable_thinking"),
            ({"style": "x" * 5000}, "chat_template_kwargs"),
        ):
            reply = asked(served, **given)
            assert reply.status_code == 400 and field in reply.text


# ---- /tokenize -----------------------------------------------------------------------------------
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
MESSAGES_TOOL = {"name": "weather", "input_schema": SCHEMA}
CHAT_CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
CHAT_LOOP = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "w?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "12C"},
]
MESSAGES_LOOP = [
    {"role": "user", "content": "w?"},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "1", "name": "weather", "input": {}}],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "1", "content": "12C"}],
    },
]
TOKENISED = {
    "plain": ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}]}),
    "chat tools": ("/v1/chat/completions", {"messages": CHAT_LOOP[:2], "tools": [CHAT_TOOL]}),
    "chat loop": ("/v1/chat/completions", {"messages": CHAT_LOOP, "tools": [CHAT_TOOL]}),
    "messages tools": (
        "/v1/messages",
        {"messages": MESSAGES_LOOP[:1], "system": "S", "tools": [MESSAGES_TOOL]},
    ),
    "messages loop": ("/v1/messages", {"messages": MESSAGES_LOOP}),
    "variables": (
        "/v1/chat/completions",
        {"messages": CHAT_LOOP[:2], "chat_template_kwargs": {"style": "terse"}},
    ),
}


@pytest.mark.parametrize("name", [pytest.param(name, id=f"F30 {name}") for name in TOKENISED])
def test_tokenize_gives_the_ids_of_the_request_itself(server: Served, name: str) -> None:
    path, asked = TOKENISED[name]
    with prompts_of(server) as prompts:
        reply = server.client.post(path, json={"model": "tiny", "max_tokens": 4, **asked})
        assert reply.status_code == 200, reply.text
    got = server.client.post("/tokenize", json={"model": "tiny", **asked})
    assert got.status_code == 200, got.text
    assert got.json()["tokens"] == prompts[0]
