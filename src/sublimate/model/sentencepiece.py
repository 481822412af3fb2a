"""SentencePiece vocabularies: spaces are characters of words, and what no token has is bytes.

Two kinds. The one of Llama 2, Mistral, Gemma and Phi 3 merges neighbours, the best score first
(BPE; Kudo and Richardson, arXiv 1808.06226, and the library's bpe_model.cc); for us it has a merge
for each way to make a token of two. The other takes the most probable tokens for a whole text
(unigram; Kudo, arXiv 1804.10959).

defines: build_merges, build_unigram, defined_tokens, piece_bytes
"""

from __future__ import annotations

import re
from typing import Any, cast

from ..errors import ModelError
from .library import AddedToken, Backend, Regex, models, normalizers, pre_tokenizers
from .named_templates import template_source
from .vocabulary import (
    BYTE_TOKEN,
    END_OF_TURN_TEXTS,
    NO_TEXT,
    SPACE,
    FileVocabulary,
    TokenizerParts,
    TokenType,
    is_mark,
)

BEGINS_BYTE_NAME = "<(?=0x[0-9A-F]{2}>)"
"""In what somebody typed; cut off from the rest it names no token."""
CROSSES_WORDS = re.compile(f"[^{SPACE}]{SPACE}")
WORDS = re.compile(r" *[^ ]+| +")
"""A word has the spaces before it, which may merge with it and each other."""
MERGING = (TokenType.NORMAL.value, TokenType.UNUSED.value)
MERGED_SQUARES_MAX = 1 << 28
"""Of the tokens' lengths: what it takes to try each way to make one. Large models have 1 << 24."""
UNKNOWN_ID, BOS_ID, EOS_ID = 0, 1, 2
"""Of SentencePiece, where a file names no other."""


def build_merges(vocabulary: FileVocabulary) -> TokenizerParts:
    """Raises ModelError that names what is wrong."""
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    unknown = _unknown(vocabulary)
    model = models.BPE(
        ids,
        _merges(vocabulary),
        unk_token=vocabulary.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    normalizer = normalizers.Replace(" ", SPACE)
    return _parts(vocabulary, defined_tokens(vocabulary), Backend(model), normalizer, WORDS)


def build_unigram(vocabulary: FileVocabulary) -> TokenizerParts:
    """Raises ModelError that names what is wrong."""
    scores = vocabulary.scores()
    lowest = min(scores, default=0.0)
    # The library looks for every token in a text. Text is only what normal tokens say: others get a
    # name that no text has behind the first step. Bytes it finds by their names, so these stay.
    defined = defined_tokens(vocabulary)
    scored: list[tuple[str, float]] = []
    for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind == TokenType.BYTE:
            scored.append((token, lowest))
        elif kind in (TokenType.NORMAL, TokenType.USER_DEFINED) and token not in defined[0]:
            scored.append((token, scores[index]))
        else:
            scored.append((f"{NO_TEXT}{index}", lowest))
    has_bytes = TokenType.BYTE in vocabulary.types
    backend = Backend(models.Unigram(scored, _unknown(vocabulary), byte_fallback=has_bytes))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(BEGINS_BYTE_NAME), "isolated")
    steps: list[Any] = [normalizers.Replace(NO_TEXT, "\ufffd")]
    if table := _character_map(vocabulary):
        steps.append(_precompiled(table))
    if vocabulary.flag("remove_extra_whitespaces", default=False):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    # What further steps make of a text is not what they make of its words.
    words = WORDS if len(steps) == 1 else None
    steps.append(normalizers.Replace(" ", SPACE))
    return _parts(vocabulary, defined, backend, normalizers.Sequence(steps), words)


