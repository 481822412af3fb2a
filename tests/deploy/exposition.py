"""What /metrics of a server has, by name and label, before anything has happened to most of it.

defines: Told, tell
"""

from dataclasses import dataclass

from harness import serve
from sublimate.config import EdgeSettings
from sublimate.kernel.connections import COUNTERS, HOOKS, PROGRAMS, Connections
from sublimate.kernel.metrics import connection_families
from sublimate.kernel.steering import Steering

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


class Loaded(Connections):
    """As where programs may be loaded, which this machine may refuse."""

    loaded = True

    def counters(self) -> dict[str, int]:
        return dict.fromkeys(COUNTERS, 0)

    def touches(self) -> dict[str, int]:
        return dict.fromkeys(HOOKS, 0)

    def cost(self) -> dict[str, tuple[int, int]]:
        return dict.fromkeys(PROGRAMS, (100, 1))


class LoadedSteering(Steering):
    """The same of several workers' steering."""

    loaded = True


def tell() -> Told:
    """Of a server that has answered once, and has another one to turn to."""
    settings = EdgeSettings(fallback="http://127.0.0.1:9")
    with serve(settings=settings) as served:
        assert served.message().status_code == 200
        families = served.call(lambda: list(served.server.metrics.collect()))
        text = served.client.get("/metrics").text
    assert all(f"# TYPE {family.name}" in text for family in families)
    names = {"model_name": "tiny", "engine": "0"}
    state = Loaded()
    state.steering = LoadedSteering()
    families += connection_families(state, names)
    labels = {
        family.name + ending: frozenset(family._labelnames)
        for family in families
        for ending in ENDINGS[family.type]
    }
    return Told(labels, frozenset(family.name for family in families))
