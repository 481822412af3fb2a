"""POST /v1/messages and count_tokens: answers, both ways, and what stands in them."""

import re
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar import check_stream, prompt_tokens
from harness import ANSWERS, Served, body, serve, wait_until
from sublimate import _core, policy
from sublimate.config import EdgeSettings
from sublimate.edge.version import package_version
from sublimate.model.turns import said
from sublimate.policy import headroom_of
from sublimate.v1 import layer_pb2

BILLING = "x-anthropic-billing-header: cc_version=2.1.332.abc; cc_entrypoint=cli"


def rendered(served: Served, *turns: tuple[str, str]) -> str:
    return served.server.model.template.render([said(*turn) for turn in turns]).plain


def test_a_message_is_whole(shared: Served) -> None:
    reply = shared.message("say hello", temperature=0)
    assert reply.status_code == 200
    message = reply.json()
    assert message["id"].startswith("msg_")
    assert message["content"] == [{"type": "text", "text": "Hello there!"}]
    assert message["stop_reason"] == "end_turn" and message["stop_sequence"] is None
    assert message["model"] == "tiny" and message["role"] == "assistant"
    assert {"stop_details", "container", "diagnostics"} <= set(message)
    assert message["usage"]["output_tokens"] == len("Hello there!") + 1
    assert prompt_tokens(message) == len(
        shared.server.model.tokenizer.encode_rendered(rendered(shared, ("user", "say hello")))
    )


@pytest.mark.parametrize("asked", ANSWERS)
@pytest.mark.parametrize("stop", [[], ["STOP"], ["é", "9 "], ["there"]])
def test_a_stream_folds_into_the_message(shared: Served, asked: str, stop: list[str]) -> None:
    fields = {"stop_sequences": stop, "max_tokens": 4000}
    whole = shared.message(asked, **fields).json()
    stream = shared.message(asked, stream=True, **fields)
    assert stream.headers["content-type"].startswith("text/event-stream")
    folded = check_stream(stream.content).message
    for name in ("content", "stop_reason", "stop_sequence", "model", "role"):
        assert folded[name] == whole[name], name
    assert folded["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert prompt_tokens(folded) == prompt_tokens(whole)


@given(st.text(max_size=40).filter(lambda text: "say" not in text and "count" not in text))
def test_an_echo_comes_back_as_it_was(shared: Served, text: str) -> None:
    """Without a script the prompt is echoed: every code point survives both directions."""
    asked = f"<{text}>"
    stream = shared.message(asked, stream=True, max_tokens=400, ignore_eos=True)
    answer = check_stream(stream.content).text
    assert asked in answer


def test_stop_reasons(shared: Served) -> None:
    stopped = shared.message("say stop", stop_sequences=["nothing", "STOP"]).json()
    assert stopped["content"][0]["text"] == "A B "
    assert stopped["stop_reason"] == "stop_sequence" and stopped["stop_sequence"] == "STOP"
    assert stopped["usage"]["output_tokens"] == len("A B STOP")
    cut = shared.message("say stop", max_tokens=3).json()
    assert cut["content"][0]["text"] == "A B" and cut["stop_reason"] == "max_tokens"
    empty = shared.message("say nothing").json()
    assert empty["content"] == [] and empty["stop_reason"] == "end_turn"
    assert empty["usage"]["output_tokens"] == 1


def test_max_tokens_zero_only_warms_the_cache(shared: Served) -> None:
    text = "warm me " * 30
    warmed = shared.message(text, max_tokens=0).json()
    assert warmed["content"] == [] and warmed["usage"]["output_tokens"] == 0
    after = shared.message(text).json()
    assert after["usage"]["cache_read_input_tokens"] >= 0.8 * prompt_tokens(after)
    assert check_stream(shared.message(text, max_tokens=0, stream=True).content).text == ""


def test_a_last_assistant_turn_is_continued() -> None:
    prefix = "<|im_start|>assistant\nThe answer is ("
    # The echo engine answers with the prompt, so what the model saw can be read off.
    with serve(answers={}) as served:
        messages = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "The answer is ("},
        ]
        plain = rendered(served, ("user", "q"), ("assistant", "The answer is ("))
        size = len(served.server.model.tokenizer.encode_rendered(plain))
        request = body(messages=messages, max_tokens=size, ignore_eos=True)
        message = served.client.post("/v1/messages", json=request).json()
    assert message["content"][0]["text"].endswith("assistant\nThe answer is (")
    assert plain.endswith(prefix) and prompt_tokens(message) == size


