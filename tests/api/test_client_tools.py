"""Tools as agents send them to the OpenAI APIs: namespaces, custom tools, those of the client's
own shell, and those that a server would have to run, which are left out and reported."""

import logging
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from harness import Served, serve, wait_until
from sublimate.api.openai.request import read_choice
from sublimate.api.openai.tools import ToolParam, read_tools
from sublimate.config import EdgeSettings
from sublimate.edge.errors import ApiError

FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
NAMESPACE = {
    "type": "namespace",
    "name": "agents",
    "description": "d",
    "tools": [{"type": "function", "name": "spawn", "parameters": {"type": "object"}}],
}
PATCH = '*** Begin Patch\n+ a "b"\n*** End Patch'
CUSTOM = {
    "type": "custom",
    "name": "patch",
    "description": "d",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
HOSTED = [
    {"type": "web_search", "external_web_access": False},
    {"type": "image_generation"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "mcp", "server_label": "a", "server_url": "http://b"},
    {"type": "file_search", "vector_store_ids": ["v"]},
    {"type": "shell", "environment": {"type": "container_auto"}},
]
TOOLS = [NAMESPACE, CUSTOM, {"type": "local_shell"}, {"type": "shell"}, {"type": "apply_patch"}]


def call_text(name: str, **arguments: Any) -> str:
    written = msgspec.json.format(msgspec.json.encode(arguments), indent=0).decode()
    return f'<tool_call>\n{{"name": "{name}", "arguments": {written}}}\n</tool_call>'


OPERATION = {"type": "create_file", "path": "a.txt", "diff": "+a"}
ANSWERS: dict[str, str | bytes] = {
    "say more": "It went on.",
    "use the namespace": call_text("agents.spawn", task="t"),
    "use the patch": call_text("patch", input=PATCH),
    "use local": call_text("local_shell", command=["ls"], timeout_ms=9),
    "use shell": call_text("shell", commands=["ls", "id"]),
    "use apply": call_text("apply_patch", **OPERATION),
    "say hello": "Hello there!",
}
CALLS: dict[str, dict[str, Any]] = {
    "use the namespace": {
        "type": "function_call",
        "namespace": "agents",
        "name": "spawn",
        "arguments": '{"task": "t"}',
    },
    "use the patch": {"type": "custom_tool_call", "name": "patch", "input": PATCH},
    "use local": {
        "type": "local_shell_call",
        "action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": 9},
    },
    "use shell": {
        "type": "shell_call",
        "action": {"commands": ["ls", "id"], "timeout_ms": None, "max_output_length": None},
    },
    "use apply": {"type": "apply_patch_call", "operation": OPERATION},
}
OUTPUTS: dict[str, Any] = {
    "shell_call": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve(answers=ANSWERS, constrains=False) as served:
        yield served


def respond(served: Served, **fields: Any) -> Any:
    reply = served.client.post("/v1/responses", json={"model": "tiny", **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def streamed(served: Served, **fields: Any) -> list[dict[str, Any]]:
    asked = {"model": "tiny", "stream": True, **fields}
    text = served.client.post("/v1/responses", json=asked).text
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line[:5] == "data:"]
    return [msgspec.json.decode(line) for line in lines]


@pytest.mark.parametrize("text", [pytest.param(text, id=f"F21-{text}") for text in CALLS])
def test_a_call_comes_back_as_its_client_offered_it(server: Served, text: str) -> None:
    whole = respond(server, input=text, tools=TOOLS)
    (item,) = whole["output"]
    assert CALLS[text].items() <= item.items() and item["status"] == "completed"
    events = streamed(server, input=text, tools=TOOLS)
    (done,) = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert CALLS[text].items() <= done.items()
    added = next(e["item"] for e in events if e["type"] == "response.output_item.added")
    assert (added["id"], added["type"]) == (done["id"], done["type"])
    assert events[-1]["response"]["output"] == [done]
    if done["type"] == "custom_tool_call":
        kinds = [e for e in events if "custom_tool_call_input" in e["type"]]
        assert "".join(e["delta"] for e in kinds if e["type"].endswith("delta")) == PATCH
        assert kinds[-1]["input"] == PATCH and kinds[-1]["item_id"] == done["id"]


@pytest.mark.parametrize("text", [pytest.param(text, id=f"F21-{text}") for text in CALLS])
def test_calls_and_outputs_are_read_back(server: Served, text: str) -> None:
    whole = respond(server, input=text, tools=TOOLS)
    (item,) = whole["output"]
    output = {
        "type": f"{item['type']}_output",
        "call_id": item["call_id"],
        "output": OUTPUTS.get(item["type"], "done"),
    }
    more = {"role": "user", "content": "say more"}
    first = {"role": "user", "content": text}
    by_items = respond(server, input=[first, item, output, more], tools=TOOLS)
    by_id = respond(server, input=[output, more], previous_response_id=whole["id"], tools=TOOLS)
    for answer in (by_items, by_id):
        assert answer["output"][0]["content"][0]["text"] == "It went on."
    assert by_items["usage"]["input_tokens"] == by_id["usage"]["input_tokens"]


@pytest.mark.parametrize("stream", [False, True], ids=["F21-whole", "F21-stream"])
def test_hosted_tools_are_left_out_and_reported(
    server: Served, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    asked = {
        "model": "tiny",
        "input": [
            {"role": "user", "content": "say hello"},
            {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        ],
        "tools": [FUNCTION, *HOSTED],
        "stream": stream,
        "include": ["reasoning.encrypted_content", "something.new"],
        "truncation": "auto",
        "text": {"verbosity": "low"},
        "reasoning": {"summary": "auto"},
        "metadata": {"number": 1},
        "client_metadata": {"a": "b"},
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "context_management": [{"type": "compaction", "compact_threshold": 1000}],
    }
    with caplog.at_level(logging.INFO, "sublimate.request"):
        reply = server.client.post("/v1/responses", json=asked)
        wait_until(lambda: bool(caplog.records))
    assert reply.status_code == 200 and "Hello there!" in reply.text
    places = reply.headers["x-left-out"].split(", ")
    assert places[:2] == ["tools.1:web_search", "tools.2:image_generation"]
    assert "input.1:web_search_call" in places and "context_management" in places[-1] + places[-2]
    (fields,) = [record.__dict__["fields"] for record in caplog.records]
    assert "tools.1:web_search" in fields["left_out"]
    if not stream:
        assert [tool["type"] for tool in reply.json()["tools"]] == ["function"]


def test_f21_a_choice_of_a_tool_that_is_left_out_is_an_error(server: Served) -> None:
    for choice in ({"type": "web_search"}, "required"):
        asked = {"model": "tiny", "input": "a", "tools": HOSTED[:1], "tool_choice": choice}
        reply = server.client.post("/v1/responses", json=asked)
        assert reply.status_code == 400 and "tool_choice" in reply.json()["error"]["param"]


@pytest.mark.parametrize("grammar", ["a", None, 5, []])
def test_a_grammar_that_is_no_object_is_named(server: Served, grammar: Any) -> None:
    tool = {"name": "patch", "format": {"type": "grammar", "grammar": grammar}}
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    asked["tools"] = [{"type": "custom", "custom": tool}]
    answer = server.client.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 400
    assert "tools.0.custom.format.grammar" in answer.json()["error"]["message"]


def test_f21_a_custom_tool_of_chat_completions(server: Served) -> None:
    tool = {"type": "custom", "custom": {"name": "patch", "description": "d"}}
    asked: dict[str, Any] = {"model": "tiny"}
    asked["messages"] = [{"role": "user", "content": "use the patch"}]
    whole = server.client.post("/v1/chat/completions", json={**asked, "tools": [tool]}).json()
    message = whole["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert call["type"] == "custom" and call["custom"] == {"name": "patch", "input": PATCH}
    reply = server.client.post(
        "/v1/chat/completions", json={**asked, "tools": [tool], "stream": True}
    )
    pieces = [
        msgspec.json.decode(line[6:])["choices"][0]["delta"].get("tool_calls")
        for line in reply.text.split("\n\n")
        if line.startswith("data: {")
    ]
    calls = [piece[0] for piece in pieces if piece]
    assert calls[0]["type"] == "custom" and calls[0]["custom"]["name"] == "patch"
    assert "".join(call["custom"]["input"] for call in calls) == PATCH
    result = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
    more = {"role": "user", "content": "say more"}
    asked["messages"] = [*asked["messages"], message, result, more]
    again = server.client.post("/v1/chat/completions", json={**asked, "tools": [tool]}).json()
    assert again["choices"][0]["message"]["content"] == "It went on."


# ---- references ----------------------------------------------------------------------------------
def test_f22_an_item_is_named_by_its_id(server: Served) -> None:
    first = respond(server, input="say hello")
    said = first["output"][0]
    asked = {"role": "user", "content": "say hello"}
    more = {"role": "user", "content": "say more"}
    for reference in ({"type": "item_reference", "id": said["id"]}, {"id": said["id"]}):
        named = respond(server, input=[asked, reference, more])
        repeated = respond(server, input=[asked, said, more])
        assert named["output"][0]["content"][0]["text"] == "It went on."
        assert named["usage"]["input_tokens"] == repeated["usage"]["input_tokens"]
    called = respond(server, input="use the patch", tools=TOOLS)
    call = called["output"][0]
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "ok"}
    turns = [asked, {"type": "item_reference", "id": call["id"]}, output, more]
    assert respond(server, input=turns, tools=TOOLS)["output"][0]["content"]
    listed = server.client.get(f"/v1/responses/{first['id']}/input_items").json()["data"]
    again = respond(server, input=[{"type": "item_reference", "id": listed[0]["id"]}])
    assert again["output"][0]["content"][0]["text"] == "Hello there!"


def test_f22_an_unknown_item_is_a_404_that_names_it() -> None:
    settings = EdgeSettings(api_keys=("sk-a", "sk-b"))
    with serve(answers=ANSWERS, settings=settings) as served:
        headers = [{"authorization": f"Bearer {key}"} for key in settings.api_keys]
        asked = {"model": "tiny", "input": "say hello"}
        mine = served.client.post("/v1/responses", json=asked, headers=headers[0]).json()
        unkept = served.client.post(
            "/v1/responses", json={**asked, "store": False}, headers=headers[0]
        ).json()
        names = {
            mine["output"][0]["id"]: headers[1],
            unkept["output"][0]["id"]: headers[0],
            "msg_nobody": headers[0],
            mine["output"][0]["id"] + "7": headers[0],
        }
        for identifier, fields in names.items():
            turns = [{"type": "item_reference", "id": identifier}]
            reply = served.client.post(
                "/v1/responses", json={"model": "tiny", "input": turns}, headers=fields
            )
            error = reply.json()["error"]
            assert reply.status_code == 404 and error["param"] == "input.0"
            assert identifier in error["message"]


# ---- what is cut ---------------------------------------------------------------------------------
def test_f47_an_item_that_is_cut_is_incomplete(server: Served) -> None:
    for text, tools in (("say hello", []), ("use the namespace", TOOLS), ("use the patch", TOOLS)):
        whole = respond(server, input=text, tools=tools)
        most = whole["usage"]["output_tokens"]
        assert whole["output"][-1]["status"] == "completed"
        for limit in {most // 4, most // 2}:
            fields = {"input": text, "tools": tools, "max_output_tokens": limit}
            cut = respond(server, **fields)
            assert cut["status"] == "incomplete"
            assert all(item["status"] == "incomplete" for item in cut["output"][-1:])
            events = streamed(server, **fields)
            assert events[-1]["type"] == "response.incomplete"
            done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
            assert [item["status"] for item in done] == [i["status"] for i in cut["output"]]


TEXT = {"type": "string", "minLength": 8, "maxLength": 12}
TEXTS = {
    "type": "object",
    "properties": {"a": TEXT, "b": TEXT},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORCED = [
    pytest.param("function", "function_call", id="F47-function"),
    pytest.param("custom", "custom_tool_call", id="F47-custom"),
    pytest.param("shell", "shell_call", id="F47-shell"),
]


@pytest.mark.parametrize(("kind", "item_type"), FORCED)
def test_a_call_that_is_cut_is_incomplete(kind: str, item_type: str) -> None:
    """A grammar holds the model to the call, so the core shows it as it comes and closes it when
    the tokens end: its arguments are whole JSON then, and yet a client must not run it."""
    function = {"type": "function", "name": "put", "parameters": TEXTS, "strict": True}
    tool = {"function": function, "custom": CUSTOM, "shell": {"type": "shell"}}[kind]
    asked = {"input": "x", "tools": [tool], "tool_choice": "required", "temperature": 0}
    statuses: list[str] = []
    with serve() as served:
        for limit in range(16, 120):
            answer = respond(served, **asked, max_output_tokens=limit)
            for item in answer["output"]:
                assert item["type"] == item_type
                statuses.append(item["status"])
                if answer["status"] == "completed":
                    assert item["status"] == "completed"
    assert "incomplete" in statuses
    assert statuses == sorted(statuses, reverse=True), "with more tokens, the same call goes on"
    assert kind != "function" or "completed" in statuses


# ---- images in results ---------------------------------------------------------------------------
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
IMAGE_URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
USER = {"role": "user", "content": "say hello"}
WITH_IMAGES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            USER,
            {"role": "assistant", "tool_calls": [CHAT_CALL]},
            {"role": "tool", "tool_call_id": "c", "content": [IMAGE_URL]},
        ]
    },
    "/v1/responses": {
        "input": [
            USER,
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [IMAGE]},
        ]
    },
    "/api/chat": {
        "messages": [
            USER,
            {"role": "assistant", "tool_calls": [{"function": {"name": "look"}}]},
            {"role": "tool", "tool_name": "look", "images": ["AAAA"]},
        ]
    },
    "/v1/messages": {
        "max_tokens": 9,
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c",
                        "content": [
                            {
                                "type": "image",
                                "source": {
                                    "type": "base64",
                                    "media_type": "image/png",
                                    "data": "AAAA",
                                },
                            }
                        ],
                    }
                ],
            },
        ],
    },
}


