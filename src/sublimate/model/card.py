"""What a model file is, from its header alone, and what of it would not work: also of a file that
cannot be served. No weight is read.

defines: TensorKind, Sizes, Tokens, Template, Memory, Card, card_of
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from .. import _core
from ..errors import ModelError
from .files import ModelFile
from .named_templates import template_source
from .source import files_of, header_of, metadata_of, with_text
from .template import ChatTemplate, TemplateReport, template_from_metadata
from .tokenizer import Tokenizer, tokenizer_from_metadata

BETTER_TYPES = "Q4_K_M or Q8_0"
NAMED_TOKENS = ("bos", "eos", "eot", "eom", "unknown", "padding")
TEXT_CHARACTERS_MAX = 96


class TensorKind(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors of one type."""

    type: str
    tensors: int
    bytes: int
    supported: bool


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """0 where the file does not tell, or tells something for each layer."""

    layers: int = 0
    hidden: int = 0
    feed_forward: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    window: int = 0
    trained_context_length: int = 0
    context_length: int = 0
    """What a server offers by default."""
    rope_scaling: str = ""


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    pre: str
    vocabulary: int
    special: dict[str, tuple[int, str]]
    """Role -> id and text."""
    stop: list[tuple[int, str]]
    """Those that end an answer; none where the tokenizer cannot be made."""
    begins: bool
    """A text begins with the bos token."""


class Template(msgspec.Struct, frozen=True, kw_only=True):
    in_file: bool
    report: TemplateReport | None
    """None: it cannot be used, or there is no tokenizer."""
    thinking: str
    """always, switch (a request may turn it off) or never; empty where there is no report."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that serving takes."""

    weights: int
    """Packed."""
    kv_token: int
    """Keys and values of one token of context."""
    kv_context: int
    """Of one conversation as long as the context."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    path: str
    files: int
    file_bytes: int
    format: str
    architecture: str
    """As the file says."""
    parameters: int
    sizes: Sizes
    types: list[TensorKind]
    tokens: Tokens
    template: Template
    memory: Memory | None
    """None where something of `problems` leaves it open."""
    problems: list[str]
    """Why it cannot be served, each with what would help; empty: it can."""


def card_of(file: ModelFile, *, exact: bool = False, context_length: int = 0) -> Card:
    """Raises ModelError for what is no model file at all, or a damaged one."""
    path = str(file.path)
    header = header_of(path, any_type=True)
    in_folder = file.path.is_dir()
    metadata = metadata_of(path) if in_folder else with_text(path, header.metadata)
    tensors = header.tensors
    problems: list[str] = []
    if header.unsupported_types:
        names = ", ".join(header.unsupported_types)
        problems.append(
            f"Tensors of the types {names} are not supported. Take a file of another type, such as "
            f"{BETTER_TYPES}, or quantise the original anew."
        )
    packed = header.packed
    plan = _plan(header, exact or bool(packed and packed["exact"]), context_length, problems)
    if plan is not None and packed is not None:
        plan["weight_bytes"] = packed["weight_bytes"]
    tokenizer, template = _text_side(metadata, problems)
    return Card(
        name=file.name,
        title=_text(metadata.get("general.name", "")),
        path=path,
        files=len(files_of(path).files) or header.parts,
        file_bytes=header.file_bytes,
        format="safetensors" if in_folder else _format(header),
        architecture=_text(metadata.get("general.architecture", "")),
        parameters=sum(math.prod(shape) for _, _, shape, _ in tensors),
        sizes=_sizes(metadata, plan),
        types=_kinds(tensors, header.unsupported_types),
        tokens=_tokens(metadata, tokenizer),
        template=_template(metadata, template),
        memory=_memory(plan),
        problems=problems,
    )


def _format(header: _core.Gguf) -> str:
    if header.packed is None:
        return f"GGUF {header.version}"
    return f"packed {header.packed['quantize']}".rstrip()


def _plan(
    header: _core.Gguf, exact: bool, context_length: int, problems: list[str]
) -> dict[str, Any] | None:
    try:
        return header.plan(exact=exact, context_length=context_length)
    except _core.CoreError as error:
        problems.append(f"{str(error)[:1].upper()}{str(error)[1:]}.")
        return None


def _text_side(
    metadata: Mapping[str, Any], problems: list[str]
) -> tuple[Tokenizer | None, ChatTemplate | None]:
    try:
        tokenizer = tokenizer_from_metadata(metadata)
    except ModelError as error:
        problems.append(str(error))
        return None, None
    try:
        return tokenizer, template_from_metadata(metadata, tokenizer)
    except ModelError as error:
        problems.append(str(error))
        return tokenizer, None


def _text(value: object) -> str:
    """Of a file's value for people: one line of a bounded length."""
    shown = value if isinstance(value, str) else ""
    line = "".join(c if c.isprintable() else "\ufffd" for c in shown[:TEXT_CHARACTERS_MAX])
    return line + ("..." if len(shown) > TEXT_CHARACTERS_MAX else "")


