"""Keys, origins, models, health, metrics, overload, drain, a lost engine."""

import re
import threading
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from grammar import check_stream, parse_events
from harness import (
    Served,
    body,
    exchange_bytes,
    http_get,
    http_post,
    is_closed,
    read_reply,
    serve,
    unchunk,
    wait_until,
)
from sublimate import _core
from sublimate.api import routes
from sublimate.config import EdgeSettings
from sublimate.edge import access
from sublimate.edge.errors import ApiError
from sublimate.edge.exchange import Request
from sublimate.edge.generate import prepare
from test_errors import check_error

KEYS = EdgeSettings(api_keys=("key-one", "key-two"))


# ---- keys ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def locked() -> Any:
    with serve(settings=KEYS) as served:
        yield served


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": "key-one"},
        {"authorization": "Bearer key-two"},
        {"authorization": "bearer  key-one"},
        {"x-api-key": "wrong", "authorization": "Bearer key-one"},
    ],
)
def test_both_key_headers_are_taken(locked: Served, headers: dict[str, str]) -> None:
    assert locked.client.post("/v1/messages", json=body(), headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-api-key": ""},
        {"x-api-key": "key-on"},
        {"x-api-key": "key-one "[:-1] + "x"},
        {"authorization": "Basic key-one"},
        {"authorization": "key-one"},
        {"authorization": "Bearer"},
    ],
)
def test_anything_else_is_401(locked: Served, headers: dict[str, str]) -> None:
    reply = locked.client.post("/v1/messages", json=body(), headers=headers)
    check_error(reply, 401, "A valid API key is needed")
    assert reply.headers["x-should-retry"] == "false"


def test_every_route_but_the_open_ones_needs_a_key(locked: Served) -> None:
    """Written out here: a path that is opened by mistake must not open the test as well."""
    methods = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
    paths = [*routes.TABLE, "/v1/models/x", "/nope", "/v1/v1/messages", "/livez/", "/LIVEZ"]
    probes = ("/", "/api/hello", "/livez", "/readyz", "/health", "/ping")
    open_paths = {(method, path) for method in ("GET", "HEAD") for path in probes}
    open_paths.add(("GET", "/.well-known/sublimate"))
    assert open_paths == access.OPEN_PATHS
    for path in paths:
        for method in methods:
            for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}):
                status = locked.client.request(method, path, headers=headers).status_code
                is_open = (method, path) in open_paths
                assert (status != 401) == is_open, (method, path, status)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:80", 200),
        ("[::1]", 200),
        ("192.168.1.7", 200),
        ("mine.test:8000", 200),
        ("evil.test", 403),
        ("evil.test:8000", 403),
        ("localhost.evil.test", 403),
        ("127.0.0.1.evil.test", 403),
        ("[::1].evil.test:80", 403),
        ("evil", 403),
    ],
)
def test_a_page_whose_name_leads_to_loopback_gets_nothing(host: str, status: int) -> None:
    fields = {b"host": host.encode()}
    rules = access.Access(EdgeSettings(allowed_hosts=("mine.test",)))
    rules.is_loopback = True
    if status == 200:
        assert allows(rules, fields)
    else:
        assert not allows(rules, fields)
    for settings in (EdgeSettings(allowed_hosts=("*",)), EdgeSettings()):
        other = access.Access(settings)
        other.is_loopback = bool(settings.allowed_hosts)
        assert allows(other, fields), "any name, or not on loopback alone"


def allows(rules: access.Access, fields: dict[bytes, bytes]) -> bool:
    """Whether a GET is let in."""
    nowhere: Any = SimpleNamespace(chunked=False)
    request = access.Request("GET", b"/v1/models", fields)
    try:
        rules.check(access.Exchange(nowhere, request))
    except ApiError as error:
        assert error.code == "host_refused"
        return False
    return True


