"""The tokenizer of a tokenizer.json: its steps as they stand, without its control tokens.

The file describes a tokenizer of the `tokenizers` library, which reads it. What is taken out here
is what must not work on text that a person typed (control tokens; of unigram vocabularies their
names too), and what the library would do anew for each piece that it is given: the space that some
families put before a text. Where the steps are those of a known family, ASCII text falls into words
as it does for GGUF files; elsewhere the library gets every text whole.

Source: the library's serialisation (huggingface/tokenizers, tokenizer/serialization.rs and the
steps' own files).

defines: DOCUMENT, STRIPS, AddedEntry, TokenizerJson, build, token_types
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec

from ..errors import ModelError
from .byte_level import SPECIAL, byte_level_bytes
from .library import Backend, is_refusal
from .pre_tokenizers import GPT2_PATTERN, PATTERNS, SMOLLM_PATTERN, ascii_words
from .sentencepiece import (
    BEGINS_BYTE_NAME,
    CROSSES_WORDS,
    NO_TEXT,
    WORDS,
    defined_tokens,
    piece_bytes,
)
from .vocabulary import SPACE, FileVocabulary, TokenizerParts, TokenType

DOCUMENT = "sublimate.tokenizer_json"
"""Key of a folder's metadata: a TokenizerJson."""
STRIPS = "sublimate.token_strips"
"""Likewise: control token -> whether it takes the white space before it, and that behind it."""
Step = dict[str, Any]
Part = TypeVar("Part")


class AddedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A token beside the model's own."""

    id: int = -1
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class Head(msgspec.Struct, frozen=True):
    """What is looked at of a model but its vocabulary; the library reads all of it."""

    type: str = "BPE"
    byte_fallback: bool | None = None
    unk_id: int | None = None
    """Of Unigram."""
    unk_token: str | None = None
    """Of BPE."""


class _Ranked(msgspec.Struct, frozen=True):
    vocab: dict[str, int]


class _Scored(msgspec.Struct, frozen=True):
    vocab: list[tuple[str, float]]


class TokenizerJson(msgspec.Struct, kw_only=True):
    """The document. Steps are read one by one when it is used."""

    model: msgspec.Raw
    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    added_tokens: list[AddedEntry] = msgspec.field(default_factory=list[AddedEntry])

    def head(self) -> Head:
        """Raises ModelError, also for a kind of model that is not supported."""
        head = self._decoded(Head)
        if head.type not in ("BPE", "Unigram"):
            raise ModelError(
                f"tokenizer.json: the model {head.type[:40]!r} is not supported (BPE and Unigram "
                f"are)."
            )
        return head

    def scored(self) -> list[tuple[str, float]]:
        """Of Unigram: text and score of each token. Raises ModelError."""
        return self._decoded(_Scored).vocab

    def vocabulary(self) -> dict[str, int]:
        """Text of each token of the model -> id. Raises ModelError."""
        if self.head().type == "BPE":
            return self._decoded(_Ranked).vocab
        return {token: index for index, (token, _) in enumerate(self.scored())}

    def _decoded(self, kind: type[Part]) -> Part:
        try:
            return msgspec.json.decode(bytes(self.model), type=kind)
        except (msgspec.MsgspecError, RecursionError):
            raise _damaged("its model is not one that the library writes") from None

    def puts_first(self, token: str) -> bool:
        """Whether its post-processor begins a text with this token."""
        for step in _steps(self.post_processor, "processors"):
            single: Any = step.get("single") if step.get("type") == "TemplateProcessing" else None
            if isinstance(single, list) and single and isinstance(single[0], dict):
                first: Any = cast(Step, single[0]).get("SpecialToken")
                return isinstance(first, dict) and cast(Step, first).get("id") == token
        return False


def build(vocabulary: FileVocabulary) -> TokenizerParts:
    """Raises ModelError that names what is wrong."""
    document = vocabulary.metadata.get(DOCUMENT)
    if not isinstance(document, TokenizerJson):
        raise ModelError("The model has no tokenizer.json.")
    normalizers = _steps(document.normalizer, "normalizers")
    splits = _steps(document.pre_tokenizer, "pretokenizers")
    if any(step.get("type") == "ByteLevel" for step in [*normalizers, *splits]):
        return _byte_level(vocabulary, document, normalizers, splits)
    return _pieces(vocabulary, document, normalizers, splits)