def _parts(
    vocabulary: FileVocabulary,
    defined: tuple[dict[str, int], list[str]],
    backend: Any,
    normalizer: Any,
    words: re.Pattern[str] | None,
) -> TokenizerParts:
    backend.normalizer = normalizer
    special, texts = defined
    # Found before the merges, in text as people write it.
    backend.add_tokens([AddedToken(text, normalized=False, special=False) for text in texts])
    if backend.get_vocab_size(with_added_tokens=True) != len(vocabulary.tokens):
        raise ModelError("The model file is damaged: a token that its user defined is not there.")
    crosses = any(CROSSES_WORDS.search(token) for token in vocabulary.tokens)
    return TokenizerParts(
        backend=backend,
        words=None if crosses or any(" " in text for text in texts) else words,
        token_bytes=[
            piece_bytes(token, kind)
            for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        ],
        special=special,
        has_prefix=vocabulary.flag("add_space_prefix", default=True),
        bos_id=BOS_ID,
        eos_id=EOS_ID,
        add_bos=True,
    )


def _merges(vocabulary: FileVocabulary) -> list[tuple[str, str]]:
    """Every way to make a token of two others, by its score; of one token, the longer left first.

    Where a file lists its merges, as some do, they are not needed: the scores say the same. Half a
    million of them for the largest vocabularies, so this is written for speed.
    """
    tokens, types = vocabulary.tokens, vocabulary.types
    scores = vocabulary.scores() if vocabulary.has_scores else _by_place(len(tokens))
    ids = [index for index, kind in enumerate(types) if kind in MERGING]
    if sum(len(tokens[index]) ** 2 for index in ids) > MERGED_SQUARES_MAX:
        raise ModelError("The tokens of the vocabulary are longer than any model's.")
    merging = {tokens[index] for index in ids}
    ids.sort(key=scores.__getitem__, reverse=True)
    merges: list[tuple[str, str]] = []
    for index in ids:
        token = tokens[index]
        merges += [
            (token[:at], token[at:])
            for at in range(len(token) - 1, 0, -1)
            if token[at:] in merging and token[:at] in merging
        ]
    return merges


def _by_place(count: int) -> list[float]:
    """Scores of a file that has none: its tokens are in the order in which they were learnt."""
    return [-float(index) for index in range(count)]


def defined_tokens(vocabulary: FileVocabulary) -> tuple[dict[str, int], list[str]]:
    """Tokens that only a template may write, and those that stand for text whoever writes it: a
    model's users have defined runs of line ends and tags of HTML as well as marks of turns."""
    written = template_source(vocabulary.metadata)
    special: dict[str, int] = {}
    texts: list[str] = []
    for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN) and len(token) > 1:
            special[token] = index
        elif kind == TokenType.USER_DEFINED:
            if is_mark(token) and (token in written or token in END_OF_TURN_TEXTS):
                special[token] = index
            else:
                texts.append(token)
    return special, texts


def _unknown(vocabulary: FileVocabulary) -> int:
    unknown = vocabulary.token_id("unknown", UNKNOWN_ID)
    if unknown < 0:
        raise ModelError("The model file is damaged: its vocabulary has no unknown token.")
    return unknown


def piece_bytes(token: str, kind: int) -> bytes:
    """What a token says; empty for those that yield no text. Raises ModelError."""
    if kind == TokenType.BYTE:
        if not (match := BYTE_TOKEN.fullmatch(token)):
            raise ModelError("The model file is damaged: a byte token names no byte.")
        return bytes.fromhex(match[1])
    if kind in (TokenType.NORMAL, TokenType.USER_DEFINED):
        return token.replace(SPACE, " ").encode()
    return b""


def _character_map(vocabulary: FileVocabulary) -> bytes:
    """The library's table of what it replaces before it looks for tokens; empty: there is none."""
    values: Any = vocabulary.metadata.get("tokenizer.ggml.precompiled_charsmap", [])
    try:
        return bytes(cast(list[int], values))
    except (TypeError, ValueError):
        raise ModelError("The model file is damaged: precompiled_charsmap is no bytes.") from None


def _precompiled(table: bytes) -> Any:
    try:
        return normalizers.Precompiled(table)
    except Exception:
        # The library raises plain Exception for a table that it cannot read.
        raise ModelError("The model file is damaged: precompiled_charsmap.") from None
