"""Every error: one envelope, one table, a path in front, and nothing of an exception behind."""

import re
import string
from typing import Any

import httpx
import pytest

from harness import Served, body, exchange_bytes, http_get, serve
from sublimate.config import EdgeSettings
from sublimate.edge import errors
from sublimate.edge.errors import TABLE, ApiError, envelope

LEAKS = re.compile(r"Traceback|0x[0-9a-f]{6}|\.py|Error\(|msgspec|<class|object at|/usr|line \d+")
STATUS_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
}


def check_error(reply: httpx.Response, status: int, text: str = "") -> dict[str, Any]:
    """The envelope with this status; its message begins with `text`."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    content = reply.json()
    assert content["type"] == "error"
    assert content["request_id"] == reply.headers["request-id"]
    error = content["error"]
    assert error["type"] == STATUS_TYPES.get(status, error["type"])
    assert error["message"].startswith(text), error["message"]
    assert not LEAKS.search(reply.text), reply.text
    return error


def messages(*turns: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 8, "messages": list(turns)}


USER = {"role": "user", "content": "hi"}

FIELD_ERRORS: list[tuple[str, dict[str, Any]]] = [
    ("max_tokens: field required", body(max_tokens=...)),
    ("max_tokens: expected an integer of at least 0", body(max_tokens=-1)),
    ("max_tokens: expected an integer", body(max_tokens="64")),
    ("max_tokens: expected an integer", body(max_tokens=1.5)),
    ("model: field required", body(model=...)),
    ("model: expected a string", body(model=5)),
    ("messages: field required", body(messages=...)),
    ("messages: at least one", body(messages=[])),
    ("messages: expected an array", body(messages="hi")),
    ("messages.0: expected an object", messages("hi")),
    ("messages.0.role: field required", messages({"content": "hi"})),
    ("messages.0.role: expected user", messages({"role": "tool", "content": "hi"})),
    ("messages.1.content: field required", messages(USER, {"role": "user"})),
    ("messages.0.content: must not be empty", messages({"role": "user", "content": ""})),
    ("messages.0.content: must not be empty", messages({"role": "user", "content": []})),
    (
        "messages.0.content: must not be empty",
        messages({"role": "user", "content": [{"type": "text", "text": ""}]}),
    ),
    (
        "messages.1.content: must not be empty",
        messages(USER, {"role": "assistant", "content": ""}, USER),
    ),
    ("messages.0.content: expected a string or an array", messages({"role": "user", "content": 5})),
    ("messages.0.content.0.type: field required", messages({"role": "user", "content": [{}]})),
    (
        "messages.0.content.0.type: unknown block type",
        messages({"role": "user", "content": [{"type": "hologram"}]}),
    ),
    (
        "messages.0.content.0.text: field required",
        messages({"role": "user", "content": [{"type": "text"}]}),
    ),
    (
        "messages.0.content.1: model tiny does not support image input",
        messages({"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image"}]}),
    ),
    (
        "messages.0.content.0: belongs to assistant messages",
        messages({"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}),
    ),
    ("system.0.type: unknown block type", body(system=[{"type": "document"}])),
    (
        "system.1.text: field required",
        body(system=[{"type": "text", "text": "x-anthropic-billing-header: y"}, {"type": "text"}]),
    ),
    ("temperature: expected a number from 0 to 2", body(temperature=2.1)),
    ("temperature: expected a number from 0 to 2", body(temperature=-0.1)),
    ("temperature: expected a number", body(temperature="hot")),
    ("temperature: expected a number", body(temperature=True)),
    ("top_p: expected a number above 0", body(top_p=-0.1)),
    ("top_p: expected a number above 0 and at most 1", body(top_p=1.01)),
    ("top_k: expected an integer of at least 0", body(top_k=-2)),
    ("top_k: expected an integer of at most", body(top_k=1 << 40)),
    ("min_p: expected a number from 0 to below 1", body(min_p=1.0)),
    ("repetition_penalty: expected a number above 0", body(repetition_penalty=0)),
    ("presence_penalty: expected a number from -2 to 2", body(presence_penalty=3)),
    ("frequency_penalty: expected a number from -2 to 2", body(frequency_penalty=-3)),
    ("seed: expected a 64-bit integer", body(seed=1 << 64)),
    ("stop_sequences: at most 64", body(stop_sequences=[str(n) for n in range(65)])),
    ("stop_sequences.0: at most 1024 bytes", body(stop_sequences=["é" * 513])),
    ("stop_sequences.0: expected a string", body(stop_sequences=[1])),
    ("stop_token_ids.0: not a token", body(stop_token_ids=[260])),
    ("stop_token_ids.0: not a token", body(stop_token_ids=[-1])),
    ("stop_token_ids: at most", body(stop_token_ids=list(range(20)))),
    ("logit_bias: a key is not a token", body(logit_bias={"260": 1})),
    ("logit_bias: a key is not a token", body(logit_bias={"x": 1})),
    ("logit_bias: a key is not a token", body(logit_bias={"-1": 1})),
    ("logit_bias: expected values within 100", body(logit_bias={"5": 101})),
    ("logit_bias: at most 256", body(logit_bias={str(n): 1 for n in range(257)})),
    ("tools.0.input_schema: field required", body(tools=[{"name": "f"}])),
    (
        'tools.0.type: "web_search" is unknown; expected one of custom,',
        body(tools=[{"type": "web_search"}]),
    ),
    ("tool_choice.name: no tool", body(tool_choice={"type": "tool", "name": "f"})),
    ("tool_choice.name: field required", body(tool_choice={"type": "tool"})),
    ("tool_choice: there are no tools", body(tool_choice={"type": "any"})),
    ("tool_choice.type: expected", body(tool_choice={"type": "some"})),
    ("thinking.budget_tokens: field required", body(thinking={"type": "enabled"})),
    ("thinking.type: expected", body(thinking={"type": "maybe"})),
    ("output_config.format.schema: field", body(output_config={"format": {"type": "json_schema"}})),
    ("output_config.effort: expected", body(output_config={"effort": "huge"})),
    (
        "context_management.edits.0.type: this server",
        body(context_management={"edits": [{"type": "compact_20260112"}]}),
    ),
    ("service_tier: expected", body(service_tier="gold")),
    ("speed: this server", body(speed="fast")),
    ("container: not offered", body(container="c_1")),
    ("stream: expected true or false", body(stream="yes")),
    ("logprobs: not offered", body(logprobs=-1)),
    ("prompt_logprobs: not offered", body(prompt_logprobs=1)),
    ("n: this server gives one answer", body(n=10**9)),
    ("best_of: this server gives one answer", body(best_of=2)),
    ("chat_template: not offered", body(chat_template="{{ 1 }}")),
    ("allowed_token_ids: not offered", body(allowed_token_ids=list(range(2000)))),
]


@pytest.mark.parametrize(("text", "request_body"), FIELD_ERRORS, ids=lambda value: str(value)[:60])
def test_field_errors_name_their_path(shared: Served, text: str, request_body: Any) -> None:
    check_error(shared.client.post("/v1/messages", json=request_body), 400, text)
    streamed = {**request_body, "stream": True} if "stream" not in request_body else request_body
    check_error(shared.client.post("/v1/messages", json=streamed), 400, text)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "The request body is not valid JSON: it is empty."),
        (b"{", "The request body is not valid JSON: it ends too early, at byte 1."),
        (b"[1]", "body: expected an object"),
        (
            b'{"model":"tiny","messages":[]} x',
            "The request body is not valid JSON: trailing characters, at byte 31.",
        ),
        (b"\xef\xbb\xbf{}", "model: field required"),
        (b'{"model": "\xff"}', "The request body is not valid UTF-8 at byte 11."),
        ('{"model": "中"}'.encode("gbk"), "The request body is not valid UTF-8"),
        (b'{"model": "\\ud800"}', "messages: field required"),
        (
            b'{"temperature": NaN}',
            "The request body is not valid JSON: NaN and Infinity are not JSON, at byte 16.",
        ),
        (
            b'{"temperature": -Infinity}',
            "The request body is not valid JSON: NaN and Infinity are not JSON, at byte 17.",
        ),
        (b'{"temperature": 1e400}', "temperature: the value is out of range"),
        (b"[" * 65 + b"]" * 65, "The JSON body is nested deeper than 64"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "The JSON body is nested deeper than 64"),
        (b"[" * 3000, "The JSON body is nested deeper than 64"),
        (b"{" + b",".join(b'"k%d":1' % n for n in range(10_001)) + b"}", "The JSON body has too"),
        (
            b"[" + b"[]," * 200_001 + b"1]",
            "The JSON body has too many keys, elements or containers",
        ),
    ],
)
def test_bodies_that_are_no_json(shared: Served, raw: bytes, text: str) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        check_error(shared.client.post(path, content=raw), 400, text)


def test_the_last_of_two_equal_names_counts(shared: Served) -> None:
    raw = b'{"model":"no","max_tokens":8,"messages":[],"messages":[{"role":"user","content":"say '
    raw += b'hello"}],"model":"tiny"}'
    assert shared.client.post("/v1/messages", content=raw).status_code == 200


def test_compressed_bodies_and_other_charsets(shared: Served) -> None:
    gzip = {"content-encoding": "gzip"}
    reply = shared.client.post("/v1/messages", content=b"\x1f\x8b", headers=gzip)
    error = check_error(reply, 400, "This content-encoding is not taken")
    assert error["details"] == {"error_code": "request_body_encoding_unsupported"}
    identity = {"content-encoding": "identity"}
    assert shared.client.post("/v1/messages", json=body(), headers=identity).status_code == 200
    latin = {"content-type": "application/json; charset=latin-1"}
    reply = shared.client.post("/v1/messages", json=body(), headers=latin)
    assert check_error(reply, 400)["details"] == {"error_code": "unsupported_charset"}
    for utf in (
        'charset="UTF-8"',
        "Charset=utf8; x=y",
        'x="charset=latin-1"; charset="utf-8"; a=b',
    ):
        headers = {"content-type": f"application/json; {utf}"}
        reply = shared.client.post("/v1/messages", json=body(), headers=headers)
        assert reply.status_code == 200, utf


@pytest.mark.parametrize(
    ("path", "right", "advice"),
    [
        ("/v1/v1/messages", "/v1/messages", "remove /v1 from its end"),
        ("/v1/v1/models/tiny", "/v1/models/{id}", "remove /v1 from its end"),
        ("/v1/api/chat", "/api/chat", "remove /v1 from its end"),
        ("/api/api/chat", "/api/chat", "remove /api from its end"),
        ("/api/v1/chat/completions", "/v1/chat/completions", "remove /api from its end"),
        ("/api/v1/v1/messages", "/v1/messages", "remove /api/v1 from its end"),
        ("//v1/messages", "/v1/messages", "remove the slash at its end"),
        ("/v1//messages", "/v1/messages", "remove the slash at its end"),
        ("/v1/messages/", "/v1/messages", "remove the slash at its end"),
        ("//api//chat//", "/api/chat", "remove the slash at its end"),
        ("/messages", "/v1/messages", "end it in /v1"),
        ("/messages/count_tokens", "/v1/messages/count_tokens", "end it in /v1"),
        ("/chat/completions", "/v1/chat/completions", "end it in /v1"),
        ("//chat/completions", "/v1/chat/completions", "end it in /v1"),
        ("/responses", "/v1/responses", "end it in /v1"),
        ("/models/tiny", "/v1/models/{id}", "end it in /v1"),
        ("/tags", "/api/tags", "end it in /api"),
        ("/openai/v1/responses", "/v1/responses", "remove what stands before it"),
        ("/openai/chat/completions", "/v1/chat/completions", "end it in /v1"),
        ("/v1/threads/messages", "", ""),
        ("/v1/models/a/b", "", ""),
        ("/nope", "", ""),
    ],
)
def test_f19_a_wrong_base_url_is_named(shared: Served, path: str, right: str, advice: str) -> None:
    told = "There is nothing at this path."
    if right:
        told = f"{told[:-1]}, but at {right}. Correct the client's base URL: {advice}."
    for method in ("GET", "POST", "DELETE"):
        with shared.connect() as sock:
            reply = exchange_bytes(sock, http_get(path, method))
        error = reply.json["error"]
        assert reply.status == 404
        assert (error if isinstance(error, str) else error["message"]) == told


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/nope", 404, "There is nothing"),
        ("GET", "/v1/models/a/b", 404, "There is nothing"),
        ("GET", "/v1/models/", 404, "There is nothing"),
        ("GET", "/v1/models/other", 404, "model: other"),
        ("GET", "/v1/models/..%2F..%2Fetc%2Fpasswd", 404, "model: ../../etc/passwd"),
        ("POST", "/v1/v1/messages", 404, "There is nothing at this path, but at /v1/messages. C"),
        ("GET", "/v1/messages", 405, "This path takes POST"),
        ("DELETE", "/v1/models", 405, "This path takes GET, HEAD"),
        ("PUT", "/livez", 405, "This path takes GET"),
        ("POST", "/v1/messages/batch", 404, "There is nothing"),
        ("POST", "/v1/vector_stores", 404, "There is nothing"),
        ("POST", "/v1/complete", 404, "There is nothing"),
        ("POST", "/invocations", 404, "There is nothing"),
        ("GET", "/v1/models?limit=0", 400, "limit: expected an integer from 1 to 1000"),
        ("GET", "/v1/models?limit=x", 400, "limit: "),
        ("GET", "/v1/models?after_id=x", 400, "after_id: "),
        ("OPTIONS", "/v1/messages", 405, "This path takes POST"),
    ],
)
def test_routes(shared: Served, method: str, path: str, status: int, text: str) -> None:
    if method == "OPTIONS":
        reply = shared.client.request(method, path)
        assert reply.status_code in (204, 405)
        return
    check_error(shared.client.request(method, path), status, text)


def test_an_unknown_model_is_named(shared: Served) -> None:
    for name in ("other", "/etc/passwd", "../x", "m" * 1000):
        reply = shared.message(model=name)
        check_error(reply, 404, f"model: {name[:256]}")
        assert "Served: tiny. " in reply.json()["error"]["message"]
        assert "--alias" in reply.json()["error"]["message"]
    assert shared.message(model="claude-sonnet-9").json()["model"] == "tiny"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/messages", body()),
        ("/v1/messages/count_tokens", body(max_tokens=...)),
        ("/v1/chat/completions", body(max_tokens=4)),
        ("/v1/completions", {"prompt": "a", "max_tokens": 4}),
        ("/v1/responses", {"input": "a"}),
        ("/api/chat", body(max_tokens=..., stream=False)),
        ("/api/generate", {"prompt": "a", "stream": False}),
        ("/api/show", {}),
        ("/tokenize", {"prompt": "a"}),
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("tiny:latest", id="F24 tag"),
        pytest.param("Tiny", id="F24 case"),
        pytest.param("TINY:Latest", id="F24 both"),
        pytest.param("Claude-Tiny", id="F24 listed in another case"),
    ],
)
def test_a_name_is_known_in_any_case_and_with_the_tag_of_ollama(
    shared: Served, path: str, asked: dict[str, Any], name: str
) -> None:
    reply = shared.client.post(path, json={**asked, "model": name})
    assert reply.status_code == 200, reply.text
    assert shared.client.get(f"/v1/models/{name}").status_code == 200


def test_f25_any_model_answers_every_name() -> None:
    with serve(settings=EdgeSettings(any_model=True)) as served:
        assert served.message(model="gpt-4o").json()["model"] == "tiny"
        chat = served.client.post("/v1/chat/completions", json=body(model="dummy"))
        assert chat.status_code == 200
        assert served.message(model="m" * 1000).status_code == 200


def test_a_bug_in_a_handler_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("secret at x.py line 5")

    with serve() as served:
        monkeypatch.setattr("sublimate.api.messages.read.choose_profile", broken)
        check_error(served.message(), 500, "An internal error occurred.")
        monkeypatch.undo()
        monkeypatch.setattr("sublimate.api.probes.msgspec", None)
        check_error(served.client.get("/version"), 500, "An internal error occurred.")
        monkeypatch.undo()
        assert served.message().status_code == 200
        assert served.idle()


# ---- the table -----------------------------------------------------------------------------------
def test_every_row_of_the_table_can_be_sent() -> None:
    for code, kind in TABLE.items():
        names = [name for _, name, _, _ in string.Formatter().parse(kind.text) if name]
        error = ApiError(code, **dict.fromkeys(names, 7))
        content = httpx.Response(200, content=envelope(error, "req_1")).json()
        assert content["error"]["message"] and content["error"]["type"].endswith(
            ("_error", "_too_large")
        )
        assert 400 <= kind.status < 600
        assert kind.type == STATUS_TYPES.get(kind.status, kind.type)
        overloaded = kind.type == errors.OVERLOADED
        assert not overloaded or (kind.status in (503, 529) and kind.retry), code


def test_retry_headers() -> None:
    headers = dict(ApiError("overloaded").after(3).headers())
    assert headers == {"retry-after": "3", "x-should-retry": "true"}
    assert ("x-should-retry", "false") in ApiError("unauthenticated").headers()
    assert ApiError("not_found").headers() == []


SIZES = {"type": "object", "properties": {"a": {"enum": [f"v{i}" for i in range(20_000)]}}}
NO_SCHEMA = {"type": "object", "properties": {"a": {"type": "file"}}}
FORMATS = [
    ("/v1/messages", "output_config", NO_SCHEMA, "output_config.format.schema.properties.a.type"),
    (
        "/v1/chat/completions", "response_format", NO_SCHEMA,
        "response_format.json_schema.schema.properties.a.type",
    ),
    (
        "/v1/chat/completions", "response_format", SIZES,
        "response_format.json_schema.schema.properties.a.enum",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "field", "schema", "place"), FORMATS, ids=("messages", "chat", "strict")
)
def test_a_format_that_cannot_be_held_is_refused_with_its_path(
    shared: Served, path: str, field: str, schema: dict[str, Any], place: str
) -> None:
    named = {"name": "n", "schema": schema, "strict": True}
    format: dict[str, Any] = {"type": "json_schema", "json_schema": named}
    if field == "output_config":
        format = {"format": {"type": "json_schema", "schema": schema}}
    turns = [{"role": "user", "content": "x"}]
    asked = {"model": "tiny", "max_tokens": 8, "messages": turns, field: format}
    reply = shared.client.post(path, json=asked)
    assert reply.status_code == 400 and place in reply.json()["error"]["message"], reply.text
