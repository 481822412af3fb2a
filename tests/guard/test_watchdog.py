"""The watchdog's parts: two stages of what stands still, waits for a core, a GPU's windows."""

import math
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from simulated_gpu import SimulatedGpu
from sublimate.guard.core_waits import CoreWaits
from sublimate.guard.edge_watch import (
    EDGE_HUNG_SECONDS_MAX,
    EDGE_HUNG_SECONDS_MIN,
    EdgeHealth,
    EdgeWatch,
)
from sublimate.guard.engine_watch import EngineWatch, Verdict
from sublimate.guard.gpu import GpuWatch
from sublimate.guard.nvml import NvmlGpu, open_gpu
from sublimate.guard.watchdog import Signs, Watchdog
from sublimate.probe import nvml


def looks(dog: Watchdog, seconds: float, heartbeat: int, begin: float) -> list[str]:
    """What each look says while the heartbeat stands still."""
    count = round(seconds / dog.look_seconds)
    signs = Signs(heartbeat=heartbeat)
    return [dog.look(begin + n * dog.look_seconds, signs)[0] for n in range(1, count + 1)]


def beat(dog: Watchdog, now: float, heartbeat: int, waited: float = 0.0) -> str:
    return dog.look(now, Signs(heartbeat=heartbeat), waited)[0]


def test_a_watchdog_has_two_stages_and_a_beat_ends_both() -> None:
    dog = Watchdog(30.0)
    dog.begin(0.0, 0.0)
    assert looks(dog, 4.0, 0, 0.0) == ["ok"] * 4, "an engine that never beat counts too"
    assert beat(dog, 5.0, 1) == "ok"
    assert looks(dog, 30.0, 1, 5.0) == ["ok"] * 4 + ["tripped"] * 25 + ["hung"]
    assert dog.look(36.0, Signs(heartbeat=1))[1] == "no_turn"
    assert beat(dog, 37.0, 2) == "ok"
    short = Watchdog(1.0)
    assert short.stalled_seconds == 0.5 and short.look_seconds == 0.1


def test_a_watchdog_waits_longer_where_steps_are_long() -> None:
    dog = Watchdog(30.0)
    dog.begin(0.0, 100.0)
    assert dog.stalled_seconds == 200.0 and dog.hung_seconds == 400.0
    dog.begin(0.0, 0.5)
    assert dog.stalled_seconds == 5.0 and dog.hung_seconds == 30.0


def test_a_watchdog_that_was_frozen_itself_accuses_nobody() -> None:
    dog = Watchdog(30.0)
    dog.begin(0.0, 0.0)
    assert beat(dog, 1.0, 7) == "ok"
    assert beat(dog, 3600.0, 7) == "ok"
    assert beat(dog, 3601.0, 8) == "ok"


def test_a_watchdog_that_kills_nobody_trips_all_the_same() -> None:
    dog = Watchdog(0.0)
    dog.begin(0.0, 0.0)
    assert beat(dog, 0.0, 1) == "ok"
    assert looks(dog, 300.0, 1, 0.0) == ["ok"] * 4 + ["tripped"] * 296
    assert beat(dog, 301.0, 2) == "ok"


def test_waiting_for_a_core_is_not_standing_still() -> None:
    dog = Watchdog(30.0)
    dog.begin(0.0, 0.0)
    assert {beat(dog, float(second), 7, 0.9) for second in range(1, 41)} == {"ok"}
    assert {beat(dog, float(second), 7, 99.0) for second in range(41, 81)} == {"ok"}
    said = [beat(dog, float(second), 7) for second in range(81, 84)]
    assert said == ["ok", "tripped", "tripped"], "what it stood still before counts"


