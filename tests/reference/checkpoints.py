"""Random tiny llama checkpoints, as a GGUF file and as a transformers model of the same weights.

defines: Shape, relative_error, worst_error, rope_parameters, llama3_divisors, permuted, unpermuted,
add_sizes, Checkpoint
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from random_blocks import random_blocks

TYPES = {
    "F32": gguf.GGMLQuantizationType.F32,
    "F16": gguf.GGMLQuantizationType.F16,
    "BF16": gguf.GGMLQuantizationType.BF16,
    "Q8_0": gguf.GGMLQuantizationType.Q8_0,
    "Q4_0": gguf.GGMLQuantizationType.Q4_0,
    "Q4_1": gguf.GGMLQuantizationType.Q4_1,
    "Q5_0": gguf.GGMLQuantizationType.Q5_0,
    "Q5_1": gguf.GGMLQuantizationType.Q5_1,
    "IQ4_NL": gguf.GGMLQuantizationType.IQ4_NL,
    "IQ4_XS": gguf.GGMLQuantizationType.IQ4_XS,
    "MXFP4": gguf.GGMLQuantizationType.MXFP4,
    "Q2_K": gguf.GGMLQuantizationType.Q2_K,
    "Q3_K": gguf.GGMLQuantizationType.Q3_K,
    "Q4_K": gguf.GGMLQuantizationType.Q4_K,
    "Q5_K": gguf.GGMLQuantizationType.Q5_K,
    "Q6_K": gguf.GGMLQuantizationType.Q6_K,
}
# The package reads these but does not write them.
RANDOM_BLOCKS = ("IQ4_NL", "IQ4_XS", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
# As in files that mix types: tensors of another type than the checkpoint's.
MIXED = {"Q4_K": ("Q6_K", ("attn_v", "ffn_down", "token_embd"))}
CONTEXT = 256
ORIGINAL_CONTEXT = 64
FACTOR = 4.0
BASE = 10000.0
LOW_FREQUENCY_FACTOR, HIGH_FREQUENCY_FACTOR = 1.0, 4.0


@dataclass(frozen=True)
class Shape:
    """Sizes of a checkpoint."""

    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    hidden: int = 128
    feed_forward: int = 192
    layers: int = 2
    vocabulary: int = 151
    tied: bool = False


def relative_error(ours: Any, reference: Any) -> float:
    """Norm of the difference of all logits, relative to their norm."""
    return float(np.linalg.norm(ours - reference) / np.linalg.norm(reference))


def worst_error(ours: Any, reference: Any) -> float:
    """The largest difference of a position's logits, relative to its largest logit."""
    difference = np.abs(ours - reference).max(axis=1)
    return float((difference / np.abs(reference).max(axis=1)).max())


def rope_parameters(kind: str) -> dict[str, Any]:
    """What transformers takes for a kind: none, linear, yarn or llama3."""
    rope: dict[str, Any] = {"rope_type": "default" if kind == "none" else kind, "rope_theta": BASE}
    if kind != "none":
        rope["factor"] = FACTOR
    if kind in ("yarn", "llama3"):
        rope["original_max_position_embeddings"] = ORIGINAL_CONTEXT
    if kind == "llama3":
        rope["low_freq_factor"] = LOW_FREQUENCY_FACTOR
        rope["high_freq_factor"] = HIGH_FREQUENCY_FACTOR
    return rope


def llama3_divisors(dimension: int) -> NDArray[np.float32]:
    """What a GGUF file carries as rope_freqs.weight, as the format's converters compute it."""
    divisors: list[float] = []
    for i in range(0, dimension, 2):
        wavelength = 2.0 * math.pi * BASE ** (i / dimension)
        turns = ORIGINAL_CONTEXT / wavelength
        if turns > HIGH_FREQUENCY_FACTOR:
            divisors.append(1.0)
        elif turns < LOW_FREQUENCY_FACTOR:
            divisors.append(FACTOR)
        else:
            spread = HIGH_FREQUENCY_FACTOR - LOW_FREQUENCY_FACTOR
            smooth = (turns - LOW_FREQUENCY_FACTOR) / spread
            divisors.append(1.0 / ((1.0 - smooth) / FACTOR + smooth))
    return np.array(divisors, dtype=np.float32)