@pytest.mark.parametrize("path", [pytest.param(path, id=f"F46-{path}") for path in WITH_IMAGES])
def test_images_of_results_are_notes_on_every_surface(server: Served, path: str) -> None:
    asked = {"model": "tiny", "stream": False, **WITH_IMAGES[path]}
    assert server.client.post(path, json=asked).status_code == 400
    settings = EdgeSettings(tool_result_images="note")
    with serve(answers=ANSWERS, settings=settings) as served:
        counts: list[int] = []
        for name in (path, "/v1/messages"):
            fields = {"model": "tiny", "stream": False, **WITH_IMAGES[name]}
            reply = served.client.post(name, json=fields)
            assert reply.status_code == 200, reply.text
            told = reply.json()
            usage = told.get("usage", told)
            names = ("prompt_tokens", "prompt_eval_count", "input_tokens")
            cached = usage.get("cache_read_input_tokens", 0)
            counts.append(cached + next(usage[name] for name in names if name in usage))
        assert counts[0] == counts[1], "the same conversation is the same prompt"


# ---- errors --------------------------------------------------------------------------------------
def test_f48_two_calls_of_one_id_are_refused(server: Served) -> None:
    use: dict[str, Any] = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    turns = [USER, {"role": "assistant", "content": [use, use]}]
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}
    reply = server.message(messages=[*turns, result])
    assert reply.status_code == 400 and "two `tool_use` blocks have the id c" in reply.text
    calls = {"role": "assistant", "tool_calls": [CHAT_CALL, CHAT_CALL]}
    asked = {"model": "tiny", "messages": [USER, calls]}
    reply = server.client.post("/v1/chat/completions", json=asked)
    assert reply.status_code == 400 and "two calls have this id" in reply.text


