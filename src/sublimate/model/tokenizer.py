"""Byte-level BPE from GGUF metadata, through the `tokenizers` library.

Two kinds of text meet here and must not be mixed: what the chat template wrote, in which control
tokens count, and what a person typed, in which "<|im_end|>" is ten ordinary characters. The
library's tokenizer therefore knows no control token at all; `encode_rendered` splits the rendered
prompt at them itself. Text between two control tokens is tokenised whole, so that a prompt without
forged control tokens gets the same ids as the usual whole-prompt encoding.

The words of ASCII text are found here and looked up: merges never leave a word, so a word has the
same ids wherever it stands. All else, and what is new, the library does.

defines: PRE_TOKENIZERS, WordIds, Tokenizer, tokenizer_from_metadata
"""

from __future__ import annotations

import itertools
import os
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from ..errors import ModelError

# The library would otherwise start a thread per core, beside the engine's own.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

# Token types of GGUF (tokenizer.ggml.token_type).
TYPE_NORMAL = 1
TYPE_UNKNOWN = 2
TYPE_CONTROL = 3
TYPE_USER_DEFINED = 4
TYPE_UNUSED = 5

TOKENS_MAX = 262_144
"""As VOCABULARY_MAX of core/limits.h; a test compares them."""
STOP_TOKENS_MAX = 8
"""As STOP_TOKENS_MAX of core/limits.h; a test compares them."""

# Control tokens that end a turn wherever a model has them, beside the ones its file names.
END_OF_TURN_TEXTS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
)

WORDS_MAX = 1 << 16
"""Words whose ids are kept; then they are learnt anew."""
WORD_CHARACTERS_MAX = 64
"""Longer ones are not kept. With WORDS_MAX: some 16 MiB at most, usually 8."""
WORD_TEXT_CHARACTERS_MAX = 1 << 14
"""Longer text is the library's, which lets other threads run meanwhile."""
SLICE_CHARACTERS_MIN = 1 << 18
"""The library gets long text in slices of this length and up to a safe cut: for each character it
takes some hundred bytes until it is done."""

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Digits are cut out first, one by one, so space before one ends there.
SMOLLM_PATTERN = GPT2_PATTERN.replace(r" ?\p{N}+", r"\p{N}").replace(
    r"|\s+(?!\S)", r"|\s+(?=\p{N})|\s+(?!\S)"
)
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


class PreTokenizer(msgspec.Struct, frozen=True):
    """How text is cut into words before the merges, and what else the family does."""

    build: Callable[[], Any]
    pattern: str
    """Words as a regular expression; over ASCII text it finds those that `build` does."""
    ignore_merges: bool = False
    nfc: bool = False


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> Any:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _gpt2()])


def _by_pattern(pattern: str) -> Callable[[], Any]:
    def build() -> Any:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, byte_level])

    return build


def ascii_words(pattern: str) -> re.Pattern[str]:
    """The pattern for ASCII text, without the classes that only Unicode needs."""
    pattern = pattern.replace(r"\p{L}\p{N}", "A-Za-z0-9")  # always inside a class
    pattern = pattern.replace(r"\p{L}", "[A-Za-z]").replace(r"\p{N}", "[0-9]")
    return re.compile(pattern, re.ASCII)


_LLAMA3 = PreTokenizer(_by_pattern(LLAMA3_PATTERN), LLAMA3_PATTERN, ignore_merges=True)
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": PreTokenizer(_gpt2, GPT2_PATTERN),
    "smollm": PreTokenizer(_smollm, SMOLLM_PATTERN),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": PreTokenizer(_by_pattern(QWEN2_PATTERN), QWEN2_PATTERN, nfc=True),
}


# Between a visible ASCII character and a space that an ASCII letter follows. In every pattern a
# match that holds a space begins with it, or with white space before it, of which there is none; no
# pattern looks back, and only after white space does one look ahead. Nothing composes with a space.
SAFE_CUT = re.compile("(?<=[!-~])(?= [A-Za-z])")


