"""A server whose engine the watchdog has tripped: what clients, probes and dashboards see."""

from collections.abc import Iterator

import httpx
import pytest

from harness import Served, body, serve
from sublimate import _core
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
    served.call(lambda: served.server.models.main.standing.told(0, OK))


def tell(served: Served, verdict: Verdict) -> None:
    served.call(lambda: served.server.models.main.standing.told(0, verdict))


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


def test_an_engine_whose_place_another_has_taken_is_forgotten(served: Served) -> None:
    tell(served, HOT)
    region = _core.Region.create(len(served.server.model.tokenizer))
    attached = _core.Region.attach(*region.fds)
    served.call(lambda: served.server.engine_up(attached, served.info, engine=7))
    served.call(lambda: served.server.engines.leave(0, lambda: None))
    tell(served, HOT)
    standing = served.server.models.main.standing
    assert standing.shown() == [], "nor does what is still told of it count"
    assert metric(served, "state", 'state="ok"') == 1
    assert 'engine="7"' not in served.client.get("/metrics").text
    served.call(lambda: served.server.engine_lost(engine=7))
    fresh = _core.Region.create(len(served.server.model.tokenizer))
    served.engine.attach(fresh)
    again = _core.Region.attach(*fresh.fds)
    served.call(lambda: served.server.engine_up(again, served.info))


def test_engines_are_told_apart() -> None:
    standing = Standing()
    standing.came(0, 0)
    standing.came(5, 1)
    standing.told(5, HOT)
    assert standing.is_tripped(5) and not standing.is_tripped(0)
    assert standing.shown() == [{"engine": 1, "state": "tripped", "fault": "gpu_hot"}]
    standing.lost(5)
    assert standing.is_tripped(5), "it is not well by being gone"
    standing.told(5, OK)
    assert standing.shown() == [] and not standing.is_tripped(5)


def test_of_several_edges_the_one_of_the_engines_worker_tells() -> None:
    standing = Standing()
    for number, worker in ((0, 0), (5, 1)):
        standing.came(number, worker)
        standing.told(number, HOT)
    for worker in ("0", "1", "2"):
        told = [
            sample.labels["engine"]
            for family in standing.families({"engine": "0", "worker": worker})
            for sample in family.samples
            if sample.value
        ]
        assert told == ([worker] if worker == "2" else [worker, worker]), "state and trips"
