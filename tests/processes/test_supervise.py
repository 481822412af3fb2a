"""The supervisor with real processes: a scripted engine, a stub edge, kills and signals."""

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from servers import Server, alive, wait_until

from sublimate.control.channel import LOOP_THREAD

ENGINE, EDGE = "sublimate.engine", "stub_edge"
SCRIPT = '{"answers":[[[5],[7,8,9]]],"vocabulary":100}'


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.json"
    path.write_text(SCRIPT)
    return path


def command(script: Path, *more: str) -> list[str]:
    return [str(Path(__file__).parent / "run_supervisor.py"), str(script), *more]


@pytest.fixture
def server(script: Path) -> Iterator[Server]:
    with Server(command(script)) as running:
        running.ready()
        yield running


def test_a_request_goes_through_the_rings(server: Server) -> None:
    assert server.get("/run")["ids"] == [7, 8, 9, 2]
    assert set(server.children()) == {ENGINE, EDGE}


def test_a_killed_engine_is_told_at_once_and_comes_back(server: Server) -> None:
    for round_number in range(3):
        killed_at = time.monotonic()
        os.kill(server.children()[ENGINE], signal.SIGKILL)
        assert server.event("lost")["why"] == "signal SIGKILL"
        server.ready()
        state = server.get("/run")
        assert state["ids"] == [7, 8, 9, 2]
        assert state["losses"] == round_number + 1 and state["ups"] == round_number + 2
        assert state["lost_at"] - killed_at < 0.1


def test_a_killed_edge_comes_back_on_the_same_port(server: Server) -> None:
    engine = server.children()[ENGINE]
    for _ in range(3):
        url = server.url
        os.kill(server.children()[EDGE], signal.SIGKILL)
        assert server.event("lost")["who"] == "edge"
        assert server.ready()["url"] == url
        assert server.get("/run")["ids"] == [7, 8, 9, 2]
    assert server.children()[ENGINE] == engine, "the engine survives its edge"