class WordIds:
    """Ids of text by its words. May be used from several threads: whoever loses a race learns a
    word twice."""

    def __init__(self, backend: Any, pattern: str) -> None:
        self._backend = backend
        self._find = ascii_words(pattern).findall
        self._known: dict[str, bytes] = {}

    def encode(self, text: str) -> bytes:
        """int32 ids of a text."""
        words = self._split(text)
        known = self._known
        try:
            return b"".join(map(known.__getitem__, words))
        except KeyError:
            new = list({word: None for word in words if word not in known})
        found = dict(zip(new, _encode_batch(self._backend, new), strict=True))
        joined = b"".join([found[word] if word in found else known[word] for word in words])
        if len(known) + len(found) > WORDS_MAX:
            known = self._known = {}
        known.update((word, ids) for word, ids in found.items() if len(word) <= WORD_CHARACTERS_MAX)
        return joined

    def _split(self, text: str) -> list[str]:
        """Words; what is not ASCII stays whole from one safe cut to another."""
        if text.isascii():
            return self._find(text)
        words: list[str] = []
        for is_ascii, group in itertools.groupby(SAFE_CUT.split(text), str.isascii):
            run = "".join(group)
            words += self._find(run) if is_ascii else [run]
        return words


def _encode_batch(backend: Any, texts: list[str]) -> list[bytes]:
    encodings = cast(list[Any], backend.encode_batch_fast(texts, add_special_tokens=False))
    return [array("i", encoding.ids).tobytes() for encoding in encodings]


