"""The models of a folder: what is one, and what is deleted."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sublimate.cli.main import app
from sublimate.errors import ModelError
from sublimate.model.models_folder import found, models_in, removed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "models"
    made.mkdir()
    (made / "small.gguf").write_bytes(b"x" * 10)
    (made / "small.gguf.json").write_bytes(b"{}")
    for part in (1, 2, 3):
        (made / f"large-0000{part}-of-00003.gguf").write_bytes(b"x" * part)
    whole = made / "whole"
    whole.mkdir()
    (whole / "config.json").write_text('{"model_type": "llama", "torch_dtype": "bfloat16"}')
    (whole / "model.safetensors").write_bytes(b"x" * 7)
    for name in (".hidden.gguf", "small.lock", ".fetch-small-1", "a\x1b[2Jb.gguf", "a\nb.gguf"):
        (made / name).write_bytes(b"")
    (made / "empty").mkdir()
    return made


def test_a_folders_models_are_its_files_and_folders(folder: Path) -> None:
    sizes = {kept.name: kept.size_bytes for kept in models_in(folder)}
    assert sizes == {"small": 10, "large": 6, "whole": 7}
    assert found(folder, "large").path.name == "large-00001-of-00003.gguf"
    assert models_in(folder / "nowhere") == []


def test_what_cannot_be_said_is_passed_over(folder: Path) -> None:
    name = os.fsdecode(b"x\xff")
    (folder / f"{name}.gguf").write_bytes(b"x")
    (folder / "whole").rename(folder / name)
    assert [kept.name for kept in models_in(folder)] == ["large", "small"]


def test_a_model_goes_with_all_that_is_its(folder: Path) -> None:
    assert removed(folder, "small.gguf").name == "small"
    removed(folder, "large")
    removed(folder, "whole")
    left = sorted(path.name for path in folder.iterdir())
    strange = ["a\nb.gguf", "a\x1b[2Jb.gguf"]
    assert left == [".fetch-small-1", ".hidden.gguf", *strange, "empty", "small.lock"]


def test_a_packed_file_is_another_model_than_its_source(folder: Path) -> None:
    (folder / "small.sublimate").write_bytes(b"x" * 20)
    sizes = {kept.name: kept.size_bytes for kept in models_in(folder)}
    assert sizes == {"small": 10, "small.sublimate": 20, "large": 6, "whole": 7}
    assert removed(folder, "small.sublimate").path.name == "small.sublimate"
    assert found(folder, "small").size_bytes == 10


def test_what_a_link_leads_to_stays(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(b"kept")
    elsewhere = tmp_path / "elsewhere"
    (folder / "whole").rename(elsewhere)
    (folder / "linked.gguf").symlink_to(outside)
    (folder / "whole").symlink_to(elsewhere)
    removed(folder, "linked")
    removed(folder, "whole")
    assert outside.read_bytes() == b"kept" and (elsewhere / "model.safetensors").is_file()
    assert [kept.name for kept in models_in(folder)] == ["large", "small"]


def test_of_two_of_one_name_each_is_named_by_what_it_is(folder: Path) -> None:
    (folder / "whole.gguf").write_bytes(b"x" * 9)
    with pytest.raises(ModelError, match=r"are called 'whole': name whole/ or whole\.gguf\."):
        removed(folder, "whole")
    assert removed(folder, "whole/").path.name == "whole"
    assert (folder / "whole.gguf").exists() and not (folder / "whole").exists()
    assert removed(folder, "whole").path.name == "whole.gguf"


@pytest.mark.parametrize("name", ["../outside", "nope", "", "..", "/etc/passwd"])
def test_nothing_outside_is_found(folder: Path, name: str) -> None:
    (folder.parent / "outside.gguf").write_bytes(b"kept")
    with pytest.raises(ModelError, match="There is no model"):
        removed(folder, name)
    assert (folder.parent / "outside.gguf").read_bytes() == b"kept"


def test_the_commands_list_and_delete(folder: Path) -> None:
    runner = CliRunner()
    listed = runner.invoke(app, ["ls", "--library", str(folder)])
    assert listed.exit_code == 0 and "whole" in listed.stdout and "bfloat16" in listed.stdout
    refused = runner.invoke(app, ["rm", "small", "--library", str(folder)])
    assert refused.exit_code == 2 and (folder / "small.gguf").exists(), "nobody was asked"
    deleted = runner.invoke(app, ["rm", "small", "--yes", "--library", str(folder)])
    assert deleted.exit_code == 0 and not (folder / "small.gguf").exists()
    missing = runner.invoke(app, ["rm", "smal", "--yes", "--library", str(folder)])
    assert missing.exit_code == 3
