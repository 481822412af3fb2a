"""Byte-level BPE: words by a family's pattern, their bytes as characters, merges by rank.

Source: the vocabulary format of GPT-2 (kind gpt2 of GGUF files).

defines: SPECIAL, build, byte_characters, byte_level_bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ModelError
from .library import Backend, models, normalizers
from .pre_tokenizers import PRE_TOKENIZERS, ascii_words
from .vocabulary import FileVocabulary, TokenizerParts, TokenType

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


def build(vocabulary: FileVocabulary) -> TokenizerParts:
    """Raises ModelError that names what is wrong."""
    pre = PRE_TOKENIZERS[_pre_tokenizer(vocabulary)]
    backend = Backend(_merges_model(vocabulary, ignore=pre.ignore_merges))
    backend.pre_tokenizer = pre.build()
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    return TokenizerParts(
        backend=backend,
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


def _merges_model(vocabulary: FileVocabulary, *, ignore: bool) -> Any:
    merges: list[tuple[str, str]] = []
    for merge in vocabulary.strings("merges"):
        left, space, right = merge.partition(" ")
        if not space or " " in right:
            raise ModelError("The model file is damaged: a merge is not two texts.")
        merges.append((left, right))
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    # The library does not look for this, and reads beyond its memory where it is not so.
    if not all(left + right in ids for left, right in merges):
        raise ModelError("The model file is damaged: a merge names unknown tokens.")
    try:
        return models.BPE(ids, merges, ignore_merges=ignore)
    except Exception:
        # The library raises plain Exception for a merge of tokens that are not there.
        raise ModelError("The model file is damaged: a merge names unknown tokens.") from None


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
    result: list[bytes] = []
    for token, kind in zip(tokens, types, strict=True):
        if kind == TokenType.NORMAL:
            try:
                result.append(token.translate(table).encode("latin-1"))
            except UnicodeEncodeError:
                result.append(token.encode())  # an added token that is not in byte characters
        else:
            result.append(token.encode() if kind == TokenType.USER_DEFINED else b"")
    return result
