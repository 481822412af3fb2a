"""What this run found of runs that were killed, as metrics.

defines: orphan_families
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...control.run_record import orphans_told
from ...families import new_counter
from ...kernel.metrics import is_told_here

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily

NAME = "sublimate_orphans"


def orphan_families(labels: dict[str, str]) -> Iterator[CounterMetricFamily]:
    """Counted once, when the server started."""
    if not is_told_here(labels):
        return
    names = [*labels, "kind", "result"]
    text = "Things that killed runs had left when this one started, and what became of them."
    family = new_counter(NAME, text, labels=names)
    for result, counts in zip(("cleaned", "left"), orphans_told(), strict=True):
        for kind, count in sorted(counts.items()):
            family.add_metric([*labels.values(), kind, result], count)
    yield family
