"""Random tiny checkpoints of each architecture, as a GGUF file and as a transformers model.

defines: FAMILIES, Family, FamilyCheckpoint
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from checkpoints import BASE, CONTEXT, RANDOM_BLOCKS, TYPES, Shape, add_sizes, unpermuted
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from random_blocks import random_blocks

WINDOW = 45
WINDOW_BASE, LINEAR_FACTOR = 10000.0, 8.0
ATTENTION_CAP, LOGIT_CAP = 3.0, 4.0
EXPERTS, EXPERTS_USED = 8, 4
ROUTER_SPREAD = 2.0
"""Deviation of a router's logits. Which of two nearly equal experts is the last one that a row
takes turns on rounding. This far apart that one weighs little, as in models that were trained, so
that a row that takes the other one still says nearly the same."""
ROPE = {"rope_type": "default", "rope_theta": BASE}
LONG, SHORT, ORIGINAL, LONG_MAGNITUDE = 4.0, 1.5, 64, 1.2


@dataclass(frozen=True)
class Family:
    """How files of one architecture differ from llama's, and transformers' names for it."""

    model: Callable[[dict[str, Any]], Any]
    """Of the common sizes, transformers' model."""
    layers: int = 2
    pairs: bool = False
    """Files keep rotating channels side by side."""
    norms: dict[str, str] = field(
        default_factory=lambda: {
            "attn_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
        }
    )
    norm_offset: float = 0.0
    """transformers adds it to what it keeps of a norm's weight."""
    bias: bool = False
    head_norms: str = ""
    """q_norm and k_norm: of each "head", of a whole "row", or none."""
    fused: bool = False
    tied: bool = False
    has_window: bool = False
    has_experts: bool = False
    keys: Callable[[gguf.GGUFWriter, Shape], None] = lambda writer, shape: None
    seed: int = 7
    """Of the weights. With experts one of those whose rows are far from a choice between two
    equally good last experts of some weight: what rounding decides there is right either way, and
    no bar for a norm of all logits can tell it from a fault. With some others the
    default arithmetic was up to 0.038 off, beyond the bar."""


