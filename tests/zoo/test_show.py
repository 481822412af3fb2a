"""`sublimate show`: what a model is, also one that serve refuses, for people and for machines."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from folders import LAYERS, write_folder
from gguf_bytes import (
    CONTEXT,
    F32,
    HIDDEN,
    I32,
    STRING,
    U32,
    VOCABULARY,
    Tensor,
    Value,
    file,
    model,
    model_tensors,
    model_values,
    write_parts,
)
from sublimate import _core
from sublimate.cli.main import app
from sublimate.errors import ModelError
from sublimate.model.card import Card, card_of
from sublimate.model.files import locate


def show(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["show", *arguments], env={"COLUMNS": "300"})


def card(path: Path, content: bytes | None = None, **settings: Any) -> Card:
    if content is not None:
        path.write_bytes(content)
    found = locate(str(path), path.parent)
    assert found is not None
    return card_of(found, **settings)


def test_a_whole_model(tmp_path: Path) -> None:
    told = card(tmp_path / "tiny.gguf", model())
    assert (told.name, told.title, told.architecture) == ("tiny", "A tiny model", "llama")
    assert told.problems == [] and told.files == 1 and told.format == "GGUF 3"
    sizes = told.sizes
    assert (sizes.layers, sizes.hidden, sizes.heads, sizes.kv_heads) == (1, HIDDEN, 2, 1)
    assert (sizes.context_length, sizes.trained_context_length) == (CONTEXT, CONTEXT)
    assert [kind.type for kind in told.types] == ["F32"] and told.types[0].tensors == 11
    assert told.parameters * 4 == told.types[0].bytes
    assert told.tokens.vocabulary == VOCABULARY and told.tokens.kind == "gpt2"
    assert told.tokens.special["eos"] == (2, "<|im_end|>") and not told.tokens.begins
    assert told.tokens.stop == [(2, "<|im_end|>"), (0, "<|endoftext|>")]
    assert told.template.in_file and told.template.report is not None
    assert told.template.thinking == "never" and told.template.report.tools == "text"


@pytest.mark.parametrize("exact", [False, True])
def test_the_memory_is_what_loading_takes(tmp_path: Path, exact: bool) -> None:
    path = tmp_path / "tiny.gguf"
    told = card(path, model(), exact=exact)
    loaded = _core.Model.load(str(path), exact=exact, kv_bytes=1 << 20, threads=1).info
    assert told.memory is not None
    assert told.memory.weights == loaded["weight_bytes"]
    page = loaded["kv_bytes"] // loaded["kv_pages"]
    assert told.memory.kv_token * _core.LIMITS["PAGE_TOKENS"] == page
    assert told.memory.kv_context == CONTEXT * told.memory.kv_token


def test_what_is_not_supported_is_told_all_at_once(tmp_path: Path) -> None:
    """A type, an architecture and a pre-tokenizer; the sizes are those that the file names."""
    values = model_values(tokenizer__ggml__pre=Value(STRING, "viking"))
    values["general.architecture"] = Value(STRING, "mamba")
    values = {key.replace("llama.", "mamba."): entry for key, entry in values.items()}
    tensors = [*model_tensors(), Tensor("more", (256, 2), bytes(132), kind=16)]
    told = card(tmp_path / "alien.gguf", file(values, tensors))
    assert [kind.type for kind in told.types if not kind.supported] == ["IQ2_XXS"]
    wanted = ("types IQ2_XXS", "Architecture 'mamba' is not supported; supported are", "'viking'")
    assert len(told.problems) == len(wanted)
    for problem, part in zip(told.problems, wanted, strict=True):
        assert part in problem
    assert told.memory is None and told.sizes.layers == 1 and told.sizes.head_dim == 16
    shown = show(str(tmp_path / "alien.gguf"))
    assert shown.exit_code == 0 and "It cannot be served." in shown.output
    for part in wanted:
        assert part in shown.output


def test_for_people_and_for_machines(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(model())
    shown = show(str(path))
    assert shown.exit_code == 0
    for part in ("A tiny model", "llama: 1 layers", "F32: 11", f"{CONTEXT} tokens as trained"):
        assert part in shown.output
    assert f"sublimate serve --model {path}" in shown.output
    told = msgspec.json.decode(show(str(path), "--json").output, type=Card)
    assert told == card(path)


def test_parts_links_and_names_that_are_none(tmp_path: Path) -> None:
    tensors = model_tensors()
    paths = write_parts(tmp_path, "split", [tensors[:4], tensors[4:]])
    told = card(paths[1])
    assert told.files == 2 and told.name == "split" and not told.problems
    assert "in 2 files" in show(str(paths[0])).output
    missing = show("smollm2", "--cache-dir", str(tmp_path / "empty"))
    assert missing.exit_code == 3 and "`sublimate pull" in missing.output
    none = show(str(tmp_path / "none.gguf"))
    assert none.exit_code == 3 and "cannot be read: No such file" in none.output


def test_a_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "small", shards=2)
    told = card(folder)
    assert (told.name, told.format, told.files) == ("small", "safetensors", 2)
    assert told.architecture == "llama" and told.sizes.layers == LAYERS
    assert [kind.type for kind in told.types] == ["F32"]
    assert told.memory is not None and told.memory.weights > 0
    assert told.problems == [
        "The file has no tokenizer, so only `sublimate.Engine` can use it, with token ids."
    ]
    assert "safetensors, in 2 files" in show(str(folder)).output


def test_a_packed_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    source = card(path, model())
    packed = tmp_path / "tiny.sublimate"
    _core.convert(str(path), str(packed), quantize="int8", threads=1)
    told = card(packed)
    assert told.format == "packed int8" and told.problems == [] and told.sizes == source.sizes
    loaded = _core.Model.load(str(packed), quantize="int8", kv_bytes=1 << 20, threads=1).info
    assert told.memory is not None and told.memory.weights == loaded["weight_bytes"]
    exact = tmp_path / "exact.sublimate"
    _core.convert(str(path), str(exact), exact=True, threads=1)
    assert card(exact).memory == card(path, exact=True).memory


def test_names_of_the_library_and_of_the_settings(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "mine.gguf").write_bytes(model())
    write_folder(library / "folder")
    settings = tmp_path / "config.toml"
    path = library / "mine.gguf"
    settings.write_text(f'library = "{library}"\n[[models]]\nname = "called so"\npath = "{path}"\n')
    for name in ("mine", "folder", "called so"):
        shown = show(name, "--config", str(settings), "--json")
        assert shown.exit_code == 0, shown.output
        told = msgspec.json.decode(shown.output, type=Card)
        assert told.path.startswith(str(library))
    none = show("other", "--config", str(settings))
    assert none.exit_code == 3 and "'other' is no model that is known here" in none.output


def test_what_a_file_says_cannot_write_on_a_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\n[red]evil[/red]" + "x" * 200
    values = model_values(general__name=Value(STRING, evil))
    told = card(tmp_path / "evil.gguf", file(values, model_tensors()))
    assert "\x1b" not in told.title and "\n" not in told.title and len(told.title) < 100
    assert "[red]evil[/red]" in show(str(tmp_path / "evil.gguf")).output


def test_a_template_that_cannot_be_used(tmp_path: Path) -> None:
    told = card(tmp_path / "t.gguf", model(tokenizer__chat_template=Value(STRING, "{% for %}")))
    assert told.problems == ["The chat template of the model cannot be read."]
    assert told.template.in_file and told.template.report is None
    assert told.tokens.stop, "the tokenizer is all right"


def test_settings_that_the_file_cannot_have(tmp_path: Path) -> None:
    told = card(tmp_path / "tiny.gguf", model(), context_length=4096)
    assert "A context of 4096 tokens is beyond the 64" in told.problems[0]


def test_lists_of_unequal_sizes_are_not_told(tmp_path: Path) -> None:
    unequal = Value(U32, [1, 2])
    changes: dict[str, Value | None] = {"llama__attention__head_count_kv": unequal}
    told = card(tmp_path / "layers.gguf", model(**changes))
    assert "different values" in told.problems[0] and told.sizes.kv_heads == told.sizes.heads
    equal = model(
        llama__attention__head_count_kv=Value(U32, [1, 1]),
        llama__feed_forward_length=Value(I32, [32] * 3),
        llama__context_length=Value(F32, float(CONTEXT)),
    )
    assert card(tmp_path / "equal.gguf", equal).problems == []


def test_what_is_no_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="it is a ZIP archive"):
        card(tmp_path / "zip.gguf", b"PK\x03\x04 archive/data.pkl")
