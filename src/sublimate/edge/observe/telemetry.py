"""Traces and metrics for an OpenTelemetry collector: a server span per request with a child for
each of queue, prefill and decode, and the metrics of the GenAI conventions. No text of anybody.

The event loop puts one record of numbers and names per request into a bounded queue. A thread of
its own makes spans of them; the SDK's threads send these. Without the extra `otel` nothing of it is
imported, and without an endpoint nothing of it runs.

defines: Telemetry, open_telemetry
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import ConfigError
from ..sampling import INT32_MAX
from .timing import NS_PER_SECOND

if TYPE_CHECKING:
    from ..exchange import Exchange
    from ..stream import Answer

LOG = logging.getLogger("sublimate.telemetry")
PROVIDER = "sublimate"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
SIGNALS = ("traces", "metrics")
RECORDS_MAX = 4096
"""On the way to the thread; what is more is dropped and counted."""
CLOSE_SECONDS = 2.0
"""How long the end waits for what is on its way."""
PATH_CHARACTERS_MAX = 256
SERVER_ERROR = 500
BROKEN = frozenset(("engine_lost", "internal", "draining", "generation_failed"))
"""Errors of ours, also where the head of a stream had said 200."""
# Bucket edges as the conventions advise.
DURATION_EDGES = tuple(0.01 * 2**power for power in range(14))
FIRST_TOKEN_EDGES = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
PER_TOKEN_EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKEN_EDGES = tuple(float(4**power) for power in range(14))


class _Record(msgspec.Struct, frozen=True):
    """One request that has ended. Times are nanoseconds of the Unix clock."""

    method: str
    path: str
    status: int
    error: str
    """Why it has no whole answer; empty: it has."""
    parent: dict[str, str]
    """traceparent and tracestate, as they came."""
    began_ns: int
    ended_ns: int
    stages: tuple[tuple[str, int, int], ...]
    """Name, begin and end of each that was reached."""
    attributes: dict[str, Any]
    """gen_ai.*: of a request that the engine took."""
    first_token_seconds: float
    token_seconds: float
    """Per token after the first; 0 if there is none."""


class Telemetry:
    """Of one server. `note` is the event loop's; it never waits."""

    def __init__(self, exporting: _Exporting) -> None:
        self.dropped = 0
        self._exporting = exporting
        self._records: SimpleQueue[_Record | threading.Event | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="telemetry", daemon=True)
        self._thread.start()

    def note(self, exchange: Exchange, answer: Answer | None) -> None:
        """A request has been answered, or will never be."""
        if self._records.qsize() >= RECORDS_MAX:
            self.dropped += 1
            return
        self._records.put(_record(exchange, answer))

    def flush(self, seconds: float) -> bool:
        """Send all that was noted; False if that took too long. Not for the event loop."""
        done = threading.Event()
        self._records.put(done)
        return done.wait(seconds)

    def close(self) -> None:
        """Send what is left, within a bound."""
        self._records.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        while (record := self._records.get()) is not None:
            if isinstance(record, threading.Event):
                self._exporting.flush()
                record.set()
                continue
            try:
                self._exporting.export(record)
            except Exception:
                LOG.exception("a span could not be made")
        self._exporting.close()


def _record(exchange: Exchange, answer: Answer | None) -> _Record:
    now_ns = time.monotonic_ns()
    wall_ns = time.time_ns() - now_ns
    request = exchange.request
    names = (b"traceparent", b"tracestate")
    began = exchange.started_seconds
    error = exchange.error_code
    first_token = per_token = 0.0
    stages: tuple[tuple[str, int, int], ...] = ()
    attributes: dict[str, Any] = {}
    if answer is not None:
        if not error and answer.is_broken:
            error = answer.stop_reason
        if answer.first_token_seconds:
            first_token = answer.first_token_seconds - began
        if answer.first_token_seconds and answer.output_tokens > 1:
            since = now_ns / NS_PER_SECOND - answer.first_token_seconds
            per_token = since / (answer.output_tokens - 1)
        stages = tuple(
            (name, begin + wall_ns, end + wall_ns) for name, begin, end in _stages(answer, now_ns)
        )
        attributes = _attributes(answer, first_token)
    return _Record(
        method=request.method,
        path=request.path[:PATH_CHARACTERS_MAX],
        status=exchange.status,
        error=error,
        parent={n.decode(): request.field(n) for n in names if n in request.fields},
        began_ns=int(began * NS_PER_SECOND) + wall_ns,
        ended_ns=now_ns + wall_ns,
        stages=stages,
        attributes=attributes,
        first_token_seconds=first_token,
        token_seconds=per_token,
    )


def _stages(answer: Answer, now_ns: int) -> list[tuple[str, int, int]]:
    """By the loop's clock if the answer went all the way, else as far as the edge has seen it."""
    marks = answer.timing.engine_ns()
    if marks is None:
        begin = answer.timing.prepared_ns()
        seen = (answer.admitted_seconds, answer.first_token_seconds)
        reached = [int(seconds * NS_PER_SECOND) for seconds in seen if seconds]
        marks = (begin, *reached, now_ns)
    names = ("queue", "prefill", "decode")
    return [(n, b, max(b, e)) for n, b, e in zip(names, marks, marks[1:], strict=False)]


