"""GET /openapi.json and /docs: what this server takes, as a document and as a page.

The page is whole in itself: no script, no request to anybody else.

defines: document, page
"""

from __future__ import annotations

import html
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from ..config import PROFILES
from ..edge import limits
from ..edge.exchange import Exchange
from .batches.handlers import BatchBody
from .messages.schema import NOT_OFFERED, MessagesRequest
from .ollama.models import PullRequest, ShowRequest
from .ollama.request import ChatRequest as OllamaChat
from .ollama.request import GenerateRequest
from .openai.chat import ChatRequest as OpenAIChat
from .openai.completions import CompletionRequest
from .openai.responses import ResponsesRequest
from .tokenise import DetokenizeBody, TokenizeBody

if TYPE_CHECKING:
    from ..edge.app import EdgeServer

ERROR_STATUSES = (400, 401, 403, 404, 405, 408, 413, 414, 431, 500, 503, 529)


def _number(low: float, high: float, text: str) -> dict[str, Any]:
    return {"type": "number", "minimum": low, "maximum": high, "description": text}


PROPERTIES: dict[str, Any] = {
    "model": {"type": "string", "description": "An id of /v1/models; claude-* names the same."},
    "max_tokens": {
        "type": "integer",
        "minimum": 0,
        "description": "Most tokens to generate. No upper bound: what is more than the context has "
        "room for after the prompt means all of it. 0 only fills the prefix cache.",
    },
    "stream": {
        "type": "boolean",
        "description": "Server-sent events, or with `Accept: application/octet-stream` frames.",
    },
    "stop_sequences": {
        "type": "array",
        "maxItems": limits.STOP_SEQUENCES_MAX,
        "items": {"type": "string", "minLength": 1},
    },
    "temperature": _number(0, limits.TEMPERATURE_MAX, "0 is greedy; default 1 or the model's own."),
    "top_p": _number(0, 1, "Nucleus; above 0."),
    "top_k": {"type": "integer", "minimum": 0, "description": "0 is off."},
    "min_p": _number(0, 1, "Below 1; 0 is off."),
    "seed": {"type": "integer", "description": "A seeded request repeats."},
    "repetition_penalty": _number(0, limits.REPETITION_PENALTY_MAX, "Above 0; 1 is off."),
    "presence_penalty": _number(-limits.PENALTY_MAX, limits.PENALTY_MAX, "0 is off."),
    "frequency_penalty": _number(-limits.PENALTY_MAX, limits.PENALTY_MAX, "0 is off."),
    "logit_bias": {
        "type": "object",
        "additionalProperties": {"type": "number"},
        "description": "Token id to bias.",
    },
    "stop_token_ids": {"type": "array", "items": {"type": "integer"}},
    "ignore_eos": {"type": "boolean", "description": "Only max_tokens ends the answer."},
    "execution_profile": {"type": "string", "enum": list(PROFILES)},
}
FIELDS = {
    "messages": "Turns in order, of every block. A last assistant turn is continued.",
    "system": "Text, or text blocks.",
    "tools": "Your own with a JSON schema; bash, text_editor and memory bring theirs.",
    "tool_choice": "auto, any, tool or none, with disable_parallel_tool_use.",
    "thinking": "Of models that think: enabled with budget_tokens, adaptive, between_tools.",
    "output_config": "effort, and format with a JSON schema of the answer.",
    "context_management": "clear_tool_uses_20250919 and clear_thinking_20251015.",
    "diagnostics": "previous_message_id: the answer says where the prompt left the cached one.",
}
"""What the structs of the Messages API do not say by themselves."""


def _schemas() -> dict[str, Any]:
    """Of the structs that bodies are decoded into, so that the document is what is read."""
    _, components = msgspec.json.schema_components(
        (MessagesRequest,), ref_template="#/components/schemas/{name}"
    )
    request = components["MessagesRequest"]
    properties: dict[str, Any] = request["properties"]
    for name in NOT_OFFERED:
        del properties[name]
    for name, text in FIELDS.items():
        properties[name] = {**properties[name], "description": text}
    properties.update(PROPERTIES)
    request["required"] = ["model", "max_tokens", "messages"]
    return components


REFERENCE = re.compile(rb'\{"\$ref":"[^"]*"\}')


def _body_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """What a body holds, without the insides of its objects. A field of any type is one that is
    refused."""
    (top,), parts = msgspec.json.schema_components([kind], ref_template="{name}")
    told = msgspec.json.encode(parts[top["$ref"]])
    body = msgspec.json.decode(REFERENCE.sub(b'{"type":"object"}', told))
    known = {name: told for name, told in body["properties"].items() if told.keys() - {"default"}}
    return {"type": "object", "required": body.get("required", []), "properties": known}


