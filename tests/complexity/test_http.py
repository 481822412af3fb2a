"""Entrances of the HTTP server over loopback: framing, JSON, and each surface with many small
units. What is refused counts too: a refusal must not take longer than its bytes allow."""

import gzip
import json
import selectors
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from growth import QuadraticError, Run, check_growth
from harness import Served, serve
from sublimate.config import EdgeSettings
from sublimate.edge.app import EdgeServer
from sublimate.edge.exchange import Exchange
from sublimate.edge.limits import HttpLimits

HEADER_BYTES = 1 << 20
"""Beside the default limits: so that more units fit, and a quadratic path has room to show."""
CONTEXT_TOKENS, PAGES = 1 << 17, 1 << 14
"""Enough for each prompt here: one that is too long takes another way."""
READ_BYTES = 1 << 18
SECONDS = 60.0
Make = Callable[[int], bytes]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = EdgeSettings(data_dir=str(tmp_path_factory.mktemp("data")), request_gzip=True)
    limits = HttpLimits(header_bytes_max=HEADER_BYTES, header_fields_max=100_000)
    with serve(
        settings=settings, limits=limits, context_tokens=CONTEXT_TOKENS, pages=PAGES
    ) as running:
        yield running


def talk(port: int, data: bytes) -> bytes:
    """Send all, reading meanwhile; what came until the server closed."""
    view, received = memoryview(data), bytearray()
    with socket.create_connection(("127.0.0.1", port)) as sock, selectors.DefaultSelector() as both:
        sock.setblocking(False)
        both.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while True:
            [(_, events)] = both.select(SECONDS) or [(None, 0)]
            assert events, "the server neither reads nor answers"
            try:
                if events & selectors.EVENT_READ:
                    piece = sock.recv(READ_BYTES)
                    received += piece
                    if not piece:
                        return bytes(received)
                if events & selectors.EVENT_WRITE:
                    view = view[sock.send(view) :]
                    if not view:
                        both.modify(sock, selectors.EVENT_READ)
            except ConnectionError:
                return bytes(received)


def over_loopback(served: Served, make: Make) -> Callable[[int], Run]:
    def prepare(count: int) -> Run:
        data = make(count)
        return lambda: talk(served.port, data)

    return prepare


def request(path: str, body: bytes = b"", *fields: bytes, method: str = "POST") -> bytes:
    head = [f"{method} {path} HTTP/1.1".encode(), b"host: localhost", b"connection: close"]
    head += [b"anthropic-version: 2023-06-01", b"content-length: %d" % len(body), *fields]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def json_request(path: str, body: object) -> bytes:
    return request(path, json.dumps(body).encode(), b"content-type: application/json")


# ---- framing -------------------------------------------------------------------------------------
def pipelined(count: int) -> bytes:
    one = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    return one * count + request("/livez", method="GET")


def chunked(count: int) -> bytes:
    head = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    head += b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"1\r\n \r\n" * count + b"0\r\n\r\n"


def multipart(count: int, name: bytes = b"a", content: bytes = b"b") -> bytes:
    part = b'--x\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name, content)
    body = (
        part * count + b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
    )
    body += b"text\r\n--x--\r\n"
    return request("/v1/files", body, b"content-type: multipart/form-data; boundary=x")


def near_boundaries(count: int) -> bytes:
    """The content of a file that almost is a boundary, over and over."""
    body = b'--xxxx\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
    body += b"\r\n--xxx" * count + b"\r\n--xxxx--\r\n"
    return request("/v1/files", body, b"content-type: multipart/form-data; boundary=xxxx")


def gzipped(members: Callable[[int], bytes]) -> Make:
    return lambda count: request(
        "/v1/messages",
        members(count),
        b"content-type: application/json",
        b"content-encoding: gzip",
    )


