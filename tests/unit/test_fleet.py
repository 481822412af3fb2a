"""The fleet without processes."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fake_fleet import (
    WORKERS,
    Running,
    launch,
    listeners,
    make,
    prefix_fd,
    running,
)
from sublimate.control import channel
from sublimate.control.measured import Choice, Measured, Variant
from sublimate.errors import EngineError
from sublimate.model.source import stamp
from sublimate.supervisor.members import EdgeMember, EngineMember
from sublimate.supervisor.rolling import Rolling
from sublimate.supervisor.shared_weights import SharedWeights

__all__ = ["listeners", "make", "prefix_fd", "running"]

MEASURED = Measured(
    key="of a model",
    bytes_per_s=4e10,
    row_ops_per_s=1e12,
    few_rows=Choice(isa="avx2", threads=1, measured=[Variant(isa="avx2", threads=1, least_ms=2)]),
    many_rows=Choice(isa="avx2", threads=2),
    step_cost={"step_ps": 1},
)


# ---- drain ---------------------------------------------------------------------------------------
def test_a_fleet_that_drains_starts_nobody_again(running: Running) -> None:
    running.all_up()
    fleet = running.fleet
    for member in (fleet.edges[0], fleet.engines[0]):
        running.end(member)
        assert member.child.restart_at_seconds is not None
    fleet.drain(10.0)
    fleet.act_on_time()
    assert [running.child(member).starts for member in fleet.members] == [1] * 4
    running.end(fleet.edges[1])
    fleet.act_on_time()
    assert running.child(fleet.edges[1]).starts == 1 and fleet.is_drained


def test_before_all_are_ready_streams_may_be_open_and_are_waited_for(running: Running) -> None:
    fleet = running.fleet
    running.load(fleet.engines[0])
    assert not fleet.was_ready, "no edge listens yet"
    running.listen(fleet.edges[1])
    assert fleet.was_ready and running.reporter.readies == 0
    fleet.drain(10.0)
    assert not fleet.is_drained
    for edge in fleet.edges:
        assert running.child(edge).last(channel.Drain).seconds == 10.0


def test_an_engine_that_stays_away_holds_up_neither_drain_nor_reload(
    make: Callable[..., Running],
) -> None:
    running = make(stay=True)
    fleet = running.fleet
    running.hear(fleet.engines[0], channel.Failed(message="no memory"))
    running.end(fleet.engines[0])
    running.load(fleet.engines[1])
    for edge in fleet.edges:
        running.listen(edge)
    assert running.reporter.readies >= 1 and fleet.was_ready
    running.supervisor._begin_reload()
    assert running.supervisor._rolling is not None


def test_an_engine_is_told_what_the_one_before_it_has_measured(running: Running) -> None:
    """Of its own worker, whose cores it runs on."""
    fleet = running.fleet
    engine, other = fleet.engines
    assert running.child(engine).last(channel.Load).measured is None
    ready = channel.Ready(info={"vocabulary": 10}, measured=MEASURED)
    running.hear(engine, ready, running.prefix_fd)
    running.load(other)
    for edge in fleet.edges:
        running.listen(edge)
    for one in (engine, other):
        running.end(one)
    running.turn()
    assert running.child(engine).starts == running.child(other).starts == 2
    assert running.child(engine).last(channel.Load).measured == MEASURED
    running.load(engine)  # the other one waits for its weights
    assert running.child(other).last(channel.Load).measured is None


# ---- a first load that fails ---------------------------------------------------------------------
@pytest.mark.parametrize("told", [True, False], ids=["with a reason", "without"])
def test_an_engine_that_fails_while_others_serve_is_tried_again(
    running: Running, told: bool
) -> None:
    fleet = running.fleet
    running.load(fleet.engines[0])
    running.listen(fleet.edges[0])
    if told:
        running.hear(fleet.engines[1], channel.Failed(message="no memory"))
    running.end(fleet.engines[1])
    assert fleet.failure is None
    why = "no memory" if told else "signal SIGKILL"
    [(who, said)] = running.reporter.losses
    assert who == "engine 1" and why in said
    fleet.act_on_time()
    assert running.child(fleet.engines[1]).starts == 2


def test_an_engine_that_fails_before_any_has_served_ends_the_server(running: Running) -> None:
    running.hear(running.fleet.engines[1], channel.Failed(message="no memory"))
    assert isinstance(running.fleet.failure, EngineError)


# ---- edges that stand still ----------------------------------------------------------------------
def test_f04_an_edge_is_pinged_from_its_start_on_and_once_at_a_time(running: Running) -> None:
    edge, other = running.fleet.edges
    child = running.child(edge)
    assert edge.look_at_seconds is None, "one that starts is not watched"
    running.hear(edge, channel.EdgeReady(answers_pings=True))
    running.listen(other)
    assert other.look_at_seconds is None, "it has not promised an answer"
    for answered in (False, True):
        edge.look_at_seconds = 0.0
        running.fleet.act_on_time()
        pings = [one for one in child.told if isinstance(one, channel.Ping)]
        assert len(pings) == 1 + answered
        running.hear(edge, channel.Pong())
    running.end(edge)
    assert edge.look_at_seconds is None


# ---- one child's trouble is its own --------------------------------------------------------------
def no_descriptor(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_an_edge_without_an_inbox_is_started_again(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.all_up()
    edge = running.fleet.edges[0]
    running.end(edge)
    with monkeypatch.context() as patched:
        patched.setattr(socket, "socketpair", no_descriptor)
        running.turn()
        running.turn()
    assert running.child(edge).starts >= 2
    running.turn()
    assert running.child(edge).last(channel.Start).number == edge.number


def test_what_an_engine_sent_and_cannot_be_taken_ends_that_engine_alone(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.all_up()
    engine, other = running.fleet.engines
    running.end(engine)
    running.fleet.act_on_time()
    running.hear(engine, channel.Ready(info={"vocabulary": 10}))
    running.turn()
    assert running.child(engine).starts == 3, "no table came with it"
    with monkeypatch.context() as patched:
        patched.setattr(os, "dup", no_descriptor)
        running.hear(engine, channel.Weights(), running.prefix_fd)
    running.turn()
    assert running.child(engine).starts == 4
    assert running.child(other).starts == 1 and running.fleet.failure is None
    running.load(engine)
    assert running.fleet.is_up()


def test_an_edge_that_the_kernel_cannot_steer_to_is_started_again(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.all_up()
    edge = running.fleet.edges[0]
    assert running.fleet._kernel is not None
    monkeypatch.setattr(running.fleet._kernel, "edge_is_up", no_descriptor)
    running.listen(edge)
    running.turn()
    assert running.child(edge).starts == 2


def test_a_reload_whose_settings_cannot_be_read_is_told(running: Running) -> None:
    running.all_up()
    running.next_launch = no_descriptor
    running.supervisor._begin_reload()
    assert running.supervisor._rolling is None and "open files" in running.reporter.reloads[0]


def test_an_engine_that_is_gone_is_not_asked_to_pack() -> None:
    weights: SharedWeights[str] = SharedWeights()
    assert weights.may_load("first")
    assert not weights.may_load("second") and not weights.may_load("third")
    assert weights.forget("second") == []
    assert weights.forget("first") == ["third"]
    assert weights.may_load("third"), "and packs"


# ---- reload --------------------------------------------------------------------------------------
def test_an_edge_that_restarts_meanwhile_has_nothing_with_an_engine_that_leaves(
    running: Running,
) -> None:
    running.all_up()
    fleet = running.fleet
    old, edge = fleet.engines[0], fleet.edges[1]
    rolling = Rolling(fleet, launch(threads=1))
    rolling.step()
    running.load(fleet.engines[-1])
    rolling.step()
    assert old.role == "leaving"
    running.end(edge)
    fleet.act_on_time()
    assert running.child(edge).starts == 2
    running.hear(fleet.edges[0], channel.EngineIdle(engine=old.number))
    rolling.step()
    fleet.serve()
    assert old not in fleet.engines, "nobody else is waited for"


def attached(running: Running, engine: EngineMember) -> int:
    return sum(isinstance(message, channel.Attach) for message in running.child(engine).told)


def come_up(running: Running) -> None:
    """Whoever comes is ready."""
    for engine in [one for one in running.fleet.engines if one.role == "coming"]:
        running.load(engine)
    for edge in [one for one in running.fleet.edges if one.role == "coming"]:
        running.listen(edge)


def go(running: Running) -> None:
    """Whoever leaves has nothing left to do."""
    fleet = running.fleet
    for edge in [one for one in fleet.edges if one.role == "leaving"]:
        running.hear(edge, channel.Drained())
    for engine in [one for one in fleet.engines if one.role == "leaving"]:
        for edge in list(fleet.edges):
            running.hear(edge, channel.EngineIdle(engine=engine.number))
    running.turn()
    running.turn()


def test_another_model_is_served_by_pairs_of_its_own(running: Running) -> None:
    running.all_up()
    fleet = running.fleet
    first = [*fleet.engines, *fleet.edges]
    running.next_launch = lambda: launch("/b.gguf")
    running.supervisor._begin_reload()
    for worker in range(WORKERS):
        engine, edge = fleet.engines[-1], fleet.edges[-1]
        assert engine.role == edge.role == "coming" and engine.worker == edge.worker == worker
        assert running.child(edge).last(channel.Start).model_path == "/b.gguf"
        come_up(running)
        running.turn()
        # One edge comes while the one before it has its own; the old ones have nothing with it.
        assert attached(running, engine) == worker + 1
        old = [one for one in first if one.worker == worker]
        assert [one.role for one in old] == ["serving", "leaving"], "the edge first"
        running.end(first[WORKERS - 1])  # an old engine that crashes now is the old one again
        fleet.act_on_time()
        load = running.child(first[WORKERS - 1]).last(channel.Load)
        assert load.model_path == "/a.gguf"
        running.load(first[WORKERS - 1])
        go(running)
        assert old[1] not in fleet.members and old[0].role == "leaving"
        go(running)
        assert not set(old) & set(fleet.members)
    assert running.reporter.reloads == [""] and len(fleet.members) == 2 * WORKERS
    assert fleet.is_up() and fleet.launch.model_path == "/b.gguf"
    running.end(fleet.edges[0])
    fleet.act_on_time()
    running.listen(fleet.edges[0])
    assert fleet.is_up()


def test_a_reload_that_failed_leaves_nothing_in_force(running: Running) -> None:
    running.all_up()
    fleet = running.fleet
    running.next_launch = lambda: launch("/b.gguf")
    running.supervisor._begin_reload()
    come_up(running)
    running.turn()
    go(running)
    go(running)
    engine, edge = fleet.engines[-1], fleet.edges[-1]
    assert engine.role == edge.role == "coming" and edge.worker == 1
    running.hear(engine, channel.Failed(message="no memory"))
    running.end(engine)
    running.turn()
    assert "no memory" in running.reporter.reloads[0]
    fleet.serve()
    assert edge not in fleet.edges, "it has no engine of its model"
    assert fleet.launch is running.launch
    models = {member.worker: member.launch.model_path for member in fleet.members}
    assert models == {0: "/b.gguf", 1: "/a.gguf"} and len(fleet.members) == 2 * WORKERS
    for member in fleet.members:
        running.end(member)
    fleet.act_on_time()
    running.all_up()
    models = {one.worker: running.child(one).last(channel.Start).model_path for one in fleet.edges}
    assert models == {0: "/b.gguf", 1: "/a.gguf"}
    # Back to the first model: what was replaced differs from it, though the settings never did.
    running.next_launch = lambda: running.launch
    running.supervisor._begin_reload()
    kinds = [(one.worker, type(one)) for one in fleet.members if one.role == "coming"]
    assert kinds == [(0, EngineMember), (0, EdgeMember)]


@pytest.mark.parametrize("first", ["engine", "edge"])
def test_a_file_put_in_the_place_of_a_served_one_is_never_served_with_it(
    running: Running, tmp_path: Path, first: str
) -> None:
    running.all_up()
    fleet = running.fleet
    model = tmp_path / "model.gguf"
    model.write_bytes(b"one")
    for member in fleet.members:
        member.launch = msgspec.structs.replace(
            member.launch, model_path=str(model), model_stamp=stamp(str(model))
        )
    model.write_bytes(b"another")
    those, others = fleet.engines, fleet.edges
    if first == "edge":
        those, others = others, those
    running.end(those[0])
    fleet.act_on_time()
    running.load(fleet.engines[0])
    running.listen(fleet.edges[0])
    starts = [running.child(one).starts for one in others]
    assert starts == [1, 1], "they have one to work with"
    # That is one of each model: what is up is up between those of the same.
    told = {type(message) for message in running.child(those[0]).told}
    assert not told & {channel.Attach, channel.EngineUp}
    running.end(those[1])
    fleet.act_on_time()
    running.turn()
    assert [running.child(one).starts for one in others] == [2, 2], "now they have nobody"
    running.all_up()
    assert {one.launch.model for one in fleet.members} == {("m", str(model), stamp(str(model)))}


def test_edges_stay_while_the_file_in_the_place_of_theirs_cannot_be_loaded(
    running: Running, tmp_path: Path
) -> None:
    """They have the text of the one before, and answer that there is no engine; started again
    they could not read it, and nobody would answer."""
    running.all_up()
    fleet = running.fleet
    model = tmp_path / "model.gguf"
    model.write_bytes(b"one")
    for member in fleet.members:
        member.launch = msgspec.structs.replace(
            member.launch, model_path=str(model), model_stamp=stamp(str(model))
        )
    for content in (b"broken", b"broken again"):
        model.write_bytes(content)
        for engine in fleet.engines:
            running.end(engine)
            fleet.act_on_time()
            running.hear(engine, channel.Failed(message="It is cut short."))
            running.end(engine)
        running.turn()
    assert [running.child(edge).starts for edge in fleet.edges] == [1, 1]
    model.write_bytes(b"a whole one")
    for engine in fleet.engines:
        running.child(engine).kill()
    running.turn()
    running.turn()
    running.load(fleet.engines[0])
    running.turn()
    assert [running.child(edge).starts for edge in fleet.edges] == [2, 2]
