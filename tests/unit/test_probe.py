"""The probe's report: what it finds, and that each problem comes with advice."""

import socket
from pathlib import Path

import msgspec
import pytest

from sublimate import _core
from sublimate.config import EngineSettings, ServerSettings, Settings
from sublimate.probe import report
from sublimate.probe.report import examine


def settings(tmp_path: Path, model: str = "default", **engine: object) -> Settings:
    server = ServerSettings(port=0, cache_dir=str(tmp_path))
    return Settings(model=model, server=server, engine=EngineSettings(**engine))


def finding(found: report.Report, topic: str) -> report.Finding:
    return next(one for one in found.findings if one.topic == topic)


def test_this_machine_can_serve(tmp_path: Path) -> None:
    found = examine(settings(tmp_path))
    assert found.fits, found.findings
    best = _core.probe()["best_isa"]
    assert best in finding(found, "instruction set").text
    assert finding(found, "model").verdict == "notice", "nothing is fetched yet"
    assert "sublimate pull" in finding(found, "model").advice
    decoded = msgspec.json.decode(msgspec.json.encode(found))
    assert decoded["machine"]["isas"] and decoded["fits"] is True


def test_an_instruction_set_that_is_not_here_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = {"cpu": "Some CPU", "isas": ["ref", "portable"], "best_isa": "portable"}
    monkeypatch.setattr(report._core, "probe", lambda: machine)
    found = examine(settings(tmp_path, isa="amx"))
    one = finding(found, "instruction set")
    assert not found.fits and one.verdict == "problem" and "--isa" in one.advice
    one = finding(examine(settings(tmp_path)), "instruction set")
    assert one.verdict == "notice" and "portable" in one.text


def test_too_little_memory_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_available_memory", lambda: 1 << 30)
    assert finding(examine(settings(tmp_path, kv_memory=1 << 20)), "memory").verdict == "good"
    one = finding(examine(settings(tmp_path)), "memory")
    assert one.verdict == "notice", "a quarter of all memory is more than what is available"
    assert "--kv-memory" in one.advice
    one = finding(examine(settings(tmp_path, kv_memory=1 << 31)), "memory")
    assert one.verdict == "problem" and "--kv-memory" in one.advice
    monkeypatch.setattr(report, "_available_memory", lambda: 0)
    assert finding(examine(settings(tmp_path)), "memory").verdict == "good", "unknown is no problem"


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
    per_token, context = report._kv_of(header)
    assert (per_token, context) == (2 * 30 * 3 * 64 * 2, 8192)
    assert report._kv_of({}) == (0, 0)


def test_a_taken_port_is_a_problem(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        busy = Settings(server=ServerSettings(port=port, cache_dir=str(tmp_path)))
        one = finding(examine(busy), "port")
    assert one.verdict == "problem" and str(port) in one.text and "--port" in one.advice


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


def test_huge_pages_that_are_off_come_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_text(path: Path) -> str:
        return "always madvise [never]\n"

    monkeypatch.setattr(report.Path, "read_text", read_text)
    one = report._huge_pages()
    assert one.verdict == "notice" and "echo madvise >" in one.advice