@pytest.mark.parametrize(("running", "fault"), [(2, "no_step"), (0, "starved")])
def test_a_loop_that_turns_without_a_step_does_no_work(running: int, fault: str) -> None:
    dog = Watchdog(30.0)
    dog.begin(0.0, 0.0)

    def look(second: int, step_count: int, waiting: int = 1) -> tuple[str, str]:
        work = Signs(heartbeat=second, step_count=step_count, running=running, waiting=waiting)
        return dog.look(float(second), work)

    said = [look(second, 9) for second in range(1, 33)]
    assert said == [("ok", "")] * 15 + [("tripped", fault)] * 15 + [("hung", fault)] * 2
    assert look(33, 10) == ("ok", ""), "a step ends it"
    if not running:
        said = [look(second, 10, waiting=0) for second in range(34, 100)]
        assert set(said) == {("ok", "")}, "without work there is no step to end"


# ---- a GPU ---------------------------------------------------------------------------------------
def follow(watch: GpuWatch, begin: int, seconds: int, has_work: bool = True) -> list[str]:
    return [watch.look(float(second), has_work) for second in range(begin, begin + seconds)]


def test_a_hot_gpu_is_tripped_by_a_window_and_cools_down_well_below() -> None:
    gpu = SimulatedGpu(temperature=60, utilization=90, temperature_max=85)
    watch = GpuWatch(gpu)
    assert set(follow(watch, 0, 10)) == {""}
    gpu.temperature = 85
    said = follow(watch, 10, 10)
    assert said == [""] * 5 + ["gpu_hot"] * 5, "one hot reading is none"
    gpu.temperature = 81
    assert set(follow(watch, 20, 20)) == {"gpu_hot"}, "not well below"
    gpu.temperature = 80
    said = follow(watch, 40, 8)
    assert said == ["gpu_hot"] * 5 + [""] * 3
    assert watch.last is not None and watch.last.temperature_celsius == 80


def test_the_operators_limit_comes_before_the_gpus_own() -> None:
    gpu = SimulatedGpu(temperature=72, utilization=90, temperature_max=85)
    assert follow(GpuWatch(gpu, 70), 0, 7)[-1] == "gpu_hot"
    assert follow(GpuWatch(gpu), 0, 7)[-1] == ""


def test_a_gpu_that_computes_nothing_while_requests_run_is_found() -> None:
    gpu = SimulatedGpu(temperature=40, utilization=0, temperature_max=85)
    watch = GpuWatch(gpu)
    assert set(follow(watch, 0, 40, has_work=False)) == {""}, "it has nothing to do"
    said = follow(watch, 40, 20)
    assert said == [""] * 15 + ["gpu_idle"] * 5
    gpu.utilization = 1
    assert follow(watch, 60, 1) == [""]


@pytest.mark.parametrize("pause", [1.0, 1.003, 1.37, 0.1, 2.9])
def test_a_window_is_full_whenever_its_readings_come(pause: float) -> None:
    gpu = SimulatedGpu(temperature=40, utilization=0, temperature_max=85)
    watch = GpuWatch(gpu)
    at = [number * pause for number in range(round(40 / pause))]
    said = {second: watch.look(second, True) for second in at}
    assert {fault for second, fault in said.items() if second < 15.0} == {""}
    found = {fault for second, fault in said.items() if second > 15.0 + pause}
    assert found == {"gpu_idle"}, "and it stays found"


def test_a_window_in_which_nobody_looked_shows_nothing() -> None:
    gpu = SimulatedGpu(temperature=90, utilization=0, temperature_max=85)
    watch = GpuWatch(gpu)
    assert [watch.look(float(second), True) for second in (0, 60, 120)] == [""] * 3


def test_sensors_that_cannot_be_read_accuse_nobody_and_acquit_nobody() -> None:
    gpu = SimulatedGpu(temperature=90, utilization=50, temperature_max=85)
    watch = GpuWatch(gpu)
    gpu.is_readable = False
    assert set(follow(watch, 0, 10)) == {""}
    gpu.is_readable = True
    assert follow(watch, 10, 7)[-1] == "gpu_hot"
    gpu.is_readable = False
    assert set(follow(watch, 17, 30)) == {"gpu_hot"}


