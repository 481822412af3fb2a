"""Which models are in memory: of a fleet without processes, on a clock that the tests move."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fake_fleet import WORKERS, Reporter, Running, launch, listeners, make, prefix_fd
from sublimate.config import EngineSettings
from sublimate.control import channel
from sublimate.model.source import stamp
from sublimate.supervisor import model_memory
from sublimate.supervisor.launch import Launch, ModelLaunch
from sublimate.supervisor.members import EngineMember

__all__ = ["listeners", "make", "prefix_fd"]

MIB = 1 << 20
NEED = 100 * MIB
LOAD_SECONDS = 2.0


def models(
    *names: str, memory: int = 0, idle: float = 0.0, preload: tuple[str, ...] = ()
) -> Launch:
    """The first is the main one; each takes NEED, once on each worker half of it as KV."""
    engine = EngineSettings(kv_memory=NEED // WORKERS)
    plain = launch("/first.gguf")
    server = msgspec.structs.replace(
        plain.settings.server, idle_unload=idle, models_memory=memory or 100 * NEED
    )
    settings = msgspec.structs.replace(plain.settings, server=server, engine=engine)
    more = tuple(
        ModelLaunch(name=name, path=f"/{name}.gguf", engine=engine, preload=name in preload)
        for name in names[1:]
    )
    return msgspec.structs.replace(plain, settings=settings, model_name=names[0], more=more)


class Models:
    """A running fleet of several models, as its edges and engines drive it."""

    def __init__(self, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running = running
        self.fleet = running.fleet
        self.residency = running.supervisor._residency
        self.now = 1000.0
        self.busy: dict[str, int] = {}
        self.used: dict[str, float] = {}
        self.residency._clock = lambda: self.now
        monkeypatch.setattr(self.fleet, "stats_of", self._stats)
        for engine in self.fleet.engines:
            self._ready(engine)
        for edge in self.fleet.edges:
            running.listen(edge)
        self.turn()

    def _stats(self, engine: EngineMember) -> dict[str, int]:
        name = engine.launch.model_name
        used = self.used.get(name, 0.0)
        return {"running": self.busy.get(name, 0), "waiting": 0, "last_step_ns": int(used * 1e9)}

    def _ready(self, engine: EngineMember) -> None:
        info = {"vocabulary": 10, "kv_bytes": NEED // WORKERS, "weight_bytes": 0}
        self.running.hear(engine, channel.Ready(info=info), self.running.prefix_fd)
        self.running.attach(engine)

    def turn(self, seconds: float = 0.0) -> None:
        self.now += seconds
        for _ in range(4):
            self.running.turn()
            self.residency.step()

    def tell(self, message: channel.Message, edge: int = 0) -> None:
        self.running.hear(self.fleet.edges[edge], message)
        self.turn()

    def want(self, name: str, edge: int = 0) -> None:
        self.tell(channel.ModelWanted(model=name), edge)

    def taken(self, name: str, edge: int = 0) -> None:
        self.tell(channel.ModelTaken(model=name), edge)

    def come(self) -> None:
        """Whoever loads has loaded."""
        for engine in self.fleet.engines:
            if engine.role == "coming" and engine.info is None:
                self._ready(engine)
        self.turn(LOAD_SECONDS)

    def finish(self) -> None:
        """What leaves has nothing left to do, and ends."""
        for engine in [one for one in self.fleet.engines if one.role == "leaving"]:
            for edge in self.fleet.edges:
                self.running.hear(edge, channel.EngineIdle(engine=engine.number))
        self.turn()

    def use(self, name: str) -> None:
        """A request comes for it, and is answered."""
        self.want(name)
        self.finish()
        self.come()
        self.taken(name)
        self.used[name] = self.now
        self.now += 1

    def states(self) -> dict[str, str]:
        return {row.name: row.state for row in self.residency.rows()}

    def here(self) -> set[str]:
        return {name for name, state in self.states().items() if state == "here"}

    def told(self, kind: type[Any], edge: int = 0) -> list[Any]:
        said = self.running.child(self.fleet.edges[edge]).told
        return [message for message in said if isinstance(message, kind)]


@pytest.fixture
def serve(
    make: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Launch], Models]]:
    yield lambda first: Models(make(first=first), monkeypatch)


Serve = Callable[[Launch], Models]


def test_one_model_that_stays_is_no_matter_of_this(make: Callable[..., Running]) -> None:
    running = make()
    running.all_up()
    running.turn()
    assert running.supervisor._residency.rows() == []
    edge = running.fleet.edges[0]
    running.hear(edge, channel.ModelWanted(model="m"))
    running.turn()
    assert running.fleet.asked == [] and len(running.fleet.engines) == WORKERS


def test_a_model_comes_when_it_is_wanted(serve: Serve) -> None:
    served = serve(models("first", "second"))
    assert served.states() == {"first": "here", "second": "absent"}
    served.want("second")
    engines = served.fleet.engines_of("second")
    assert [engine.role for engine in engines] == ["coming"] * WORKERS
    load = served.running.child(engines[0]).last(channel.Load)
    assert load.model_path == "/second.gguf" and load.kv_parts > 1
    served.come()
    assert served.here() == {"first", "second"}, "there is room for both"
    assert {up.model for up in served.told(channel.EngineUp)} == {"first", "second"}
    names = [name for name, _ in reporter(served).models]
    assert names == ["first", "second"]


def reporter(served: Models) -> Reporter:
    return served.running.reporter


def test_one_that_is_ready_when_it_is_to_leave_begins_nothing(serve: Serve) -> None:
    """It was started again, and loads while the model is taken out of memory."""
    served = serve(models("first", "second"))
    served.use("second")
    engine = served.fleet.engines_of("second")[0]
    served.running.end(engine)
    served.turn()
    assert served.running.child(engine).alive and engine.info is None
    assert served.residency.stop("second")
    served.turn()
    assert engine.role == "leaving"
    before = len(served.told(channel.EngineUp))
    served._ready(engine)
    served.turn()
    assert len(served.told(channel.EngineUp)) == before
    served.finish()
    assert served.states()["second"] == "absent"


def test_one_of_two_that_does_not_load_ends_no_request_of_the_other(serve: Serve) -> None:
    """Who asked for it is told of both, so that it asks again later."""
    served = serve(models("first", "second"))
    served.want("second")
    one, other = served.fleet.engines_of("second")
    served._ready(one)
    served.running.hear(other, channel.Failed(message="no memory"))
    served.running.end(other)
    served.turn()
    assert one.role == "leaving" and served.running.child(one).end is None, "it may be busy"
    assert [left.engine for left in served.told(channel.EngineLeaving)] == [one.number]
    assert [failed.model for failed in served.told(channel.ModelFailed)] == ["second"]
    served.finish()
    assert served.states()["second"] == "absent"


def test_a_region_that_is_there_when_its_engine_is_to_leave_is_nobodys(serve: Serve) -> None:
    served = serve(models("first", "second"))
    served.want("second")
    one, other = served.fleet.engines_of("second")
    info = {"vocabulary": 10, "kv_bytes": 1, "weight_bytes": 0}
    served.running.hear(one, channel.Ready(info=info), served.running.prefix_fd)
    served.running.end(other)
    served.turn()
    assert one.role == "leaving"
    served.running.attach(one)
    served.turn()
    assert {up.model for up in served.told(channel.EngineUp)} == {"first"}
    served.finish()
    assert served.states()["second"] == "absent"


def test_two_models_take_turns_where_one_has_room(serve: Serve) -> None:
    served = serve(models("first", "second", memory=NEED + MIB))
    for name, other in (("second", "first"), ("first", "second"), ("second", "first")):
        served.want(name)
        leaving = served.fleet.engines_of(other)
        assert [engine.role for engine in leaving] == ["leaving"] * WORKERS
        assert not served.fleet.engines_of(name), "it waits until the memory is free"
        served.finish()
        assert served.fleet.engines_of(other) == []
        assert not [key for key in served.fleet._loads._weights if key[0] == other]
        served.come()
        served.taken(name)
        assert served.here() == {name}


def test_who_waits_for_a_model_has_its_turn_before_it_leaves(serve: Serve) -> None:
    served = serve(models("first", "second", memory=NEED + MIB))
    served.want("second")
    served.finish()
    served.want("second", edge=1)
    served.want("first")
    served.come()
    assert served.here() == {"second"}
    served.taken("second")
    assert served.here() == {"second"}, "the other edge has not handed its requests over"
    served.taken("second", edge=1)
    assert served.states() == {"first": "absent", "second": "leaving"}
    served.finish()
    assert served.states() == {"first": "coming", "second": "absent"}


def test_one_that_is_busy_serves_as_long_as_it_took_to_load_and_ends_what_it_has(
    serve: Serve,
) -> None:
    served = serve(models("first", "second", memory=NEED + MIB))
    served.use("second")
    served.turn(-1.0)  # just loaded
    served.busy["second"] = 1
    served.want("first")
    assert served.here() == {"second"} and served.residency.due_seconds is not None
    served.turn(LOAD_SECONDS)
    assert served.states()["second"] == "leaving"
    served.turn(100.0)
    stops = [served.running.child(one).end for one in served.fleet.engines_of("second")]
    assert stops == [None] * WORKERS, "no edge has said that it is idle"
    served.finish()
    assert served.states() == {"first": "coming", "second": "absent"}


def test_the_one_leaves_that_was_used_least_lately(serve: Serve) -> None:
    served = serve(models("a", "b", "c", memory=2 * NEED + MIB))
    served.use("b")
    served.use("a")
    served.use("c")
    assert served.here() == {"a", "c"}
    served.use("b")
    assert served.here() == {"b", "c"}
    served.busy["b"] = 1
    served.use("a")
    assert served.here() == {"a", "b"}, "one that is idle before one that is busy"


def test_a_model_that_cannot_be_loaded_is_told_and_tried_again_later(serve: Serve) -> None:
    served = serve(models("first", "second"))
    served.want("second")
    engines = served.fleet.engines_of("second")
    served.running.hear(engines[0], channel.Failed(message="no memory"))
    served.running.end(engines[0])
    served.turn()
    assert served.fleet.failure is None and served.here() == {"first"}
    [failed] = served.told(channel.ModelFailed, edge=1)
    assert failed.model == "second" and failed.message == "no memory"
    served.turn()
    assert served.fleet.engines_of("second") == [], "nor does the other worker's go on"
    served.want("second")
    assert len(served.told(channel.ModelFailed)) == 2, "at once, without another try"
    served.turn(10.0)
    served.want("second")
    served.come()
    assert served.here() == {"first", "second"}


def test_one_that_takes_more_than_there_is_leaves_again(serve: Serve) -> None:
    served = serve(models("first", "second", memory=NEED - MIB))
    served.want("second")
    served.finish()
    served.come()
    [failed] = served.told(channel.ModelFailed)
    assert "models_memory" in failed.message and served.states()["second"] == "leaving"
    served.finish()
    served.use("first")
    served.turn(10.0)
    served.want("second")
    assert served.here() == {"first"}, "nobody makes room for what has none"
    assert len(served.told(channel.ModelFailed)) == 2
    [second] = served.fleet.launch.more
    smaller = msgspec.structs.replace(second.engine, context_length=64)
    other = msgspec.structs.replace(second, engine=smaller)
    served.fleet.launch = msgspec.structs.replace(served.fleet.launch, more=(other,))
    served.turn(10.0)
    served.want("second")
    served.finish()
    assert served.states() == {"first": "absent", "second": "coming"}, "what it takes is not known"


def test_what_nobody_uses_leaves_and_comes_back(serve: Serve) -> None:
    served = serve(models("only", idle=60.0))
    served.busy["only"] = 1
    served.turn(100.0)
    assert served.here() == {"only"}
    served.busy["only"] = 0
    served.used["only"] = served.now
    served.turn(59.0)
    assert served.here() == {"only"} and served.residency.due_seconds == served.now + 1
    served.turn(1.0)
    served.finish()
    assert served.states() == {"only": "absent"} and served.fleet.engines == []
    served.use("only")
    assert served.here() == {"only"}
    assert served.fleet.is_up() and served.fleet.failure is None


def test_stop_takes_a_model_out_once_nobody_waits_for_it(serve: Serve) -> None:
    served = serve(models("first", "second"))
    assert not served.residency.stop("second") and not served.residency.stop("third")
    served.want("second")
    assert served.residency.stop("second")
    served.come()
    assert served.here() == {"first", "second"}, "somebody waits"
    served.taken("second")
    served.finish()
    assert served.states()["second"] == "absent"
    served.tell(channel.ModelStop(model="first"))
    served.finish()
    assert served.here() == set(), "the main one, too"
    served.want("second")
    served.come()
    served.taken("second")
    served.residency.stop("second")
    served.turn()
    assert served.states()["second"] == "leaving" and served.residency.stop("second")
    served.finish()
    served.use("second")
    served.turn()
    assert served.here() == {"second"}, "it was gone already when it was stopped again"


def test_a_crash_is_of_its_model_alone_and_it_comes_back_by_itself(serve: Serve) -> None:
    served = serve(models("first", "second"))
    served.use("second")
    [engine, _] = served.fleet.engines_of("second")
    served.running.end(engine)
    assert [lost.engine for lost in served.told(channel.EngineLost)] == [engine.number]
    served.turn()
    assert served.running.child(engine).starts == 2 and served.here() == {"first", "second"}


def test_what_an_edge_that_has_ended_wanted_is_forgotten(serve: Serve) -> None:
    served = serve(models("first", "second", memory=NEED + MIB))
    served.use("second")
    served.use("first")
    served.turn(-1.0)  # just loaded
    served.busy["first"] = 1
    served.want("second")
    assert served.here() == {"first"}
    served.running.end(served.fleet.edges[0])
    served.turn(100.0)
    assert served.here() == {"first"} and served.states()["second"] == "absent"


def test_a_model_is_there_from_the_start_if_it_is_to_be(serve: Serve) -> None:
    served = serve(models("first", "second", "third", preload=("third",)))
    assert served.states() == {"first": "here", "second": "absent", "third": "coming"}


def test_edges_read_a_file_again_that_was_replaced(serve: Serve, tmp_path: Path) -> None:
    model = tmp_path / "second.gguf"
    model.write_bytes(b"one")
    first = models("first", "second")
    [second] = first.more
    known = msgspec.structs.replace(second, path=str(model), model_stamp=stamp(str(model)))
    served = serve(msgspec.structs.replace(first, more=(known,)))
    model.write_bytes(b"another")
    served.want("second")
    assert [told.model for told in served.told(channel.ModelChanged)] == ["second"]
    served.come()
    kinds = [type(one) for one in served.running.child(served.fleet.edges[0]).told]
    assert kinds.index(channel.ModelChanged) < len(kinds) - 1 and served.here() == {
        "first",
        "second",
    }
    served.taken("second")
    served.use("second")
    assert len(served.told(channel.ModelChanged)) == 1, "it is the same since"


def test_a_reload_takes_out_what_is_served_otherwise_or_no_more(serve: Serve) -> None:
    served = serve(models("first", "second", "third"))
    served.use("second")
    served.use("third")
    now = models("first", "second")
    other = EngineSettings(threads=1)
    served.fleet.launch = msgspec.structs.replace(
        now, more=(msgspec.structs.replace(now.more[0], engine=other),)
    )
    served.turn()
    assert served.states() == {"first": "here", "second": "leaving", "third": "here"}
    for edge in served.fleet.edges:
        edge.launch = served.fleet.launch  # as those that come in place of them
    served.turn()
    assert served.states()["third"] == "leaving", "no edge can use it any more"
    served.finish()
    served.want("second")
    load = served.running.child(served.fleet.engines_of("second")[0]).last(channel.Load)
    assert load.settings.threads == 1


def test_a_long_answer_of_one_that_leaves_holds_up_nobody_who_has_room(serve: Serve) -> None:
    served = serve(models("a", "b", "c", memory=2 * NEED + MIB))
    served.use("b")
    served.busy["b"] = 1
    served.residency.stop("b")
    served.turn()
    assert served.states() == {"a": "here", "b": "leaving", "c": "absent"}
    served.want("c")
    assert served.states()["c"] == "absent" and served.here() == {"a"}, "b's memory is for it"
    served.turn(10.0)
    assert served.here() == {"a"}
    served.finish()
    assert served.states()["c"] == "coming"
    served.come()
    served.taken("c")
    served.residency.stop("c")
    served.turn()
    other = serve(models("a", "b", "c"))
    other.use("b")
    other.residency.stop("b")
    other.turn()
    other.want("c")
    assert other.states() == {"a": "here", "b": "leaving", "c": "coming"}


def test_what_is_there_from_the_start_takes_nobodys_place(serve: Serve) -> None:
    served = serve(models("first", "second", memory=NEED + MIB, preload=("second",)))
    served.turn(10.0)
    assert served.states() == {"first": "here", "second": "absent"}


def test_the_main_model_comes_back_after_a_reload_that_changes_it(serve: Serve) -> None:
    served = serve(models("first", "second"))
    engine = msgspec.structs.replace(served.fleet.launch.settings.engine, threads=1)
    settings = msgspec.structs.replace(served.fleet.launch.settings, engine=engine)
    served.fleet.launch = msgspec.structs.replace(served.fleet.launch, settings=settings)
    served.turn()
    assert served.states()["first"] == "leaving"
    served.finish()
    assert served.states()["first"] == "coming", "though nobody has asked for it yet"


@pytest.mark.parametrize(
    ("limit", "weights", "parts", "room"),
    [(1600, 100, 4, 200), (1600, 700, 2, 450), (1600, 350, 4, 312), (100, 200, 2, -50)],
)
def test_keys_and_values_leave_room_for_other_models(
    limit: int, weights: int, parts: int, room: int
) -> None:
    assert model_memory._kv_room(limit, weights, parts) == room


# ---- reload --------------------------------------------------------------------------------------
def follow(running: Running) -> None:
    """A reload in which every edge is replaced, to its end."""
    for _ in range(WORKERS):
        for edge in [one for one in running.fleet.edges if one.role == "coming"]:
            running.listen(edge)
        running.turn()
        for edge in [one for one in running.fleet.edges if one.role == "leaving"]:
            running.hear(edge, channel.Drained())
        running.turn()
        running.turn()
    assert running.reporter.reloads[-1] == "" and running.supervisor._rolling is None


def test_a_reload_brings_several_models_in_place_of_one(make: Callable[..., Running]) -> None:
    running = make()
    running.all_up()
    fleet, old = running.fleet, list(running.fleet.engines)

    def states() -> dict[str, str]:
        return {row.name: row.state for row in running.supervisor._residency.rows()}

    running.next_launch = lambda: models("first", "second")
    running.supervisor._begin_reload()
    running.turn()
    assert states() == {"first": "coming", "second": "absent", "m": "here"}
    assert [engine.role for engine in old] == ["serving"] * WORKERS, "the old edges have no other"
    follow(running)
    running.turn()
    assert [engine.role for engine in old] == ["leaving"] * WORKERS
    for engine in old:
        for edge in fleet.edges:
            running.hear(edge, channel.EngineIdle(engine=engine.number))
    running.turn()
    running.turn()
    for engine in fleet.engines_of("first"):
        running.load(engine)
    running.turn()
    assert states() == {"first": "here", "second": "absent"} and len(fleet.engines) == WORKERS


def test_a_model_that_stays_is_the_same_one_after_reloads(serve: Serve) -> None:
    served = serve(models("first", "second"))
    served.use("second")
    engines = served.fleet.engines_of("first")
    served.running.next_launch = lambda: models("first", "third", preload=("third",))
    served.running.supervisor._begin_reload()
    follow(served.running)
    assert served.fleet.engines_of("first") == engines
    assert served.states() == {"first": "here", "second": "leaving", "third": "coming"}
    served.finish()
    assert served.states() == {"first": "here", "third": "coming"}
    assert reporter(served).models[-1] == ("second", "unloaded: it is not served any more")


def test_a_reload_to_one_model_leaves_it_as_it_is(serve: Serve) -> None:
    served = serve(models("first", "second"))
    served.use("second")
    engines = served.fleet.engines_of("first")
    served.running.next_launch = lambda: models("first")
    served.running.supervisor._begin_reload()
    follow(served.running)
    served.turn()
    leaving = served.fleet.engines_of("second")
    assert [engine.role for engine in leaving] == ["leaving"] * WORKERS
    told = served.told(channel.EngineLeaving)
    assert sorted(one.engine for one in told) == sorted(one.number for one in leaving), "once"
    served.finish()
    assert served.fleet.engines == engines and served.states() == {"first": "here"}