FRAMING: dict[str, tuple[Make, int]] = {
    "header fields": (
        lambda n: request("/v1/models", b"", *[b"a: b"] * n, method="GET"),
        2000,
    ),
    "different header fields": (
        lambda n: request("/v1/models", b"", *[b"a%d: b" % i for i in range(n)], method="GET"),
        2000,
    ),
    "repeated known fields": (
        lambda n: request("/v1/models", b"", *[b"anthropic-beta: a"] * n, method="GET"),
        2000,
    ),
    "one long list field": (
        lambda n: request("/v1/models", b"", b"accept: " + b"a/b," * n, method="GET"),
        4000,
    ),
    "one long beta field": (
        lambda n: request("/v1/models", b"", b"anthropic-beta: " + b"ab," * n, method="GET"),
        4000,
    ),
    "one long encoding field": (
        lambda n: request("/metrics", b"", b"accept-encoding: " + b"a;q=1," * n, method="GET"),
        4000,
    ),
    "query parameters": (
        lambda n: request("/v1/models?" + "&".join(["a=1"] * n), method="GET"),
        4000,
    ),
    "different query parameters": (
        lambda n: request("/v1/models?" + "&".join(f"a{i}=1" for i in range(n)), method="GET"),
        4000,
    ),
    "escapes in a path": (lambda n: request("/v1/models/" + "%41" * n, method="GET"), 4000),
    "slashes in a path": (lambda n: request("/v1" + "/a" * n, method="GET"), 4000),
    "pipelined requests": (pipelined, 250),
    "chunks": (chunked, 8000),
    "multipart parts": (multipart, 1000),
    "multipart near boundaries": (near_boundaries, 16_000),
    "gzip members": (gzipped(lambda n: gzip.compress(b" ") * n), 2000),
    "gzip blocks": (gzipped(lambda n: gzip.compress(b" " * 1000 * n)), 500),
}


@pytest.mark.parametrize("name", FRAMING)
def test_framing(served: Served, name: str) -> None:
    make, units = FRAMING[name]
    check_growth(over_loopback(served, make), units)


# ---- JSON ----------------------------------------------------------------------------------------
def message_with(text: str) -> bytes:
    body = json.dumps({**ASKED, "x": 0})[: -len('"x": 0}')] + text + "}"
    return request("/v1/messages", body.encode(), b"content-type: application/json")


def listed(items: list[str]) -> str:
    return '"a":[' + ",".join(items) + "]"


def quoted(text: str) -> str:
    return '"a":"' + text + '"'


JSON: dict[str, tuple[Callable[[int], str], int]] = {
    "members": (lambda n: ",".join(f'"a{i}":1' for i in range(n)), 1200),
    "equal members": (lambda n: ",".join(['"a":1'] * n), 1200),
    "members of many objects": (lambda n: listed(['{"b":1}'] * n), 8000),
    "nesting within bounds": (
        lambda n: listed(["[" * 50 + "]" * 50] * (n // 50)),
        16_000,
    ),
    "nesting beyond bounds": (lambda n: '"a":' + "[" * n + "]" * n, 16_000),
    "open brackets": (lambda n: '"a":' + "[" * n, 16_000),
    "array items": (lambda n: listed(["1"] * n), 16_000),
    "strings": (lambda n: listed(['"b"'] * n), 16_000),
    "escapes": (lambda n: quoted("\\u0041" * n), 32_000),
    "backslashes": (lambda n: quoted("\\\\" * n), 32_000),
    "surrogates": (lambda n: quoted("\\ud83d\\ude00" * n), 16_000),
    "white space": (lambda n: '"a":' + " " * n + "1", 100_000),
    "digits": (lambda n: '"a":' + "1" * n, 16_000),
    "digits of a fraction": (lambda n: '"a":0.' + "1" * n, 16_000),
    "digits of max_tokens": (lambda n: '"max_tokens":' + "1" * n, 16_000),
}


@pytest.mark.parametrize("name", JSON)
def test_json(served: Served, name: str) -> None:
    text, units = JSON[name]
    check_growth(over_loopback(served, lambda n: message_with(text(n))), units)


# ---- surfaces ------------------------------------------------------------------------------------
Fields = dict[str, Any]


def turns(count: int, **more: Any) -> list[Fields]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": "a", **more} for i in range(count)] + [
        {"role": "user", "content": "b"}
    ]


def tool(name: str, schema: Fields | None = None) -> Fields:
    return {"name": name, "description": "d", "input_schema": schema or {"type": "object"}}


def function(name: str, schema: Fields | None = None) -> Fields:
    made = {"name": name, "description": "d", "parameters": schema or {"type": "object"}}
    return {"type": "function", "function": made}


def flat_function(name: str, schema: Fields | None = None) -> Fields:
    return {"type": "function", "name": name, "parameters": schema or {"type": "object"}}


def properties(count: int) -> Fields:
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(count)}}


