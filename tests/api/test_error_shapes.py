"""Every row of the error table over the wire, in each envelope; each route's errors in its own."""

import json
import string
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from harness import Served, exchange_bytes, serve
from house import ROOT
from sublimate.api.routes import SHAPES, TABLE
from sublimate.edge.app import EdgeServer
from sublimate.edge.errors import TABLE as ERRORS
from sublimate.edge.errors import ApiError
from sublimate.edge.exchange import Exchange
from sublimate.edge.routes import Routes
from sublimate.model.template import TemplateLimitError
from test_errors import check_error

BLANK = 7
SECONDS = 3
OPENAI_TYPES = {
    "invalid_request_error": "invalid_request_error",
    "request_too_large": "invalid_request_error",
    "not_found_error": "invalid_request_error",
    "authentication_error": "authentication_error",
    "permission_error": "permission_error",
    "rate_limit_error": "rate_limit_error",
    "overloaded_error": "server_error",
    "api_error": "server_error",
}
SURFACES = {
    "/v1/messages": "messages",
    "/v1/chat/completions": "openai",
    "/v1/completions": "openai",
    "/v1/responses": "openai",
    "/api/chat": "ollama",
    "/v1/models": "shared",
}
TOO_LARGE = (32 << 20) + 1


def made(code: str) -> ApiError:
    fields = string.Formatter().parse(ERRORS[code].text)
    return ApiError(code, **{name: BLANK for _, name, _, _ in fields if name}).after(SECONDS)


def raise_row(server: EdgeServer, exchange: Exchange) -> None:
    code = exchange.request.segments()[-1]
    if exchange.request.method == "DELETE":  # of a stream that breaks
        exchange.start_stream([], b"")
    raise made(code)


@pytest.fixture(scope="module")
def raising() -> Iterator[Served]:
    table = {f"{path}/{{code}}": {"GET": raise_row, "DELETE": raise_row} for path in SURFACES}
    with serve(routes=Routes(table, SHAPES)) as served:
        yield served


def check(envelope: str, content: Any, request_id: str, error: ApiError) -> None:
    """The body, member by member."""
    kind, text = error.kind, error.text
    details = {"details": {"error_code": kind.error_code}} if kind.error_code else {}
    if envelope == "ollama":
        assert content == {"error": text}
        return
    inner = content["error"]
    if envelope == "openai":
        assert set(content) == {"error"} and set(inner) == {"message", "type", "param", "code"}
        assert inner["message"] == text and inner["type"] == OPENAI_TYPES[kind.type]
        return
    place = {name: inner[name] for name in ("param", "code")} if envelope == "shared" else {}
    assert content == {
        "type": "error",
        "error": {"type": kind.type, "message": text, **details, **place},
        "request_id": request_id,
    }


@pytest.mark.parametrize(("path", "envelope"), SURFACES.items())
def test_every_row_in_every_envelope(raising: Served, path: str, envelope: str) -> None:
    for code in ERRORS:
        error = made(code)
        reply = raising.client.get(f"{path}/{code}")
        their_client_knows_503 = error.kind.status == 529 and envelope in ("openai", "ollama")
        assert reply.status_code == (503 if their_client_knows_503 else error.kind.status)
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["retry-after"] == str(SECONDS)
        retry = None if error.kind.retry is None else str(error.kind.retry).lower()
        assert reply.headers.get("x-should-retry") == retry
        assert (reply.headers.get("connection") == "close") == error.kind.close
        request_id = reply.headers["request-id"]
        if envelope in ("openai", "shared"):
            assert reply.headers["x-request-id"] == request_id
        check(envelope, reply.json(), request_id, error)
        broken = raising.client.delete(f"{path}/{code}")
        assert broken.status_code == 200
        last = broken.text.strip().rpartition("data: ")[2]
        check(envelope, msgspec.json.decode(last), broken.headers["request-id"], error)
        assert broken.text.startswith("event: error\n") == (envelope in ("messages", "shared"))


# ---- the real routes -----------------------------------------------------------------------------
def envelope_of(path: str) -> str:
    """By the path alone, as the documentation says."""
    if path.startswith("/api/"):
        return "ollama"
    if path.startswith(("/v1/chat/", "/v1/completions", "/v1/responses", "/v1/batches")):
        return "openai"
    own = path.startswith("/v1/messages") or not path.startswith("/v1/")
    return "messages" if own else "shared"


def check_real(reply: httpx.Response, code: str, envelope: str) -> None:
    assert reply.status_code == ERRORS[code].status, reply.text
    check_content(reply.json(), reply.headers["request-id"], code, envelope)


