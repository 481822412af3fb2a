"""Smaller parts of the edge: limits, histograms, identifiers, requests, log lines."""

import importlib
import importlib.metadata
import io
import logging
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import serve, wait_until
from sublimate import _core
from sublimate.api.messages.answers import usage
from sublimate.config import EdgeSettings, LogSettings
from sublimate.edge import later, limits
from sublimate.edge.app import EdgeServer
from sublimate.edge.errors import ApiError
from sublimate.edge.exchange import Request, new_identifier
from sublimate.edge.generate import choose_profile
from sublimate.edge.limits import HttpLimits, limits_from_environment
from sublimate.edge.observe import log
from sublimate.edge.observe.answer_metrics import histogram_family
from sublimate.edge.routes import Routes
from sublimate.edge.version import package_version
from sublimate.errors import ConfigError


def test_limits_come_from_the_environment() -> None:
    assert limits_from_environment({}) == HttpLimits()
    changed = limits_from_environment(
        {
            "SUBLIMATE_HTTP_BODY_BYTES_MAX": "10",
            "SUBLIMATE_HTTP_HEADER_SECONDS": "1.5",
            "OTHER": "x",
        }
    )
    assert changed.body_bytes_max == 10 and changed.header_seconds == 1.5
    assert changed.header_bytes_max == HttpLimits().header_bytes_max
    for text in ("ten", "-1", "nan", "inf", "1.5"):
        with pytest.raises(ConfigError, match="SUBLIMATE_HTTP_BODY_BYTES_MAX"):
            limits_from_environment({"SUBLIMATE_HTTP_BODY_BYTES_MAX": text})


def test_limits_are_those_of_the_rules() -> None:
    known = HttpLimits()
    assert known.header_bytes_max == 16 * 1024 and known.header_fields_max == 100
    assert (known.header_seconds, known.body_seconds) == (10, 60)
    assert known.body_bytes_max == 32 << 20 and known.unsent_bytes_max == 256 * 1024
    assert known.messages_max == 10_000 and known.tools_max == 128
    assert HttpLimits(connections_max=5).connection_cap() == 5


@given(st.lists(st.floats(min_value=0, max_value=100), max_size=60))
def test_histograms_count_like_a_sorted_list(values: list[float]) -> None:
    edges = (0.1, 1.0, 10.0)
    histogram = _core.Histogram(edges)
    for value in values:
        histogram.observe(value)
    assert sum(histogram.counts) == len(values)
    samples = histogram_family("x", "text", histogram, {"a": "b"}).samples
    for edge in edges:
        found = [s.value for s in samples if s.labels.get("le") == str(edge)]
        assert found == [sum(value <= edge for value in values)]
    total = next(s.value for s in samples if s.name.endswith("_sum"))
    assert total == pytest.approx(sum(values))
    with pytest.raises(ValueError, match="ascend"):
        _core.Histogram((1.0, 0.1))


def test_identifiers() -> None:
    made = {new_identifier("req") for _ in range(1000)}
    assert len(made) == 1000 and all(len(name) == 28 for name in made)


@given(st.binary(max_size=60).filter(lambda raw: not set(raw) & set(b" \r\n\x00")))
def test_any_target_has_a_path_and_a_query(raw: bytes) -> None:
    request = Request("GET", b"/" + raw, {})
    assert request.path.startswith("/") and "?" not in request.path
    assert len(request.segments()) == request.path.count("/")
    assert (request.path + "?" + request.query).rstrip("?") == ("/" + raw.decode("latin-1")).rstrip(
        "?"
    )


def test_absolute_targets() -> None:
    assert Request("GET", b"http://h:1/a?b", {}).path == "/a"
    assert Request("GET", b"http://h", {}).path == "/"
    assert Request("OPTIONS", b"*", {}).path == "*"


def test_usage_adds_up() -> None:
    made = usage(100, 32, 7)
    assert made["input_tokens"] + made["cache_read_input_tokens"] == 100
    assert made["output_tokens"] == 7 and made["cache_creation_input_tokens"] == 0