WRONG: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("/v1/completions", {"prompt": "a " * 9000}, "prompt", []),
    ("/v1/responses", {"input": "a " * 9000}, "input", []),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a " * 9000}]},
        "messages",
        [],
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c", "function": {"name": "f g", "arguments": "{}"}}],
                }
            ]
        },
        "messages.0.tool_calls.0.function.name",
        [],
    ),
    (
        "/v1/responses",
        {"input": "a", "tools": [{"type": "telepathy"}]},
        "tools.0.type",
        ['"telepathy"', "function", "custom", "namespace", "local_shell"],
    ),
    (
        "/v1/chat/completions",
        {"messages": [USER], "tools": [{"type": "telepathy"}]},
        "tools.0.type",
        ['"telepathy"', "function", "custom"],
    ),
    (
        "/v1/messages",
        {"max_tokens": 9, "messages": [USER], "tools": [{"type": "telepathy"}]},
        "tools.0.type",
        ['"telepathy"', "custom", "bash_20250124"],
    ),
    (
        "/v1/messages",
        {
            "max_tokens": 9,
            "messages": [USER],
            "tools": [{"type": "function", "function": {"name": "f"}}],
        },
        "tools.0.type",
        ["OpenAI's API", "input_schema"],
    ),
]


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"),
    [pytest.param(*case, id=f"F49-{number}") for number, case in enumerate(WRONG)],
)
def test_an_error_names_the_field_and_the_choices(
    server: Served, path: str, fields: dict[str, Any], param: str, words: list[str]
) -> None:
    reply = server.client.post(path, json={"model": "tiny", **fields})
    error = reply.json()["error"]
    assert reply.status_code == 400
    assert error.get("param", param) == param
    if words:
        assert error["message"].startswith(f"{param}: ")
        assert all(word in error["message"] for word in words), error["message"]


