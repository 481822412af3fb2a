"""Folders that lie, are cut short, or hold something else: one line says what is wrong."""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from folders import random_tensors, write_folder, write_json, write_safetensors
from sublimate.errors import ModelError
from sublimate.model.files import fetch
from sublimate.model.folder import documents
from sublimate.model.folder.safetensors import HEADER_BYTES_MAX, read_shards
from sublimate.model.source import files_of, header_of

Damage = Callable[[Path], None]
NORM = "model.norm.weight"
INDEX = "model.safetensors.index.json"


def rewritten(**header: Any) -> Damage:
    def damage(folder: Path) -> None:
        write_safetensors(folder / "model.safetensors", random_tensors(), **header)

    return damage


def replaced(name: str, content: bytes | str | object) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            write_json(path, content)

    return damage


def cut(count: int) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:count])

    return damage


def renamed(old: str, new: str) -> Damage:
    return lambda folder: (folder / old).rename(folder / new) and None


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def pipe(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return damage


def indexed(weight_map: object) -> Damage:
    return replaced(INDEX, {"weight_map": weight_map})


def entry(dtype: str = "F32", shape: object = (64,), offsets: object = (0, 256)) -> dict[str, Any]:
    return {NORM: {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


DAMAGED: dict[str, tuple[Damage, str]] = {
    "no config": (renamed("config.json", "x.json"), "is no model: it has no config.json"),
    "config is no JSON": (replaced("config.json", b"{"), "config.json is damaged"),
    "config is a list": (replaced("config.json", [1]), "config.json is damaged"),
    "config is deep": (replaced("config.json", b"[" * 100_000), "config.json is damaged"),
    "config is not UTF-8": (replaced("config.json", b'{"a":"\xff"}'), "config.json is damaged"),
    "config is a pipe": (pipe("config.json"), "config.json is not a regular file"),
    "config is a link to nothing": (
        lambda folder: (
            (folder / "config.json").unlink() or (folder / "config.json").symlink_to("none")
        ),
        "config.json cannot be read",
    ),
    "no weights": (renamed("model.safetensors", "x"), "neither model.safetensors nor"),
    "pickled weights": (
        renamed("model.safetensors", "pytorch_model.bin"),
        "can run any code when it is loaded, and is never read. Take a repository with",
    ),
    "weights are a pipe": (pipe("model.safetensors"), "is not a regular file"),
    "an empty file": (cut(0), "header is longer than the file"),
    "a short length": (cut(7), "header is longer than the file"),
    "only a length": (cut(8), "header is longer than the file"),
    "within the header": (cut(200), "header is longer than the file"),
    "within the data": (cut(5000), "may be cut short"),
    "the last byte": (cut(-1), "may be cut short"),
    "a huge length": (
        replaced("model.safetensors", struct.pack("<Q", (1 << 64) - 1) + b"{}"),
        "header is longer than the file",
    ),
    "a header that is no JSON": (
        replaced("model.safetensors", struct.pack("<Q", 2) + b"{]"),
        "model.safetensors is damaged",
    ),
    "an entry that is a number": (rewritten(**{NORM: 5}), "is damaged: Expected `object`"),
    "a tensor beyond the file": (
        rewritten(**entry(offsets=(0, 1 << 62))),
        "lies outside the file",
    ),
    "a tensor that ends before it begins": (
        rewritten(**entry(offsets=(256, 0))),
        "lies outside the file",
    ),
    "a negative offset": (rewritten(**entry(offsets=(-4, 252))), "lies outside the file"),
    "a negative dimension": (rewritten(**entry(shape=(-64,))), "lies outside the file"),
    "tensors that overlap": (rewritten(**entry()), "overlap or leave a gap"),
    "bytes of nobody": (
        lambda folder: longer(folder / "model.safetensors"),
        "bytes at its end are no tensor's",
    ),
    "an alien type": (rewritten(**{NORM: None}), "is damaged"),
    "an index that leads out": (indexed({NORM: "../model.safetensors"}), "no safetensors file of"),
    "an index of a root": (indexed({NORM: "/etc/passwd"}), "is no safetensors file of"),
    "an index of a pickle": (indexed({NORM: "model.bin"}), "is no safetensors file of this"),
    "an index of a hidden file": (indexed({NORM: ".safetensors"}), "is no safetensors file"),
    "an index of nothing": (indexed({}), "names 0 files"),
    "an index of numbers": (indexed({NORM: 5}), "index.json is damaged"),
    "an index of many": (indexed({f"t{i}": f"{i}.safetensors" for i in range(1025)}), "1025 files"),
    "an index of a file that is not here": (
        indexed({NORM: "model-2.safetensors"}),
        "model-2.safetensors cannot be read: No such file",
    ),
    "an index of a tensor that is not there": (
        indexed({"model.other.weight": "model.safetensors"}),
        "has no tensor 'model.other.weight', which",
    ),
    "an adapter": (renamed("config.json", "adapter_config.json"), "is an adapter; name the model"),
    "GGUF files": (renamed("config.json", "a.gguf"), r"folder of GGUF files; name one: .*a\.gguf"),
}


@pytest.mark.parametrize("name", list(DAMAGED))
def test_what_is_wrong_is_told(tmp_path: Path, name: str) -> None:
    damage, text = DAMAGED[name]
    folder = write_folder(tmp_path / "model")
    assert header_of(str(folder)).tensors
    damage(folder)
    with pytest.raises(ModelError, match=text) as failure:
        header_of(str(folder))
    assert "\n" not in str(failure.value) and str(tmp_path) in str(failure.value)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"dtype": "F64", "size": 512}, "has the type F64; of safetensors F32, F16 and BF16"),
        ({"dtype": "F16", "size": 256}, "bytes do not fit its shape"),
        ({"shape": (8, 8, 1, 1, 1)}, "has 5 dimensions"),
        ({"shape": ()}, "has 0 dimensions"),
        ({"shape": (0, 64)}, "bytes do not fit its shape"),
        ({"shape": (1 << 40, 1 << 40)}, "bytes do not fit its shape"),
    ],
)
def test_a_tensor_that_does_not_fit_itself(
    tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    """It lies where it should, and says something else of itself."""
    size = changes.pop("size", 256)
    told = {"dtype": "F32", "shape": (64,), "data_offsets": (0, size)} | changes
    header = msgspec.json.encode({"model.embed_tokens.weight": told})
    folder = write_folder(tmp_path / "model")
    whole = struct.pack("<Q", len(header)) + header + bytes(size)
    (folder / "model.safetensors").write_bytes(whole)
    with pytest.raises(ModelError, match=text):
        files_of(str(folder))


def test_one_tensor_in_two_files(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", shards=2)
    first, second = sorted(folder.glob("*.safetensors"))
    second.write_bytes(first.read_bytes())
    with pytest.raises(ModelError, match="is in another file as well"):
        read_shards(folder)


def test_bounds(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", HEADER_BYTES_MAX + 1))
        file.truncate(HEADER_BYTES_MAX + 100)
    with pytest.raises(ModelError, match="this server reads 16 MiB"):
        read_shards(folder)
    with (folder / "config.json").open("ab") as file:
        file.truncate(documents.DOCUMENT_BYTES_MAX + 1)
    with pytest.raises(ModelError, match=r"config\.json is longer than 4 MiB"):
        files_of(str(folder))


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("any")
    write_json(folder / "config.json", {})
    for content in (data, struct.pack("<Q", len(data)) + data):
        (folder / "model.safetensors").write_bytes(content)
        try:
            assert read_shards(folder).tensors == {}, "nothing but an empty object is one"
        except ModelError as error:
            assert str(folder) in str(error)


def test_a_folder_is_a_model_by_its_path(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "Some-0.5B-Model")
    file = fetch(str(folder), tmp_path)
    assert file.path == folder and file.name == "Some-0.5B-Model"
    assert file.size_bytes == (folder / "model.safetensors").stat().st_size


def test_a_folder_whose_name_is_no_text_has_one_all_the_same(tmp_path: Path) -> None:
    """A link to it is a model by the link's name; the folder's own is in the header."""
    folder = write_folder(tmp_path / os.fsdecode(b"model-\xff"))
    (tmp_path / "link").symlink_to(folder)
    assert header_of(str(tmp_path / "link")).metadata["general.name"] == "model-?"
