"""`sublimate kernel`: what is loaded in this machine's kernel, seen from outside."""

import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from sublimate import _core
from sublimate.cli.main import app
from sublimate.kernel import objects
from sublimate.kernel.connections import Connections
from sublimate.kernel.keys import quic_key
from sublimate.kernel.objects import Loaded, Map, Program, find
from sublimate.kernel.steering import Steering

ENTRIES = 500


@pytest.fixture
def memory() -> Iterator[Connections]:
    loaded = Connections.load(b"s" * 32, ENTRIES)
    if not loaded.loaded:
        pytest.skip(f"the memory of connections is not loaded here: {loaded.reason}")
    try:
        find()
    except OSError:
        pytest.skip("needs CAP_SYS_ADMIN")
    for number in (1, 2, 2):
        use = loaded.begin(quic_key(bytes([number]) * 8), b"", np.arange(64, dtype=np.int32))
        assert use is not None
        loaded.end(use, 64)
    yield loaded
    loaded.close()


def mine(found: list[Loaded], memory: Connections) -> Loaded:
    """Others may run servers here."""
    about = (objects.FDINFO / str(memory.named["digests"])).read_text()
    number = int(about.partition("map_id:")[2].split()[0])
    return next(each for each in found if any(one.id == number for one in each.maps))


def test_all_of_it_is_found(memory: Connections) -> None:
    with_steering = Steering.load(ENTRIES + 1)
    found = find()
    part = mine(found, memory)
    assert part.part == "connections" and part.hit_ratio == pytest.approx(1 / 3)
    assert {each.name for each in part.programs} == {
        "sublimate_sent", "sublimate_got", "sublimate_in",
    }  # fmt: skip
    maps = {each.name: each for each in part.maps}
    assert set(maps) == {"connections", "digests", "touches", "cache"}
    assert maps["digests"].entries == maps["connections"].entries == 2
    assert maps["digests"].memory_bytes > ENTRIES * 328 and maps["cache"].entries is None
    assert part.counters["expected_tokens"] == 64 and part.counters["inserts"] == 2
    steering = [each for each in found if each.part == "steering"]
    sizes = {one.capacity_entries for each in steering for one in each.maps}
    assert ENTRIES + 1 in sizes and all(each.hit_ratio is None for each in steering)
    with_steering.close()


def test_cost_is_known_while_it_is_counted(memory: Connections) -> None:
    if (part := mine(find(), memory)).touch_ns is not None:
        pytest.skip("this machine counts always")
    assert all(program.runs == 0 for program in part.programs)
    counting = _core.enable_statistics()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            client.send(b"x")
    counted = mine(find(), memory)
    os.close(counting)
    assert counted.touch_ns is not None and counted.touch_ns > 0


def test_it_is_shown_and_cleared(memory: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = objects.find

    def only_mine(clear: bool = False) -> list[Loaded]:
        found = everything()
        if clear:
            assert memory._uses.clear() == 2 and memory._digests.clear() == 2
            found = everything()
        return [mine(found, memory)]

    monkeypatch.setattr(objects, "find", only_mine)
    shown = CliRunner().invoke(app, ["kernel"])
    assert shown.exit_code == 0
    for words in ("connections", "sublimate_sent", "hit ratio 33.3%", "lookups 3"):
        assert words in shown.output
    told = msgspec.json.decode(CliRunner().invoke(app, ["kernel", "--json"]).output)
    assert [each["part"] for each in told] == ["connections"]
    assert told[0]["process_id"] == os.getpid()
    assert f"process {os.getpid()}, " in shown.output
    assert told[0]["hit_ratio"] == pytest.approx(1 / 3) and len(told[0]["maps"]) == 4
    assert CliRunner().invoke(app, ["kernel", "--clear"]).exit_code == 0
    assert memory._digests.read() == (b"", b"")


def test_clearing_empties_what_remembers(memory: Connections) -> None:
    """Of one alone: a server of somebody else's may be here."""
    group = mine(find(), memory).id
    programs = _core.kernel_objects(True, groups=[group])
    maps = _core.kernel_objects(False, groups=[group])
    loaded = objects._loaded(group, programs, maps, clear=True)
    assert {one.name: one.entries for one in loaded.maps if one.entries is not None} == {
        "connections": 0, "digests": 0,
    }  # fmt: skip
    assert loaded.counters["lookups"] == 3, "what was counted stays"
    for fd, *_ in (*programs, *maps):
        os.close(fd)


def test_a_machine_may_have_more_of_others_than_there_are_descriptors(
    memory: Connections,
) -> None:
    more = [Connections.load(b"s" * 32, 1) for _ in range(4)]
    group = mine(find(), memory).id
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    top, held = max(map(int, os.listdir("/proc/self/fd"))), [os.dup(0)]
    while held[-1] <= top:
        held.append(os.dup(0))  # until none below is free
    spare = held[-1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare + len(memory.named), limits[1]))
    try:
        assert _core.kernel_objects(True, "of nobody") == []
        maps = _core.kernel_objects(False, groups=[group])
        with pytest.raises(OSError, match="Too many open files"):
            _core.kernel_objects(False)
        assert os.dup(0) == spare + 1 + len(maps), "and what it had opened is closed"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for fd in (*held, *(each[0] for each in maps), spare + 1 + len(maps)):
        os.close(fd)
    for one in more:
        one.close()


def test_without_the_right_it_says_where_else_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(programs: bool, prefix: str) -> list[tuple[int, int, str, int]]:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(_core, "kernel_objects", refused)
    shown = CliRunner().invoke(app, ["kernel"])
    assert shown.exit_code != 0 and "CAP_SYS_ADMIN" in shown.output


def test_what_was_opened_is_closed_if_the_kernel_tells_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, write = os.pipe()

    def told(
        programs: bool, prefix: str = "", groups: list[int] | None = None
    ) -> list[tuple[int, int, str, int]]:
        if programs:
            return [(read, 1, "sublimate_sent", 1)]
        raise OSError(24, "too many open files")

    monkeypatch.setattr(_core, "kernel_objects", told)
    with pytest.raises(OSError, match="too many"):
        find()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(read)
    os.close(write)


def test_steering_has_no_lookups_and_touches_nothing() -> None:
    ran = [Program("sublimate_steer", 1, 100, 1)]
    part = Loaded("steering", 1, ran, [], {"hash": 1})
    assert part.touch_ns is None and part.hit_ratio is None
    assert Loaded("connections", 1, ran, [], {}).touch_ns == 100


def test_of_the_processes_that_hold_it_the_first_is_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process table: a supervisor with its edge, and somebody with a map of another's."""
    for number, parent, map_id in ((40, 1, 7), (30, 40, 7), (50, 1, 8)):
        folder = tmp_path / str(number)
        (folder / "fd").mkdir(parents=True)
        (folder / "fdinfo").mkdir()
        (folder / "fd/5").symlink_to(objects.MAP_LINK)
        (folder / "fdinfo/5").write_text(f"pos:\t0\nmap_id:\t{map_id}\n")
        (folder / "stat").write_bytes(b"%d (a) \xd0) S %d 0" % (number, parent))
    monkeypatch.setattr(objects, "PROC", tmp_path)
    one = Loaded("connections", 1, [], [Map("cache", 7, None, 1, 1)], {})
    pinned = Loaded("steering", 2, [], [Map("sockets", 9, None, 1, 1)], {})
    assert objects.holders([one, pinned]) == {1: 40}


def test_nothing_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "kernel_objects", lambda *_, **__: [])
    assert find() == []
    shown = CliRunner().invoke(app, ["kernel"])
    assert shown.exit_code == 0 and "No server" in shown.output
