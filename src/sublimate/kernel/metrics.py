"""What the kernel's maps count, for Prometheus.

defines: is_told_here, connection_families
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..families import new_counter, new_gauge
from .connections import Connections
from .reason import Reason

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

PREFIX = "sublimate_kernel_"
NS_PER_S = 1e9
FIRST = "0"
"""Of the workers."""
TOUCHING = ("sent", "received")
"""Programs that run once per socket call."""


def is_told_here(labels: dict[str, str]) -> bool:
    """Of several edges the first worker's tells what is one figure of the server: a sum over the
    edges is right of all that /metrics has."""
    return labels.get("worker", FIRST) == FIRST


def connection_families(state: Connections, labels: dict[str, str]) -> Iterator[Any]:
    """Of the memory of connections, all edges together, and of steering. How either is, each edge
    tells: it may be refused what another is not."""
    yield _state(labels, steering=state.steering.reason, connections=state.reason)
    if not is_told_here(labels):
        return
    if state.steering.loaded:
        text = "New connections and datagrams, by what decided where they go."
        yield _counters("steered", text, "by", state.steering.steered(), labels)
    if state.loaded:
        yield from _memory_families(state, labels)


def _memory_families(state: Connections, labels: dict[str, str]) -> Iterator[Any]:
    counters = state.counters()
    for name, text in (
        ("lookups", "Requests whose connection was looked up."),
        ("hits", "Of these, those whose connection was remembered."),
        ("evictions", "Connections that were forgotten for newer ones."),
        ("expected_tokens", "Prompt tokens computed before on their connection."),
        ("found_tokens", "Of these, those that the engine took from its cache."),
    ):
        family = new_counter(f"{PREFIX}cache_{name}", text, labels=labels)
        family.add_metric(list(labels.values()), counters[name])
        yield family
    ratio = counters["hits"] / max(1, counters["lookups"])
    yield _gauge("cache_hit_ratio", "Hits of all lookups.", ratio, labels)
    entries = counters["inserts"] - counters["removes"] - counters["evictions"]
    yield _gauge("cache_entries", "Connections that are remembered.", entries, labels)
    text = "Uses of remembered connections, by the hook that saw them."
    yield _counters("touches", text, "hook", state.touches(), labels)
    cost = state.cost()
    text = "Runs of a program; 0 while the kernel does not count (kernel.bpf_stats_enabled)."
    yield _counters("program_runs", text, "program", _part(cost, 1), labels)
    spent = {name: ns / NS_PER_S for name, ns in _part(cost, 0).items()}
    yield _counters("program_seconds", "Time in a program.", "program", spent, labels)
    touching = [cost[name] for name in TOUCHING if name in cost]
    if runs := sum(count for _, count in touching):
        mean = sum(ns for ns, _ in touching) / runs
        yield _gauge("touch_ns", "Of one socket call, in our programs, mean.", mean, labels)


def _state(labels: dict[str, str], **reasons: Reason) -> GaugeMetricFamily:
    """By part."""
    text = "1 for why this part is as it is; loaded: it works (docs/kernel.md)."
    family = new_gauge(PREFIX + "state", text, labels=[*labels, "part", "reason"])
    for part, reason in reasons.items():
        family.add_metric([*labels.values(), part, reason], 1)
    return family


def _part(cost: Mapping[str, tuple[int, int]], at: int) -> dict[str, int]:
    return {name: told[at] for name, told in cost.items()}


def _gauge(name: str, text: str, value: float, labels: dict[str, str]) -> GaugeMetricFamily:
    family = new_gauge(PREFIX + name, text, labels=labels)
    family.add_metric(list(labels.values()), value)
    return family


def _counters(
    name: str, text: str, label: str, values: Mapping[str, float], labels: dict[str, str]
) -> CounterMetricFamily:
    family = new_counter(PREFIX + name, text, labels=[*labels, label])
    for value, count in values.items():
        family.add_metric([*labels.values(), value], count)
    return family
