"""What killed runs leave: found, cleaned up, told; and nothing of a live run is touched."""

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sublimate.cli.doctor import _leftovers
from sublimate.config import EdgeSettings, ServerSettings, Settings
from sublimate.control import run_record
from sublimate.control.run_record import Process, RunRecord, stale_runs, this_process
from sublimate.edge.observe.leftovers import orphan_families
from sublimate.guard.orphans import Orphan, Places, by_kind, look, places_of
from sublimate.probe.nvml import Gpu, GpuProcess, NvmlAnswer

HOLDS = """
import os, socket, time
memory = os.memfd_create("region")
twin = os.dup(memory)
sock = socket.create_server(("127.0.0.1", 0))
print(sock.getsockname()[1], flush=True)
time.sleep(600)
"""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(data=tmp_path, models=tmp_path / "models", keys=tmp_path / "keys.toml")


@pytest.fixture
def child(places: Places) -> Iterator[subprocess.Popen[str]]:
    """A process of the run that `leave_record` makes first, which holds memory and a port."""
    environment = {**os.environ, run_record.RUN_VARIABLE: str(places.runs / "0.run")}
    command = [sys.executable, "-c", HOLDS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as one:
        yield one
        one.kill()


def no_gpu() -> None:
    return None


def named(process_id: int, **changes: object) -> Process:
    """That process as it would have entered itself."""
    fields = run_record._stat(process_id)
    assert fields is not None
    ours = this_process()
    ticks = int(fields[run_record.START_FIELD])
    one = msgspec.structs.replace(ours, name="engine", process_id=process_id, start_ticks=ticks)
    return msgspec.structs.replace(one, **changes)


def gone() -> Process:
    """A process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as one:
        return named(one.pid)


def leave_record(places: Places, *children: Process) -> Path:
    """As a killed supervisor leaves it."""
    places.runs.mkdir(exist_ok=True)
    path = places.runs / f"{len(os.listdir(places.runs))}.run"
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in (gone(), *children)))
    return path


def kinds(orphans: list[Orphan]) -> list[str]:
    return [one.kind for one in orphans]


def test_where_nothing_is_left_nothing_is_found(places: Places) -> None:
    asked: list[str] = []
    assert look(places, lambda: asked.append("nvml"), clean=True) == [] and not asked
    record = RunRecord(places.runs)
    record.close()
    assert look(places, no_gpu, clean=True) == [] and os.listdir(places.runs) == []


def test_a_child_that_outlived_its_run_is_ended(
    places: Places, child: subprocess.Popen[str]
) -> None:
    assert child.stdout is not None
    port = int(child.stdout.readline())
    path = leave_record(places, named(child.pid))
    seen = look(places, no_gpu, clean=False)
    assert kinds(seen) == ["process", "memory", "socket", "lock"]
    assert child.poll() is None and path.exists(), "looking touches nothing"
    assert not any(one.is_cleaned for one in seen)
    found = look(places, no_gpu, clean=True)
    assert kinds(found) == kinds(seen) and all(one.is_cleaned for one in found)
    assert f"process {child.pid}" in found[0].what and found[1].what.startswith("1 regions")
    assert f"port {port}," in found[2].what
    assert child.wait(5) == -signal.SIGKILL and not path.exists()
    with socket.create_server(("127.0.0.1", port)):
        pass  # it can be had again
    assert by_kind(found) == ({"process": 1, "memory": 1, "socket": 1, "lock": 1}, {})
    assert look(places, no_gpu, clean=True) == []


@pytest.mark.parametrize(
    "changes",
    [{"start_ticks": 1}, {"boot": "another"}, {"namespace": "pid:[1]"}],
    ids=["number given anew", "before a restart", "of another container"],
)
def test_a_number_that_another_process_has_now_is_left_alone(
    places: Places, child: subprocess.Popen[str], changes: dict[str, object]
) -> None:
    leave_record(places, named(child.pid, **changes))
    assert kinds(look(places, no_gpu, clean=True)) == ["lock"]
    assert child.poll() is None


def test_a_process_that_no_run_started_is_left_alone(places: Places) -> None:
    """Whoever wrote the record: what runs under the number was never told of it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        leave_record(places, named(other.pid))
        assert kinds(look(places, no_gpu, clean=True)) == ["lock"]
        assert other.poll() is None


def test_what_others_may_write_is_no_record(
    places: Places, child: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = leave_record(places, named(child.pid))
    os.mkfifo(places.runs / "pipe.run")
    (places.runs / "link.run").symlink_to(record)
    record.chmod(0o620)
    assert look(places, no_gpu, clean=True) == []
    record.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert look(places, no_gpu, clean=True) == [] and child.poll() is None


def test_a_live_run_stays_also_in_the_same_folder(
    places: Places, child: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second server with the same data folder, and one whose lock its filesystem lost."""
    live = RunRecord(places.runs)
    with live.path.open("ab") as file:
        file.write(msgspec.json.encode(named(child.pid)) + b"\n")
    stale = leave_record(places)
    assert kinds(look(places, no_gpu, clean=True)) == ["lock"]
    assert live.path.exists() and child.poll() is None and not stale.exists()
    live.close()
    unlocked = places.runs / "unlocked.run"
    unlocked.write_bytes(
        msgspec.json.encode(named(os.getpid())) + b"\n" + msgspec.json.encode(named(child.pid))
    )
    assert look(places, no_gpu, clean=True) == [] and unlocked.exists() and child.poll() is None


def test_records_that_were_cut_off(places: Places) -> None:
    """By a loss of power: what is whole counts, and the rest is no error."""
    path = leave_record(places, gone())
    path.write_bytes(path.read_bytes()[:-20])
    empty = places.runs / "empty.run"
    empty.touch()
    found = look(places, no_gpu, clean=True)
    assert kinds(found) == ["lock", "lock"] and "no process that can be read" in found[1].what
    assert os.listdir(places.runs) == []


def test_a_record_that_is_being_made_stays_until_it_is_old(places: Places) -> None:
    places.runs.mkdir()
    unborn = places.runs / "ab.unborn"
    unborn.touch()
    assert look(places, no_gpu, clean=True) == [] and unborn.exists()
    os.utime(unborn, (time.time() - 100, time.time() - 100))
    assert kinds(look(places, no_gpu, clean=True)) == ["lock"] and not unborn.exists()


def test_only_one_of_two_starts_cleans_up(places: Places) -> None:
    leave_record(places)
    runs = stale_runs(places.runs)
    first = next(runs)
    assert look(places, no_gpu, clean=True) == [], "the other one has it"
    first.close()
    runs.close()
    assert kinds(look(places, no_gpu, clean=True)) == ["lock"]


CHILD = "import sublimate.control.child as c, time; c.die_with_parent(); print(1, flush=True); "
PARENT = f"""
import subprocess, sys
child = {CHILD + "time.sleep(600)"!r}
with subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE) as one:
    one.stdout.readline()
    print(one.pid, flush=True)
    one.wait()
"""


def test_a_child_dies_with_its_parent_though_nobody_tells_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the kernel alone: it sleeps, and has no channel."""
    monkeypatch.delenv("SUBLIMATE_PARENT", raising=False)
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = named(int(parent.stdout.readline()))
        assert child.state() == "runs"
        parent.kill()
    deadline = time.monotonic() + 5
    while child.state() == "runs":
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.005)


# ---- GPUs ----------------------------------------------------------------------------------------
def contexts(*process_ids: int) -> NvmlAnswer:
    found = tuple(GpuProcess(process_id=one) for one in process_ids)
    gpu = Gpu(index=3, name="NVIDIA H100 PCIe", compute_capability=(9, 0), processes=found)
    return NvmlAnswer(gpus=(gpu,))


def test_a_context_of_a_child_that_is_gone_is_told(places: Places) -> None:
    former = gone()
    leave_record(places, former)
    found = look(places, lambda: contexts(former.process_id, os.getpid()), clean=True)
    assert kinds(found) == ["gpu", "lock"]
    assert "GPU 3" in found[0].what and "--gpu-reset -i 3" in found[0].advice
    assert by_kind(found) == ({"lock": 1}, {"gpu": 1})


def test_a_context_of_a_zombie_is_its_parents_to_end(places: Places) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        leave_record(places, named(zombie.pid))
        found = look(places, lambda: contexts(zombie.pid), clean=True)
    assert kinds(found) == ["gpu", "lock"] and f"-p {zombie.pid}" in found[0].advice


def test_a_context_under_a_number_given_anew_is_another_ones(
    places: Places, child: subprocess.Popen[str]
) -> None:
    leave_record(places, named(child.pid, start_ticks=1))
    assert kinds(look(places, lambda: contexts(child.pid), clean=True)) == ["lock"]


# ---- files ---------------------------------------------------------------------------------------
def test_half_written_files_go_unless_somebody_writes(places: Places) -> None:
    places.models.mkdir()
    scratch = places.models / ".fetch-some-model-ab12cd34"
    scratch.mkdir()
    (scratch / "wheel.whl").write_bytes(b"half")
    note = places.models / "some.gguf.17.part"
    note.touch()
    copy = places.data / "keys.tomlab12cd34"
    copy.touch()
    kept = [places.models / "some.gguf", places.data / "keys.toml", places.data / "keys.toml.old"]
    # What `convert` writes, which may take longer than a minute to be on the disk; a browser's.
    others = [places.models / "some.sublimate.part", places.models / "other.gguf.part"]
    for path in (*kept, *others):
        path.touch()
    with (
        (places.models / ".some-model.lock").open("a") as model,
        (places.data / "keys.lock").open("a") as keys,
    ):
        fcntl.flock(model, fcntl.LOCK_EX)
        fcntl.flock(keys, fcntl.LOCK_EX)
        assert look(places, no_gpu, clean=True) == [], "both are being written"
    for path in (note, *others):
        os.utime(path, (time.time() - 100, time.time() - 100))
    seen = look(places, no_gpu, clean=False)
    assert kinds(seen) == ["file"] * 3 and all(path.exists() for path in (scratch, note, copy))
    assert len(look(places, no_gpu, clean=True)) == 3
    assert not any(path.exists() for path in (scratch, note, copy))
    assert all(path.exists() for path in (*kept, *others))


# ---- what is told --------------------------------------------------------------------------------
def test_doctor_shows_and_leaves_all_as_it_is(tmp_path: Path) -> None:
    settings = Settings(
        server=ServerSettings(cache_dir=str(tmp_path / "models")),
        edge=EdgeSettings(data_dir=str(tmp_path), keys_file=str(tmp_path / "keys.toml")),
    )
    assert _leftovers(settings).verdict == "good"
    path = leave_record(places_of(settings))
    found = _leftovers(settings)
    assert found.verdict == "notice" and "record of a run" in found.text and path.exists()
    assert "sublimate serve" in found.advice


def test_metrics_tell_what_this_run_found(places: Places) -> None:
    def samples() -> dict[tuple[str, str], float]:
        (family,) = orphan_families({"model_name": "m"})
        return {(s.labels["kind"], s.labels["result"]): s.value for s in family.samples}

    assert samples() == {}, "no run"
    record = RunRecord(places.runs)
    with contextlib.closing(record):
        record.tell({"process": 2, "lock": 1}, {"gpu": 1})
        assert samples() == {
            ("lock", "cleaned"): 1.0,
            ("process", "cleaned"): 2.0,
            ("gpu", "left"): 1.0,
        }
        assert list(orphan_families({"worker": "0"})), "of several edges the first tells it"
        assert not list(orphan_families({"worker": "1"}))
        processes = record.path.read_bytes().splitlines()
        assert msgspec.json.decode(processes[0], type=Process) == this_process()