BODIES: dict[str, type[msgspec.Struct]] = {
    "ChatCompletionRequest": OpenAIChat,
    "CompletionRequest": CompletionRequest,
    "ResponsesRequest": ResponsesRequest,
    "OllamaChatRequest": OllamaChat,
    "OllamaGenerateRequest": GenerateRequest,
    "OllamaShowRequest": ShowRequest,
    "OllamaPull": PullRequest,
    "BatchRequest": BatchBody,
    "Tokenize": TokenizeBody,
    "Detokenize": DetokenizeBody,
}
ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": {"type": "string"},
    },
}


@cache
def schemas() -> dict[str, Any]:
    """By name. Made when somebody asks: they take longer than all else of this file."""
    bodies = {name: _body_of(kind) for name, kind in BODIES.items()}
    return {**_schemas(), "Error": ERROR, **bodies}


MESSAGE, BATCHES, FILES = "MessagesRequest", "/v1/messages/batches", "/v1/files"
LISTED, BY_IDS = "after_id before_id limit", "after_id before_id limit page ids"
"""Query parameters of lists."""
UPLOAD = {
    "type": "object",
    "required": ["file"],
    "properties": {"file": {"type": "string", "format": "binary"}},
}


class Operation(msgspec.Struct, frozen=True):
    """A path and a method, as the document tells of it. body: name of a schema."""

    path: str
    method: str
    text: str
    body: str = ""
    query: str = ""


OPERATIONS = (
    Operation("/v1/messages", "post", "Create a message, streamed or whole.", MESSAGE),
    Operation("/v1/messages/count_tokens", "post", "Count the prompt tokens.", MESSAGE),
    Operation(BATCHES, "post", "Create a batch of messages.", "BatchRequest"),
    Operation(BATCHES, "get", "List batches.", query=LISTED),
    Operation(BATCHES + "/{id}", "get", "One batch."),
    Operation(BATCHES + "/{id}", "delete", "Forget a batch that has ended."),
    Operation(BATCHES + "/{id}/cancel", "post", "End a batch."),
    Operation(BATCHES + "/{id}/results", "get", "Results, one line of JSON each."),
    Operation(FILES, "post", "Keep a file."),
    Operation(FILES, "get", "List files.", query=BY_IDS),
    Operation(FILES + "/{id}", "get", "What is known of a file."),
    Operation(FILES + "/{id}", "delete", "Remove a file."),
    Operation(FILES + "/{id}/content", "get", "The bytes of a file."),
    Operation("/v1/models", "get", "List models.", query=LISTED),
    Operation("/v1/models/{id}", "get", "One model."),
    Operation("/v1/chat/completions", "post", "OpenAI: answer a chat.", "ChatCompletionRequest"),
    Operation("/v1/completions", "post", "OpenAI: go on from a text.", "CompletionRequest"),
    Operation("/v1/responses", "post", "OpenAI: create a response.", "ResponsesRequest"),
    Operation("/v1/responses/input_tokens", "post", "OpenAI: count tokens.", "ResponsesRequest"),
    Operation("/v1/responses/compact", "post", "Not offered: 404."),
    Operation("/v1/responses/{id}", "get", "OpenAI: a response that was kept."),
    Operation("/v1/responses/{id}/input_items", "get", "OpenAI: what it was an answer to."),
    Operation("/v1/responses/{id}", "delete", "OpenAI: forget a response."),
    Operation("/v1/batches", "post", "Not offered: 404."),
    Operation("/v1/batches", "get", "Not offered: 404."),
    Operation("/v1/batches/{id}", "get", "Not offered: 404."),
    Operation("/v1/batches/{id}/cancel", "post", "Not offered: 404."),
    Operation("/v1/embeddings", "post", "Not offered: 404."),
    Operation("/api/chat", "post", "Ollama: answer a chat.", "OllamaChatRequest"),
    Operation("/api/generate", "post", "Ollama: answer a prompt.", "OllamaGenerateRequest"),
    Operation("/api/tags", "get", "Ollama: the models."),
    Operation("/api/show", "post", "Ollama: what a model is.", "OllamaShowRequest"),
    Operation("/api/ps", "get", "Ollama: what is loaded."),
    Operation("/api/pull", "post", "Ollama: success for a model that is served.", "OllamaPull"),
    Operation("/api/create", "post", "Not offered: 404."),
    Operation("/api/copy", "post", "Not offered: 404."),
    Operation("/api/push", "post", "Not offered: 404."),
    Operation("/api/delete", "delete", "Not offered: 404."),
    Operation("/api/blobs/{id}", "post", "Not offered: 404."),
    Operation("/api/blobs/{id}", "head", "Not offered: 404."),
    Operation("/api/version", "get", "Ollama: the version of its API."),
    Operation("/api/embed", "post", "Not offered: 404."),
    Operation("/api/embeddings", "post", "Not offered: 404."),
    Operation("/tokenize", "post", "Ids of a text or a conversation, as in vLLM.", "Tokenize"),
    Operation("/detokenize", "post", "Text of ids, as in vLLM.", "Detokenize"),
    Operation("/livez", "get", "The process answers."),
    Operation("/readyz", "get", "New requests would be served."),
    Operation("/health", "get", "The engine makes progress."),
    Operation("/version", "get", "Version, model, policy digest."),
    Operation("/v1/layer/policy", "get", "The policy, its digest, and what settings add."),
    Operation("/.well-known/sublimate", "get", "Ports, certificate, policy digest."),
    Operation("/metrics", "get", "Numbers for Prometheus."),
    Operation("/v1/debug/requests", "get", "The last requests, in short."),
    Operation("/v1/debug/requests/{id}", "get", "What became of one request."),
    Operation("/v1/debug/events", "get", "What happens to requests, as server-sent events."),
)


