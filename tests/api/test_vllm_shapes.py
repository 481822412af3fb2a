"""What vLLM's users expect: /tokenize, /detokenize, its names in /metrics. And aliases, logs."""

import logging
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness import Served, body, serve
from sublimate.config import EdgeSettings
from sublimate.edge.observe import compat
from sublimate.errors import ConfigError
from test_errors import check_error
from tiny_model import ids


def test_a_text_goes_there_and_back(shared: Served) -> None:
    text = "Hi é 😸 <|im_end|>"
    got = shared.client.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert got["tokens"] == ids(text) and got["count"] == len(got["tokens"])
    assert got["max_model_len"] == 8192 and got["token_strs"][:2] == ["H", "i"]
    assert not set(got["tokens"]) & {0, 1, 2}, "text never becomes a control token"
    back = shared.client.post("/detokenize", json={"tokens": got["tokens"]})
    assert back.json() == {"prompt": text}
    special = shared.client.post("/detokenize", json={"tokens": [1, *ids("x"), 2]})
    assert special.json() == {"prompt": "<|im_start|>x<|im_end|>"}


def test_a_conversation_has_the_tokens_that_are_counted(shared: Served) -> None:
    messages = body()["messages"]
    got = shared.client.post("/tokenize", json={"model": "tiny", "messages": messages}).json()
    counted = shared.client.post(
        "/v1/messages/count_tokens", json={"model": "tiny", "messages": messages}
    )
    assert got["count"] == counted.json()["input_tokens"] and got["token_strs"] is None
    text = shared.client.post("/detokenize", json={"tokens": got["tokens"]}).json()["prompt"]
    assert text.endswith("say hello<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("path", "sent", "status", "text"),
    [
        ("/tokenize", {}, 400, "prompt: field required"),
        ("/tokenize", {"prompt": "a", "messages": []}, 400, "prompt: give either"),
        ("/tokenize", {"prompt": 1}, 400, "prompt: expected"),
        ("/tokenize", {"prompt": "a", "model": "nope"}, 404, "model: nope"),
        ("/detokenize", {}, 400, "tokens: field required"),
        ("/detokenize", {"tokens": [1, 10**9]}, 400, "tokens.1: not a token"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens.0: not a token"),
    ],
)
def test_what_cannot_be_tokenised(
    shared: Served, path: str, sent: Any, status: int, text: str
) -> None:
    check_error(shared.client.post(path, json=sent), status, text)


def families(served: Served) -> dict[str, Any]:
    text = served.client.get("/metrics").text
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_metrics_have_the_names_and_edges_of_vllm() -> None:
    with serve(settings=EdgeSettings(metrics_compat="vllm")) as served:
        served.message()
        served.message(max_tokens=2)
        found = families(served)
        for name in compat.NAMES:
            assert f"vllm:{name}" in found or f"vllm:{name}_info" in found, name
        ends = {
            sample.labels["finished_reason"]: sample.value
            for sample in found["vllm:request_success"].samples
        }
        assert ends == {"stop": 1.0, "length": 1.0, "abort": 0.0}
        for name, edges in compat.EDGES.items():
            buckets = [s for s in found[f"vllm:{name}"].samples if s.name.endswith("_bucket")]
            assert [float(s.labels["le"]) for s in buckets] == [*edges, float("inf")]
            ours = {s.labels["le"]: s.value for s in found[f"sublimate_{name}"].samples
                    if s.name.endswith("_bucket")}  # fmt: skip
            assert all(ours[s.labels["le"]] == s.value for s in buckets)
        sample = found["vllm:prompt_tokens"].samples[0]
        assert sample.labels == {"model_name": "tiny", "engine": "0"} and sample.value > 0


def test_without_the_switch_there_is_no_such_name(shared: Served) -> None:
    assert not [name for name in families(shared) if name.startswith("vllm")]


def test_aliases_are_listed_and_answered() -> None:
    settings = EdgeSettings(aliases=("claude-sonnet-4-5=default", "gpt-x=tiny"))
    with serve(settings=settings) as served:
        data = served.client.get("/v1/models").json()["data"]
        listed = {entry["id"]: entry["parent"] for entry in data}
        assert {"claude-sonnet-4-5", "gpt-x", "tiny"} <= listed.keys()
        assert (listed["gpt-x"], listed["tiny"], listed["claude-tiny"]) == ("tiny", None, None)
        assert served.client.get("/v1/models/gpt-x").json()["max_input_tokens"] == 8192
        assert served.message(model="gpt-x").status_code == 200
        models = served.server.models
        for wrong in ("x", "=default", "x=", "x=nope", "a" * 300 + "=tiny"):
            with pytest.raises(ConfigError, match="alias"):
                models.add_aliases([wrong])


@pytest.mark.parametrize("asked", [False, True])
def test_prompts_are_logged_only_if_asked(asked: bool, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "sublimate.request"),
        serve(settings=EdgeSettings(log_prompts=asked)) as served,
    ):
        reply = served.message("a very private question")
        assert reply.status_code == 200
        bodies = [getattr(record, "fields", {}) for record in caplog.records]
        told = [fields for fields in bodies if "private" in str(fields)]
        assert bool(told) == asked
        assert all(fields["request_id"] == reply.headers["request-id"] for fields in told)