@pytest.mark.parametrize("definition", ["[ab]{3}", "^[ab]{3}$", "ab|cd", "^ab$|^cd$"])
@pytest.mark.parametrize("nested", [True, False], ids=["chat", "responses"])
def test_a_regex_of_a_custom_tool_is_of_all_its_text(definition: str, nested: bool) -> None:
    """A pattern of JSON Schema is satisfied by any part of a text, a grammar by the whole."""
    fields = {
        "name": "put",
        "format": {"type": "grammar", "syntax": "regex", "definition": definition},
    }
    told = {"type": "custom", "custom": fields} if nested else {"type": "custom", **fields}
    params = [("tools.0", msgspec.convert(told, ToolParam))]
    tool = read_tools(params, 1, nested=nested).offered["put"].tool
    pattern = tool.schema["properties"]["input"]["pattern"]
    assert re.search(pattern, "aab" if "{" in definition else "cd")
    assert not re.search(pattern, "xaabx") and not re.search(pattern, "abx")


SAME_NAMES = [
    {"type": "namespace", "name": name, "tools": [{"type": "function", "name": "spawn"}]}
    for name in ("a", "b")
]
SAME_NAMES[1]["tools"].append({"type": "function", "name": "send"})
CONTAINER_SHELL = {"type": "shell", "environment": {"type": "container_auto"}}