def test_a_foreign_host_is_a_typed_error(shared: Served, locked: Served) -> None:
    for path in ("/v1/models", "/livez", "/nope", "/metrics"):
        reply = shared.client.get(path, headers={"host": "evil.test"})
        error = check_error(reply, 403, "This server has no API key")
        assert "--allowed-host" in error["message"]
    asked = {"host": "evil.test", "x-api-key": "key-one"}
    assert locked.client.get("/v1/models", headers=asked).status_code == 200, "the key says who"


def test_a_key_is_wanted_before_the_body(locked: Served) -> None:
    with locked.connect() as sock:
        head = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n"
        assert exchange_bytes(sock, head).status == 401
        assert is_closed(sock)


def test_tenants_follow_from_keys_alone() -> None:
    rules = access.Access(KEYS)
    digests = [access.Request("GET", b"/", {b"x-api-key": key}) for key in (b"key-one", b"key-two")]
    tenants = [rules.tenant(rules.owner(request).key) for request in digests]
    assert tenants[0] != tenants[1] and all(tenant.low or tenant.high for tenant in tenants)
    again = access.Access(EdgeSettings(api_keys=("key-two", "key-one")))
    assert again.tenant(again.owner(digests[0]).key) == tenants[0]
    other = access.Access(EdgeSettings(api_keys=("key-one",)))
    assert other.tenant(other.owner(digests[0]).key) != tenants[0]


def test_both_halves_of_a_tenant_stand_for_its_key() -> None:
    rules = access.Access(EdgeSettings(api_keys=("a", "b")))
    tenants = [rules.tenant(f"key {number}".encode()) for number in range(500)]
    assert len({tenant.low for tenant in tenants}) == len(tenants)
    assert len({tenant.high for tenant in tenants}) == len(tenants)
    assert all(tenant.low != tenant.high for tenant in tenants)
    others = access.Access(EdgeSettings(api_keys=("a", "c")))
    assert others.tenant(b"key 0") != tenants[0], "another server's tenants are others"


def test_one_key_never_reads_the_cache_of_another(locked: Served) -> None:
    request = body("a secret prefix " * 20)
    reads = []
    for key in ("key-one", "key-one", "key-two"):
        reply = locked.client.post("/v1/messages", json=request, headers={"x-api-key": key})
        reads.append(reply.json()["usage"]["cache_read_input_tokens"])
    assert reads[0] == 0 and reads[1] > 100 and reads[2] == 0


# ---- browsers ------------------------------------------------------------------------------------
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "x-api-key,anthropic-version,anthropic-beta,"
    "anthropic-dangerous-direct-browser-access,content-type,x-stainless-os",
}

OWN_PAGE = "http://localhost:3000"


def test_cors_by_list() -> None:
    settings = EdgeSettings(cors_origins=("https://app.test",), api_keys=("k",))
    with serve(settings=settings) as served:
        allowed = {"origin": "https://app.test", **PREFLIGHT}
        reply = served.client.options("/v1/messages", headers=allowed)
        assert reply.status_code == 204 and reply.content == b""
        assert reply.headers["access-control-allow-origin"] == "https://app.test"
        names = reply.headers["access-control-allow-headers"].split(", ")
        assert set(PREFLIGHT["access-control-request-headers"].split(",")) <= set(names)
        own = served.client.options("/v1/messages", headers={"origin": OWN_PAGE, **PREFLIGHT})
        assert own.status_code == 204, "a list adds to the pages of this machine"
        assert own.headers["access-control-allow-origin"] == OWN_PAGE
        for origin in ("https://evil.test", "http://localhost.evil", "https://app.test.evil"):
            refused = served.client.options("/v1/messages", headers={"origin": origin, **PREFLIGHT})
            check_error(refused, 403)
            assert "access-control-allow-origin" not in refused.headers
        headers = {"origin": "https://app.test", "x-api-key": "k"}
        reply = served.client.post("/v1/messages", json=body(), headers=headers)
        assert reply.status_code == 200 and reply.headers["vary"] == "origin"
        assert "request-id" in reply.headers["access-control-expose-headers"]
        wrong = served.client.post(
            "/v1/messages", json=body(), headers={"origin": headers["origin"]}
        )
        assert wrong.status_code == 401 and "access-control-allow-origin" in wrong.headers


