"""What a folder says of text: vocabulary, control tokens, chat template, what ends an answer, and
how it is sampled where a request does not say.

defines: text_metadata, sampling_metadata
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from ...errors import ModelError
from ..named_templates import KEY
from ..tokenizer_json import DOCUMENT, STRIPS, AddedEntry, TokenizerJson, token_types
from ..vocabulary import STOP_IDS, TOKENS_MAX, TokenType
from .documents import VOCABULARY_BYTES_MAX, read_document, read_file, read_optional
from .fields import Fields
from .form import FOR_TOOLS
from .sentencepiece_file import read_sentencepiece

SETTINGS = "tokenizer_config.json"
SPECIAL = "special_tokens_map.json"
GENERATION = "generation_config.json"
TEMPLATES = ("chat_template.jinja", "chat_template.json")
FILLER = "\ufdd0"
"""As in sentencepiece.NO_TEXT: names of ids that no token has."""
SAMPLING = {
    "temperature": "temp",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Field of generation_config.json -> what follows general.sampling. in GGUF."""


def text_metadata(folder: Path, config: Fields, rows: int) -> dict[str, Any]:
    """Keys of GGUF for the tokenizer and the template; `rows` of the embedding, so many ids there
    are. Raises ModelError; empty if the folder has no tokenizer."""
    settings = read_optional(folder / SETTINGS)
    added = _added_by_settings(folder, settings)
    if (folder / "tokenizer.json").exists():
        metadata = _from_json(folder, added, rows)
    elif (folder / "tokenizer.model").exists():
        metadata = _from_sentencepiece(folder, added, rows)
    else:
        return {}
    metadata |= _templates(folder, settings)
    return metadata | _named_tokens(folder, settings, config, metadata)


def sampling_metadata(folder: Path) -> dict[str, Any]:
    """Keys of GGUF for what generation_config.json recommends: nothing where it says that answers
    are not sampled. Raises ModelError."""
    generation = Fields(read_optional(folder / GENERATION), GENERATION)
    if not generation.flag("do_sample"):
        return {}
    keys: dict[str, Any] = {}
    for field, key in SAMPLING.items():
        if generation.has(field):
            number = generation.number(field)
            keys[f"general.sampling.{key}"] = int(number) if key == "top_k" else number
    return keys


# ---- vocabularies ------------------------------------------------------------------------------
def _from_json(folder: Path, added: dict[str, AddedEntry], rows: int) -> dict[str, Any]:
    path = folder / "tokenizer.json"
    document = read_document(path, TokenizerJson, VOCABULARY_BYTES_MAX)
    # What the settings say of a token that both have is newer.
    every = {entry.content: entry for entry in document.added_tokens} | added
    tokens, types = token_types(min(rows, TOKENS_MAX), document, every)
    return {
        "tokenizer.ggml.model": "tokenizer.json",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        STRIPS: _strips(every),
        DOCUMENT: document,
    }


def _from_sentencepiece(folder: Path, added: dict[str, AddedEntry], rows: int) -> dict[str, Any]:
    metadata = read_sentencepiece(folder / "tokenizer.model")
    tokens = cast(list[str], metadata["tokenizer.ggml.tokens"])
    types = cast(list[int], metadata["tokenizer.ggml.token_type"])
    scores = cast(list[float], metadata["tokenizer.ggml.scores"])
    count = min(max(len(tokens), rows), TOKENS_MAX)
    if len(tokens) > rows:
        raise ModelError(f"{folder}: tokenizer.model has {len(tokens)} tokens, the model {rows}.")
    for index in range(len(tokens), count):
        tokens.append(f"{FILLER}{index}")
        types.append(TokenType.UNUSED.value)
        scores.append(0.0)
    for token, entry in added.items():
        if 0 <= entry.id < count:
            tokens[entry.id] = token
            if types[entry.id] != TokenType.UNKNOWN:
                kind = TokenType.CONTROL if entry.special else TokenType.USER_DEFINED
                types[entry.id] = kind.value
    return metadata | {STRIPS: _strips(added)}


