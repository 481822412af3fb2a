"""The vocabulary of a GGUF file, read and checked: what every kind of tokenizer starts from.

defines: STOP_IDS, TokenType, FileVocabulary, TokenizerParts, is_mark, read_vocabulary
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, cast

import msgspec

from .. import _core
from ..errors import ModelError
from .named_templates import template_source

TOKENS_MAX = _core.LIMITS["VOCABULARY_MAX"]
STOP_TOKENS_MAX = _core.LIMITS["STOP_TOKENS_MAX"]
LISTED_MAX = TOKENS_MAX * 2
"""Entries of any list that is read; there are more merges than tokens."""

STOP_IDS = "sublimate.stop_token_ids"
"""Key of a folder's metadata: what its generation_config.json says."""
NONE = 0xFFFFFFFF
"""-1 as some writers put it: there is no such token."""
NO_TEXT = "\ufdd0"
"""A code point that is no character."""

# Control tokens that end a turn wherever a model has them, beside the ones its file names.
END_OF_TURN_TEXTS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|end_of_role|>",
    "<end_of_turn>",
    "</s>",
)


SPACE = "\u2581"
"""Stands for a space in a vocabulary of SentencePiece."""
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
"""Of a vocabulary of SentencePiece."""
UNDEFINED = frozenset((-1, 0))
"""What some converters write where they know no type."""
NAMED = ("bos", "eos", "eot", "eom", "unknown", "padding", "separator", "mask", "cls")
"""Control tokens that a file tells by their ids."""