def check_content(content: Any, request_id: str, code: str, envelope: str) -> None:
    kind = ERRORS[code]
    error = ApiError(code, **dict.fromkeys(("allowed", "maximum", "cause", "position"), BLANK))
    inner = content["error"]
    error.text = inner if envelope == "ollama" else inner["message"]
    assert error.text.startswith(kind.text.partition("{")[0])
    check(envelope, content, request_id, error)


@pytest.mark.parametrize("path", TABLE)
def test_each_route_errs_in_its_envelope(shared: Served, path: str) -> None:
    envelope = envelope_of(path)
    check_real(shared.client.patch(path), "method", envelope)
    if path not in ("/", "/api/hello"):
        check_real(shared.client.get(f"{path}/no/such/thing"), "not_found", envelope)
    if "POST" in TABLE[path] and path != "/v1/files":  # those are larger
        with shared.connect() as sock:
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {TOO_LARGE}\r\n\r\n"
            raw = exchange_bytes(sock, head.encode())
        assert raw.status == 413
        check_content(raw.json, raw.headers["request-id"], "request_too_large", envelope)


@pytest.mark.parametrize("path", [
    "/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches", "/v1/chat/completions",
    "/v1/completions", "/v1/responses", "/api/chat", "/api/generate", "/api/show", "/tokenize",
    "/detokenize",
])  # fmt: skip
def test_bad_json_is_told_in_the_envelope_of_the_route(shared: Served, path: str) -> None:
    for content, code in ((b"{", "invalid_json"), (b'{"a":"\xff"}', "invalid_utf8")):
        check_real(shared.client.post(path, content=content), code, envelope_of(path))


BODIES = {
    "/v1/messages": {"max_tokens": 8, "messages": [{"role": "user", "content": "@"}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "@"}]},
    "/v1/messages/batches": {"requests": [{"custom_id": "a", "params": {"system": "@"}}]},
    "/v1/chat/completions": {"max_tokens": 8, "messages": [{"role": "user", "content": "@"}]},
    "/v1/completions": {"max_tokens": 8, "prompt": "@"},
    "/v1/responses": {"max_output_tokens": 8, "input": "@"},
    "/api/chat": {"stream": False, "messages": [{"role": "user", "content": "@"}]},
    "/api/generate": {"stream": False, "prompt": "@"},
    "/api/show": {"system": "@"},
    "/tokenize": {"prompt": "@"},
}
MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize("path", BODIES)
def test_f20_bodies_of_every_surface(shared: Served, path: str) -> None:
    whole = json.dumps({"model": "tiny", **BODIES[path]}).encode()
    for sent in (MARK + whole, whole.replace(b"@", b"cut \\ud83d"), MARK + whole + b"\r\n"):
        assert shared.client.post(path, content=sent).status_code == 200, sent
    for broken, cause in (
        (b"", "it is empty"),
        (whole[:-1] + b",}", f"trailing comma in object, at byte {len(whole)}"),
        (b'{"a": NaN}', "NaN and Infinity are not JSON, at byte 6"),
        (whole[:-1], f"it ends too early, at byte {len(whole) - 1}"),
    ):
        reply = shared.client.post(path, content=broken)
        assert reply.status_code == 400 and cause in reply.text


@pytest.mark.parametrize("path", [*BODIES, "conversation"])
def test_numbers_out_of_range_are_no_failure(shared: Served, path: str) -> None:
    """Anywhere in a body: in a field that is known, in one that is not, and inside of messages."""
    body: dict[str, Any] = BODIES["/v1/messages"] if path == "conversation" else BODIES[path]
    path = "/tokenize" if path == "conversation" else path
    for more in ({"unknown": "#"}, {"model": "#"}, {"messages": [{"role": "user", "x": "#"}]}):
        whole = json.dumps({"model": "tiny", **body, **more}).replace('"#"', "-1e999").encode()
        reply = shared.client.post(path, content=whole)
        assert reply.status_code in (200, 400), reply.text


def test_f20_json_inside_of_a_body(shared: Served) -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a":"\\ud83d"}'},
    }
    messages = [
        {"role": "user", "content": "say hello"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "say hello"},
    ]
    asked = {"model": "tiny", "max_tokens": 8, "messages": messages}
    assert shared.client.post("/v1/chat/completions", json=asked).status_code == 200
    call["function"] = {"name": "f", "arguments": '{"a":}'}
    reply = shared.client.post("/v1/chat/completions", json=asked)
    assert reply.status_code == 200, "a call of the past is read as text"