def _told(operation: Operation) -> dict[str, Any]:
    """An operation object."""
    responses: dict[str, Any] = {"200": {"description": "OK"}}
    for status in ERROR_STATUSES:
        responses[str(status)] = {"$ref": "#/components/responses/Error"}
    told: dict[str, Any] = {"summary": operation.text, "responses": responses}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "query", "schema": {"type": "string"}}
        for name in operation.query.split()
    ]
    if "{id}" in operation.path:
        schema = {"type": "string", "minLength": 1}
        parameters.append({"name": "id", "in": "path", "required": True, "schema": schema})
    if parameters:
        told["parameters"] = parameters
    content: dict[str, Any] = {}
    if operation.body:
        schema = {"$ref": f"#/components/schemas/{operation.body}"}
        content = {"application/json": {"schema": schema}}
    elif (operation.path, operation.method) == (FILES, "post"):
        content = {"multipart/form-data": {"schema": UPLOAD}}
    if content:
        told["requestBody"] = {"required": True, "content": content}
    return told


def describe(version: str, base: str) -> dict[str, Any]:
    """The OpenAPI document of a server at a base URL."""
    paths: dict[str, Any] = {}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _told(operation)
    schemes = {
        "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        "bearer": {"type": "http", "scheme": "bearer"},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sublimate", "version": version},
        "servers": [{"url": base}],
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": schemes,
            "responses": {"Error": {"description": "Error", "content": error}},
        },
        "security": [{"apiKey": []}, {"bearer": []}],
    }


def document(server: EdgeServer, exchange: Exchange) -> None:
    exchange.send_json(200, msgspec.json.encode(describe(server.version, exchange.base_url())))


STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{font-family:ui-monospace,monospace}pre{background:#8881;padding:1rem;overflow:auto}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3rem .6rem;"
    "border-bottom:1px solid #8884;vertical-align:top}"
)
EXAMPLE = """curl {base}/v1/messages -H 'content-type: application/json' -d '{{
  "model": "{model}", "max_tokens": 128, "stream": true,
  "messages": [{{"role": "user", "content": "Hello"}}]
}}'"""


def page(server: EdgeServer, exchange: Exchange) -> None:
    """The same for a person."""
    rows = "".join(
        f"<tr><td><code>{one.method.upper()}</code></td><td><code>{html.escape(one.path)}</code>"
        f"</td><td>{html.escape(one.text)}</td></tr>"
        for one in OPERATIONS
    )
    fields = "".join(
        f"<tr><td><code>{html.escape(name)}</code></td>"
        f"<td>{html.escape(str(schema.get('type', '')))}</td>"
        f"<td>{html.escape(str(schema.get('description', '')))}</td></tr>"
        for name, schema in schemas()["MessagesRequest"]["properties"].items()
    )
    example = EXAMPLE.format(base=exchange.base_url(), model=server.models.main.name)
    text = (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Sublimate API</title>"
        f"<style>{STYLE}</style><h1>Sublimate {html.escape(server.version)}</h1>"
        f"<p>Model <code>{html.escape(server.models.main.name)}</code>. "
        "The whole description: <a href=/openapi.json>/openapi.json</a>.</p>"
        f"<pre>{html.escape(example)}</pre><h2>Paths</h2><table>{rows}</table>"
        f"<h2>Fields of a message request</h2><table>{fields}</table></html>"
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    headers = [
        ("content-type", "text/html; charset=utf-8"),
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
    ]
    exchange.send(200, headers, text.encode())