def stats(second: int, running: int = 1) -> dict[str, int]:
    steps = {"step_count": second, "running": running, "waiting": 0}
    return {"engine_heartbeat_ns": second, **steps}


def test_an_engine_is_judged_by_its_loop_first_and_then_by_its_gpu() -> None:
    gpu = SimulatedGpu(temperature=90, utilization=50, temperature_max=85)
    info: Mapping[str, Any] = {"gpu_index": 0}
    watch = EngineWatch(30.0, open_gpu=lambda told: gpu if told is info else None)
    watch.begin(0.0, info)
    said = [watch.look(float(second), stats(second), 0) for second in range(1, 8)]
    assert said[-1] == Verdict("tripped", "gpu_hot") and not said[-1].loses_requests
    watch.begin(8.0, info)
    assert watch.verdict.fault == "gpu_hot", "another region cools nothing"
    said = [watch.look(float(second), stats(8), 0) for second in range(9, 15)]
    assert said[-1] == Verdict("tripped", "no_turn") and said[-1].loses_requests
    watch.begin(15.0, {})
    assert watch.verdict == Verdict(), "an engine without a GPU"
    assert watch.look(16.0, stats(16), 0) == Verdict()


def test_an_engine_that_comes_to_a_hot_gpu_waits_until_it_has_cooled_down() -> None:
    gpu = SimulatedGpu(temperature=90, utilization=50, temperature_max=85)
    watch = EngineWatch(30.0, open_gpu=lambda _: gpu)
    watch.begin(0.0, {"gpu_index": 0})
    for second in range(1, 8):
        watch.look(float(second), stats(second), 0)
    watch.begin(8.0, {"gpu_index": 0, "of": "another process"})
    gpu.temperature = 83
    said = {watch.look(float(second), stats(second), 0) for second in range(9, 30)}
    assert said == {Verdict("tripped", "gpu_hot")}, "not well below"
    gpu.temperature = 60
    for second in range(30, 40):
        watch.look(float(second), stats(second), 0)
    assert watch.verdict == Verdict()


def test_an_engine_whose_gpu_computes_nothing_is_ended_in_the_end() -> None:
    gpu = SimulatedGpu(temperature=40, utilization=0, temperature_max=85)
    watch = EngineWatch(30.0, open_gpu=lambda _: gpu)
    watch.begin(0.0, {})
    said = [watch.look(float(second), stats(second), 0).state for second in range(1, 48)]
    assert said == ["ok"] * 15 + ["tripped"] * 30 + ["hung"] * 2
    assert "GPU" in watch.verdict.sentence


def test_nvml_is_read_as_its_header_says(
    nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = nvml.Library(str(nvml_library))
    gpu = NvmlGpu(library, 0)
    reading = gpu.read()
    assert gpu.temperature_max_celsius == 87 and reading is not None
    assert (reading.temperature_celsius, reading.utilization_percent) == (71, 63)
    monkeypatch.setattr(library, "sensors", lambda _: (71, None))
    assert gpu.read() is None, "half of it"
    monkeypatch.setattr(library, "slowdown_celsius", lambda _: None)
    assert NvmlGpu(library, 0).temperature_max_celsius == 90
    library.close()
    monkeypatch.undo()
    assert gpu.read() is None, "a library that is closed"
    with pytest.raises(nvml.NvmlError, match="closed"):
        NvmlGpu(library, 0)


def test_an_engine_tells_which_gpu_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_gpu({}) is None, "an engine that tells of no GPU has none"
    opened = SimulatedGpu(temperature=40, utilization=1, temperature_max=85)
    monkeypatch.setattr("sublimate.guard.nvml.NvmlGpu", lambda library, index: opened)
    monkeypatch.setattr(nvml, "Library", lambda: None)
    assert open_gpu({"gpu_index": 0}) is opened

    def no_library() -> None:
        raise nvml.NvmlError(nvml.LIBRARY_NOT_FOUND)

    monkeypatch.setattr(nvml, "Library", no_library)
    assert open_gpu({"gpu_index": 0}) is None


# ---- edges ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "limit"),
    [(30.0, EDGE_HUNG_SECONDS_MAX), (8.0, 8.0), (0.5, EDGE_HUNG_SECONDS_MIN), (0.0, math.inf)],
)
def test_f04_the_limit_of_an_edge_is_bounded_on_both_sides(given: float, limit: float) -> None:
    assert EdgeWatch(given).hung_seconds == limit


