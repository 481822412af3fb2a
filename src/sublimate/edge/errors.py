"""Every error a client can get, in one table: code -> status, type, text.

No text comes from an exception: a text has fixed words, and its blanks take numbers, names from
our own tables, and paths of the request's fields.

defines: ErrorKind, TABLE, GRPC_CODES, grpc_code, ApiError, error_again, field_error, envelope,
         error_event, ErrorShape, MESSAGES_SHAPE
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

ENCODE = msgspec.json.Encoder().encode


class ErrorKind(msgspec.Struct, frozen=True):
    """One row. `error_code` goes into details; `retry` into x-should-retry."""

    status: int
    type: str
    text: str
    error_code: str = ""
    retry: bool | None = None
    close: bool = False
    """The connection ends after it: what follows on the wire cannot be trusted or is not wanted."""
    grpc: int | None = None
    """Its code in gRPC, where its own rules want another than GRPC_CODES has for the status."""


INVALID = "invalid_request_error"
OVERLOADED = "overloaded_error"
NOT_FOUND = "not_found_error"
UNAUTHORIZED = 401
ELSEWHERE = "elsewhere"
"""Code of an error that another edge has told, where its row is not known here."""

TABLE: dict[str, ErrorKind] = {
    # The wire.
    "malformed_request": ErrorKind(400, INVALID, "The HTTP request is malformed.", close=True),
    "unsupported_version": ErrorKind(
        400, INVALID, "This port speaks HTTP/1.1 and HTTP/1.0.", close=True
    ),
    "unsupported_transfer_encoding": ErrorKind(
        400, INVALID, "The only transfer encoding taken here is chunked.", close=True
    ),
    "chunk_overhead": ErrorKind(
        400, INVALID, "The chunks of the request body are too small.", close=True
    ),
    "headers_too_large": ErrorKind(
        431, INVALID, "The request headers exceed {maximum} bytes or {fields} fields.", close=True
    ),
    "target_too_long": ErrorKind(
        414,
        INVALID,
        "The request target is too long: it and the headers may have {maximum} bytes.",
        close=True,
    ),
    "headers_too_slow": ErrorKind(
        408, INVALID, "The request headers did not arrive in time.", close=True
    ),
    "body_too_slow": ErrorKind(
        408, INVALID, "The request body did not arrive in time.", close=True
    ),
    "request_too_large": ErrorKind(
        413, "request_too_large", "The request body exceeds {maximum} bytes.", close=True
    ),
    "body_encoding": ErrorKind(
        400,
        INVALID,
        "This content-encoding is not taken here. Send the body without one, or as gzip to a "
        "server that was started with --request-gzip.",
        error_code="request_body_encoding_unsupported",
    ),
    "body_not_gzip": ErrorKind(
        400,
        INVALID,
        "The request body is not one complete gzip stream.",
        error_code="request_body_encoding_invalid",
        close=True,
    ),
    "body_too_large_decoded": ErrorKind(
        413,
        "request_too_large",
        "The decoded request body exceeds {maximum} bytes.",
        error_code="request_body_too_large_after_decoding",
        close=True,
    ),
    "charset": ErrorKind(
        400, INVALID, "The request body must be UTF-8.", error_code="unsupported_charset"
    ),
    "too_many_connections": ErrorKind(
        503, OVERLOADED, "This server has no room for more connections.", retry=True, close=True
    ),
    # Calls of gRPC.
    "call_unknown": ErrorKind(404, NOT_FOUND, "There is no such gRPC method here.", grpc=12),
    "call_content_type": ErrorKind(
        415, INVALID, "A gRPC method is called with POST and content-type application/grpc."
    ),
    "call_timeout_field": ErrorKind(
        400, INVALID, "grpc-timeout: expected 1 to 8 digits and one of H, M, S, m, u, n."
    ),
    "call_encoding": ErrorKind(
        415, INVALID, "grpc-encoding: expected identity, gzip or deflate.", grpc=12
    ),
    "call_compressed": ErrorKind(
        400, INVALID, "A message is marked as compressed, and grpc-encoding names no way.", grpc=13
    ),
    "call_framing": ErrorKind(400, INVALID, "The messages of the call are cut wrong.", grpc=13),
    "call_message": ErrorKind(400, INVALID, "The message is not one of this method's.", grpc=13),
    "message_fields": ErrorKind(
        400,
        INVALID,
        "A message may have {maximum} fields at most, those of the messages within it counted. "
        "Send a larger request as json_body.",
    ),
    "call_one_message": ErrorKind(400, INVALID, "This method takes one message.", grpc=12),
    "call_too_large": ErrorKind(
        413, "request_too_large", "A message may have {maximum} bytes at most."
    ),
    "call_no_service": ErrorKind(404, NOT_FOUND, "There is no service of this name."),
    "call_not_described": ErrorKind(404, NOT_FOUND, "No file of this server describes that."),
    "call_deadline": ErrorKind(504, "api_error", "The deadline of the call has passed."),
    "call_slow_reader": ErrorKind(
        408, INVALID, "The answer was not read, and as much of it waits as may.", grpc=8
    ),
    "too_early": ErrorKind(
        425,
        INVALID,
        "A request in early data has to be safe to repeat: a GET, a count of tokens, or one with an"
        " idempotency-key. Send it again when the handshake is complete.",
        retry=True,
    ),
    "idempotency_key": ErrorKind(
        400, INVALID, "idempotency-key: expected 1 to {maximum} characters of ASCII."
    ),
    "idempotency_mismatch": ErrorKind(
        422,
        INVALID,
        "This idempotency-key was used for another request. Take a new key for each request.",
        retry=False,
    ),
    "idempotency_form": ErrorKind(
        422,
        INVALID,
        "The answer under this idempotency-key is {form}. Ask for it so, or take a new key.",
        retry=False,
    ),
    # Access and routes.
    "unauthenticated": ErrorKind(
        401,
        "authentication_error",
        "A valid API key is needed, in x-api-key or as Authorization: Bearer.",
        retry=False,
    ),
    "rate_limited": ErrorKind(
        429,
        "rate_limit_error",
        "This key's limit of {maximum} {what} per minute is reached. Try again in {seconds} s.",
        retry=True,
    ),
    "too_many_at_once": ErrorKind(
        429,
        "rate_limit_error",
        "This key's limit of {maximum} requests at once is reached.",
        retry=True,
    ),
    "origin_refused": ErrorKind(
        403,
        "permission_error",
        "This server does not take requests from that origin. To allow it, start the server with "
        "--cors-origin and the origin, as in --cors-origin https://app.example.",
    ),
    "host_refused": ErrorKind(
        403,
        "permission_error",
        "This server has no API key, so it takes requests for this machine alone, and not for the "
        "name in Host. Name it with --allowed-host, or set a key.",
    ),
    "embeddings": ErrorKind(
        404,
        NOT_FOUND,
        "No model of this server offers embeddings; /v1/models lists what there is.",
        error_code="embeddings_not_offered",
    ),
    "not_offered": ErrorKind(404, NOT_FOUND, "{reason}", error_code="not_offered"),
    "batches_elsewhere": ErrorKind(
        404,
        NOT_FOUND,
        "OpenAI's batches and their files are not offered; /v1/messages/batches takes batches of"
        " the Messages API, and /v1/files keeps documents for it.",
        error_code="batches_not_offered",
    ),
    "compaction": ErrorKind(
        404,
        NOT_FOUND,
        "This server does not compact conversations: send the items that matter to /v1/responses.",
        error_code="compaction_not_offered",
    ),
    "not_found": ErrorKind(404, NOT_FOUND, "There is nothing at this path."),
    "base_url": ErrorKind(
        404,
        NOT_FOUND,
        "There is nothing at this path, but at {right}. Correct the client's base URL: {advice}.",
    ),
    "method": ErrorKind(405, INVALID, "This path takes {allowed}."),
    "unknown_batch": ErrorKind(404, NOT_FOUND, "There is no message batch with this id."),
    "batch_runs": ErrorKind(
        400, INVALID, "This batch has not ended yet. Cancel it first, or ask again later."
    ),
    "unknown_file": ErrorKind(404, NOT_FOUND, "There is no file with this id."),
    "file_too_large": ErrorKind(
        413,
        "request_too_large",
        "A file may have {maximum} bytes at most (--file-bytes-max). Send it in parts.",
    ),
    "files_too_large": ErrorKind(
        413,
        "request_too_large",
        "All your files may have {maximum} bytes at most (--files-bytes-max). Delete some first.",
    ),
    "too_many_files": ErrorKind(
        400, INVALID, "There may be {maximum} files at most. Delete some first."
    ),
    "data_in_use": ErrorKind(
        503,
        "api_error",
        "Another server uses this server's data folder. Give each its own with --data-dir.",
        retry=False,
    ),
    "data_unavailable": ErrorKind(
        503,
        "api_error",
        "This server's data folder cannot be read or written. Make room on its disk and let the "
        "server write there, or name another with --data-dir.",
        retry=False,
    ),
    "worker_unavailable": ErrorKind(
        503,
        "api_error",
        "The worker that keeps batches and files is not running. It is being restarted: try again.",
    ),
    "key_removed": ErrorKind(
        401,
        "authentication_error",
        "The API key that sent this batch was removed before this request began.",
        retry=False,
    ),
    "unknown_lease": ErrorKind(
        404,
        NOT_FOUND,
        "This address needs a lease that is new and unused: ask /v1/layer/negotiate for one, or "
        "send the request to /v1/messages of the server itself.",
    ),
    "legacy_unavailable": ErrorKind(
        503,
        "api_error",
        "The old layer's broker or scheduler does not answer. Send the request to /v1/messages of "
        "the server itself, which needs neither.",
        retry=False,
    ),
    "unknown_request": ErrorKind(
        404,
        NOT_FOUND,
        "There is no request of yours with this id here. The last {maximum} are kept, in memory: "
        "/v1/debug/requests lists them.",
    ),
    "too_many_followers": ErrorKind(
        429,
        "rate_limit_error",
        "{maximum} debuggers{whose} follow this server already. End one of them first.",
    ),
    "unknown_model": ErrorKind(
        404,
        NOT_FOUND,
        "model: {model} is not served here. Served: {served}. Use one of these names, or start the "
        "server with --alias NAME=MODEL or --any-model.",
    ),
    "item_not_found": ErrorKind(
        404,
        NOT_FOUND,
        "{path}: there is no item {identifier} here. An item can be referred to while its response"
        " is kept: in memory, unless `store` is false. Send the item itself instead.",
    ),
    "response_not_found": ErrorKind(
        404,
        NOT_FOUND,
        "There is no response with this id here. This server keeps the last ones, in memory, if "
        "store is not false.",
    ),
    "previous_response_not_found": ErrorKind(
        404,
        NOT_FOUND,
        "previous_response_id: there is no response with this id here. This server keeps the last "
        "ones, in memory, if store is not false.",
    ),
    # The body.
    "invalid_utf8": ErrorKind(
        400, INVALID, "The request body is not valid UTF-8 at byte {position}."
    ),
    "invalid_json": ErrorKind(400, INVALID, "The request body is not valid JSON: {cause}."),
    "json_too_deep": ErrorKind(400, INVALID, "The JSON body is nested deeper than {maximum}."),
    "json_too_many": ErrorKind(
        400, INVALID, "The JSON body has too many keys, elements or containers."
    ),
    "field": ErrorKind(400, INVALID, "{path}: {reason}"),
    "tool_name_conflict": ErrorKind(
        400,
        INVALID,
        "{path}: two tools have the name {name}",
        error_code="tool_name_conflict",
    ),
    "strict_schema": ErrorKind(
        400,
        INVALID,
        "{path}: a strict schema has to be enforced whole, and this cannot be. Leave it out,"
        " or strict.",
    ),
    "prompt_too_long": ErrorKind(
        400, INVALID, "prompt is too long: {tokens} tokens > {maximum} maximum"
    ),
    "template_limit": ErrorKind(
        400, INVALID, "messages: this conversation exceeds what one prompt may be rendered from"
    ),
    "threads": ErrorKind(
        400,
        INVALID,
        "thread: this server keeps no threads. Send the whole conversation in messages.",
        error_code="thread_unsupported_request",
    ),
    "profile_missing": ErrorKind(
        400,
        INVALID,
        "execution_profile: this server needs one of low-latency, high-throughput, long-context, "
        "in the body or in the header x-execution-profile",
    ),
    "profile_pinned": ErrorKind(
        400,
        INVALID,
        "execution_profile: this server is pinned to {pinned}; the request names {named}",
    ),
    # The server.
    "overloaded": ErrorKind(
        529, OVERLOADED, "The server is at its limit. Try again soon.", retry=True
    ),
    "draining": ErrorKind(
        529, OVERLOADED, "The server is shutting down and takes no new requests.", retry=True
    ),
    "engine_unavailable": ErrorKind(
        503, OVERLOADED, "The model engine is not available now. Try again soon.", retry=True
    ),
    "model_not_loaded": ErrorKind(
        503, OVERLOADED, "The model {model} could not be loaded now. Try again later.", retry=True
    ),
    "engine_tripped": ErrorKind(
        529,
        OVERLOADED,
        "The model engine takes nothing new until it has recovered. Try again soon.",
        retry=True,
    ),
    "fallback_refused": ErrorKind(
        400,
        INVALID,
        "The request went to the fallback server, which does not take it. Try again later, or "
        "without what only this server offers.",
    ),
    "fallback_lost": ErrorKind(
        500, "api_error", "The fallback server was lost during this request.", retry=True
    ),
    "fallback_form": ErrorKind(
        500,
        "api_error",
        "The answer of the fallback server has no form in gRPC or binary frames. Ask for JSON over "
        "HTTP.",
        retry=False,
    ),
    "hardware_not_supported": ErrorKind(
        503, "api_error", "The model cannot run on this machine.", retry=False
    ),
    "load_failed": ErrorKind(503, "api_error", "The model could not be loaded.", retry=False),
    "engine_lost": ErrorKind(
        500, "api_error", "The model engine was lost during this request.", retry=True
    ),
    "generation_failed": ErrorKind(
        500, "api_error", "The model could not complete this answer.", retry=False
    ),
    "constraint_failed": ErrorKind(
        500,
        "api_error",
        "The answer could not be held to its schema any further. Simplify the schema of the tool or"
        " format.",
        retry=False,
    ),
    "internal": ErrorKind(500, "api_error", "An internal error occurred."),
}


GRPC_CODES = {
    400: 3,  # INVALID_ARGUMENT
    401: 16,  # UNAUTHENTICATED
    403: 7,  # PERMISSION_DENIED
    404: 5,  # NOT_FOUND
    405: 12,  # UNIMPLEMENTED
    408: 4,  # DEADLINE_EXCEEDED
    413: 8,  # RESOURCE_EXHAUSTED
    414: 8,
    415: 12,
    422: 3,
    425: 14,  # UNAVAILABLE
    429: 8,
    431: 8,
    500: 13,  # INTERNAL
    503: 14,
    504: 4,
    529: 14,
}
"""Every status of the table, and what it is in gRPC. Clients repeat calls that end UNAVAILABLE."""


def grpc_code(kind: ErrorKind) -> int:
    """As google.rpc.Code has them."""
    return GRPC_CODES[kind.status] if kind.grpc is None else kind.grpc


class ApiError(Exception):
    """One row of TABLE with its blanks filled. Everything the client sees comes from here."""

    def __init__(self, code: str, **blanks: int | str) -> None:
        super().__init__(code)
        self.code = code
        self.kind = TABLE[code]
        self.text = self.kind.text.format(**blanks)
        self.path = str(blanks.get("path", ""))
        """Of the field that is wrong, if it is one."""
        self.allowed = str(blanks.get("allowed", ""))
        """Methods of the path, if it has others than the request's."""
        self.extra: dict[str, Any] = {}
        """More members of the body, such as the probe's finding."""
        self.retry_after_seconds: int | None = None
        self.shed_reason = ""
        """What it counts as where a request could have gone elsewhere; empty: as its code says."""

    def after(self, seconds: int) -> ApiError:
        """The same with retry-after."""
        self.retry_after_seconds = seconds
        return self

    def bare(self) -> ApiError:
        """The same to keep: without where it was raised, which holds all that was at work there,
        the request and its body too."""
        kept = ApiError.__new__(ApiError, *self.args)
        kept.__dict__.update(self.__dict__)
        return kept

    def headers(self) -> list[tuple[str, str]]:
        headers: list[tuple[str, str]] = []
        if self.retry_after_seconds is not None:
            headers.append(("retry-after", str(self.retry_after_seconds)))
        if self.kind.retry is not None:
            headers.append(("x-should-retry", "true" if self.kind.retry else "false"))
        if self.allowed:
            headers.append(("allow", self.allowed))
        if self.kind.status == UNAUTHORIZED:
            headers.append(("www-authenticate", "Bearer"))
        return headers