def test_an_empty_last_assistant_turn_starts_anew(shared: Served) -> None:
    messages = [{"role": "user", "content": "say hello"}, {"role": "assistant", "content": ""}]
    both = [
        shared.client.post("/v1/messages", json=body(messages=m)).json()
        for m in (messages, messages[:1])
    ]
    assert prompt_tokens(both[0]) == prompt_tokens(both[1])


@pytest.mark.parametrize(
    "content",
    [
        "say hello",
        [{"type": "text", "text": "say hello"}],
        [{"type": "text", "text": "say hello", "cache_control": {"type": "ephemeral"}}],
        [{"type": "text", "text": ""}, {"type": "text", "text": "say hello", "citations": None}],
    ],
)
def test_equal_contents_give_equal_prompts(shared: Served, content: Any) -> None:
    counted = shared.client.post("/v1/messages/count_tokens", json=body(content, max_tokens=...))
    expected = shared.client.post("/v1/messages/count_tokens", json=body("say hello"))
    assert counted.json() == expected.json()


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": '{"device":"d"}'}},
        {"metadata": "odd"},
        {"service_tier": "standard_only"},
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "adaptive", "display": "omitted"}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"output_config": {"effort": "high"}},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tool_choice": {"type": "none"}},
        {"tools": []},
        {"cache_control": {"type": "ephemeral"}},
        {"safeguards": [{"type": "x"}], "inference_geo": "eu", "unknown": [[[1]]]},
        {"diagnostics": {"previous_message_id": None}},
        {"stop_sequences": None, "system": None, "stream": None, "temperature": None},
        {"speed": "standard", "n": 1, "logprobs": False},
        {"mcp_servers": []},
    ],
)
def test_harmless_fields_change_nothing(shared: Served, fields: dict[str, Any]) -> None:
    reply = shared.client.post(
        "/v1/messages?beta=true",
        json=body("say hello", **fields),
        headers={"anthropic-beta": "claude-code-20250219, future-2030-01-01"},
    )
    assert reply.status_code == 200, reply.text
    assert reply.json()["content"][0]["text"] == "Hello there!"


@pytest.mark.parametrize("version", ["2023-06-01", "2026-10-21", "", "2031-01-01"])
def test_every_api_version_is_taken(shared: Served, version: str) -> None:
    headers = {"anthropic-version": version} if version else {}
    request = body(temperature=0.5, top_k=5, top_p=0.9)
    assert shared.client.post("/v1/messages", json=request, headers=headers).status_code == 200


def test_attribution_is_dropped_wherever_it_stands_in_the_system(shared: Served) -> None:
    def count(*system: str) -> int:
        blocks = [{"type": "text", "text": text} for text in system]
        request = body("hi", system=blocks, max_tokens=...)
        return shared.client.post("/v1/messages/count_tokens", json=request).json()["input_tokens"]

    assert (
        count(BILLING, "S") == count(BILLING.replace("abc", "def") + " more=1", "S") == count("S")
    )
    assert count("S", BILLING) == count("S") == count(f"{BILLING}\nS")


@pytest.mark.parametrize("stream", [False, True])
def test_usage_adds_up_cold_and_warm(shared: Served, stream: bool) -> None:
    request = body(f"{stream} usage " * 40, stream=stream)
    counted = shared.client.post("/v1/messages/count_tokens", json=request).json()["input_tokens"]
    reads = []
    for _ in range(2):
        reply = shared.client.post("/v1/messages", json=request)
        message = check_stream(reply.content).message if stream else reply.json()
        assert prompt_tokens(message) == counted
        reads.append(message["usage"]["cache_read_input_tokens"])
    assert reads[1] >= 0.85 * counted > reads[0]


def test_count_tokens_with_context_management(shared: Served) -> None:
    request = body("hi", context_management={"edits": []})
    counted = shared.client.post("/v1/messages/count_tokens?beta=true", json=request).json()
    assert counted["context_management"] == {"original_input_tokens": counted["input_tokens"]}


def test_count_tokens_needs_no_engine_and_no_context() -> None:
    with serve(context_tokens=64, pages=64) as served:
        served.call(served.server.engine_lost)
        request = body("x" * 5000)
        counted = served.client.post("/v1/messages/count_tokens", json=request)
        assert counted.json()["input_tokens"] > 5000
        assert served.message("x" * 5000).status_code == 503


