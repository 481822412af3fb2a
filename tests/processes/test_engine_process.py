"""The engine process alone, driven over its control channel."""

import os
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gguf_bytes import model as whole_model
from sublimate import _core
from sublimate.config import EngineSettings
from sublimate.control import channel
from sublimate.control.child import spawn
from sublimate.engine import mapped
from sublimate.supervisor.shared_weights import SharedWeights

SCRIPT = '{"answers":[[[5],[7,8,9]]],"vocabulary":100}'


class EngineChild:
    """An engine process and what it says."""

    def __init__(self, script: str, model: str = "/nonexistent") -> None:
        self.prefixes: _core.PrefixTable | None = None
        self.weights: SharedWeights[int] | None = None
        self.process, self.control = spawn("sublimate.engine", channel.FromEngine)
        self.control.send(
            channel.Load(
                settings=EngineSettings(script=script, kv_memory=4 << 20), model_path=model
            )
        )

    def next(self) -> Any:
        ready, _, _ = select.select([self.control.fileno()], [], [], 20)
        assert ready, "the engine says nothing"
        received = self.control.receive()
        if received is None:
            return None
        if isinstance(received.message, channel.Ready):
            (fd,) = received.fds
            self.prefixes = _core.PrefixTable.attach(fd)
        if isinstance(received.message, channel.Weights):
            self.weights = SharedWeights()
            self.weights.take(received.fds)
        for fd in received.fds:
            os.close(fd)
        return received.message

    def end(self) -> None:
        self.control.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[EngineChild]:
    script = tmp_path / "script.json"
    script.write_text(SCRIPT)
    running = EngineChild(str(script))
    yield running
    running.end()


def test_edges_come_and_go_more_often_than_there_are_places(child: EngineChild) -> None:
    assert isinstance(child.next(), channel.Ready)
    for edge in range(3 * _core.LIMITS["EDGES_MAX"]):
        region = _core.Region.create(100)
        child.control.send(channel.Attach(edge=edge), region.fds)
        assert child.next() == channel.Attached(edge=edge)
        assert region.stats()["accepted"] == 0
        child.control.send(channel.Detach(edge=edge))
        child.control.send(channel.Detach(edge=12345 + edge))


def test_it_hands_out_what_tells_of_its_pages(child: EngineChild) -> None:
    ready = child.next()
    assert child.prefixes is not None
    load = child.prefixes.load()
    assert load["pages_total"] == load["pages_available"] == ready.info["kv_pages"]


def test_stop_ends_it_cleanly(child: EngineChild) -> None:
    assert isinstance(child.next(), channel.Ready)
    child.control.send(channel.Stop())
    assert child.process.wait(5) == 0


def test_it_ends_when_the_supervisor_is_gone(child: EngineChild) -> None:
    assert isinstance(child.next(), channel.Ready)
    child.control.close()
    assert child.process.wait(5) == 0


def test_a_wrong_script_is_a_failed_message_and_an_end(tmp_path: Path) -> None:
    child = EngineChild(str(tmp_path / "absent"))
    failed = child.next()
    assert isinstance(failed, channel.Failed) and "cannot be read" in failed.message
    assert child.process.wait(5) == 0
    child.end()


def test_it_imports_only_what_it_needs(child: EngineChild) -> None:
    """No numpy, tokenizer or web server beside the loop: their libraries are not mapped."""
    assert isinstance(child.next(), channel.Ready)
    time.sleep(0.1)
    mapped = Path(f"/proc/{child.process.pid}/maps").read_text()
    assert "_core" in mapped and "msgspec" in mapped
    for name in ("numpy", "tokenizers", "uvloop", "httptools", "minijinja"):
        assert name not in mapped, name


def test_it_holds_no_descriptor_but_its_own(child: EngineChild) -> None:
    """Standard streams, the control socket, the loop's bell; no socket that listens."""
    assert isinstance(child.next(), channel.Ready)
    time.sleep(0.1)  # the loop's thread has named itself, which took one for a moment
    targets = [
        str(path.readlink())
        for path in Path(f"/proc/{child.process.pid}/fd").iterdir()
        if int(path.name) > 2
    ]
    sockets = [target for target in targets if target.startswith("socket:")]
    assert len(sockets) == 1 and len(targets) <= 4, targets


# ---- the file that it maps -----------------------------------------------------------------------
@pytest.fixture
def packed(tmp_path: Path) -> Path:
    source, target = tmp_path / "m.gguf", tmp_path / "m.sublimate"
    source.write_bytes(whole_model())
    _core.convert(str(source), str(target), threads=1)
    return target


def test_an_engine_whose_packed_file_is_written_into_ends(packed: Path) -> None:
    running = EngineChild("", str(packed))
    try:
        while not isinstance(message := running.next(), channel.Ready):
            assert not isinstance(message, channel.Failed), message
        assert message.info["weights_mapped"]
        with packed.open("r+b") as file:
            file.seek(-8, os.SEEK_END)
            file.write(bytes(8))
        told = running.next()
        assert isinstance(told, channel.Failed) and "was written into" in told.message
        assert running.process.wait(5) != 0
    finally:
        running.end()


def test_a_file_that_takes_its_place_is_no_change(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "LOOK_SECONDS", 0.01)
    told: list[str] = []
    file = mapped.MappedFile(str(packed))
    file.watch(told.append)
    before = packed.with_name("before")
    packed.rename(before)
    packed.write_bytes(b"another")
    file.watch(told.append)
    time.sleep(0.1)
    assert told == []
    with before.open("r+b") as one:
        one.write(bytes(8))
    end = time.monotonic() + 5
    while not told and time.monotonic() < end:
        time.sleep(0.01)
    assert len(told) == 1 and str(packed) in told[0]
    mapped.MappedFile(str(packed.with_name("nowhere"))).watch(told.append)