@pytest.mark.parametrize("key", [{}, {"idempotency-key": "a"}])
def test_a_worker_without_folders_does_not_take_them(
    shared: Served, monkeypatch: pytest.MonkeyPatch, key: dict[str, str]
) -> None:
    """While the worker that has them does not run."""
    place = shared.server.place
    monkeypatch.setattr(shared.server, "place", msgspec.structs.replace(place, worker=1, workers=2))
    asked = {"requests": [{"custom_id": "a", "params": BODIES["/v1/messages"]}]}
    files = {"file": ("a.txt", b"a", "text/plain")}
    for reply in (
        shared.client.get("/v1/files"),
        shared.client.post("/v1/files", files=files, headers=key),
        shared.client.post("/v1/messages/batches", json=asked, headers=key),
    ):
        check_real(reply, "worker_unavailable", envelope_of(reply.request.url.path))
        assert float(reply.headers["retry-after"]) > 0


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed", "/api/embeddings"])
def test_embeddings_are_told_not_to_be_there(shared: Served, path: str) -> None:
    reply = shared.client.post(path, json={"model": "tiny", "input": "a"})
    check_real(reply, "embeddings", envelope_of(path))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param("POST", "/v1/batches", id="F31-create"),
        pytest.param("GET", "/v1/batches", id="F31-list"),
        pytest.param("GET", "/v1/batches/batch_1", id="F31-retrieve"),
        pytest.param("POST", "/v1/batches/batch_1/cancel", id="F31-cancel"),
        pytest.param("POST", "/v1/responses/compact", id="F31-compact"),
    ],
)
def test_what_openai_has_besides_is_told_not_to_be_there(
    shared: Served, method: str, path: str
) -> None:
    reply = shared.client.request(method, path, json={} if method == "POST" else None)
    error = reply.json()["error"]
    assert reply.status_code == 404 and error["code"].endswith("_not_offered")
    assert set(error) == {"message", "type", "param", "code"}
    assert shared.client.get("/v1/responses/compact").status_code == 405


def test_f31_a_file_of_another_api_is_told_not_to_be_taken(shared: Served) -> None:
    reply = shared.client.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", b"{}")}
    )
    assert reply.status_code == 404 and "/v1/messages/batches" in reply.json()["error"]["message"]
    kept = shared.client.post("/v1/files", files={"file": ("a.txt", b"a", "text/plain")})
    assert kept.status_code == 200


def test_f31_tokens_of_a_response_are_counted(shared: Served) -> None:
    asked = {"model": "tiny", "input": "say hello", "instructions": "Be brief."}
    counted = shared.client.post("/v1/responses/input_tokens", json=asked).json()
    answered = shared.client.post("/v1/responses", json=asked).json()
    assert counted["object"] == "response.input_tokens"
    assert counted["input_tokens"] == answered["usage"]["input_tokens"]
    assert shared.client.get("/v1/responses/input_tokens").status_code == 405


# ---- what causes them ----------------------------------------------------------------------------
def test_another_version_of_http_is_refused(shared: Served) -> None:
    with shared.connect() as sock:
        raw = exchange_bytes(sock, b"GET /livez HTTP/2.0\r\nhost: localhost\r\n\r\n")
    assert raw.status == 400
    check_content(raw.json, raw.headers["request-id"], "unsupported_version", "messages")


def test_tools_that_cannot_be(shared: Served) -> None:
    tool = {"name": "f", "input_schema": {"type": "object"}}
    reply = shared.message(tools=[tool, tool])
    check_error(reply, 400, "tools.1.name: two tools have the name f")
    property_schema = {"type": "string", "pattern": "(?=a)b"}
    schema = {"type": "object", "properties": {"a": property_schema}}
    reply = shared.message(tools=[{**tool, "input_schema": schema, "strict": True}])
    error = check_error(reply, 400, "tools.0.input_schema.")
    assert "a strict schema has to be enforced whole" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_enforced_is_told_in_a_header(shared: Served, stream: bool) -> None:
    """Places only: what a client wrote there is percent-encoded."""
    part = {"type": "string", "pattern": "(?=a)b"}
    schema = {"type": "object", "properties": {"a": part, "é, b": part}}
    tool = {"name": "f", "input_schema": schema}
    for asked, path in (
        ({"tools": [tool]}, "tools.0.input_schema"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
            "output_config.format.schema",
        ),
    ):
        reply = shared.message(stream=stream, **asked)
        told = [f"{path}.properties.{name}.pattern" for name in ("a", "%C3%A9%2C%20b")]
        assert reply.status_code == 200 and reply.headers["x-schema-relaxed"] == ", ".join(told)
    plain = {"name": "f", "input_schema": {"type": "object"}}
    assert "x-schema-relaxed" not in shared.message(stream=stream, tools=[plain]).headers


