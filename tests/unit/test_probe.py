"""The probe's report: what it finds, and that each problem comes with advice."""

import errno
import os
import socket
from pathlib import Path

import msgspec
import pytest

from sublimate import _core
from sublimate.config import EngineSettings, ServerSettings, Settings
from sublimate.probe import report
from sublimate.probe.machine import machine_of
from sublimate.probe.report import examine
from sublimate.probe.source import HostSource, RecordedSource, RecordingSource, Source


def settings(tmp_path: Path, model: str = "default", **engine: object) -> Settings:
    server = ServerSettings(port=0, cache_dir=str(tmp_path))
    return Settings(model=model, server=server, engine=EngineSettings(**engine))


def finding(found: report.Report, topic: str) -> report.Finding:
    return next(one for one in found.findings if one.topic == topic)


def with_memory(source: Source, total_bytes: int, available_bytes: int) -> Source:
    """Another machine's memory; everything else as it is."""
    kept = RecordingSource(source)
    machine_of(kept)
    lines = {"MemTotal": total_bytes, "MemAvailable": available_bytes}
    text = "".join(f"{name}: {size // 1024} kB\n" for name, size in lines.items())
    recording = kept.recording
    files = {**recording.files, "/proc/meminfo": text, "/proc/self/cgroup": ""}
    return RecordedSource(msgspec.structs.replace(recording, files=files))


def test_this_machine_can_serve(tmp_path: Path) -> None:
    found = examine(settings(tmp_path), measure=True)
    assert found.fits, found.findings
    best = _core.probe()["best_isa"]
    assert found.backend == f"cpu-{best}" and found.backend in finding(found, "processor").text
    assert finding(found, "model").verdict == "notice", "nothing is fetched yet"
    assert "sublimate pull" in finding(found, "model").advice
    assert found.machine.memory.read_bytes_per_s > 1e8, "slower than a disk"
    assert "GB/s" in finding(found, "bandwidth").text
    decoded = msgspec.json.decode(msgspec.json.encode(found))
    assert decoded["machine"]["cpu"]["isas"] and decoded["fits"] is True


def test_an_instruction_set_that_is_not_here_is_a_problem(tmp_path: Path) -> None:
    kept = RecordingSource(HostSource())
    machine_of(kept)
    process = msgspec.structs.replace(kept.process(), isas=("ref", "portable"))
    slow = RecordedSource(msgspec.structs.replace(kept.recording, process=process))
    found = examine(settings(tmp_path, isa="amx"), slow)
    one = finding(found, "processor")
    assert not found.fits and one.verdict == "problem" and "--isa" in one.advice
    one = finding(examine(settings(tmp_path), slow), "processor")
    assert one.verdict == "notice" and "cpu-portable" in one.text
    one = finding(examine(settings(tmp_path, isa="ref"), slow), "processor")
    assert one.verdict == "notice" and "for tests" in one.text


def test_too_little_memory_is_a_problem(tmp_path: Path) -> None:
    small = with_memory(HostSource(), 16 << 30, 1 << 30)
    found = examine(settings(tmp_path, kv_memory=1 << 20), small)
    assert finding(found, "memory").verdict == "good"
    one = finding(examine(settings(tmp_path), small), "memory")
    assert one.verdict == "notice", "a quarter of all memory is more than what is available"
    assert "--kv-memory" in one.advice
    one = finding(examine(settings(tmp_path, kv_memory=1 << 31), small), "memory")
    assert one.verdict == "problem" and "--kv-memory" in one.advice
    unknown = with_memory(HostSource(), 16 << 30, 0)
    assert finding(examine(settings(tmp_path), unknown), "memory").verdict == "good", "no problem"


def test_keys_and_values_are_counted_from_the_header() -> None:
    """The default model's figures: 30 layers, 3 of 9 heads with keys and values of 64 each."""
    name = "llama"
    header = {
        "general.architecture": name,
        f"{name}.block_count": 30,
        f"{name}.attention.head_count": 9,
        f"{name}.attention.head_count_kv": 3,
        f"{name}.embedding_length": 576,
        f"{name}.context_length": 8192,
    }
    values = 2 * 30 * 3 * 64
    assert report._kv_of(header, "bf16") == (values * 2, 8192)
    assert report._kv_of(header, "f32") == (values * 4, 8192)
    assert report._kv_of(header, "int8") == (values + 2 * 30 * 3 * 4, 8192)
    assert report._kv_of({}, "bf16") == (0, 0)


def test_a_taken_port_is_a_problem(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        busy = Settings(server=ServerSettings(port=port, cache_dir=str(tmp_path)))
        one = finding(examine(busy), "port")
    assert one.verdict == "problem" and str(port) in one.text and "--port" in one.advice


@pytest.mark.parametrize("host", ["a" * 300, "no such host", "192.0.2.1"])
def test_a_host_that_is_none_of_ours_is_a_problem(tmp_path: Path, host: str) -> None:
    settings = Settings(server=ServerSettings(host=host, port=1, cache_dir=str(tmp_path)))
    one = finding(examine(settings), "port")
    assert one.verdict == "problem" and host in one.text and "--host" in one.advice


def test_a_kernel_without_that_family_of_addresses_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: int) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(socket, "socket", refuses)
    settings = Settings(server=ServerSettings(host="::", port=1, cache_dir=str(tmp_path)))
    assert "not supported" in finding(examine(settings), "port").text


def test_a_file_that_is_no_model_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"not a model")
    one = finding(examine(settings(tmp_path, str(path))), "model")
    assert one.verdict == "problem" and "x.gguf" in one.text
    one = finding(examine(settings(tmp_path, "/absent.gguf")), "model")
    assert one.verdict == "problem" and "cannot be read" in one.text


def test_more_threads_than_cores_is_noticed(tmp_path: Path) -> None:
    one = finding(examine(settings(tmp_path, threads=1000)), "cores")
    assert one.verdict == "notice" and "--threads" in one.advice


def test_huge_pages_that_are_off_come_with_the_command(tmp_path: Path) -> None:
    kept = RecordingSource(HostSource())
    machine_of(kept)
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    files = {**kept.recording.files, path: "always madvise [never]\n"}
    off = RecordedSource(msgspec.structs.replace(kept.recording, files=files))
    one = finding(examine(settings(tmp_path), off), "huge pages")
    assert one.verdict == "notice" and "echo madvise >" in one.advice
