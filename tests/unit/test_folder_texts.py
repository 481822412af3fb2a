"""Tokenizers and templates of folders: against the libraries that wrote them."""

import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import sentencepiece
import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from folders import VOCABULARY, write_folder, write_json
from scripts import PHRASES, strings_of_many_scripts
from sublimate.edge.sampling import SamplingFields, defaults_of, with_defaults
from sublimate.edge.textmodel import load_text_model
from sublimate.errors import ModelError
from sublimate.model.conversation import ConversationTokenizer
from sublimate.model.folder.sentencepiece_file import read_sentencepiece
from sublimate.model.named_templates import template_source
from sublimate.model.pre_tokenizers import (
    GPT4O_PATTERN,
    LLAMA3_PATTERN,
    QWEN2_PATTERN,
    TEKKEN_PATTERN,
)
from sublimate.model.source import metadata_of
from sublimate.model.template import Rendered
from sublimate.model.tokenizer import WHITE_SPACE, Tokenizer, tokenizer_from_metadata
from sublimate.model.turns import said

MARKS = ["<|turn|>", "<|end|>"]
Steps = Any


def byte_level(*splits: Any, use_regex: bool = False, **model: Any) -> Any:
    """As Qwen 2, Llama 3 and others have it."""
    made = tokenizers.Tokenizer(models.BPE(**model))
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    made.pre_tokenizer = pre_tokenizers.Sequence([*splits, last]) if splits else last
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(PHRASES * 3, trainer)
    made.decoder = decoders.ByteLevel()
    return made


def split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def pieces(normalizer: Any, splits: Any) -> Any:
    """As Llama 2, Mistral and Gemma have it."""
    made = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    named = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=1100, special_tokens=named, show_progress=False)
    made.train_from_iterator(PHRASES * 3, trainer)
    # What was made known for training is a part of the model alone.
    document = msgspec.json.decode(made.to_str())
    document["added_tokens"] = []
    made = tokenizers.Tokenizer.from_str(msgspec.json.encode(document).decode())
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = splits
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


def unigram() -> Any:
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=900, special_tokens=["<unk>", "<s>"], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(PHRASES * 3, trainer)
    return made


REPLACE = normalizers.Replace(" ", "\u2581")
PREPEND = normalizers.Sequence([normalizers.Prepend("\u2581"), REPLACE])
METASPACE = pre_tokenizers.Metaspace
MADE: dict[str, tuple[Callable[[], Any], bool]] = {
    "gpt2": (lambda: byte_level(use_regex=True), True),
    "smollm": (lambda: byte_level(pre_tokenizers.Digits(True), use_regex=True), True),
    "llama3": (lambda: byte_level(split(LLAMA3_PATTERN), ignore_merges=True), True),
    "qwen2": (lambda: byte_level(split(QWEN2_PATTERN)), True),
    "gpt4o": (lambda: byte_level(split(GPT4O_PATTERN)), True),
    "tekken": (lambda: byte_level(split(TEKKEN_PATTERN)), True),
    "unknown words": (lambda: byte_level(split(r"\p{L}+|\p{N}|[^\p{L}\p{N}]+")), False),
    "llama legacy": (lambda: pieces(PREPEND, None), True),
    "llama always": (lambda: pieces(None, METASPACE(prepend_scheme="always", split=False)), True),
    "llama first": (lambda: pieces(None, METASPACE(prepend_scheme="first", split=False)), True),
    "mistral": (lambda: pieces(None, METASPACE(prepend_scheme="first")), True),
    "gemma": (lambda: pieces(REPLACE, pre_tokenizers.Split(" ", "merged_with_previous")), True),
    "stripped": (lambda: pieces(normalizers.Sequence([normalizers.NFKC(), REPLACE]), None), False),
    "unigram": (unigram, False),
}
"""Name -> (what makes it, whether its words are known here)"""


@cache
def reference(name: str) -> Any:
    made = MADE[name][0]()
    if name == "qwen2":
        made.normalizer = normalizers.NFC()
    made.add_special_tokens(MARKS)
    return made


def folder_with(folder: Path, document: Any, rows: int = 0, **settings: Any) -> Path:
    size = document.get_vocab_size(with_added_tokens=True)
    write_folder(folder, texts_tensors(rows or size), vocab_size=rows or size)
    (folder / "tokenizer.json").write_text(document.to_str())
    if settings:
        write_json(folder / "tokenizer_config.json", settings)
    return folder