def test_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(named: str | None, **settings: Any) -> str:
        return choose_profile(named, EdgeSettings(**settings))

    assert choose(None) == "high-throughput"
    assert choose(None, profile="low-latency") == "low-latency"
    assert choose("long-context", profile="low-latency") == "long-context"
    assert (
        choose(None, execution_profile="long-context", profile_contract="strict") == "long-context"
    )


def test_log_lines() -> None:
    for name, check in (("json", is_json), ("text", is_text)):
        log.configure(LogSettings(log_format=name))  # type: ignore[arg-type]
        logger = logging.getLogger("sublimate")
        stream = io.StringIO()
        repeats = logger.handlers[0]
        assert isinstance(repeats, log.Repeats)
        handler = repeats._handler
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(stream)
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            logging.getLogger("sublimate.edge").exception("failed")
        logging.getLogger("sublimate.request").info("%s %s", "GET", "/", extra={"fields": {"n": 1}})
        logging.getLogger("sublimate.request").debug("quiet")
        check(stream.getvalue())
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


def is_json(text: str) -> None:
    first, second = map(msgspec.json.decode, text.splitlines())
    assert first["level"] == "error" and "ZeroDivisionError" in first["exception"]
    assert second["message"] == "GET /" and second["n"] == 1


def is_text(text: str) -> None:
    assert "ZeroDivisionError" in text and text.endswith("INFO GET / n=1\n")


def test_a_path_with_braces_takes_one_part_of_any_kind() -> None:
    def handler(server: object, exchange: object) -> None:
        del server, exchange

    routes = Routes({"/a/{id}": {"GET": handler}, "/a/{id}/b": {"POST": handler}})

    def find(method: str, path: str) -> object:
        return routes.find(Request(method, path.encode(), {}))

    assert find("GET", "/a/x%2Fy?z") is find("HEAD", "/a/x") is find("POST", "/a/x/b") is handler
    for method, path, code in (
        *(("GET", path, "not_found") for path in ("/a", "/a/", "/a/x/c", "/b/x")),
        ("GET", "/a//b", "base_url"),
        ("POST", "/a/x", "method"),
    ):
        with pytest.raises(ApiError) as caught:
            find(method, path)
        assert caught.value.code == code
    for table in ({"a": {"GET": handler}}, {"/a": {}}, {"/v1/v1/a": {"GET": handler}}):
        with pytest.raises(ValueError, match=r"path of this server|takes no method"):
            Routes(table)


def test_what_few_need_is_loaded_when_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "IDLE_LOOK_SECONDS", 0.01)
    with serve() as served:
        done: list[str] = []
        text = served.server.models.main.text
        monkeypatch.setattr(text, "warm_up", lambda: done.append("text"))
        monkeypatch.setattr(later, "import_module", done.append)
        busy = True
        monkeypatch.setattr(EdgeServer, "is_busy", property(lambda _: busy))
        monkeypatch.setattr(limits, "IDLE_LOOKS_MAX", 1000)
        served.call(lambda: served.server.part(later.Later))
        time.sleep(0.1)
        assert done == []
        busy = False
        wait_until(lambda: done == ["text", *later.LATER])


def test_a_server_that_is_always_busy_loads_it_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "IDLE_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(limits, "IDLE_LOOKS_MAX", 3)
    monkeypatch.setattr(EdgeServer, "is_busy", property(lambda _: True))
    done: list[Any] = []
    monkeypatch.setattr(later, "_load", done.append)
    with serve() as served:
        served.call(lambda: served.server.part(later.Later))
        wait_until(lambda: done == [served.server.models.main.text])


def test_all_that_is_loaded_later_is_there() -> None:
    for name in later.LATER:
        assert importlib.import_module(name)


def test_the_version_is_that_of_the_installed_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As importlib.metadata tells it, which no start loads."""
    monkeypatch.setattr("sys.path", [str(tmp_path / "absent"), str(tmp_path)])
    assert package_version() == "0.0.0+source"
    for name, version in (("sublimate_other", "9"), ("sublimate", "1.2.3rc1+local")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    assert package_version() == importlib.metadata.version("sublimate") == "1.2.3rc1+local"
