"""Fetching from a hub, over real HTTP: resume, broken connections, checksums, choice of files."""

import os
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest

from fake_hub import COMMIT, FakeHub
from folders import write_folder
from sublimate.errors import ModelError
from sublimate.model import hub
from sublimate.model.files import fetch, local_models, locate
from sublimate.model.hub_client import HubClient, Listed
from sublimate.model.models_folder import models_in, removed
from sublimate.model.registry import HubRepository
from sublimate.model.source import header_of

NAME = "owner/name"
GGUF = b"GGUF" + bytes(range(256)) * 1000
Told = list[tuple[str, int, int]]


@pytest.fixture
def hubs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[FakeHub]:
    fake = FakeHub()
    fake.files[NAME] = {"model-Q4_K_M.gguf": GGUF, "README.md": b"hello"}
    monkeypatch.setattr("sublimate.model.hub_client.FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "library"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    with fake.serving():
        monkeypatch.setenv("HF_ENDPOINT", fake.address + "/")
        yield fake


def contents(fake: FakeHub) -> list[tuple[str, str]]:
    """(file, range) of what was asked for but listings."""
    return [(p.partition(COMMIT)[2], r) for p, r, _ in fake.asked if not p.startswith("/api/")]


def test_a_file_is_fetched_once_and_found_without_the_network(
    hubs: FakeHub, tmp_path: Path
) -> None:
    assert locate(NAME, tmp_path) is None and not hubs.asked
    told: Told = []
    file = fetch(f"hf:{NAME}", tmp_path, lambda *step: told.append(step))
    assert file.path.read_bytes() == GGUF and file.name == NAME
    assert ("downloading model-Q4_K_M.gguf", len(GGUF), len(GGUF)) in told
    asked = len(hubs.asked)
    assert fetch(NAME, tmp_path) == file and locate(NAME, tmp_path) == file
    assert len(hubs.asked) == asked == 2
    assert [model.name for model in local_models(tmp_path)] == [NAME]
    (kept,) = models_in(tmp_path)
    assert (kept.name, kept.path, kept.size_bytes) == (NAME, file.path, len(GGUF))
    assert not list(tmp_path.rglob("*.part"))
    file.path.write_bytes(GGUF[:-1])
    assert locate(NAME, tmp_path) is None and local_models(tmp_path) == []
    assert fetch(NAME, tmp_path).path.read_bytes() == GGUF


def test_a_broken_connection_is_taken_up_where_it_broke(hubs: FakeHub, tmp_path: Path) -> None:
    hubs.break_after = [100_000, 0, 50_000]
    hubs.fail_with = [503, 429]
    assert fetch(NAME, tmp_path).path.read_bytes() == GGUF
    file = "/model-Q4_K_M.gguf"
    assert contents(hubs)[-4:] == [
        (file, ""),
        (file, "bytes=100000-"),
        (file, "bytes=100000-"),
        (file, "bytes=150000-"),
    ]


def test_what_a_killed_fetch_left_is_not_fetched_again(hubs: FakeHub, tmp_path: Path) -> None:
    hubs.break_after = [70_000] + [0] * 10
    with pytest.raises(ModelError, match="What came so far is kept"):
        fetch(NAME, tmp_path)
    (part,) = tmp_path.rglob("*.part")
    assert part.stat().st_size == 70_000 and locate(NAME, tmp_path) is None
    hubs.break_after, hubs.asked = [], []
    assert fetch(NAME, tmp_path).path.read_bytes() == GGUF
    assert contents(hubs) == [("/model-Q4_K_M.gguf", "bytes=70000-")] and not part.exists()


def test_a_hub_without_ranges_begins_again(hubs: FakeHub, tmp_path: Path) -> None:
    hubs.break_after, hubs.no_ranges = [70_000, 80_000], True
    assert fetch(NAME, tmp_path).path.read_bytes() == GGUF


def test_other_bytes_are_never_kept(hubs: FakeHub, tmp_path: Path) -> None:
    hubs.damage = b"X"
    with pytest.raises(ModelError, match=r"its digest is [0-9a-f]{64}, not .*It was not kept"):
        fetch(NAME, tmp_path)
    assert not [path for path in tmp_path.rglob("*") if "gguf" in path.name]
    # A part of other bytes than those that follow: once more from the beginning.
    hubs.break_after = [70_000] + [0] * 10
    with pytest.raises(ModelError, match="cannot be reached"):
        fetch(NAME, tmp_path)
    hubs.damage, hubs.break_after = b"", []
    assert fetch(NAME, tmp_path).path.read_bytes() == GGUF
    small = {"model-Q4_K_M.gguf": b"GGUF small"}
    hubs.files[NAME], hubs.damage = small, b"Y"
    with pytest.raises(ModelError, match=r"its digest is [0-9a-f]{40}, not "):
        fetch(NAME, tmp_path / "other")


def test_a_part_of_another_content_is_left_alone(hubs: FakeHub, tmp_path: Path) -> None:
    hubs.break_after = [70_000] + [0] * 10
    with pytest.raises(ModelError):
        fetch(NAME, tmp_path)
    hubs.break_after, hubs.asked = [], []
    hubs.files[NAME]["model-Q4_K_M.gguf"] = GGUF[::-1]
    assert fetch(NAME, tmp_path).path.read_bytes() == GGUF[::-1]
    assert contents(hubs) == [("/model-Q4_K_M.gguf", "")]


def test_a_whole_folder(hubs: FakeHub, tmp_path: Path) -> None:
    """What makes a model of it, and nothing else."""
    made = write_folder(tmp_path / "made", shards=2)
    files = {path.name: path.read_bytes() for path in made.iterdir()}
    others = {"pytorch_model.bin": b"x" * 5000, "extra.safetensors": b"y", "a/config.json": b"{}"}
    texts = {"tokenizer.json": b"{}", "additional_chat_templates/tool_use.jinja": b"for tools"}
    hubs.files[NAME] = files | others | texts | {"additional_chat_templates/rag.jinja": b"z"}
    file = fetch(NAME, tmp_path / "models")
    every = [path.relative_to(file.path) for path in file.path.rglob("*") if path.is_file()]
    assert {str(path) for path in every} == {*files, *texts, ".sublimate.json"}
    assert file.name == NAME
    assert len(header_of(str(file.path)).tensors) == 21
    assert locate(NAME, tmp_path / "models") == file
    assert [kept.name for kept in models_in(tmp_path / "models")] == [NAME]
    (file.path / "tokenizer.json").unlink()
    assert locate(NAME, tmp_path / "models") is None
    hubs.asked.clear()
    assert fetch(NAME, tmp_path / "models") == file
    assert contents(hubs) == [("/tokenizer.json", "")]
    removed(tmp_path / "models", NAME)
    assert not file.path.exists() and locate(NAME, tmp_path / "models") is None


def test_a_folder_whose_index_lies(hubs: FakeHub, tmp_path: Path) -> None:
    index = {"weight_map": {"a": "../../x.safetensors"}}
    files = {"config.json": b"{}", "model.safetensors.index.json": msgspec.json.encode(index)}
    hubs.files[NAME] = files
    with pytest.raises(ModelError, match="is no safetensors file of this folder"):
        fetch(NAME, tmp_path)
    index = {"weight_map": {"a": "x.safetensors"}}
    hubs.files[NAME] = files | {"model.safetensors.index.json": msgspec.json.encode(index)}
    with pytest.raises(ModelError, match=r"but not x\.safetensors"):
        fetch(NAME, tmp_path)


def test_a_file_in_several_parts(hubs: FakeHub, tmp_path: Path) -> None:
    parts = {f"Q8/m-Q8_0-0000{i}-of-00002.gguf": GGUF[i:] for i in (1, 2)}
    hubs.files[NAME] |= parts
    file = fetch(f"{NAME}:q8_0", tmp_path)
    assert file.path.name == "m-Q8_0-00001-of-00002.gguf"
    assert {path.name for path in file.path.parent.iterdir()} == {p[3:] for p in parts}
    fetch(NAME, tmp_path)
    assert [kept.name for kept in models_in(tmp_path)] == [NAME, f"{NAME}:q8_0"]
    removed(tmp_path, f"{NAME}:q8_0")
    assert not list(file.path.parent.iterdir())
    assert [kept.name for kept in models_in(tmp_path)] == [NAME]
    del hubs.files[NAME]["Q8/m-Q8_0-00002-of-00002.gguf"]
    with pytest.raises(ModelError, match="but not Q8/m-Q8_0-00002-of-00002"):
        fetch(f"{NAME}:q8_0", tmp_path / "other")


def test_choice_of_a_file() -> None:
    names = ["a-Q4_1.gguf", "a-Q8_0.gguf", "a-f16.gguf", "README.md"]
    assert hub.choose(names, HubRepository("o/r", "")) == "a-Q4_1.gguf"
    assert hub.choose(names, HubRepository("o/r", "q8_0")) == "a-Q8_0.gguf"
    assert hub.choose([*names, "a-Q4_K_M.gguf"], HubRepository("o/r", "")) == "a-Q4_K_M.gguf"
    assert hub.choose(["only.gguf"], HubRepository("o/r", "")) == "only.gguf"
    assert hub.choose(["x/a.gguf", "x/a.gguf.gguf"], HubRepository("o/r", "x/a.gguf")) == "x/a.gguf"
    for wrong in ("a-", "nothing"):
        with pytest.raises(ModelError, match=r"does not name one file of o/r: a-Q4_1\.gguf, a-Q8"):
            hub.choose(names, HubRepository("o/r", wrong))
    with pytest.raises(ModelError, match=r"name one as o/r:PART of x\.gguf, y\.gguf"):
        hub.choose(["x.gguf", "y.gguf"], HubRepository("o/r", ""))
    folder = ["config.json", "model.safetensors"]
    assert hub.choose(folder, HubRepository("o/r", "")) == ""
    with pytest.raises(ModelError, match=r"holds no \.gguf file and safetensors only"):
        hub.choose(folder, HubRepository("o/r", "q4"))
    with pytest.raises(ModelError, match=r"holds no \.gguf file and no safetensors"):
        hub.choose(["README.md"], HubRepository("o/r", ""))


def test_what_the_hub_does_not_show(hubs: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no repository owner/other"):
        fetch("owner/other", tmp_path)
    hubs.fail_with = [403]
    with pytest.raises(ModelError, match=r"does not show owner/name \(403\).*set HF_TOKEN"):
        fetch(NAME, tmp_path)
    hubs.fail_with = [418]
    with pytest.raises(ModelError, match="answers 418 for"):
        fetch(NAME, tmp_path)
    hubs.files[NAME] = {"README.md": b"x", "pytorch_model.bin": b"x"}
    with pytest.raises(ModelError, match="Pickled weights are never read"):
        fetch(NAME, tmp_path)


def test_the_token_is_for_the_hub_alone(
    hubs: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hubs.token = "secret"
    with pytest.raises(ModelError, match="set HF_TOKEN"):
        fetch(NAME, tmp_path)
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(ModelError, match="HF_TOKEN does not open it"):
        fetch(NAME, tmp_path)
    monkeypatch.setenv("HF_TOKEN", "secret")
    elsewhere = FakeHub()
    elsewhere.files = hubs.files
    with elsewhere.serving():
        hubs.redirect_to = elsewhere.address
        elsewhere.break_after = [1000]
        assert fetch(NAME, tmp_path).path.read_bytes() == GGUF
    assert {a for _, _, a in elsewhere.asked} == {""} and len(elsewhere.asked) == 2
    hubs.redirect_to, hubs.redirects_left = hubs.address, 1
    assert fetch(NAME, tmp_path / "again").path.read_bytes() == GGUF
    assert {a for _, _, a in hubs.asked[-3:]} == {"Bearer secret"}


def test_a_hub_that_cannot_be_reached(
    hubs: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    reason = r"http://127\.0\.0\.1:1 cannot be reached for owner/name: Connection refused.*HF_ENDPO"
    with pytest.raises(ModelError, match=reason):
        fetch(NAME, tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    with pytest.raises(ModelError, match="is no http or https address"):
        fetch(NAME, tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", hubs.address)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE says"):
        fetch(NAME, tmp_path)
    assert not hubs.asked


@pytest.mark.parametrize(
    "body", [b"<html>", b"{}", b"[" * 100_000, b'{"sha":"../x","siblings":[]}']
)
def test_what_is_no_hub(
    hubs: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr(FakeHub, "listing", lambda self, name: body)
    with pytest.raises(ModelError, match=r"does not answer as a hub does|no usual revision"):
        fetch(NAME, tmp_path)


def test_names_that_lead_out_of_the_folder_are_no_files(hubs: FakeHub) -> None:
    hubs.files[NAME] = dict.fromkeys(
        ["../a.gguf", "/etc/b.gguf", "a/../c.gguf", ".d.gguf", "a//e.gguf", "f(2).gguf", "ok.gguf"],
        b"GGUF",
    )
    assert list(HubClient(os.environ).listing(NAME).files) == ["ok.gguf"]


def test_a_disk_that_is_full_is_told(
    hubs: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = tmp_path / "models"
    blocker.write_text("")
    with pytest.raises(ModelError, match="cannot be kept in"):
        fetch(NAME, blocker)

    def full(self: HubClient, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(HubClient, "_append", full)
    with pytest.raises(ModelError, match=r"cannot be kept in .*No space left"):
        fetch(NAME, tmp_path)


def test_the_cache_of_the_hubs_own_library(hubs: FakeHub, tmp_path: Path) -> None:
    place = tmp_path / "library" / "hub" / "models--owner--name"
    snapshot = place / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    assert locate(NAME, tmp_path / "models") is None
    blob = place / "blob"
    blob.write_bytes(GGUF)
    (snapshot / "x-Q8_0.gguf").symlink_to(blob)
    found = locate(f"{NAME}:q8", tmp_path / "models")
    assert found is not None and found.size_bytes == len(GGUF) and not hubs.asked
    (snapshot / "x-Q8_0.gguf").unlink()
    write_folder(snapshot, shards=2)
    shard = snapshot / "model-00002-of-00002.safetensors"
    whole = locate(NAME, tmp_path / "models")
    assert whole is not None and whole.path == snapshot
    shard.unlink()
    assert locate(NAME, tmp_path / "models") is None, "a fetch that was broken off"
    (place / "refs" / "main").write_text("../../x")
    assert locate(NAME, tmp_path / "models") is None


def test_digests() -> None:
    """Git's of a blob, and SHA-256."""
    small = Listed("a", 5, "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0")
    hasher = small.hasher()
    hasher.update(b"hello")
    assert hasher.hexdigest() == small.digest
    assert Listed("a", 5, "0" * 64).hasher().name == "sha256"