def test_f04_an_edge_that_answers_no_ping_is_tripped_and_hung_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = EdgeWatch(30.0)
    monkeypatch.setattr(watch._waits, "since_last", lambda _: 0.0)
    watch.begin(100.0)
    for second in range(101, 131):
        watch.beat()
        assert watch.look(float(second), 1) == "ok"
    states = [watch.look(float(second), 1) for second in range(131, 148)]
    assert states == ["ok"] * 4 + ["tripped"] * 10 + ["hung"] * 3
    assert (watch.trips, watch.restarts) == (1, 1)
    watch.begin(200.0)
    assert watch.look(201.0, 1) == "ok", "the next edge begins anew"


def test_f04_an_edge_whose_threads_wait_for_a_core_is_not_accused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = EdgeWatch(30.0)
    monkeypatch.setattr(watch._waits, "since_last", lambda _: 0.95)
    watch.begin(0.0)
    assert {watch.look(float(second), 1) for second in range(1, 91)} == {"ok"}


def test_f04_an_edge_shows_how_long_the_last_ping_waited() -> None:
    health = EdgeHealth()
    health.pinged(10.0, 10.25)
    delay, *counts = health.families({"worker": "1"})
    assert delay.samples[0].value == 0.25
    assert [family.samples[0].value for family in counts] == [0, 0]


# ---- waits for a core ----------------------------------------------------------------------------
def thread_file(proc: Path, thread: int, name: str, schedstat: str) -> None:
    folder = proc / "12" / "task" / str(thread)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "schedstat").write_text(schedstat)


def test_waits_are_those_of_the_threads_that_make_steps(tmp_path: Path) -> None:
    waits = CoreWaits(proc=tmp_path)
    assert waits.since_last(12) == 0.0, "there is no such process"
    for wait_ns in (5_000_000_000, 6_500_000_000):
        thread_file(tmp_path, 13, "loop", f"1 {wait_ns} 3\n")
        thread_file(tmp_path, 14, "compute", f"1 {wait_ns} 3\n")
        thread_file(tmp_path, 15, "populate", f"1 {9 * wait_ns} 3\n")
        thread_file(tmp_path, 16, "compute", "odd\n")
        waited = waits.since_last(12)
    assert waited == 3.0, "and only what was added since the last look"
    thread_file(tmp_path, 17, "compute", "1 7000000000 3\n")
    assert waits.since_last(12) == 0.0, "of a thread that is new nothing is known"


def test_the_kernel_tells_of_a_process_that_waits_for_a_core() -> None:
    code = (
        "import os, time\n"
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "open('/proc/self/comm', 'w').write('loop')\n"
        "print(flush=True)\n"
        "while True: pass\n"
    )
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not tell it")
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for child in both:
            assert child.stdout is not None and child.stdout.readline() == b"\n"
        waits = CoreWaits()
        assert waits.since_last(both[0].pid) == 0.0, "nothing came before"
        time.sleep(0.5)
        waited = waits.since_last(both[0].pid)
        assert waited > 0.1, "two cannot run on one core at once"
        both[0].send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        waits.since_last(both[0].pid)
        time.sleep(0.3)
        assert waits.since_last(both[0].pid) == 0.0, "one that is stopped does not wait"
    finally:
        for child in both:
            child.kill()
            child.communicate()