def test_both_killed_at_once_come_back(server: Server) -> None:
    for pid in server.children().values():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(server.children()) == 2, 10)
    # The edge may be ready before the engine; the last ready is the one with both.
    wait_until(lambda: server.ready() and server.get("/run")["ids"] == [7, 8, 9, 2], 10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_ends_well(server: Server, number: signal.Signals) -> None:
    children = server.children()
    server.signal(number)
    server.event("draining")
    server.event("stopped")
    assert server.wait() == 0
    assert not any(alive(pid) for pid in children.values())


def test_a_hang_up_without_a_terminal_is_a_reload(server: Server) -> None:
    server.signal(signal.SIGHUP)
    wait_until(lambda: server.get("/state")["reloads"] == 1)
    assert server.process.poll() is None and server.get("/state")["engine"]


def test_a_drain_has_a_limit_and_a_second_signal_ends_at_once(script: Path) -> None:
    with Server(command(script), {"STUB_EDGE_FLAGS": "ignore-drain"}) as server:
        server.ready()
        begin = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0 and 1.0 < time.monotonic() - begin < 5.0
    with Server(command(script), {"STUB_EDGE_FLAGS": "ignore-drain"}) as server:
        server.ready()
        children = server.children()
        begin = time.monotonic()
        server.signal(signal.SIGINT)
        server.event("draining")
        server.signal(signal.SIGINT)
        assert server.wait() == 130 and time.monotonic() - begin < 0.9
        assert not any(alive(pid) for pid in children.values())


def test_no_child_outlives_a_killed_supervisor(server: Server) -> None:
    children = server.children()
    server.process.kill()
    server.wait()
    wait_until(lambda: not any(alive(pid) for pid in children.values()), 2)


def test_an_engine_that_cannot_load_ends_with_its_reason(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"answers":[[[5],[700]]],"vocabulary":100}')
    with Server(command(script)) as server:
        assert server.wait(20) == 4
        wait_until(lambda: any("token id 700" in line for line in server.errors))


def test_with_stay_the_edge_keeps_answering_why(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text("{}")
    with Server(command(script, "stay")) as server:
        event = server.event("unavailable")
        assert event["reason"] == "load_failed" and "not valid" in event["message"]
        wait_until(lambda: set(server.children()) == {EDGE})
        assert server.process.poll() is None


def test_an_idle_server_uses_no_cpu(server: Server) -> None:
    def used_seconds() -> float:
        ticks = 0
        for pid in (server.process.pid, *server.children().values()):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    time.sleep(0.3)
    # Less than 1 % of a core, over long enough that a tick of 10 ms here and there is no part of
    # the answer. The watchdog looks in that time, too.
    before, seconds = used_seconds(), 8.0
    time.sleep(seconds)
    assert used_seconds() - before < 0.01 * seconds


def test_an_idle_engine_is_not_taken_for_a_hung_one(script: Path) -> None:
    with Server(command(script, "watchdog=0.5")) as server:
        server.ready()
        children = server.children()
        time.sleep(2.0)
        assert server.children() == children
        state = server.get("/run")
        assert state["ids"] == [7, 8, 9, 2] and state["losses"] == 0 and state["ups"] == 1


def test_an_engine_that_stands_still_is_lost_first_and_then_restarted(script: Path) -> None:
    with Server(command(script, "watchdog=2")) as server:
        server.ready()
        engine = server.children()[ENGINE]
        tasks = Path(f"/proc/{engine}/task").iterdir()
        assert LOOP_THREAD in [(task / "comm").read_text().strip() for task in tasks]
        os.kill(engine, signal.SIGSTOP)
        took = wait_until(lambda: server.get()["losses"] == 1, 5)
        assert took < 2.0 and alive(engine), "its requests are told before it is killed"
        assert server.get()["health"] == ["tripped", "no_turn"]
        lost = server.event("lost")
        assert lost["who"] == "engine" and "stood still" in lost["why"]
        server.ready()
        state = server.get("/run")
        assert state["ids"] == [7, 8, 9, 2] and state["health"] == ["ok", ""]
        assert server.children()[ENGINE] != engine


def test_an_engine_on_a_hot_gpu_keeps_its_requests_until_it_is_cool(
    script: Path, tmp_path: Path
) -> None:
    sensors = tmp_path / "gpu.json"

    def reads(temperature: int) -> None:
        reading = {"temperature_celsius": temperature, "utilization_percent": 50}
        sensors.write_bytes(msgspec.json.encode(reading))

    reads(60)
    with Server(command(script, "watchdog=1", f"gpu={sensors}")) as server:
        server.ready()
        reads(90)
        wait_until(lambda: server.get()["health"] == ["tripped", "gpu_hot"], 10)
        state = server.get("/run")
        assert state["ids"] == [7, 8, 9, 2] and state["losses"] == 0
        reads(70)
        wait_until(lambda: server.get()["health"] == ["ok", ""], 10)
        assert server.get()["ups"] == 1


def test_an_engine_that_goes_on_after_a_stall_gets_a_fresh_region(script: Path) -> None:
    with Server(command(script, "watchdog=6")) as server:
        server.ready()
        engine = server.children()[ENGINE]
        os.kill(engine, signal.SIGSTOP)
        wait_until(lambda: server.get()["losses"] == 1, 6)
        os.kill(engine, signal.SIGCONT)
        assert server.event("lost")["who"] == "region"
        server.ready()
        state = server.get("/run")
        assert state["ids"] == [7, 8, 9, 2] and state["ups"] == 2
        assert server.children()[ENGINE] == engine


def test_a_region_that_the_edge_cannot_use_is_replaced(server: Server) -> None:
    children = server.children()
    for ups in (2, 3):
        server.get("/break")
        assert server.event("lost")["who"] == "region"
        server.ready()
        state = server.get("/run")
        assert state["ids"] == [7, 8, 9, 2] and state["ups"] == ups
    assert server.children() == children, "no process was restarted for it"


@pytest.mark.parametrize("flags", [(), ("stay",)], ids=str)
def test_an_engine_that_cannot_load_again_is_tried_until_it_can(
    script: Path, flags: tuple[str, ...]
) -> None:
    with Server(command(script, *flags)) as server:
        server.ready()
        script.write_text("{}")
        os.kill(server.children()[ENGINE], signal.SIGKILL)
        assert server.event("lost")["why"] == "signal SIGKILL"
        for _ in range(2):
            assert "not valid" in server.event("lost")["why"]
        script.write_text(SCRIPT)
        server.ready()
        assert server.get("/run")["ids"] == [7, 8, 9, 2]


def test_a_reload_that_fails_changes_nothing_and_the_next_one_brings_another_model(
    script: Path,
) -> None:
    with Server(command(script)) as server:
        server.ready()
        before = server.children()
        loaded_ns = script.stat().st_mtime_ns
        script.write_text("{}")
        server.signal(signal.SIGUSR2)
        assert "not valid" in server.event("reloaded")["failure"]
        wait_until(lambda: server.pids() == {ENGINE: [before[ENGINE]], EDGE: [before[EDGE]]})
        assert server.get("/run")["ids"] == [7, 8, 9, 2]
        script.write_text(SCRIPT)
        os.utime(script, ns=(loaded_ns, loaded_ns))
        server.signal(signal.SIGUSR2)
        assert server.event("reloaded")["failure"] == ""
        assert server.children()[ENGINE] == before[ENGINE], "it has what is asked for"
        script.write_text(SCRIPT.replace("[7,8,9]", "[20,21]"))
        server.signal(signal.SIGUSR2)
        assert server.event("reloaded")["failure"] == ""
        state = server.get("/run")
        assert state["ids"] == [20, 21, 2] and state["ups"] == 1, "of one engine it was told"
        assert not set(server.children().values()) & set(before.values())


@pytest.mark.parametrize("spare", [None, 5, 7])
def test_a_process_that_cannot_be_started_again_is_tried_again(
    script: Path, spare: int | None
) -> None:
    """No descriptor is left for its control channel, or some for that and too few for what comes
    with it; then there are enough again."""
    with Server(command(script)) as server:
        server.ready()
        pid = server.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        engine, edge = server.children()[ENGINE], server.children()[EDGE]
        open_now = max(int(name) for name in os.listdir(f"/proc/{pid}/fd")) + 1
        lowest = 3 if spare is None else open_now - spare
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, limits[1]))
        for child in (engine, edge):
            os.kill(child, signal.SIGKILL)
        wait_until(lambda: "cannot be started" in server.event("lost")["why"])
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        wait_until(lambda: server.ready() and server.get("/run")["ids"] == [7, 8, 9, 2], 20)