def _sizes(metadata: Mapping[str, Any], plan: Mapping[str, Any] | None) -> Sizes:
    if plan is not None:
        return Sizes(**{name: plan[name] for name in Sizes.__struct_fields__})
    prefix = metadata.get("general.architecture", "")

    def told(name: str) -> int:
        value: Any = metadata.get(f"{prefix}.{name}", 0)
        if isinstance(value, list) and len(set(cast(list[Any], value))) == 1:
            value = cast(list[Any], value)[0]
        return value if isinstance(value, int) else 0

    heads, hidden = told("attention.head_count"), told("embedding_length")
    return Sizes(
        layers=told("block_count"),
        hidden=hidden,
        feed_forward=told("feed_forward_length"),
        heads=heads,
        kv_heads=told("attention.head_count_kv") or heads,
        head_dim=told("attention.key_length") or (hidden // heads if heads else 0),
        window=told("attention.sliding_window"),
        trained_context_length=told("context_length"),
        rope_scaling=_text(metadata.get(f"{prefix}.rope.scaling.type", "")),
    )


def _kinds(
    tensors: list[tuple[str, str, tuple[int, ...], int]], unsupported: list[str]
) -> list[TensorKind]:
    """Largest first."""
    counts: dict[str, tuple[int, int]] = {}
    for _, kind, _, size in tensors:
        count, held = counts.get(kind, (0, 0))
        counts[kind] = count + 1, held + size
    kinds = [
        TensorKind(type=kind, tensors=count, bytes=held, supported=kind not in unsupported)
        for kind, (count, held) in counts.items()
    ]
    return sorted(kinds, key=lambda kind: (-kind.bytes, kind.type))


def _tokens(metadata: Mapping[str, Any], tokenizer: Tokenizer | None) -> Tokens:
    listed: Any = metadata.get("tokenizer.ggml.tokens", [])
    texts = cast(list[Any], listed) if isinstance(listed, list) else []

    def named(token: int) -> tuple[int, str]:
        return token, _text(texts[token])

    ids = {role: metadata.get(f"tokenizer.ggml.{role}_token_id") for role in NAMED_TOKENS}
    if tokenizer is not None:
        ids |= {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id}
    return Tokens(
        kind=_text(metadata.get("tokenizer.ggml.model", "")),
        pre=_text(metadata.get("tokenizer.ggml.pre", "")),
        vocabulary=len(texts),
        special={
            role: named(token)
            for role, token in ids.items()
            if isinstance(token, int) and 0 <= token < len(texts)
        },
        stop=[named(token) for token in tokenizer.stop_tokens] if tokenizer else [],
        begins=tokenizer is not None and tokenizer.add_bos and tokenizer.bos_id >= 0,
    )


def _template(metadata: Mapping[str, Any], template: ChatTemplate | None) -> Template:
    if template is None:
        try:
            in_file = bool(template_source(metadata))
        except ModelError:
            in_file = True
        return Template(in_file=in_file, report=None, thinking="")
    thinking = "never"
    if template.thinking_format is not None:
        thinking = "switch" if template.thinking_format.switch else "always"
    in_file = template.report.origin == "model"
    return Template(in_file=in_file, report=template.report, thinking=thinking)


def _memory(plan: Mapping[str, Any] | None) -> Memory | None:
    if plan is None or not plan["weight_bytes"]:
        return None
    token = int(plan["kv_bytes_per_token"])
    return Memory(
        weights=plan["weight_bytes"],
        kv_token=token,
        kv_context=token * int(plan["context_length"]),
    )
