"""Numbers for Prometheus: what the edge measures itself, and the loop's counters from its region.

Names and bucket edges are those that dashboards for this kind of server already use, with our
prefix. What is of one model has its name as label.

defines: ModelFigures, Metrics, merged
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..._core import Histogram
from ...families import new_counter, new_gauge, new_info
from . import compat
from .answer_metrics import PREFIX, AnswerMetrics, counters, histogram_family

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    from ..engine import EngineLink

PARTS_PER_MILLION = 1_000_000
NS_PER_S = 1e9
HANDSHAKE_EDGES = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

# Counters of the loop: field of its stats page -> (metric, help).
LOOP_COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of admitted requests."),
    "generated_tokens": ("generation_tokens", "Tokens generated."),
    "drafted_tokens": ("spec_decode_num_draft_tokens", "Tokens guessed and checked in a step."),
    "accepted_drafts": ("spec_decode_num_accepted_tokens", "Guessed tokens that were right."),
    "cached_tokens": ("prefix_cache_hits", "Prompt tokens that came from the prefix cache."),
    "accepted": ("requests_accepted", "Records taken from the rings."),
    "finished": ("requests_finished", "Terminal events published."),
    "cancelled_queue": ("cancelled_in_queue", "Requests cancelled while they waited."),
    "cancelled_prefill": ("cancelled_in_prefill", "Requests cancelled in prefill."),
    "cancelled_decode": ("cancelled_in_decode", "Requests cancelled in decode."),
    "stale_cancels": ("stale_cancels", "Cancels that met no request."),
    "refused": ("requests_refused", "Requests that the loop refused."),
    "failed": ("requests_failed", "Requests that failed in the model."),
    "mask_waits": ("mask_waits", "Rows that were computed before their token mask was there."),
    "ring_full_waits": ("ring_full_waits", "Steps that waited for room in the token ring."),
}
WHOLE_COUNTERS = {
    "step_count": ("steps", "Steps of the loop."),
    "evictions": ("evictions", "Pages evicted from the prefix cache."),
}
LOOP_GAUGES = {
    "running": ("num_requests_running", "Requests that hold pages."),
    "waiting": ("num_requests_waiting", "Requests accepted and not admitted."),
}
WHOLE_GAUGES = {
    "pages_total": ("kv_pages", "Pages of keys and values."),
    "pages_free": ("kv_pages_free", "Pages on the free list."),
    "pages_cached": ("kv_pages_cached", "Pages without an owner that can still be found."),
    "pages_reserved": ("kv_pages_reserved", "Pages promised and not yet taken."),
    "last_step_rows": ("step_rows", "Rows of the last step."),
}


class ModelFigures(Protocol):
    """One model, as far as numbers are told of it."""

    name: str
    metrics: AnswerMetrics

    @property
    def links(self) -> Sequence[EngineLink]:
        """Its engines that serve now."""
        ...

    def families(self, labels: dict[str, str]) -> Iterator[Any]:
        """More, with the labels of the model."""
        ...


class Metrics:
    """All numbers of one edge. The library that writes them is loaded when they are asked for."""

    def __init__(
        self, models: Callable[[], Sequence[ModelFigures]], compat_names: str = ""
    ) -> None:
        """models: the main one first, with whose name is told what is of no single model.
        compat_names: "vllm" tells everything that vLLM has under its names too."""
        self._compat_names = compat_names
        self.responses: Counter[str] = Counter()
        self.fallbacks: Counter[tuple[str, str]] = Counter()
        """Of decisions, by reason and by where the request went instead."""
        self.streams: Counter[str] = Counter()
        self.protocols: Counter[str] = Counter()
        """Of answers, as wires call them."""
        self.handshake = Histogram(HANDSHAKE_EDGES)
        """Of QUIC, from a connection's first datagram."""
        self.handshakes: Counter[str] = Counter()
        """full, resumed, early: resumed with requests in the first flight."""
        self.calls: Counter[tuple[str, str]] = Counter()
        """Of gRPC, by transport and how they ended."""
        self.connections = 0
        self.connections_refused = 0
        self.load_utilization_ppm = 0
        """Share of the roofline in the last whole second under load; 0 before the first."""
        self.worker: str | None = None
        """Of several, this one."""
        self.answers: Callable[[], int] = lambda: 0
        self.parts: list[Callable[[dict[str, str]], Iterator[Any]]] = []
        """More families, each told the labels of all."""
        self._models = models

    def exposition(self) -> bytes:
        from prometheus_client.exposition import generate_latest

        return generate_latest(self._registry)

    @property
    def content_type(self) -> str:
        from prometheus_client.exposition import CONTENT_TYPE_LATEST

        return CONTENT_TYPE_LATEST

    @cached_property
    def _registry(self) -> CollectorRegistry:
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(cast(Any, self))  # it asks for `collect` alone
        return registry

    # ---- collector -----------------------------------------------------------------------------
    def collect(self) -> Iterator[Any]:
        families = list(self._families())
        yield from families
        if self._compat_names == "vllm":
            yield from compat.vllm_families(families)

    def _families(self) -> Iterator[Any]:
        models = self._models()
        labels = self._labels(models[0])
        yield from self._edge_families(labels)
        load = self.load_utilization_ppm / PARTS_PER_MILLION
        text = "Share of the measured roofline, last second that had load."
        yield _gauge("engine_utilization_under_load", text, load, labels)
        for part in self.parts:
            yield from part(labels)
        yield from _joined(family for model in models for family in self._model_families(model))

    def _labels(self, model: ModelFigures) -> dict[str, str]:
        labels = {"model_name": model.name, "engine": "0"}
        if self.worker is not None:
            labels["worker"] = self.worker
        return labels

    def _model_families(self, model: ModelFigures) -> Iterator[Any]:
        """Of its answers and of its engines. What is one figure of an engine, and not of what this
        edge has to do with it, the edge of the same worker tells."""
        labels = self._labels(model)
        yield from model.metrics.families(labels)
        yield from model.families(labels)
        for engine in model.links:
            mine = {**labels, "engine": str(engine.worker)}
            yield from _loop_families(engine, mine)
            if self.worker in (None, str(engine.worker)):
                yield from _whole_families(engine, mine)

    def _edge_families(self, labels: dict[str, str]) -> Iterator[Any]:
        text = "First datagram to end of handshake."
        yield histogram_family("quic_handshake_seconds", text, self.handshake, labels)
        yield _fallbacks(self.fallbacks, labels)
        yield counters("http_responses", "Answers by status.", "status", self.responses, labels)
        text = "Answers that were streams, by content type."
        yield counters("http_streams", text, "content_type", self.streams, labels)
        text = "Answers by what carried them."
        yield counters("http_protocol_responses", text, "protocol", self.protocols, labels)
        text = "Handshakes of QUIC; early: with requests before its end."
        yield counters("quic_handshakes", text, "kind", self.handshakes, labels)
        yield _gauge("http_connections", "Open connections.", self.connections, labels)
        text = "Connections refused as too many were open."
        yield _counter("http_connections_refused", text, self.connections_refused, labels)
        yield _gauge("answers_open", "Requests between submission and end.", self.answers(), labels)
        calls = new_counter(
            PREFIX + "grpc_calls", "Calls by end.", labels=[*labels, "transport", "end"]
        )
        for (transport, end), count in sorted(self.calls.items()):
            calls.add_metric([*labels.values(), transport, end], count)
        yield calls