class Tokenizer:
    """Text to ids of one model. May be used from several threads."""

    def __init__(
        self,
        backend: Any,
        *,
        words: WordIds,
        token_bytes: Sequence[bytes],
        special: Mapping[str, int],
        stop_tokens: tuple[int, ...],
        bos_id: int,
        eos_id: int,
        add_bos: bool,
    ) -> None:
        self._backend = backend
        self._words = words
        self.token_bytes = list(token_bytes)
        """(vocabulary) byte string of each token; empty for those that yield no text."""
        self.special = dict(special)
        """Text of the tokens that only a template may write -> id."""
        self.stop_tokens = stop_tokens
        self.bos_id = bos_id
        """-1 if there is none."""
        self.eos_id = eos_id
        self.add_bos = add_bos
        self.longest_token_bytes = max(map(len, self.token_bytes), default=1) or 1
        self._special_texts = {number: text for text, number in self.special.items()}
        longest_first = sorted(self.special, key=len, reverse=True)
        joined = "|".join(re.escape(text) for text in longest_first)
        self.special_pattern = re.compile(f"({joined})") if joined else None

    def __len__(self) -> int:
        return len(self.token_bytes)

    def special_text(self, token: int) -> str:
        """Text of a control token; empty if it is none."""
        return self._special_texts.get(token, "")

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. Never a control id, whatever the text says."""
        if not text:
            return []
        return self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def encode_pieces(self, pieces: list[str]) -> list[bytes]:
        """The same for several texts, as int32 words."""
        encoded = [
            self._words.encode(piece) if len(piece) <= WORD_TEXT_CHARACTERS_MAX else None
            for piece in pieces
        ]
        return [
            self._encode_long(piece) if ids is None else ids
            for piece, ids in zip(pieces, encoded, strict=True)
        ]

    def _encode_long(self, text: str) -> bytes:
        parts: list[bytes] = []
        begin = 0
        while begin < len(text):
            cut = SAFE_CUT.search(text, begin + SLICE_CHARACTERS_MIN)
            end = cut.start() if cut else len(text)
            parts += _encode_batch(self._backend, [text[begin:end]])
            begin = end
        return b"".join(parts)

    def leading_bos(self, ids: bytes) -> bytes:
        """What a prompt that begins with these ids has to have before them."""
        bos = array("i", [self.bos_id]).tobytes()
        return bos if self.add_bos and self.bos_id >= 0 and not ids.startswith(bos) else b""

    def encode_rendered(self, text: str, marker: str = "") -> list[int]:
        """Ids of a rendered prompt: control tokens where the template wrote them.

        `marker` is what the template's escape put into content that looks like a control token; it
        is removed from everything between control tokens. The library does all of it:
        ConversationTokenizer is the fast way to the same ids.
        """
        pieces = self.special_pattern.split(text) if self.special_pattern else [text]
        plain = [piece.replace(marker, "") if marker else piece for piece in pieces[::2]]
        filled = [piece for piece in plain if piece]
        encodings = self._backend.encode_batch_fast(filled, add_special_tokens=False)
        encoded = iter(cast(list[Any], encodings))
        ids: list[int] = []
        for index, piece in enumerate(plain):
            if piece:
                ids += next(encoded).ids
            if 2 * index + 1 < len(pieces):
                ids.append(self.special[pieces[2 * index + 1]])
        if self.add_bos and self.bos_id >= 0 and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a GGUF file's metadata. Raises ModelError that names what is wrong."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelError(
            f"The tokenizer kind {kind!r} is not supported: only byte-level BPE (gpt2) is."
        )
    name = metadata.get("tokenizer.ggml.pre")
    pre = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if pre is None:
        known = ", ".join(PRE_TOKENIZERS)
        raise ModelError(f"The pre-tokenizer {name!r} is not supported. Supported: {known}.")
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    types = _token_types(metadata, len(tokens))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelError("The model file is damaged: its vocabulary names a token twice.")
    backend = Backend(_merges_model(vocabulary, metadata, pre.ignore_merges))
    backend.pre_tokenizer = pre.build()
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    special = {
        token: index
        for index, (token, kind_of) in enumerate(zip(tokens, types, strict=True))
        if kind_of in (TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNKNOWN) and len(token) > 1
    }
    eos_id = _token_id(metadata, "eos", len(tokens))
    bos_id = _token_id(metadata, "bos", len(tokens))
    return Tokenizer(
        backend,
        words=WordIds(backend, pre.pattern),
        token_bytes=_token_bytes(tokens, types),
        special=special,
        stop_tokens=_stop_tokens(metadata, special, eos_id, len(tokens)),
        bos_id=bos_id,
        eos_id=eos_id,
        add_bos=metadata.get("tokenizer.ggml.add_bos_token") is True,
    )


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    values: Any = metadata.get(key)
    if not isinstance(values, list) or not values:
        raise ModelError(f"The model file is damaged: it has no list {key}.")
    listed = cast(list[Any], values)
    if len(listed) > TOKENS_MAX * 2 or not all(isinstance(value, str) for value in listed):
        raise ModelError(f"The model file is damaged: {key} is not a list of texts.")
    return cast(list[str], listed)


def _token_types(metadata: Mapping[str, Any], count: int) -> list[int]:
    if count > TOKENS_MAX:
        raise ModelError(f"The vocabulary has {count} tokens; this server takes {TOKENS_MAX}.")
    types: Any = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return [TYPE_NORMAL] * count
    if not isinstance(types, list) or len(cast(list[Any], types)) != count:
        raise ModelError("The model file is damaged: token_type does not fit its vocabulary.")
    return cast(list[int], types)


def _merges_model(vocabulary: dict[str, int], metadata: Mapping[str, Any], ignore: bool) -> Any:
    merges: list[tuple[str, str]] = []
    for merge in _strings(metadata, "tokenizer.ggml.merges"):
        left, space, right = merge.partition(" ")
        if not space or " " in right:
            raise ModelError("The model file is damaged: a merge is not two texts.")
        merges.append((left, right))
    try:
        return models.BPE(vocabulary, merges, ignore_merges=ignore)
    except Exception:
        # The library raises plain Exception for a merge of tokens that are not there.
        raise ModelError("The model file is damaged: a merge names unknown tokens.") from None


def _token_id(metadata: Mapping[str, Any], name: str, count: int) -> int:
    """The id that tokenizer.ggml.{name}_token_id names; -1 if it names none."""
    token = metadata.get(f"tokenizer.ggml.{name}_token_id", -1)
    if not isinstance(token, int) or not -1 <= token < count:
        raise ModelError(f"The model file is damaged: its {name} token is outside the vocabulary.")
    return token


def _stop_tokens(
    metadata: Mapping[str, Any], special: Mapping[str, int], eos_id: int, count: int
) -> tuple[int, ...]:
    named = [eos_id, *(_token_id(metadata, name, count) for name in ("eot", "eom"))]
    known = [special[text] for text in END_OF_TURN_TEXTS if text in special]
    unique = dict.fromkeys(token for token in (*named, *known) if token >= 0)
    return tuple(unique)[:STOP_TOKENS_MAX]


def byte_characters() -> dict[int, int]:
    """Code point that stands for a byte in a byte-level vocabulary -> the byte.

    Source: bytes_to_unicode of GPT-2's encoder. Printable Latin-1 stands for itself, the rest for
    256, 257, ... in order.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    mapping = {value: value for value in printable}
    others = [value for value in range(1 << 8) if value not in mapping]
    mapping.update({(1 << 8) + index: value for index, value in enumerate(others)})
    return mapping


def _token_bytes(tokens: Sequence[str], types: Sequence[int]) -> list[bytes]:
    table = byte_characters()
    result: list[bytes] = []
    for token, kind in zip(tokens, types, strict=True):
        if kind == TYPE_NORMAL:
            try:
                result.append(token.translate(table).encode("latin-1"))
            except UnicodeEncodeError:
                result.append(token.encode())  # an added token that is not in byte characters
        else:
            result.append(token.encode() if kind == TYPE_USER_DEFINED else b"")
    return result