def _damaged(reason: str) -> ModelError:
    return ModelError(f"tokenizer.json is damaged: {reason}.")


def _steps(section: Any, inner: str) -> list[Step]:
    """The steps of a section, which may be none, one, or a sequence of them."""
    if section is None:
        return []
    if not isinstance(section, dict):
        raise _damaged(f"its {inner} are no object")
    step = cast(Step, section)
    if step.get("type") != "Sequence":
        return [step]
    listed: Any = step.get(inner)
    if not isinstance(listed, list) or not all(
        isinstance(part, dict) for part in cast(list[Any], listed)
    ):
        raise _damaged(f"its {inner} are no list of steps")
    return cast(list[Step], listed)


def _section(steps: list[Step], inner: str) -> Step | None:
    return {"type": "Sequence", inner: steps} if steps else None


def _backend(
    model: Mapping[str, Any], normalizers: list[Step], splits: list[Step], texts: Mapping[str, int]
) -> Any:
    added = [
        {
            "id": number,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": False,
        }
        for text, number in texts.items()
    ]
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": _section(normalizers, "normalizers"),
        "pre_tokenizer": _section(splits, "pretokenizers"),
        "post_processor": None,
        "decoder": None,
        "model": model,
    }
    try:
        backend = Backend.from_buffer(msgspec.json.encode(whole))
    except BaseException as error:
        if not is_refusal(error):
            raise
        raise _damaged("the tokenizers library cannot read it") from None
    for text, number in texts.items():
        if backend.token_to_id(text) != number:
            raise _damaged(f"token {number} is not where it should be")
    return backend


