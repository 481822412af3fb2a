"""Writes small GGUF files, right or wrong on purpose: a whole model of a few KB, any part of which
can be left out, changed or cut.

defines: Value, Tensor, one, value, header, file, model_values, model_tensors, model, write_parts
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tiny_model import tiny_metadata

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?"}
FORMATS |= {U64: "Q", I64: "q", F64: "d"}
ALIGNMENT = 32
HIDDEN, HEADS, FEED_FORWARD, CONTEXT = 32, 2, 32, 64


class Value(NamedTuple):
    """A key's value; a list is an array of `kind`, bytes are written as they are."""

    kind: int
    content: Any


class Tensor(NamedTuple):
    name: str
    shape: Sequence[int]
    """Fastest first."""
    data: bytes
    kind: int = 0
    """Number of the type; 0 is F32."""
    offset: int | None = None
    """As the file says; None: where it is."""


def text(content: str | bytes) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(raw)) + raw


def one(kind: int, content: Any) -> bytes:
    return text(content) if kind == STRING else struct.pack("<" + FORMATS[kind], content)


def value(key: str | bytes, entry: Value) -> bytes:
    kind, content = entry
    if isinstance(content, bytes):
        return text(key) + struct.pack("<I", kind) + content
    if isinstance(content, list):
        items: list[Any] = content
        packed = b"".join(one(kind, item) for item in items)
        return text(key) + struct.pack("<IIQ", ARRAY, kind, len(items)) + packed
    return text(key) + struct.pack("<I", kind) + one(kind, content)


def header(values: Mapping[str, Value], tensors: Sequence[Tensor], **counts: int) -> bytes:
    """Up to the data, without its alignment. counts: version, tensor_count and value_count as the
    file says."""
    declared = {"version": 3, "tensor_count": len(tensors), "value_count": len(values)} | counts
    out = b"GGUF" + struct.pack("<IQQ", *declared.values())
    out += b"".join(value(key, entry) for key, entry in values.items())
    at = 0
    for tensor in tensors:
        out += text(tensor.name)
        out += struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        out += struct.pack("<IQ", tensor.kind, at if tensor.offset is None else tensor.offset)
        at += -(-len(tensor.data) // ALIGNMENT) * ALIGNMENT
    return out


def file(values: Mapping[str, Value], tensors: Sequence[Tensor], **counts: int) -> bytes:
    out = header(values, tensors, **counts)
    for tensor in tensors:
        out += bytes(-len(out) % ALIGNMENT) + tensor.data
    return out


TOKENIZER = tiny_metadata()
VOCABULARY = len(TOKENIZER["tokenizer.ggml.tokens"])


def model_values(**changes: Value | None) -> dict[str, Value]:
    """Of a llama model with a tokenizer of bytes. Changes by key, with __ for a dot; None: left
    out."""
    values = {
        "general.architecture": Value(STRING, "llama"),
        "general.name": Value(STRING, "A tiny model"),
        "llama.block_count": Value(U32, 1),
        "llama.context_length": Value(U32, CONTEXT),
        "llama.embedding_length": Value(U32, HIDDEN),
        "llama.feed_forward_length": Value(U32, FEED_FORWARD),
        "llama.attention.head_count": Value(U32, HEADS),
        "llama.attention.head_count_kv": Value(U32, 1),
        "llama.attention.layer_norm_rms_epsilon": Value(F32, 1e-5),
        "tokenizer.ggml.model": Value(STRING, "gpt2"),
        "tokenizer.ggml.pre": Value(STRING, "smollm"),
        "tokenizer.ggml.tokens": Value(STRING, TOKENIZER["tokenizer.ggml.tokens"]),
        "tokenizer.ggml.token_type": Value(I32, TOKENIZER["tokenizer.ggml.token_type"]),
        "tokenizer.ggml.merges": Value(STRING, TOKENIZER["tokenizer.ggml.merges"]),
        "tokenizer.ggml.bos_token_id": Value(U32, 1),
        "tokenizer.ggml.eos_token_id": Value(U32, 2),
        "tokenizer.chat_template": Value(STRING, TOKENIZER["tokenizer.chat_template"]),
    }
    for name, change in changes.items():
        key = name.replace("__", ".")
        if change is None:
            del values[key]
        else:
            values[key] = change
    return values


def model_tensors() -> list[Tensor]:
    kv = HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (HIDDEN, VOCABULARY),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (HIDDEN, kv),
        "blk.0.attn_v": (HIDDEN, kv),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.ffn_gate": (HIDDEN, FEED_FORWARD),
        "blk.0.ffn_up": (HIDDEN, FEED_FORWARD),
        "blk.0.ffn_down": (FEED_FORWARD, HIDDEN),
        "output_norm": (HIDDEN,),
    }
    return [
        Tensor(f"{name}.weight", shape, _numbers(index, shape))
        for index, (name, shape) in enumerate(shapes.items())
    ]


def _numbers(seed: int, shape: Sequence[int]) -> bytes:
    """Numbers without a pattern that matters: norms near 1, weights near 0."""
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    middle = 1.0 if len(shape) == 1 else 0.0
    numbers = [middle + ((seed * 7919 + i * 104729) % 1009 / 1009 - 0.5) / 4 for i in range(count)]
    return struct.pack(f"<{count}f", *numbers)


def model(**changes: Value | None) -> bytes:
    return file(model_values(**changes), model_tensors())


def write_parts(folder: Path, stem: str, parts: Sequence[Sequence[Tensor]]) -> list[Path]:
    """The model in parts, as the format's tools write them: the first has all keys."""
    count, all_tensors = len(parts), sum(map(len, parts))
    paths: list[Path] = []
    for number, tensors in enumerate(parts):
        values = model_values() if number == 0 else {}
        values["split.no"] = Value(U16, number)
        values["split.count"] = Value(U16, count)
        values["split.tensors.count"] = Value(I32, all_tensors)
        paths.append(folder / f"{stem}-{number + 1:05d}-of-{count:05d}.gguf")
        paths[-1].write_bytes(file(values, tensors))
    return paths
