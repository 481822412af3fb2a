"""Traces and metrics as a collector gets them: over OTLP/HTTP, decoded here."""

import http.server
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from harness import Served, body, http_post, serve, wait_until
from sublimate.config import EdgeSettings
from sublimate.edge.observe import telemetry
from sublimate.errors import ConfigError

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=private"}
STATUS_ERROR = 2


class Collector(http.server.ThreadingHTTPServer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.spans: list[Any] = []
        self.metrics: dict[str, list[Any]] = {}
        self.resources: list[dict[str, Any]] = []
        self.raw = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # as collectors have it: the exporter keeps its connection

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        collector: Any = self.server
        collector.raw += data
        if self.path == "/v1/traces":
            for group in ExportTraceServiceRequest.FromString(data).resource_spans:
                collector.resources.append(values(group.resource.attributes))
                collector.spans += [s for scope in group.scope_spans for s in scope.spans]
        else:
            for group in ExportMetricsServiceRequest.FromString(data).resource_metrics:
                for scope in group.scope_metrics:
                    for metric in scope.metrics:
                        collector.metrics[metric.name] = list(metric.histogram.data_points)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


def values(attributes: Any) -> dict[str, Any]:
    found = {}
    for entry in attributes:
        kind = entry.value.WhichOneof("value")
        value = getattr(entry.value, kind)
        found[entry.key] = [v.string_value for v in value.values] if "array" in kind else value
    return found


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def traced(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data = str(tmp_path_factory.mktemp("data"))
    settings = EdgeSettings(data_dir=data, otlp_endpoint=collector.url)
    with serve(settings=settings, step_delay_us=500) as running:
        yield running


@pytest.fixture
def served(traced: Served, collector: Collector) -> Served:
    assert traced.server.telemetry is not None and traced.server.telemetry.flush(10)
    collector.spans.clear()
    return traced


def told(served: Served, collector: Collector) -> list[Any]:
    """(its spans, the server's first)."""
    assert served.server.telemetry is not None and served.server.telemetry.flush(10)
    return sorted(collector.spans, key=lambda span: span.name in ("queue", "prefill", "decode"))


def test_a_trace_goes_on_through_the_official_client(
    served: Served, client: anthropic.Anthropic, collector: Collector
) -> None:
    before_ns = time.time_ns()
    with client.messages.stream(
        **body("count secretly"), stop_sequences=["50"], extra_headers=CALLER
    ) as stream:
        message = stream.get_final_message()
        echoed = {name.lower() for name in stream.response.headers}
    assert not echoed & {"traceparent", "tracestate"}
    wait_until(lambda: not served.call(lambda: served.server.answers_open))
    server, *stages = told(served, collector)
    assert (server.trace_id.hex(), server.parent_span_id.hex()) == (TRACE, PARENT)
    assert server.kind == 2 and server.name == "chat tiny" and server.status.code == 0
    found = values(server.attributes)
    first_chunk = found.pop("gen_ai.response.time_to_first_chunk")
    assert 0 < first_chunk < (server.end_time_unix_nano - server.start_time_unix_nano) / 1e9
    assert found == {
        "http.request.method": "POST",
        "url.path": "/v1/messages",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "sublimate",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.stop_sequences": ["50"],
        "gen_ai.response.id": message.id,
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": [message.stop_reason],
        "gen_ai.usage.input_tokens": message.usage.input_tokens
        + (message.usage.cache_read_input_tokens or 0),
        "gen_ai.usage.output_tokens": message.usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": message.usage.cache_read_input_tokens,
    }
    assert [span.name for span in sorted(stages, key=lambda s: s.start_time_unix_nano)] == [
        "queue",
        "prefill",
        "decode",
    ]
    assert before_ns <= server.start_time_unix_nano <= server.end_time_unix_nano <= time.time_ns()
    for span in stages:
        assert span.parent_span_id == server.span_id and span.trace_id == server.trace_id
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        assert server.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= server.end_time_unix_nano
    assert collector.resources[-1]["service.name"] == "sublimate"
    assert b"secretly" not in collector.raw


def test_errors_have_their_type(served: Served, collector: Collector) -> None:
    served.message(temperature=9)
    served.client.get("/v1/models")
    served.client.get("/livez")
    bad, models = told(served, collector)
    assert values(bad.attributes)["error.type"] == "field" and bad.status.code == 0
    assert values(bad.attributes)["http.response.status_code"] == 400
    assert values(models.attributes)["url.path"] == "/v1/models" and bad.name == "POST"
    assert "error.type" not in values(models.attributes)


def test_who_leaves_and_what_is_lost(served: Served, collector: Collector) -> None:
    with served.connect() as sock:
        sock.sendall(http_post(body("count", stream=True, max_tokens=5000)))
        while b"content_block_delta" not in sock.recv(1 << 16):
            pass
    wait_until(lambda: not served.call(lambda: served.server.answers_open))
    gone, *stages = told(served, collector)
    assert values(gone.attributes)["error.type"] == "client_gone" and gone.status.code == 0
    assert {span.name for span in stages} == {"queue", "prefill", "decode"}
    collector.spans.clear()
    with served.connect() as sock:
        sock.sendall(http_post(body("count", stream=True, max_tokens=5000)))
        while b"content_block_delta" not in sock.recv(1 << 16):
            pass
        answers = served.call(lambda: list(served.server._answers))
        served.call(answers[0].engine_lost)
    lost = told(served, collector)[0]
    assert values(lost.attributes)["error.type"] == "engine_lost"
    assert lost.status.code == STATUS_ERROR


def test_metrics_of_the_conventions(served: Served, collector: Collector) -> None:
    usage = served.message("count").json()["usage"]
    told(served, collector)
    names = ("request.duration", "time_to_first_token", "time_per_output_token")
    for name in names:
        points = collector.metrics[f"gen_ai.server.{name}"]
        assert all(point.count and point.sum > 0 for point in points)
        assert all(values(p.attributes)["gen_ai.request.model"] == "tiny" for p in points)
    tokens = {
        values(point.attributes)["gen_ai.token.type"]: point
        for point in collector.metrics["gen_ai.client.token.usage"]
    }
    assert tokens["output"].sum >= usage["output_tokens"] and tokens["input"].sum > 0
    assert list(tokens["input"].explicit_bounds)[:3] == [1, 4, 16]


def test_a_collector_that_is_away_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]  # and nobody listens there any more
    environment = {"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    settings = EdgeSettings(otlp_endpoint=f"http://127.0.0.1:{port}")
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.INFO):
        for name, value in environment.items():
            patch.setenv(name, value)
        with serve(settings=settings) as served:
            for _ in range(3):
                assert served.message().status_code == 200

            def lines() -> list[str]:
                return [r.getMessage() for r in caplog.records if r.name == "sublimate.telemetry"]

            wait_until(lambda: len(lines()) > 0)
            assert served.message().status_code == 200
        assert len(lines()) == 1 and "not delivered" in lines()[0]


def test_it_is_off_unless_asked_for(shared: Served) -> None:
    assert shared.server.telemetry is None
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    for environment in (
        {},
        {**endpoint, "OTEL_SDK_DISABLED": "true"},
        {**endpoint, "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"},
    ):
        assert telemetry.open_telemetry("", "1", environment) is None


def test_without_the_extra(caplog: pytest.LogCaptureFixture) -> None:
    def missing(*arguments: Any) -> None:
        raise ImportError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(telemetry, "_Exporting", missing)
        with pytest.raises(ConfigError, match=r"sublimate\[otel\]"):
            telemetry.open_telemetry("http://127.0.0.1:9", "1", {})
        with pytest.raises(ConfigError, match="expected a URL"):
            telemetry.open_telemetry("127.0.0.1:9", "1", {})
        environment = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9"}
        assert telemetry.open_telemetry("", "1", environment) is None
    assert "sublimate[otel]" in caplog.text


def test_a_full_queue_drops_and_counts(shared: Served) -> None:
    release = threading.Event()

    class Slow:
        def export(self, record: Any) -> None:
            release.wait(10)

        def close(self) -> None:
            """Nothing."""

    slow: Any = Slow()
    filled = telemetry.Telemetry(slow)
    exchange: Any = type("Exchange", (), {})()
    exchange.request = type("Request", (), {"method": "GET", "path": "/", "fields": {}})()
    exchange.started_seconds, exchange.error_code, exchange.status = time.monotonic(), "", 200
    begun = time.monotonic()
    for _ in range(telemetry.RECORDS_MAX + 10):
        filled.note(exchange, None)
    assert filled.dropped in (9, 10) and time.monotonic() - begun < 5
    release.set()
    filled.close()