def all_required(count: int) -> Fields:
    return {**properties(count), "required": [f"p{i}" for i in range(count)]}


def enum(count: int) -> Fields:
    return {"type": "object", "properties": {"a": {"enum": [f"value {i}" for i in range(count)]}}}


def definitions(count: int) -> Fields:
    return {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "$defs": {
            f"d{i}": {"type": "object", "properties": {"n": {"$ref": f"#/$defs/d{i + 1}"}}}
            for i in range(count)
        }
        | {f"d{count}": {"type": "string"}},
    }


def references(count: int) -> Fields:
    return {
        "type": "object",
        "properties": {f"p{i}": {"$ref": "#/$defs/d"} for i in range(count)},
        "$defs": {"d": {"type": "object", "properties": {"a": {"type": "string"}}}},
    }


def any_of(count: int) -> Fields:
    branches = [{"type": "object", "properties": {f"p{i}": {"type": "null"}}} for i in range(count)]
    return {"type": "object", "properties": {"a": {"anyOf": branches}}}


SCHEMAS = (properties, all_required, enum, definitions, references, any_of)
TEXT = {"type": "text", "text": "a"}


def blocks(count: int) -> list[Fields]:
    return [{"role": "user", "content": [TEXT] * count}]


def calls(count: int) -> list[Fields]:
    """Tool calls and their results, as an agent's conversation has them."""
    said: list[Fields] = [{"role": "user", "content": "a"}]
    for i in range(count):
        use = {"type": "tool_use", "id": f"toolu_{i}", "name": "t", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{i}", "content": "r"}
        said += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return said


def calls_at_once(count: int) -> list[Fields]:
    uses = [{"type": "tool_use", "id": f"t{i}", "name": "t", "input": {}} for i in range(count)]
    results = [
        {"type": "tool_result", "tool_use_id": f"t{i}", "content": "r"} for i in range(count)
    ]
    return [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": uses},
        {"role": "user", "content": results},
    ]


def openai_calls(count: int) -> list[Fields]:
    called = [
        {"id": f"c{i}", "type": "function", "function": {"name": "t", "arguments": "{}"}}
        for i in range(count)
    ]
    results = [{"role": "tool", "tool_call_id": f"c{i}", "content": "r"} for i in range(count)]
    asked = {"role": "user", "content": "a"}
    return [asked, {"role": "assistant", "tool_calls": called}, *results]


def response_calls(count: int) -> list[Fields]:
    items: list[Fields] = [{"role": "user", "content": "a"}]
    for i in range(count):
        items += [
            {"type": "function_call", "call_id": f"c{i}", "name": "t", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{i}", "output": "r"},
        ]
    return items


MESSAGES: dict[str, Callable[[int], Fields]] = {
    "messages": lambda n: {"messages": turns(n)},
    "messages of one role": lambda n: {"messages": [{"role": "user", "content": "a"}] * n},
    "content blocks": lambda n: {"messages": blocks(n)},
    "system blocks": lambda n: {"system": [TEXT] * n},
    "cache marks": lambda n: {
        "messages": [
            {"role": "user", "content": [{**TEXT, "cache_control": {"type": "ephemeral"}}] * n}
        ]
    },
    "tool calls": lambda n: {"messages": calls(n), "tools": [tool("t")]},
    "tool calls at once": lambda n: {"messages": calls_at_once(n), "tools": [tool("t")]},
    "tools": lambda n: {"tools": [tool(f"t{i}") for i in range(n)]},
    "equal tools": lambda n: {"tools": [tool("t")] * n},
    "stop strings": lambda n: {"stop_sequences": [f"s{i}" for i in range(n)]},
    "metadata": lambda n: {"metadata": {f"k{i}": "v" for i in range(n)}},
    "documents": lambda n: {
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "document",
                        "source": {"type": "text", "media_type": "text/plain", "data": "a"},
                    }
                ]
                * n,
            }
        ]
    },
    "control words in a text": lambda n: {
        "messages": [{"role": "user", "content": "<|im_start|>" * n}]
    },
    **{
        f"tool schema: {schema.__name__}": lambda n, schema=schema: {
            "tools": [tool("t", schema(n))]
        }
        for schema in SCHEMAS
    },
    **{
        f"format: {schema.__name__}": lambda n, schema=schema: {
            "output_config": {"format": {"type": "json_schema", "schema": schema(n)}}
        }
        for schema in SCHEMAS
    },
}
CHAT: dict[str, Callable[[int], Fields]] = {
    "messages": lambda n: {"messages": turns(n)},
    "content parts": lambda n: {"messages": blocks(n)},
    "system messages": lambda n: {"messages": [{"role": "system", "content": "a"}] * n + turns(0)},
    "tool calls": lambda n: {"messages": openai_calls(n), "tools": [function("t")]},
    "tools": lambda n: {"tools": [function(f"t{i}") for i in range(n)]},
    "stop strings": lambda n: {"stop": [f"s{i}" for i in range(n)]},
    "metadata": lambda n: {"metadata": {f"k{i}": "v" for i in range(n)}},
    "logit bias": lambda n: {"logit_bias": {str(i): 1 for i in range(n)}},
    **{
        f"tool schema: {schema.__name__}": lambda n, schema=schema: {
            "tools": [function("t", schema(n))]
        }
        for schema in SCHEMAS
    },
    **{
        f"format: {schema.__name__}": lambda n, schema=schema: {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": schema(n)},
            }
        }
        for schema in SCHEMAS
    },
}
COMPLETIONS: dict[str, Callable[[int], Fields]] = {
    "prompts": lambda n: {"prompt": ["a"] * n},
    "token ids": lambda n: {"prompt": [5] * n},
    "lists of token ids": lambda n: {"prompt": [[5]] * n},
    "stop strings": lambda n: {"stop": [f"s{i}" for i in range(n)]},
    "logit bias": lambda n: {"logit_bias": {str(i): 1 for i in range(n)}},
}
RESPONSES: dict[str, Callable[[int], Fields]] = {
    "items": lambda n: {"input": turns(n)},
    "content parts": lambda n: {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}] * n}]
    },
    "tool calls": lambda n: {"input": response_calls(n), "tools": [flat_function("t")]},
    "tools": lambda n: {"tools": [flat_function(f"t{i}") for i in range(n)]},
    "metadata": lambda n: {"metadata": {f"k{i}": "v" for i in range(n)}},
    "tool schema": lambda n: {"tools": [flat_function("t", properties(n))]},
    "format": lambda n: {
        "text": {"format": {"type": "json_schema", "name": "a", "schema": properties(n)}}
    },
}
OLLAMA_CHAT: dict[str, Callable[[int], Fields]] = {
    "messages": lambda n: {"messages": turns(n)},
    "tools": lambda n: {"tools": [function(f"t{i}") for i in range(n)]},
    "tool calls": lambda n: {
        "messages": [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "t", "arguments": {}}}] * n,
            },
            {"role": "user", "content": "a"},
        ]
    },
    "options": lambda n: {"options": {f"o{i}": 1 for i in range(n)}},
    "stop strings": lambda n: {"options": {"stop": [f"s{i}" for i in range(n)]}},
    "format": lambda n: {"format": properties(n)},
}
OLLAMA_GENERATE: dict[str, Callable[[int], Fields]] = {
    "prompt": lambda n: {"prompt": "a " * n},
    "context": lambda n: {"context": [5] * n},
    "options": lambda n: {"options": {f"o{i}": 1 for i in range(n)}},
    "images": lambda n: {"images": ["aa"] * n},
}
TOKENIZE: dict[str, Callable[[int], Fields]] = {
    "text": lambda n: {"prompt": "a " * n},
    "messages": lambda n: {"prompt": ..., "messages": turns(n)},
}
BATCHES: dict[str, Callable[[int], Fields]] = {
    "requests": lambda n: {
        "requests": [
            {
                "custom_id": f"i{i}",
                "params": {"model": "tiny", "max_tokens": 1, "messages": turns(0)},
            }
            for i in range(n)
        ]
    },
    "equal identifiers": lambda n: {"requests": [{"custom_id": "i", "params": {}}] * n},
}
ASKED: Fields = {"model": "tiny", "max_tokens": 1, "messages": turns(0)}
SURFACES: dict[str, tuple[Fields, dict[str, Callable[[int], Fields]]]] = {
    "/v1/messages": (ASKED, MESSAGES),
    "/v1/messages/count_tokens": ({**ASKED, "max_tokens": ...}, MESSAGES),
    "/v1/chat/completions": (ASKED, CHAT),
    "/v1/completions": ({"model": "tiny", "prompt": "a", "max_tokens": 1}, COMPLETIONS),
    "/v1/responses": ({"model": "tiny", "input": "a", "max_output_tokens": 16}, RESPONSES),
    "/api/chat": ({"model": "tiny", "messages": turns(0), "stream": False}, OLLAMA_CHAT),
    "/api/generate": ({"model": "tiny", "prompt": "a", "stream": False}, OLLAMA_GENERATE),
    "/tokenize": ({"model": "tiny", "prompt": "a"}, TOKENIZE),
    "/detokenize": (
        {"model": "tiny"},
        {"tokens": lambda n: {"tokens": [5] * n}},
    ),
    "/v1/messages/batches": ({}, BATCHES),
}
UNITS = 500
FEWER = {
    "tools": 100,
    "prompts": 16,
    "lists of token ids": 16,
    "stop strings": 100,
    "requests": 200,
    "logit bias": 100,
    "tool calls": 100,
    "tool calls at once": 200,
}
"""Where each unit is much work, or few may come."""
NUMBERED = [(path, name) for path, (_, units) in SURFACES.items() for name in units]


@pytest.mark.parametrize(("path", "name"), NUMBERED, ids=[": ".join(each) for each in NUMBERED])
def test_surface(served: Served, path: str, name: str) -> None:
    fields, units = SURFACES[path]

    def make(count: int) -> bytes:
        body = {**fields, **units[name](count)}
        return json_request(path, {key: value for key, value in body.items() if value is not ...})

    check_growth(over_loopback(served, make), FEWER.get(name, UNITS))


# ---- the harness over loopback -------------------------------------------------------------------
def test_a_quadratic_path_of_the_server_is_caught(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted before any request is answered: each byte of a body is compared with all others."""
    handle = EdgeServer.handle

    def slow(server: EdgeServer, exchange: Exchange) -> None:
        body = exchange.request.body
        for end in range(0, len(body), 16):
            body[:end].count(b"x")
        handle(server, exchange)

    monkeypatch.setattr(EdgeServer, "handle", slow)
    with pytest.raises(QuadraticError):
        check_growth(over_loopback(served, lambda n: json_request("/v1/messages", ["a"] * n)), 4000)