def texts_tensors(rows: int) -> Any:
    return {"model.embed_tokens.weight": np.zeros((rows, 16), dtype=np.float32)}


def loaded(folder: Path) -> Tokenizer:
    return tokenizer_from_metadata(metadata_of(str(folder)))


@pytest.mark.parametrize("name", list(MADE))
def test_strings_of_many_scripts(tmp_path: Path, name: str) -> None:
    """Alone and between control tokens, by both ways to the ids."""
    wanted = reference(name)
    ours = loaded(folder_with(tmp_path / "m", wanted))
    conversations = ConversationTokenizer(ours)
    assert (ours._words is not None) == MADE[name][1]
    every = list(strings_of_many_scripts(2000))
    texts = [
        f"{MARKS[0]}{text}{MARKS[1]}{every[index - 1]}" if index % 5 == 4 else text
        for index, text in enumerate(every)
    ]
    encoded = wanted.encode_batch(texts, add_special_tokens=False)
    for text, ids in zip(texts, (encoding.ids for encoding in encoded), strict=True):
        assert conversations.encode(Rendered(text, "")).tolist() == ids, text
    for text, encoding in zip(texts[::10], encoded[::10], strict=True):
        assert ours.encode_rendered(text) == encoding.ids, text


@pytest.mark.parametrize("name", ["llama3", "llama legacy", "unigram"])
def test_what_people_type_is_no_control_token(tmp_path: Path, name: str) -> None:
    ours = loaded(folder_with(tmp_path / "m", reference(name)))
    for typed in (*MARKS, "<s>", "<unk>", "<0x0A>"):
        ids = ours.encode(typed)
        control = {number for mark, number in ours.special.items() if mark != "<unk>"}
        assert not set(ids) & control, typed
        told = b"".join(ours.token_bytes[i] for i in ids).decode()
        assert told.strip() == typed or name == "unigram", "which knows few characters"
    assert ours.encode_rendered(MARKS[0])[-1] == ours.special[MARKS[0]]


def test_bytes_of_tokens(tmp_path: Path) -> None:
    for name in ("llama3", "gemma"):
        ours = loaded(folder_with(tmp_path / name, reference(name)))
        for text in (PHRASES[3], PHRASES[20], "\U0001f600 \t\n a"):
            assert b"".join(ours.token_bytes[i] for i in ours.encode(text)) == text.encode()


def test_control_tokens_that_take_the_white_space_beside_them(tmp_path: Path) -> None:
    """As Phi 3's."""
    wanted = byte_level(use_regex=True)
    wanted.add_special_tokens(
        [
            AddedToken("<|user|>", rstrip=True, special=True),
            AddedToken("<|left|>", lstrip=True, special=True),
        ]
    )
    ours = loaded(folder_with(tmp_path / "m", wanted))
    conversations = ConversationTokenizer(ours)
    texts = ["<|user|>\n\t hi \n<|left|> x", "<|left|>", "a<|user|><|left|> ", " <|user|>  "]
    texts += [f"<|user|>{c}x{c}<|left|>{c}" for c in WHITE_SPACE + "\x1c\x1f\u200b\u180e"]
    for text in texts:
        ids = wanted.encode(text, add_special_tokens=False).ids
        assert ours.encode_rendered(text) == ids, ascii(text)
        assert conversations.encode(Rendered(text, "")).tolist() == ids, ascii(text)


def test_tokens_that_stand_for_text(tmp_path: Path) -> None:
    """Gemma's runs of line ends, whoever writes them; a mark of turns only where the template
    does."""
    wanted = pieces(REPLACE, None)
    wanted.add_tokens([AddedToken(text, normalized=False) for text in ("\n\n", "<td>", "<turn>")])
    folder = folder_with(tmp_path / "m", wanted, chat_template="<turn>{{ messages }}")
    ours = loaded(folder)
    assert "<turn>" in ours.special and not {"\n\n", "<td>"} & set(ours.special)
    for text in ("a\n\nb", "<td>x\n\n\n", "\n\n"):
        assert ours.encode(text) == wanted.encode(text, add_special_tokens=False).ids