@pytest.mark.parametrize(
    ("named", "origin", "is_taken"),
    [
        ("app://obsidian.md", "app://obsidian.md", True),
        ("app://obsidian.md", "app://other", False),
        ("app://*", "app://other", True),
        ("vscode-webview://", "vscode-webview://1kd0s3", True),
        ("vscode-webview://*", "vscode-webview://1kd0s3", True),
        ("vscode-webview://*", "vscode-webview.evil://1", False),
        ("https://localhost", "https://localhost", True),
        ("https://localhost", "https://localhost:5173", True),
        ("https://localhost", "https://localhost.evil", False),
        ("https://localhost:5173", "https://localhost:5173", True),
        ("https://localhost:5173", "https://localhost:1", False),
        ("https://App.Example/", "https://app.example", True),
        ("https://app.example", "https://app.example.evil", False),
        ("https://app.example", "https://app.example:1", False),
        ("https://*", "https://app.example", False),
        ("null", "null", True),
    ],
)
def test_f18_origins_that_can_be_named(named: str, origin: str, is_taken: bool) -> None:
    rules = access.Access(EdgeSettings(cors_origins=(named,)))
    assert rules.origin_allowed(origin) == is_taken


ASKED = (
    "anthropic-dangerous-direct-browser-access",
    *("x-title", "http-referer", "x-stainless-os", "x-any_thing.1"),
)


def test_f18_preflight_of_a_named_origin(shared: Served) -> None:
    wanted = {
        **PREFLIGHT,
        "access-control-request-headers": ",".join((*ASKED, "a b", "c:d", "")),
        "access-control-request-private-network": "true",
    }
    with serve(settings=EdgeSettings(cors_origins=("https://app.test",))) as served:
        named = served.client.options(
            "/v1/messages", headers={"origin": "https://app.test", **wanted}
        )
        assert named.headers["access-control-allow-private-network"] == "true"
        allowed = named.headers["access-control-allow-headers"].split(", ")
        assert set(ASKED) <= set(allowed) and not {"a b", "c:d", ""} & set(allowed)
        plain = served.client.options("/v1/messages", headers={"origin": "https://app.test"})
        assert "access-control-allow-private-network" not in plain.headers
        foreign = served.client.options(
            "/v1/messages", headers={"origin": "https://b.test", **wanted}
        )
        check_error(foreign, 403)
        assert "--cors-origin" in foreign.text
        assert not [name for name in foreign.headers if name.startswith("access-control-")]


def test_cors_by_default_takes_pages_of_this_machine_only(shared: Served) -> None:
    for origin, status in (
        ("http://localhost:3000", 200),
        ("http://127.0.0.1", 200),
        ("http://localhost.evil.test", 403),
        ("https://evil.test", 403),
        ("null", 403),
    ):
        reply = shared.client.post("/v1/messages", json=body(), headers={"origin": origin})
        assert reply.status_code == status, origin


def test_cors_for_everybody() -> None:
    with serve(settings=EdgeSettings(cors_origins=("*",))) as served:
        reply = served.client.get("/v1/models", headers={"origin": "https://any.test"})
        assert reply.headers["access-control-allow-origin"] == "*"


