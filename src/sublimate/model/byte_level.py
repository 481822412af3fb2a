"""Byte-level BPE: words by a family's pattern, their bytes as characters, merges by rank.

Source: the vocabulary format of GPT-2 (kind gpt2 of GGUF files).

Words of ASCII are encoded by our own table of the merges (core/text/byte_pairs.h), all else by the
library.

defines: SPECIAL, build, byte_pairs, library_backend, byte_characters, byte_level_bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import _core
from ..errors import ModelError
from .late_library import LateBackend
from .pre_tokenizers import PRE_TOKENIZERS, PreTokenizer, ascii_words
from .vocabulary import FileVocabulary, TokenizerParts, TokenType

if TYPE_CHECKING:
    from .library import Backend

UNNAMED = "default"
"""What converters wrote that did not know it."""
OF_LLAMA3 = {"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>"}
FAMILIES = {
    "qwen2": "qwen2",
    "qwen2vl": "qwen2",
    "qwen3": "qwen2",
    "qwen3vl": "qwen2",
    "qwen3moe": "qwen2",
    "olmo2": "dbrx",
    "granite": "refact",
}
"""Architecture -> the pre-tokenizer of all its models."""
SPECIAL = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
BYTES = 1 << 8


def build(vocabulary: FileVocabulary) -> TokenizerParts:
    """Raises ModelError that names what is wrong."""
    pre = PRE_TOKENIZERS[_pre_tokenizer(vocabulary)]
    return TokenizerParts(
        backend=LateBackend(lambda: library_backend(vocabulary, pre)),
        pairs=byte_pairs(vocabulary, ignores_merges=pre.ignore_merges),
        words=ascii_words(pre.pattern),
        token_bytes=byte_level_bytes(vocabulary.tokens, vocabulary.types),
        special={
            token: index
            for index, (token, kind) in enumerate(
                zip(vocabulary.tokens, vocabulary.types, strict=True)
            )
            if kind in SPECIAL and len(token) > 1
        },
        add_bos=pre.add_bos,
    )


def _pre_tokenizer(vocabulary: FileVocabulary) -> str:
    """The one that the file names, or that its family has. Raises ModelError."""
    name = vocabulary.metadata.get("tokenizer.ggml.pre")
    if isinstance(name, str) and name in PRE_TOKENIZERS:
        return name
    known = ", ".join(PRE_TOKENIZERS)
    if name is not None and name != UNNAMED:
        raise ModelError(f"The pre-tokenizer {name!r} is not supported. Supported: {known}.")
    if set(vocabulary.tokens) >= OF_LLAMA3:
        return "llama-bpe"
    family = FAMILIES.get(str(vocabulary.metadata.get("general.architecture")))
    if family is None:
        raise ModelError(
            "The file does not name its pre-tokenizer (tokenizer.ggml.pre), as those of before May "
            "2024 do not, so its text would be cut wrongly. Take a newer file of the model, or "
            f"convert it anew. Supported: {known}."
        )
    return family


def byte_pairs(vocabulary: FileVocabulary, *, ignores_merges: bool) -> _core.BytePairs:
    """Raises ModelError. The library does not look for all that this refuses, and reads beyond its
    memory where a merge makes no token."""
    characters = {byte: chr(code) for code, byte in byte_characters().items()}
    try:
        return _core.BytePairs(
            vocabulary.tokens,
            vocabulary.strings("merges"),
            [characters[byte] for byte in range(BYTES)],
            whole=ignores_merges,
        )
    except _core.CoreError as error:
        raise ModelError(f"The model file is damaged: {error}.") from None


def library_backend(vocabulary: FileVocabulary, pre: PreTokenizer) -> Backend:
    """For a vocabulary whose merges are known to fit it."""
    from .library import Backend, models, normalizers

    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    merges: list[tuple[str, str]] = []
    for merge in vocabulary.strings("merges"):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    backend = Backend(models.BPE(ids, merges, ignore_merges=pre.ignore_merges))
    backend.pre_tokenizer = pre.build()
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    return backend


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


def byte_level_bytes(tokens: Sequence[str], types: Sequence[int]) -> list[bytes]:
    """(vocabulary) byte string of each token; empty for those that yield no text."""
    table = byte_characters()
    space = next(chr(code) for code, byte in table.items() if byte == ord(" "))
    normal, defined = TokenType.NORMAL.value, TokenType.USER_DEFINED.value
    result: list[bytes] = []
    for token, kind in zip(tokens, types, strict=True):
        if kind == normal:
            # Most are written in ASCII, which stands for itself, but for spaces.
            plain = token.replace(space, " ")
            result.append(plain.encode() if plain.isascii() else _said(token, table))
        else:
            result.append(token.encode() if kind == defined else b"")
    return result


def _said(token: str, table: dict[int, int]) -> bytes:
    try:
        return token.translate(table).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()  # an added token that is not in byte characters
