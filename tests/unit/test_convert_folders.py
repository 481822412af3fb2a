"""`sublimate convert` of Hugging Face folders: the same weights, the same text."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from folders import HEAD, VOCABULARY, random_tensors, write_folder, write_json
from sublimate import _core
from sublimate.cli.convert import convert
from sublimate.cli.serve import check_header
from sublimate.edge.textmodel import load_text_model
from sublimate.errors import ModelError
from sublimate.model.card import card_of
from sublimate.model.files import locate
from sublimate.model.folder.packed_text import packed_text, unpacked_text
from sublimate.model.source import files_of, metadata_of
from sublimate.model.tokenizer import tokenizer_from_metadata
from sublimate.model.turns import said
from test_folder_texts import MADE, PHRASES, TEMPLATE, folder_with, learnt, reference, texts_tensors
from test_folder_weights import mixture

SETTINGS = {"chat_template": TEMPLATE, "eos_token": "<|end|>", "add_bos_token": False}


@pytest.fixture(autouse=True)
def without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a start would measure (tests/unit/test_remember.py) takes longer than all else here."""
    monkeypatch.setattr("sublimate.cli.convert._measure", lambda *given: None)


def whole_folder(folder: Path) -> Path:
    """With weights and a tokenizer of as many tokens."""
    document = reference("llama3")
    size = document.get_vocab_size(with_added_tokens=True)
    tensors = random_tensors()
    random = np.random.default_rng(1)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = random.standard_normal((size, 64)).astype(np.float32) / 8
    write_folder(folder, tensors, dtype="BF16", shards=2, vocab_size=size)
    (folder / "tokenizer.json").write_text(document.to_str())
    write_json(folder / "tokenizer_config.json", SETTINGS)
    write_json(folder / "generation_config.json", {"do_sample": True, "temperature": 0.4})
    return folder


def test_a_packed_folder_answers_as_the_folder(tmp_path: Path) -> None:
    folder = whole_folder(tmp_path / "m")
    packed = tmp_path / "m.sublimate"
    convert(str(folder), packed)
    check_header(str(packed))
    of_folder = files_of(str(folder))
    memory = {"kv_bytes": 4 << 20, "threads": 1}
    one = _core.Model.load(str(folder), header=of_folder.header, files=of_folder.files, **memory)
    two = _core.Model.load(str(packed), **memory)
    ids = [2, 3, 6, 7, 2, 5]
    for decode in (False, True):
        assert np.array_equal(one.logits(ids, decode=decode), two.logits(ids, decode=decode))
    assert two.info["weights_mapped"]
    found = metadata_of(str(packed))
    assert found == metadata_of(str(folder)) | {"general.alignment": 1}
    texts = [load_text_model(str(path)) for path in (folder, packed)]
    rendered = [text.template.render([said("user", PHRASES[0])]) for text in texts]
    assert rendered[0].text == rendered[1].text and rendered[0].text.startswith("<|turn|>")
    encoded = [
        text.conversations.encode(one, b"").tolist()
        for text, one in zip(texts, rendered, strict=True)
    ]
    assert encoded[0] == encoded[1] and len(encoded[0]) > 3
    file = locate(str(packed), tmp_path)
    assert file is not None
    card = card_of(file)
    assert not card.problems and card.tokens is not None and card.tokens.kind == "tokenizer.json"


def test_a_packed_folder_needs_the_folder_no_more(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", random_tensors(), dtype="F16")
    convert(str(folder), tmp_path / "m.sublimate", quantize="int8")
    for path in folder.iterdir():
        path.unlink()
    model = _core.Model.load(str(tmp_path / "m.sublimate"), kv_bytes=4 << 20, threads=1)
    assert model.info["quantize"] == "int8" and model.logits([1, 2, 3]).shape == (3, VOCABULARY)


@pytest.mark.parametrize("quantize", ["", "int8"])
def test_experts_are_packed_as_they_are_loaded(tmp_path: Path, quantize: str) -> None:
    changes = {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": HEAD}
    changes |= {"moe_intermediate_size": 32, "norm_topk_prob": True}
    names = ["Qwen3MoeForCausalLM"]
    folder = write_folder(tmp_path / "m", mixture(), architectures=names, **changes)
    convert(str(folder), tmp_path / "m.sublimate", quantize=quantize or None)
    of_folder = files_of(str(folder))
    memory = {"kv_bytes": 4 << 20, "threads": 1}
    one = _core.Model.load(
        str(folder), header=of_folder.header, files=of_folder.files, quantize=quantize, **memory
    )
    two = _core.Model.load(str(tmp_path / "m.sublimate"), **memory)
    for decode in (False, True):
        assert np.array_equal(
            one.logits([5, 9, 2], decode=decode), two.logits([5, 9, 2], decode=decode)
        )


@pytest.mark.parametrize("name", [*MADE, "bpe", "sentencepiece", "nmt_nfkc"])
def test_text_goes_through_a_file_as_it_is(tmp_path: Path, name: str) -> None:
    if name in MADE:
        folder = folder_with(tmp_path / "m", reference(name), **SETTINGS)
    else:
        kind, rule = ("bpe" if name == "bpe" else "unigram"), "identity"
        content, wanted = learnt(kind, name if name == "nmt_nfkc" else rule)
        folder = write_folder(tmp_path / "m", texts_tensors(len(wanted)))
        (folder / "tokenizer.model").write_bytes(content)
    metadata = metadata_of(str(folder))
    again = metadata | unpacked_text("m", packed_text(metadata))
    assert again == metadata
    for text in PHRASES[:5]:
        ids = tokenizer_from_metadata(metadata).encode_rendered(text)
        assert tokenizer_from_metadata(again).encode_rendered(text) == ids


def test_a_text_that_is_damaged_is_told(tmp_path: Path) -> None:
    for text in ("", "{", "[]", msgspec.json.encode({"keys": {}, "strips": {"a": 1}}).decode()):
        with pytest.raises(ModelError, match=r"m\.sublimate: its tokenizer is damaged"):
            unpacked_text("m.sublimate", text)