def _attributes(answer: Answer, first_token_seconds: float) -> dict[str, Any]:
    generation = answer.generation
    sampling = generation.sampling
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "text_completion" if generation.raw_prompt else "chat",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": generation.model_name,
        "gen_ai.request.stream": generation.stream,
        "gen_ai.response.id": answer.message_id,
        "gen_ai.response.model": generation.model_name,
        "gen_ai.usage.input_tokens": answer.prompt_tokens,
        "gen_ai.usage.output_tokens": answer.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": answer.cached_tokens,
    }
    if sampling.max_tokens < INT32_MAX:
        attributes["gen_ai.request.max_tokens"] = sampling.max_tokens
    if sampling.stop_sequences:
        attributes["gen_ai.request.stop_sequences"] = [str(s) for s in sampling.stop_sequences]
    if not answer.is_broken:
        attributes["gen_ai.response.finish_reasons"] = [answer.stop_reason]
    if generation.stream and first_token_seconds:
        attributes["gen_ai.response.time_to_first_chunk"] = first_token_seconds
    return attributes


class _Exporting:
    """The SDK, on the thread of Telemetry."""

    def __init__(self, endpoints: Mapping[str, str | None], version: str, service: bool) -> None:
        """endpoints: signal -> URL; None: the exporter reads it from the environment. service: name
        it, as the environment does not. Raises ImportError without the extra."""
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        named = {"service.name": PROVIDER} if service else {}
        resource = Resource.create({**named, "service.version": version})
        self._propagator = TraceContextTextMapPropagator()
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        if "traces" in endpoints:
            exporter = OTLPSpanExporter(endpoint=endpoints["traces"])
            self._traces.add_span_processor(BatchSpanProcessor(exporter))
        readers: list[Any] = []
        if "metrics" in endpoints:
            metrics = OTLPMetricExporter(endpoint=endpoints["metrics"])
            readers.append(PeriodicExportingMetricReader(metrics))
        self._meters = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        self._tracer = self._traces.get_tracer("sublimate", version)
        meter = self._meters.get_meter("sublimate", version)

        def histogram(name: str, unit: str, edges: tuple[float, ...]) -> Any:
            return meter.create_histogram(
                name, unit, explicit_bucket_boundaries_advisory=list(edges)
            )

        server = "gen_ai.server."
        self._duration = histogram(server + "request.duration", "s", DURATION_EDGES)
        self._first = histogram(server + "time_to_first_token", "s", FIRST_TOKEN_EDGES)
        self._per_token = histogram(server + "time_per_output_token", "s", PER_TOKEN_EDGES)
        self._usage = histogram("gen_ai.client.token.usage", "{token}", TOKEN_EDGES)

    def export(self, record: _Record) -> None:
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        attributes = {
            "http.request.method": record.method,
            "url.path": record.path,
            **record.attributes,
        }
        if record.status:
            attributes["http.response.status_code"] = record.status
        if record.error:
            attributes["error.type"] = record.error
        operation = record.attributes.get("gen_ai.operation.name")
        name = f"{operation} {record.attributes['gen_ai.request.model']}" if operation else ""
        span = self._tracer.start_span(
            name or record.method,
            context=self._propagator.extract(record.parent),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=record.began_ns,
        )
        if record.status >= SERVER_ERROR or record.error in BROKEN:
            span.set_status(StatusCode.ERROR, record.error)
        inside = set_span_in_context(span)
        for stage, began_ns, ended_ns in record.stages:
            child = self._tracer.start_span(stage, context=inside, start_time=began_ns)
            child.end(ended_ns)
        span.end(record.ended_ns)
        if operation:
            self._measure(record)

    def _measure(self, record: _Record) -> None:
        kept = ("operation.name", "provider.name", "request.model", "response.model")
        labels = {f"gen_ai.{name}": record.attributes[f"gen_ai.{name}"] for name in kept}
        for kind in ("input", "output"):
            tokens = record.attributes[f"gen_ai.usage.{kind}_tokens"]
            self._usage.record(tokens, {**labels, "gen_ai.token.type": kind})
        if record.error:
            labels["error.type"] = record.error
        self._duration.record((record.ended_ns - record.began_ns) / NS_PER_SECOND, labels)
        if record.first_token_seconds:
            self._first.record(record.first_token_seconds, labels)
        if record.token_seconds:
            self._per_token.record(record.token_seconds, labels)

    def flush(self) -> None:
        self._traces.force_flush()
        self._meters.force_flush()

    def close(self) -> None:
        self._traces.shutdown()
        self._meters.shutdown()


class _Once(logging.Handler):
    """What the SDK says of a collector that it cannot reach, once and not per try."""

    has_told = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING and not self.has_told:
            self.has_told = True
            LOG.warning("telemetry is not delivered (told once): %s", record.getMessage())


def open_telemetry(endpoint: str, version: str, environment: Mapping[str, str]) -> Telemetry | None:
    """To an OTLP/HTTP endpoint, or to that of the usual OTEL_* variables; None: there is none.
    Raises ConfigError if one is set and the extra is missing."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    chosen: dict[str, str | None] = {}
    for signal in SIGNALS:
        own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"
        if environment.get(f"OTEL_{signal.upper()}_EXPORTER", "") == "none":
            continue
        if endpoint:
            chosen[signal] = f"{endpoint.rstrip('/')}/v1/{signal}"
        elif environment.get(ENDPOINT) or environment.get(own):
            chosen[signal] = None
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"otlp_endpoint = {endpoint!r}: expected a URL with http or https.")
    if not chosen:
        return None
    is_named = "OTEL_SERVICE_NAME" in environment or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    sdk = logging.getLogger("opentelemetry")
    sdk.handlers[:] = [_Once()]
    sdk.propagate = False
    try:
        return Telemetry(_Exporting(chosen, version, not is_named))
    except ImportError:
        hint = "OpenTelemetry needs an extra: pip install 'sublimate[otel]'."
        if endpoint:
            raise ConfigError(f"otlp_endpoint = {endpoint!r}: {hint}") from None
        LOG.warning("The OTEL_* variables name an endpoint. %s", hint)
        return None
