"""What the answers of one model have taken, for Prometheus. Names and edges as in metrics.py.

What happens once per stream and step, the gaps between tokens, the core observes itself.

defines: AnswerMetrics, histogram_family, counters, PREFIX
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..._core import Histogram
from ...config import PROFILES, Profile
from ...families import new_counter, new_histogram
from . import compat

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    from ..stream import Answer

PREFIX = "sublimate_"
# Finer where streams of one's own machine are, and every edge of compat.py among them.
FIRST_TOKEN_EDGES = compat.FIRST_TOKEN_EDGES
INTER_TOKEN_EDGES = (0.001, 0.0025, 0.005, *compat.INTER_TOKEN_EDGES)
REQUEST_EDGES = (0.01, 0.05, 0.1, *compat.REQUEST_EDGES)


def histogram_family(
    name: str, text: str, histogram: Histogram, labels: dict[str, str]
) -> HistogramMetricFamily:
    """With cumulative buckets."""
    total = 0
    buckets: list[tuple[str, float]] = []
    edges = (*map(str, histogram.edges), "+Inf")
    for edge, count in zip(edges, histogram.counts, strict=True):
        total += count
        buckets.append((edge, float(total)))
    family = new_histogram(PREFIX + name, text, labels=labels)
    family.add_metric(list(labels.values()), buckets, histogram.sum)
    return family


def counters(
    name: str, text: str, label: str, values: Counter[str], labels: dict[str, str]
) -> CounterMetricFamily:
    """One sample for each value of a label."""
    family = new_counter(PREFIX + name, text, labels=[*labels, label])
    for value, count in sorted(values.items()):
        family.add_metric([*labels.values(), value], count)
    return family


class AnswerMetrics:
    """Of one model."""

    def __init__(self) -> None:
        self.first_token = Histogram(FIRST_TOKEN_EDGES)
        self.inter_token = Histogram(INTER_TOKEN_EDGES)
        """Written by the engine link's client."""
        self.end_to_end = Histogram(REQUEST_EDGES)
        self.queue = Histogram(REQUEST_EDGES)
        self.inference = Histogram(REQUEST_EDGES)
        self.prefill = Histogram(REQUEST_EDGES)
        self.decode = Histogram(REQUEST_EDGES)
        self.ends: Counter[str] = Counter()
        self.queue_by_profile: dict[Profile, Histogram] = {
            profile: Histogram(REQUEST_EDGES) for profile in PROFILES
        }
        """The profile is what decides who goes first."""
        self.divergences: Counter[str] = Counter()
        self.relaxations: Counter[str] = Counter()
        """Of schemas: those of the model's grammars."""
        self.pings = 0

    def count_answer(self, answer: Answer, now_seconds: float) -> None:
        """A complete answer."""
        begun, admitted = answer.exchange.started_seconds, answer.admitted_seconds
        self.end_to_end.observe(now_seconds - begun)
        queued = max(0.0, admitted - begun)
        self.queue.observe(queued)
        self.queue_by_profile[answer.generation.profile].observe(queued)
        self.inference.observe(now_seconds - admitted)
        if answer.first_token_seconds:
            self.prefill.observe(answer.first_token_seconds - admitted)
            self.decode.observe(now_seconds - answer.first_token_seconds)

    def count_end(self, reason: str) -> None:
        self.ends[reason] += 1

    def families(self, labels: dict[str, str]) -> Iterator[Any]:
        """With the labels of the model."""
        named = (
            ("time_to_first_token_seconds", "Receipt to first token.", self.first_token),
            ("inter_token_latency_seconds", "Between events with tokens.", self.inter_token),
            ("e2e_request_latency_seconds", "Receipt to end.", self.end_to_end),
            ("request_queue_time_seconds", "Receipt to admission.", self.queue),
            ("request_inference_time_seconds", "Admission to end.", self.inference),
            ("request_prefill_time_seconds", "Admission to first token.", self.prefill),
            ("request_decode_time_seconds", "First token to end.", self.decode),
        )
        for name, text, histogram in named:
            yield histogram_family(name, text, histogram, labels)
        yield counters("request_success", "Ends by reason.", "finished_reason", self.ends, labels)
        yield _by_profile(self.queue_by_profile, labels)
        text = "Prompts that left the one before them, by what was not as it was."
        yield counters("prefix_divergences", text, "reason", self.divergences, labels)
        text = "What grammars leave out of schemas, by keyword or bound, once per schema."
        yield counters("grammar_relaxations", text, "reason", self.relaxations, labels)
        pings = new_counter(PREFIX + "pings", "Pings sent.", labels=labels)
        pings.add_metric(list(labels.values()), self.pings)
        yield pings


def _by_profile(
    histograms: dict[Profile, Histogram], labels: dict[str, str]
) -> HistogramMetricFamily:
    name, text = "queue_wait_seconds", "Receipt to admission, by execution profile."
    family = new_histogram(PREFIX + name, text, labels=[*labels, "profile"])
    for profile, histogram in histograms.items():
        one = histogram_family(name, text, histogram, {**labels, "profile": profile})
        family.samples += one.samples
    return family
