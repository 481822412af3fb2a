"""A model's tokenizer from GGUF metadata, through the `tokenizers` library.

Two kinds of text meet here and must not be mixed: what the chat template wrote, in which control
tokens count, and what a person typed, in which "<|im_end|>" is ten ordinary characters. The
library's tokenizer therefore knows no control token at all; `encode_rendered` splits the rendered
prompt at them itself. Text between two control tokens is tokenised whole, so that a prompt without
forged control tokens gets the same ids as the usual whole-prompt encoding.

The words of ASCII text are found here and looked up: merges never leave a word, so a word has the
same ids wherever it stands. New ones of a byte-level vocabulary our own table of its merges encodes
(core/text/byte_pairs.h); all else the library does.

defines: WordIds, Tokenizer, tokenizer_from_metadata
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Callable, Mapping
from typing import Any, cast

from .. import _core
from ..errors import ModelError
from . import byte_level
from .vocabulary import SPACE, FileVocabulary, TokenizerParts, read_vocabulary

KINDS = ("gpt2", "llama", "t5", "tokenizer.json")
"""Values of tokenizer.ggml.model; the last one is ours, for a folder."""
WHITE_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""Of Unicode (PropList.txt); Python's own idea of it has more."""

WORDS_MAX = 1 << 16
"""Words whose ids are kept; then they are learnt anew."""
WORD_CHARACTERS_MAX = 64
"""Longer ones are not kept. With WORDS_MAX: some 16 MiB at most, usually 8."""
WORD_TEXT_CHARACTERS_MAX = 1 << 14
"""Longer text is the library's, which lets other threads run meanwhile."""
SLICE_CHARACTERS_MIN = 1 << 18
"""The library gets long text in slices of this length and up to a safe cut: for each character it
takes some hundred bytes until it is done."""

SPECIAL_CHARACTERS_MAX, SPECIAL_LENGTH_MAX = 1 << 18, 256
"""Of control tokens, all together and each: whatever a text begins like is kept of each."""

# Between a visible ASCII character and a space that an ASCII letter follows. In every pattern a
# match that holds a space begins with it, or with white space before it, of which there is none; no
# pattern looks back, and only after white space does one look ahead. Nothing composes with a space.
SAFE_CUT = re.compile("(?<=[!-~])(?= [A-Za-z])")


