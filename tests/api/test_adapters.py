"""LoRA adapters over all surfaces: a request's model names one, the lists tell them, and what was
read with one is nothing to another.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from harness import Served, body, serve, wait_until
from sublimate.config import EdgeSettings
from sublimate.control.channel import Message, ModelPlace
from sublimate.edge.loading import OnDemand
from sublimate.errors import ConfigError
from test_errors import check_error

LONG = "say hello " + "and again " * 20
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    settings = EdgeSettings(aliases=("claude-sonnet-4-5=sql",))
    with serve(adapters=("sql", "support"), settings=settings) as served:
        yield served
        wait_until(served.idle)
        assert served.engine.audit() == ""


def submitted(served: Served, path: str, asked: dict[str, Any]) -> tuple[int, str, Any]:
    """(adapter of the record, model of the answer, the answer)."""
    engine = served.server.engine
    assert engine is not None
    seen: list[int] = []
    submit = engine.submit

    def spied(request: Any, *more: Any) -> Any:
        seen.append(request.adapter)
        return submit(request, *more)

    engine.submit = spied
    try:
        reply = served.client.post(path, json=asked)
    finally:
        del engine.submit
    assert reply.status_code == 200, reply.text
    return seen[0], reply.json()["model"], reply.json()


@pytest.mark.parametrize(
    ("model", "adapter", "answered"),
    [
        ("tiny", 0, "tiny"),
        ("default", 0, "tiny"),
        ("claude-opus-4-1", 0, "tiny"),
        ("sql", 1, "sql"),
        ("tiny:sql", 1, "sql"),
        ("support", 2, "support"),
        ("claude-sonnet-4-5", 1, "sql"),
    ],
)
def test_a_requests_model_names_its_adapter(
    server: Served, model: str, adapter: int, answered: str
) -> None:
    said = submitted(server, "/v1/messages", body(model=model))
    assert said[:2] == (adapter, answered) and said[2]["content"][0]["text"] == "Hello there!"
    messages = [{"role": "user", "content": "say hello"}]
    asked = {"model": model, "messages": messages, "max_tokens": 16}
    assert submitted(server, CHAT, asked)[:2] == (adapter, answered)
    asked = {"model": model, "prompt": "say hello", "max_tokens": 16}
    assert submitted(server, "/v1/completions", asked)[:2] == (adapter, answered)
    asked = {"model": model, "input": "say hello"}
    assert submitted(server, "/v1/responses", asked)[:2] == (adapter, answered)
    asked = {"model": f"{model}:latest", "messages": messages, "stream": False}
    assert submitted(server, "/api/chat", asked)[:2] == (adapter, f"{model}:latest")


@pytest.mark.parametrize("model", ["sq", "sql:tiny", "tiny:", "tiny:nothing", "/etc", "../x"])
def test_other_names_are_unknown_as_ever(server: Served, model: str) -> None:
    check_error(server.message(model=model), 404, f"model: {model}")


def test_the_lists_tell_adapters_and_their_model(server: Served) -> None:
    data = server.client.get("/v1/models").json()["data"]
    parents = {each["id"]: each["parent"] for each in data}
    assert parents == {
        "tiny": None,
        "claude-tiny": None,
        "sql": "tiny",
        "support": "tiny",
        "claude-sonnet-4-5": "tiny",
    }
    one = server.client.get("/v1/models/tiny:sql").json()
    assert one["parent"] == "tiny" and one["display_name"] == "sql"
    tags = server.client.get("/api/tags").json()["models"]
    told = {each["name"]: each["details"]["parent_model"] for each in tags}
    assert told == {"tiny:latest": "", "sql:latest": "tiny", "support:latest": "tiny"}
    assert len({each["digest"] for each in tags}) == 3
    shown = server.client.post("/api/show", json={"model": "sql"}).json()
    assert shown["modelfile"] == "FROM tiny\nADAPTER sql\n"
    running = server.client.get("/api/ps").json()["models"]
    assert [each["name"] for each in running] == ["tiny:latest"]


def test_a_cached_prefix_is_that_of_its_adapter() -> None:
    with serve(adapters=("sql", "support")) as served:

        def cached(model: str) -> int:
            usage = served.message(LONG, model=model).json()["usage"]
            return int(usage["cache_read_input_tokens"])

        assert [cached(model) for model in ("tiny", "sql", "support")] == [0, 0, 0]
        found = [cached(model) for model in ("tiny", "sql", "tiny:sql", "support")]
        assert min(found) > 100 and len(set(found)) == 1
        assert served.engine.audit() == ""


def test_another_adapter_is_another_model_to_the_diagnostics(server: Served) -> None:
    begun = {"previous_message_id": None}
    first = server.message(LONG, model="sql", diagnostics=begun).json()["id"]
    messages = [
        {"role": "user", "content": LONG},
        {"role": "assistant", "content": "Hello there!"},
        {"role": "user", "content": "say hello"},
    ]
    reasons = [
        server.message(
            ..., model=model, messages=messages, diagnostics={"previous_message_id": first}
        ).json()["diagnostics"]
        for model in ("sql", "support")
    ]
    assert "model_changed" not in str(reasons[0]) and "model_changed" in str(reasons[1])


@pytest.mark.parametrize("name", ["tiny", "default", "sql", "claude-tiny"])
def test_a_name_that_is_taken_is_refused(server: Served, name: str) -> None:
    models = server.server.models
    with pytest.raises(ConfigError, match=f"lora '{name}': a model is called so"):
        models.add_adapters(models.main, [name])


def test_a_name_that_two_models_use_means_the_first_ones() -> None:
    told: list[Message] = []
    main = ModelPlace(name="tiny", path="", adapters=("sql",))
    other = ModelPlace(name="other", path="/nowhere", adapters=("chat", "sql"))
    with serve(on_demand=OnDemand(main=main, more=(other,), tell=told.append)) as served:
        found = {
            name: served.server.models.resolve(name)
            for name in ("sql", "tiny:sql", "other:sql", "chat", "other:chat")
        }
        names = {name: (each.parent, each.name, each.adapter) for name, each in found.items()}
        assert names == {
            "sql": ("tiny", "sql", 1),
            "tiny:sql": ("tiny", "sql", 1),
            "other:sql": ("other", "other:sql", 2),
            "chat": ("other", "chat", 1),
            "other:chat": ("other", "chat", 1),
        }
        data = served.client.get("/v1/models").json()["data"]
        assert {"sql", "other:sql", "chat"} <= {each["id"] for each in data}