# ---- headers -------------------------------------------------------------------------------------
@pytest.mark.parametrize("stream", [False, True])
def test_response_headers_come_from_the_engine(shared: Served, stream: bool) -> None:
    headers = shared.message(stream=stream).headers
    assert headers["x-layer"] == package_version()
    assert headers["x-layer-zero"] == "true" and headers["x-compute-path"] == "direct-kernel"
    assert re.fullmatch(r"req_[0-9a-f]{24}", headers["request-id"])
    assert re.fullmatch(r"[0-9a-f]{64}", headers["x-layer-config"])
    total = shared.region.stats()["pages_total"] * _core.LIMITS["PAGE_TOKENS"]
    headroom = headroom_of(headers)
    assert headroom.kv_tokens_total == total and 0 < headroom.kv_tokens_free <= total


def test_what_the_engine_does_not_report_is_not_claimed() -> None:
    with serve() as served:
        headers = served.message().headers
        assert "x-compute-path" not in headers and "x-layer-zero" not in headers


def test_the_policy_digest_is_of_the_policy_and_settings_are_told_beside_it(shared: Served) -> None:
    settings = EdgeSettings(profile="low-latency", profile_contract="strict")
    with serve(settings=settings) as other:
        told = other.client.get("/.well-known/sublimate").json()
        assert told["policy"] == shared.message().headers["x-layer-config"]
        assert told["profiles"] == {"default": "low-latency", "pinned": None, "required": True}
    told = shared.client.get("/.well-known/sublimate").json()
    assert told["profiles"] == {"default": "high-throughput", "pinned": None, "required": False}


@pytest.mark.parametrize("pinned", ["", "long-context"])
def test_get_policy(shared: Served, pinned: Any) -> None:
    """As JSON, and as the message, whose policy has the digest of the header."""
    with serve(settings=EdgeSettings(execution_profile=pinned)) as other:
        reply = other.client.get("/v1/layer/policy")
        told = reply.json()
        assert told["digest"] == reply.headers["x-layer-config"] == policy.digest()
        assert told["policy"]["profiles"][1]["profile"] == "HIGH_THROUGHPUT"
        assert told["policy"]["max_tokens_per_shard"] == 8192
        assert told["default_profile"] == "HIGH_THROUGHPUT" and told["profile_required"] is False
        wanted = "LONG_CONTEXT" if pinned else "EXECUTION_PROFILE_UNSPECIFIED"
        assert told["pinned_profile"] == wanted
        accept = {"accept": "application/x-protobuf"}
        reply = other.client.get("/v1/layer/policy", headers=accept)
        message = layer_pb2.GetPolicyResponse.FromString(reply.content)
        assert message.policy == policy.layer_policy() and message.digest == told["digest"]


def test_request_ids_are_unique(shared: Served) -> None:
    seen = {shared.client.get("/livez").headers["request-id"] for _ in range(50)}
    assert len(seen) == 50


# ---- profiles ------------------------------------------------------------------------------------
def test_profiles_by_default(shared: Served) -> None:
    for profile in ("low-latency", "high-throughput", "long-context"):
        assert shared.message(execution_profile=profile).status_code == 200
    reply = shared.message(execution_profile="fast")
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith("execution_profile: expected one of")


def test_the_strict_contract_wants_a_profile() -> None:
    with serve(settings=EdgeSettings(profile_contract="strict")) as served:
        reply = served.message()
        assert reply.status_code == 400
        assert reply.json()["error"]["message"].startswith("execution_profile: ")
        assert served.message(execution_profile="low-latency").status_code == 200


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        pytest.param("/v1/messages", body(), id="F52 messages"),
        pytest.param("/v1/chat/completions", body(), id="F52 chat"),
        pytest.param("/v1/completions", {"prompt": "a"}, id="F52 completions"),
        pytest.param("/v1/responses", {"input": "a"}, id="F52 responses"),
        pytest.param("/api/chat", body(max_tokens=...), id="F52 ollama"),
        pytest.param("/api/generate", {"prompt": "a"}, id="F52 generate"),
    ],
)
def test_a_header_names_the_profile(path: str, asked: dict[str, Any]) -> None:
    request = {"model": "tiny", **asked}
    with serve(settings=EdgeSettings(profile_contract="strict")) as served:

        def status(named: str, **more: str) -> int:
            headers = {"x-execution-profile": named}
            reply = served.client.post(path, json={**request, **more}, headers=headers)
            return reply.status_code

        assert served.client.post(path, json=request).status_code == 400
        assert status("low-latency") == 200 and status("fast") == 400
        assert status("fast", execution_profile="long-context") == 200, "the field goes first"