class WordIds:
    """Ids of text by its words. May be used from several threads: whoever loses a race learns a
    word twice."""

    def __init__(
        self, backend: Any, pattern: re.Pattern[str], pairs: _core.BytePairs | None = None
    ) -> None:
        self._backend = backend
        self._pairs = pairs
        self._find = pattern.findall
        self._known: dict[str, bytes] = {}

    def encode(self, text: str) -> bytes:
        """int32 ids of a text."""
        words = self._split(text)
        known = self._known
        try:
            return b"".join(map(known.__getitem__, words))
        except KeyError:
            new = list({word: None for word in words if word not in known})
        found = self._encoded(new)
        joined = b"".join([found[word] if word in found else known[word] for word in words])
        if len(known) + len(found) > WORDS_MAX:
            known = self._known = {}
        known.update((word, ids) for word, ids in found.items() if len(word) <= WORD_CHARACTERS_MAX)
        return joined

    def _encoded(self, words: list[str]) -> dict[str, bytes]:
        """The library does what the pairs do not."""
        if self._pairs is None:
            return dict(zip(words, _encode_batch(self._backend, words), strict=True))
        known = dict(zip(words, self._pairs.encode(words), strict=True))
        found = {word: ids for word, ids in known.items() if ids is not None}
        if rest := [word for word, ids in known.items() if ids is None]:
            found.update(zip(rest, _encode_batch(self._backend, rest), strict=True))
        return found

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
        parts: TokenizerParts,
        *,
        stop_tokens: tuple[int, ...],
        bos_id: int,
        eos_id: int,
        add_bos: bool,
    ) -> None:
        self._backend = parts.backend
        self._words = (
            None if parts.words is None else WordIds(parts.backend, parts.words, parts.pairs)
        )
        self._has_prefix = parts.has_prefix
        self._prefix_once = parts.prefix_once
        self._prefix_doubles = parts.prefix_doubles
        self._strips = {mark: strips for mark, strips in parts.strips.items() if any(strips)}
        self.token_bytes = parts.token_bytes
        """(vocabulary) byte string of each token; empty for those that yield no text."""
        self.special = parts.special
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

    def warm_up(self) -> None:
        """The library's part may be made when it is first asked (late_library.py): now."""
        self.encode(" ")

    def special_text(self, token: int) -> str:
        """Text of a control token; empty if it is none."""
        return self._special_texts.get(token, "")

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. Never a control id, whatever the text says."""
        if not text:
            return []
        return self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def begun(self, pieces: list[str], marks: list[str]) -> list[str]:
        """Texts around control tokens as the family has them: some begin with a space that nobody
        wrote, some control tokens take the white space beside them."""
        if self._strips:
            pieces = self._stripped(pieces, marks)
        if not self._has_prefix:
            return pieces
        last = 1 if self._prefix_once else len(pieces)
        return [self._prefixed(piece) for piece in pieces[:last]] + pieces[last:]

    def _prefixed(self, piece: str) -> str:
        begins = not self._prefix_doubles and piece.startswith((" ", SPACE))
        return piece if not piece or begins else f" {piece}"

    def _stripped(self, pieces: list[str], marks: list[str]) -> list[str]:
        pieces = list(pieces)
        for index, mark in enumerate(marks):
            before, behind = self._strips.get(mark, (False, False))
            if before:
                pieces[index] = pieces[index].rstrip(WHITE_SPACE)
            if behind:
                pieces[index + 1] = pieces[index + 1].lstrip(WHITE_SPACE)
        return pieces

    def encode_pieces(self, pieces: list[str]) -> list[bytes]:
        """The same for several texts, as int32 words."""
        words = self._words
        encoded = [
            words.encode(piece) if words and len(piece) <= WORD_TEXT_CHARACTERS_MAX else None
            for piece in pieces
        ]
        return [
            self._encode_long(piece) if ids is None else ids
            for piece, ids in zip(pieces, encoded, strict=True)
        ]

    def _encode_long(self, text: str) -> bytes:
        if self._words is None:
            return _encode_batch(self._backend, [text])[0]
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
        plain = self.begun(plain, pieces[1::2])
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


def _builder(kind: str) -> Callable[[FileVocabulary], TokenizerParts] | None:
    """Those that stand on the library load it, which takes a while."""
    match kind:
        case "gpt2":
            return byte_level.build
        case "llama":
            from .sentencepiece import build_merges

            return build_merges
        case "t5":
            from .sentencepiece import build_unigram

            return build_unigram
        case "tokenizer.json":
            from .tokenizer_json import build

            return build
        case _:
            return None


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a GGUF file's metadata. Raises ModelError that names what is wrong."""
    kind = metadata.get("tokenizer.ggml.model")
    build = _builder(kind) if isinstance(kind, str) else None
    if kind is None:
        raise ModelError(
            "The file has no tokenizer, so only `sublimate.Engine` can use it, with token ids."
        )
    if build is None:
        known = ", ".join(KINDS)
        raise ModelError(f"The tokenizer kind {kind!r} is not supported. Supported: {known}.")
    vocabulary = read_vocabulary(metadata)
    parts = build(vocabulary)
    lengths = [len(text) for text in parts.special]
    if sum(lengths) > SPECIAL_CHARACTERS_MAX or max(lengths, default=0) > SPECIAL_LENGTH_MAX:
        raise ModelError(
            f"The vocabulary has {len(lengths)} control tokens of up to {max(lengths)} characters, "
            "more than any model's."
        )
    return Tokenizer(
        parts,
        stop_tokens=vocabulary.stop_tokens(parts.special),
        bos_id=vocabulary.token_id("bos", parts.bos_id),
        eos_id=vocabulary.token_id("eos", parts.eos_id),
        add_bos=vocabulary.flag("add_bos_token", default=parts.add_bos),
    )
