"""Sampling parameters as other servers' clients write them, on every surface: whole floats, values
that mean "off" or "no limit", and many long stop strings."""

from collections.abc import Iterator
from typing import Any

import pytest

from harness import Served, serve

MESSAGES = [{"role": "user", "content": "say stop"}]
CHAT = "/v1/chat/completions"
SURFACES: dict[str, dict[str, Any]] = {
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 40},
    CHAT: {"messages": MESSAGES},
    "/v1/completions": {"prompt": "say stop"},
    "/v1/responses": {"input": "say stop"},
}
OLLAMA: dict[str, dict[str, Any]] = {
    "/api/chat": {"messages": MESSAGES, "stream": False},
    "/api/generate": {"prompt": "say stop", "stream": False},
}
NUMBERS: dict[str, Any] = {"top_k": 20.0, "seed": 42.0, "temperature": 0}
LIMIT_NAMES = {"/v1/responses": "max_output_tokens"}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve() as served:
        yield served


def ask(server: Served, path: str, **fields: Any) -> Any:
    reply = server.client.post(path, json={"model": "tiny", **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize("path", [pytest.param(path, id=f"F29-{path}") for path in SURFACES])
def test_whole_floats_are_integers(server: Served, path: str) -> None:
    limit = {LIMIT_NAMES.get(path, "max_tokens"): 5.0}
    answer = ask(server, path, **{**SURFACES[path], **NUMBERS, **limit})
    usage = answer["usage"]
    assert usage.get("output_tokens", usage.get("completion_tokens")) == 5
    for name in ("top_k", "seed"):
        asked = {"model": "tiny", **SURFACES[path], name: 1.5}
        reply = server.client.post(path, json=asked)
        assert reply.status_code == 400 and f"{name}: expected an integer" in reply.text


@pytest.mark.parametrize("path", [pytest.param(path, id=f"F29-{path}") for path in OLLAMA])
def test_ollama_options_are_as_loose_as_ollama(server: Served, path: str) -> None:
    options = {**NUMBERS, "num_predict": 5.0}
    assert ask(server, path, **OLLAMA[path], options=options)["eval_count"] == 5
    loose = {"top_p": 0, "top_k": -1, "temperature": 3, "stop": ["", "STOP"]}
    for limit in (-1, -2):
        answer = ask(server, path, **OLLAMA[path], options={**loose, "num_predict": limit})
        assert answer["done_reason"] == "stop"


@pytest.mark.parametrize("path", [pytest.param(path, id=f"F29-{path}") for path in SURFACES])
def test_off_values_of_other_servers_are_taken(server: Served, path: str) -> None:
    fields = {**SURFACES[path], "top_p": 0, "top_k": -1}
    if path != "/v1/messages":
        fields[LIMIT_NAMES.get(path, "max_tokens")] = -1
    ask(server, path, **fields)
    for name, value in (("top_p", -0.5), ("top_k", -5)):
        reply = server.client.post(path, json={"model": "tiny", **fields, name: value})
        assert reply.status_code == 400 and name in reply.text


def test_f29_a_limit_of_minus_one_is_no_limit(server: Served) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        answer = ask(server, CHAT, messages=[{"role": "user", "content": "count"}], **{name: -1})
        assert answer["usage"]["completion_tokens"] > 1000
    reply = server.client.post(CHAT, json={"model": "tiny", "messages": MESSAGES, "max_tokens": -5})
    assert reply.status_code == 400


@pytest.mark.parametrize(
    ("path", "name"),
    [
        pytest.param("/v1/messages", "stop_sequences", id="F28-messages"),
        pytest.param(CHAT, "stop", id="F28-chat"),
    ],
)
def test_many_long_stop_strings(server: Served, path: str, name: str) -> None:
    stops = [f"{number:04d}" * 256 for number in range(63)] + ["STOP"]
    assert len(stops) == 64 and len(stops[0]) == 1024
    answer = ask(server, path, **SURFACES[path], **{name: ["", *stops, ""]})
    assert "A B" in str(answer) and "STOP C" not in str(answer)
    for wrong in ([*stops, "one more"], ["x" * 1025]):
        asked = {"model": "tiny", **SURFACES[path], name: wrong}
        reply = server.client.post(path, json=asked)
        assert reply.status_code == 400 and name in reply.text


def test_f28_an_empty_stop_string_stops_nothing(server: Served) -> None:
    answer = ask(server, CHAT, messages=MESSAGES, stop="")
    assert answer["choices"][0]["message"]["content"] == "A B STOP C"