def _joined(families: Iterable[Any]) -> list[Any]:
    """Each family once, with the samples of all that have it."""
    known: dict[str, Any] = {}
    for family in families:
        first = known.setdefault(family.name, family)
        if first is not family:
            first.samples += family.samples
    return list(known.values())


def _fallbacks(values: Counter[tuple[str, str]], labels: dict[str, str]) -> CounterMetricFamily:
    text = "Requests that did not get memory for keys and values, by where they went instead."
    names = [*labels, "reason", "to"]
    family = new_counter(PREFIX + "layer_fallback", text, labels=names)
    for (reason, to), count in sorted(values.items()):
        family.add_metric([*labels.values(), reason, to], count)
    return family


def _counter(name: str, text: str, value: float, labels: dict[str, str]) -> CounterMetricFamily:
    family = new_counter(PREFIX + name, text, labels=labels)
    family.add_metric(list(labels.values()), value)
    return family


def _gauge(name: str, text: str, value: float, labels: dict[str, str]) -> GaugeMetricFamily:
    family = new_gauge(PREFIX + name, text, labels=labels)
    family.add_metric(list(labels.values()), value)
    return family


def _loop_families(engine: EngineLink, labels: dict[str, str]) -> Iterator[Any]:
    """Of the requests that this edge has given to it."""
    stats = engine.stats()
    for field, (name, text) in LOOP_COUNTERS.items():
        yield _counter(name, text, stats[field], labels)
    yield _counter(
        "prefix_cache_queries", "Prompt tokens looked up.", stats["prompt_tokens"], labels
    )
    yield _counter("num_preemptions", "Always 0: admission reserves.", 0, labels)
    for field, (name, text) in LOOP_GAUGES.items():
        yield _gauge(name, text, stats[field], labels)
    yield _gauge(
        "slots_in_use", "Slots of ring memory with a request.", engine.slots_in_use, labels
    )
    text = "Native time from records to frames."
    yield _counter("text_seconds", text, engine.text_seconds, labels)
    yield _counter("text_tokens", "Tokens in that time.", engine.text_tokens, labels)
    yield from engine.reservations.families(labels)


def _whole_families(engine: EngineLink, labels: dict[str, str]) -> Iterator[Any]:
    """Of the engine, whoever has given it what it does."""
    stats = engine.stats()
    for field, (name, text) in WHOLE_COUNTERS.items():
        yield _counter(name, text, stats[field], labels)
    for field, (name, text) in WHOLE_GAUGES.items():
        yield _gauge(name, text, stats[field], labels)
    total = max(1, stats["pages_total"])
    used = total - stats["pages_free"] - stats["pages_cached"]
    yield _gauge("kv_cache_usage_perc", "Share of pages with an owner.", used / total, labels)
    share = stats["utilization_ppm"] / PARTS_PER_MILLION
    yield _gauge(
        "engine_utilization", "Share of the measured roofline, last second.", share, labels
    )
    launch = "From the start of the loop's turn to that of its plan, of all steps."
    yield _counter("plan_launch_seconds", launch, stats["launch_ns"] / NS_PER_S, labels)
    info = new_info(PREFIX + "cache_config", "Pages.", labels=labels)
    pages = {"block_size": engine.page_tokens, "num_gpu_blocks": total}
    info.add_metric(list(labels.values()), {name: str(value) for name, value in pages.items()})
    yield info


def merged(expositions: Sequence[bytes]) -> bytes:
    """Several as one: each family once, with the samples of all."""
    families: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    for text in expositions:
        name = b""
        for line in text.splitlines():
            if line.startswith(b"# HELP "):
                name = line.split(b" ", 3)[2]
            if not line.startswith(b"#"):
                samples.setdefault(name, []).append(line)
            elif line not in families.setdefault(name, []):
                families[name].append(line)
    lines = [line for name in families for line in (*families[name], *samples.get(name, []))]
    return b"\n".join(lines) + b"\n"
