"""Families of metrics for Prometheus, empty as yet. Its library is loaded when one is made, so
that no start of a server waits for it.

defines: new_counter, new_gauge, new_histogram, new_info
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
    )


def new_counter(name: str, text: str, labels: Iterable[str]) -> CounterMetricFamily:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(name, text, labels=list(labels))


def new_gauge(name: str, text: str, labels: Iterable[str]) -> GaugeMetricFamily:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(name, text, labels=list(labels))


def new_histogram(name: str, text: str, labels: Iterable[str]) -> HistogramMetricFamily:
    from prometheus_client.core import HistogramMetricFamily

    return HistogramMetricFamily(name, text, labels=list(labels))


def new_info(name: str, text: str, labels: Iterable[str]) -> InfoMetricFamily:
    from prometheus_client.core import InfoMetricFamily

    return InfoMetricFamily(name, text, labels=list(labels))
