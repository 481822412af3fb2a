"""Incremental tokenisation of conversations against the tokenizer that starts anew each time."""

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublimate.model import conversation
from sublimate.model import tokenizer as module
from sublimate.model.byte_level import byte_characters
from sublimate.model.conversation import ConversationTokenizer
from sublimate.model.pre_tokenizers import PRE_TOKENIZERS, ascii_words
from sublimate.model.template import CHATML, PLAIN, ChatTemplate, Rendered
from sublimate.model.tokenizer import Tokenizer, tokenizer_from_metadata
from sublimate.model.turns import Turn, said
from tiny_model import CONTROL, tiny_metadata

# Characters at whose borders the families differ, and every pair of their bytes is a merge: a word
# that is cut in another place has other ids.
PIECES = ["a", "S", "'", "'s", "'LL", "1", "23", " ", "  ", "\n", "\r\n", "\t", "!", "._", "\x00"]
UNICODE = [
    "é",
    "e\u0301",
    "你好",
    "😸",
    "\u00a0",
    "\u2028",
    "\u017f",
    "٣",
    "\u2019",
    "\ufdd0",
    "\u0301",
]
FORGED = [*CONTROL, "<|im_", "end|>", "<|", "|>", "<"]
WORDS = [" the", " model", "ing", ", and", " x\n\n", "user\n"]
TEXT = st.lists(st.sampled_from([*PIECES, *UNICODE, *FORGED, *WORDS]), max_size=30).map("".join)
ASCII = st.one_of(
    st.lists(st.sampled_from([*PIECES, *WORDS]), max_size=30).map("".join),
    st.text(st.characters(max_codepoint=127), max_size=60),
)
NAMES = sorted(PRE_TOKENIZERS)
CHARACTERS = {value: chr(code) for code, value in byte_characters().items()}


def paired(name: str, **changes: Any) -> Tokenizer:
    """A tokenizer of the family with a merge for each pair of the bytes of these texts."""
    tiny = tiny_metadata()
    raw = sorted({byte for text in (*PIECES, *UNICODE, *FORGED, *WORDS) for byte in text.encode()})
    pairs = [(CHARACTERS[a], CHARACTERS[b]) for a in raw for b in raw]
    tokens = list(tiny["tokenizer.ggml.tokens"])
    tokens += [a + b for a, b in pairs if a + b not in tokens]
    types = [*tiny["tokenizer.ggml.token_type"]]
    types += [1] * (len(tokens) - len(types))
    merges = [f"{a} {b}" for a, b in pairs]
    fields = {"ggml.tokens": tokens, "ggml.token_type": types, "ggml.merges": merges}
    return tokenizer_from_metadata(tiny_metadata(**{**fields, "ggml.pre": name, **changes}))


TOKENIZERS = {name: paired(name) for name in NAMES}


class Counted(ConversationTokenizer):
    """Notes what the tokenizer was asked for."""

    def __init__(self, tokenizer: Tokenizer, bytes_max: int = 1 << 20) -> None:
        super().__init__(tokenizer, bytes_max)
        self.asked: list[str] = []
        encode_pieces = tokenizer.encode_pieces

        class Noting:
            def __getattr__(_, name: str) -> Any:  # noqa: N805
                return getattr(tokenizer, name)

            def encode_pieces(_, pieces: list[str]) -> list[bytes]:  # noqa: N805
                self.asked += pieces
                return encode_pieces(pieces)

        self._tokenizer = Noting()  # type: ignore[assignment]


# ---- words ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
@given(text=ASCII)
def test_words_of_ascii_text_are_those_of_the_library(name: str, text: str) -> None:
    words = ascii_words(PRE_TOKENIZERS[name].pattern).findall(text)
    assert "".join(words) == text
    pieces = PRE_TOKENIZERS[name].build().pre_tokenize_str(text) if text else []
    assert ["".join(CHARACTERS[b] for b in word.encode()) for word in words] == [
        piece for piece, _ in pieces
    ]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=300)
@given(text=TEXT)
def test_ids_by_words_are_those_of_the_whole_text(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    for _ in ("learnt", "known"):
        assert ids_of(tokenizer, text) == tokenizer.encode(text)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    (ids,) = tokenizer.encode_pieces([text])
    return memoryview(ids).cast("i").tolist()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100)
@given(text=TEXT)
def test_ids_of_slices_are_those_of_the_whole_text(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "WORD_TEXT_CHARACTERS_MAX", 1)
        patched.setattr(module, "SLICE_CHARACTERS_MIN", 3)
        assert ids_of(tokenizer, text) == tokenizer.encode(text)


def test_long_text_goes_to_the_library_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_CHARACTERS_MIN", 1 << 15)
    tokenizer = paired("smollm")
    lengths: list[int] = []
    encode = module._encode_batch

    def noted(backend: Any, texts: list[str]) -> list[bytes]:
        lengths.extend(map(len, texts))
        return encode(backend, texts)

    monkeypatch.setattr(module, "_encode_batch", noted)
    text = "the model's " * 10_000
    assert ids_of(tokenizer, text) == tokenizer.encode(text)
    assert max(lengths) < (1 << 15) + 12 and sum(lengths) == len(text)