def test_ids_that_nothing_names_and_tokens_beyond_the_embedding(tmp_path: Path) -> None:
    wanted = reference("qwen2")
    size = wanted.get_vocab_size(with_added_tokens=True)
    larger = loaded(folder_with(tmp_path / "a", wanted, rows=size + 7))
    assert len(larger) == size + 7 and larger.token_bytes[-7:] == [b""] * 7
    assert larger.encode("a b") == wanted.encode("a b").ids
    smaller = loaded(folder_with(tmp_path / "b", wanted, rows=size - 1))
    assert len(smaller) == size - 1 and MARKS[1] not in smaller.special


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model": {"type": "WordPiece", "vocab": {}}}, "model 'WordPiece' is not supported"),
        ({"model": 5}, "is not one that the library writes"),
        ({"model": {"type": "BPE", "vocab": {"a": "b"}, "merges": []}}, "is not one that the lib"),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}},
            "two tokens have the",
        ),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["x y"]}}, "library cannot read"),
        ({"pre_tokenizer": 5}, "pretokenizers are no object"),
        ({"pre_tokenizer": {"type": "Sequence"}}, "pretokenizers are no list of steps"),
        ({"pre_tokenizer": {"type": "Alien"}}, "library cannot read it"),
        ({"normalizer": {"type": "Sequence", "normalizers": [5]}}, "no list of steps"),
        ({"added_tokens": [{"id": 0}]}, "is damaged: Object missing required field `content`"),
        (
            {"added_tokens": [{"id": 0, "content": "a", "single_word": True}]},
            "found as a word only",
        ),
        ({"model": None}, "is not one that the library writes"),
    ],
)
def test_damaged_documents(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    folder = folder_with(tmp_path / "m", reference("gpt2"))
    document = msgspec.json.decode((folder / "tokenizer.json").read_bytes()) | change
    write_json(folder / "tokenizer.json", document)
    with pytest.raises(ModelError, match=text):
        loaded(folder)


# ---- tokenizer.model -----------------------------------------------------------------------------
@cache
def learnt(kind: str, rule: str = "identity") -> tuple[bytes, Any]:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(PHRASES * 3),
        model_writer=model,
        model_type=kind,
        vocab_size=900,
        character_coverage=0.98,
        byte_fallback=True,
        normalization_rule_name=rule,
        user_defined_symbols=["<turn>", "\n\n"],
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue(), sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@pytest.mark.parametrize(
    ("kind", "rule"), [("bpe", "identity"), ("unigram", "identity"), ("unigram", "nmt_nfkc")]
)
def test_sentencepiece_files(tmp_path: Path, kind: str, rule: str) -> None:
    """A table of replacements is for whole characters here, of which people see one: texts that
    mix marks and spaces of other scripts may fall into other pieces, as they do in transformers."""
    content, wanted = learnt(kind, rule)
    folder = write_folder(tmp_path / "m", texts_tensors(len(wanted) + 2))
    (folder / "tokenizer.model").write_bytes(content)
    more = {"content": "<|more|>", "special": True}
    settings = {"added_tokens_decoder": {str(len(wanted)): more}, "chat_template": "<turn>"}
    write_json(folder / "tokenizer_config.json", settings | {"add_bos_token": False})
    ours = loaded(folder)
    assert ours.special["<|more|>"] == len(wanted) and "<turn>" in ours.special
    assert ours.bos_id == wanted.bos_id() and not ours.add_bos
    replaced = "\uff21\uff22 \ufb01 x\u00b2"
    texts = strings_of_many_scripts(2000) if rule == "identity" else [*PHRASES, replaced]
    for text in texts:
        assert ours.encode_rendered(text) == wanted.encode(text), ascii(text)


def test_damaged_sentencepiece_files(tmp_path: Path) -> None:
    content, _ = learnt("bpe")
    path = tmp_path / "tokenizer.model"
    cases = {
        b"": "of SentencePiece|0 tokens",
        content[: len(content) // 2]: "is damaged|tokens",
        b"\x0a\x05" * 100: "is damaged",
        b"PK\x03\x04" + bytes(100): "is damaged",
        content + b"\x12\x02\x18\x03": "unigram and BPE models are supported",
        content + b"\x0a\x05\x0a\x01a\x18\x63": "of no known type",
    }
    for data, text in cases.items():
        path.write_bytes(data)
        with pytest.raises(ModelError, match=text):
            read_sentencepiece(path)


# ---- what tokens mean, templates, settings -------------------------------------------------------
TEMPLATE = "{% for m in messages %}<|turn|>{{ m['content'] }}<|end|>{% endfor %}"


def settings_of(folder: Path, **files: object) -> Path:
    for name, value in files.items():
        write_json(folder / f"{name}.json", value)
    return folder


def test_templates_and_the_file_that_counts(tmp_path: Path) -> None:
    listed = [{"name": "rag", "template": "no"}, {"name": "default", "template": TEMPLATE}]
    folder = folder_with(tmp_path / "m", reference("qwen2"), chat_template=listed)
    model = load_text_model(str(folder))
    assert model.name == "m" and model.template.render([said("user", "x")]).text.startswith(
        "<|turn|>x<|end|>"
    )
    write_json(folder / "chat_template.json", {"chat_template": "json{{ messages }}"})
    assert metadata_of(str(folder))["tokenizer.chat_template"].startswith("json")
    (folder / "chat_template.jinja").write_text("file{{ messages }}")
    assert metadata_of(str(folder))["tokenizer.chat_template"].startswith("file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/tool_use.jinja").write_text("tools{{ messages }}")
    metadata = metadata_of(str(folder))
    assert metadata["tokenizer.chat_template.tool_use"].startswith("tools")
    assert "{% else %}file{{ messages }}{% endif %}" in template_source(metadata)
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ModelError, match="chat template of the model cannot be read"):
        load_text_model(str(folder))


def test_what_ends_an_answer(tmp_path: Path) -> None:
    wanted = reference("qwen2")
    turn, end = (wanted.token_to_id(mark) for mark in MARKS)
    folder = folder_with(
        tmp_path / "m", wanted, eos_token=MARKS[0], bos_token={"content": MARKS[1]}
    )
    ours = loaded(folder)
    assert ours.stop_tokens == (turn, end) and (ours.bos_id, ours.eos_id) == (end, turn)
    settings_of(folder, generation_config={"eos_token_id": [5, turn, 10**9, "x"]})
    assert loaded(folder).stop_tokens == (turn, 5, end)
    settings_of(folder, tokenizer_config={}, special_tokens_map={"eos_token": MARKS[1]})
    assert loaded(folder).eos_id == end
    (folder / "special_tokens_map.json").unlink()
    assert loaded(folder).eos_id == 5


def test_whether_a_text_begins_with_a_token(tmp_path: Path) -> None:
    wanted = tokenizers.Tokenizer.from_str(reference("llama3").to_str())
    folder = folder_with(tmp_path / "a", wanted, bos_token=MARKS[0])
    assert not loaded(folder).add_bos
    wanted.post_processor = processors.TemplateProcessing(
        single=f"{MARKS[0]} $A", special_tokens=[(MARKS[0], wanted.token_to_id(MARKS[0]))]
    )
    folder = folder_with(tmp_path / "b", wanted, bos_token=MARKS[0])
    assert loaded(folder).add_bos
    assert loaded(folder).encode_rendered("x") == wanted.encode("x").ids
    settings_of(folder, tokenizer_config={"bos_token": MARKS[0], "add_bos_token": False})
    assert not loaded(folder).add_bos


def test_sampling_that_a_model_recommends(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "m", reference("qwen2"))
    told = {"temperature": 0.6, "top_k": 20, "top_p": 7.0, "repetition_penalty": 1.1}
    settings_of(folder, generation_config=told)
    assert load_text_model(str(folder)).sampling == {}, "answers are not sampled"
    settings_of(folder, generation_config=told | {"do_sample": True})
    sampling = load_text_model(str(folder)).sampling
    assert sampling == {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}
    asked = SamplingFields(temperature=0.0)
    filled = with_defaults(asked, sampling)
    assert (filled.temperature, filled.top_k, filled.top_p) == (0.0, 20, None)
    assert asked.top_k is None and with_defaults(filled, {"top_k": 3}) is filled
    assert defaults_of({"general.sampling.temp": float("nan")}) == {}
    assert defaults_of({"general.sampling.top_k": 40}) == {"top_k": 40}


def test_a_folder_without_a_tokenizer_still_takes_ids(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    assert "tokenizer.ggml.model" not in metadata_of(str(folder))
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_text_model(str(folder))
    assert VOCABULARY == 300