def test_a_conversation_beyond_what_is_rendered(
    shared: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def render(*given: Any, **options: Any) -> None:
        raise TemplateLimitError

    monkeypatch.setattr(type(shared.server.model.template), "render", render)
    check_error(shared.message(), 400, "messages: this conversation exceeds")


def test_files_have_a_number(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sublimate.api.files.store.FILES_PER_OWNER_MAX", 0)
    reply = shared.client.post("/v1/files", files={"file": ("a.txt", b"a", "text/plain")})
    check_real(reply, "too_many_files", "shared")


def test_a_model_that_does_not_load() -> None:
    with serve() as served:
        served.call(lambda: served.server.engine_lost("load_failed", "It is cut short."))
        reply = served.message()
        check_error(reply, 503, "The model could not be loaded.")
        assert reply.json()["finding"] == "It is cut short."


def test_threads_are_refused_with_the_code_that_sdks_know(shared: Served) -> None:
    error = check_error(shared.message(thread={"type": "create"}), 400, "thread: ")
    assert error["details"]["error_code"] == "thread_unsupported_request"


CAUSES = {
    "threads": "error_shapes::threads_are_refused_with_the_code_that_sdks_know",
    "too_early": "early_data::what_costs_is_425_and_taken_after_the_handshake",
    "idempotency_key": "idempotency::a_key_that_is_none_or_anothers_is_refused",
    "idempotency_form": "idempotency::a_call_and_a_request_share_their_answer_and_their_error",
    "idempotency_mismatch": "idempotency::a_key_that_is_none_or_anothers_is_refused",
    "call_unknown": "grpc::unimplemented_method_and_service",
    "call_timeout_field": "grpc_mapping::what_is_no_timeout",
    "call_compressed": "grpc_mapping::a_prefix_is_refused_before_anything_is_kept",
    "call_framing": "grpc_mapping::a_prefix_is_refused_before_anything_is_kept",
    "call_too_large": "grpc_mapping::a_prefix_is_refused_before_anything_is_kept",
    "call_message": "grpc::what_is_no_message_of_the_method",
    "message_fields": "grpc_mapping::fields_of_a_message_are_counted_before_it_is_parsed",
    "call_one_message": "grpc::one_message_is_taken",
    "call_no_service": "grpc::health",
    "call_not_described": "grpc::reflection_answers_in_order",
    "call_deadline": "grpc_calls::a_deadline_is_the_servers_too",
    "call_encoding": "grpc_calls::a_coding_of_messages_is_refused",
    "call_content_type": "grpc_calls::another_content_type_is_415",
    "call_slow_reader": "grpc::a_client_that_does_not_read_costs_a_bound",
    "malformed_request": "wire::doubtful_framing_is_refused_and_closes",
    "unsupported_version": "error_shapes::another_version_of_http_is_refused",
    "unsupported_transfer_encoding": "wire::doubtful_framing_is_refused_and_closes",
    "chunk_overhead": "wire::one_byte_chunks_are_refused",
    "headers_too_large": "wire::large_heads_are_431",
    "target_too_long": "wire::long_targets_are_414",
    "headers_too_slow": "wire::a_trickled_head_ends_at_the_absolute_deadline",
    "body_too_slow": "files::a_slow_or_cut_upload_leaves_nothing",
    "request_too_large": "error_shapes::each_route_errs_in_its_envelope",
    "body_encoding": "coding::other_codings_are_refused_as_ever",
    "body_not_gzip": "coding::what_is_no_gzip_is_400",
    "body_too_large_decoded": "coding::a_bomb_is_413_before_it_is_a_body",
    "charset": "errors::compressed_bodies_and_other_charsets",
    "too_many_connections": "wire::few_of_the_refused_may_stay",
    "unauthenticated": "operations::every_route_but_the_open_ones_needs_a_key",
    "rate_limited": "batches::a_limit_of_requests_a_minute_is_waited_for",
    "too_many_at_once": "keys::requests_at_once_and_a_client_that_leaves_frees_its_place",
    "origin_refused": "operations::cors_by_default_takes_pages_of_this_machine_only",
    "host_refused": "operations::a_foreign_host_is_a_typed_error",
    "batches_elsewhere": "error_shapes::what_openai_has_besides_is_told_not_to_be_there",
    "compaction": "error_shapes::what_openai_has_besides_is_told_not_to_be_there",
    "embeddings": "error_shapes::embeddings_are_told_not_to_be_there",
    "not_offered": "ollama::f32_models_are_not_changed_through_the_api",
    "not_found": "error_shapes::each_route_errs_in_its_envelope",
    "base_url": "errors::routes",
    "method": "error_shapes::each_route_errs_in_its_envelope",
    "unknown_batch": "batches::tenants_and_limits_are_those_of_the_key",
    "batch_runs": "batches::cancel_ends_what_runs_and_what_waits",
    "unknown_file": "files::a_file_is_its_owners",
    "file_too_large": "files::limits_say_what_to_do",
    "files_too_large": "files::limits_say_what_to_do",
    "too_many_files": "error_shapes::files_have_a_number",
    "data_in_use": "batches::a_folder_in_use_costs_only_batches",
    "worker_unavailable": "error_shapes::a_worker_without_folders_does_not_take_them",
    "data_unavailable": "batches::a_folder_that_cannot_be_used_is_a_typed_error",
    "key_removed": "batches::a_removed_key_ends_its_batches",
    "unknown_lease": "legacy::a_lease_holds_once_and_only_here",
    "legacy_unavailable": "legacy::without_its_broker_it_says_so_and_the_server_goes_on",
    "unknown_request": "debug::an_unknown_id_is_a_typed_error",
    "too_many_followers": "debug::followers_are_bounded",
    "unknown_model": "errors::an_unknown_model_is_named",
    "item_not_found": "client_tools::f22_an_unknown_item_is_a_404_that_names_it",
    "response_not_found": "responses::responses_are_kept_for_their_owner",
    "previous_response_not_found": "responses::responses_are_kept_for_their_owner",
    "invalid_utf8": "error_shapes::bad_json_is_told_in_the_envelope_of_the_route",
    "invalid_json": "error_shapes::bad_json_is_told_in_the_envelope_of_the_route",
    "json_too_deep": "errors::bodies_that_are_no_json",
    "json_too_many": "errors::bodies_that_are_no_json",
    "field": "errors::field_errors_name_their_path",
    "tool_name_conflict": "error_shapes::tools_that_cannot_be",
    "strict_schema": "error_shapes::tools_that_cannot_be",
    "prompt_too_long": "messages::a_prompt_far_beyond_the_context_costs_little",
    "template_limit": "error_shapes::a_conversation_beyond_what_is_rendered",
    "profile_missing": "messages::the_strict_contract_wants_a_profile",
    "profile_pinned": "messages::a_pinned_server_names_both_profiles",
    "overloaded": "operations::beyond_the_queue_it_is_529",
    "draining": "operations::drain_ends_streams_at_its_limit",
    "engine_unavailable": "messages::count_tokens_needs_no_engine_and_no_context",
    "hardware_not_supported": "operations::an_engine_that_will_not_come_back_says_why",
    "model_not_loaded": "several_models::a_model_that_cannot_be_loaded_is_a_503_and_tried_again",
    "load_failed": "error_shapes::a_model_that_does_not_load",
    "engine_tripped": "standing::a_tripped_engine_takes_nothing_new_and_ends_what_it_has",
    "fallback_refused": "fallback::a_request_that_the_other_does_not_take_is_a_400_from_our_table",
    "fallback_form": "fallback_forms::an_answer_without_a_form_leaves_the_other_server_in_use",
    "fallback_lost": "fallback::a_stream_that_breaks_ends_with_an_event_from_our_table",
    "engine_lost": "operations::a_lost_engine_is_told_to_everybody_at_once",
    "constraint_failed": "edge_masks::an_answer_that_cannot_be_held_ends_with_an_error",
    "generation_failed": "edge_stream::the_last_text_comes_before_the_one_error",
    "internal": "errors::a_bug_in_a_handler_is_an_internal_error",
}
"""A test of what brings each row about: file and name, without test_."""


def test_every_row_has_a_test_of_what_causes_it() -> None:
    assert set(CAUSES) == set(ERRORS)
    for place in CAUSES.values():
        file, _, name = place.partition("::")
        files = (ROOT / "tests").rglob(f"test_{file}.py")
        texts = [path.read_text(encoding="utf-8") for path in files]
        assert any(f"def test_{name}(" in text for text in texts), place