def _model(document: TokenizerJson, **changes: Any) -> dict[str, Any]:
    """The model's section with other values; the rest of it stays the bytes that it is."""
    try:
        section = msgspec.json.decode(bytes(document.model), type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        raise _damaged("its model is no object") from None
    # Merges that are left out by chance are for training.
    return {**section, "dropout": None, **changes}


def _strips(vocabulary: FileVocabulary) -> dict[str, tuple[bool, bool]]:
    return cast(dict[str, tuple[bool, bool]], vocabulary.metadata.get(STRIPS, {}))


# ---- byte-level --------------------------------------------------------------------------------
def _byte_level(
    vocabulary: FileVocabulary,
    document: TokenizerJson,
    normalizers: list[Step],
    splits: list[Step],
) -> TokenizerParts:
    plain = all(step.get("type") == "NFC" for step in normalizers)
    pattern = _known_pattern(splits) if plain else ""
    return TokenizerParts(
        backend=_backend(_model(document, type="BPE"), normalizers, splits, {}),
        words=ascii_words(pattern) if pattern else None,
        token_bytes=byte_level_bytes(vocabulary.tokens, vocabulary.types),
        special={
            token: index
            for index, (token, kind) in enumerate(
                zip(vocabulary.tokens, vocabulary.types, strict=True)
            )
            if kind in SPECIAL and len(token) > 1
        },
        strips=_strips(vocabulary),
    )


def _known_pattern(splits: list[Step]) -> str:
    """The regular expression of a known family's words; empty for other steps."""
    *before, last = splits
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return ""
    if last.get("use_regex", True):
        if not before:
            return GPT2_PATTERN
        digits = before[0].get("type") == "Digits" and before[0].get("individual_digits")
        return SMOLLM_PATTERN if digits and len(before) == 1 else ""
    if len(before) != 1 or before[0].get("type") != "Split" or before[0].get("invert"):
        return ""
    pattern: Any = before[0].get("pattern")
    written: Any = cast(Step, pattern).get("Regex") if isinstance(pattern, dict) else None
    known = isinstance(written, str) and written in PATTERNS
    return str(written) if known and before[0].get("behavior") == "Isolated" else ""


# ---- as SentencePiece --------------------------------------------------------------------------
def _pieces(
    vocabulary: FileVocabulary,
    document: TokenizerJson,
    normalizers: list[Step],
    splits: list[Step],
) -> TokenizerParts:
    special, listed = defined_tokens(vocabulary)
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    texts = {text: ids[text] for text in listed}
    prefix, normalizers, splits = _without_prefix(normalizers, splits)
    if document.head().type == "BPE":
        more = {"vocab": document.vocabulary() | texts} if texts else {}
        model = _model(document, type="BPE", **more)
    else:
        # The library looks for every token in a text. Names of control tokens are no text.
        hidden = {*special, *texts}
        kept = [
            (f"{NO_TEXT}{index}" if token in hidden else token, score)
            for index, (token, score) in enumerate(document.scored())
        ]
        model = _model(document, type="Unigram", vocab=_named(kept, texts))
        splits = [_split(BEGINS_BYTE_NAME), *splits]
    crosses = any(CROSSES_WORDS.search(token) for token in vocabulary.tokens)
    spaced = any(" " in text for text in texts)
    simple = _replaces_spaces(normalizers, splits)
    return TokenizerParts(
        backend=_backend(model, normalizers, splits, texts),
        words=WORDS if simple and not crosses and not spaced else None,
        token_bytes=[
            piece_bytes(token, kind)
            for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        ],
        special=special,
        strips=_strips(vocabulary),
        has_prefix=bool(prefix),
        prefix_once=prefix == "first",
        prefix_doubles=prefix == "each",
    )


def _named(kept: list[tuple[str, float]], texts: Mapping[str, int]) -> list[tuple[str, float]]:
    """With the names of tokens that users defined, which are found before the model is asked."""
    names = {number: text for text, number in texts.items()}
    while len(kept) in names:
        kept.append(("", 0.0))
    return [(names.get(index, token), score) for index, (token, score) in enumerate(kept)]


def _split(pattern: str) -> Step:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _without_prefix(
    normalizers: list[Step], splits: list[Step]
) -> tuple[str, list[Step], list[Step]]:
    """Which texts begin with a space that nobody wrote ("each": also those that begin with one;
    "always", "first"; "": none), and the steps without it. Raises ModelError."""
    if normalizers and normalizers[0].get("type") == "Prepend":
        if normalizers[0].get("prepend") == SPACE:
            return "each", normalizers[1:], splits
    spaces = [step for step in splits if step.get("type") == "Metaspace"]
    if not spaces:
        return "", normalizers, splits
    scheme = spaces[0].get("prepend_scheme")
    if scheme is None:
        scheme = "always" if spaces[0].get("add_prefix_space", True) else "never"
    if scheme not in ("always", "first", "never"):
        raise _damaged(f"prepend_scheme is {str(scheme)[:40]!r}")
    if scheme == "never":
        return "", normalizers, splits
    if len(splits) > 1:
        raise ModelError("tokenizer.json: Metaspace beside other steps is not supported.")
    never = {**spaces[0], "prepend_scheme": "never", "add_prefix_space": False}
    return str(scheme), normalizers, [never]


def _replaces_spaces(normalizers: list[Step], splits: list[Step]) -> bool:
    """Nothing but that: then what becomes of a text is what becomes of its words."""
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    if any(step != replaced for step in normalizers):
        return False
    for step in splits:
        by_space = step.get("pattern") == {"String": " "}
        if step.get("type") not in ("Metaspace", "Split") or (
            step.get("type") == "Split" and not by_space
        ):
            return False
    return bool(normalizers or splits)


def token_types(
    count: int, document: TokenizerJson, added: Mapping[str, AddedEntry]
) -> tuple[list[str], list[int]]:
    """Text and TokenType of each of `count` ids; ids that nothing names get a name that no text
    has. Raises ModelError."""
    head, model = document.head(), document.vocabulary()
    tokens = [f"{NO_TEXT}{index}" for index in range(count)]
    types = [TokenType.UNUSED.value] * count
    unknown = head.unk_id if head.type == "Unigram" else model.get(head.unk_token or "")
    for token, index in model.items():
        if not 0 <= index < count:
            continue
        if types[index] != TokenType.UNUSED:
            raise _damaged(f"two tokens have the id {index}")
        is_byte = head.byte_fallback and re.fullmatch("<0x[0-9A-F]{2}>", token)
        tokens[index] = token
        types[index] = TokenType.BYTE.value if is_byte else TokenType.NORMAL.value
        if index == unknown:
            types[index] = TokenType.UNKNOWN.value
    for token, entry in added.items():
        index = model.get(token, entry.id)
        if 0 <= index < count:
            tokens[index] = token
            kind = TokenType.CONTROL if entry.special else TokenType.USER_DEFINED
            types[index] = kind.value
    return tokens, types