# ---- models --------------------------------------------------------------------------------------
def test_models_have_the_fields_of_both_families(shared: Served) -> None:
    page = shared.client.get("/v1/models?limit=1000").json()
    assert page["object"] == "list" and page["has_more"] is False
    ids = [entry["id"] for entry in page["data"]]
    assert ids == ["tiny", "claude-tiny"]
    assert (page["first_id"], page["last_id"]) == (ids[0], ids[-1])
    for entry in page["data"]:
        assert entry["type"] == "model" and entry["object"] == "model"
        assert entry["lifecycle"] == "active" and entry["display_name"] == "Tiny Test"
        assert entry["max_input_tokens"] == 8192 and entry["max_tokens"] == 8192
        assert type(entry["created"]) is int and entry["created_at"].endswith("Z")
        assert entry["capabilities"]["image_input"] == {"supported": False}


def test_models_by_pages(shared: Served) -> None:
    def ask(query: str) -> tuple[list[str], bool]:
        page = shared.client.get(f"/v1/models?{query}").json()
        return [entry["id"] for entry in page["data"]], page["has_more"]

    assert ask("limit=1") == (["tiny"], True)
    assert ask("limit=1&after_id=tiny") == (["claude-tiny"], False)
    assert ask("after_id=claude-tiny") == ([], False)
    assert ask("before_id=claude-tiny&limit=5") == (["tiny"], False)
    assert ask("lifecycle[]=active&unknown=1") == (["tiny", "claude-tiny"], False)


def test_retrieve_by_id_alias_and_escaped_slash(shared: Served) -> None:
    assert shared.client.get("/v1/models/claude-tiny").json()["id"] == "claude-tiny"
    assert shared.client.get("/v1/models/claude-x%2Fy").json()["id"] == "claude-x/y"
    check_error(shared.client.get("/v1/models/org%2Fother"), 404, "model: org/other")


def test_the_target_is_split_before_it_is_decoded() -> None:
    request = Request("GET", b"/v1/models/a%2Fb%3Fc?limit=1", {})
    assert request.path == "/v1/models/a%2Fb%3Fc" and request.query == "limit=1"
    assert request.segments() == ["v1", "models", "a/b?c"]


# ---- probes --------------------------------------------------------------------------------------
def test_start_up_probes(shared: Served) -> None:
    for method, path in (("HEAD", "/"), ("GET", "/"), ("HEAD", "/api/hello")):
        reply = shared.client.request(method, path)
        assert reply.status_code == 200 and reply.content == b"" and not reply.is_redirect


def test_health_and_version(shared: Served) -> None:
    for path in ("/livez", "/readyz", "/health", "/ping"):
        assert shared.client.get(path).status_code == 200
    version = shared.client.get("/version").json()
    assert version["model"] == "tiny" and "in-place" in version["template"]


