"""How each family of byte-level vocabularies cuts text into words before the merges.

The names are those of GGUF's key tokenizer.ggml.pre. Several stand for one pattern: what a file
calls its tokenizer after is the model that had it first.

defines: PreTokenizer, PRE_TOKENIZERS, PATTERNS, ascii_words
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

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
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
# A capital begins a word within letters.
GPT4O_PATTERN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTION}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN_PATTERN = GPT4O_PATTERN.replace(CONTRACTION, "").replace(r"\p{N}{1,3}", r"\p{N}")


class PreTokenizer(msgspec.Struct, frozen=True):
    """How text is cut into words before the merges, and what else the family does."""

    build: Callable[[], Any]
    pattern: str
    """Words as a regular expression; over ASCII text it finds those that `build` does."""
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False
    """Where a file does not say whether a text begins with its first token."""


def _gpt2() -> Any:
    from .library import pre_tokenizers  # when one is built, and no earlier

    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> Any:
    from .library import pre_tokenizers

    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _gpt2()])


def _by_pattern(pattern: str) -> Callable[[], Any]:
    def build() -> Any:
        from .library import Regex, pre_tokenizers

        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, byte_level])

    return build


def ascii_words(pattern: str) -> re.Pattern[str]:
    """The pattern for ASCII text, without the classes that only Unicode needs."""
    pattern = pattern.replace(UPPER, "[A-Z]").replace(LOWER, "[a-z]")
    pattern = pattern.replace(r"\p{L}\p{N}", "A-Za-z0-9")  # always inside a class
    pattern = pattern.replace(r"\p{L}", "[A-Za-z]").replace(r"\p{N}", "[0-9]")
    return re.compile(pattern, re.ASCII)


_GPT2 = PreTokenizer(_gpt2, GPT2_PATTERN)
_SMOLLM = PreTokenizer(_smollm, SMOLLM_PATTERN)
_LLAMA3 = PreTokenizer(
    _by_pattern(LLAMA3_PATTERN), LLAMA3_PATTERN, ignore_merges=True, add_bos=True
)
_DBRX = PreTokenizer(_by_pattern(LLAMA3_PATTERN), LLAMA3_PATTERN)
_TEKKEN = PreTokenizer(
    _by_pattern(TEKKEN_PATTERN), TEKKEN_PATTERN, ignore_merges=True, add_bos=True
)
_QWEN2 = PreTokenizer(_by_pattern(QWEN2_PATTERN), QWEN2_PATTERN, nfc=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "olmo", "mpt", "granite-docling"), _GPT2),
    # Granite's code models and those before its fourth generation call theirs refact.
    **dict.fromkeys(("smollm", "refact", "starcoder", "command-r", "exaone"), _SMOLLM),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2", "pixtral"), _LLAMA3),
    # OLMo 2, Phi 4: the same words, whose merges count.
    **dict.fromkeys(("dbrx", "smaug-bpe"), _DBRX),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4"), PreTokenizer(_by_pattern(GPT4O_PATTERN), GPT4O_PATTERN)),
    "tekken": _TEKKEN,
}
PATTERNS = frozenset((LLAMA3_PATTERN, QWEN2_PATTERN, GPT4O_PATTERN, TEKKEN_PATTERN))
"""Those by which a single split finds the words."""
