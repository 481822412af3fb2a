"""What engines have measured, kept for later starts: only what was measured undisturbed, and only
for who would measure the same."""

import os
from pathlib import Path

import msgspec
import pytest

from sublimate.cli.convert import convert
from sublimate.config import EngineSettings
from sublimate.control.measured import Choice, Measured
from sublimate.engine import remember
from sublimate.engine.loader import Share, load_engine
from sublimate.engine.remember import CoreWait, keep, recall
from test_convert import write_model

CHOICE = Choice(isa="avx2", threads=1)
MEASURED = Measured(
    key="a model, its settings",
    bytes_per_s=1e9,
    row_ops_per_s=1e9,
    few_rows=CHOICE,
    many_rows=CHOICE,
    step_cost={"step_ps": 1},
)


def test_what_is_kept_is_recalled_by_its_key_alone(tmp_path: Path) -> None:
    assert recall(tmp_path, MEASURED.key) is None
    keep(tmp_path, MEASURED)
    assert recall(tmp_path, MEASURED.key) == MEASURED
    assert recall(tmp_path, "another") is None
    (kept,) = (tmp_path / remember.FOLDER).iterdir()
    for damage in (b"", b"{}", kept.read_bytes()[:-5], b"\xff" * 100):
        kept.write_bytes(damage)
        assert recall(tmp_path, MEASURED.key) is None
    kept.write_bytes(msgspec.json.encode(msgspec.structs.replace(MEASURED, key="other")))
    assert recall(tmp_path, MEASURED.key) is None


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remember, "FILES_MAX", 2)
    for number in range(4):
        keep(tmp_path, msgspec.structs.replace(MEASURED, key=str(number)))
        for path in (tmp_path / remember.FOLDER).iterdir():
            before = path.stat().st_mtime_ns - 1_000_000_000
            os.utime(path, ns=(before, before))
    assert [recall(tmp_path, str(number)) is not None for number in range(4)] == [0, 0, 1, 1]


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    keep(blocked, MEASURED)
    assert recall(blocked, MEASURED.key) is None


def tell(tasks: Path, **waited_ns: int) -> None:
    for thread, count in waited_ns.items():
        (tasks / thread).mkdir(exist_ok=True)
        (tasks / thread / "schedstat").write_text(f"5 {count} 7\n")


def test_waiting_for_a_core_is_counted(tmp_path: Path) -> None:
    tell(tmp_path, main=10**12)
    waits = CoreWait(tmp_path)
    tell(tmp_path, main=10**12, helper=0)
    assert waits.was_short()
    tell(tmp_path, helper=10**12)
    assert not waits.was_short()
    assert not CoreWait(tmp_path / "none").was_short()
    (tmp_path / "main" / "schedstat").write_text("unknown\n")
    assert not waits.was_short()


def test_the_mean_of_those_that_ran_counts(tmp_path: Path) -> None:
    def told(ran_ns: int, waited_ns: int) -> None:
        for thread in ("one", "two", "asleep"):
            ran, waited = (0, 0) if thread == "asleep" else (ran_ns, waited_ns)
            (tmp_path / thread).mkdir(exist_ok=True)
            (tmp_path / thread / "schedstat").write_text(f"{ran} {waited} 7\n")

    told(0, 0)
    waits = CoreWait(tmp_path)
    waits._begin_seconds -= 1.0
    told(9 * 10**8, 45 * 10**6)  # 4.5 % of a second each
    assert waits.was_short()
    told(9 * 10**8, 60 * 10**6)
    assert not waits.was_short()
    told(10**6, 45 * 10**6)  # of none that ran
    assert not waits.was_short()


def test_convert_measures_for_the_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the settings of `serve`, and again where it was disturbed."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("SUBLIMATE_KV_MEMORY", "4MiB")
    monkeypatch.setenv("SUBLIMATE_THREADS", "1")
    tries = iter([False, True])
    monkeypatch.setattr(CoreWait, "was_short", lambda self: next(tries))
    packed = tmp_path / "model.sublimate"
    convert(str(write_model(tmp_path / "model.gguf")), packed)
    assert next(tries, None) is None
    settings = EngineSettings(kv_memory=4 << 20, threads=1)
    share = Share(remembers=tmp_path / "data" / "sublimate")
    assert load_engine(str(packed), settings, lambda fraction: None, share)[1]["measured_before"]


@pytest.mark.parametrize("quiet", [True, False])
def test_a_second_start_goes_by_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    monkeypatch.setattr(CoreWait, "was_short", lambda self: quiet)
    model = str(write_model(tmp_path / "model.gguf"))
    settings = EngineSettings(kv_memory=4 << 20, threads=1)
    share = Share(remembers=tmp_path)
    seen = [load_engine(model, settings, lambda fraction: None, share)[1] for _ in range(2)]
    assert [info["measured_before"] for info in seen] == [False, quiet]
    assert [info["remembered"] for info in seen] == [quiet, False]
    if quiet:
        assert seen[0]["step_cost"] == seen[1]["step_cost"]
    other = msgspec.structs.replace(settings, context_length=128)
    assert not load_engine(model, other, lambda fraction: None, share)[1]["measured_before"]
    assert not load_engine(model, settings, lambda fraction: None)[1]["measured_before"]