def permuted(weights: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of a head from transformers' two halves to GGUF's adjacent pairs."""
    rows, columns = weights.shape
    halves = weights.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def unpermuted(weights: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    rows, columns = weights.shape
    pairs = weights.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def add_sizes(writer: gguf.GGUFWriter, shape: Shape, layers: int, epsilon: float) -> None:
    """Keys that files of all architectures have."""
    writer.add_context_length(CONTEXT)
    writer.add_block_count(layers)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(epsilon)
    writer.add_rope_freq_base(BASE)
    writer.add_rope_dimension_count(shape.head_dim)


class Checkpoint:
    """Draws weights, adds each to the file in `kind` and gives transformers what the file holds."""

    def __init__(self, path: Path, shape: Shape, kind: str, rope: str, seed: int) -> None:
        self.shape = shape
        self.random = np.random.default_rng(seed)
        self.kind = kind
        self.state: dict[str, torch.Tensor] = {}
        self.writer = gguf.GGUFWriter(path, "llama")
        self._keys(rope)
        self._tensors(rope)
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        self.model = self._transformers_model(rope)

    def _keys(self, rope: str) -> None:
        shape, writer = self.shape, self.writer
        add_sizes(writer, shape, shape.layers, 1e-5)
        if rope in ("linear", "yarn"):
            writer.add_rope_scaling_type(gguf.RopeScalingType(rope))
            writer.add_rope_scaling_factor(FACTOR)
        if rope == "yarn":
            writer.add_rope_scaling_orig_ctx_len(ORIGINAL_CONTEXT)
        if rope == "llama3":
            writer.add_tensor("rope_freqs.weight", llama3_divisors(shape.head_dim))

    def _kind(self, name: str) -> str:
        other, names = MIXED.get(self.kind, ("", ()))
        return other if name.rpartition(".")[2] in names else self.kind

    def _matrix(self, name: str, target: str, rows: int, columns: int, heads: int = 0) -> None:
        kind = self._kind(name)
        if kind in RANDOM_BLOCKS:
            packed = random_blocks(kind, rows, columns, 1.0 / math.sqrt(columns), self.random)
        else:
            weights = self.random.standard_normal((rows, columns)).astype(np.float32)
            weights /= math.sqrt(columns)
            packed = quantize(permuted(weights, heads) if heads else weights, TYPES[kind])
        self.writer.add_tensor(f"{name}.weight", packed, raw_dtype=TYPES[kind])
        held = np.asarray(dequantize(packed, TYPES[kind]), dtype=np.float32)
        held = held.reshape(rows, columns)
        kept = unpermuted(held, heads) if heads else held
        self.state[f"{target}.weight"] = torch.from_numpy(kept.copy())

    def _vector(self, name: str, target: str) -> None:
        weights = self.random.uniform(0.5, 1.5, self.shape.hidden).astype(np.float32)
        self.writer.add_tensor(f"{name}.weight", weights)
        self.state[f"{target}.weight"] = torch.from_numpy(weights)

    def _tensors(self, rope: str) -> None:
        shape = self.shape
        query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self._matrix("token_embd", "model.embed_tokens", shape.vocabulary, shape.hidden)
        for i in range(shape.layers):
            block, layer = f"blk.{i}", f"model.layers.{i}"
            attention = f"{layer}.self_attn"
            self._vector(f"{block}.attn_norm", f"{layer}.input_layernorm")
            self._matrix(f"{block}.attn_q", f"{attention}.q_proj", query, shape.hidden, shape.heads)
            self._matrix(
                f"{block}.attn_k", f"{attention}.k_proj", key, shape.hidden, shape.kv_heads
            )
            self._matrix(f"{block}.attn_v", f"{attention}.v_proj", key, shape.hidden)
            self._matrix(f"{block}.attn_output", f"{attention}.o_proj", shape.hidden, query)
            self._vector(f"{block}.ffn_norm", f"{layer}.post_attention_layernorm")
            for name in ("gate", "up"):
                self._matrix(
                    f"{block}.ffn_{name}",
                    f"{layer}.mlp.{name}_proj",
                    shape.feed_forward,
                    shape.hidden,
                )
            self._matrix(
                f"{block}.ffn_down", f"{layer}.mlp.down_proj", shape.hidden, shape.feed_forward
            )
        self._vector("output_norm", "model.norm")
        if not shape.tied:
            self._matrix("output", "lm_head", shape.vocabulary, shape.hidden)

    def _transformers_model(self, rope: str) -> LlamaForCausalLM:
        shape = self.shape
        config = LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.feed_forward,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            rope_parameters=rope_parameters(rope),
            tie_word_embeddings=shape.tied,
            attn_implementation="eager",
        )
        model = LlamaForCausalLM(config).float().eval()
        if shape.tied:
            self.state["lm_head.weight"] = self.state["model.embed_tokens.weight"]
        model.load_state_dict(self.state, strict=True)
        return model

    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0].numpy()