def error_again(
    told: Mapping[str, Any], status: int = 0, fields: Mapping[str, str] | None = None
) -> ApiError:
    """What another edge has told as an error, from its envelope's `error` and the head's fields;
    `status`, 0: of a stream that broke."""
    kind, text, head = (
        str(told.get("type", "api_error")),
        str(told.get("message", "")),
        fields or {},
    )
    for code, row in TABLE.items():
        if (row.type, row.text) == (kind, text) and status in (0, row.status):
            error = ApiError(code)
            break
    else:
        # A text with blanks that were filled there.
        details: dict[str, Any] = told.get("details") or {}
        error = ApiError("internal")
        should = {"true": True, "false": False}.get(head.get("x-should-retry", ""))
        code = str(details.get("error_code", ""))
        error.kind = ErrorKind(status or 500, kind, text, code, should)
        error.code, error.text = ELSEWHERE, text
    seconds = head.get("retry-after", "")
    return error.after(int(seconds)) if seconds.isdecimal() else error


def field_error(path: str, reason: str) -> ApiError:
    """A 400 whose text starts with the dotted path of the field. `reason` is fixed text."""
    return ApiError("field", path=path, reason=reason)


VALUE_CHARACTERS_MAX = 64
"""Length at which an error cuts a value that it repeats."""