class TokenType(IntEnum):
    """tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class TokenizerParts(msgspec.Struct, kw_only=True):
    """What a kind of tokenizer makes of a vocabulary."""

    backend: Any
    """Of the library. It knows no control token."""
    pairs: _core.BytePairs | None = None
    """Encodes words that `words` has found as the library does, where it encodes them."""
    words: re.Pattern[str] | None
    """Finds the words of ASCII text, which no merge leaves; None: it has none."""
    token_bytes: list[bytes]
    """(vocabulary) byte string of each token; empty for those that yield no text."""
    special: dict[str, int]
    """Text of the tokens that only a template may write -> id."""
    strips: dict[str, tuple[bool, bool]] = msgspec.field(
        default_factory=dict[str, tuple[bool, bool]]
    )
    """Control tokens that take the white space before them, behind them."""
    has_prefix: bool = False
    """A text between control tokens begins with a space that nobody wrote."""
    prefix_once: bool = False
    """Only the first text does, and only if no control token is before it."""
    prefix_doubles: bool = True
    """A text that begins with a space gets one more."""
    bos_id: int = -1
    """Where the file names none; -1: it has none."""
    eos_id: int = -1
    add_bos: bool = False


class FileVocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and their types, and further keys by name."""

    metadata: Mapping[str, Any]
    tokens: list[str]
    types: list[int]
    """Each a TokenType."""

    def strings(self, name: str) -> list[str]:
        """A list of texts under tokenizer.ggml.{name}. Raises ModelError."""
        return _strings(self.metadata, f"tokenizer.ggml.{name}")

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean under tokenizer.ggml.{name}, or 0 or 1."""
        value = self.metadata.get(f"tokenizer.ggml.{name}")
        return value == 1 if isinstance(value, int) else default

    @property
    def has_scores(self) -> bool:
        return "tokenizer.ggml.scores" in self.metadata

    def scores(self) -> list[float]:
        """One of each token. Raises ModelError."""
        values: Any = self.metadata.get("tokenizer.ggml.scores")
        if not isinstance(values, list) or len(cast(list[Any], values)) != len(self.tokens):
            raise ModelError("The model file is damaged: scores does not fit its vocabulary.")
        if not all(isinstance(value, float) for value in cast(list[Any], values)):
            raise ModelError("The model file is damaged: scores is not a list of numbers.")
        return cast(list[float], values)

    def token_id(self, name: str, default: int = -1) -> int:
        """The id that tokenizer.ggml.{name}_token_id names; -1 if it names none."""
        if f"tokenizer.ggml.{name}_token_id" not in self.metadata:
            return default
        return next(iter(self._token_ids(name)), -1)

    def _token_ids(self, name: str) -> list[int]:
        """All of a key that has one, or a list; and of the key that some files have for lists."""
        found: list[int] = []
        for key in (f"tokenizer.ggml.{name}_token_id", f"tokenizer.ggml.{name}_token_ids"):
            value: Any = self.metadata.get(key, [])
            for token in cast(list[Any], value if isinstance(value, list) else [value]):
                if not isinstance(token, int) or not -1 <= token < len(self.tokens):
                    if token == NONE:
                        continue
                    raise ModelError(
                        f"The model file is damaged: its {name} token is outside the vocabulary."
                    )
                if token >= 0:
                    found.append(token)
        return found

    def stop_tokens(self, special: Mapping[str, int]) -> tuple[int, ...]:
        """Those that end an answer."""
        named = [token for name in ("eos", "eot", "eom") for token in self._token_ids(name)]
        named += cast(list[int], self.metadata.get(STOP_IDS, []))
        known = [special[text] for text in END_OF_TURN_TEXTS if text in special]
        return tuple(dict.fromkeys((*named, *known)))[:STOP_TOKENS_MAX]


def is_mark(token: str) -> bool:
    """It reads like <this> or [this]."""
    return token[:1] + token[-1:] in ("<>", "[]") and len(token) > len("<>")


def read_vocabulary(metadata: Mapping[str, Any]) -> FileVocabulary:
    """Raises ModelError that names what is wrong."""
    tokens = list(_strings(metadata, "tokenizer.ggml.tokens"))
    types = list(_token_types(metadata, tokens))
    if "" in tokens:  # some files have several: places that no text takes
        for index, token in enumerate(tokens):
            if not token:
                tokens[index], types[index] = f"{NO_TEXT}{index}", TokenType.UNUSED.value
    if len(set(tokens)) != len(tokens):
        raise ModelError("The model file is damaged: its vocabulary names a token twice.")
    return FileVocabulary(metadata=metadata, tokens=tokens, types=types)


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    values: Any = metadata.get(key)
    if not isinstance(values, list) or not values:
        raise ModelError(f"The model file is damaged: it has no list {key}.")
    listed = cast(list[Any], values)
    if len(listed) > LISTED_MAX or set(map(type, listed)) != {str}:
        raise ModelError(f"The model file is damaged: {key} is not a list of texts.")
    return cast(list[str], listed)


def _token_types(metadata: Mapping[str, Any], tokens: list[str]) -> list[int]:
    count = len(tokens)
    if count > TOKENS_MAX:
        raise ModelError(f"The vocabulary has {count} tokens; this server takes {TOKENS_MAX}.")
    types: Any = metadata.get("tokenizer.ggml.token_type", [0] * count)
    if not isinstance(types, list) or len(cast(list[Any], types)) != count:
        raise ModelError("The model file is damaged: token_type does not fit its vocabulary.")
    listed = cast(list[Any], types)
    found = set(listed)
    if unknown := found.difference(TokenType, UNDEFINED):
        index = next(index for index, kind in enumerate(listed) if kind in unknown)
        raise ModelError(
            f"Token {index} of the model file, {tokens[index]!r}, has the type {listed[index]!r}, "
            f"which this server does not know: {TokenType.NORMAL} to {TokenType.BYTE}, or 0 where "
            "the type is not defined."
        )
    if not found & UNDEFINED:
        return listed
    evident = _evident_types(metadata, tokens)
    normal = TokenType.NORMAL.value
    return [
        evident.get(index, normal) if kind in UNDEFINED else kind
        for index, kind in enumerate(listed)
    ]


def _evident_types(metadata: Mapping[str, Any], tokens: list[str]) -> dict[int, int]:
    """Of tokens that all else of the file tells to be no normal ones: those that it names by their
    ids, marks that end turns or that its template writes (as normal tokens they would come of no
    text, nor out of any template), and bytes."""
    written = template_source(metadata)
    has_bytes = metadata.get("tokenizer.ggml.model") != "gpt2"
    found: dict[int, int] = {}
    for index, token in enumerate(tokens):
        if not is_mark(token):
            continue
        if has_bytes and BYTE_TOKEN.fullmatch(token):
            found[index] = TokenType.BYTE.value
        elif token in END_OF_TURN_TEXTS:
            found[index] = TokenType.CONTROL.value
        elif token in written:
            # What people have defined is text, too: <think>, and not <|im_start|>.
            is_control = token.startswith("<|")
            found[index] = (TokenType.CONTROL if is_control else TokenType.USER_DEFINED).value
    named = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in NAMED]
    control = TokenType.CONTROL.value
    return found | {index: control for index in named if isinstance(index, int)}
