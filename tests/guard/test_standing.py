"""A server whose engine the watchdog has tripped: what clients, probes and dashboards see."""

from collections.abc import Iterator

import httpx
import pytest

from harness import Served, body, serve
from sublimate.guard.engine_watch import Verdict
from sublimate.guard.standing import Standing

OK = Verdict()
HOT = Verdict("tripped", "gpu_hot")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve(step_delay_us=2000) as running:
        yield running


@pytest.fixture(autouse=True)
def _well_again(served: Served) -> Iterator[None]:
    yield
    served.call(lambda: served.server.standing.told(0, OK))


def tell(served: Served, verdict: Verdict) -> None:
    served.call(lambda: served.server.standing.told(0, verdict))


def metric(served: Served, name: str, label: str) -> float:
    for line in served.client.get("/metrics").text.splitlines():
        if line.startswith(f"sublimate_watchdog_{name}{{") and label in line:
            return float(line.rpartition(" ")[2])
    return 0.0


def test_a_tripped_engine_takes_nothing_new_and_ends_what_it_has(served: Served) -> None:
    with served.client.stream(
        "POST", "/v1/messages", json=body("count", max_tokens=100, stream=True)
    ) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if "content_block_delta" in line)
        tell(served, HOT)
        refused = served.message()
        assert refused.status_code == 529
        assert refused.json()["error"]["type"] == "overloaded_error"
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["x-should-retry"] == "true"
        assert any("message_stop" in line for line in lines), "it was given to the engine before"
    tell(served, OK)
    assert served.message().status_code == 200


def test_probes_tell_what_was_found(served: Served) -> None:
    assert served.client.get("/readyz").status_code == 200
    tell(served, HOT)
    ready: httpx.Response = served.client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json() == {
        "status": "unavailable",
        "reason": "engine_tripped",
        "watchdog": [{"engine": 0, "state": "tripped", "fault": "gpu_hot"}],
    }
    assert served.client.get("/livez").status_code == 200


def test_states_trips_and_restarts_are_metrics(served: Served) -> None:
    names = (
        ("state", 'state="tripped"'),
        ("trips_total", 'fault="no_step"'),
        ("restarts_total", 'fault="no_step"'),
    )
    steps = [(OK, [0, 0, 0])]
    steps += [(Verdict("tripped", "no_step"), [1, 1, 0])] * 2
    steps += [(Verdict("hung", "no_step"), [0, 1, 1]), (OK, [0, 1, 1])]
    for verdict, expected in steps:
        tell(served, verdict)
        assert [metric(served, *name) for name in names] == expected


def test_engines_are_told_apart() -> None:
    standing = Standing()
    standing.told(1, HOT)
    assert standing.is_tripped(1) and not standing.is_tripped(0)
    assert standing.shown() == [{"engine": 1, "state": "tripped", "fault": "gpu_hot"}]
    standing.told(1, OK)
    assert standing.shown() == [] and not standing.is_tripped(1)