def unknown_value(path: str, value: str, known: Iterable[str], hint: str = "") -> ApiError:
    """A 400 that repeats the value and says which there are."""
    shown = ENCODE(value[:VALUE_CHARACTERS_MAX]).decode()
    return field_error(path, f"{shown} is unknown; expected one of {', '.join(known)}{hint}")


def envelope(error: ApiError, request_id: str) -> bytes:
    """The body of an error response."""
    inner: dict[str, Any] = {"type": error.kind.type, "message": error.text}
    if error.kind.error_code:
        inner["details"] = {"error_code": error.kind.error_code}
    body = {"type": "error", "error": inner, "request_id": request_id, **error.extra}
    return ENCODE(body)


def error_event(error: ApiError, request_id: str) -> bytes:
    """The same as the last frame of a stream."""
    return b"event: error\ndata: " + envelope(error, request_id) + b"\n\n"


class ErrorShape:
    """How errors look on a surface's paths: that of the Messages API, and what others override."""

    id_headers: tuple[str, ...] = ("request-id",)
    """Headers of every answer that hold the request's id."""

    def status(self, error: ApiError) -> int:
        return error.kind.status

    def fields(self, error: ApiError, request_id: str) -> list[tuple[str, str]]:
        """Headers of an answer that is an error."""
        del request_id
        return [("content-type", "application/json"), *error.headers()]

    def body(self, error: ApiError, request_id: str) -> bytes:
        return envelope(error, request_id)

    def trailers(self, error: ApiError, request_id: str) -> list[tuple[str, str]]:
        """Behind a stream that breaks, on a wire that has such."""
        del error, request_id
        return []

    def event(self, error: ApiError, request_id: str) -> bytes:
        """The last frames of a stream that breaks."""
        return error_event(error, request_id)


MESSAGES_SHAPE = ErrorShape()