def _strips(added: Mapping[str, AddedEntry]) -> dict[str, tuple[bool, bool]]:
    for token, entry in added.items():
        if entry.single_word:
            raise ModelError(f"Token {token[:80]!r} is found as a word only: not supported.")
    return {token: (entry.lstrip, entry.rstrip) for token, entry in added.items()}


def _added_by_settings(folder: Path, settings: Mapping[str, Any]) -> dict[str, AddedEntry]:
    """By their texts. Of two files the second one says more."""
    found: dict[str, AddedEntry] = {}
    for token, number in read_optional(folder / "added_tokens.json").items():
        if isinstance(number, int):
            found[token] = AddedEntry(id=number, content=token, special=True)
    decoder: Any = settings.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        for number, entry in cast(dict[str, Any], decoder).items():
            try:
                told = msgspec.convert({**entry, "id": int(number)}, AddedEntry)
            except (msgspec.ValidationError, TypeError, ValueError):
                raise ModelError(
                    f"{folder / SETTINGS}: added_tokens_decoder: {str(number)[:20]!r} is no token."
                ) from None
            found[told.content] = told
    return found


# ---- what tokens mean --------------------------------------------------------------------------
def _text_of(value: Any) -> str:
    """A token is its text or an object that has it."""
    if isinstance(value, dict):
        value = cast(dict[str, Any], value).get("content")
    return value if isinstance(value, str) else ""


def _named_tokens(
    folder: Path, settings: Mapping[str, Any], config: Fields, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    tokens = cast(list[str], metadata["tokenizer.ggml.tokens"])
    ids = {token: index for index, token in enumerate(tokens)}
    more = read_optional(folder / SPECIAL)
    generation = Fields(read_optional(folder / GENERATION), GENERATION)
    stops = _ids_of(generation, len(tokens)) or _ids_of(config, len(tokens))
    named: dict[str, int] = {}
    for name in ("bos", "eos"):
        text = _text_of(settings.get(f"{name}_token")) or _text_of(more.get(f"{name}_token"))
        if text in ids:
            named[name] = ids[text]
    if "bos" not in named and isinstance(config.get("bos_token_id"), int):
        told = config.integer("bos_token_id", low=0)
        named["bos"] = told if told < len(tokens) else -1
    if stops:
        named.setdefault("eos", stops[0])
    keys: dict[str, Any] = {f"tokenizer.ggml.{name}_token_id": at for name, at in named.items()}
    keys[STOP_IDS] = stops
    document = metadata.get(DOCUMENT)
    if isinstance(settings.get("add_bos_token"), bool):
        keys["tokenizer.ggml.add_bos_token"] = settings["add_bos_token"]
    elif isinstance(document, TokenizerJson):
        bos = named.get("bos", -1)
        first = bos >= 0 and document.puts_first(tokens[bos])
        keys["tokenizer.ggml.add_bos_token"] = first
    return keys


def _ids_of(fields: Fields, count: int) -> list[int]:
    """eos_token_id, which may be one id or a list."""
    value = fields.get("eos_token_id")
    listed: list[Any] = cast(list[Any], value) if isinstance(value, list) else [value]
    return [token for token in listed if isinstance(token, int) and 0 <= token < count]


def _templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Under GGUF's keys. The file of its own before what the settings say; of a list the one named
    default, and those of other names beside it."""
    jinja, document = (folder / name for name in TEMPLATES)
    told: Any = read_optional(document).get("chat_template") or settings.get("chat_template")
    named: dict[str, str] = {}
    if isinstance(told, list):
        for one in cast(list[Any], told):
            entry = cast(dict[str, Any], one) if isinstance(one, dict) else {}
            name, source = entry.get("name"), entry.get("template")
            if isinstance(name, str) and isinstance(source, str):
                named[f"{KEY}.{name}"] = source
    elif isinstance(told, str):
        named[KEY] = told
    if jinja.exists():
        named[KEY] = read_file(jinja).decode(errors="replace")
    tools = folder / FOR_TOOLS
    if tools.exists():
        named[f"{KEY}.tool_use"] = read_file(tools).decode(errors="replace")
    return named