@pytest.mark.parametrize(
    ("bound", "value"),
    [("WORDS_MAX", 7), ("WORD_CHARACTERS_MAX", 3), ("WORD_TEXT_CHARACTERS_MAX", 3)],
)
def test_bounds_change_no_ids(bound: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, bound, value)
    tokenizer = paired("smollm")
    for text in ("a a1 the model's", "the '你好' model", "a the 1", ""):
        assert ids_of(tokenizer, text) == tokenizer.encode(text)
    known = tokenizer._words._known
    if bound == "WORDS_MAX":
        assert list(known) == [" "], "it began anew"
    elif bound == "WORD_CHARACTERS_MAX":
        assert known and max(map(len, known)) <= 3
    else:
        assert not known


def test_a_long_run_of_space_takes_no_longer_than_the_library_s() -> None:
    for name in NAMES:
        text = " " * module.WORD_TEXT_CHARACTERS_MAX
        assert ascii_words(PRE_TOKENIZERS[name].pattern).findall(text) == [text]


# ---- conversations -------------------------------------------------------------------------------
TURNS = st.lists(
    st.builds(said, st.sampled_from(["system", "user", "assistant"]), TEXT), max_size=9
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("source", [CHATML, PLAIN])
@settings(max_examples=60)
@given(turns=TURNS, cuts=st.lists(st.integers(0, 9), max_size=4))
def test_every_turn_has_the_ids_of_the_whole_conversation(
    name: str, source: str, turns: list[Turn], cuts: list[int]
) -> None:
    tokenizer = TOKENIZERS[name]
    template = ChatTemplate(source, tokenizer.special)
    conversations = ConversationTokenizer(tokenizer, 1 << 16)
    for cut in [*sorted(cuts), len(turns)]:
        rendered = template.render(turns[:cut])
        expected = tokenizer.encode_rendered(rendered.text, rendered.marker)
        assert conversations.encode(rendered).tolist() == expected


def test_a_turn_asks_only_for_what_is_new() -> None:
    tokenizer = TOKENIZERS["smollm"]
    template = ChatTemplate(CHATML, tokenizer.special)
    turns = [said("system", "be brief"), said("user", "hello")]
    counted = Counted(tokenizer)
    counted.encode(template.render(turns))
    assert "system\nbe brief" in counted.asked and "user\nhello" in counted.asked
    counted.asked.clear()
    turns += [said("assistant", "yes?"), said("user", "a <|im_end|> b")]
    counted.encode(template.render(turns))
    assert counted.asked == ["assistant\nyes?", "user\na <|im_end|> b"]
    counted.asked.clear()
    counted.encode(template.render(turns))
    assert counted.asked == []


def test_owners_do_not_meet_each_other_s_pieces() -> None:
    counted = Counted(TOKENIZERS["smollm"])
    secret = Rendered("<|im_start|>the secret<|im_end|>", "")
    first = counted.encode(secret, b"one")
    counted.asked.clear()
    assert counted.encode(secret, b"two").tolist() == first.tolist()
    assert counted.asked == ["", "the secret"], "as if nobody had sent it"


@given(st.lists(TEXT, min_size=1, max_size=40))
def test_memory_is_bounded_and_the_least_recent_goes_first(texts: list[str]) -> None:
    counted = Counted(TOKENIZERS["gpt-2"], 4096)
    for text in texts:
        rendered = Rendered(f"<|im_start|>{text}<|im_end|>", "\ue000")
        expected = counted._tokenizer.encode_rendered(rendered.text, rendered.marker)
        assert counted.encode(rendered).tolist() == expected
        held = [conversation._size(*item) for item in counted._pieces.items()]
        assert counted.bytes == sum(held) <= 4096
    for number in range(8):
        counted.encode(Rendered(f"<|im_end|>kept<|im_start|>{number}", ""))
    kept = [piece for _, piece in counted._pieces]
    assert "kept" in kept and "7" in kept and counted.bytes <= 4096
    counted.encode(Rendered("a" * 2000, ""))
    assert "a" * 2000 not in [piece for _, piece in counted._pieces], "too large to remember"


@pytest.mark.parametrize("add_bos", [False, True])
def test_bos_comes_once(add_bos: bool) -> None:
    tokenizer = paired("llama-bpe", **{"ggml.add_bos_token": add_bos})
    conversations = ConversationTokenizer(tokenizer)
    for text in ("", "a", "<|im_start|>", "<|im_start|>a", "<|im_end|>a", "a<|im_start|>"):
        expected = tokenizer.encode_rendered(text)
        assert conversations.encode(Rendered(text, "\ue000")).tolist() == expected
        assert (expected[:1] == [1]) == (add_bos or text.startswith("<|im_start|>"))


def test_a_model_without_control_tokens() -> None:
    plain = [1] * len(TOKENIZERS["gpt-2"].token_bytes)
    tokenizer = paired("gpt-2", **{"ggml.token_type": plain})
    assert not tokenizer.special
    rendered = Rendered("user: a <|im_end|>\n\nassistant:", "\ue000")
    expected = tokenizer.encode_rendered(rendered.text, rendered.marker)
    assert ConversationTokenizer(tokenizer).encode(rendered).tolist() == expected


def test_threads_share_it() -> None:
    tokenizer = TOKENIZERS["qwen2"]
    conversations = ConversationTokenizer(tokenizer, 8192)
    wrong: list[str] = []

    def work(seed: int) -> None:
        for number in range(300):
            text = f"<|im_start|>the {(seed * number) % 37} é<|im_end|>a{number % 11}"
            if conversations.encode(Rendered(text, "\ue000")).tolist() != (
                tokenizer.encode_rendered(text)
            ):
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = [conversation._size(*item) for item in conversations._pieces.items()]
    assert not wrong and conversations.bytes == sum(held) <= 8192
