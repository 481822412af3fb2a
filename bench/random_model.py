"""A llama model of random weights at the sizes of a real one, for measuring: this server and others
load it alike.

usage: python bench/random_model.py --shape llama-1b --type q4_k [--tokenizer MODEL] OUT.gguf

--type: one type for every matrix, or q4_k_m: the mix of llama.cpp's files of that name (Q6_K for
the embedding and for the value and down projections of some layers, Q4_K else). The tokenizer is
that of another model, by default of the default one, filled up to the vocabulary's size.

defines: Shape, SHAPES, mixed_type, write_tokenizer, write_model, main
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from random_blocks import BLOCKS, random_blocks

from sublimate.config import Settings, cache_folder
from sublimate.model.files import locate
from sublimate.model.registry import DEFAULT

TYPES = (*(name.lower() for name in BLOCKS), "q4_k_m")
UNUSED_TOKEN = 5  # of tokenizer.ggml.token_type
SEED = 1


@dataclass(frozen=True)
class Shape:
    """Sizes of a model with tied embeddings."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    context: int
    rope_base: float


SHAPES = {
    "llama-1b": Shape(2048, 16, 32, 8, 64, 8192, 128256, 8192, 500000.0),
    "llama-3b": Shape(3072, 28, 24, 8, 128, 8192, 128256, 8192, 500000.0),
    "llama-1b-short": Shape(2048, 4, 32, 8, 64, 8192, 49152, 2048, 500000.0),
    "tiny": Shape(256, 2, 4, 2, 64, 512, 49152, 2048, 10000.0),
}


def mixed_type(kind: str, name: str, layer: int, layers: int) -> str:
    """The type of one matrix (of the embedding: layer -1)."""
    if kind != "q4_k_m":
        return kind.upper()
    more_bits = (
        layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    ) and name in ("attn_v", "ffn_down")
    return "Q6_K" if more_bits or name == "token_embd" else "Q4_K"


def write_tokenizer(writer: gguf.GGUFWriter, source: Path, vocabulary: int) -> None:
    """Copies the tokenizer's keys; tokens that the source lacks are unused ones."""
    fields = gguf.GGUFReader(source).fields
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
    types: list[int] = fields["tokenizer.ggml.token_type"].contents()
    missing = vocabulary - len(tokens)
    if missing < 0:
        raise ValueError(f"{source} has more than {vocabulary} tokens")
    writer.add_token_list(tokens + [f"[PAD{len(tokens) + i}]" for i in range(missing)])
    writer.add_token_types(types + [UNUSED_TOKEN] * missing)
    for key, field in fields.items():
        if not key.startswith("tokenizer.") or key.endswith((".tokens", ".token_type")):
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, field.contents(), field.types[0])


def write_model(path: Path, shape: Shape, kind: str, tokenizer: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"random {kind}")
    writer.add_context_length(shape.context)
    writer.add_block_count(shape.layers)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_vocab_size(shape.vocabulary)
    write_tokenizer(writer, tokenizer, shape.vocabulary)
    random = np.random.default_rng(SEED)

    def matrix(name: str, layer: int, rows: int, columns: int) -> None:
        held = mixed_type(kind, name, layer, shape.layers)
        blocks = random_blocks(held, rows, columns, 1.0 / math.sqrt(columns), random)
        full = f"{name}.weight" if layer < 0 else f"blk.{layer}.{name}.weight"
        writer.add_tensor(full, blocks, raw_dtype=gguf.GGMLQuantizationType[held])

    def vector(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(shape.hidden, dtype=np.float32))

    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    matrix("token_embd", -1, shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        vector(f"blk.{layer}.attn_norm")
        matrix("attn_q", layer, query, shape.hidden)
        matrix("attn_k", layer, key, shape.hidden)
        matrix("attn_v", layer, key, shape.hidden)
        matrix("attn_output", layer, shape.hidden, query)
        vector(f"blk.{layer}.ffn_norm")
        matrix("ffn_gate", layer, shape.feed_forward, shape.hidden)
        matrix("ffn_up", layer, shape.feed_forward, shape.hidden)
        matrix("ffn_down", layer, shape.hidden, shape.feed_forward)
    vector("output_norm")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shape", choices=list(SHAPES), default="llama-1b")
    parser.add_argument("--type", choices=TYPES, default="q4_k_m")
    parser.add_argument("--tokenizer", default=DEFAULT.name)
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    tokenizer = locate(arguments.tokenizer, cache_folder(Settings()))
    if tokenizer is None:
        print(f"{arguments.tokenizer} is not here: run `sublimate pull`", file=sys.stderr)
        return 1
    write_model(arguments.path, SHAPES[arguments.shape], arguments.type, tokenizer.path)
    print(f"{arguments.path}: {arguments.path.stat().st_size / 1e6:,.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