@pytest.mark.parametrize(
    ("path", "tools", "param"),
    [
        ("responses", [*HOSTED[:2], FUNCTION, FUNCTION], "tools.3"),
        ("responses", [NAMESPACE, {**NAMESPACE}], "tools.1.tools.0"),
        ("responses", [HOSTED[0], NAMESPACE, {**NAMESPACE}], "tools.2.tools.0"),
        ("responses", [{"type": "shell"}, CONTAINER_SHELL, {"type": "shell"}], "tools.2"),
        ("responses", [{**NAMESPACE, "name": "a b"}], "tools.0.name"),
        (
            "chat/completions",
            [HOSTED[0], *[{"type": "function", "function": {"name": "look"}}] * 2],
            "tools.2",
        ),
    ],
)
def test_an_error_names_the_entry_of_the_body(
    server: Served, path: str, tools: list[Any], param: str
) -> None:
    """Tools that are left out, and those in a namespace, count as the client counts them."""
    messages = [{"role": "user", "content": "say hello"}]
    asked = {"model": "tiny", "tools": tools}
    asked |= {"input": "say hello"} if path == "responses" else {"messages": messages}
    reply = server.client.post(f"/v1/{path}", json=asked)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == param, reply.text


def test_a_name_of_two_namespaces_is_chosen_by_both_names() -> None:
    params = [(f"tools.{n}", msgspec.convert(one, ToolParam)) for n, one in enumerate(SAME_NAMES)]
    tools = read_tools(params, 9)
    for namespace in ("a", "b"):
        choice = {"type": "function", "namespace": namespace, "name": "spawn"}
        assert read_choice(choice, tools).name == f"{namespace}.spawn"
    assert read_choice({"type": "function", "name": "send"}, tools).name == "b.send"
    with pytest.raises(ApiError) as raised:
        read_choice({"type": "function", "name": "spawn"}, tools)
    assert raised.value.path == "tool_choice" and "needs its namespace" in raised.value.text
    (alone,) = params[:1]
    assert read_choice({"type": "function", "name": "spawn"}, read_tools([alone], 9)).name


def test_an_allowed_tool_that_is_left_out_is_passed_over(server: Served) -> None:
    """Whatever its entry says of it: the type is that of a tool that is not offered here."""
    chosen = [{"type": "shell"}, {"type": "web_search"}, {"type": "function", "name": "look"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": chosen}
    tools = [CONTAINER_SHELL, HOSTED[0], FUNCTION]
    whole = respond(server, input="say hello", tools=tools, tool_choice=choice)
    assert whole["output"][0]["content"][0]["text"] == "Hello there!"


@pytest.mark.parametrize("nested", [True, False], ids=["chat", "responses"])
def test_what_is_not_enforced_of_a_custom_tool_is_in_its_definition(nested: bool) -> None:
    """The client has no schema in its body, so no place in one is named."""
    grammar = {"syntax": "regex", "definition": "(?=a)b"}
    fields = {"name": "put"}
    tool: dict[str, Any] = {"type": "custom"}
    if nested:
        tool["custom"] = {**fields, "format": {"type": "grammar", "grammar": grammar}}
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "say hello"}]}
        path, place = "/v1/chat/completions", "tools.0.custom.format.grammar.definition"
    else:
        tool |= {**fields, "format": {"type": "grammar", **grammar}}
        asked, path, place = {"input": "say hello"}, "/v1/responses", "tools.0.format.definition"
    with serve(answers=ANSWERS) as served:
        reply = served.client.post(path, json={"model": "tiny", **asked, "tools": [tool]})
    assert reply.status_code == 200 and reply.headers["x-schema-relaxed"] == place