AROUND = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _granite_keys(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_embedding_scale(3.0)
    writer.add_residual_scale(0.4)
    writer.add_attention_scale(0.15)
    writer.add_logit_scale(5.0)


def _gemma2_keys(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_attn_logit_softcapping(ATTENTION_CAP)
    writer.add_final_logit_softcapping(LOGIT_CAP)


def _gemma3_keys(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(LINEAR_FACTOR)


def _expert_keys(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(EXPERTS_USED)
    writer.add_expert_feed_forward_length(shape.feed_forward)


def _shared_softmax_keys(writer: gguf.GGUFWriter, shape: Shape) -> None:
    _expert_keys(writer, shape)
    writer.add_expert_weights_norm(False)


def _long_keys(writer: gguf.GGUFWriter, shape: Shape) -> None:
    half = shape.head_dim // 2
    writer.add_tensor("rope_factors_long.weight", np.linspace(1, LONG, half, dtype=np.float32))
    writer.add_tensor("rope_factors_short.weight", np.linspace(1, SHORT, half, dtype=np.float32))
    writer.add_rope_scaling_orig_ctx_len(ORIGINAL)
    writer.add_rope_scaling_attn_factors(LONG_MAGNITUDE)


def _of(kind: str, config: str, **more: Any) -> Callable[[dict[str, Any]], Any]:
    """Settings that depend on the length of a head are functions of it."""

    def build(sizes: dict[str, Any]) -> Any:
        head_dim = sizes["head_dim"]
        known = {name: set_(head_dim) if callable(set_) else set_ for name, set_ in more.items()}
        chosen = getattr(transformers, config)(**sizes, **known)
        return getattr(transformers, kind)(chosen)

    return build


def _experts_of(norm_topk_prob: bool) -> Callable[[dict[str, Any]], Any]:
    def build(sizes: dict[str, Any]) -> Any:
        return _of(
            "Qwen3MoeForCausalLM",
            "Qwen3MoeConfig",
            rope_parameters=ROPE,
            num_experts=EXPERTS,
            num_experts_per_tok=EXPERTS_USED,
            moe_intermediate_size=sizes["intermediate_size"],
            norm_topk_prob=norm_topk_prob,
            experts_implementation="eager",
        )(sizes)

    return build


FAMILIES: dict[str, Family] = {
    "mistral": Family(
        _of("MistralForCausalLM", "MistralConfig", sliding_window=WINDOW, rope_parameters=ROPE),
        pairs=True,
        has_window=True,
    ),
    "qwen2": Family(_of("Qwen2ForCausalLM", "Qwen2Config", rope_parameters=ROPE), bias=True),
    "qwen3": Family(
        _of("Qwen3ForCausalLM", "Qwen3Config", rope_parameters=ROPE), head_norms="head"
    ),
    "qwen3moe": Family(
        _experts_of(norm_topk_prob=True),
        head_norms="head",
        has_experts=True,
        keys=_expert_keys,
        seed=2,
    ),
    "qwen3moe shares": Family(
        _experts_of(norm_topk_prob=False),
        head_norms="head",
        has_experts=True,
        keys=_shared_softmax_keys,
        seed=2,
    ),
    "granite": Family(
        _of(
            "GraniteForCausalLM",
            "GraniteConfig",
            rope_parameters=ROPE,
            embedding_multiplier=3.0,
            residual_multiplier=0.4,
            attention_multiplier=0.15,
            logits_scaling=5.0,
        ),
        pairs=True,
        keys=_granite_keys,
    ),
    "olmo2": Family(
        _of("Olmo2ForCausalLM", "Olmo2Config", rope_parameters=ROPE),
        norms=AFTER,
        head_norms="row",
    ),
    "gemma": Family(
        _of("GemmaForCausalLM", "GemmaConfig", rope_parameters=ROPE), norm_offset=1.0, tied=True
    ),
    "gemma2": Family(
        _of(
            "Gemma2ForCausalLM",
            "Gemma2Config",
            rope_parameters=ROPE,
            query_pre_attn_scalar=lambda head_dim: head_dim,
            sliding_window=WINDOW,
            attn_logit_softcapping=ATTENTION_CAP,
            final_logit_softcapping=LOGIT_CAP,
        ),
        norms=AROUND,
        norm_offset=1.0,
        tied=True,
        has_window=True,
        keys=_gemma2_keys,
    ),
    "gemma3": Family(
        _of(
            "Gemma3ForCausalLM",
            "Gemma3TextConfig",
            query_pre_attn_scalar=lambda head_dim: head_dim,
            sliding_window=WINDOW,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": WINDOW_BASE},
                "full_attention": {
                    "rope_type": "linear",
                    "rope_theta": BASE,
                    "factor": LINEAR_FACTOR,
                },
            },
        ),
        layers=7,
        norms=AROUND,
        norm_offset=1.0,
        head_norms="head",
        tied=True,
        has_window=True,
        keys=_gemma3_keys,
    ),
    "phi3": Family(
        _of(
            "Phi3ForCausalLM",
            "Phi3Config",
            rope_parameters=ROPE,
            sliding_window=WINDOW,
            pad_token_id=0,
        ),
        fused=True,
        has_window=True,
    ),
    "phi3 long": Family(
        _of(
            "Phi3ForCausalLM",
            "Phi3Config",
            original_max_position_embeddings=ORIGINAL,
            pad_token_id=0,
            rope_parameters=lambda head_dim: {
                "rope_type": "longrope",
                "rope_theta": BASE,
                "long_factor": np.linspace(1, LONG, head_dim // 2).tolist(),
                "short_factor": np.linspace(1, SHORT, head_dim // 2).tolist(),
                "attention_factor": LONG_MAGNITUDE,
                "original_max_position_embeddings": ORIGINAL,
            },
        ),
        fused=True,
        keys=_long_keys,
    ),
}


class FamilyCheckpoint:
    """Draws weights, adds each to the file in `kind` and gives transformers what the file holds."""

    def __init__(self, path: Path, name: str, shape: Shape, kind: str) -> None:
        self.family = FAMILIES[name]
        self.shape = shape
        self.kind = kind
        self.random = np.random.default_rng(self.family.seed)
        self.state: dict[str, torch.Tensor] = {}
        self.writer = gguf.GGUFWriter(path, name.partition(" ")[0])
        self._keys()
        self._tensors()
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        self.model = self._transformers_model()

    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0].numpy()

    def _keys(self) -> None:
        shape, writer = self.shape, self.writer
        add_sizes(writer, shape, self.family.layers, 1e-6)
        if self.family.has_window:
            writer.add_sliding_window(WINDOW)
        self.family.keys(writer, shape)

    def _draw(self, rows: int, columns: int, heads: int) -> tuple[Any, NDArray[np.float32]]:
        """A matrix as the file has it, and what transformers gets of it."""
        if self.kind in RANDOM_BLOCKS:
            packed = random_blocks(self.kind, rows, columns, 1 / math.sqrt(columns), self.random)
        else:
            weights = self.random.standard_normal((rows, columns)).astype(np.float32)
            packed = quantize(weights / math.sqrt(columns), TYPES[self.kind])
        held = np.asarray(dequantize(packed, TYPES[self.kind]), dtype=np.float32)
        held = held.reshape(rows, columns)
        return packed, unpermuted(held, heads) if heads and self.family.pairs else held

    def _matrix(self, name: str, parts: list[tuple[str, int, int]], columns: int) -> None:
        """One tensor of the file; a part of it for each (transformers' name, rows, heads)."""
        drawn = [self._draw(rows, columns, heads) for _, rows, heads in parts]
        packed = np.concatenate([packed for packed, _ in drawn])
        self.writer.add_tensor(f"{name}.weight", packed, raw_dtype=TYPES[self.kind])
        for (target, _, _), (_, held) in zip(parts, drawn, strict=True):
            known = self.state.get(f"{target}.weight")
            kept = torch.from_numpy(held.copy())
            whole = kept if known is None else torch.cat((known, kept))
            self.state[f"{target}.weight"] = whole

    def _vector(self, name: str, target: str, count: int, offset: float = 0.0) -> None:
        weights = self.random.uniform(0.5, 1.5, count).astype(np.float32)
        self.writer.add_tensor(name, weights)
        self.state[target] = torch.from_numpy(weights - np.float32(offset))

    def _norm(self, name: str, target: str, count: int) -> None:
        self._vector(f"{name}.weight", f"{target}.weight", count, self.family.norm_offset)

    def _tensors(self) -> None:
        family, shape = self.family, self.shape
        self._matrix("token_embd", [("model.embed_tokens", shape.vocabulary, 0)], shape.hidden)
        for i in range(family.layers):
            block, layer = f"blk.{i}", f"model.layers.{i}"
            for name, target in family.norms.items():
                self._norm(f"{block}.{name}", f"{layer}.{target}", shape.hidden)
            self._attention(block, f"{layer}.self_attn")
            feed_forward = self._experts if self.family.has_experts else self._feed_forward
            feed_forward(block, f"{layer}.mlp")
        self._norm("output_norm", "model.norm", shape.hidden)
        if not family.tied:
            self._matrix("output", [("lm_head", shape.vocabulary, 0)], shape.hidden)

    def _attention(self, block: str, target: str) -> None:
        family, shape = self.family, self.shape
        heads = {"q": shape.heads, "k": shape.kv_heads, "v": shape.kv_heads}
        rows = {name: count * shape.head_dim for name, count in heads.items()}
        if family.fused:
            whole = f"{target}.qkv_proj"
            self._matrix(
                f"{block}.attn_qkv", [(whole, rows[name], 0) for name in heads], shape.hidden
            )
        else:
            for name, count in heads.items():
                turned = 0 if name == "v" else count
                part = (f"{target}.{name}_proj", rows[name], turned)
                self._matrix(f"{block}.attn_{name}", [part], shape.hidden)
        for name in heads if family.bias else ():
            self._vector(f"{block}.attn_{name}.bias", f"{target}.{name}_proj.bias", rows[name])
        for name in ("q", "k") if family.head_norms else ():
            count = shape.head_dim if family.head_norms == "head" else rows[name]
            self._norm(f"{block}.attn_{name}_norm", f"{target}.{name}_norm", count)
        self._matrix(f"{block}.attn_output", [(f"{target}.o_proj", shape.hidden, 0)], rows["q"])

    def _feed_forward(self, block: str, target: str) -> None:
        shape, inner = self.shape, self.shape.feed_forward
        if self.family.fused:
            whole = f"{target}.gate_up_proj"
            self._matrix(f"{block}.ffn_up", [(whole, inner, 0), (whole, inner, 0)], shape.hidden)
        else:
            for name in ("gate", "up"):
                self._matrix(
                    f"{block}.ffn_{name}", [(f"{target}.{name}_proj", inner, 0)], shape.hidden
                )
        self._matrix(f"{block}.ffn_down", [(f"{target}.down_proj", shape.hidden, 0)], inner)

    def _experts(self, block: str, target: str) -> None:
        """The router is in F32 in files of every type."""
        hidden, inner = self.shape.hidden, self.shape.feed_forward
        router = self.random.standard_normal((EXPERTS, hidden)).astype(np.float32)
        router *= np.float32(ROUTER_SPREAD / math.sqrt(hidden))
        self.writer.add_tensor(f"{block}.ffn_gate_inp.weight", router)
        held: dict[str, torch.Tensor] = {}
        for name, rows, columns in (
            ("gate", inner, hidden),
            ("up", inner, hidden),
            ("down", hidden, inner),
        ):
            packed, weights = self._draw(EXPERTS * rows, columns, 0)
            whole = packed.reshape(EXPERTS, rows, -1)
            self.writer.add_tensor(
                f"{block}.ffn_{name}_exps.weight", whole, raw_dtype=TYPES[self.kind]
            )
            held[name] = torch.from_numpy(weights.reshape(EXPERTS, rows, columns).copy())
        self.state[f"{target}.gate.weight"] = torch.from_numpy(router)
        self.state[f"{target}.experts.gate_up_proj"] = torch.cat((held["gate"], held["up"]), 1)
        self.state[f"{target}.experts.down_proj"] = held["down"]

    def _transformers_model(self) -> Any:
        shape = self.shape
        model = self.family.model(
            {
                "vocab_size": shape.vocabulary,
                "hidden_size": shape.hidden,
                "intermediate_size": shape.feed_forward,
                "num_hidden_layers": self.family.layers,
                "num_attention_heads": shape.heads,
                "num_key_value_heads": shape.kv_heads,
                "head_dim": shape.head_dim,
                "max_position_embeddings": CONTEXT,
                "rms_norm_eps": 1e-6,
                "tie_word_embeddings": self.family.tied,
                "attn_implementation": "eager",
            }
        )
        if self.family.tied:
            self.state["lm_head.weight"] = self.state["model.embed_tokens.weight"]
        model.load_state_dict(self.state, strict=True)
        return model.float().eval()