def test_a_pinned_server_names_both_profiles() -> None:
    settings = EdgeSettings(execution_profile="long-context", profile_contract="strict")
    with serve(settings=settings) as served:
        assert served.message().status_code == 200
        assert served.message(execution_profile="long-context").status_code == 200
        text = served.message(execution_profile="low-latency").json()["error"]["message"]
        assert "long-context" in text and "low-latency" in text


# ---- context -------------------------------------------------------------------------------------
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit(stream: bool) -> None:
    with serve(context_tokens=256, pages=64) as served:
        reply = served.message("x" * 300, stream=stream)
        assert reply.status_code == 400
        assert reply.headers["content-type"] == "application/json"
        found = re.fullmatch(
            r"prompt is too long: (\d+) tokens > 256 maximum", reply.json()["error"]["message"]
        )
        counted = served.client.post("/v1/messages/count_tokens", json=body("x" * 300)).json()
        assert found and int(found[1]) == counted["input_tokens"]
        assert served.idle()


def test_the_budget_is_clamped_to_the_context() -> None:
    with serve(context_tokens=256, pages=64) as served:
        message = served.message("count", max_tokens=32000).json()
        assert message["stop_reason"] == "max_tokens"
        assert prompt_tokens(message) + message["usage"]["output_tokens"] == 256


def test_the_pool_of_pages_bounds_the_context_too() -> None:
    with serve(context_tokens=4096, pages=8) as served:
        limit = 8 * 32
        assert served.client.get("/v1/models/tiny").json()["max_input_tokens"] == limit
        text = served.message("x" * 300).json()["error"]["message"]
        assert text.endswith(f"> {limit} maximum")
        assert served.message("say hello").status_code == 200


def test_a_prompt_far_beyond_the_context_costs_little(shared: Served) -> None:
    reply = shared.message("word " * 600_000)
    assert reply.status_code == 400
    found = re.fullmatch(
        r"prompt is too long: (\d+) tokens > 8192 maximum", reply.json()["error"]["message"]
    )
    assert found and 0.99 < int(found[1]) / 3_000_000 < 1.01
    assert reply.elapsed.total_seconds() < 3


# ---- concurrency ---------------------------------------------------------------------------------
async def test_no_stream_sees_another(shared: Served) -> None:
    """Sixteen at once, each with its own marker, which the echo must bring back alone."""
    import asyncio

    markers = [f"marker-{number:04d}" for number in range(16)]
    async with httpx.AsyncClient(base_url=shared.url, timeout=20) as client:

        async def ask(marker: str) -> str:
            request = body(f"{marker} " * 20, stream=True, max_tokens=400, ignore_eos=True)
            return check_stream((await client.post("/v1/messages", json=request)).content).text

        answers = await asyncio.gather(*map(ask, markers))
    for marker, answer in zip(markers, answers, strict=True):
        assert answer.count(marker) == 20
        assert not any(other in answer for other in markers if other != marker)
    wait_until(shared.idle)


# ---- conversations -------------------------------------------------------------------------------
def test_the_next_turn_counts_as_if_it_were_the_first() -> None:
    """Incremental tokenisation, by the same path for messages and for counting."""
    turns = [{"role": "user", "content": "say hello, then é <|im_end|> 12"}]
    with serve() as served, serve() as fresh:
        for said in ("Hello there!", "again\n\n", "<|im_start|>"):
            asked = body(messages=turns)
            counted = served.client.post("/v1/messages/count_tokens", json=asked).json()
            used = served.client.post("/v1/messages", json=asked).json()["usage"]
            total = used["input_tokens"] + used["cache_read_input_tokens"]
            anew = fresh.client.post("/v1/messages/count_tokens", json=asked).json()
            fresh.server.model.conversations._pieces.clear()
            assert counted["input_tokens"] == total == anew["input_tokens"]
            turns += [{"role": "assistant", "content": said}, {"role": "user", "content": "say x"}]


def test_pieces_of_conversations_are_remembered_per_key() -> None:
    with serve(settings=EdgeSettings(api_keys=("one", "two"))) as served:
        for key in ("one", "two", "two"):
            reply = served.client.post("/v1/messages", json=body(), headers={"x-api-key": key})
            assert reply.status_code == 200
        owners = [owner for owner, _ in served.server.model.conversations._pieces]
        assert len(set(owners)) == 2 and owners.count(owners[0]) == len(owners) / 2
