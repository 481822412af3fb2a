"""The numbers once more under the names, labels and bucket edges of vLLM's metrics, for dashboards
that exist (`--metrics-compat vllm`).

defines: vllm_families
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric, Timestamp
    from prometheus_client.samples import Sample

OURS, THEIRS = "sublimate_", "vllm:"
NAMES = frozenset(
    (
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
        *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions"),
        *("prompt_tokens", "generation_tokens", "request_success", "cache_config"),
        *("time_to_first_token_seconds", "inter_token_latency_seconds"),
        *("e2e_request_latency_seconds", "request_queue_time_seconds"),
        *("request_inference_time_seconds", "request_prefill_time_seconds"),
        "request_decode_time_seconds",
    )
)
FIRST_TOKEN_EDGES = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_EDGES = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
REQUEST_EDGES = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
EDGES = {
    "time_to_first_token_seconds": FIRST_TOKEN_EDGES,
    "inter_token_latency_seconds": INTER_TOKEN_EDGES,
}
REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}
"""Theirs for our ends; all others are "abort"."""


def vllm_families(families: Iterable[Metric]) -> Iterator[Metric]:
    """Of those that vLLM has, in its shape. Cumulative buckets lose edges and stay true."""
    from prometheus_client.core import Metric  # loaded by then: there are families

    for family in families:
        name = family.name.removeprefix(OURS)
        if name not in NAMES:
            continue
        made = Metric(THEIRS + name, family.documentation, family.type)
        samples = family.samples
        if name == "request_success":
            samples = _by_reason(samples)
        edges = {str(edge) for edge in EDGES.get(name, REQUEST_EDGES)} | {"+Inf"}
        for sample in samples:
            if sample.labels.get("le", "+Inf") in edges:
                renamed = THEIRS + sample.name.removeprefix(OURS)
                made.samples.append(sample._replace(name=renamed))
        yield made


def _by_reason(samples: list[Sample]) -> list[Sample]:
    from prometheus_client.samples import Sample

    sums: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0})
    labels: dict[str, str] = {}
    name = OURS + "request_success_total"
    timestamp: Timestamp | float | None = None
    for sample in samples:
        labels = sample.labels
        sums[REASONS.get(labels["finished_reason"], "abort")] += int(sample.value)
    return [
        Sample(name, {**labels, "finished_reason": reason}, count, timestamp)
        for reason, count in sorted(sums.items())
        if labels
    ]
