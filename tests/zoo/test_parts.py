"""Models in several files: they load as the whole file does, by any part's name, also through
links, and what tells one model from another covers all parts."""

import os
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_bytes import Tensor, model, model_tensors, write_parts
from sublimate import _core
from sublimate.edge.textmodel import load_text_model
from sublimate.engine.loader import check_hardware
from sublimate.errors import ModelError
from sublimate.model.files import locate
from sublimate.model.parts import files_in, first_part
from sublimate.model.source import name_of, stamp, weight_bytes


@pytest.fixture
def tensors() -> list[Tensor]:
    return model_tensors()


@pytest.fixture
def parts(tmp_path: Path, tensors: list[Tensor]) -> list[Path]:
    return write_parts(tmp_path, "tiny", [[], tensors[:3], tensors[3:]])


def logits(path: Path) -> np.ndarray:
    loaded = _core.Model.load(str(path), kv_bytes=1 << 20, threads=1)
    return loaded.logits([5, 7, 11])


def test_parts_are_the_model_in_one_file(tmp_path: Path, parts: list[Path]) -> None:
    whole = tmp_path / "whole.gguf"
    whole.write_bytes(model())
    wanted = logits(whole)
    for path in parts:
        np.testing.assert_array_equal(logits(path), wanted)
    one, many = _core.Gguf(str(whole)), _core.Gguf(str(parts[2]))
    assert (one.parts, many.parts) == (1, 3)
    assert sorted(many.tensors) == sorted(one.tensors)
    assert many.file_bytes == sum(path.stat().st_size for path in parts)


def test_a_server_takes_any_part_for_the_model(tmp_path: Path, parts: list[Path]) -> None:
    for path in parts:
        found = locate(str(path), tmp_path)
        assert found is not None and found.name == "tiny" and found.path == parts[0]
        assert found.size_bytes == sum(part.stat().st_size for part in parts)
    text = load_text_model(str(parts[0]))
    assert text.name == "tiny" and text.file_bytes == weight_bytes(str(parts[0]))
    check_hardware("", str(parts[0]))


def test_parts_behind_links_are_found_by_the_links_names(tmp_path: Path, parts: list[Path]) -> None:
    """As in the cache of a hub, where the files themselves are named by their digests."""
    blobs, links = tmp_path / "blobs", tmp_path / "links"
    blobs.mkdir()
    links.mkdir()
    for number, path in enumerate(parts):
        shutil.move(path, blobs / str(number))
        (links / path.name).symlink_to(blobs / str(number))
    found = locate(str(links / parts[1].name), tmp_path)
    assert found is not None and found.path == links / parts[0].name
    assert _core.Gguf(str(found.path)).parts == 3


def test_the_stamp_is_of_all_parts(parts: list[Path]) -> None:
    before = stamp(str(parts[0]))
    assert before == stamp(str(parts[2])) and len(before) == 4 * len(parts)
    os.utime(parts[2], ns=(1, 1))
    assert stamp(str(parts[0])) != before


def test_names_of_parts(tmp_path: Path) -> None:
    plain = tmp_path / "a-00001.gguf"
    assert files_in(plain) == [plain] and name_of(plain) == "a-00001"
    alone = tmp_path / "a-00002-of-00003.gguf"
    assert files_in(alone) == [alone] == [first_part(alone)] and name_of(alone) == "a"
    for name in ("a-00003-of-00003.gguf", "a-00001-of-00002.gguf", "b-00001-of-00003.gguf"):
        (tmp_path / name).touch()
    assert files_in(alone) == [tmp_path / "a-00003-of-00003.gguf"], "those of one model"


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_part_is_named(tmp_path: Path, parts: list[Path], missing: int) -> None:
    parts[missing].unlink()
    found = locate(str(parts[1 if missing == 0 else 0]), tmp_path)
    assert found is not None
    with pytest.raises(ModelError, match=rf"part {missing + 1} of 3 .*/{parts[missing].name}"):
        load_text_model(str(found.path))


def test_parts_as_the_formats_own_writer_makes_them(tmp_path: Path) -> None:
    """Two tensors a file, each with the keys that the gguf package gives it."""
    writer = gguf.GGUFWriter(tmp_path / "written.gguf", "llama", split_max_tensors=2)
    writer.add_name("written")
    arrays = {f"t{index}": np.full((4, 8), index, dtype=np.float32) for index in range(5)}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = sorted(tmp_path.glob("*.gguf"))
    assert paths[0].name == "written-00001-of-00003.gguf" and len(paths) == 3
    for path in paths:
        read = _core.Gguf(str(path))
        assert read.metadata["general.name"] == "written"
        assert [name for name, *_ in read.tensors] == list(arrays)
