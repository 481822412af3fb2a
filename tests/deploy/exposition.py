"""What /metrics of a server has, by name and label, before anything has happened to most of it.

defines: Told, tell
"""

from dataclasses import dataclass

from harness import serve

ENDINGS = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "gauge": ("",),
    "info": ("_info",),
}


@dataclass(frozen=True)
class Told:
    """What /metrics has."""

    labels: dict[str, frozenset[str]]
    """By name of a time series; a histogram's parts are three."""
    families: frozenset[str]
    """As they are declared, without endings."""


def tell() -> Told:
    """Of a server that has answered once."""
    with serve() as served:
        assert served.message().status_code == 200
        families = served.call(lambda: list(served.server.metrics.collect()))
        text = served.client.get("/metrics").text
    labels = {
        family.name + ending: frozenset(family._labelnames)
        for family in families
        for ending in ENDINGS[family.type]
    }
    assert all(f"# TYPE {family.name}" in text for family in families)
    return Told(labels, frozenset(family.name for family in families))
