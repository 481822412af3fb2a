"""Vocabularies of SentencePiece as GGUF files carry them, against the library itself."""

import io
from functools import cache
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from scripts import PHRASES, strings_of_many_scripts
from sublimate.errors import ModelError
from sublimate.model.conversation import ConversationTokenizer
from sublimate.model.template import Rendered
from sublimate.model.tokenizer import Tokenizer, tokenizer_from_metadata
from sublimate.model.vocabulary import TokenType

KINDS = {"bpe": "llama", "unigram": "t5"}
TEXTS = ["\n\n", "<td>", "\t"]
MARKS = ["<turn>", "</turn>"]


@cache
def trained(kind: str, *, bytes_too: bool = True) -> Any:
    """A small vocabulary learnt from phrases of many scripts."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(PHRASES * 3),
        model_writer=model,
        model_type=kind,
        vocab_size=900,
        character_coverage=0.98,
        byte_fallback=bytes_too,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=[*MARKS, *TEXTS],
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def metadata_of(kind: str, **changes: Any) -> dict[str, Any]:
    """What a converter writes of it."""
    model = trained(kind)
    tokens = [model.id_to_piece(i) for i in range(len(model))]

    def type_of(i: int) -> TokenType:
        if model.is_unknown(i):
            return TokenType.UNKNOWN
        if model.is_control(i):
            return TokenType.CONTROL
        if model.is_byte(i):
            return TokenType.BYTE
        return TokenType.USER_DEFINED if tokens[i] in (*MARKS, *TEXTS) else TokenType.NORMAL

    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": KINDS[kind],
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [model.get_score(i) for i in range(len(model))],
        "tokenizer.ggml.token_type": [type_of(i).value for i in range(len(model))],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "".join(MARKS),
    }
    return metadata | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


@cache
def made(kind: str, *, has_prefix: bool = False) -> Tokenizer:
    return tokenizer_from_metadata(metadata_of(kind, add_space_prefix=has_prefix))


def ids_of_library(kind: str, text: str) -> list[int]:
    """Without the space that it puts before each text."""
    return trained(kind).encode(text, add_bos=False, add_eos=False)


@pytest.mark.parametrize("kind", KINDS)
def test_strings_of_many_scripts(kind: str) -> None:
    """With the prefix, which the library always writes; and all ways to the ids are one."""
    tokenizer = made(kind, has_prefix=True)
    conversations = ConversationTokenizer(tokenizer)
    for text in strings_of_many_scripts(2000):
        wanted = ids_of_library(kind, text)
        assert tokenizer.encode_rendered(text) == wanted, text
        assert conversations.encode(Rendered(text, "")).tolist() == wanted, text
        said = b"".join(tokenizer.token_bytes[token] for token in wanted)
        assert said.removeprefix(b" ") == text.encode().removeprefix(b" " * (not text)), text


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=60))
def test_bytes_join_to_the_text(kind: str, text: str) -> None:
    tokenizer = made(kind)
    assert b"".join(tokenizer.token_bytes[token] for token in tokenizer.encode(text)) == (
        text.replace("\u2581", " ").encode()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_without_a_type_are_what_the_file_says_of_them_otherwise(kind: str) -> None:
    """Bytes by their names; of marks those that the template writes. A text of the users' own is an
    ordinary token then, which the pieces of the library make."""
    metadata = metadata_of(kind, bos_token_id=1, unknown_token_id=0, add_space_prefix=False)
    count = len(metadata["tokenizer.ggml.tokens"])
    tokenizer = tokenizer_from_metadata({**metadata, "tokenizer.ggml.token_type": [0] * count})
    whole = made(kind)
    assert tokenizer.token_bytes == whole.token_bytes
    assert tokenizer.special == whole.special
    for text in ("é \U0001f600 abc", "a b", "<s>"):
        assert tokenizer.encode(text) == whole.encode(text)


@pytest.mark.parametrize("kind", KINDS)
def test_what_people_type_is_no_control_token(kind: str) -> None:
    tokenizer = made(kind)
    control = {*tokenizer.special.values()}
    for typed in (*MARKS, "<s>", "</s>", "<unk>", "<0x0A>", "\ufdd01\ufdd0"):
        ids = tokenizer.encode(typed)
        assert not control.intersection(ids), typed
        assert all(len(tokenizer.token_bytes[token]) for token in ids), typed
        assert b"\n" not in [tokenizer.token_bytes[token] for token in ids]
    for mark in MARKS:
        assert tokenizer.encode_rendered(mark) == [tokenizer.special[mark]]
    for text in TEXTS:
        assert text not in tokenizer.special
        assert text.encode() in [tokenizer.token_bytes[token] for token in tokenizer.encode(text)]


def test_a_text_between_control_tokens_begins_with_a_space() -> None:
    mark = made("bpe").special["<turn>"]
    plain = made("bpe").encode_rendered("<turn>ab<turn>")
    with_space = made("bpe", has_prefix=True).encode_rendered("<turn>ab<turn>")
    assert plain == [mark, *made("bpe").encode("ab"), mark]
    assert with_space == [mark, *made("bpe").encode(" ab"), mark]


def test_defaults_of_the_kind() -> None:
    metadata = metadata_of("bpe")
    del metadata["tokenizer.ggml.add_bos_token"]
    tokenizer = tokenizer_from_metadata(metadata)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (1, 2, True)
    assert 2 in tokenizer.stop_tokens
    assert tokenizer.encode_rendered("")[:1] == [1]


def test_tokens_that_cross_words_are_the_librarys_affair() -> None:
    """A vocabulary with a token of two words: no word can be looked up on its own."""
    metadata = metadata_of("bpe")
    tokens = metadata["tokenizer.ggml.tokens"]
    right = next(token for token in tokens if len(token) == 2 and token[0] == "\u2581")
    two = len(tokens) - 1
    tokens[two] = "e" + right
    metadata["tokenizer.ggml.scores"][two] = 0.0
    tokenizer = tokenizer_from_metadata(metadata | {"tokenizer.ggml.add_space_prefix": False})
    text = f"e {right[1]} e {right[1]}"
    assert tokenizer.encode(text).count(two) == 2
    assert memoryview(tokenizer.encode_pieces([text])[0]).cast("i").tolist().count(two) == 2


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("scores", [0.5], "scores does not fit"),
        ("scores", None, "scores does not fit"),
        ("unknown_token_id", -1, "no unknown token"),
        ("unknown_token_id", 10**6, "unknown token is outside"),
        ("precompiled_charsmap", [300], "precompiled_charsmap is no bytes"),
        ("precompiled_charsmap", [1, 2, 3], "precompiled_charsmap"),
        ("model", "rwkv", "The tokenizer kind 'rwkv' is not supported"),
    ],
)
def test_damaged(key: str, value: object, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        tokenizer_from_metadata(metadata_of("unigram", **{key: value}))


def test_without_scores_tokens_are_in_the_order_in_which_they_were_learnt() -> None:
    metadata = metadata_of("bpe")
    scores = metadata["tokenizer.ggml.scores"]
    wanted = tokenizer_from_metadata(metadata)
    del metadata["tokenizer.ggml.scores"]
    same_order = scores == sorted(scores, reverse=True)
    got = tokenizer_from_metadata(metadata)
    for text in ("hello there", "the theory of them", "12 é"):
        joined = b"".join(got.token_bytes[token] for token in got.encode(text))
        assert joined.decode().strip() == text
        assert not same_order or got.encode(text) == wanted.encode(text)


def test_tokens_longer_than_any_models_are_refused() -> None:
    metadata = metadata_of("bpe")
    count = 300
    metadata["tokenizer.ggml.tokens"] += [f"{n:04}" + "x" * 1020 for n in range(count)]
    metadata["tokenizer.ggml.token_type"] += [1] * count
    metadata["tokenizer.ggml.scores"] += [0.0] * count
    with pytest.raises(ModelError, match="longer than any model's"):
        tokenizer_from_metadata(metadata)


def test_a_byte_token_has_to_name_a_byte() -> None:
    metadata = metadata_of("bpe")
    metadata["tokenizer.ggml.tokens"][metadata["tokenizer.ggml.tokens"].index("<0x0A>")] = "<0xZZ>"
    with pytest.raises(ModelError, match="names no byte"):
        tokenizer_from_metadata(metadata)