def test_health_is_the_age_of_the_last_step(
    shared: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = shared.server.engine
    assert engine is not None
    stalled = {"running": 1, "waiting": 6, "last_step_ns": 1, "oldest_waiting_ns": 10**10}
    monkeypatch.setattr(engine, "_region", FixedStats(stalled))
    assert shared.client.get("/health").status_code == 503
    ready = shared.client.get("/readyz")
    assert ready.status_code == 503 and ready.json()["reason"] == "engine_stalled"
    stuck = {"running": 0, "waiting": 1, "last_step_ns": 0, "oldest_waiting_ns": 10**10}
    monkeypatch.setattr(engine, "_region", FixedStats(stuck))
    assert shared.client.get("/health").status_code == 503
    idle = {"running": 0, "waiting": 0, "last_step_ns": 1, "oldest_waiting_ns": 0}
    monkeypatch.setattr(engine, "_region", FixedStats(idle))
    assert shared.client.get("/health").status_code == 200


class FixedStats:
    """A region whose loop says this."""

    def __init__(self, stats: dict[str, int]) -> None:
        self._stats = stats

    def stats(self) -> dict[str, int]:
        return self._stats


def test_documents_stand_alone(shared: Served) -> None:
    document = shared.client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for path, methods in routes.TABLE.items():
        if path not in ("/", "/api/hello", "/ping", "/docs", "/openapi.json"):
            told = {method.upper() for method in document["paths"][path]}
            assert told == set(methods), path
    assert document["servers"] == [{"url": shared.url}]
    reply = shared.client.get("/docs")
    assert f"curl {shared.url}/v1/messages" in reply.text
    assert "room for after the prompt" in reply.text, "max_tokens has no upper bound"
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert "<script" not in reply.text and "src=" not in reply.text
    assert reply.text.count("http") == reply.text.count(shared.url)


# ---- metrics -------------------------------------------------------------------------------------
def numbers(served: Served) -> dict[str, float]:
    families = text_string_to_metric_families(served.client.get("/metrics").text)
    return {
        sample.name + str(sample.labels.get("finished_reason", "")): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_count_what_happened() -> None:
    with serve() as served:
        served.message("say hello")
        served.message("say hello", stream=True)
        served.message("say hello", max_tokens=2)
        served.message(max_tokens=-1)
        now = numbers(served)
        assert now["sublimate_request_success_totalend_turn"] == 2
        assert now["sublimate_request_success_totalmax_tokens"] == 1
        assert now["sublimate_time_to_first_token_seconds_count"] == 3
        assert now["sublimate_e2e_request_latency_seconds_count"] == 3
        assert now["sublimate_num_requests_running"] == now["sublimate_num_requests_waiting"] == 0
        assert now["sublimate_answers_open"] == 0
        assert now["sublimate_requests_accepted_total"] == 3
        assert now["sublimate_requests_finished_total"] == 3
        assert now["sublimate_prefix_cache_hits_total"] > 0
        assert 0 <= now["sublimate_kv_cache_usage_perc"] <= 1
        text = served.client.get("/metrics").text
        assert 'model_name="tiny"' in text and "sublimate_http_responses_total" in text


def test_refusals_before_the_body_are_counted() -> None:
    with serve(settings=KEYS) as served:
        key = {"x-api-key": "key-one"}

        def counted() -> dict[str, float]:
            text = served.client.get("/metrics", headers=key).text
            families = text_string_to_metric_families(text)
            samples = [sample for family in families for sample in family.samples]
            return {
                sample.labels["status"]: sample.value
                for sample in samples
                if sample.name == "sublimate_http_responses_total"
            }

        before = counted()
        guess = {"x-api-key": "guess"}
        check_error(served.client.post("/v1/messages", json=body(), headers=guess), 401)
        check_error(served.client.post("/v1/nowhere", json=body(), headers=key), 404)
        after = counted()
    assert after["401"] - before.get("401", 0) == 1
    assert after["404"] - before.get("404", 0) == 1


def test_metrics_without_an_engine() -> None:
    with serve() as served:
        served.call(served.server.engine_lost)
        assert "sublimate_num_requests_running" not in numbers(served)


# ---- overload ------------------------------------------------------------------------------------
def test_beyond_the_queue_it_is_529() -> None:
    settings = EdgeSettings(queue_max=2)
    with serve(settings=settings, pages=16, context_tokens=512, step_delay_us=20_000) as served:
        socks = [served.connect() for _ in range(3)]
        for number, sock in enumerate(socks):
            sock.sendall(http_post(body("count", max_tokens=400, stream=True)))
            wait_until(lambda n=number: served.region.stats()["accepted"] == n + 1)
        wait_until(lambda: served.region.stats()["waiting"] == 2)
        for stream in (False, True):
            reply = served.message(stream=stream, max_tokens=400)
            error = check_error(reply, 529)
            assert error["type"] == "overloaded_error"
            assert int(reply.headers["retry-after"]) >= 1
            assert reply.headers["x-should-retry"] == "true"
        told = served.client.get("/metrics").text
        assert re.search(r'layer_fallback_total\{.*reason="oom",to="none"\} 2\.0\n', told)
        for sock in socks:
            sock.close()
        wait_until(served.idle)
        assert served.message().status_code == 200


def test_no_free_slot_is_529() -> None:
    with serve(step_delay_us=50_000) as served:

        def take_all() -> list[Any]:
            assert served.server.engine is not None
            client = served.server.engine._client
            return [client.acquire(1000) for _ in range(_core.LIMITS["SLOTS_MAX"])]

        leases = served.call(take_all)
        refused = served.message()
        check_error(refused, 529)
        assert int(refused.headers["retry-after"]) >= 1
        engine = served.server.engine
        assert engine is not None
        served.call(lambda: [engine._client.discard(slot, gen) for slot, gen, _ in leases])
        assert served.message().status_code == 200


# ---- drain ---------------------------------------------------------------------------------------
def test_drain_lets_streams_finish_and_takes_nothing_new() -> None:
    drained = threading.Event()
    with serve(step_delay_us=10_000) as served, served.connect() as sock, served.connect() as idle:
        assert exchange_bytes(idle, http_get("/livez")).status == 200
        sock.sendall(http_post(body("count", max_tokens=60, stream=True)))
        wait_until(lambda: served.region.stats()["running"] == 1)
        served.call(lambda: served.server.drain(30, drained.set))
        assert is_closed(idle), "idle connections are ended"
        reply = served.message()
        assert check_error(reply, 529)["type"] == "overloaded_error"
        assert reply.headers["connection"] == "close" and "retry-after" in reply.headers
        ready = served.client.get("/readyz")
        assert ready.status_code == 503 and ready.json()["reason"] == "draining"
        assert served.client.get("/livez").status_code == 200
        assert not drained.is_set()
        assert check_stream(read_reply(sock).body).message["stop_reason"] == "max_tokens"
        assert drained.wait(5) and is_closed(sock)


def test_drain_ends_streams_at_its_limit() -> None:
    drained = threading.Event()
    with serve(step_delay_us=10_000) as served, served.connect() as stream, served.connect() as one:
        stream.sendall(http_post(body("count", max_tokens=3000, stream=True)))
        one.sendall(http_post(body("count", max_tokens=3000)))
        wait_until(lambda: served.region.stats()["running"] == 2)
        begun = time.monotonic()
        served.call(lambda: served.server.drain(0.5, drained.set))
        reply = read_reply(stream)
        folded = check_stream(reply.body, may_fail=True)
        assert folded.error and folded.error["error"]["type"] == "overloaded_error"
        assert read_reply(one).status == 529
        assert drained.wait(5) and time.monotonic() - begun < 3
        wait_until(served.idle)


def test_drain_waits_for_requests_that_are_being_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    drained, prepared = threading.Event(), threading.Event()

    def slowly(*arguments: Any, **named: Any) -> Any:
        prepared.wait(5)
        return prepare(*arguments, **named)

    monkeypatch.setattr("sublimate.edge.generate.prepare", slowly)
    with serve() as served, served.connect() as sock:
        sock.sendall(http_post(body("x" * 20_000), "/v1/messages/count_tokens"))
        wait_until(lambda: served.call(lambda: len(served.server._tasks)) == 1)
        served.call(lambda: served.server.drain(30, drained.set))
        assert not drained.wait(0.1)
        prepared.set()
        assert read_reply(sock).json["input_tokens"] > 20_000 and drained.wait(5)


def test_drain_without_work_is_done_at_once() -> None:
    drained = threading.Event()
    with serve() as served:
        served.call(lambda: served.server.drain(30, drained.set))
        assert drained.wait(1)


# ---- a lost engine -------------------------------------------------------------------------------
def test_a_lost_engine_is_told_to_everybody_at_once() -> None:
    with serve(step_delay_us=5000) as served:
        with served.connect() as stream, served.connect() as whole:
            stream.sendall(http_post(body("count", max_tokens=3000, stream=True)))
            whole.sendall(http_post(body("count", max_tokens=3000)))
            wait_until(lambda: served.region.stats()["generated_tokens"] > 5)
            lost = time.monotonic()
            served.call(served.server.engine_lost)
            raw = b""
            while more := stream.recv(65536):
                raw += more
                if raw.endswith(b"0\r\n\r\n"):
                    break
            events = parse_events(unchunk(raw.partition(b"\r\n\r\n")[2]))
            assert events[-1].type == "error"
            assert events[-1].data["error"]["type"] == "api_error"
            reply = read_reply(whole)
            assert reply.status == 500 and reply.json["error"]["type"] == "api_error"
            assert time.monotonic() - lost < 5, "three times that if it was not told"
        refused = served.message()
        assert check_error(refused, 503)["type"] == "overloaded_error"
        assert "retry-after" in refused.headers
        assert served.client.get("/readyz").status_code == 503
        assert served.client.get("/livez").status_code == 200
        assert served.client.get("/v1/models/tiny").json()["max_input_tokens"] == 8192
        come_back(served)
        assert served.message().status_code == 200


def come_back(served: Served) -> None:
    """A fresh region, as after a restart."""
    region = _core.Region.create(served.region.vocabulary)
    served.engine.attach(region)
    served.region = region
    other = _core.Region.attach(*region.fds)
    served.call(lambda: served.server.engine_up(other, served.info))


def test_an_engine_that_will_not_come_back_says_why() -> None:
    with serve() as served:
        reason, finding = "hardware_not_supported", "This machine cannot run amx."
        served.call(lambda: served.server.engine_lost(reason, finding))
        reply = served.message()
        check_error(reply, 503, "The model cannot run on this machine.")
        assert reply.json()["reason"] == reason and reply.json()["finding"] == finding
        assert "retry-after" not in reply.headers
        assert served.client.get("/readyz").json()["reason"] == reason


def test_a_new_engine_replaces_the_old_one(shared: Served) -> None:
    with serve(step_delay_us=5000) as served, served.connect() as sock:
        sock.sendall(http_post(body("count", max_tokens=3000)))
        wait_until(lambda: served.region.stats()["running"] == 1)
        come_back(served)
        assert read_reply(sock).status == 500
        assert served.message().status_code == 200


def test_sixteen_clients_while_the_engine_comes_and_goes() -> None:
    """Every request ends with an answer or an error; none hangs."""
    with serve(step_delay_us=500) as served:
        statuses: list[int] = []

        def client() -> None:
            with httpx.Client(base_url=served.url, timeout=20) as mine:
                for _ in range(10):
                    reply = mine.post("/v1/messages", json=body("count", max_tokens=20))
                    statuses.append(reply.status_code)

        threads = [threading.Thread(target=client) for _ in range(16)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            time.sleep(0.1)
            come_back(served)
        for thread in threads:
            thread.join()
        assert len(statuses) == 160 and set(statuses) <= {200, 500, 503}
        assert statuses.count(200) > 0
        wait_until(served.idle)


def test_metrics_name_what_left_the_prefix_and_who_waited(shared: Served) -> None:
    def value(name: str, label: str) -> float:
        lines = shared.client.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith(f"sublimate_{name}{{") and label in line]
        return float(found[0].rpartition(" ")[2]) if found else 0.0

    reason = 'reason="previous_message_not_found"'
    before = value("prefix_divergences_total", reason)
    waited = value("queue_wait_seconds_count", 'profile="low-latency"')
    fields = {"diagnostics": {"previous_message_id": "msg_none"}}
    shared.message(execution_profile="low-latency", **fields)
    assert value("prefix_divergences_total", reason) == before + 1
    assert value("queue_wait_seconds_count", 'profile="low-latency"') == waited + 1
    text = shared.client.get("/metrics").text
    for name in ("pings", "cancelled_in_queue", "cancelled_in_prefill", "cancelled_in_decode"):
        assert f"\nsublimate_{name}_total{{" in text
